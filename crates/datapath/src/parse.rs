//! From a packet's bytes to its key and to the offsets that actions need.

use crate::exec::Meta;
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, NO_OFFSET, Oddity, extract};
use heddle_flow::key::frag;
use heddle_packet::Packet;
use heddle_wire::ip::{Ipv6, Ipv6Ext, proto};
use heddle_wire::split;

/// Shortest frame that is looked at: an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// Parses `p` into `key` (all of it is written, `in_port` from the packet) and says where its layers are. A packet whose
/// headers go on in its foreign tail is made private for that.
#[inline]
pub(crate) fn parse(p: &mut Packet, vlan_limit: u8, key: &mut FlowKey) -> Meta {
    let hint = Hint {
        total_len: p.len(),
        packet_type: 0,
        vlan_limit,
    };
    let mut layers = extract(p.head(), &hint, key);
    if layers.oddity == Some(Oddity::BeyondView) && !p.segs().is_empty() {
        p.make_private();
        layers = extract(p.head(), &hint, key);
    }
    key.in_port = p.in_port;
    let mut meta = Meta {
        l2_5: layers.l2_5,
        l3: layers.l3,
        l4: layers.l4,
        l4_end: p.len().saturating_sub(layers.l2_pad.into()),
        proto: key.nw_proto,
        later_fragment: key.nw_frag & frag::LATER != 0,
        ..Meta::default()
    };
    if key.dl_type == 0x86dd && layers.l3 != NO_OFFSET {
        meta.routing_header = has_routing_header(p.head(), layers.l3.into(), layers.l4.into());
    }
    meta
}

/// Whether a routing header with segments left stands between the IPv6 header and L4 (RFC 8200, 8.1: then the pseudo header
/// has the final destination, not the one in the header).
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
