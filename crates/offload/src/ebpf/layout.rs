//! Bytes of the maps, which `bpf/classifier.bpf.c` declares as structures.
//!
//! Integers are in the machine's order but for those of a packet's headers, which are in network order, and
//! the tag, which is not.

use crate::rule::{MAX_OUTER, VLAN_PRESENT};
use crate::{Headers, Op, Rule};
use heddle_conntrack::offloaded::{ConnId, Offloadable};
use heddle_conntrack::{Endpoint, Tuple};
use heddle_datapath_api::PortNo;

/// Entries of the map of flows.
pub const FLOWS: usize = 131_072;
/// Entries of [`FLOWS`] that are reserved for flows that an earlier process may have left.
pub const SPARE: usize = 1024;
/// Words of a flow's counters: packets, bytes, TCP flags, and the time at which a packet went up that later
/// ones must not overtake.
pub const COUNT_WORDS: usize = 4;
/// Generations. The first two name the owner and the version.
pub const SLOTS: usize = 8192;
/// Processors.
pub const CPUS: usize = 1024;
/// Words of a processor's counters.
pub const CPU_WORDS: usize = 16;
/// Masks of all ports.
pub const MASKS: usize = 256;
/// Masks under which packets of one port are looked up.
pub const MASKS_PER_PORT: usize = 8;
/// Connections that may be there, each in both directions; words that show whether they still are.
pub const LIVE: usize = 131_072;
/// Words of each: generation of the connection, and a mark that packets used it.
pub const LIVE_WORDS: usize = 2;
/// Maximum number of steps of a flow.
pub const MAX_OPS: usize = 16;
/// Bytes before a flow's steps, and bytes of each step.
const HEAD: usize = 24;
const OP: usize = 16;
/// Maximum number of steps of a flow whose packets go into a tunnel: the headers take the room of the others.
const OUTER_OP: usize = MAX_OPS - MAX_OUTER / OP;
/// Bit that marks a tunnel's port number in the place of a device's index.
pub const TUNNEL_PORT: u32 = 1 << 31;
/// Reasons for which packets went up, in the order of their counters, from [`CPU_UP`] on.
pub const UP: [&str; 8] = [
    "odd",
    "tcp-syn-fin-rst",
    "no-flow",
    "stale",
    "too-long",
    "no-connection",
    "no-stage",
    "uneven-train",
];
/// Index of the first of these counters among a processor's counters.
pub const CPU_UP: usize = 2;
/// Packets that flows without an output dropped.
pub const CPU_DROPPED: usize = 10;
/// Packets that went straight into a veth's peer.
pub const CPU_PEER: usize = 11;
/// Packets that were dropped because their port sent too many up.
pub const CPU_LIMITED: usize = 12;

/// A key, or a mask.
pub type KeyBytes = [u8; 136];
/// Bytes of a key that count for packets as they come in: the rest is zero.
pub type FirstBytes = [u8; 64];
/// A flow.
pub type FlowBytes = [u8; HEAD + OP * MAX_OPS];
/// Masks under which packets of a stage are looked up.
pub type MasksBytes = [u8; 12];
/// A stage: a device, a recirculation id, and the era of the process that gave it.
pub type StageBytes = [u8; 12];
/// A direction of a connection.
pub type ConnKeyBytes = [u8; 40];
/// A connection.
pub type ConnBytes = [u8; 72];
/// A port.
pub type PortBytes = [u8; 40];
/// A device as an output.
pub type OutBytes = [u8; 12];

/// Offset of the mask's number in a key.
const MASK_ID: usize = 23;

/// Bytes that are written one after the other.
struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }
    fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }
}

fn headers(h: &Headers, ifindex: u32, era: u8) -> KeyBytes {
    Writer::<136>::new()
        .put(&ifindex.to_ne_bytes())
        .put(&h.dl_type.to_be_bytes())
        .put(&h.vlan.to_ne_bytes())
        .put(&h.dl_dst)
        .put(&h.dl_src)
        .put(&[h.nw_proto, h.nw_tos, h.nw_ttl, 0])
        .put(&h.label.to_be_bytes())
        .put(&h.tp_src.to_be_bytes())
        .put(&h.tp_dst.to_be_bytes())
        .put(&h.src)
        .put(&h.dst)
        .put(&h.recirc.to_ne_bytes())
        .put(&h.ct_mark.to_ne_bytes())
        .put(&h.ct_zone.to_ne_bytes())
        .put(&[h.ct_state, era, h.tun_tos, h.tun_ttl, h.tun_flags, 0])
        .put(&h.ct_label)
        .put(&h.tun_id.to_ne_bytes())
        .put(&h.tun_opt)
        .put(&h.tun_src)
        .put(&h.tun_dst)
        .bytes
}

/// The key of a rule.
pub fn key(rule: &Rule, ifindex: u32, mask_id: u8, era: u8) -> KeyBytes {
    // Packets have no era as they come in.
    let fresh = rule.key.recirc == 0 && !rule.tunnel;
    let mut all = headers(&rule.key, ifindex, if fresh { 0 } else { era });
    let mask = mask(rule);
    all.iter_mut().zip(mask).for_each(|(k, m)| *k &= m);
    all[MASK_ID] = mask_id;
    all
}

/// The key of a packet with these headers.
#[cfg(test)]
pub fn packet(h: &Headers, ifindex: u32) -> KeyBytes {
    headers(h, ifindex, 0)
}

/// The mask of a rule.
pub fn mask(rule: &Rule) -> KeyBytes {
    headers(&rule.mask, u32::MAX, u8::MAX)
}

/// The part of a key that counts for packets as they come in.
pub fn first(key: &KeyBytes) -> FirstBytes {
    *key.first_chunk().expect("a key is longer")
}

/// The whole key of packets as they come in.
pub fn of_first(key: &FirstBytes) -> KeyBytes {
    let mut all: KeyBytes = [0; 136];
    all[..key.len()].copy_from_slice(key);
    all
}

/// The mask's number in a key.
pub fn mask_id(key: &KeyBytes) -> u8 {
    key[MASK_ID]
}

/// The device's index in a key.
pub fn in_ifindex(key: &KeyBytes) -> u32 {
    u32::from_ne_bytes([key[0], key[1], key[2], key[3]])
}

/// Set of masks that a key is looked up under: by device, recirculation id and era.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin {
    /// Index of the device.
    pub ifindex: u32,
    /// Recirculation id; 0: none.
    pub recirc: u32,
    /// The era of the process that gave it.
    pub era: u8,
}

impl Origin {
    /// Origin of packets that come in by a device.
    pub fn port(ifindex: u32) -> Self {
        Self {
            ifindex,
            recirc: 0,
            era: 0,
        }
    }
    /// Origin that a key belongs to.
    pub fn of(key: &KeyBytes) -> Self {
        Self {
            ifindex: in_ifindex(key),
            recirc: u32::from_ne_bytes([key[64], key[65], key[66], key[67]]),
            era: key[75],
        }
    }
    /// Whether packets of this origin are as they came in.
    pub fn is_port(self) -> bool {
        self.recirc == 0 && self.ifindex & TUNNEL_PORT == 0
    }
    /// Key of this origin in the map of stages.
    pub fn stage(self) -> StageBytes {
        Writer::<12>::new()
            .put(&self.ifindex.to_ne_bytes())
            .put(&self.recirc.to_ne_bytes())
            .put(&u32::from(self.era).to_ne_bytes())
            .bytes
    }
}

/// Masks, of which the first [`MASKS_PER_PORT`] count.
pub fn masks(ids: &[u8]) -> MasksBytes {
    let n = u32::try_from(ids.len().min(MASKS_PER_PORT)).unwrap_or(0);
    Writer::<12>::new()
        .put(&n.to_ne_bytes())
        .put(&ids[..n as usize])
        .bytes
}

/// An address of a tuple; one of IPv4 in the first four bytes.
fn address(addr: u128, ipv6: bool) -> [u8; 16] {
    match ipv6 {
        true => addr.to_be_bytes(),
        // The upper bits of an IPv4 address are zero.
        false => (addr << 96).to_be_bytes(),
    }
}

/// A port of a tuple.
#[allow(clippy::cast_possible_truncation)] // ports of TCP and UDP
fn tp(l4: u32) -> [u8; 2] {
    (l4 as u16).to_be_bytes()
}

/// A direction of a connection as it is looked up.
pub fn conn_key(t: &Tuple, zone: u16) -> ConnKeyBytes {
    Writer::<40>::new()
        .put(&address(t.src.addr, t.ipv6))
        .put(&address(t.dst.addr, t.ipv6))
        .put(&tp(t.src.l4))
        .put(&tp(t.dst.l4))
        .put(&zone.to_ne_bytes())
        .put(&[t.proto, u8::from(t.ipv6)])
        .bytes
}

/// Index of the word that shows whether a connection is there.
pub fn live_index(number: u32) -> u32 {
    number % u32::try_from(LIVE).unwrap_or(u32::MAX)
}

/// Value of that word while the connection is there.
pub fn live_word(generation: u32) -> u64 {
    1 << 32 | u64::from(generation)
}

/// A direction of a connection, as its packets find it.
pub fn conn(c: &Offloadable, reply: bool) -> ConnBytes {
    // The packet gets the reversed tuple of the other direction.
    let back = if reply { &c.orig } else { &c.reply };
    let nat = match (c.snat, c.dnat) {
        (false, false) => 0,
        (snat, _) => 1 + u8::from(snat == reply),
    };
    Writer::<72>::new()
        .put(&live_index(c.id.number).to_ne_bytes())
        .put(&c.id.generation.to_ne_bytes())
        .put(&c.mark.to_ne_bytes())
        .put(&[Offloadable::state(reply), nat])
        .put(&tp(back.dst.l4))
        .put(&tp(back.src.l4))
        .put(&[0; 6])
        .put(&c.label.to_be_bytes())
        .put(&address(back.dst.addr, back.ipv6))
        .put(&address(back.src.addr, back.ipv6))
        .bytes
}

/// The connection of which this is the entry of the original direction; its number is that of its word.
/// `None`: it is the entry of the reply direction.
pub fn conn_of(key: &ConnKeyBytes, conn: &ConnBytes) -> Option<Offloadable> {
    let addr = |bytes: &[u8]| bytes.iter().fold(0, |all, b| all << 8 | u128::from(*b));
    let port = |bytes: &[u8]| bytes.iter().fold(0, |all, b| all << 8 | u32::from(*b));
    let ipv6 = key[39] != 0;
    let end = |a: &[u8], p: &[u8]| Endpoint {
        addr: addr(a) >> if ipv6 { 0 } else { 96 },
        l4: port(p),
    };
    let tuple = |src, dst| Tuple {
        src,
        dst,
        proto: key[38],
        ipv6,
    };
    let word = |at: usize| u32::from_ne_bytes([conn[at], conn[at + 1], conn[at + 2], conn[at + 3]]);
    let (state, nat) = (conn[12], conn[13]);
    (state == Offloadable::state(false)).then(|| Offloadable {
        id: ConnId {
            number: word(0),
            generation: word(4),
        },
        zone: u16::from_ne_bytes([key[36], key[37]]),
        orig: tuple(end(&key[..16], &key[32..34]), end(&key[16..32], &key[34..36])),
        // The tuple of replies is the reverse of the translated packets'.
        reply: tuple(
            end(&conn[56..72], &conn[16..18]),
            end(&conn[40..56], &conn[14..16]),
        ),
        snat: nat == 1,
        dnat: nat == 2,
        mark: word(8),
        label: addr(&conn[24..40]),
    })
}

/// The word that a connection's entry names.
pub fn conn_live(conn: &ConnBytes) -> u32 {
    u32::from_ne_bytes([conn[0], conn[1], conn[2], conn[3]])
}

/// Header of a flow's value in the map, before its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHead {
    /// Index of its counters.
    pub count: u32,
    /// Index of its generation.
    pub slot: u32,
    /// Generation of that slot that the flow belongs to.
    pub generation: u32,
    /// Largest IP packet that all of its outputs take.
    pub mtu: u32,
    /// The era of this process's recirculation ids.
    pub era: u8,
}

/// Number of a tunnel's port in the place of a device's index.
pub fn tunnel_port(no: PortNo) -> u32 {
    TUNNEL_PORT | no.0
}

/// [`FlowHead::count`] and [`FlowHead::slot`] of a flow.
pub fn head(flow: &FlowBytes) -> (u32, u32) {
    let word = |at: usize| u32::from_ne_bytes([flow[at], flow[at + 1], flow[at + 2], flow[at + 3]]);
    (word(0), word(4))
}

/// A device that packets are sent by.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Index of the device.
    pub ifindex: u32,
    /// The device is that of an internal port.
    pub internal: bool,
    /// The slot of its port; 0: none.
    pub slot: u32,
}

/// Bytes of a flow. `None`: it has too many steps, or a port has no device.
pub fn flow(head: FlowHead, rule: &Rule, device: impl Fn(PortNo) -> Option<Device>) -> Option<FlowBytes> {
    let ops = &rule.ops;
    let most = if rule.outer.is_some() { OUTER_OP } else { MAX_OPS };
    let n_ops = u32::try_from(ops.len()).ok().filter(|n| *n as usize <= most)?;
    let walk = |op: &Op| matches!(op, Op::Ct(_) | Op::Recirc(_) | Op::Encap | Op::Decap(_));
    let walks = ops.iter().any(walk);
    let ends = !ops.iter().any(|op| matches!(op, Op::Recirc(_)));
    let last = ops.iter().rposition(|op| matches!(op, Op::Output(_)));
    let mut w = Writer::<{ HEAD + OP * MAX_OPS }>::new();
    for word in [
        head.count,
        head.slot,
        head.generation,
        head.mtu,
        n_ops,
        u32::from(walks) | u32::from(rule.all_flags) << 1,
    ] {
        w = w.put(&word.to_ne_bytes());
    }
    for (i, op) in ops.iter().enumerate() {
        let mut rest = [0; 2];
        let (kind, x, y, data) = match op {
            Op::Output(no) => {
                let d = device(*no)?;
                let is_last = u16::from(ends && last == Some(i));
                let [a, b, c, e] = d.slot.to_ne_bytes();
                (
                    1,
                    is_last | u16::from(d.internal) << 1,
                    d.ifindex,
                    [a, b, c, e, 0, 0],
                )
            }
            Op::EthDst(mac) => (2, 0, 0, *mac),
            Op::EthSrc(mac) => (3, 0, 0, *mac),
            Op::Ipv4Src(a) => (4, 0, u32::from_ne_bytes(*a), [0; 6]),
            Op::Ipv4Dst(a) => (5, 0, u32::from_ne_bytes(*a), [0; 6]),
            Op::Tos { value, mask } => (6, u16::from_be_bytes([*mask, *value]), 0, [0; 6]),
            Op::Ttl(ttl) => (7, u16::from(*ttl), 0, [0; 6]),
            Op::L4Src(p) => (8, p.to_be(), 0, [0; 6]),
            Op::L4Dst(p) => (9, p.to_be(), 0, [0; 6]),
            Op::PushVlan(tci) => (10, tci & !VLAN_PRESENT, 0, [0; 6]),
            Op::PopVlan => (11, 0, 0, [0; 6]),
            Op::Ct(ct) => {
                let (value, mask) = ct.mark.unwrap_or_default();
                let [v, m] = [value, mask].map(u32::to_ne_bytes);
                rest = [m[2], m[3]];
                let flags = u32::from(ct.nat) | u32::from(ct.mark.is_some()) << 1;
                (12, ct.zone, flags, [v[0], v[1], v[2], v[3], m[0], m[1]])
            }
            Op::CtClear => (13, 0, 0, [0; 6]),
            Op::Recirc(id) => (14, u16::from(head.era), *id, [0; 6]),
            Op::Encap => {
                let push = rule.outer.as_ref()?;
                let (low, more) = push.source_ports();
                let len = u16::try_from(push.header.len()).ok()?;
                let ports = u32::from(low) | u32::from(more) << 16;
                let csum = [push.csum, rule.may_lack_csum()].map(u8::from);
                (15, len, ports, [csum[0], csum[1], 0, 0, 0, 0])
            }
            Op::Decap(d) => {
                // The option's length in words is stored behind its class and type.
                let (class, ty, words) = d.option.map_or((0, 0, 0), |(class, ty)| (class, ty, 1));
                rest = [ty, words];
                let [c0, c1] = class.to_be_bytes();
                let kind = if d.geneve { 2 } else { 1 };
                (
                    16,
                    u16::from(head.era),
                    tunnel_port(d.port),
                    [kind, 0, 0, 0, c0, c1],
                )
            }
            Op::Ipv6Word { at, word } => (17, u16::from(*at), u32::from_ne_bytes(*word), [0; 6]),
        };
        let (kind, x): (u16, u16) = (kind, x);
        w = w
            .put(&kind.to_ne_bytes())
            .put(&x.to_ne_bytes())
            .put(&y.to_ne_bytes())
            .put(&data)
            .put(&rest);
    }
    if let Some(push) = &rule.outer {
        w.at = HEAD + OP * OUTER_OP;
        w = w.put(push.header.get(..).filter(|h| h.len() <= MAX_OUTER)?);
    }
    Some(w.bytes)
}

/// Bytes of a port: the index of its miss device, none for an internal port, and its masks.
pub fn port(miss: Option<u32>, ids: &[u8]) -> PortBytes {
    Writer::<40>::new()
        .put(&miss.unwrap_or(0).to_ne_bytes())
        .put(&masks(ids))
        .put(&u32::from(miss.is_none()).to_ne_bytes())
        .bytes
}

/// Bytes of an output: the device, and its peer's address.
pub fn out(ifindex: u32, peer: Option<[u8; 6]>) -> OutBytes {
    Writer::<12>::new()
        .put(&ifindex.to_ne_bytes())
        .put(&peer.unwrap_or_default())
        .put(&[u8::from(peer.is_some()), 0])
        .bytes
}
