//! Reading a key: attributes first, then their meaning together.
//!
//! An attribute that has no place in the key is read and then ignored, such as `tcp(...)` where the protocol
//! is not TCP. The datapath treats netlink attributes in the same way. A missing attribute leaves its members
//! zero.

use super::{PORT_NONE, scan};
use crate::extract::DL_TYPE_NONE;
use crate::field::is_nd;
use crate::key::{FlowKey, FlowMask, Vlan, frag};
use crate::text::PortNumbers;
use heddle_wire::eth::{ethertype, is_mpls, is_vlan};
use heddle_wire::ip::proto;

const DELIMITERS: &[char] = &[',', ' ', '\t', '\r', '\n'];

/// Splits `(...)` off the start of `s`: the text between the parentheses, and the rest.
pub(super) fn parenthesis(s: &str) -> Option<(&str, &str)> {
    let inner = s.strip_prefix('(')?;
    let mut level = 1usize;
    for (i, c) in inner.char_indices() {
        match c {
            '(' => level += 1,
            ')' => level -= 1,
            _ => {}
        }
        if level == 0 {
            return Some((inner.get(..i)?, inner.get(i + 1..)?));
        }
    }
    None
}

/// The attributes of one level; those of `encap(...)` are the next level's.
#[derive(Default)]
struct Level<'a> {
    attrs: Vec<(&'a str, scan::Attr)>,
    encap: Option<Box<Level<'a>>>,
}

impl Level<'_> {
    fn find(&self, name: &str) -> Option<&scan::Attr> {
        // If an attribute is given twice, the last one counts.
        self.attrs.iter().rfind(|(n, _)| *n == name).map(|(_, a)| a)
    }
}

fn level<'a>(s: &'a str, ports: Option<PortNumbers<'_>>, depth: usize) -> Result<Level<'a>, String> {
    let mut out = Level::default();
    let mut rest = s.trim_start_matches(DELIMITERS);
    // A flow's id may precede it.
    if let Some(after) = rest.strip_prefix("ufid:") {
        rest = after
            .split_once(DELIMITERS)
            .map_or("", |(_, r)| r)
            .trim_start_matches(DELIMITERS);
    }
    while !rest.is_empty() {
        let error = || format!("syntax error at {rest}");
        let (name, after) = rest.split_at(rest.find('(').ok_or_else(error)?);
        let (body, next) = parenthesis(after).ok_or_else(error)?;
        if name == "encap" {
            // Deeper than the tags of any key: no field in there could count.
            if depth > 8 {
                return Err(error());
            }
            out.encap = Some(Box::new(level(body, ports, depth + 1)?));
        } else {
            out.attrs
                .push((name, scan::attr(name, body, ports).ok_or_else(error)?));
        }
        rest = next.trim_start_matches(DELIMITERS);
    }
    Ok(out)
}

/// A key being put together, with its mask.
#[derive(Default)]
struct Both {
    key: FlowKey,
    mask: FlowMask,
}

impl Both {
    /// Adds the members of an attribute, if it is there.
    fn take(&mut self, level: &Level<'_>, name: &str) -> bool {
        let Some(a) = level.find(name) else {
            return false;
        };
        for (w, x) in self.key.words_mut().iter_mut().zip(a.key.words()) {
            *w |= x;
        }
        self.mask.add(&a.mask);
        true
    }
}

/// Reads a packet's key, such as `in_port(1),eth(src=...,dst=...),eth_type(0x0806),arp(...)`. Masks in the
/// text are read and ignored. `ports` resolves names of datapath ports.
///
/// # Errors
/// A sentence for a person: the place of a syntax error, or the impossible value.
pub fn parse_key(s: &str, ports: Option<PortNumbers<'_>>) -> Result<FlowKey, String> {
    parse_flow(s, ports).map(|(k, _)| k)
}

/// Reads a key with its mask, as `dpctl/dump-flows` prints them. Fields that the text does not name do not
/// count, but the recirculation id always does.
///
/// # Errors
/// The same as those of [`parse_key`].
pub fn parse_flow(s: &str, ports: Option<PortNumbers<'_>>) -> Result<(FlowKey, FlowMask), String> {
    let top = level(s, ports, 0)?;
    let mut b = Both::default();
    for name in [
        "recirc_id",
        "dp_hash",
        "skb_priority",
        "skb_mark",
        "ct_state",
        "ct_zone",
        "ct_mark",
        "ct_label",
        "ct_tuple4",
        "ct_tuple6",
        "tunnel",
    ] {
        b.take(&top, name);
    }
    b.mask.0.recirc_id = u32::MAX;
    if !b.take(&top, "in_port") {
        b.key.in_port = PORT_NONE;
    }
    b.take(&top, "packet_type");
    if b.take(&top, "eth") {
        b.key.packet_type = 0;
    } else if let Some(t) = top.find("eth_type").filter(|_| top.find("packet_type").is_none()) {
        // A packet without Ethernet header.
        b.key.packet_type = 1 << 16 | u32::from(t.key.dl_type);
    }
    b.mask.0.packet_type = u32::MAX;
    let mut at = &top;
    dl_type(&mut b, at)?;
    #[expect(clippy::indexing_slicing, reason = "the mask's array is as long")]
    for i in 0..b.key.vlans.len() {
        if !is_vlan(b.key.dl_type) {
            break;
        }
        let tag = at.find("vlan");
        let tci = tag.map_or(0, |a| a.key.vlans[0].tci);
        b.key.vlans[i] = Vlan {
            tpid: b.key.dl_type,
            tci,
        };
        b.mask.0.vlans[i] = Vlan {
            tpid: u16::MAX,
            tci: tag.map_or(0, |a| a.mask.0.vlans[0].tci),
        };
        b.key.dl_type = 0;
        let (Some(_), Some(next)) = (tag, &at.encap) else {
            return Ok((b.key, b.mask));
        };
        if tci == 0 {
            // The tag was cut off: its EtherType is the frame's.
            b.key.dl_type = b.key.vlans[i].tpid;
            b.key.vlans[i].tpid = 0;
            return Ok((b.key, b.mask));
        }
        if tci & Vlan::CFI == 0 {
            return Err(format!(
                "OVS_KEY_ATTR_VLAN {tci:#06x} is nonzero but CFI bit is not set"
            ));
        }
        at = next;
        dl_type(&mut b, at)?;
    }
    l2_5(&mut b, at)?;
    Ok((b.key, b.mask))
}

fn dl_type(b: &mut Both, at: &Level<'_>) -> Result<(), String> {
    b.mask.0.dl_type = u16::MAX;
    b.key.dl_type = match at.find("eth_type") {
        // Dumps write "has no EtherType" as a value of 0 with all of the mask.
        Some(a) if a.key.dl_type == 0 => DL_TYPE_NONE,
        Some(a) if a.key.dl_type < ethertype::MIN => {
            return Err(format!("invalid Ethertype {} in flow key", a.key.dl_type));
        }
        Some(a) => {
            b.mask.0.dl_type = a.mask.0.dl_type;
            a.key.dl_type
        }
        // The packet type has the EtherType.
        None if b.key.packet_type != 0 => match b.key.packet_type & 0xffff {
            #[allow(clippy::cast_possible_truncation)] // just masked
            id if id >= u32::from(ethertype::MIN) => id as u16,
            _ => DL_TYPE_NONE,
        },
        None if at.find("ipv4").is_some() => ethertype::IP,
        None if at.find("ipv6").is_some() => ethertype::IPV6,
        None if at.find("mpls").is_some() => ethertype::MPLS,
        None => DL_TYPE_NONE,
    };
    Ok(())
}

fn l2_5(b: &mut Both, at: &Level<'_>) -> Result<(), String> {
    match b.key.dl_type {
        t if is_mpls(t) => {
            b.take(at, "mpls");
            let last = b.key.mpls_lse.iter().rposition(|l| *l != 0).unwrap_or(0);
            if b.key.mpls_lse.iter().take(last).any(|l| l & 0x100 != 0) {
                return Err("MPLS BOS set in non-innermost label".into());
            }
            return Ok(());
        }
        ethertype::IP => {
            b.take(at, "ipv4");
        }
        ethertype::IPV6 => {
            b.take(at, "ipv6");
        }
        ethertype::ARP | ethertype::RARP => {
            b.take(at, "arp");
            return Ok(());
        }
        ethertype::NSH => {
            b.take(at, "nsh");
            return Ok(());
        }
        _ => return Ok(()),
    }
    if b.key.nw_frag & frag::LATER != 0 {
        return Ok(());
    }
    match (b.key.dl_type, b.key.nw_proto) {
        (_, proto::TCP) => {
            b.take(at, "tcp");
            b.take(at, "tcp_flags");
        }
        (_, proto::UDP) => {
            b.take(at, "udp");
        }
        (_, proto::SCTP) => {
            b.take(at, "sctp");
        }
        (ethertype::IP, proto::ICMP) => {
            b.take(at, "icmp");
        }
        (ethertype::IPV6, proto::ICMPV6) if b.take(at, "icmpv6") && is_nd(&b.key) => {
            b.take(at, "nd");
            b.take(at, "nd_ext");
        }
        _ => {}
    }
    Ok(())
}
