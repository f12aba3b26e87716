//! Packets that go into tunnels and come out of them.

use super::Meta;
use heddle_datapath_api::DropKind;
use heddle_flow::{FlowKey, packet_type};
use heddle_packet::Packet;
use heddle_tunnel::join;
use heddle_tunnel::pop::Waiting;
use heddle_tunnel::{Inner, PopError, Popped, PushError, TunnelPop, TunnelPush};

/// Writes the outer headers before a packet, which is an Ethernet frame with an IP header then.
pub(super) fn push(p: &mut Packet, meta: &mut Meta, push: &TunnelPush, now_ms: u64) -> Result<(), DropKind> {
    push_one(p, inner(meta), push, now_ms)?;
    *meta = outside(meta, push);
    Ok(())
}

/// [`push`], but the caller updates the packet's [`Meta`].
#[inline]
pub(super) fn push_one(p: &mut Packet, inner: Inner, push: &TunnelPush, now_ms: u64) -> Result<(), DropKind> {
    push.apply(p, inner, now_ms).map_err(|e| match e {
        PushError::Headroom => DropKind::Headroom,
        PushError::TooLong => DropKind::TunnelTooLong,
        PushError::Gso => DropKind::TunnelPush,
    })
}

/// Offsets of the headers of a packet that goes into a tunnel.
pub(super) fn inner(meta: &Meta) -> Inner {
    Inner {
        l3: meta.l3,
        l4: meta.l4,
        proto: if meta.later_fragment { 0 } else { meta.proto },
    }
}

/// Offsets and protocol of the packet with its outer headers.
pub(super) fn outside(meta: &Meta, push: &TunnelPush) -> Meta {
    let (l3, behind_ip) = push.offsets();
    let (l4, proto) = push.transport();
    Meta {
        l2_5: u16::MAX,
        l3,
        l4,
        l4_end: usize::MAX,
        proto,
        later_fragment: false,
        routing_header: l4 != behind_ip,
        packet_type: packet_type::ETHERNET,
        ..*meta
    }
}

/// Takes the outer headers off a packet, and writes their values into `tunnel` (members of the tunnel; the
/// others are not read). `None`: the packet is a part of a frame, and waits for the others.
pub(crate) fn pop(
    p: &mut Packet,
    meta: &Meta,
    pop: &TunnelPop,
    tunnel: &mut FlowKey,
    waiting: Waiting<'_>,
) -> Result<Option<Popped>, DropKind> {
    tunnel.clear_context();
    if join::is_datagrams(p, meta.l4) && !join::join(p, pop.kind, (meta.l3, meta.l4)) {
        return Err(DropKind::TunnelGso);
    }
    pop.gather(p, meta.l3, tunnel, waiting).map_err(|e| match e {
        PopError::Csum => DropKind::TunnelCsum,
        PopError::Fragment => DropKind::TunnelFragment,
        PopError::Ttl => DropKind::TunnelTtl,
        PopError::Options | PopError::Critical => DropKind::TunnelOption,
        PopError::Header
        | PopError::Truncated
        | PopError::Length
        | PopError::IpOptions
        | PopError::Version
        | PopError::Flags
        | PopError::Protocol
        | PopError::Part => DropKind::TunnelPop,
        PopError::OuterGso => DropKind::TunnelGso,
        PopError::Metadata => DropKind::TunnelMetadata,
        PopError::Beyond => DropKind::SegmentBeyond,
        PopError::Frame => DropKind::SegmentLength,
        PopError::Duplicate => DropKind::SegmentDuplicate,
        PopError::Overlap => DropKind::SegmentOverlap,
        PopError::Scattered => DropKind::SegmentEvicted,
    })
}
