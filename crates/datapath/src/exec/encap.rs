//! Headers in front of the whole packet: Ethernet, the network service header (RFC 8300), labels.
//!
//! The type of the first header is part of the executor's record of a packet ([`Meta::packet_type`]), and
//! decides which actions are possible. Headers behind a new one cannot be rewritten: their offsets are
//! forgotten.

#[cfg(test)]
mod tests;

use super::Meta;
use super::tags::{TagError, be16, shift};
use heddle_datapath_api::{Masked, NshHeader};
use heddle_flow::{Nsh, packet_type};
use heddle_packet::Packet;
use heddle_wire::eth::Ethernet;
use heddle_wire::nsh::{MD_TYPE_1, NshBase, NshContext, next};
use heddle_wire::{IntoBytes, split, split_mut};

/// Next headers of a network service header: packet type, and protocol number in the header.
const NEXT: [(u32, u8); 4] = [
    (packet_type::ETHERNET, next::ETHERNET),
    (packet_type::IPV4, next::IPV4),
    (packet_type::IPV6, next::IPV6),
    (packet_type::NSH, next::NSH),
];

/// Bytes by which an Ethernet header moves what is behind it.
pub(crate) const ETHERNET: i16 = 14;
const _: () = assert!(Ethernet::LEN == 14);

/// Forgets the offsets of headers.
fn forget(meta: &mut Meta) {
    *meta = Meta {
        l2_5: u16::MAX,
        l3: u16::MAX,
        l4: u16::MAX,
        proto: 0,
        later_fragment: false,
        routing_header: false,
        ..*meta
    };
}

pub(super) fn push_eth(p: &mut Packet, meta: &mut Meta, src: [u8; 6], dst: [u8; 6]) -> Result<(), TagError> {
    if meta.packet_type >> 16 != packet_type::NS_ETHERTYPE {
        return Err(TagError::Header);
    }
    if !p.push_front(Ethernet::LEN) {
        return Err(TagError::Headroom);
    }
    let header = Ethernet {
        dst,
        src,
        ethertype: ((meta.packet_type & 0xffff) as u16).into(),
    };
    p.head_mut()[..Ethernet::LEN].copy_from_slice(header.as_bytes());
    shift(meta, ETHERNET);
    meta.packet_type = packet_type::ETHERNET;
    Ok(())
}

pub(super) fn pop_eth(p: &mut Packet, meta: &mut Meta) -> Result<(), TagError> {
    let at = meta.l2_5.min(meta.l3);
    let ethertype = be16(p.head(), usize::from(at).saturating_sub(2));
    let (packet_type::ETHERNET, Some(ethertype), Ok(back)) = (meta.packet_type, ethertype, i16::try_from(at))
    else {
        return Err(TagError::Header);
    };
    if usize::from(at) < Ethernet::LEN || !p.pull_front(at.into()) {
        return Err(TagError::Header);
    }
    shift(meta, -back);
    meta.packet_type = packet_type::of_ethertype(ethertype);
    Ok(())
}

pub(super) fn add_mpls(p: &mut Packet, meta: &mut Meta, lse: u32, ethertype: u16) -> Result<(), TagError> {
    if !p.push_front(4) {
        return Err(TagError::Headroom);
    }
    p.head_mut()[..4].copy_from_slice(&lse.to_be_bytes());
    shift(meta, 4);
    forget(meta);
    meta.l2_5 = 0;
    meta.packet_type = packet_type::of_ethertype(ethertype);
    Ok(())
}

/// Length of a header in bytes.
pub(crate) fn nsh_len(header: &NshHeader) -> usize {
    NshBase::LEN
        + if header.fields.mdtype == MD_TYPE_1 {
            NshContext::LEN
        } else {
            header.options.len()
        }
}

pub(super) fn push_nsh(p: &mut Packet, meta: &mut Meta, header: &NshHeader) -> Result<(), TagError> {
    let found = NEXT.iter().find(|(ty, _)| *ty == meta.packet_type);
    let (_, next) = *found.ok_or(TagError::Header)?;
    let (k, len) = (&header.fields, nsh_len(header));
    if !p.push_front(len) {
        return Err(TagError::Headroom);
    }
    let base = NshBase {
        next,
        ..k.base_header(len - NshBase::LEN)
    };
    let context = k.context_header();
    let metadata = if k.mdtype == MD_TYPE_1 {
        context.as_bytes()
    } else {
        &header.options
    };
    let (first, rest) = p.head_mut()[..len].split_at_mut(NshBase::LEN);
    first.copy_from_slice(base.as_bytes());
    rest.copy_from_slice(metadata);
    meta.l4_end = meta.l4_end.saturating_add(len);
    forget(meta);
    meta.l3 = 0;
    meta.packet_type = packet_type::NSH;
    Ok(())
}

/// `None`: there is no network service header, or an invalid one.
pub(super) fn pop_nsh(p: &mut Packet, meta: &mut Meta) -> Option<()> {
    let (base, _) = split::<NshBase>(p.head()).filter(|_| meta.packet_type == packet_type::NSH)?;
    let (len, inside) = (base.header_len(), base.next);
    let (behind, _) = *NEXT.iter().find(|(_, next)| *next == inside)?;
    if len < NshBase::LEN || len > p.len() {
        return None;
    }
    if p.head().len() < len {
        p.make_private();
    }
    if !p.pull_front(len) {
        return None;
    }
    meta.l4_end = meta.l4_end.saturating_sub(len);
    forget(meta);
    meta.packet_type = behind;
    Some(())
}

pub(super) fn set_nsh(p: &mut Packet, meta: &Meta, m: &Masked<Nsh>) -> Result<(), TagError> {
    let header = p.head_mut().get_mut(usize::from(meta.l3)..).unwrap_or_default();
    let (base, rest) = split_mut::<NshBase>(header).ok_or(TagError::Header)?;
    let (v, k) = (&m.value, &m.mask);
    let byte = |old: u8, v: u8, k: u8| (old & !k) | (v & k);
    let word = |old: u32, v: u32, k: u32| ((old & !k) | (v & k)).into();
    let flags = byte(base.flags(), v.flags, k.flags);
    let ttl = byte(base.ttl(), v.ttl, k.ttl);
    let len = base.header_len();
    let metadata = len.checked_sub(NshBase::LEN).ok_or(TagError::Header)?;
    base.first = NshBase::first_of(flags, ttl, metadata).into();
    base.path = word(base.path.get(), v.path, k.path);
    if base.md_type == MD_TYPE_1 && k.context() != [0; 4] {
        let (c, _) = split_mut::<NshContext>(rest).ok_or(TagError::Header)?;
        c.c1 = word(c.c1.get(), v.c1, k.c1);
        c.c2 = word(c.c2.get(), v.c2, k.c2);
        c.c3 = word(c.c3.get(), v.c3, k.c3);
        c.c4 = word(c.c4.get(), v.c4, k.c4);
    }
    Ok(())
}
