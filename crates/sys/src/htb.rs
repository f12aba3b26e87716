//! Hierarchies of token buckets (tc-htb(8)) of network devices, over rtnetlink. The priority of a sent packet
//! chooses its class, and each class has its rate.
//!
//! **Layout.** One qdisc `1:` at the device's root; one class `1:fffe` that all others are in, with the
//! device's whole rate; class `1:N+1` for queue N. Packets of priority `1:N+1` are queue N's, all others are
//! queue 0's.
//!
//! **Which qdisc is ours.** An `htb` with the handle `1:` counts as one of an earlier daemon, as in Open
//! vSwitch. Any other qdisc at the root is left alone until a hierarchy is configured.

use crate::netlink::Requests;
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use std::io;

/// Queues that a device can have: the other minors of class ids are the parent's and reserved.
pub const MAX_QUEUES: u32 = 0xf000;
/// The qdisc and the parents of its classes.
const MAJOR: u16 = 1;
const ROOT_CLASS: u16 = 0xfffe;
const KIND: &str = "htb";
const TCA_OPTIONS: u16 = 2;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// `struct tc_htb_glob`'s version.
const VERSION: u32 = 3;
/// A class's turn is its rate over this, bytes.
const RATE_TO_QUANTUM: u64 = 10;
/// `TC_LINKLAYER_ETHERNET`: the kernel computes the time that a packet takes by itself.
const LINKLAYER_ETHERNET: u8 = 1;
/// Shortest frame.
const MIN_FRAME: u16 = 64;
/// The kernel's errors for a different qdisc, and for none.
const INVALID: i32 = rustix::io::Errno::INVAL.raw_os_error();
const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();
/// Length of a tick in which the kernel counts (`PSCHED_SHIFT`).
const TICK_NS: u64 = 64;

/// The rates of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HtbClass {
    /// Bytes per second that it has in any case.
    pub rate: u64,
    /// Bytes per second that it may borrow up to.
    pub ceil: u64,
    /// Bytes that it may send at once.
    pub burst: u64,
    /// The class with the lowest number borrows first.
    pub prio: u32,
}

/// Counters of the packets that a queue has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HtbCounts {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that it had no room for.
    pub dropped: u64,
}

/// The hierarchies of the devices of one network namespace, by interface index.
#[derive(Debug)]
pub struct Htb {
    requests: Requests,
}

/// Bytes per second as a class's time for `bytes`, in ticks.
fn ticks(rate: u64, bytes: u64) -> u32 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    u32::try_from(ns / u128::from(TICK_NS)).unwrap_or(u32::MAX)
}

/// `struct tc_ratespec`.
fn ratespec(rate: u64, out: &mut Vec<u8>) {
    out.extend([0, LINKLAYER_ETHERNET]);
    // No overhead, no alignment of cells.
    out.extend([0; 4]);
    out.extend(MIN_FRAME.to_ne_bytes());
    out.extend(u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
}

/// An attribute whose value is some others.
fn nested(kind: u16, inner: &[(u16, Vec<u8>)]) -> TcAttribute {
    let mut value = Vec::new();
    for (kind, bytes) in inner {
        let len = u16::try_from(4 + bytes.len()).unwrap_or(u16::MAX);
        value.extend(len.to_ne_bytes());
        value.extend(kind.to_ne_bytes());
        value.extend(bytes);
        value.resize(value.len().next_multiple_of(4), 0);
    }
    TcAttribute::Other(DefaultNla::new(kind, value))
}

fn handle(minor: u16) -> TcHandle {
    TcHandle { major: MAJOR, minor }
}

impl Htb {
    /// For devices of the calling thread's namespace.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            requests: Requests::new(None)?,
        })
    }

    fn message(ifindex: u32, handle: TcHandle, parent: TcHandle) -> TcMessage {
        let mut m = TcMessage::with_index(i32::try_from(ifindex).unwrap_or(-1));
        m.header.handle = handle;
        m.header.parent = parent;
        m
    }

    fn send(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.requests.ask(request, NLM_F_ACK | flags, |_| {})
    }

    /// Makes an empty hierarchy in place of the qdisc at the device's root.
    pub fn make(&self, ifindex: u32) -> io::Result<()> {
        // The handle does not matter; the root may have no qdisc, or the default one.
        let _ = self.send(
            RouteNetlinkMessage::DelQueueDiscipline(Self::message(ifindex, TcHandle::UNSPEC, TcHandle::ROOT)),
            0,
        );
        let mut m = Self::message(ifindex, handle(0), TcHandle::ROOT);
        // Version, rate to quantum, default class, debugging, packets sent without a class.
        let rate_to_quantum = u32::try_from(RATE_TO_QUANTUM).unwrap_or(0);
        let glob = [VERSION, rate_to_quantum, 1, 0, 0].map(u32::to_ne_bytes).concat();
        m.attributes = vec![
            TcAttribute::Kind(KIND.into()),
            nested(TCA_OPTIONS, &[(TCA_HTB_INIT, glob)]),
        ];
        self.send(
            RouteNetlinkMessage::NewQueueDiscipline(m),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Takes a hierarchy away, if the device has one of ours.
    ///
    /// # Errors
    /// The errors of [`Htb::make`].
    pub fn remove(&self, ifindex: u32) -> io::Result<()> {
        // The kernel removes the qdisc only if it has this handle and this kind. So no query is needed, which
        // would list the qdiscs of all devices: with one query for each of thousands, millions of lines.
        let mut m = Self::message(ifindex, handle(0), TcHandle::ROOT);
        m.attributes = vec![TcAttribute::Kind(KIND.into())];
        match self.send(RouteNetlinkMessage::DelQueueDiscipline(m), 0) {
            Err(e) if [Some(INVALID), Some(NO_ENTRY)].contains(&e.raw_os_error()) => Ok(()),
            done => done,
        }
    }

    /// Makes or changes the class that all queues are in; its rate is the device's.
    ///
    /// # Errors
    /// The errors of [`Htb::make`].
    pub fn set_whole(&self, ifindex: u32, mtu: u32, class: &HtbClass) -> io::Result<()> {
        self.class(ifindex, ROOT_CLASS, handle(0), mtu, class)
    }

    /// Makes or changes a queue.
    ///
    /// # Errors
    /// The errors of [`Htb::make`]; `InvalidInput` for a number of [`MAX_QUEUES`] or more.
    pub fn set_queue(&self, ifindex: u32, queue: u32, mtu: u32, class: &HtbClass) -> io::Result<()> {
        self.class(ifindex, minor(queue)?, handle(ROOT_CLASS), mtu, class)
    }

    /// Takes a queue away.
    ///
    /// # Errors
    /// The errors of [`Htb::set_queue`]; `NotFound` where there is none.
    pub fn remove_queue(&self, ifindex: u32, queue: u32) -> io::Result<()> {
        let m = Self::message(ifindex, handle(minor(queue)?), TcHandle::UNSPEC);
        self.send(RouteNetlinkMessage::DelTrafficClass(m), 0)
    }

    fn class(&self, ifindex: u32, own: u16, parent: TcHandle, mtu: u32, c: &HtbClass) -> io::Result<()> {
        let mut m = Self::message(ifindex, handle(own), parent);
        let mtu_bytes = u64::from(mtu);
        // A turn is a frame at least.
        let quantum = if c.rate / RATE_TO_QUANTUM < mtu_bytes {
            mtu
        } else {
            0
        };
        let burst = c.burst.max(mtu_bytes);
        let mut opt = Vec::with_capacity(44);
        ratespec(c.rate, &mut opt);
        ratespec(c.ceil, &mut opt);
        // Both bursts, the quantum, the level (the kernel's), the priority of borrowing.
        for n in [ticks(c.rate, burst), ticks(c.ceil, burst), quantum, 0, c.prio] {
            opt.extend(n.to_ne_bytes());
        }
        let mut options = vec![(TCA_HTB_PARMS, opt)];
        for (kind, rate) in [(TCA_HTB_RATE64, c.rate), (TCA_HTB_CEIL64, c.ceil)] {
            if u32::try_from(rate).is_err() {
                options.push((kind, rate.to_ne_bytes().to_vec()));
            }
        }
        m.attributes = vec![TcAttribute::Kind(KIND.into()), nested(TCA_OPTIONS, &options)];
        self.send(RouteNetlinkMessage::NewTrafficClass(m), NLM_F_CREATE)
    }

    /// The counters of each queue.
    ///
    /// # Errors
    /// The errors of [`Htb::make`].
    pub fn counts(&self, ifindex: u32) -> io::Result<Vec<(u32, HtbCounts)>> {
        let mut found = Vec::new();
        let m = Self::message(ifindex, TcHandle::UNSPEC, TcHandle::UNSPEC);
        self.requests
            .ask(RouteNetlinkMessage::GetTrafficClass(m), NLM_F_DUMP, |answer| {
                let RouteNetlinkMessage::NewTrafficClass(class) = answer else {
                    return;
                };
                let TcHandle { major, minor } = class.header.handle;
                if major != MAJOR || minor == 0 || u32::from(minor) > MAX_QUEUES {
                    return;
                }
                found.push((u32::from(minor) - 1, counts(&class.attributes)));
            })?;
        found.sort_unstable_by_key(|(queue, _)| *queue);
        Ok(found)
    }
}

fn minor(queue: u32) -> io::Result<u16> {
    let minor = u16::try_from(queue + 1).ok().filter(|_| queue < MAX_QUEUES);
    minor.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn counts(attributes: &[TcAttribute]) -> HtbCounts {
    let mut c = HtbCounts::default();
    for s in attributes.iter().filter_map(|a| match a {
        TcAttribute::Stats2(all) => Some(all),
        _ => None,
    }) {
        for one in s {
            match one {
                TcStats2::Basic(b) => (c.bytes, c.packets) = (b.bytes, b.packets.into()),
                TcStats2::Queue(q) => c.dropped = q.drops.into(),
                _ => {}
            }
        }
    }
    c
}

/// The priority of packets of a queue, as sockets have it; `None`: they need none.
pub fn priority_of(queue: u32) -> Option<u32> {
    (queue != 0 && queue < MAX_QUEUES).then(|| u32::from(MAJOR) << 16 | (queue + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn run(command: &str) -> String {
        let out = Command::new("sh").args(["-c", command]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }

    #[test]
    fn queues_have_priorities() {
        assert_eq!(priority_of(0), None);
        assert_eq!(priority_of(1), Some(0x1_0002));
        assert_eq!(priority_of(MAX_QUEUES), None);
        assert!(minor(MAX_QUEUES).is_err());
    }

    #[test]
    fn a_hierarchy_is_what_tc_says() {
        // In a namespace of this thread's own: other tests are not touched.
        let done = std::thread::spawn(|| {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; nothing that processes share is unshared here"
            )]
            if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
                return None;
            }
            // Only this test sends packets there.
            run("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
            run("ip link add h0 type veth peer name h1 && ip link set h0 up && ip link set h1 up");
            let index = crate::LinkCtl::new().ok()?.ifindex("h0").ok()?;
            let htb = Htb::new().unwrap();
            if htb.make(index).is_err() {
                return None;
            }
            // In place of the qdisc of another program.
            run(
                "tc qdisc replace dev h0 root handle 7: pfifo; tc qdisc del dev h1 root; tc qdisc add dev h1 root noqueue",
            );
            htb.make(index).unwrap();
            htb.make(crate::LinkCtl::new().ok()?.ifindex("h1").ok()?).unwrap();
            let class = |rate, ceil| HtbClass {
                rate,
                ceil,
                burst: 0,
                prio: 3,
            };
            htb.set_whole(index, 1500, &class(10_000_000_000, 10_000_000_000))
                .unwrap();
            htb.set_queue(index, 0, 1500, &class(125_000, 250_000)).unwrap();
            htb.set_queue(index, 7, 1500, &class(1_250_000, 1_250_000))
                .unwrap();
            let classes = run("tc class show dev h0");
            htb.remove_queue(index, 7).unwrap();
            let counts = htb.counts(index).unwrap();
            htb.remove(index).unwrap();
            let after = run("tc qdisc show dev h0");
            htb.remove(index).unwrap();
            // Qdiscs of other programs: of another kind, or with another handle.
            let others = ["handle 1: pfifo", "handle 7: htb"].map(|theirs| {
                run(&format!("tc qdisc replace dev h0 root {theirs}"));
                htb.remove(index).unwrap();
                run("tc qdisc show dev h0 root; tc qdisc del dev h0 root")
            });
            assert!(htb.remove(index + 1000).is_err());
            Some((classes, counts, after, others))
        });
        let Some((classes, counts, after, others)) = done.join().unwrap() else {
            eprintln!("no namespaces, or no HTB here");
            return;
        };
        for part in [
            "class htb 1:fffe root rate 80Gbit ceil 80Gbit",
            "class htb 1:1 parent 1:fffe prio 3 rate 1Mbit ceil 2Mbit",
            "class htb 1:8 parent 1:fffe prio 3 rate 10Mbit ceil 10Mbit",
        ] {
            assert!(classes.contains(part), "{part}: {classes}");
        }
        assert_eq!(counts, [(0, HtbCounts::default())]);
        assert!(!after.contains("htb"), "{after}");
        assert!(
            others[0].contains("pfifo 1:") && others[1].contains("htb 7:"),
            "{others:?}"
        );
    }
}
