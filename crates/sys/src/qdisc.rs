//! Queueing disciplines of network devices (tc(8)), over rtnetlink. The disciplines with classes are HTB and
//! HFSC: the priority of a sent packet chooses its class, and each class has its rates.
//!
//! **Layout.** One qdisc `1:` at the device's root. With classes: one class `1:fffe` that all others are in,
//! with the device's whole rate; class `1:N+1` for queue N. Packets of priority `1:N+1` are queue N's, all
//! others are queue 0's.
//!
//! **Which qdisc is ours.** A discipline of one of these kinds with the handle `1:` counts as one of an
//! earlier daemon, as in Open vSwitch. Any other qdisc at the root is left alone until one is configured.

mod htb;
mod kinds;

use crate::netlink::Requests;
pub use htb::HtbClass;
pub use kinds::{HfscClass, Qdisc, TrafficClass};
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use std::io;

/// Queues that a device can have: the other minors of class ids are the parent's and reserved.
pub const MAX_QUEUES: u32 = 0xf000;
/// The qdisc and the parents of its classes.
const MAJOR: u16 = 1;
const ROOT_CLASS: u16 = 0xfffe;
const TCA_OPTIONS: u16 = 2;
/// The kernel's errors for a different qdisc, and for none.
const INVALID: i32 = rustix::io::Errno::INVAL.raw_os_error();
const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();
/// Length of a tick in which the kernel counts (`PSCHED_SHIFT`).
const TICK_NS: u64 = 64;

/// Counters of the packets that a queue has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassCounts {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that it had no room for.
    pub dropped: u64,
}

/// The disciplines of the devices of one network namespace, by interface index.
#[derive(Debug)]
pub struct Qdiscs {
    requests: Requests,
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

/// The options of a discipline or class as a plain structure.
fn plain(value: Vec<u8>) -> TcAttribute {
    TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, value))
}

fn handle(minor: u16) -> TcHandle {
    TcHandle { major: MAJOR, minor }
}

fn message(ifindex: u32, handle: TcHandle, parent: TcHandle) -> TcMessage {
    let mut m = TcMessage::with_index(i32::try_from(ifindex).unwrap_or(-1));
    m.header.handle = handle;
    m.header.parent = parent;
    m
}

/// The request for a discipline at the device's root.
fn new_root(ifindex: u32, qdisc: &Qdisc) -> TcMessage {
    let mut m = message(ifindex, handle(0), TcHandle::ROOT);
    m.attributes = vec![TcAttribute::Kind(qdisc.kind().into()), qdisc.options()];
    m
}

/// The request for class `own`.
fn new_class(ifindex: u32, own: u16, parent: TcHandle, mtu: u32, class: &TrafficClass) -> TcMessage {
    let mut m = message(ifindex, handle(own), parent);
    m.attributes = vec![TcAttribute::Kind(class.kind().into()), class.options(mtu)];
    m
}

impl Qdiscs {
    /// For devices of the calling thread's namespace.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            requests: Requests::new(None)?,
        })
    }

    fn send(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.requests.ask(request, NLM_F_ACK | flags, |_| {})
    }

    /// Makes a discipline, without classes, in place of the one at the device's root.
    ///
    /// # Errors
    /// The kernel's: this process may not, or the kernel lacks the discipline (`NotFound`).
    pub fn make(&self, ifindex: u32, qdisc: &Qdisc) -> io::Result<()> {
        // The handle does not matter; the root may have no qdisc, or the default one.
        let old = message(ifindex, TcHandle::UNSPEC, TcHandle::ROOT);
        let _ = self.send(RouteNetlinkMessage::DelQueueDiscipline(old), 0);
        self.send(
            RouteNetlinkMessage::NewQueueDiscipline(new_root(ifindex, qdisc)),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Takes a discipline away, if the device has one of ours.
    ///
    /// # Errors
    /// The errors of [`Qdiscs::make`].
    pub fn remove(&self, ifindex: u32) -> io::Result<()> {
        // The kernel removes the qdisc only if it has this handle and this kind. So no query is needed.
        for kind in kinds::ALL {
            match self.remove_kind(ifindex, kind) {
                Err(e) if e.raw_os_error() == Some(INVALID) => {}
                Err(e) if e.raw_os_error() == Some(NO_ENTRY) => return Ok(()),
                done => return done,
            }
        }
        Ok(())
    }

    fn remove_kind(&self, ifindex: u32, kind: &str) -> io::Result<()> {
        let mut m = message(ifindex, handle(0), TcHandle::ROOT);
        m.attributes = vec![TcAttribute::Kind(kind.into())];
        self.send(RouteNetlinkMessage::DelQueueDiscipline(m), 0)
    }

    /// Makes or changes the class that all queues are in; its rate is the device's.
    ///
    /// # Errors
    /// The errors of [`Qdiscs::make`].
    pub fn set_whole(&self, ifindex: u32, mtu: u32, class: &TrafficClass) -> io::Result<()> {
        let m = new_class(ifindex, ROOT_CLASS, handle(0), mtu, class);
        self.send(RouteNetlinkMessage::NewTrafficClass(m), NLM_F_CREATE)
    }

    /// Makes or changes a queue.
    ///
    /// # Errors
    /// The errors of [`Qdiscs::make`]; `InvalidInput` for a number of [`MAX_QUEUES`] or more.
    pub fn set_queue(&self, ifindex: u32, queue: u32, mtu: u32, class: &TrafficClass) -> io::Result<()> {
        let m = new_class(ifindex, minor(queue)?, handle(ROOT_CLASS), mtu, class);
        self.send(RouteNetlinkMessage::NewTrafficClass(m), NLM_F_CREATE)
    }

    /// Takes a queue away.
    ///
    /// # Errors
    /// The errors of [`Qdiscs::set_queue`]; `NotFound` where there is none.
    pub fn remove_queue(&self, ifindex: u32, queue: u32) -> io::Result<()> {
        let m = message(ifindex, handle(minor(queue)?), TcHandle::UNSPEC);
        self.send(RouteNetlinkMessage::DelTrafficClass(m), 0)
    }

    /// The counters of each queue.
    ///
    /// # Errors
    /// The errors of [`Qdiscs::make`].
    pub fn counts(&self, ifindex: u32) -> io::Result<Vec<(u32, ClassCounts)>> {
        let mut found = Vec::new();
        let m = message(ifindex, TcHandle::UNSPEC, TcHandle::UNSPEC);
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

fn counts(attributes: &[TcAttribute]) -> ClassCounts {
    let mut c = ClassCounts::default();
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
    fn a_hierarchy_is_what_tc_shows() {
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
            let htb = Qdiscs::new().unwrap();
            if htb.make(index, &Qdisc::Htb).is_err() {
                return None;
            }
            // In place of the qdisc of another program.
            run(
                "tc qdisc replace dev h0 root handle 7: pfifo; tc qdisc del dev h1 root; tc qdisc add dev h1 root noqueue",
            );
            htb.make(index, &Qdisc::Htb).unwrap();
            htb.make(crate::LinkCtl::new().ok()?.ifindex("h1").ok()?, &Qdisc::Htb)
                .unwrap();
            let class = |rate, ceil| {
                TrafficClass::Htb(HtbClass {
                    rate,
                    ceil,
                    burst: 0,
                    prio: 3,
                })
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
        assert_eq!(counts, [(0, ClassCounts::default())]);
        assert!(!after.contains("htb"), "{after}");
        assert!(
            others[0].contains("pfifo 1:") && others[1].contains("htb 7:"),
            "{others:?}"
        );
    }

    fn bytes(request: RouteNetlinkMessage) -> String {
        let mut message = netlink_packet_core::NetlinkMessage::from(request);
        message.finalize();
        let mut buffer = vec![0; message.buffer_len()];
        message.serialize(&mut buffer);
        // Without the length and the header of netlink.
        buffer[16..].iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The bytes are those that `ovs-vswitchd` 3.1 and `tc` send for the same settings.
    #[test]
    fn requests_are_those_of_open_vswitch() {
        let root = "000000000300000000000100ffffffff00000000";
        let qdisc = |qdisc: &Qdisc| {
            let sent = bytes(RouteNetlinkMessage::NewQueueDiscipline(new_root(3, qdisc)));
            sent.strip_prefix(root)
                .expect("a qdisc 1: at the root")
                .to_owned()
        };
        let (target, limit) = (5000, 10_240);
        let sfq = Qdisc::Sfq {
            quantum: 1500,
            perturb_s: 10,
        };
        assert_eq!(
            qdisc(&sfq),
            "080001007366710018000200dc0500000a000000000000000000000000000000"
        );
        let codel = Qdisc::Codel {
            target,
            limit,
            interval: 100_000,
        };
        assert_eq!(
            qdisc(&codel),
            "0a000100636f64656c0000001c0002000800010088130000080002000028000008000300a0860100"
        );
        let fq_codel = Qdisc::FqCodel {
            target,
            limit,
            interval: 1_000_000,
            flows: 1024,
            quantum: 1514,
        };
        assert_eq!(
            qdisc(&fq_codel),
            "0d00010066715f636f64656c000000002c000200080001008813000008000200002800000800030040420f00\
             080005000004000008000600ea050000"
        );
        let netem = Qdisc::Netem {
            latency: 1000,
            limit: 1000,
            loss: 10,
            jitter: 100,
        };
        assert_eq!(
            qdisc(&netem),
            "0a0001006e6574656d0000001c000200093d0000e80300009999991900000000000000001a060000"
        );
        assert_eq!(qdisc(&Qdisc::Hfsc), "0900010068667363000000000600020001000000");
        let class = TrafficClass::Hfsc(HfscClass {
            min: 1_000_000,
            max: 2_000_000,
        });
        let class = new_class(3, minor(7).unwrap(), handle(ROOT_CLASS), 1500, &class);
        assert_eq!(
            bytes(RouteNetlinkMessage::NewTrafficClass(class)),
            "000000000300000008000100feff010000000000090001006866736300000000\
             3400020010000100000000000000000040420f00\
             10000200000000000000000040420f00\
             10000300000000000000000080841e00"
        );
    }
}
