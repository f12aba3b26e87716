//! Rules: the match and actions of a flow, in a form that all back ends share.
//!
//! **Invariant.** A rule matches no packet that its flow does not match. It may match fewer. A back end sends
//! up the packets that it does not recognise: fragments, options, several tags, other protocols. Conditions
//! that such packets fail need not be part of a rule. If a flow has a condition that a rule cannot express
//! and some recognised packet fails it, the flow has no rule ([`Why`]). A mask bit too many costs an entry,
//! one too few misforwards.
//!
//! **Stages.** A flow may recirculate, and a flow behind a recirculation is a rule, too. It names the
//! recirculation id and the state that `ct` gave to the packet. A tracked packet is forwarded by rules only
//! if its connection is in the back end ([`crate::conns`]). All others go up, from their first stage.
//!
//! **Tunnels.** A packet of VXLAN or Geneve that ends here is recognised if it has no Geneve option, or one
//! only. That option has four bytes and is mapped to the first field. Rules of the packets inside are of the
//! tunnel's port, and their matches on the tunnel are part of the key ([`Rule::tunnel`]). A packet without a
//! tag goes into a tunnel as the last step before its only output; [`Rule::outer`] has the headers.
//!
//! A back end recognises packets of Ethernet with at most one 802.1Q tag, and IPv4 without options or IPv6
//! without extension headers. They are no fragments, have a whole TCP, UDP or ICMP header, and are not
//! neighbour discovery. TCP packets with SYN, FIN or RST are recognised if the rule neither tracks nor
//! matches on flags.

use crate::Why;
use crate::more::More;
use heddle_datapath_api::{Action, DropReason, Masked, ObservedFlow, PortNo};
use heddle_flow::key::tun_flag;
use heddle_flow::{FlowKey, FlowMask};
use heddle_tunnel::{TunnelKind, TunnelPop, TunnelPush};
use std::sync::Arc;

/// EtherTypes.
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const DOT1Q: u16 = 0x8100;
/// Bytes of the EtherType in an Ethernet header.
const ETHERTYPE: std::ops::Range<usize> = 12..14;
/// Set in [`Headers::vlan`] of a tagged packet.
pub const VLAN_PRESENT: u16 = 0x1000;
/// Set in [`Headers::tun_flags`] of a packet whose tunnel had the option that is known.
pub const TUN_OPTION: u8 = 1;
/// Set in [`Headers::tun_flags`] of a packet whose tunnel had a UDP checksum.
pub const TUN_CSUM: u8 = 2;
/// Set in [`Headers::tun_flags`] of a packet whose tunnel had IPv6 outside.
pub const TUN_IPV6: u8 = 4;
/// Set in the mask of [`Headers::tun_flags`] if the flow matches on a field that recognised packets do not
/// have. These fields are the flag of control packets, and options that are not known.
pub const TUN_OTHER: u8 = 8;
/// Maximum bytes of outer headers: Geneve with seven words of options over IPv4, with two over IPv6.
pub const MAX_OUTER: usize = 80;

/// The headers of a recognised packet, integers in host order; or a mask of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Headers {
    /// Ethernet destination.
    pub dl_dst: [u8; 6],
    /// Ethernet source.
    pub dl_src: [u8; 6],
    /// EtherType behind the tag.
    pub dl_type: u16,
    /// Tag control information with [`VLAN_PRESENT`]; 0: no tag.
    pub vlan: u16,
    /// IP protocol.
    pub nw_proto: u8,
    /// DSCP and ECN.
    pub nw_tos: u8,
    /// Time to live.
    pub nw_ttl: u8,
    /// IPv6 flow label.
    pub label: u32,
    /// Source port, or ICMP type.
    pub tp_src: u16,
    /// Destination port, or ICMP code.
    pub tp_dst: u16,
    /// Source address; of IPv4 in the first four bytes.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// Recirculation id, 0: none; always matched.
    pub recirc: u32,
    /// Connection mark.
    pub ct_mark: u32,
    /// Connection label, network order.
    pub ct_label: [u8; 16],
    /// Connection zone.
    pub ct_zone: u16,
    /// Connection state bits.
    pub ct_state: u8,
    /// Outer source of the tunnel that it came out of; of IPv4 in the first four bytes.
    pub tun_src: [u8; 16],
    /// Outer destination.
    pub tun_dst: [u8; 16],
    /// Network identifier.
    pub tun_id: u32,
    /// Value of the option that is known, network order.
    pub tun_opt: [u8; 4],
    /// Outer type of service.
    pub tun_tos: u8,
    /// Outer time to live.
    pub tun_ttl: u8,
    /// [`TUN_OPTION`], [`TUN_CSUM`], [`TUN_IPV6`]; in a mask also [`TUN_OTHER`].
    pub tun_flags: u8,
}

impl Headers {
    /// The headers without the fields of a tunnel.
    fn untunnelled(self) -> Self {
        Self {
            tun_src: [0; 16],
            tun_dst: [0; 16],
            tun_id: 0,
            tun_opt: [0; 4],
            tun_tos: 0,
            tun_ttl: 0,
            tun_flags: 0,
            ..self
        }
    }
}

/// One step of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Send it as it is now.
    Output(PortNo),
    /// Rewrite the Ethernet destination.
    EthDst([u8; 6]),
    /// Rewrite the Ethernet source.
    EthSrc([u8; 6]),
    /// Rewrite the IPv4 source.
    Ipv4Src([u8; 4]),
    /// Rewrite the IPv4 destination.
    Ipv4Dst([u8; 4]),
    /// Rewrite a word of the IPv6 addresses.
    Ipv6Word {
        /// Index of the word: the source has words 0 to 3, the destination 4 to 7.
        at: u8,
        /// New bytes.
        word: [u8; 4],
    },
    /// Rewrite bits of DSCP and ECN.
    Tos {
        /// New bits.
        value: u8,
        /// Bits to rewrite.
        mask: u8,
    },
    /// Rewrite the time to live.
    Ttl(u8),
    /// Rewrite the source port.
    L4Src(u16),
    /// Rewrite the destination port.
    L4Dst(u16),
    /// Push a tag of 802.1Q.
    PushVlan(u16),
    /// Pop the tag.
    PopVlan,
    /// Track it.
    Ct(Ct),
    /// Forget the packet's connection state.
    CtClear,
    /// Look it up again.
    Recirc(u32),
    /// Write the headers of a tunnel before it: [`Rule::outer`].
    Encap,
    /// Take the headers of a tunnel off, and look it up again.
    Decap(Decap),
}

/// A tunnel that ends here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Decap {
    /// The tunnel's port.
    pub port: PortNo,
    /// Geneve; VXLAN else.
    pub geneve: bool,
    /// Class and type of the option of four bytes whose field is the first, if there is one.
    pub option: Option<(u16, u8)>,
}

/// Conditions and actions of a `ct` step, for an established connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ct {
    /// Zone.
    pub zone: u16,
    /// Translate it, if its connection is translated.
    pub nat: bool,
    /// Mark that the connection must have (value, mask); otherwise the action would change it.
    pub mark: Option<(u32, u32)>,
}

/// One entry for a back end: match and steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Port that packets come in by.
    pub in_port: PortNo,
    /// Values of the fields in the bits of the mask; zero elsewhere.
    pub key: Headers,
    /// Bits that are compared.
    pub mask: Headers,
    /// Steps, in order; an empty list drops the packets.
    pub ops: Box<[Op]>,
    /// The packets came out of a tunnel, and `in_port` is its port.
    pub tunnel: bool,
    /// The rule also matches TCP packets with FIN, SYN or RST, if they are not tracked.
    pub all_flags: bool,
    /// Outer headers that [`Op::Encap`] writes.
    pub outer: Option<Arc<TunnelPush>>,
    /// Longest frame that goes into the tunnel, bytes; the switch replies to the sender of a longer one.
    pub max_frame: Option<u16>,
    /// The pipeline drops the packets, and they are counted for that.
    pub drops: bool,
    /// The flow has conditions that only neighbour discovery or IGMP can fail. The rule leaves them out, and
    /// must not match those packets.
    pub leaves_out: bool,
    /// Fields that only filters of tc match on.
    pub more: Option<Box<More>>,
}

impl Rule {
    /// The rule of a flow.
    ///
    /// # Errors
    /// The reason why the flow has no rule.
    pub fn of(flow: &ObservedFlow<'_>) -> Result<Rule, Why> {
        Rule::new(flow.key, flow.mask, flow.actions)
    }

    /// The rule of a flow that is given in parts.
    ///
    /// # Errors
    /// The reason why the flow has no rule.
    pub fn new(key: &FlowKey, mask: &FlowMask, actions: &[Action]) -> Result<Rule, Why> {
        let tunnel = is_tunnelled(key);
        let (k, m, more) = headers(key, mask)?;
        let mut ops = Vec::new();
        let (mut outer, mut max_frame) = (None, None);
        let mut drops = false;
        // No action follows a clone at the end, so its actions may change the packet.
        let (mut list, mut at) = (actions, 0);
        while let Some(action) = list.get(at) {
            at += 1;
            match action {
                Action::Clone(inner) if at == list.len() => (list, at) = (inner.as_slice(), 0),
                Action::CheckPktLen {
                    len,
                    greater,
                    less_equal,
                } if at == list.len() && matches!(greater.first(), Some(Action::TooBig { .. })) => {
                    max_frame = Some(*len);
                    (list, at) = (less_equal.as_slice(), 0);
                }
                Action::TunnelPush(_) if tunnel || outer.is_some() => {
                    return Err(Why::Tunnel("leads into another one"));
                }
                Action::TunnelPush(push) => {
                    into_tunnel(push, &ops)?;
                    ops.push(Op::Encap);
                    outer = Some(Arc::clone(push));
                }
                Action::TunnelPop(pop) => {
                    let alone = ops.is_empty() && at == list.len();
                    if tunnel || k.recirc != 0 || !alone || tagged(&ops, &k, &m) != Some(false) {
                        return Err(Why::Tunnel("does not end here alone"));
                    }
                    ops.push(Op::Decap(out_of_tunnel(pop)?));
                }
                Action::Drop(DropReason::Policy) => drops = true,
                _ => {
                    let ends = matches!(ops.last(), Some(Op::Encap)) && matches!(action, Action::Output(_));
                    if outer.is_some() && !ends {
                        return Err(Why::Tunnel("is not the last that is done but for one output"));
                    }
                    add(&mut ops, action, &k, &m)?;
                }
            }
        }
        // Steps after the last output have no visible effect, except on connections.
        let lasts = |op: &Op| matches!(op, Op::Output(_) | Op::Ct(_) | Op::Recirc(_) | Op::Decap(_));
        let seen = ops.iter().rposition(lasts);
        ops.truncate(seen.map_or(0, |at| at + 1));
        Ok(Rule {
            in_port: PortNo(key.in_port),
            key: k,
            mask: m,
            outer: outer.filter(|_| ops.contains(&Op::Encap)),
            max_frame,
            ops: ops.into(),
            tunnel,
            all_flags: mask.0.tcp_flags == 0,
            drops,
            leaves_out: leaves_out(key, &mask.0),
            more: more.map(Box::new),
        })
    }

    /// Whether it is of the same port and has the same match.
    pub(crate) fn has_match_of(&self, other: &Rule) -> bool {
        let fields = |r: &Rule| (r.in_port, r.key, r.mask);
        fields(self) == fields(other) && self.more == other.more
    }

    /// Why only filters of tc can have the rule, if that is so.
    pub fn only_tc(&self) -> Option<Why> {
        self.more.as_ref()?.why
    }

    /// The ports that packets are sent by.
    pub fn outputs(&self) -> impl Iterator<Item = PortNo> + '_ {
        self.ops.iter().filter_map(|op| match op {
            Op::Output(no) => Some(*no),
            _ => None,
        })
    }

    /// The step that ends a tunnel, if the rule is of outer packets.
    pub fn decap(&self) -> Option<Decap> {
        self.ops.iter().find_map(|op| match op {
            Op::Decap(decap) => Some(*decap),
            _ => None,
        })
    }

    /// Whether a GSO packet may go into its tunnel without the outer checksum that others have. IPv4 allows
    /// that, and over IPv6 the tunnel's configuration may allow it.
    pub fn may_lack_csum(&self) -> bool {
        let lacks = |push: &Arc<TunnelPush>| !is_over_ipv6(push) || push.csum_optional;
        self.outer.as_ref().is_none_or(lacks)
    }

    /// Whether routers may fragment the packets of its tunnel.
    pub(crate) fn outer_may_fragment(&self) -> bool {
        const DONT_FRAGMENT: u8 = 0x40;
        const FRAGMENT: usize = 20;
        let is_set = |push: &TunnelPush| push.header.get(FRAGMENT).is_some_and(|b| b & DONT_FRAGMENT != 0);
        let outer = self.outer.as_ref();
        outer.is_some_and(|push| !is_over_ipv6(push) && !is_set(push))
    }
}

/// Whether a tunnel has IPv6 outside.
fn is_over_ipv6(push: &TunnelPush) -> bool {
    push.header.get(ETHERTYPE) == Some(&IPV6.to_be_bytes())
}

/// Whether packets of this key came out of a tunnel.
fn is_tunnelled(key: &FlowKey) -> bool {
    key.tun_dst != 0 || key.tun_ipv6_dst != [0; 16]
}

/// Whether a packet may go into this tunnel after these steps.
fn into_tunnel(push: &TunnelPush, ops: &[Op]) -> Result<(), Why> {
    if !matches!(push.kind, TunnelKind::Vxlan | TunnelKind::Geneve) {
        return Err(Why::Tunnel("is neither VXLAN nor Geneve"));
    }
    if push.header.len() > MAX_OUTER {
        return Err(Why::Tunnel("has longer options"));
    }
    if ops.iter().any(|op| matches!(op, Op::Output(_))) {
        return Err(Why::Tunnel("is not the only output"));
    }
    Ok(())
}

/// The step that ends a tunnel.
fn out_of_tunnel(pop: &TunnelPop) -> Result<Decap, Why> {
    let geneve = match pop.kind {
        TunnelKind::Geneve => true,
        TunnelKind::Vxlan => false,
        _ => return Err(Why::Tunnel("is neither VXLAN nor Geneve")),
    };
    Ok(Decap {
        port: PortNo(pop.port),
        geneve,
        option: pop.options.first_word().filter(|_| geneve),
    })
}

/// Moves the tunnel's fields that rules have out of a key and its mask.
fn tunnel(v6: bool, key: &mut FlowKey, k: &mut Headers, km: &mut Headers, m: &FlowKey) -> Result<(), Why> {
    // Recognised packets have a key, perhaps a checksum, and none of the other flags.
    let flags = std::mem::take(&mut key.tun_flags);
    if flags & !tun_flag::CSUM != tun_flag::KEY & m.tun_flags {
        return Err(Why::Tunnel("is one of control packets"));
    }
    let id = std::mem::take(&mut key.tun_id);
    k.tun_id = u32::try_from(id).map_err(|_| Why::Match)?;
    km.tun_id = u32::try_from(m.tun_id & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    let address = |v4: u32, ipv6: [u8; 16]| match v6 {
        true => ipv6,
        false => in_first4(v4),
    };
    (k.tun_src, k.tun_dst) = (
        address(
            std::mem::take(&mut key.tun_src),
            std::mem::take(&mut key.tun_ipv6_src),
        ),
        address(
            std::mem::take(&mut key.tun_dst),
            std::mem::take(&mut key.tun_ipv6_dst),
        ),
    );
    (km.tun_src, km.tun_dst) = (
        address(m.tun_src, m.tun_ipv6_src),
        address(m.tun_dst, m.tun_ipv6_dst),
    );
    (k.tun_tos, km.tun_tos) = (std::mem::take(&mut key.tun_tos), m.tun_tos);
    (k.tun_ttl, km.tun_ttl) = (std::mem::take(&mut key.tun_ttl), m.tun_ttl);
    let first = |all: &[u8; heddle_flow::key::TLV_SPACE]| [all[0], all[1], all[2], all[3]];
    (k.tun_opt, km.tun_opt) = (first(&key.tun_metadata), first(&m.tun_metadata));
    key.tun_metadata[..4].fill(0);
    let has = |present: u64| if present & 1 != 0 { TUN_OPTION } else { 0 };
    let csum = |flags: u16| {
        if flags & tun_flag::CSUM != 0 { TUN_CSUM } else { 0 }
    };
    // The family always counts: addresses of both families are in the same field.
    k.tun_flags = has(key.tun_present) | csum(flags) | if v6 { TUN_IPV6 } else { 0 };
    km.tun_flags = has(m.tun_present) | csum(m.tun_flags) | TUN_IPV6;
    let options = m.tun_present & !1 != 0 || m.tun_metadata[4..].iter().any(|b| *b != 0);
    if options || m.tun_flags & tun_flag::OAM != 0 {
        km.tun_flags |= TUN_OTHER;
    }
    key.tun_present &= !1;
    Ok(())
}

/// Key, mask, and the fields that only filters of tc have.
fn headers(key: &FlowKey, mask: &FlowMask) -> Result<(Headers, Headers, Option<More>), Why> {
    let mut rest = key.masked(mask);
    let m = &mask.0;
    let more = More::take(key, &mut rest, m)?;
    if key.recirc_id != 0 && carries_more(m) {
        return Err(Why::Connection);
    }
    let (mut k, mut km) = (take(&mut rest), take(&mut m.clone()));
    if is_tunnelled(key) {
        let v6 = key.tun_ipv6_dst != [0; 16];
        tunnel(v6, &mut rest, &mut k, &mut km, m)?;
    }
    // Fields behind the EtherType mean nothing without it.
    let l3 = Headers {
        dl_dst: [0; 6],
        dl_src: [0; 6],
        dl_type: 0,
        vlan: 0,
        recirc: 0,
        ct_mark: 0,
        ct_label: [0; 16],
        ct_zone: 0,
        ct_state: 0,
        ..km.untunnelled()
    };
    if m.dl_type != u16::MAX && l3 != Headers::default() {
        return Err(Why::Match);
    }
    // The mask covers only the tag's type, or the flow is of packets without a tag.
    if m.vlans[0].tpid != 0 {
        km.vlan |= VLAN_PRESENT;
        if key.vlans[0].present() {
            k.vlan |= VLAN_PRESENT;
        }
    }
    match rest.words().iter().all(|w| *w == 0) {
        true => Ok((k, km, more)),
        false => Err(Why::Match),
    }
}

/// Whether a mask matches on state behind a recirculation that rules have no field for.
fn carries_more(m: &FlowKey) -> bool {
    let orig = (m.ct_nw_src | m.ct_nw_dst) != 0 || m.ct_ipv6_src != [0; 16] || m.ct_ipv6_dst != [0; 16];
    orig || m.ct_tp_src | m.ct_tp_dst != 0 || m.ct_nw_proto != 0 || m.ct_state & !0xff != 0
}

/// Whether a mask has bits of fields that only neighbour discovery and IGMP have.
fn leaves_out(packet: &FlowKey, m: &FlowKey) -> bool {
    let hardware = m.arp_sha != [0; 6] || m.arp_tha != [0; 6];
    let nd = m.nd_target != [0; 16] || hardware && packet.dl_type != ARP;
    nd || m.igmp_group != 0
}

/// Moves the fields that rules have out of a key.
fn take(from: &mut FlowKey) -> Headers {
    fn t<T: Default>(x: &mut T) -> T {
        std::mem::take(x)
    }
    t(&mut from.in_port);
    let (nw_src, nw_dst) = (t(&mut from.nw_src), t(&mut from.nw_dst));
    let (mut src, mut dst) = (t(&mut from.ipv6_src), t(&mut from.ipv6_dst));
    // A packet has addresses of one kind only; a mask may have bits of the other, which count nothing.
    for (all, v4) in [(&mut src, nw_src), (&mut dst, nw_dst)] {
        all.iter_mut().zip(v4.to_be_bytes()).for_each(|(a, b)| *a |= b);
    }
    Headers {
        dl_dst: t(&mut from.dl_dst),
        dl_src: t(&mut from.dl_src),
        dl_type: t(&mut from.dl_type),
        vlan: t(&mut from.vlans[0].tci),
        nw_proto: t(&mut from.nw_proto),
        nw_tos: t(&mut from.nw_tos),
        nw_ttl: t(&mut from.nw_ttl),
        label: t(&mut from.ipv6_label),
        tp_src: t(&mut from.tp_src),
        tp_dst: t(&mut from.tp_dst),
        src,
        dst,
        recirc: t(&mut from.recirc_id),
        ct_mark: t(&mut from.ct_mark),
        ct_label: t(&mut from.ct_label),
        ct_zone: t(&mut from.ct_zone),
        ct_state: u8::try_from(t(&mut from.ct_state) & 0xff).unwrap_or(0),
        ..Headers::default()
    }
}

/// All bytes of a rewritten field, if they are known: those that are not rewritten have to be matched.
fn whole<const N: usize>(
    new: [u8; N],
    written: [u8; N],
    key: &[u8; N],
    mask: &[u8; N],
) -> Result<Option<[u8; N]>, Why> {
    if written == [0; N] {
        return Ok(None);
    }
    let mut all = [0; N];
    for (i, byte) in all.iter_mut().enumerate() {
        if !written[i] & !mask[i] != 0 {
            return Err(Why::Partly);
        }
        *byte = new[i] & written[i] | key[i] & !written[i];
    }
    Ok(Some(all))
}

fn in_first4(v4: u32) -> [u8; 16] {
    (u128::from(v4) << 96).to_be_bytes()
}

fn first4(all: &[u8; 16]) -> [u8; 4] {
    [all[0], all[1], all[2], all[3]]
}

/// Adds the steps of an action. `k`, `m`: the fields of packets that are known. After an action rewrites any
/// of them, nothing is known: then a field is only taken if it is rewritten as a whole.
fn add(ops: &mut Vec<Op>, action: &Action, k: &Headers, m: &Headers) -> Result<(), Why> {
    let fresh = ops.iter().all(|op| matches!(op, Op::Output(_)));
    let nothing = Headers::default();
    let (m, of_packet) = (if fresh { m } else { &nothing }, m);
    match action {
        Action::Output(no) => ops.push(Op::Output(*no)),
        Action::SetEth { src, dst } => {
            ops.extend(whole(dst.value, dst.mask, &k.dl_dst, &m.dl_dst)?.map(Op::EthDst));
            ops.extend(whole(src.value, src.mask, &k.dl_src, &m.dl_src)?.map(Op::EthSrc));
        }
        Action::SetIpv4 { src, dst, tos, ttl } => {
            let one = |w: &Masked<u32>, k, m| {
                whole(
                    w.value.to_be_bytes(),
                    w.mask.to_be_bytes(),
                    &first4(k),
                    &first4(m),
                )
            };
            ops.extend(one(src, &k.src, &m.src)?.map(Op::Ipv4Src));
            ops.extend(one(dst, &k.dst, &m.dst)?.map(Op::Ipv4Dst));
            small(ops, tos, ttl, k, m)?;
        }
        Action::SetIpv6 {
            src,
            dst,
            label,
            tclass,
            hlimit,
        } => {
            if label.mask != 0 {
                return Err(Why::Action("set(ipv6 label)"));
            }
            words(ops, 0, src, &k.src, &m.src)?;
            words(ops, 4, dst, &k.dst, &m.dst)?;
            small(ops, tclass, hlimit, k, m)?;
        }
        Action::SetL4 {
            proto: 6 | 17,
            src,
            dst,
        } => {
            let one = |w: &Masked<u16>, k: u16, m: u16| {
                let be = u16::to_be_bytes;
                whole(be(w.value), be(w.mask), &be(k), &be(m)).map(|all| all.map(u16::from_be_bytes))
            };
            ops.extend(one(src, k.tp_src, m.tp_src)?.map(Op::L4Src));
            ops.extend(one(dst, k.tp_dst, m.tp_dst)?.map(Op::L4Dst));
        }
        Action::PushVlan { tpid: DOT1Q, tci } => {
            // One tag at a time: how many a packet has must be known.
            match tagged(ops, k, of_packet) {
                Some(false) => ops.push(Op::PushVlan(*tci)),
                _ => return Err(Why::Vlan),
            }
        }
        Action::PopVlan => match tagged(ops, k, of_packet) {
            Some(true) => ops.push(Op::PopVlan),
            _ => return Err(Why::Vlan),
        },
        // Workers count packets of other reasons by these.
        Action::Drop(_) => return Err(Why::Action("drop (not by a rule)")),
        Action::Ct(action) => {
            if action.force {
                return Err(Why::Action("ct(force)"));
            }
            if action.commit && action.label.is_some() {
                return Err(Why::Action("ct(commit,label)"));
            }
            let mark = action.mark.filter(|_| action.commit).map(|(v, m)| (v & m, m));
            ops.push(Op::Ct(Ct {
                zone: action.zone,
                nat: action.nat.is_some(),
                mark,
            }));
        }
        Action::CtClear => ops.push(Op::CtClear),
        Action::Recirc(id) => ops.push(Op::Recirc(*id)),
        other => return Err(Why::Action(name_of(other))),
    }
    Ok(())
}

/// Words of an address of IPv6, of which the first is number `first`.
fn words(
    ops: &mut Vec<Op>,
    first: u8,
    new: &Masked<[u8; 16]>,
    k: &[u8; 16],
    m: &[u8; 16],
) -> Result<(), Why> {
    let word = |all: &[u8; 16], n: usize| [all[n], all[n + 1], all[n + 2], all[n + 3]];
    for (at, n) in (first..).zip((0..16).step_by(4)) {
        let bytes = whole(word(&new.value, n), word(&new.mask, n), &word(k, n), &word(m, n))?;
        ops.extend(bytes.map(|word| Op::Ipv6Word { at, word }));
    }
    Ok(())
}

/// DSCP, ECN and time to live, of both kinds of IP.
fn small(ops: &mut Vec<Op>, tos: &Masked<u8>, ttl: &Masked<u8>, k: &Headers, m: &Headers) -> Result<(), Why> {
    if tos.mask != 0 {
        ops.push(Op::Tos {
            value: tos.value & tos.mask,
            mask: tos.mask,
        });
    }
    let ttl = whole([ttl.value], [ttl.mask], &[k.nw_ttl], &[m.nw_ttl])?;
    ops.extend(ttl.map(|[ttl]| Op::Ttl(ttl)));
    Ok(())
}

/// Whether the packet has a tag at this step, if that is known.
fn tagged(ops: &[Op], k: &Headers, m: &Headers) -> Option<bool> {
    let last = ops.iter().rfind(|op| matches!(op, Op::PushVlan(_) | Op::PopVlan));
    match last {
        Some(Op::PushVlan(_)) => Some(true),
        Some(_) => Some(false),
        None if m.vlan & VLAN_PRESENT != 0 => Some(k.vlan & VLAN_PRESENT != 0),
        None => None,
    }
}

fn name_of(action: &Action) -> &'static str {
    match action {
        Action::Userspace(_) => "userspace",
        Action::SetIcmp { .. } => "set(icmp)",
        Action::SetArp { .. } => "set(arp)",
        Action::SetNd { .. } => "set(nd)",
        Action::SetNdExt { .. } => "set(nd_ext)",
        Action::SetL4 { .. } => "set(sctp)",
        Action::SetPriority(_) => "set(skb_priority)",
        Action::SetMark(_) => "set(skb_mark)",
        Action::PushVlan { .. } => "push_vlan(tpid)",
        Action::PushMpls { .. } | Action::AddMpls { .. } => "push_mpls",
        Action::PopMpls { .. } => "pop_mpls",
        Action::SetMpls(_) => "set(mpls)",
        Action::PushEth { .. } => "push_eth",
        Action::PopEth => "pop_eth",
        Action::PushNsh(_) => "push_nsh",
        Action::PopNsh => "pop_nsh",
        Action::SetNsh(_) => "set(nsh)",
        Action::Trunc(_) => "trunc",
        Action::Clone(_) => "clone",
        Action::Sample { .. } => "sample",
        Action::Meter(_) => "meter",
        Action::Hash { .. } => "hash",
        Action::LbOutput(_) => "lb_output (a bond that balances by hash)",
        Action::CheckPktLen { .. } => "check_pkt_len",
        Action::TunnelPush(_) => "tnl_push",
        Action::TunnelPop(_) => "tnl_pop",
        Action::SetTunnel(_) => "set(tunnel)",
        Action::Wait(_) => "a packet that waits for a neighbour",
        Action::TooBig { .. } => "icmp_too_big",
        Action::Output(_)
        | Action::SetEth { .. }
        | Action::SetIpv4 { .. }
        | Action::SetIpv6 { .. }
        | Action::PopVlan
        | Action::Ct(_)
        | Action::CtClear
        | Action::Recirc(_)
        | Action::Drop(_) => "that",
    }
}
