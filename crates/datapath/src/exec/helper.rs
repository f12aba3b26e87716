//! Packets of control connections that announce other connections, as FTP does. The tracker reads their text,
//! and the executor rewrites it as the tracker requires.
//!
//! Sequence numbers change in place. Where text is replaced by longer or shorter text, the packet is made
//! anew, its lengths and checksums with it. A checksum that is left to a device counts the length only.

use super::Meta;
use super::csum::{self, Part};
use super::ct::{Ct, view};
use heddle_conntrack::helper::{Control, Edit, LOOK};
use heddle_conntrack::{CtState, Event, state};
use heddle_packet::{BUF_SIZE, Csum, HEADROOM, Packet};
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::split;
use std::ops::Range;

/// Offsets of fields in a TCP header.
const SEQ: usize = 4;
const ACK: usize = 8;
const OFFSET: usize = 12;
const CSUM: usize = 16;

/// Offsets in a TCP segment.
#[derive(Clone, Copy, Debug)]
struct Layout {
    l3: usize,
    l4: usize,
    ipv6: bool,
    /// The first byte of payload, and the one behind the last.
    payload: usize,
    end: usize,
}

/// Runs the connection's helper on the payload, and applies its edit to the packet.
#[cold]
pub(super) fn follow(ct: &Ct<'_>, control: Control, p: &mut Packet, meta: &Meta, known: &mut CtState) {
    let Some(at) = layout(p, meta) else { return };
    let number = |from: usize| {
        let bytes = p.head().get(at.l4 + from..).and_then(|h| h.first_chunk::<4>());
        bytes.map_or(0, |b| u32::from_be_bytes(*b))
    };
    let mut text = [0; LOOK];
    let want = (at.end - at.payload).min(LOOK);
    let n = p.copy_from(at.payload, text.get_mut(..want).unwrap_or_default());
    let text = text.get(..n).unwrap_or_default();
    let edit = ct
        .tracker
        .control(ct.now_ms, control, number(SEQ), number(ACK), text);
    if edit.malformed {
        known.state |= state::INV;
        ct.counts.add(Event::FtpMalformed.into());
    }
    renumber(p, at, &edit);
    if let Some((range, text)) = edit.replace {
        replace(p, at, range, text.as_bytes());
    }
}

fn layout(p: &Packet, meta: &Meta) -> Option<Layout> {
    let v = view(p, meta, None, &|| true).filter(|v| v.proto == proto::TCP)?;
    let header = usize::from(p.head().get(v.l4 + OFFSET)? >> 4) * 4;
    let payload = v.l4 + header;
    (payload <= v.end).then_some(Layout {
        l3: v.l3,
        l4: v.l4,
        ipv6: v.ipv6,
        payload,
        end: v.end,
    })
}

/// Shifts sequence and acknowledgement numbers.
fn renumber(p: &mut Packet, at: Layout, edit: &Edit) {
    let acks = p.head().get(at.l4 + OFFSET + 1).is_some_and(|f| f & 0x10 != 0);
    let offload = p.offload;
    for (place, change) in [(SEQ, edit.seq), (ACK, if acks { edit.ack } else { 0 })] {
        let from = at.l4 + place;
        let head = p.head_mut();
        let Some(bytes) = head.get_mut(from..).and_then(|h| h.first_chunk_mut::<4>()) else {
            return;
        };
        if change == 0 {
            continue;
        }
        let old = *bytes;
        let new = u32::from_be_bytes(old).wrapping_add_signed(change).to_be_bytes();
        *bytes = new;
        csum::changed(head, &offload, at.l4, proto::TCP, Part::L4, &old, &new);
    }
}

/// Replaces some of the payload.
fn replace(p: &mut Packet, at: Layout, range: Range<usize>, text: &[u8]) {
    let (from, to) = (at.payload + range.start, at.payload + range.end);
    let (was, is) = (range.len(), text.len());
    let mut bytes = p.to_vec();
    let too_long = bytes.len() + is > was + BUF_SIZE - HEADROOM;
    if to > at.end || to > bytes.len() || too_long {
        return;
    }
    bytes.splice(from..to, text.iter().copied());
    let l4_len = at.end + is - was - at.l4;
    let longer = |old: u16| u16::try_from(usize::from(old) + is - was).unwrap_or(u16::MAX);
    let put = |bytes: &mut [u8], at: usize, v: u16| {
        if let Some(place) = bytes.get_mut(at..).and_then(|b| b.first_chunk_mut::<2>()) {
            *place = v.to_be_bytes();
        }
    };
    let l3 = bytes.get(at.l3..).unwrap_or_default();
    let mut pseudo = Sum::ZERO;
    let wide = u32::try_from(l4_len).unwrap_or(u32::MAX);
    if at.ipv6 {
        let Some((ip, _)) = split::<Ipv6>(l3) else { return };
        let len = longer(ip.payload_len.get());
        pseudo = pseudo.pseudo_v6(&ip.src, &ip.dst, proto::TCP, wide);
        put(&mut bytes, at.l3 + 4, len);
    } else {
        let Some((ip, _)) = split::<Ipv4>(l3) else { return };
        let (len, header) = (longer(ip.total_len.get()), ip.header_len());
        pseudo = pseudo.pseudo_v4(ip.src.get(), ip.dst.get(), proto::TCP, wide);
        put(&mut bytes, at.l3 + 2, len);
        put(&mut bytes, at.l3 + 10, 0);
        let sum = bytes.get(at.l3..at.l3 + header).map_or(0, checksum);
        put(&mut bytes, at.l3 + 10, sum);
    }
    let place = at.l4 + CSUM;
    let old = bytes.get(place..).and_then(|b| b.first_chunk::<2>());
    let old = old.map_or(0, |b| u16::from_be_bytes(*b));
    let sum = match p.offload.csum {
        Csum::Partial { .. } => {
            let len = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
            Sum::ZERO
                .word(old)
                .word(!len(l4_len + was - is))
                .word(len(l4_len))
                .folded()
        }
        Csum::Unknown | Csum::Valid => {
            put(&mut bytes, place, 0);
            let covered = bytes.get(at.l4..at.l4 + l4_len).unwrap_or_default();
            pseudo.bytes(covered).checksum()
        }
    };
    put(&mut bytes, place, sum);
    let (in_port, offload, mark) = (p.in_port, p.offload, p.mark());
    p.set_bytes(&bytes);
    (p.in_port, p.offload) = (in_port, offload);
    p.set_mark(mark);
}

#[cfg(test)]
mod tests;
