//! Classifiers at the ingress of network devices (tc-bpf(8), clsact). They keep the packets that a device
//! receives from the host's own stack, after packet sockets have had their copy.
//!
//! **Two filters.** [`Ingress::hold`] puts one after all others that this switch has: it takes every frame
//! except frames of a VLAN. The kernel gives those to a VLAN device or drops them. At a device that is the
//! host's, it takes outer packets of tunnels alone ([`Taken`]). [`Ingress::pass`] puts one before them. It
//! lets frames through that are not for the filters of this switch ([`Passed`]).
//!
//! **Classic BPF.** Neither needs a map, so both are classic programs, which the kernel takes with
//! `CAP_NET_ADMIN` alone: also where bpf(2) is forbidden.
//!
//! **Owner.** The first instruction loads the owner's number, which a dump shows. The filter has one
//! place at a device: an owner that comes later replaces it.

use crate::cbpf::{
    AND, JEQ, LD_IMM, LD_W_ABS, LSH, OR_X, Op, RET, TAX, VID_MASK, VLAN_TAG, VLAN_TAG_PRESENT, VLAN_TPID,
};
use crate::netlink::Requests;
use crate::outer_filter::{OuterFilter, ReturnCodes};
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Nla};
use netlink_packet_route::RouteNetlinkMessage::{
    self, DelQueueDiscipline, DelTrafficFilter, GetLink, GetQueueDiscipline, GetTrafficFilter, NewLink,
    NewQueueDiscipline, NewTrafficFilter,
};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVlan, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption, TcU32OptionFlags,
};
use std::io;

/// Place of the filter that lets frames through.
const PASS_PRIORITY: u16 = 0x4843;
/// Place of the programs of `hw-offload`.
const PROGRAM_PRIORITY: u16 = 0x4844;
/// Place of the filter that takes the rest.
const HOLD_PRIORITY: u16 = 0x4845;
/// Places of filters of flows, which are before all others of this switch. They are `flower` filters, and the
/// cookie of their first action begins with [`FLOW_COOKIE`].
pub(crate) const FLOW_PRIORITIES: std::ops::Range<u16> = 0x1000..PASS_PRIORITY;
/// Beginning of the cookies of this switch's filters.
pub const FLOW_COOKIE: [u8; 4] = *b"hdtc";
/// Places of all filters of this switch; the last is that of marks.
pub(crate) const OWN_PRIORITIES: std::ops::RangeInclusive<u16> = PASS_PRIORITY..=0x4846;
const HANDLE: u32 = 1;
const ETH_P_ALL: u16 = 3;
/// The qdisc, and its class of received packets.
const CLSACT: TcHandle = TcHandle {
    major: 0xffff,
    minor: 0xfff1,
};
const CLSACT_INGRESS: TcHandle = TcHandle {
    major: 0xffff,
    minor: 0xfff2,
};
const TCA_BPF_OPS_LEN: u16 = 4;
const TCA_BPF_OPS: u16 = 5;
/// Maximum number of VLANs that a filter can let through. A jump in a classic program goes over at most 255
/// instructions, so each VLAN has a jump and a return. The kernel takes 4,096 instructions.
const MAX_VLANS: usize = 2_000;

/// Return codes of a classifier (linux/pkt_cls.h).
const TC_ACT_OK: u32 = 0;
const TC_ACT_STOLEN: u32 = 4;
const TC_ACT_UNSPEC: u32 = u32::MAX;

/// A VLAN as a tag names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vlan {
    /// EtherType of the tag (0x8100, 0x88a8).
    pub tpid: u16,
    /// VLAN id.
    pub vid: u16,
}

/// A VLAN device of this network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanDevice {
    /// Index of the device that it is on top of.
    pub lower: u32,
    /// The VLAN whose frames the device gets.
    pub vlan: Vlan,
}

/// A device that has a filter of [`Ingress::hold`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldDevice {
    /// Interface index.
    pub ifindex: u32,
    /// Whether the filter belongs to the owner that sent the request.
    pub ours: bool,
}

/// Index of the device whose filter ([`Ingress::hold`], [`Ingress::pass`]) was removed, if `notice` reports
/// that.
pub(crate) fn released(notice: &RouteNetlinkMessage) -> Option<u32> {
    let (m, ours) = match notice {
        DelTrafficFilter(m) => {
            let priority = u16::try_from(m.header.info >> 16).ok();
            let own = matches!(priority, Some(HOLD_PRIORITY | PASS_PRIORITY));
            (m, m.header.parent == CLSACT_INGRESS && own)
        }
        DelQueueDiscipline(m) => (m, m.header.parent == CLSACT),
        _ => return None,
    };
    u32::try_from(m.header.index).ok().filter(|_| ours)
}

/// Adds the queueing discipline that filters need.
///
/// # Errors
/// `EEXIST` where it is, or another one with the same place; the errors of [`Ingress::hold`].
pub fn add_clsact(ifindex: u32) -> io::Result<()> {
    add_discipline(&Requests::new(None)?, ifindex)
}

fn add_discipline(requests: &Requests, ifindex: u32) -> io::Result<()> {
    let handle = TcHandle {
        major: CLSACT.major,
        minor: 0,
    };
    let mut qdisc = message(ifindex, handle, CLSACT);
    qdisc.attributes.push(TcAttribute::Kind("clsact".into()));
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    requests.ask(NewQueueDiscipline(qdisc), flags, |_| {})
}

/// Requests about the devices of the caller's network namespace.
#[derive(Debug)]
pub struct Ingress {
    requests: Requests,
    owner: u32,
}

/// The packets that a filter keeps from the host's stack.
#[derive(Clone, Copy, Debug)]
pub enum Taken<'a> {
    /// All frames without a VLAN id.
    All,
    /// Outer packets of tunnels.
    Outer(&'a OuterFilter),
}

impl Taken<'_> {
    /// The program of a filter of `owner`.
    fn program(self, owner: u32) -> Vec<Op> {
        let codes = ReturnCodes {
            taken: TC_ACT_STOLEN,
            others: TC_ACT_UNSPEC,
        };
        match self {
            Self::All => hold_program(owner),
            Self::Outer(filter) => outer_program(filter, owner, codes),
        }
    }
}

/// The frames that a filter lets through to the host's stack, past the filters behind it.
#[derive(Clone, Copy, Debug)]
pub enum Passed<'a> {
    /// Frames of these VLANs.
    Vlans(&'a [Vlan]),
    /// All frames except outer packets of tunnels.
    AllBut(&'a OuterFilter),
}

impl Passed<'_> {
    /// The program of a filter of `owner`.
    fn program(self, owner: u32) -> Vec<Op> {
        let codes = ReturnCodes {
            taken: TC_ACT_UNSPEC,
            others: TC_ACT_OK,
        };
        match self {
            Self::Vlans(vlans) => pass_program(owner, vlans),
            Self::AllBut(filter) => outer_program(filter, owner, codes),
        }
    }
}

/// A filter's program, with any source address if it is too long. If that is too long as well, no packet is
/// taken.
fn outer_program(filter: &OuterFilter, owner: u32, codes: ReturnCodes) -> Vec<Op> {
    let exact = filter.program(owner, codes);
    let program = exact.or_else(|| filter.coarse().program(owner, codes));
    program.unwrap_or_else(|| vec![(LD_IMM, 0, 0, owner), (RET, 0, 0, codes.others)])
}

/// Takes all frames without a VLAN id.
fn hold_program(owner: u32) -> Vec<Op> {
    vec![
        (LD_IMM, 0, 0, owner),
        (LD_W_ABS, 0, 0, VLAN_TAG_PRESENT),
        (JEQ, 4, 0, 0),
        (LD_W_ABS, 0, 0, VLAN_TAG),
        (AND, 0, 0, VID_MASK),
        (JEQ, 1, 0, 0),
        (RET, 0, 0, TC_ACT_UNSPEC),
        (RET, 0, 0, TC_ACT_STOLEN),
    ]
}

/// Lets the frames of some VLANs through.
fn pass_program(owner: u32, vlans: &[Vlan]) -> Vec<Op> {
    let mut ops = vec![
        (LD_IMM, 0, 0, owner),
        (LD_W_ABS, 0, 0, VLAN_TAG_PRESENT),
        (JEQ, 0, 1, 0),
        (RET, 0, 0, TC_ACT_UNSPEC),
        (LD_W_ABS, 0, 0, VLAN_TPID),
        (LSH, 0, 0, 16),
        (TAX, 0, 0, 0),
        (LD_W_ABS, 0, 0, VLAN_TAG),
        (AND, 0, 0, VID_MASK),
        (OR_X, 0, 0, 0),
    ];
    for vlan in vlans.iter().take(MAX_VLANS) {
        ops.push((JEQ, 0, 1, u32::from(vlan.tpid) << 16 | u32::from(vlan.vid)));
        ops.push((RET, 0, 0, TC_ACT_OK));
    }
    ops.push((RET, 0, 0, TC_ACT_UNSPEC));
    ops
}

fn bytes(ops: &[Op]) -> Vec<u8> {
    let one = |(code, yes, no, k): &Op| {
        let mut bytes = code.to_ne_bytes().to_vec();
        bytes.extend([*yes, *no]);
        bytes.extend(k.to_ne_bytes());
        bytes
    };
    ops.iter().flat_map(one).collect()
}

/// The owner that a filter's first instruction loads, and the filter's program as bytes.
fn owner_of(message: &TcMessage) -> Option<(u32, Vec<u8>)> {
    let options = message.attributes.iter().find_map(|a| match a {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let ops = options.iter().find_map(|o| match o {
        TcOption::Bpf(TcFilterBpfOption::Other(nla)) if nla.kind() == TCA_BPF_OPS => Some(nla),
        _ => None,
    })?;
    let mut value = vec![0; ops.value_len()];
    ops.emit_value(&mut value);
    let (code, rest) = value.split_first_chunk::<2>()?;
    let k = u32::from_ne_bytes(*rest.get(2..6)?.first_chunk::<4>()?);
    (u16::from_ne_bytes(*code) == LD_IMM).then_some((k, value))
}

fn message(ifindex: u32, handle: TcHandle, parent: TcHandle) -> TcMessage {
    let mut m = TcMessage::with_index(i32::try_from(ifindex).unwrap_or(-1));
    m.header.handle = handle;
    m.header.parent = parent;
    m
}

/// A message about the filter at one place.
fn filter(ifindex: u32, priority: u16) -> TcMessage {
    let mut m = message(ifindex, HANDLE.into(), CLSACT_INGRESS);
    m.header.info = u32::from(priority) << 16 | u32::from(ETH_P_ALL.to_be());
    m.attributes.push(TcAttribute::Kind("bpf".into()));
    m
}

fn is(error: &io::Error, code: rustix::io::Errno) -> bool {
    error.raw_os_error() == Some(code.raw_os_error())
}

impl Ingress {
    /// For the caller's network namespace, in the name of `owner`.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(owner: u32) -> io::Result<Self> {
        let requests = Requests::new(None)?;
        Ok(Self { requests, owner })
    }

    fn send(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.requests.ask(request, NLM_F_ACK | flags, |_| {})
    }

    /// Adds a filter, or replaces it (`flags` without `NLM_F_EXCL`), with the qdisc that it needs.
    fn put(&self, ifindex: u32, priority: u16, ops: &[Op], flags: u16) -> io::Result<()> {
        let n = u16::try_from(ops.len()).unwrap_or(u16::MAX);
        let bpf = |option| TcOption::Bpf(option);
        let other = |kind, value| bpf(TcFilterBpfOption::Other(DefaultNla::new(kind, value)));
        let mut m = filter(ifindex, priority);
        m.attributes.push(TcAttribute::Options(vec![
            bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
            bpf(TcFilterBpfOption::FlagsGeneric(TcU32OptionFlags::SkipHw)),
            other(TCA_BPF_OPS_LEN, n.to_ne_bytes().to_vec()),
            other(TCA_BPF_OPS, bytes(ops)),
        ]));
        let put = || self.send(NewTrafficFilter(m.clone()), NLM_F_CREATE | flags);
        match put() {
            Err(e) if !is(&e, rustix::io::Errno::EXIST) => {}
            done => return done,
        }
        match add_discipline(&self.requests, ifindex) {
            Err(e) if !is(&e, rustix::io::Errno::EXIST) => return Err(e),
            _ => {}
        }
        put()
    }

    fn remove(&self, ifindex: u32, priority: u16) -> io::Result<()> {
        match self.send(DelTrafficFilter(filter(ifindex, priority)), 0) {
            // There is no filter, no qdisc or no device.
            Err(e)
                if is(&e, rustix::io::Errno::NOENT)
                    || is(&e, rustix::io::Errno::INVAL)
                    || is(&e, rustix::io::Errno::NODEV) =>
            {
                Ok(())
            }
            done => done,
        }
    }

    /// The owner of the device's filter: `None` if there is none, or if it is no filter of [`Ingress::hold`].
    pub fn holder(&self, ifindex: u32) -> Option<u32> {
        self.held_by(ifindex).map(|(owner, _)| owner)
    }

    /// The owner and the program of the device's filter.
    fn held_by(&self, ifindex: u32) -> Option<(u32, Vec<u8>)> {
        let mut holder = None;
        // A dump has room for a long program, and the reply to a request for one filter has not.
        let request = GetTrafficFilter(filter(ifindex, HOLD_PRIORITY));
        let asked = self.requests.ask(request, NLM_F_DUMP, |answer| {
            if let NewTrafficFilter(m) = answer
                && m.header.info >> 16 == u32::from(HOLD_PRIORITY)
                && u32::try_from(m.header.index) == Ok(ifindex)
            {
                holder = owner_of(&m).or(holder.take());
            }
        });
        asked.ok().and(holder)
    }

    /// Keeps packets that the device receives from the host's stack, also when this process has ended; packet
    /// sockets get them. The same filter of this owner is kept if it is there; any other one is replaced.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_ADMIN`, `NotFound` of a kernel without such classifiers, `EINVAL`
    /// where another filter has the place, `ENODEV`.
    pub fn hold(&self, ifindex: u32, taken: Taken<'_>) -> io::Result<()> {
        let ops = taken.program(self.owner);
        match self.put(ifindex, HOLD_PRIORITY, &ops, NLM_F_EXCL) {
            Err(e) if is(&e, rustix::io::Errno::EXIST) => match self.held_by(ifindex) {
                Some((_, there)) if there == bytes(&ops) => Ok(()),
                _ => self.put(ifindex, HOLD_PRIORITY, &ops, 0),
            },
            done => done,
        }
    }

    /// Puts the filter back to a device that has none any more. `true`: it had none.
    ///
    /// # Errors
    /// The errors of [`Ingress::hold`].
    pub fn hold_again(&self, ifindex: u32, taken: Taken<'_>) -> io::Result<bool> {
        match self.put(ifindex, HOLD_PRIORITY, &taken.program(self.owner), NLM_F_EXCL) {
            Err(e) if is(&e, rustix::io::Errno::EXIST) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// The command by which an operator removes the filter of device `name`.
    pub fn removal(name: &str) -> String {
        format!("tc filter del dev {name} ingress pref {HOLD_PRIORITY}")
    }

    /// Lets frames through to the host's stack before any other filter of this switch.
    ///
    /// # Errors
    /// The errors of [`Ingress::hold`].
    pub fn pass(&self, ifindex: u32, passed: Passed<'_>) -> io::Result<()> {
        match passed {
            Passed::Vlans([]) => self.remove(ifindex, PASS_PRIORITY),
            _ => self.put(ifindex, PASS_PRIORITY, &passed.program(self.owner), 0),
        }
    }

    /// Takes both filters off, unless they are another owner's. A program that an earlier process left
    /// between them goes first: it would take all frames.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_ADMIN`.
    pub fn release(&self, ifindex: u32) -> io::Result<()> {
        if self.holder(ifindex).is_some_and(|owner| owner != self.owner) {
            return Ok(());
        }
        self.remove(ifindex, HOLD_PRIORITY)?;
        self.remove(ifindex, PROGRAM_PRIORITY)?;
        self.remove(ifindex, PASS_PRIORITY)
    }

    /// The devices that have a filter of [`Ingress::hold`], of any owner.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn held(&self) -> io::Result<Vec<HeldDevice>> {
        let devices = with_ingress(&self.requests)?;
        let held = devices.into_iter().filter_map(|ifindex| {
            let ours = self.holder(ifindex)? == self.owner;
            Some(HeldDevice { ifindex, ours })
        });
        Ok(held.collect())
    }

    /// The VLAN devices of the network namespace that are on top of devices there.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn vlan_devices(&self) -> io::Result<Vec<VlanDevice>> {
        let mut found = Vec::new();
        let mut request = LinkMessage::default();
        // The kernel leaves out devices of other kinds.
        request
            .attributes
            .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vlan)]));
        self.requests.ask(GetLink(request), NLM_F_DUMP, |answer| {
            if let NewLink(message) = answer {
                found.extend(vlan_device(&message));
            }
        })?;
        Ok(found)
    }
}

/// Devices whose ingress has a queueing discipline, and so may have filters.
///
/// # Errors
/// The kernel's error.
pub(crate) fn with_ingress(requests: &Requests) -> io::Result<Vec<u32>> {
    let mut devices: Vec<u32> = Vec::new();
    let all = message(0, TcHandle::UNSPEC, TcHandle::UNSPEC);
    requests.ask(GetQueueDiscipline(all), NLM_F_DUMP, |answer| {
        let NewQueueDiscipline(m) = answer else { return };
        let ingress =
            |a: &TcAttribute| matches!(a, TcAttribute::Kind(kind) if kind == "clsact" || kind == "ingress");
        if m.attributes.iter().any(ingress) {
            devices.extend(u32::try_from(m.header.index));
        }
    })?;
    Ok(devices)
}

fn vlan_device(message: &LinkMessage) -> Option<VlanDevice> {
    let (mut lower, mut elsewhere, mut vid, mut tpid) = (None, false, None, 0x8100);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Link(index) => lower = Some(*index),
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    let LinkInfo::Data(InfoData::Vlan(parts)) = info else {
                        continue;
                    };
                    for part in parts {
                        match part {
                            InfoVlan::Id(id) => vid = Some(*id),
                            InfoVlan::Protocol(protocol) => tpid = u16::from(*protocol),
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Some(VlanDevice {
        lower: lower.filter(|_| !elsewhere)?,
        vlan: Vlan { tpid, vid: vid? },
    })
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
    fn filters_are_what_tc_says() {
        // In a namespace of this thread's own: other tests are not touched.
        let done = std::thread::spawn(|| {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; nothing that processes share is unshared here"
            )]
            if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
                return None;
            }
            run("ip link add h0 type veth peer name h1");
            let index = crate::LinkCtl::new().ok()?.ifindex("h0").ok()?;
            let ours = Ingress::new(7).unwrap();
            if ours.hold(index, Taken::All).is_err() {
                return None;
            }
            let shown = || run("tc filter show dev h0 ingress | grep -o 'pref.*handle.*'");
            let held = shown();
            ours.hold(index, Taken::All).unwrap();
            assert!(!ours.hold_again(index, Taken::All).unwrap());
            let ours_is = |ours| vec![HeldDevice { ifindex: index, ours }];
            assert_eq!((shown(), ours.held().unwrap()), (held.clone(), ours_is(true)));
            let vlan = |tpid, vid| Vlan { tpid, vid };
            let vlans = [vlan(0x8100, 10), vlan(0x88a8, 4000)];
            ours.pass(index, Passed::Vlans(&vlans)).unwrap();
            ours.pass(index, Passed::Vlans(&[vlan(0x8100, 11)])).unwrap();
            let passing = shown();
            // Another owner takes it over; the first one's release takes nothing from it.
            let theirs = Ingress::new(8).unwrap();
            theirs.hold(index, Taken::All).unwrap();
            ours.release(index).unwrap();
            assert_eq!(
                (ours.held().unwrap(), theirs.held().unwrap()),
                (ours_is(false), ours_is(true))
            );
            ours.hold(index, Taken::All).unwrap();
            ours.release(index).unwrap();
            ours.release(index).unwrap();
            let after = shown();
            // A filter for tunnels' packets in the place of the one for all, and back.
            let remotes = (0..1000_u32).map(|n| std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into());
            let group = crate::OuterGroup {
                v6: false,
                protocol: 17,
                port: 6081,
                local: None,
                remotes: Some(remotes.collect()),
            };
            let outer = OuterFilter {
                groups: vec![group],
                locals: vec![[10, 1, 0, 1].into()],
            };
            let programs: Vec<Vec<u8>> = [Taken::Outer(&outer), Taken::All, Taken::Outer(&outer)]
                .into_iter()
                .map(|taken| {
                    ours.hold(index, taken).unwrap();
                    assert_eq!(ours.held().unwrap(), ours_is(true));
                    let (owner, program) = ours.held_by(index).unwrap();
                    assert_eq!((owner, &program), (7, &bytes(&taken.program(7))));
                    program
                })
                .collect();
            assert_eq!(programs[0], programs[2]);
            assert!(programs[0].len() > 8000 && programs[1].len() == 64);
            ours.release(index).unwrap();
            // Another program removes the qdisc, or puts a filter of another protocol at the place.
            ours.hold(index, Taken::All).unwrap();
            run("tc qdisc del dev h0 clsact");
            assert!(ours.hold_again(index, Taken::All).unwrap());
            ours.release(index).unwrap();
            run("tc filter add dev h0 ingress protocol ip prio 18501 bpf da bytecode '1,6 0 0 4,'");
            let taken = ours.hold(index, Taken::All).is_err();
            Some((held, passing, after, taken))
        });
        let Some((held, passing, after, taken)) = done.join().unwrap() else {
            return; // without the right, or without classifiers
        };
        assert!(
            held.contains("pref 18501 bpf") && held.contains("handle 0x1 direct-action"),
            "{held}"
        );
        assert!(passing.contains("pref 18499 bpf"), "{passing}");
        assert!(
            passing.contains(&format!("21 0 1 {}", 0x8100_000b_u32)),
            "{passing}"
        );
        assert!(
            !passing.contains(&format!("21 0 1 {}", 0x8100_000a_u32)),
            "{passing}"
        );
        assert_eq!(after, "");
        assert!(taken);
    }

    #[test]
    fn vlan_devices_are_found() {
        let done = std::thread::spawn(|| {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; nothing that processes share is unshared here"
            )]
            if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
                return None;
            }
            run("ip link add h0 type veth peer name h1");
            if !run("ip link add link h0 name h0.10 type vlan id 10 2>&1").is_empty() {
                return None; // a kernel without them
            }
            run("ip link add link h0 name h0.a type vlan proto 802.1ad id 4094");
            let index = crate::LinkCtl::new().ok()?.ifindex("h0").ok()?;
            let mut found = Ingress::new(7).unwrap().vlan_devices().unwrap();
            found.sort_by_key(|d| d.vlan);
            Some((index, found))
        });
        let Some((lower, found)) = done.join().unwrap() else {
            return;
        };
        let device = |tpid, vid| VlanDevice {
            lower,
            vlan: Vlan { tpid, vid },
        };
        assert_eq!(found, [device(0x8100, 10), device(0x88a8, 4094)]);
    }
}
