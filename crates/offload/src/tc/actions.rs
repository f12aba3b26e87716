//! The steps of a rule as actions of tc.
//!
//! * An output is `mirred`: a redirect for the last step, otherwise a mirror. Internal ports are refused: at
//!   the ingress of their device, `mirred` leaves the packet type at `PACKET_OTHERHOST`, and the host's stack
//!   drops the packet. With `skbedit ptype host` for all packets, the stack would accept packets for other
//!   hosts.
//! * Rewrites are `pedit`, then `csum` of the checksums that they change. `csum` computes a checksum anew, so
//!   it corrects a wrong TCP or UDP checksum of the sender. Rewrites of Ethernet addresses, and of IPv4
//!   fields outside the pseudo-header, leave TCP and UDP checksums as they are.
//! * A dropped packet is `gact drop`.
//! * Into a tunnel: `tunnel_key` ([`super::encap`]), then a redirect to the tunnel's device.
//! * Out of a tunnel: `tunnel_key unset` first. Outer packets of a tunnel pass to the host's stack, whose
//!   tunnel device gets them, with their origin in `skb->priority` ([`super::received`]).
//! * The first action carries the cookie ([`Cookie`]).
//!
//! **Addresses.** `csum` skips GSO packets, and `pedit` updates no checksum. The pseudo-header checksum of a
//! GSO packet would become wrong, and so would the checksums of its segments. The action `nat` updates it.
//! But `nat` needs the old address, and also rewrites addresses inside ICMP errors. So IPv4 addresses of TCP
//! and UDP are rewritten only if the rule matches the whole old address. Protocols whose checksum does not
//! cover the addresses have `pedit`. Other rules are refused. A filter that only a card runs has `pedit`,
//! since cards do not take `nat`. IPv6 addresses are rewritten for ICMPv6, whose packets are no GSO packets.

use super::attrs::{self, Base, Word};
use super::cookie::Cookie;
use super::encap::Encap;
use crate::more::More;
use crate::rule::VLAN_PRESENT;
use crate::{Op, Rule, Why};
use heddle_datapath_api::PortNo;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionGeneric, TcActionMirrorOption, TcActionNatOption, TcActionOption,
    TcActionType, TcMirror, TcMirrorActionType, TcNat, TcNatFlags,
};
use std::net::Ipv4Addr;

/// Maximum number of actions of a filter (`TCA_ACT_MAX_PRIO`).
const MAX_ACTIONS: usize = 32;
/// Maximum number of words of one `pedit`, before the last rewrite adds its own.
const MAX_WORDS: usize = 240;
const IPV4: u16 = 0x0800;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Protocols over IPv4 whose checksum does not cover the addresses: ICMP, IGMP, IP in IP, GRE, ESP, AH,
/// OSPF, SCTP.
const WITHOUT_PSEUDO_HEADER: [u8; 8] = [ICMP, 2, 4, 47, 50, 51, 89, 132];

/// The tunnel that a rule leads into.
#[derive(Clone, Copy)]
pub(super) struct IntoTunnel<'a> {
    pub(super) encap: &'a Encap,
    /// Interface index of the tunnel's device.
    pub(super) ifindex: u32,
}

/// The actions of a rule that neither tracks nor recirculates, as those of [`steps`], numbered.
///
/// # Errors
/// The reason why tc cannot do the steps.
pub(super) fn of(
    rule: &Rule,
    cookie: Cookie,
    card_only: bool,
    tunnel: Option<IntoTunnel<'_>>,
    device: impl Fn(PortNo) -> Option<u32>,
) -> Result<Vec<TcAction>, Why> {
    let ways = Ways {
        card_only,
        tunnel,
        device: &device,
    };
    finish(steps(rule, &ways, true)?, cookie)
}

/// The outputs of a filter.
pub(super) struct Ways<'a> {
    /// Only a card runs the filter, the kernel does not.
    pub(super) card_only: bool,
    /// The tunnel of a rule with [`Op::Encap`].
    pub(super) tunnel: Option<IntoTunnel<'a>>,
    /// Interface index of a port's device.
    pub(super) device: &'a dyn Fn(PortNo) -> Option<u32>,
}

/// The actions of a rule's steps. `ends`: no other action follows.
///
/// # Errors
/// The reason why tc cannot do the steps.
pub(super) fn steps(rule: &Rule, ways: &Ways<'_>, ends: bool) -> Result<Vec<TcAction>, Why> {
    let Ways {
        card_only,
        tunnel,
        device,
    } = ways;
    let mut all = Vec::new();
    let mut edits = Edits::new(rule);
    let mut ops = rule.ops.iter().peekable();
    let mut by_tunnel = None;
    if let Some(more) = &rule.more {
        check_rare(more, &rule.ops)?;
    }
    if rule.tunnel && !rule.ops.is_empty() {
        all.push(attrs::tunnel_key_release());
    }
    while let Some(op) = ops.next() {
        match op {
            Op::Output(no) => {
                edits.flush(&mut all);
                let to = by_tunnel.take().or_else(|| device(*no)).ok_or(Why::OutPort)?;
                all.push(mirred(to, ends && ops.peek().is_none()));
            }
            Op::PopVlan => {
                edits.flush(&mut all);
                match ops.peek() {
                    Some(Op::PushVlan(tci)) => {
                        all.push(attrs::vlan_modify(tci & !VLAN_PRESENT));
                        ops.next();
                    }
                    _ => all.push(attrs::vlan_pop()),
                }
            }
            Op::PushVlan(tci) => {
                edits.flush(&mut all);
                all.push(attrs::vlan_push(tci & !VLAN_PRESENT));
            }
            Op::Ipv4Src(new) if !*card_only && edits.needs_nat() => {
                edits.flush(&mut all);
                all.push(edits.nat(true, *new)?);
            }
            Op::Ipv4Dst(new) if !*card_only && edits.needs_nat() => {
                edits.flush(&mut all);
                all.push(edits.nat(false, *new)?);
            }
            Op::Ipv6Word { at, word } if *card_only || edits.proto == Some(ICMPV6) => {
                edits.ipv6_word(*at, word);
            }
            Op::Ct(_) | Op::CtClear => return Err(Why::Action("ct (through tc)")),
            Op::Recirc(_) => return Err(Why::Action("recirc (through tc)")),
            Op::Encap => {
                edits.flush(&mut all);
                let into = tunnel.as_ref().ok_or(Why::OutPort)?;
                all.push(into.encap.action());
                by_tunnel = Some(into.ifindex);
            }
            Op::Decap(_) => return Err(super::ENDS_HERE),
            other => edits.add(other)?,
        }
    }
    edits.flush(&mut all);
    Ok(all)
}

/// Whether no packet passes an action. The host's stack would get a packet that passes the last one.
fn is_final(action: &TcAction) -> bool {
    let mirred = |o: &TcActionOption| match o {
        TcActionOption::Mirror(TcActionMirrorOption::Parms(to)) => to.generic.action == TcActionType::Stolen,
        _ => false,
    };
    action.attributes.iter().any(|a| match a {
        TcActionAttribute::Kind(kind) => kind == "gact",
        TcActionAttribute::Options(options) => options.iter().any(mirred),
        _ => false,
    })
}

/// Numbers the actions of a filter, and adds the cookie. A packet that none of them takes is dropped.
///
/// # Errors
/// There are too many.
pub(super) fn finish(mut all: Vec<TcAction>, cookie: Cookie) -> Result<Vec<TcAction>, Why> {
    if !all.last().is_some_and(is_final) {
        all.push(attrs::gact(attrs::TC_ACT_SHOT));
    }
    if all.len() > MAX_ACTIONS {
        return Err(Why::TooManyActions);
    }
    number(&mut all, cookie);
    Ok(all)
}

/// Checks that packets with rare headers may be rewritten so. Behind a second tag, `pedit` does not find the
/// IP header, and the checksum of a datagram covers all of its fragments.
fn check_rare(more: &More, ops: &[Op]) -> Result<(), Why> {
    let l2 = |op: &Op| matches!(op, Op::Output(_) | Op::EthDst(_) | Op::EthSrc(_));
    let in_header =
        |op: &Op| l2(op) || matches!(op, Op::Tos { .. } | Op::Ttl(_) | Op::PopVlan | Op::PushVlan(_));
    if more.has_two_tags() && !ops.iter().all(l2) {
        return Err(Why::Vlan);
    }
    if more.key.frag != 0 && !ops.iter().all(in_header) {
        return Err(Why::Fragments);
    }
    Ok(())
}

/// Whether a card runs other actions for a rule than the kernel.
pub(super) fn differ_in_card(rule: &Rule) -> bool {
    let is_address = |op: &Op| matches!(op, Op::Ipv4Src(_) | Op::Ipv4Dst(_) | Op::Ipv6Word { .. });
    rule.ops.iter().any(is_address)
}

/// The actions that pass outer packets of a tunnel to the host's stack.
pub(super) fn to_host(origin: u32, cookie: Cookie) -> Vec<TcAction> {
    let mut all = vec![attrs::skb_priority(origin), attrs::gact(attrs::TC_ACT_OK)];
    number(&mut all, cookie);
    all
}

/// The actions that hand a packet to a miss device.
pub(super) fn to_miss_device(ifindex: u32, cookie: Cookie) -> Vec<TcAction> {
    let mut all = vec![redirect(ifindex)];
    number(&mut all, cookie);
    all
}

/// Sends the packet by a device, as the last action.
pub(super) fn redirect(ifindex: u32) -> TcAction {
    mirred(ifindex, true)
}

/// Numbers the actions from 1 on, and adds the cookie to the first one.
fn number(all: &mut [TcAction], cookie: Cookie) {
    for (n, action) in (1..).zip(all.iter_mut()) {
        action.tab = n;
    }
    if let Some(first) = all.first_mut() {
        first.attributes.push(TcActionAttribute::Cookie(cookie.bytes()));
    }
}

fn mirred(ifindex: u32, is_last: bool) -> TcAction {
    let mut generic = TcActionGeneric::default();
    generic.action = match is_last {
        true => TcActionType::Stolen,
        false => TcActionType::Pipe,
    };
    let mut mirror = TcMirror::default();
    mirror.generic = generic;
    mirror.eaction = match is_last {
        true => TcMirrorActionType::EgressRedir,
        false => TcMirrorActionType::EgressMirror,
    };
    mirror.ifindex = ifindex;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind("mirred".to_owned()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror))]),
    ];
    action
}

/// The action `nat`, which rewrites one address.
fn nat(is_src: bool, old: [u8; 4], new: [u8; 4]) -> TcAction {
    let mut generic = TcActionGeneric::default();
    generic.action = TcActionType::Pipe;
    let mut nat = TcNat::default();
    nat.generic = generic;
    (nat.old_addr, nat.new_addr) = (old.into(), new.into());
    nat.mask = Ipv4Addr::BROADCAST;
    // tc's name: with `egress`, `nat` rewrites the source.
    nat.flags = if is_src {
        TcNatFlags::Egress
    } else {
        TcNatFlags::empty()
    };
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind("nat".to_owned()),
        TcActionAttribute::Options(vec![TcActionOption::Nat(TcActionNatOption::Parms(nat))]),
    ];
    action
}

/// Rewrites that become one `pedit` before the next step of another kind.
struct Edits {
    words: Vec<Word>,
    /// Checksums that these rewrites change (`CSUM_*`).
    sums: u32,
    is_v4: bool,
    proto: Option<u8>,
    /// IPv4 addresses of the packet at this step, if they are known.
    src: Option<[u8; 4]>,
    dst: Option<[u8; 4]>,
}

impl Edits {
    fn new(rule: &Rule) -> Self {
        let known = |key: &[u8; 16], mask: &[u8; 16]| {
            let first = key.first_chunk::<4>()?;
            mask.starts_with(&[0xff; 4]).then_some(*first)
        };
        Self {
            words: Vec::new(),
            sums: 0,
            is_v4: rule.key.dl_type == IPV4,
            proto: (rule.mask.nw_proto == u8::MAX).then_some(rule.key.nw_proto),
            src: known(&rule.key.src, &rule.mask.src),
            dst: known(&rule.key.dst, &rule.mask.dst),
        }
    }
    fn flush(&mut self, all: &mut Vec<TcAction>) {
        let words = std::mem::take(&mut self.words);
        if words.is_empty() {
            return;
        }
        all.push(attrs::pedit(&words));
        match std::mem::take(&mut self.sums) {
            0 => {}
            sums => all.push(attrs::csum(sums)),
        }
    }
    /// Rewrites bytes from an offset on.
    fn write(&mut self, base: Base, at: u32, bytes: &[u8], masks: &[u8]) {
        let mut at = at;
        let mut both = bytes.iter().zip(masks).peekable();
        while both.peek().is_some() {
            let mut word = Word {
                base,
                at: at & !3,
                value: [0; 4],
                mask: [0; 4],
            };
            let from = (at & 3) as usize;
            for (i, (byte, mask)) in (from..4).zip(both.by_ref()) {
                (word.value[i], word.mask[i]) = (*byte, *mask);
            }
            at = (at & !3) + 4;
            self.words.push(word);
        }
    }
    /// Checksums that `csum` computes after a rewrite in the IPv6 header, by the rule's protocol.
    fn sums_of_ipv6(&self) -> u32 {
        match self.proto {
            Some(TCP) => attrs::CSUM_TCP,
            Some(UDP) => attrs::CSUM_UDP,
            Some(ICMPV6 | ICMP) => attrs::CSUM_ICMP,
            Some(_) => 0,
            None => attrs::CSUM_TCP | attrs::CSUM_UDP | attrs::CSUM_ICMP,
        }
    }
    fn add(&mut self, op: &Op) -> Result<(), Why> {
        if self.words.len() >= MAX_WORDS {
            return Err(Why::TooManyActions);
        }
        match op {
            Op::EthDst(mac) => self.write(Base::Eth, 0, mac, &[0xff; 6]),
            Op::EthSrc(mac) => self.write(Base::Eth, 6, mac, &[0xff; 6]),
            Op::Tos { value, mask } if self.is_v4 => {
                self.write(Base::Ipv4, 1, &[*value], &[*mask]);
                self.sums |= attrs::CSUM_IPV4;
            }
            Op::Tos { value, mask } => {
                let halves = |v: u8| [v >> 4, v << 4];
                self.write(Base::Ipv6, 0, &halves(*value), &halves(*mask));
                self.sums |= self.sums_of_ipv6();
            }
            Op::Ttl(ttl) if self.is_v4 => {
                self.write(Base::Ipv4, 8, &[*ttl], &[0xff]);
                self.sums |= attrs::CSUM_IPV4;
            }
            Op::Ttl(ttl) => {
                self.write(Base::Ipv6, 7, &[*ttl], &[0xff]);
                self.sums |= self.sums_of_ipv6();
            }
            Op::L4Src(port) => self.port(0, *port)?,
            Op::L4Dst(port) => self.port(2, *port)?,
            Op::Ipv4Src(address) => self.address(12, address),
            Op::Ipv4Dst(address) => self.address(16, address),
            Op::Ipv6Word { .. } => {
                return Err(Why::Action(
                    "set(ipv6 address of another protocol than ICMPv6, through tc)",
                ));
            }
            _ => return Err(Why::Action("unknown to the tc back end")),
        }
        Ok(())
    }
    /// Whether a rewrite of an address may change a checksum that `csum` leaves as it is.
    fn needs_nat(&self) -> bool {
        !self
            .proto
            .is_some_and(|proto| WITHOUT_PSEUDO_HEADER.contains(&proto))
    }
    /// Rewrites the source of IPv4, or its destination.
    fn nat(&mut self, is_src: bool, new: [u8; 4]) -> Result<TcAction, Why> {
        let known = if is_src { &mut self.src } else { &mut self.dst };
        let old = known.replace(new);
        match (self.proto, old) {
            (Some(TCP | UDP), Some(old)) => Ok(nat(is_src, old, new)),
            _ => Err(Why::Action(
                "set(ipv4 address of TCP or UDP that is not matched, or of a protocol that is not matched; through tc)",
            )),
        }
    }
    /// Rewrites an address in a card.
    fn address(&mut self, at: u32, address: &[u8; 4]) {
        self.write(Base::Ipv4, at, address, &[0xff; 4]);
        let l4 = match self.proto {
            Some(TCP) => attrs::CSUM_TCP,
            Some(UDP) => attrs::CSUM_UDP,
            Some(_) => 0,
            None => attrs::CSUM_TCP | attrs::CSUM_UDP,
        };
        self.sums |= attrs::CSUM_IPV4 | l4;
    }
    /// Rewrites a word of the IPv6 addresses.
    fn ipv6_word(&mut self, at: u8, word: &[u8; 4]) {
        self.write(Base::Ipv6, 8 + 4 * u32::from(at), word, &[0xff; 4]);
        self.sums |= self.sums_of_ipv6();
    }
    fn port(&mut self, at: u32, port: u16) -> Result<(), Why> {
        let (base, sum) = match self.proto {
            Some(TCP) => (Base::Tcp, attrs::CSUM_TCP),
            Some(UDP) => (Base::Udp, attrs::CSUM_UDP),
            _ => return Err(Why::Partly),
        };
        self.write(base, at, &port.to_be_bytes(), &[0xff; 2]);
        self.sums |= sum;
        Ok(())
    }
}
