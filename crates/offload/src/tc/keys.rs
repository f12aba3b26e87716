//! The match of a rule as keys of `flower`.
//!
//! **Invariant.** A filter matches no packet that the rule's flow does not match. `flower` also parses
//! packets that a rule leaves to workers ([`crate::rule`]), so a filter has keys that the rule does not name:
//!
//! | packets that a rule leaves to workers | why the filter does not match them |
//! | --- | --- |
//! | without tag, or of another EtherType | the filter's protocol is the tag's type, IPv4 or IPv6: the kernel compares it with the outermost type |
//! | with another number of tags | `num_of_vlans` (Linux 5.19) |
//! | fragments, and packets that are none | `ip_flags` |
//! | in GRE or IP in IP | `flower` stops before an inner header (Linux 5.16) |
//! | TCP with SYN, FIN or RST, if the flow matches on flags | `tcp_flags 0/7` |
//! | neighbour discovery, IGMP, if the flow matches on their fields | the rule is refused unless it names another protocol or type |
//! | with IPv4 options or IPv6 extension headers | the filter does match them: so does the flow, and `flower` finds protocol and ports after them |
//! | ARP of other operations than request and reply | `flower` reads zeros, so a rule that compares zeros alone is refused |
//! | without a whole L4 header | the filter may match them: `flower` reads the ports that are there, and the flow's key has zeros |
//!
//! A rule that does not match on tags gets a filter for packets without any.

use super::attrs;
use crate::more::{More, MoreHeaders};
use crate::rule::VLAN_PRESENT;
use crate::{Headers, Rule, Why};
use heddle_flow::key::frag;
use netlink_packet_route::tc::TcFilterFlowerOption::{self as Key, *};
use std::net::{Ipv4Addr, Ipv6Addr};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// `TCA_FLOWER_KEY_FLAGS_IS_FRAGMENT`.
const IS_FRAGMENT: u32 = 1;
/// `TCA_FLOWER_KEY_FLAGS_FRAG_IS_FIRST`.
const IS_FIRST_FRAGMENT: u32 = 2;
/// FIN, SYN, RST.
const TCP_UP: u16 = crate::more::TCP_UP;
const VID: u16 = 0x0fff;
const PRIORITY: u16 = 0xe000;
/// Types of neighbour discovery.
const ND: std::ops::RangeInclusive<u16> = 133..=137;

/// Keys of a filter, and the filter's protocol.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Outermost EtherType of the packet: the tag's, if there is one.
    pub(super) protocol: u16,
    pub(super) keys: Vec<Key>,
}

impl Keys {
    /// The keys of a rule without connections and tunnels, for packets that a device receives.
    ///
    /// # Errors
    /// The reason why `flower` has no such filter.
    pub(super) fn of(rule: &Rule) -> Result<Keys, Why> {
        let (k, m) = (&rule.key, &rule.mask);
        if m.dl_type != u16::MAX {
            return Err(Why::Protocol);
        }
        if m.label != 0 {
            return Err(Why::Match);
        }
        let more = rule.more.as_deref();
        let mut keys = Vec::new();
        let protocol = tag(k, m, more, &mut keys)?;
        push(
            &mut keys,
            EthDst(k.dl_dst),
            EthDstMask(m.dl_dst),
            m.dl_dst != [0; 6],
        );
        push(
            &mut keys,
            EthSrc(k.dl_src),
            EthSrcMask(m.dl_src),
            m.dl_src != [0; 6],
        );
        if k.dl_type == ARP {
            arp(rule, &mut keys)?;
            return Ok(Keys { protocol, keys });
        }
        fragment(more.map_or(0, |more| more.key.frag), m, &mut keys)?;
        match k.dl_type {
            IPV4 => {
                let address = |all: &[u8; 16]| Ipv4Addr::new(all[0], all[1], all[2], all[3]);
                let is = |all: &[u8; 16]| all[..4] != [0; 4];
                let (src, dst) = (address(&m.src), address(&m.dst));
                push(&mut keys, Ipv4Src(address(&k.src)), Ipv4SrcMask(src), is(&m.src));
                push(&mut keys, Ipv4Dst(address(&k.dst)), Ipv4DstMask(dst), is(&m.dst));
            }
            IPV6 => {
                let address = |all: &[u8; 16]| Ipv6Addr::from(*all);
                let (src, dst) = (address(&m.src), address(&m.dst));
                push(
                    &mut keys,
                    Ipv6Src(address(&k.src)),
                    Ipv6SrcMask(src),
                    m.src != [0; 16],
                );
                push(
                    &mut keys,
                    Ipv6Dst(address(&k.dst)),
                    Ipv6DstMask(dst),
                    m.dst != [0; 16],
                );
            }
            _ => return Err(Why::Protocol),
        }
        push(&mut keys, IpTos(k.nw_tos), IpTosMask(m.nw_tos), m.nw_tos != 0);
        push(&mut keys, IpTtl(k.nw_ttl), IpTtlMask(m.nw_ttl), m.nw_ttl != 0);
        l4(rule, &mut keys)?;
        Ok(Keys { protocol, keys })
    }
}

/// Adds the keys that tell fragments from other packets.
fn fragment(bits: u8, m: &Headers, keys: &mut Vec<Key>) -> Result<(), Why> {
    if bits == 0 {
        keys.extend([KeyFlags(0), KeyFlagsMask(IS_FRAGMENT)]);
        return Ok(());
    }
    // `flower` reads no L4 header of a fragment, also not of the first one.
    if m.tp_src | m.tp_dst != 0 {
        return Err(Why::Fragments);
    }
    let first = if bits & frag::LATER == 0 {
        IS_FIRST_FRAGMENT
    } else {
        0
    };
    let mask = KeyFlagsMask(IS_FRAGMENT | IS_FIRST_FRAGMENT);
    keys.extend([KeyFlags(IS_FRAGMENT | first), mask]);
    Ok(())
}

/// Adds the keys of ARP.
fn arp(rule: &Rule, keys: &mut Vec<Key>) -> Result<(), Why> {
    let (k, m) = (&rule.key, &rule.mask);
    let more = rule.more.as_deref().ok_or(Why::Protocol)?;
    if m.nw_tos | m.nw_ttl != 0 || m.tp_src | m.tp_dst != 0 || !rule.all_flags || rule.leaves_out {
        return Err(Why::Match);
    }
    // `flower` reads zeros in packets of another operation than request and reply.
    let fields = |h: &Headers, more: &MoreHeaders| (h.nw_proto, h.src, h.dst, more.arp_sha, more.arp_tha);
    let zeros = fields(&Headers::default(), &MoreHeaders::default());
    if fields(m, &more.mask) != zeros && fields(k, &more.key) == zeros {
        return Err(Why::Match);
    }
    let address = |all: &[u8; 16]| [all[0], all[1], all[2], all[3]];
    let arp = attrs::ArpMatch {
        op: (k.nw_proto, m.nw_proto),
        spa: (address(&k.src), address(&m.src)),
        tpa: (address(&k.dst), address(&m.dst)),
        sha: (more.key.arp_sha, more.mask.arp_sha),
        tha: (more.key.arp_tha, more.mask.arp_tha),
    };
    keys.extend(attrs::arp_keys(&arp).into_iter().map(Other));
    Ok(())
}

fn push(keys: &mut Vec<Key>, value: Key, mask: Key, counts: bool) {
    if counts {
        keys.extend([value, mask]);
    }
}

/// Adds the keys of tags and the EtherType; returns the filter's protocol.
fn tag(k: &Headers, m: &Headers, more: Option<&More>, keys: &mut Vec<Key>) -> Result<u16, Why> {
    if m.vlan & VLAN_PRESENT == 0 || k.vlan & VLAN_PRESENT == 0 {
        // The rule has bits of a tag, and its packets have no tag: only zero can match.
        if k.vlan != 0 {
            return Err(Why::Vlan);
        }
        keys.push(EthType(k.dl_type));
        return Ok(k.dl_type);
    }
    let tpid = More::tpid(more);
    let second = more.filter(|more| more.has_two_tags());
    keys.push(EthType(tpid));
    keys.push(Other(attrs::num_of_vlans(if second.is_some() { 2 } else { 1 })));
    let (vid, priority) = tci(k.vlan, m.vlan)?;
    keys.extend(vid.map(VlanId));
    keys.extend(priority.map(VlanPrio));
    let Some(more) = second else {
        keys.push(VlanEthType(k.dl_type));
        return Ok(tpid);
    };
    keys.push(VlanEthType(more.key.inner.0));
    let (vid, priority) = tci(more.key.inner.1, more.mask.inner.1)?;
    keys.extend(
        attrs::inner_vlan_keys(vid, priority, k.dl_type)
            .into_iter()
            .map(Other),
    );
    Ok(tpid)
}

/// VLAN id and priority, where the rule matches on them.
fn tci(value: u16, mask: u16) -> Result<(Option<u16>, Option<u8>), Why> {
    let vid = match mask & VID {
        0 => None,
        VID => Some(value & VID),
        _ => return Err(Why::Partly),
    };
    let priority = match mask & PRIORITY {
        0 => None,
        PRIORITY => Some(u8::try_from((value & PRIORITY) >> 13).unwrap_or(0)),
        _ => return Err(Why::Partly),
    };
    Ok((vid, priority))
}

/// Adds the keys of the IP protocol and of the L4 header.
fn l4(rule: &Rule, keys: &mut Vec<Key>) -> Result<(), Why> {
    let (k, m) = (&rule.key, &rule.mask);
    let ports = m.tp_src != 0 || m.tp_dst != 0;
    let is_v6 = k.dl_type == IPV6;
    if m.nw_proto != u8::MAX {
        // Ports, TCP flags and fields of neighbour discovery have no meaning without a protocol.
        let plain = m.nw_proto == 0 && !ports && !rule.leaves_out && rule.all_flags;
        return if plain { Ok(()) } else { Err(Why::Match) };
    }
    keys.push(IpProto(k.nw_proto));
    let small = |v: u16| u8::try_from(v).map_err(|_| Why::Match);
    match (k.nw_proto, is_v6) {
        (TCP, _) => {
            push(keys, TcpSrc(k.tp_src), TcpSrcMask(m.tp_src), m.tp_src != 0);
            push(keys, TcpDst(k.tp_dst), TcpDstMask(m.tp_dst), m.tp_dst != 0);
            let more = rule.more.as_deref();
            // A later fragment has no flags, and `flower` sees none in any.
            if more.is_some_and(|more| more.key.frag != 0) && !rule.all_flags {
                return Err(Why::Fragments);
            }
            match more.filter(|more| more.mask.tcp_flags != 0) {
                Some(more) => keys.extend([TcpFlags(more.key.tcp_flags), TcpFlagsMask(more.mask.tcp_flags)]),
                None => push(keys, TcpFlags(0), TcpFlagsMask(TCP_UP), !rule.all_flags),
            }
        }
        (UDP, _) => {
            push(keys, UdpSrc(k.tp_src), UdpSrcMask(m.tp_src), m.tp_src != 0);
            push(keys, UdpDst(k.tp_dst), UdpDstMask(m.tp_dst), m.tp_dst != 0);
        }
        // The flow key has 16 bits for type and code, and the fields have 8.
        (ICMP, false) => {
            let (src, dst) = (small(m.tp_src & 0xff)?, small(m.tp_dst & 0xff)?);
            push(keys, Icmpv4Type(small(k.tp_src)?), Icmpv4TypeMask(src), src != 0);
            push(keys, Icmpv4Code(small(k.tp_dst)?), Icmpv4CodeMask(dst), dst != 0);
        }
        (ICMPV6, true) => {
            let (src, dst) = (small(m.tp_src & 0xff)?, small(m.tp_dst & 0xff)?);
            if rule.leaves_out && (src != u8::MAX || ND.contains(&k.tp_src)) {
                return Err(Why::Match);
            }
            push(keys, Icmpv6Type(small(k.tp_src)?), Icmpv6TypeMask(src), src != 0);
            push(keys, Icmpv6Code(small(k.tp_dst)?), Icmpv6CodeMask(dst), dst != 0);
        }
        // The key of an IGMP packet has its type and group.
        (IGMP, _) if rule.leaves_out => return Err(Why::Match),
        _ if ports => return Err(Why::Match),
        _ => {}
    }
    Ok(())
}
