//! Reads packets' bytes into keys, and into the offsets that actions need.
//!
//! [`CompactKey::read`] reads ordinary packets; [`parse`] reads any packet into a full key. Ordinary packets
//! with equal compact keys have equal [`Meta`], which is made of the key ([`ordinary_meta`]).

use crate::exec::Meta;
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, NO_OFFSET, Oddity, extract};
use heddle_flow::key::frag;
use heddle_flow_cache::{CompactKey, MAX_LISTED, NOWHERE};
use heddle_packet::{HEAD_SPACE, Packet};
use heddle_wire::ip::{Ipv6, Ipv6Ext, proto};
use heddle_wire::split;

/// The length of an Ethernet header. Shorter frames are dropped.
pub(crate) const MIN_FRAME: usize = 14;

/// The settings to read packets with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAs {
    /// The type of their first header, see [`heddle_flow::packet_type`].
    pub(crate) packet_type: u32,
    pub(crate) vlan_limit: u8,
}

/// The [`Meta`] of a packet with ordinary headers.
#[inline]
pub(super) fn ordinary_meta(key: &CompactKey) -> Meta {
    Meta {
        l2_5: NO_OFFSET,
        l3: key.l3(),
        l4: key.l4(),
        // Packets of protocols that need the true end have a full key.
        l4_end: usize::MAX,
        proto: key.proto(),
        ..Meta::default()
    }
}

/// The origin of a packet that was not recirculated.
#[inline(always)]
pub(crate) fn fresh_origin(p: &Packet) -> u32 {
    if p.in_port <= MAX_LISTED {
        p.in_port
    } else {
        NOWHERE
    }
}

/// Writes the full key of `p`, with the packet's `in_port`, and the offsets of its layers. If headers
/// continue in the foreign tail, the packet first gets a longer head, or is made private.
pub(crate) fn parse(p: &mut Packet, how: ReadAs, key: &mut FlowKey, meta: &mut Meta) {
    let hint = Hint {
        total_len: p.len(),
        packet_type: how.packet_type,
        vlan_limit: how.vlan_limit,
    };
    let mut layers = extract(p.head(), &hint, key);
    if layers.oddity == Some(Oddity::BeyondView) && p.pull_tail(HEAD_SPACE) {
        layers = extract(p.head(), &hint, key);
    }
    if layers.oddity == Some(Oddity::BeyondView) && !p.segs().is_empty() {
        p.make_private();
        layers = extract(p.head(), &hint, key);
    }
    key.in_port = p.in_port;
    *meta = Meta {
        l2_5: layers.l2_5,
        l3: layers.l3,
        l4: layers.l4,
        l4_end: p.len().saturating_sub(layers.l2_pad.into()),
        proto: key.nw_proto,
        later_fragment: key.nw_frag & frag::LATER != 0,
        packet_type: how.packet_type,
        ..Meta::default()
    };
    if key.dl_type == 0x86dd && layers.l3 != NO_OFFSET {
        meta.routing_header = has_routing_header(p.head(), layers.l3.into(), layers.l4.into());
    }
}

/// Whether a routing header with segments left is between the IPv6 header and L4. Then the pseudo header has
/// the final destination, not the one of the IPv6 header (RFC 8200, 8.1).
fn has_routing_header(head: &[u8], l3: usize, l4: usize) -> bool {
    let Some((ip, _)) = head.get(l3..).and_then(split::<Ipv6>) else {
        return false;
    };
    let (mut next, mut at) = (ip.next, l3 + 40);
    while at < l4.min(head.len()) {
        let Some((ext, _)) = head.get(at..).and_then(split::<Ipv6Ext>) else {
            return false;
        };
        if next == proto::ROUTING && ext.data[1] != 0 {
            return true;
        }
        at += match next {
            proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS => (usize::from(ext.len) + 1) * 8,
            proto::FRAGMENT => 8,
            proto::AH => (usize::from(ext.len) + 2) * 4,
            _ => return false,
        };
        next = ext.next;
    }
    false
}
