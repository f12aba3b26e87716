//! VLAN tags and MPLS labels: headers that are inserted and removed in the middle of a packet.
//!
//! The layer offsets of the packet move along with its bytes; checksum offsets in the offload metadata are
//! moved by the packet itself.

use super::Meta;
use heddle_datapath_api::Masked;
use heddle_flow::{Vlan, packet_type};
use heddle_packet::Packet;
use heddle_wire::eth::{ethertype, is_mpls, is_vlan};

/// Why a tag action failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TagError {
    /// No room in front of the packet.
    Headroom,
    /// The header is missing.
    Header,
}

pub(super) fn shift(meta: &mut Meta, by: i16) {
    for off in [&mut meta.l2_5, &mut meta.l3, &mut meta.l4] {
        if *off != u16::MAX {
            *off = off.saturating_add_signed(by);
        }
    }
    meta.l4_end = meta.l4_end.saturating_add_signed(by.into());
}

pub(super) fn be16(head: &[u8], at: usize) -> Option<u16> {
    head.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

/// The offset of the EtherType behind the addresses and all tags.
fn ethertype_at(head: &[u8]) -> Option<usize> {
    let mut at = 12;
    // The head is finite, so this loop ends.
    while is_vlan(be16(head, at)?) {
        at += 4;
    }
    Some(at)
}

pub(super) fn push_vlan(p: &mut Packet, meta: &mut Meta, tpid: u16, tci: u16) -> Result<(), TagError> {
    if p.head().len() < 14 || meta.packet_type != packet_type::ETHERNET {
        return Err(TagError::Header);
    }
    if !p.push_vlan(tpid, tci & !Vlan::CFI) {
        return Err(TagError::Headroom);
    }
    shift(meta, 4);
    Ok(())
}

/// Without a tag there is nothing to pop, which is no error (as in Open vSwitch).
pub(super) fn pop_vlan(p: &mut Packet, meta: &mut Meta) -> Result<(), TagError> {
    let ethernet = meta.packet_type == packet_type::ETHERNET;
    if ethernet && be16(p.head(), 12).is_some_and(is_vlan) && p.pop_vlan() {
        shift(meta, -4);
    }
    Ok(())
}

/// Offset of a label stack, or of a first label.
fn labels_at(p: &Packet, meta: &Meta) -> Option<usize> {
    match meta.packet_type {
        packet_type::ETHERNET => ethertype_at(p.head()).map(|at| at + 2),
        _ => Some(0),
    }
}

/// Whether labels begin at `at`.
fn has_label(p: &Packet, meta: &Meta, at: usize) -> bool {
    let ethertype = match meta.packet_type {
        packet_type::ETHERNET => be16(p.head(), at - 2),
        ty => u16::try_from(ty & 0xffff).ok(),
    };
    ethertype.is_some_and(is_mpls) && p.head().len() >= at + 4
}

/// Writes the packet's type: into the EtherType before `at`, where its labels begin, or into `meta`.
fn announce(p: &mut Packet, meta: &mut Meta, at: usize, ethertype: u16) {
    match at.checked_sub(2).and_then(|at| p.head_mut().get_mut(at..at + 2)) {
        Some(field) => field.copy_from_slice(&ethertype.to_be_bytes()),
        None => meta.packet_type = packet_type::of_ethertype(ethertype),
    }
}

pub(super) fn push_mpls(p: &mut Packet, meta: &mut Meta, lse: u32, ethertype: u16) -> Result<(), TagError> {
    let at = labels_at(p, meta).ok_or(TagError::Header)?;
    if !p.push_front(4) {
        return Err(TagError::Headroom);
    }
    let head = p.head_mut();
    head.copy_within(4..4 + at, 0);
    head[at..at + 4].copy_from_slice(&lse.to_be_bytes());
    announce(p, meta, at, ethertype);
    shift(meta, 4);
    meta.l2_5 = u16::try_from(at).unwrap_or(u16::MAX);
    Ok(())
}

pub(super) fn pop_mpls(p: &mut Packet, meta: &mut Meta, ethertype: u16) -> Result<(), TagError> {
    let at = labels_at(p, meta).ok_or(TagError::Header)?;
    if !has_label(p, meta, at) {
        return Err(TagError::Header);
    }
    announce(p, meta, at, ethertype);
    p.head_mut().copy_within(0..at, 4);
    if !p.pull_front(4) {
        return Err(TagError::Header);
    }
    shift(meta, -4);
    let behind = u16::try_from(at).unwrap_or(u16::MAX);
    if is_mpls(ethertype) {
        meta.l2_5 = behind;
    } else {
        meta.l2_5 = u16::MAX;
        meta.l3 = behind;
    }
    if at == 0 && ethertype == ethertype::TEB {
        // The packet is a whole frame whose headers are not parsed.
        *meta = Meta {
            l3: u16::MAX,
            l4: u16::MAX,
            packet_type: packet_type::ETHERNET,
            ..*meta
        };
    }
    Ok(())
}

pub(super) fn set_mpls(p: &mut Packet, meta: &Meta, m: &Masked<u32>) -> Result<(), TagError> {
    let at = labels_at(p, meta).ok_or(TagError::Header)?;
    if !has_label(p, meta, at) {
        return Err(TagError::Header);
    }
    let lse: &mut [u8; 4] = p
        .head_mut()
        .get_mut(at..)
        .and_then(|h| h.first_chunk_mut())
        .ok_or(TagError::Header)?;
    *lse = ((u32::from_be_bytes(*lse) & !m.mask) | (m.value & m.mask)).to_be_bytes();
    Ok(())
}
