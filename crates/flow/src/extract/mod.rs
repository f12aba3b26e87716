//! Reads a packet's headers into a key: the per-packet parser.
//!
//! **Requirements.** Two packets that a rule could treat differently must have different keys. The key must
//! be the one that Open vSwitch would make of the same bytes, also of odd ones. If a header is malformed,
//! parsing stops at that layer, the layers before it count, and the packet is forwarded all the same.
//!
//! **Views.** The bytes given may be only the packet's first part (a private copy of its head). Lengths are
//! checked against the whole packet's size. [`Oddity::BeyondView`] means that headers continue behind the
//! view: give more bytes and parse again.
//!
//! **Costs.** One pass, no allocation, no formatting; each header is split off its slice once. Nothing here
//! panics on any input.

#![deny(clippy::indexing_slicing)] // whatever bytes come

mod cursor;
mod l4;

#[cfg(test)]
mod tests;

use crate::key::{FlowKey, N_MPLS, Nsh, Vlan, frag};
use cursor::{Cursor, Stop};
use heddle_wire::arp::Arp;
use heddle_wire::eth::{self, Ethernet, LlcSnap, MplsLse, VlanTag, ethertype};
use heddle_wire::ip::{Ipv4, Ipv6, Ipv6Ext, Ipv6Frag, proto};
use heddle_wire::nsh::{self, NshBase, NshContext};

/// EtherType in the key of a frame that has none.
pub const DL_TYPE_NONE: u16 = 0x05ff;
/// Offset of a layer that the packet does not have.
pub const NO_OFFSET: u16 = u16::MAX;

/// Facts about a packet that its bytes do not show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hint {
    /// Bytes of the whole packet; never fewer than are given.
    pub total_len: usize,
    /// Packet type: namespace << 16 | type; 0 for Ethernet.
    pub packet_type: u32,
    /// VLAN tags to read at most (`other_config:vlan-limit`), up to [`crate::key::N_VLANS`]. A further tag is
    /// an EtherType.
    pub vlan_limit: u8,
}

impl Hint {
    /// A whole Ethernet frame of `len` bytes, all tags read.
    pub fn ethernet(len: usize) -> Self {
        Self {
            total_len: len,
            packet_type: 0,
            vlan_limit: 2,
        }
    }
}

/// Why parsing stopped before its end. None of these alone is a reason to drop a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Oddity {
    /// Shorter than an Ethernet header. The key has no EtherType.
    Runt,
    /// Headers continue behind the bytes given: parse again with more of them.
    BeyondView,
    /// ARP too short, or not for Ethernet and IPv4.
    Arp,
    /// Network service header too short, of an unknown version, or of a wrong length.
    Nsh,
    /// IPv4 header too short.
    Ipv4Header,
    /// IPv4 total length beyond the packet's end or within the header.
    Ipv4Length,
    /// IPv6 header too short, or payload length beyond the packet's end.
    Ipv6Length,
    /// IPv6 extension header beyond the payload's end.
    Ipv6Extension,
    /// L4 header beyond the payload's end, or its own length wrong.
    L4Header,
    /// Neighbour discovery without a target, or an option given twice.
    NdOption,
}

/// Starts of layers. Offsets are in bytes from the frame's start, [`NO_OFFSET`] for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layers {
    /// The MPLS label stack.
    pub l2_5: u16,
    /// The header behind the Ethernet header, its tags and the label stack.
    pub l3: u16,
    /// The header behind the IP header and its extensions.
    pub l4: u16,
    /// Bytes of padding behind the IP packet.
    pub l2_pad: u16,
    /// Why parsing stopped early.
    pub oddity: Option<Oddity>,
}

/// Reads the headers of `frame` into `key`. Every member that does not come from the packet's bytes (ports,
/// tunnel, registers, connection state) is zeroed; `packet_type` is taken from the hint.
pub fn extract(frame: &[u8], hint: &Hint, key: &mut FlowKey) -> Layers {
    *key = FlowKey::default();
    key.packet_type = hint.packet_type;
    let mut layers = Layers {
        l2_5: NO_OFFSET,
        l3: NO_OFFSET,
        l4: NO_OFFSET,
        l2_pad: 0,
        oddity: None,
    };
    let mut cur = Cursor::new(frame, hint.total_len);
    layers.oddity = match parse(&mut cur, hint, key, &mut layers) {
        Ok(()) => None,
        Err((Stop::BeyondView, _)) => Some(Oddity::BeyondView),
        Err((Stop::End, oddity)) => Some(oddity),
    };
    layers
}

/// Reason why a layer's parser stopped, and the name of the oddity if the packet ended.
type Stopped = (Stop, Oddity);

/// `stop` with the name that the packet's end has at this place.
fn at(oddity: Oddity) -> impl Fn(Stop) -> Stopped {
    move |stop| (stop, oddity)
}

fn parse(cur: &mut Cursor<'_>, hint: &Hint, key: &mut FlowKey, layers: &mut Layers) -> Result<(), Stopped> {
    if hint.packet_type == 0 {
        ethernet(cur, hint.vlan_limit, key)?;
    } else {
        key.dl_type = (hint.packet_type & 0xffff) as u16;
    }
    if eth::is_mpls(key.dl_type) {
        layers.l2_5 = cur.offset();
        mpls(cur, key)?;
    }
    layers.l3 = cur.offset();
    match key.dl_type {
        ethertype::IP => ipv4(cur, key, layers)?,
        ethertype::IPV6 => ipv6(cur, key, layers)?,
        ethertype::ARP | ethertype::RARP => return arp(cur, key),
        ethertype::NSH => return nsh(cur, key),
        _ => return Ok(()),
    }
    layers.l4 = cur.offset();
    if key.nw_frag & frag::LATER != 0 {
        Ok(())
    } else {
        l4::parse(cur, key)
    }
}

fn ethernet(cur: &mut Cursor<'_>, vlan_limit: u8, key: &mut FlowKey) -> Result<(), Stopped> {
    let eth: &Ethernet = cur.peek().map_err(at(Oddity::Runt))?;
    key.dl_dst = eth.dst;
    key.dl_src = eth.src;
    let mut dl_type = eth.ethertype.get();
    // From here on the cursor is at the EtherType that `dl_type` holds.
    cur.skip(12);
    for vlan in key.vlans.iter_mut().take(vlan_limit.into()) {
        // A tag counts only when an EtherType follows it.
        if !eth::is_vlan(dl_type) || cur.left() < VlanTag::LEN + 2 {
            break;
        }
        let tag: &VlanTag = cur.take().map_err(at(Oddity::BeyondView))?;
        *vlan = Vlan {
            tpid: dl_type,
            tci: tag.tci.get() | Vlan::CFI,
        };
        dl_type = cur
            .peek::<heddle_wire::Be16>()
            .map_err(at(Oddity::BeyondView))?
            .get();
    }
    cur.skip(2);
    if dl_type < ethertype::MIN {
        dl_type = DL_TYPE_NONE;
        // A frame too short for LLC and SNAP is treated as one with another LLC.
        if cur.left() >= LlcSnap::LEN {
            let llc: &LlcSnap = cur.peek().map_err(at(Oddity::BeyondView))?;
            if llc.is_ethernet_snap() {
                cur.skip(LlcSnap::LEN);
                if llc.ethertype.get() >= ethertype::MIN {
                    dl_type = llc.ethertype.get();
                }
            }
        }
    }
    key.dl_type = dl_type;
    Ok(())
}

fn mpls(cur: &mut Cursor<'_>, key: &mut FlowKey) -> Result<(), Stopped> {
    let mut n = 0;
    while cur.left() >= MplsLse::LEN {
        let lse: &MplsLse = cur.take().map_err(at(Oddity::BeyondView))?;
        if let Some(slot) = key.mpls_lse.get_mut(n) {
            *slot = lse.lse.get();
        }
        n = (n + 1).min(N_MPLS);
        if lse.bottom() {
            break;
        }
    }
    Ok(())
}

fn arp(cur: &mut Cursor<'_>, key: &mut FlowKey) -> Result<(), Stopped> {
    let arp: &Arp = cur.peek().map_err(at(Oddity::Arp))?;
    if !arp.is_ethernet_ipv4() {
        return Err((Stop::End, Oddity::Arp));
    }
    key.nw_src = u32::from_be_bytes(arp.spa);
    key.nw_dst = u32::from_be_bytes(arp.tpa);
    key.arp_sha = arp.sha;
    key.arp_tha = arp.tha;
    // Only opcodes of one byte are matched on; others read as 0.
    key.nw_proto = u8::try_from(arp.op.get()).unwrap_or(0);
    Ok(())
}

/// The header counts only as a whole. The packet behind it is not parsed.
fn nsh(cur: &mut Cursor<'_>, key: &mut FlowKey) -> Result<(), Stopped> {
    let left = cur.left();
    let base: &NshBase = cur.take().map_err(at(Oddity::Nsh))?;
    let len = base.header_len();
    if base.version() != 0 || len > left {
        return Err((Stop::End, Oddity::Nsh));
    }
    let mut context = NshContext::default();
    match base.md_type {
        nsh::MD_TYPE_1 if len != NshBase::LEN + NshContext::LEN => return Err((Stop::End, Oddity::Nsh)),
        nsh::MD_TYPE_1 => context = *cur.take().map_err(at(Oddity::Nsh))?,
        nsh::MD_TYPE_2 if len < NshBase::LEN => return Err((Stop::End, Oddity::Nsh)),
        // Other metadata has no match fields.
        _ => {}
    }
    key.nsh = Nsh {
        flags: base.flags(),
        ttl: base.ttl(),
        mdtype: base.md_type,
        np: base.next,
        path: base.path.get(),
        c1: context.c1.get(),
        c2: context.c2.get(),
        c3: context.c3.get(),
        c4: context.c4.get(),
    };
    Ok(())
}

fn ipv4(cur: &mut Cursor<'_>, key: &mut FlowKey, layers: &mut Layers) -> Result<(), Stopped> {
    let ip: &Ipv4 = cur.peek().map_err(at(Oddity::Ipv4Header))?;
    let (size, header, total) = (cur.left(), ip.header_len(), usize::from(ip.total_len.get()));
    if header < Ipv4::LEN || size < header {
        return Err((Stop::End, Oddity::Ipv4Header));
    }
    let Some(pad) = size
        .checked_sub(total)
        .and_then(|p| u16::try_from(p).ok())
        .filter(|_| header <= total)
    else {
        return Err((Stop::End, Oddity::Ipv4Length));
    };
    layers.l2_pad = pad;
    key.nw_src = ip.src.get();
    key.nw_dst = ip.dst.get();
    key.nw_tos = ip.tos;
    key.nw_ttl = ip.ttl;
    key.nw_proto = ip.proto;
    if ip.is_fragment() {
        key.nw_frag = if ip.is_later_fragment() {
            frag::MASK
        } else {
            frag::ANY
        };
    }
    cur.limit(total);
    cur.skip(header);
    Ok(())
}

fn ipv6(cur: &mut Cursor<'_>, key: &mut FlowKey, layers: &mut Layers) -> Result<(), Stopped> {
    let ip: &Ipv6 = cur.take().map_err(at(Oddity::Ipv6Length))?;
    let plen = usize::from(ip.payload_len.get());
    let Some(pad) = cur.left().checked_sub(plen).and_then(|p| u16::try_from(p).ok()) else {
        return Err((Stop::End, Oddity::Ipv6Length));
    };
    layers.l2_pad = pad;
    cur.limit(plen);
    key.ipv6_src = ip.src;
    key.ipv6_dst = ip.dst;
    // The rest counts only when the chain of extension headers is sound.
    let (next, nw_frag) = ipv6_extensions(cur, ip.next)?;
    key.ipv6_label = ip.label();
    key.nw_tos = ip.traffic_class();
    key.nw_ttl = ip.hop_limit;
    key.nw_proto = next;
    key.nw_frag = nw_frag;
    Ok(())
}

/// Walks extension headers; returns the protocol behind them and the fragment bits. A later fragment's
/// protocol is that of the fragment header, as no header follows it.
fn ipv6_extensions(cur: &mut Cursor<'_>, mut next: u8) -> Result<(u8, u8), Stopped> {
    let mut nw_frag = 0;
    while matches!(
        next,
        proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS | proto::AH | proto::FRAGMENT
    ) {
        let ext: &Ipv6Ext = cur.peek().map_err(at(Oddity::Ipv6Extension))?;
        let len = match next {
            proto::AH => (usize::from(ext.len) + 2) * 4,
            proto::FRAGMENT => Ipv6Frag::LEN,
            _ => (usize::from(ext.len) + 1) * 8,
        };
        if next == proto::FRAGMENT {
            let f: &Ipv6Frag = cur.peek().map_err(at(Oddity::Ipv6Extension))?;
            if f.offset.get() != 0 {
                nw_frag = frag::ANY;
            }
            if f.offset.get() & Ipv6Frag::OFFSET != 0 {
                cur.skip(len);
                return Ok((proto::FRAGMENT, frag::MASK));
            }
        }
        if cur.left() < len {
            return Err((Stop::End, Oddity::Ipv6Extension));
        }
        next = ext.next;
        cur.skip(len);
    }
    Ok((next, nw_frag))
}
