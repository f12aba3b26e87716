//! Bytes of the maps: what `bpf/classifier.bpf.c` declares as structures.
//!
//! Integers are in the machine's order but for those of a packet's headers, which are in network order, and
//! the tag, which is not.

use crate::rule::VLAN_PRESENT;
use crate::{Headers, Op, Rule};
use heddle_datapath::PortNo;

/// Entries of the map of flows.
pub const FLOWS: usize = 131_072;
/// Of these so many are left for what an earlier process may have left.
pub const SPARE: usize = 1024;
/// Words of a flow's counters: packets, bytes, TCP flags, none.
pub const COUNT_WORDS: usize = 4;
/// Generations. The first two name the owner and the version.
pub const SLOTS: usize = 8192;
/// Processors.
pub const CPUS: usize = 1024;
/// Words of a processor's counters.
pub const CPU_WORDS: usize = 16;
/// Masks of all ports.
pub const MASKS: usize = 256;
/// Masks that packets of one port are looked up with.
pub const MASKS_PER_PORT: usize = 8;
/// Most steps of a flow.
pub const MAX_OPS: usize = 16;
/// Why packets went up, in the order of their counters, from [`CPU_UP`] on.
pub const UP: [&str; 6] = [
    "odd",
    "tcp-syn-fin-rst",
    "no-flow",
    "stale",
    "too-long",
    "no-output",
];
/// Where these begin among a processor's counters.
pub const CPU_UP: usize = 2;
/// Packets that flows without an output dropped.
pub const CPU_DROPPED: usize = 8;
/// Packets that went straight into a veth's peer.
pub const CPU_PEER: usize = 9;

/// A key, or a mask.
pub type KeyBytes = [u8; 64];
/// A flow.
pub type FlowBytes = [u8; 24 + 16 * MAX_OPS];
/// A port.
pub type PortBytes = [u8; 24];

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

fn headers(h: &Headers, ifindex: u32) -> KeyBytes {
    Writer::<64>::new()
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
        .bytes
}

/// The key of a rule.
pub fn key(rule: &Rule, ifindex: u32, mask_id: u8) -> KeyBytes {
    let mut all = headers(&rule.key, ifindex);
    let mask = mask(rule);
    all.iter_mut().zip(mask).for_each(|(k, m)| *k &= m);
    all[MASK_ID] = mask_id;
    all
}

/// The key of a packet with these headers.
#[cfg(test)]
pub fn packet(h: &Headers, ifindex: u32) -> KeyBytes {
    headers(h, ifindex)
}

/// The mask of a rule.
pub fn mask(rule: &Rule) -> KeyBytes {
    headers(&rule.mask, u32::MAX)
}

/// The mask's number in a key.
pub fn mask_id(key: &KeyBytes) -> u8 {
    key[MASK_ID]
}

/// The device's index in a key.
pub fn in_ifindex(key: &KeyBytes) -> u32 {
    u32::from_ne_bytes([key[0], key[1], key[2], key[3]])
}

/// What a flow names besides its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHead {
    /// Index of its counters.
    pub count: u32,
    /// Index of its generation.
    pub slot: u32,
    /// Its generation.
    pub generation: u32,
    /// Largest IP packet that all of its outputs take.
    pub mtu: u32,
}

/// Where [`FlowHead::count`] and [`FlowHead::slot`] of a flow point to.
pub fn head(flow: &FlowBytes) -> (u32, u32) {
    let word = |at: usize| u32::from_ne_bytes([flow[at], flow[at + 1], flow[at + 2], flow[at + 3]]);
    (word(0), word(4))
}

/// A flow. `None`: it has too many steps, or a port has no device.
pub fn flow(head: FlowHead, ops: &[Op], device: impl Fn(PortNo) -> Option<u32>) -> Option<FlowBytes> {
    let n_ops = u32::try_from(ops.len()).ok().filter(|n| *n as usize <= MAX_OPS)?;
    let mut w = Writer::new();
    for word in [head.count, head.slot, head.generation, head.mtu, n_ops, 0] {
        w = w.put(&word.to_ne_bytes());
    }
    for op in ops {
        let (kind, x, y, data) = match op {
            Op::Output(no) => (1, 0, device(*no)?, [0; 6]),
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
        };
        let (kind, x): (u16, u16) = (kind, x);
        w = w
            .put(&kind.to_ne_bytes())
            .put(&x.to_ne_bytes())
            .put(&y.to_ne_bytes())
            .put(&data)
            .put(&[0; 2]);
    }
    Some(w.bytes)
}

/// A port: the index of the device by which its packets go up, its masks, and its peer's address.
pub fn port(miss: u32, masks: &[u8], peer: Option<[u8; 6]>) -> PortBytes {
    let n = u32::try_from(masks.len().min(MASKS_PER_PORT)).unwrap_or(0);
    Writer::<24>::new()
        .put(&miss.to_ne_bytes())
        .put(&n.to_ne_bytes())
        .put(&peer.unwrap_or_default())
        .put(&[u8::from(peer.is_some()), 0])
        .put(&masks[..n as usize])
        .bytes
}
