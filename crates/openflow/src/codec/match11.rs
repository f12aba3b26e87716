//! The fixed match of OpenFlow 1.1 (88 bytes, §A.2.3 of 1.1): 1.0's with masks for addresses, MPLS, metadata.

use crate::error::ErrorKind;
use crate::wire::cursor::{Put, Reader};
use crate::wire::port::port_from_u32;
use heddle_flow::field::port_to_32;
use heddle_flow::key::{FlowMask, Match, Vlan};
use heddle_flow::{FieldId, FieldValue};

/// Bits of the fields that are wildcarded.
mod fw {
    pub(super) const IN_PORT: u32 = 1 << 0;
    pub(super) const DL_VLAN: u32 = 1 << 1;
    pub(super) const DL_VLAN_PCP: u32 = 1 << 2;
    pub(super) const DL_TYPE: u32 = 1 << 3;
    pub(super) const NW_TOS: u32 = 1 << 4;
    pub(super) const NW_PROTO: u32 = 1 << 5;
    pub(super) const TP_SRC: u32 = 1 << 6;
    pub(super) const TP_DST: u32 = 1 << 7;
    pub(super) const MPLS_LABEL: u32 = 1 << 8;
    pub(super) const MPLS_TC: u32 = 1 << 9;
}

/// Any tag, with any id.
const VLAN_ANY: u16 = 0xfffe;
/// No tag.
const VLAN_NONE: u16 = 0xffff;

fn is_mpls(ty: u16) -> bool {
    matches!(ty, 0x8847 | 0x8848)
}

/// Reads a match behind its type and length.
pub(super) fn decode(mut r: Reader<'_>) -> Result<Match, ErrorKind> {
    let in_port = r.u32()?;
    let w = r.u32()?;
    let not6 = |b: [u8; 6]| b.map(|b| !b);
    let (dl_src, src_mask) = (r.array::<6>()?, not6(r.array()?));
    let (dl_dst, dst_mask) = (r.array::<6>()?, not6(r.array()?));
    let (vlan, pcp) = (r.u16()?, r.u8()?);
    r.skip(1)?;
    let dl_type = r.u16()?;
    let (tos, proto) = (r.u8()?, r.u8()?);
    let (nw_src, nw_src_mask) = (r.u32()?, !r.u32()?);
    let (nw_dst, nw_dst_mask) = (r.u32()?, !r.u32()?);
    let (tp_src, tp_dst) = (r.u16()?, r.u16()?);
    let label = r.u32()?;
    let tc = r.u8()?;
    r.skip(3)?;
    let (metadata, metadata_mask) = (r.u64()?, !r.u64()?);

    let counts = |bit: u32| w & bit == 0;
    let mut m = Match::any();
    if counts(fw::IN_PORT) {
        let port = port_from_u32(in_port).map_err(|_| ErrorKind::BadMatchBadValue)?;
        m.set_field(FieldId::InPortOxm, FieldValue::from_u64(port.0.into()), None);
    }
    let (k, x) = (&mut m.key, &mut m.mask.0);
    (k.dl_src, x.dl_src) = (dl_src, src_mask);
    (k.dl_dst, x.dl_dst) = (dl_dst, dst_mask);
    let mut tag = (0, 0);
    if counts(fw::DL_VLAN) {
        tag = match vlan {
            VLAN_NONE => (0, u16::MAX),
            VLAN_ANY => (Vlan::CFI, Vlan::CFI),
            v if v <= 0xfff => (v | Vlan::CFI, Vlan::VID_MASK | Vlan::CFI),
            _ => return Err(ErrorKind::BadMatchBadValue),
        };
        if tag.0 & Vlan::CFI != 0 && counts(fw::DL_VLAN_PCP) {
            if pcp > 7 {
                return Err(ErrorKind::BadMatchBadValue);
            }
            tag = (tag.0 | u16::from(pcp) << 13, tag.1 | Vlan::PCP_MASK);
        }
    }
    (k.vlans[0].tci, x.vlans[0].tci) = tag;
    // A match on a header implies that the packet has an Ethernet header.
    if counts(fw::DL_TYPE) || tag.1 != 0 || src_mask != [0; 6] || dst_mask != [0; 6] {
        x.packet_type = u32::MAX;
    }
    if counts(fw::DL_TYPE) {
        (k.dl_type, x.dl_type) = (dl_type, u16::MAX);
        let (ip, arp) = (dl_type == 0x0800, dl_type == 0x0806);
        if ip && counts(fw::NW_TOS) {
            if tos & 3 != 0 {
                return Err(ErrorKind::BadMatchBadValue);
            }
            (k.nw_tos, x.nw_tos) = (tos, 0xfc);
        }
        if ip || arp {
            if counts(fw::NW_PROTO) {
                (k.nw_proto, x.nw_proto) = (proto, 0xff);
            }
            (k.nw_src, x.nw_src) = (nw_src, nw_src_mask);
            (k.nw_dst, x.nw_dst) = (nw_dst, nw_dst_mask);
        }
        if ip && counts(fw::NW_PROTO) && matches!(proto, 1 | 6 | 17 | 132) {
            if counts(fw::TP_SRC) {
                (k.tp_src, x.tp_src) = (tp_src, u16::MAX);
            }
            if counts(fw::TP_DST) {
                (k.tp_dst, x.tp_dst) = (tp_dst, u16::MAX);
            }
        }
        if is_mpls(dl_type) {
            if counts(fw::MPLS_LABEL) {
                k.mpls_lse[0] |= (label & 0xf_ffff) << 12;
                x.mpls_lse[0] |= 0xf_ffff << 12;
            }
            if counts(fw::MPLS_TC) {
                k.mpls_lse[0] |= u32::from(tc & 7) << 9;
                x.mpls_lse[0] |= 7 << 9;
            }
        }
    }
    (k.metadata, x.metadata) = (metadata, metadata_mask);
    m.normalize();
    Ok(m)
}

/// Writes a match behind its type and length. Conditions that 1.1 lacks are left out.
pub(super) fn encode(m: &Match, out: &mut Vec<u8>) {
    let k = &m.key;
    let FlowMask(x) = &m.mask;
    let bit = |wild: bool, bit: u32| if wild { bit } else { 0 };
    let mut w = bit(x.in_port == 0, fw::IN_PORT)
        | bit(x.dl_type == 0, fw::DL_TYPE)
        | bit(x.nw_tos & 0xfc != 0xfc, fw::NW_TOS)
        | bit(x.nw_proto == 0, fw::NW_PROTO)
        | bit(x.tp_src != u16::MAX, fw::TP_SRC)
        | bit(x.tp_dst != u16::MAX, fw::TP_DST)
        | bit(x.mpls_lse[0] >> 12 == 0, fw::MPLS_LABEL)
        | bit(x.mpls_lse[0] >> 9 & 7 == 0, fw::MPLS_TC);
    let (tag, tci) = (k.vlans[0], x.vlans[0].tci);
    let (mut vlan, mut pcp) = (0, 0);
    if tci & Vlan::CFI == 0 {
        w |= fw::DL_VLAN | fw::DL_VLAN_PCP;
    } else if !tag.present() {
        vlan = VLAN_NONE;
        w |= fw::DL_VLAN_PCP;
    } else {
        vlan = if tci & Vlan::VID_MASK == 0 {
            VLAN_ANY
        } else {
            tag.vid()
        };
        pcp = tag.pcp();
        w |= bit(tci & Vlan::PCP_MASK == 0, fw::DL_VLAN_PCP);
    }
    let not6 = |b: [u8; 6]| b.map(|b| !b);
    out.u32(port_to_32(k.in_port));
    out.u32(w);
    out.put(&k.dl_src);
    out.put(&not6(x.dl_src));
    out.put(&k.dl_dst);
    out.put(&not6(x.dl_dst));
    out.u16(vlan);
    out.u8(pcp);
    out.u8(0);
    out.u16(k.dl_type);
    out.u8(k.nw_tos & 0xfc);
    out.u8(k.nw_proto);
    out.u32(k.nw_src);
    out.u32(!x.nw_src);
    out.u32(k.nw_dst);
    out.u32(!x.nw_dst);
    out.u16(k.tp_src);
    out.u16(k.tp_dst);
    out.u32(k.mpls_lse[0] >> 12);
    out.u8(u8::try_from(k.mpls_lse[0] >> 9 & 7).expect("three bits"));
    out.zeros(3);
    out.u64(k.metadata);
    out.u64(!x.metadata);
}
