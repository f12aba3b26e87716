//! Rules, connections and ports as keys and values of the maps ([`abi`]).

use super::abi::{self, Conn, ConnKey, Count, Cpu, Flow, Key, Live, Masks, OpBytes, Out, Port, Stage};
use super::abi::{
    CT_MARK, CT_NAT, FIRST_WORDS, FLOW_ALL_FLAGS, FLOW_WALKS, GENEVE, INTERNAL, LAST, MAX_CONNS, MAX_OPS,
    MAX_OUTER, N_UP, NAT_DST, NAT_SRC, OP_CT, OP_CT_CLEAR, OP_DECAP, OP_ENCAP, OP_ETH_DST, OP_ETH_SRC,
    OP_IPV4_DST, OP_IPV4_SRC, OP_IPV6_WORD, OP_L4_DST, OP_L4_SRC, OP_OUTPUT, OP_POP_VLAN, OP_PUSH_VLAN,
    OP_RECIRC, OP_TOS, OP_TTL, OUTER_OP, TUNNEL_PORT, VXLAN,
};
use crate::rule::{self, VLAN_PRESENT};
use crate::{Headers, Op, Rule};
use heddle_conntrack::offloaded::{ConnId, Offloadable};
use heddle_conntrack::{Endpoint, Tuple, state};
use heddle_datapath_api::PortNo;
use std::mem::offset_of;
use zerocopy::big_endian::U16;
use zerocopy::{IntoBytes, transmute};

/// Entries of [`MAX_FLOWS`] that are reserved for flows that an earlier process may have left.
pub(super) const SPARE: usize = 1024;
/// Words of a flow's counters.
pub(super) const COUNT_WORDS: usize = size_of::<Count>() / 8;
/// Index of the packets among a flow's counters.
pub(super) const COUNT_PACKETS: usize = offset_of!(Count, packets) / 8;
/// Index of the bytes.
pub(super) const COUNT_BYTES: usize = offset_of!(Count, bytes) / 8;
/// Index of the TCP flags.
pub(super) const COUNT_TCP_FLAGS: usize = offset_of!(Count, tcp_flags) / 8;
/// Words of a processor's counters.
pub(super) const CPU_WORDS: usize = size_of::<Cpu>() / 8;
/// Packets whose treatment has begun.
pub(super) const CPU_ENTERED: usize = offset_of!(Cpu, entered) / 8;
/// Packets whose treatment has ended.
pub(super) const CPU_LEFT: usize = offset_of!(Cpu, left) / 8;
/// Words that show whether a connection is there, and whether packets used it.
pub(super) const LIVE_WORDS: usize = size_of::<Live>() / 8;
/// Index of the word that shows whether packets used the connection.
pub(super) const LIVE_TOUCHED: usize = offset_of!(Live, touched) / 8;
const _: () = assert!(
    abi::MAX_OUTER == rule::MAX_OUTER
        && abi::VLAN_PRESENT == VLAN_PRESENT
        && abi::TCP_UP == crate::more::TCP_UP
        && abi::TUN_OPTION == rule::TUN_OPTION
        && abi::TUN_CSUM == rule::TUN_CSUM
        && abi::TUN_IPV6 == rule::TUN_IPV6
        && abi::CT_SNAT == state::SNAT
        && abi::CT_DNAT == state::DNAT
        && abi::WORDS * 8 == size_of::<Key>()
        && OUTER_OP * size_of::<OpBytes>() + MAX_OUTER == MAX_OPS * size_of::<OpBytes>()
);
/// Names of the reasons for which packets went up, in the order of their counters, from [`CPU_UP`] on.
pub(super) const UP: [&str; N_UP] = {
    let mut names = [""; N_UP];
    names[abi::UP_ODD] = "odd";
    names[abi::UP_TCP] = "tcp-syn-fin-rst";
    names[abi::UP_NO_FLOW] = "no-flow";
    names[abi::UP_STALE] = "stale";
    names[abi::UP_LONG] = "too-long";
    names[abi::UP_NO_CONN] = "no-connection";
    names[abi::UP_NO_STAGE] = "no-stage";
    names[abi::UP_UNEVEN] = "uneven-train";
    names[abi::UP_MARK] = "mark";
    names
};
/// Index of the first of these counters among a processor's counters.
pub(super) const CPU_UP: usize = offset_of!(Cpu, up) / 8;
/// Packets that flows without an output dropped.
pub(super) const CPU_DROPPED: usize = offset_of!(Cpu, dropped) / 8;
/// Packets that went straight into a veth's peer.
pub(super) const CPU_PEER: usize = offset_of!(Cpu, peer) / 8;
/// Packets that were dropped because their port sent too many up.
pub(super) const CPU_LIMITED: usize = offset_of!(Cpu, limited) / 8;

/// A [`Key`], or a mask.
pub(super) type KeyBytes = [u8; size_of::<Key>()];
/// Bytes of a key that count for packets as they come in: the rest is zero.
pub(super) type FirstBytes = [u8; FIRST_WORDS * 8];
/// A [`Flow`].
pub(super) type FlowBytes = [u8; size_of::<Flow>()];
/// [`Masks`].
pub(super) type MasksBytes = [u8; size_of::<Masks>()];
/// A [`Stage`].
pub(super) type StageBytes = [u8; size_of::<Stage>()];
/// A [`ConnKey`].
pub(super) type ConnKeyBytes = [u8; size_of::<ConnKey>()];
/// A [`Conn`].
pub(super) type ConnBytes = [u8; size_of::<Conn>()];
/// A [`Port`].
pub(super) type PortBytes = [u8; size_of::<Port>()];
/// An [`Out`].
pub(super) type OutBytes = [u8; size_of::<Out>()];

fn headers(h: &Headers, ifindex: u32, era: u8) -> Key {
    Key {
        in_ifindex: ifindex,
        dl_type: h.dl_type.into(),
        vlan: h.vlan,
        dl_dst: h.dl_dst,
        dl_src: h.dl_src,
        nw_proto: h.nw_proto,
        nw_tos: h.nw_tos,
        nw_ttl: h.nw_ttl,
        mask_id: 0,
        label: h.label.into(),
        tp_src: h.tp_src.into(),
        tp_dst: h.tp_dst.into(),
        src: h.src,
        dst: h.dst,
        recirc: h.recirc,
        ct_mark: h.ct_mark,
        ct_zone: h.ct_zone,
        ct_state: h.ct_state,
        era,
        tun_tos: h.tun_tos,
        tun_ttl: h.tun_ttl,
        tun_flags: h.tun_flags,
        pad: 0,
        ct_label: h.ct_label,
        tun_id: h.tun_id,
        tun_opt: h.tun_opt,
        tun_src: h.tun_src,
        tun_dst: h.tun_dst,
    }
}

/// The key of a rule.
pub(super) fn key(rule: &Rule, ifindex: u32, mask_id: u8, era: u8) -> KeyBytes {
    // Packets have no era as they come in.
    let fresh = rule.key.recirc == 0 && !rule.tunnel;
    let mut key = headers(&rule.key, ifindex, if fresh { 0 } else { era });
    let mask = mask(rule);
    key.as_mut_bytes().iter_mut().zip(mask).for_each(|(k, m)| *k &= m);
    key.mask_id = mask_id;
    transmute!(key)
}

/// The key of a packet with these headers.
#[cfg(test)]
pub(super) fn packet(h: &Headers, ifindex: u32) -> KeyBytes {
    transmute!(headers(h, ifindex, 0))
}

/// The mask of a rule.
pub(super) fn mask(rule: &Rule) -> KeyBytes {
    transmute!(headers(&rule.mask, u32::MAX, u8::MAX))
}

/// The part of a key that counts for packets as they come in.
pub(super) fn first(key: &KeyBytes) -> FirstBytes {
    *key.first_chunk().expect("a key is longer")
}

/// The whole key of packets as they come in.
pub(super) fn of_first(key: &FirstBytes) -> KeyBytes {
    let mut all: KeyBytes = [0; _];
    all[..key.len()].copy_from_slice(key);
    all
}

/// The key of these bytes.
pub(super) fn parse_key(bytes: &KeyBytes) -> Key {
    transmute!(*bytes)
}

/// Set of masks that a key is looked up under: by device, recirculation id and era.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Origin {
    /// Index of the device.
    pub(super) ifindex: u32,
    /// Recirculation id; 0: none.
    pub(super) recirc: u32,
    /// The era of the process that gave it.
    pub(super) era: u8,
}

impl Origin {
    /// Origin of packets that come in by a device.
    pub(super) fn port(ifindex: u32) -> Self {
        Self {
            ifindex,
            recirc: 0,
            era: 0,
        }
    }
    /// Origin that a key belongs to.
    pub(super) fn of(key: &KeyBytes) -> Self {
        let key = parse_key(key);
        Self {
            ifindex: key.in_ifindex,
            recirc: key.recirc,
            era: key.era,
        }
    }
    /// Whether packets of this origin are as they came in.
    pub(super) fn is_port(self) -> bool {
        self.recirc == 0 && self.ifindex & TUNNEL_PORT == 0
    }
    /// Key of this origin in the map of stages.
    pub(super) fn stage(self) -> StageBytes {
        transmute!(Stage {
            in_ifindex: self.ifindex,
            recirc: self.recirc,
            era: self.era.into(),
        })
    }
}

/// Masks, of which the first [`abi::MASKS_PER_PORT`] count.
fn masks(ids: &[u8]) -> Masks {
    let mut all = Masks::default();
    for (to, id) in all.ids.iter_mut().zip(ids) {
        *to = *id;
        all.n += 1;
    }
    all
}

/// Bytes of a stage: its masks.
pub(super) fn stage(ids: &[u8]) -> MasksBytes {
    transmute!(masks(ids))
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
fn tp(l4: u32) -> U16 {
    (l4 as u16).into()
}

/// A direction of a connection as it is looked up.
pub(super) fn conn_key(t: &Tuple, zone: u16) -> ConnKeyBytes {
    transmute!(ConnKey {
        src: address(t.src.addr, t.ipv6),
        dst: address(t.dst.addr, t.ipv6),
        tp_src: tp(t.src.l4),
        tp_dst: tp(t.dst.l4),
        zone,
        proto: t.proto,
        v6: t.ipv6.into(),
    })
}

/// Index of the word that shows whether a connection is there.
pub(super) fn live_index(number: u32) -> u32 {
    number % u32::try_from(MAX_CONNS).unwrap_or(u32::MAX)
}

/// Value of that word while the connection is there.
pub(super) fn live_word(generation: u32) -> u64 {
    1 << 32 | u64::from(generation)
}

/// A direction of a connection, as its packets find it.
pub(super) fn conn(c: &Offloadable, reply: bool) -> ConnBytes {
    // The packet gets the reversed tuple of the other direction.
    let back = if reply { &c.orig } else { &c.reply };
    let nat = match (c.snat, c.dnat) {
        (false, false) => 0,
        (snat, _) if snat == reply => NAT_DST,
        _ => NAT_SRC,
    };
    transmute!(Conn {
        live: live_index(c.id.number),
        generation: c.id.generation,
        mark: c.mark,
        state: c.state(reply),
        nat,
        tp_src: tp(back.dst.l4),
        tp_dst: tp(back.src.l4),
        pad: 0,
        pad2: 0,
        label: c.label.to_be_bytes(),
        src: address(back.dst.addr, back.ipv6),
        dst: address(back.src.addr, back.ipv6),
    })
}

/// The connection of which this is the entry of the original direction; its number is that of its word.
/// `None`: it is the entry of the reply direction.
pub(super) fn conn_of(key: &ConnKeyBytes, conn: &ConnBytes) -> Option<Offloadable> {
    let (key, conn): (ConnKey, Conn) = (transmute!(*key), transmute!(*conn));
    let ipv6 = key.v6 != 0;
    let end = |addr: [u8; 16], port: U16| Endpoint {
        addr: u128::from_be_bytes(addr) >> if ipv6 { 0 } else { 96 },
        l4: port.get().into(),
    };
    let tuple = |src, dst| Tuple {
        src,
        dst,
        proto: key.proto,
        ipv6,
    };
    let of = |replied| Offloadable {
        id: ConnId {
            number: conn.live,
            generation: conn.generation,
        },
        zone: key.zone,
        replied,
        orig: tuple(end(key.src, key.tp_src), end(key.dst, key.tp_dst)),
        // The tuple of replies is the reverse of the translated packets'.
        reply: tuple(end(conn.dst, conn.tp_dst), end(conn.src, conn.tp_src)),
        snat: conn.nat == NAT_SRC,
        dnat: conn.nat == NAT_DST,
        mark: conn.mark,
        label: u128::from_be_bytes(conn.label),
    };
    [true, false]
        .map(of)
        .into_iter()
        .find(|c| c.state(false) == conn.state)
}

/// The word that a connection's entry names.
pub(super) fn conn_live(conn: &ConnBytes) -> u32 {
    let conn: Conn = transmute!(*conn);
    conn.live
}

/// Header of a flow's value in the map, before its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowHead {
    /// Index of its counters.
    pub(super) count: u32,
    /// Index of its generation.
    pub(super) slot: u32,
    /// Generation of that slot that the flow belongs to.
    pub(super) generation: u32,
    /// Largest IP packet that all of its outputs take.
    pub(super) mtu: u32,
    /// The era of this process's recirculation ids.
    pub(super) era: u8,
}

/// Number of a tunnel's port in the place of a device's index.
pub(super) fn tunnel_port(no: PortNo) -> u32 {
    TUNNEL_PORT | no.0
}

/// [`FlowHead::count`] and [`FlowHead::slot`] of a flow.
pub(super) fn head(flow: &FlowBytes) -> (u32, u32) {
    let flow: Flow = transmute!(*flow);
    (flow.count, flow.slot)
}

/// A device that packets are sent by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    /// Index of the device.
    pub(super) ifindex: u32,
    /// The device is that of an internal port.
    pub(super) internal: bool,
    /// The slot of its port; 0: none.
    pub(super) slot: u32,
}

/// One step. `None`: a port has no device.
fn op(op: &Op, rule: &Rule, era: u8, device: impl Fn(PortNo) -> Option<Device>) -> Option<OpBytes> {
    let mut data = [0; 8];
    let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
    let (kind, x, y) = match op {
        Op::Output(no) => {
            let d = device(*no)?;
            put(0, &d.slot.to_ne_bytes());
            (OP_OUTPUT, if d.internal { INTERNAL } else { 0 }, d.ifindex)
        }
        Op::EthDst(mac) => {
            put(0, mac);
            (OP_ETH_DST, 0, 0)
        }
        Op::EthSrc(mac) => {
            put(0, mac);
            (OP_ETH_SRC, 0, 0)
        }
        Op::Ipv4Src(a) => (OP_IPV4_SRC, 0, u32::from_ne_bytes(*a)),
        Op::Ipv4Dst(a) => (OP_IPV4_DST, 0, u32::from_ne_bytes(*a)),
        Op::Tos { value, mask } => (OP_TOS, u16::from_be_bytes([*mask, *value]), 0),
        Op::Ttl(ttl) => (OP_TTL, u16::from(*ttl), 0),
        Op::L4Src(p) => (OP_L4_SRC, p.to_be(), 0),
        Op::L4Dst(p) => (OP_L4_DST, p.to_be(), 0),
        Op::PushVlan(tci) => (OP_PUSH_VLAN, tci & !VLAN_PRESENT, 0),
        Op::PopVlan => (OP_POP_VLAN, 0, 0),
        Op::Ct(ct) => {
            let (value, mask) = ct.mark.unwrap_or_default();
            put(0, &value.to_ne_bytes());
            put(4, &mask.to_ne_bytes());
            let flag = |set, flag| if set { flag } else { 0 };
            (
                OP_CT,
                ct.zone,
                flag(ct.nat, CT_NAT) | flag(ct.mark.is_some(), CT_MARK),
            )
        }
        Op::CtClear => (OP_CT_CLEAR, 0, 0),
        Op::Recirc(id) => (OP_RECIRC, era.into(), *id),
        Op::Encap => {
            let push = rule.outer.as_ref()?;
            let (low, more) = push.source_ports();
            let len = u16::try_from(push.header.len()).ok()?;
            put(0, &[push.csum, rule.may_lack_csum()].map(u8::from));
            (OP_ENCAP, len, u32::from(low) | u32::from(more) << 16)
        }
        Op::Decap(d) => {
            put(0, &[if d.geneve { GENEVE } else { VXLAN }]);
            if let Some((class, ty)) = d.option {
                put(4, &class.to_be_bytes());
                // The option's length in words is stored behind its class and type.
                put(6, &[ty, 1]);
            }
            (OP_DECAP, era.into(), tunnel_port(d.port))
        }
        Op::Ipv6Word { at, word } => (OP_IPV6_WORD, u16::from(*at), u32::from_ne_bytes(*word)),
    };
    Some(OpBytes { kind, x, y, data })
}

/// Bytes of a flow. `None`: it has too many steps, or a port has no device.
pub(super) fn flow(
    head: FlowHead,
    rule: &Rule,
    device: impl Fn(PortNo) -> Option<Device>,
) -> Option<FlowBytes> {
    let ops = &rule.ops;
    let walk = |op: &Op| matches!(op, Op::Ct(_) | Op::Recirc(_) | Op::Encap | Op::Decap(_));
    let mut what = if ops.iter().any(walk) { FLOW_WALKS } else { 0 };
    if rule.all_flags {
        what |= FLOW_ALL_FLAGS;
    }
    let mut flow = Flow {
        count: head.count,
        slot: head.slot,
        generation: head.generation,
        mtu: head.mtu,
        n_ops: u32::try_from(ops.len()).ok()?,
        what,
        ..Flow::default()
    };
    // Outer headers take the room of the last steps.
    let max = if rule.outer.is_some() { OUTER_OP } else { MAX_OPS };
    for (to, step) in flow.ops[..max].get_mut(..ops.len())?.iter_mut().zip(ops) {
        *to = op(step, rule, head.era, &device)?;
    }
    if let Some(push) = &rule.outer {
        let room = flow.ops[OUTER_OP..].as_mut_bytes();
        room.get_mut(..push.header.len())?.copy_from_slice(&push.header);
    }
    let ends = !ops.iter().any(|op| matches!(op, Op::Recirc(_)));
    let last = ops.iter().rposition(|op| matches!(op, Op::Output(_)));
    if let Some(at) = last.filter(|_| ends) {
        flow.ops[at].x |= LAST;
    }
    Some(transmute!(flow))
}

/// Bytes of a port: the index of its miss device, none for an internal port, and its masks.
pub(super) fn port(miss: Option<u32>, ids: &[u8]) -> PortBytes {
    transmute!(Port {
        miss: miss.unwrap_or(0),
        masks: masks(ids),
        internal: miss.is_none().into(),
        pad: 0,
        window: 0,
        n_up: 0,
        pad2: 0,
    })
}

/// Bytes of an output: the device, and its peer's address.
pub(super) fn out(ifindex: u32, peer: Option<[u8; 6]>) -> OutBytes {
    transmute!(Out {
        ifindex,
        mac: peer.unwrap_or_default(),
        peer: peer.is_some().into(),
        pad: 0,
    })
}
