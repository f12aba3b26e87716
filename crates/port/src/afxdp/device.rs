//! The opened queues of a device, with the XDP program that leads to them.

use super::options::{Mode, Options};
use heddle_sys::device_programs::DevicePrograms;
use heddle_sys::{PacketSocket, errno_text};
use heddle_xsk::{PassItem, Passed, Program, Queue, QueueConfig, Rx, Tx};
use std::io;

/// The opened queues of a device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) ifindex: u32,
    pub(super) mode: Mode,
    /// The card's NUMA node.
    pub(super) numa: Option<u32>,
    pub(super) queues: Vec<Queue>,
    /// Receiving halves that no worker has yet.
    pub(super) unused: Vec<Rx>,
    program: Program,
    /// The device takes in packets for every address as long as this is open.
    _promiscuous: PacketSocket,
}

/// The device that is to be opened, and what is common to all modes.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    pub(super) name: &'a str,
    pub(super) ifindex: u32,
    pub(super) options: Options,
    /// The number of queues.
    pub(super) n: u32,
    /// The kernel may fill checksums in where it copies packets.
    pub(super) checksums: bool,
    /// Packets that the host's stack gets.
    pub(super) pass: &'a [PassItem],
}

/// Why a device cannot be opened.
pub(super) struct Refusal {
    /// One sentence.
    pub(super) why: String,
    /// Another program uses the device: this may end, and the kernel does not report that.
    pub(super) is_busy: bool,
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        Self {
            why: errno_text(&e),
            is_busy: false,
        }
    }
}

impl From<heddle_xsk::AttachError> for Refusal {
    fn from(e: heddle_xsk::AttachError) -> Self {
        Self {
            why: e.to_string(),
            is_busy: e.is_busy,
        }
    }
}

impl Device {
    /// Opens queues in a mode. The host's stack gets its packets from the first one on.
    pub(super) fn open(wish: Wish<'_>, mode: Mode) -> Result<(Self, Vec<Tx>), Refusal> {
        let Wish { ifindex, options, .. } = wish;
        let mut program = Program::attach(ifindex, mode != Mode::Generic)?;
        program.set_pass(wish.pass)?;
        let promiscuous = PacketSocket::sender()?;
        promiscuous.join_promiscuous(ifindex)?;
        let numa = numa_of(wish.name);
        let (mut queues, mut unused, mut senders) = (Vec::new(), Vec::new(), Vec::new());
        for queue in options.first_queue..options.first_queue + wish.n {
            let config = QueueConfig {
                ifindex,
                queue,
                rx_frames: options.frames.0,
                tx_frames: options.frames.1,
                numa,
                zero_copy: mode == Mode::ZeroCopy,
                checksums: wish.checksums,
                need_wakeup: options.need_wakeup,
                room_for: wish.n * mode.cards_per_memory(),
            };
            let (opened, rx, tx) = Queue::open(config).map_err(|e| Refusal {
                is_busy: e.kind() == io::ErrorKind::ResourceBusy,
                why: format!("queue {queue}: {}", errno_text(&e)),
            })?;
            program.lead(queue, &opened)?;
            queues.push(opened);
            unused.push(rx);
            senders.push(tx);
        }
        let device = Self {
            ifindex,
            mode,
            numa,
            queues,
            unused,
            program,
            _promiscuous: promiscuous,
        };
        Ok((device, senders))
    }

    /// Whether packets still reach the queues: the program is at the device, and the sockets are bound.
    pub(super) fn is_attached(&self, programs: &DevicePrograms) -> bool {
        // A device that does not reply is found in another way.
        let there = programs.xdp_programs(self.ifindex);
        there.map_or(true, |ids| ids.contains(&self.program.id())) && self.queues.iter().all(Queue::is_bound)
    }

    /// See [`Program::set_pass`].
    pub(super) fn set_pass(&mut self, items: &[PassItem]) -> Result<(), heddle_xsk::AttachError> {
        self.program.set_pass(items)
    }

    /// Packets that the host's stack got.
    pub(super) fn passed(&self) -> Passed {
        self.program.passed()
    }

    /// The fault of a device with that MTU, if its longest packets cannot be received.
    pub(super) fn too_long(&self, mtu: u32) -> Option<String> {
        // Two tags and the Ethernet header.
        let longest = heddle_xsk::MAX_RECEIVED - 22;
        let lost = mtu as usize > longest && !self.queues.iter().all(Queue::takes_many_frames);
        lost.then(|| {
            format!(
                "mode {} receives no packets beyond an MTU of {longest}",
                self.mode.name()
            )
        })
    }

    /// Packets that the kernel lost before a queue saw them.
    pub(super) fn losses(&self) -> u64 {
        let all = self.queues.iter().filter_map(|q| q.losses().ok());
        all.map(|l| l.rx_dropped + l.rx_ring_full).sum()
    }

    /// Counters for `Interface.statistics`.
    pub(super) fn statistics(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let of_queues = self.queues.iter().enumerate().filter_map(|(i, q)| {
            let losses = q.losses().ok()?;
            Some([
                (format!("xsk_queue_{i}_rx_dropped"), losses.rx_dropped),
                (format!("xsk_queue_{i}_rx_invalid_descs"), losses.rx_invalid),
                (format!("xsk_queue_{i}_tx_invalid_descs"), losses.tx_invalid),
                (format!("xsk_queue_{i}_rx_ring_full"), losses.rx_ring_full),
                (format!("xsk_queue_{i}_fill_ring_empty"), losses.fill_ring_empty),
                (format!("xsk_queue_{i}_tx_without_copy"), q.sent_without_copy()),
            ])
        });
        let passed = self.passed();
        let of_host = [
            ("xdp_passed_packets".to_owned(), passed.by_item),
            ("xdp_without_socket_packets".to_owned(), passed.without_socket),
        ];
        of_queues.flatten().chain(of_host)
    }
}

/// The NUMA node of a network card.
fn numa_of(name: &str) -> Option<u32> {
    let node = std::fs::read_to_string(format!("/sys/class/net/{name}/device/numa_node"));
    node.ok()?.trim().parse().ok() // -1: unknown
}
