//! The fixed match of OpenFlow 1.0 (40 bytes, §5.2.3 of 1.0).

use crate::error::ErrorKind;
use crate::wire::cursor::{Put, Reader};
use heddle_flow::key::{FlowMask, Match, Vlan};
use heddle_flow::{FieldId, FieldValue};

/// Bits of the fields that are wildcarded.
pub(super) mod fw {
    pub(crate) const IN_PORT: u32 = 1 << 0;
    pub(crate) const DL_VLAN: u32 = 1 << 1;
    pub(crate) const DL_SRC: u32 = 1 << 2;
    pub(crate) const DL_DST: u32 = 1 << 3;
    pub(crate) const DL_TYPE: u32 = 1 << 4;
    pub(crate) const NW_PROTO: u32 = 1 << 5;
    pub(crate) const TP_SRC: u32 = 1 << 6;
    pub(crate) const TP_DST: u32 = 1 << 7;
    /// Six bits: the number of low bits of the address that are wildcarded, all from 32 on.
    pub(crate) const NW_SRC_SHIFT: u32 = 8;
    pub(crate) const NW_DST_SHIFT: u32 = 14;
    pub(crate) const DL_VLAN_PCP: u32 = 1 << 20;
    pub(crate) const NW_TOS: u32 = 1 << 21;
    pub(crate) const ALL: u32 = (1 << 22) - 1;
}

/// "No VLAN tag" in the field of the VLAN id.
const VLAN_NONE: u16 = 0xffff;

const ETH_IP: u16 = 0x0800;
const ETH_ARP: u16 = 0x0806;
const ETH_RARP: u16 = 0x8035;
const ETH_IPV6: u16 = 0x86dd;

/// Reads a match, and drops what has no meaning for its protocols. `true` if it has no wildcard at all (such
/// a rule has the highest priority, §3.4 of 1.0).
pub(super) fn decode(r: &mut Reader<'_>) -> Result<(Match, bool), ErrorKind> {
    let w = r.u32()?;
    let in_port = r.u16()?;
    let (dl_src, dl_dst) = (r.array::<6>()?, r.array::<6>()?);
    let (vlan, pcp) = (r.u16()?, r.u8()?);
    r.skip(1)?;
    let dl_type = r.u16()?;
    let (tos, proto) = (r.u8()?, r.u8()?);
    r.skip(2)?;
    let (nw_src, nw_dst) = (r.u32()?, r.u32()?);
    let (tp_src, tp_dst) = (r.u16()?, r.u16()?);

    let counts = |bit: u32| w & bit == 0;
    let mut m = Match::any();
    if counts(fw::IN_PORT) {
        m.set_field(FieldId::InPort, FieldValue::from_u64(in_port.into()), None);
    }
    let (k, x) = (&mut m.key, &mut m.mask.0);
    if counts(fw::DL_SRC) {
        (k.dl_src, x.dl_src) = (dl_src, [0xff; 6]);
    }
    if counts(fw::DL_DST) {
        (k.dl_dst, x.dl_dst) = (dl_dst, [0xff; 6]);
    }
    if counts(fw::DL_VLAN) && vlan == VLAN_NONE {
        x.vlans[0].tci = u16::MAX;
    } else {
        let mut mask = 0;
        if counts(fw::DL_VLAN) {
            mask |= Vlan::VID_MASK | Vlan::CFI;
        }
        if counts(fw::DL_VLAN_PCP) {
            mask |= Vlan::PCP_MASK | Vlan::CFI;
        }
        let tci = vlan & Vlan::VID_MASK | u16::from(pcp) << 13 | Vlan::CFI;
        (k.vlans[0].tci, x.vlans[0].tci) = (tci & mask, mask);
    }
    // A match on a header implies that the packet has an Ethernet header.
    let data = fw::ALL & !(fw::IN_PORT | 0x3f << fw::NW_SRC_SHIFT | 0x3f << fw::NW_DST_SHIFT);
    let addresses = [fw::NW_SRC_SHIFT, fw::NW_DST_SHIFT].map(|s| address_mask(w, s));
    if w & data != data || addresses != [0, 0] {
        x.packet_type = u32::MAX;
    }
    if counts(fw::DL_TYPE) {
        (k.dl_type, x.dl_type) = (dl_type, u16::MAX);
        let arp = matches!(dl_type, ETH_ARP | ETH_RARP);
        let ip4 = dl_type == ETH_IP;
        // 1.0 does not know IPv6; as Open vSwitch does, its fields beside the addresses are taken to mean the
        // same there.
        let ip = ip4 || dl_type == ETH_IPV6;
        if ip && counts(fw::NW_TOS) {
            (k.nw_tos, x.nw_tos) = (tos & 0xfc, 0xfc);
        }
        if (ip || arp) && counts(fw::NW_PROTO) {
            (k.nw_proto, x.nw_proto) = (proto, 0xff);
        }
        if ip4 || arp {
            [x.nw_src, x.nw_dst] = addresses;
            (k.nw_src, k.nw_dst) = (nw_src & x.nw_src, nw_dst & x.nw_dst);
        }
        let ported = matches!(proto, 6 | 17 | 132) || if ip4 { matches!(proto, 1 | 2) } else { proto == 58 };
        if ip && counts(fw::NW_PROTO) && ported {
            if counts(fw::TP_SRC) {
                (k.tp_src, x.tp_src) = (tp_src, u16::MAX);
            }
            if counts(fw::TP_DST) {
                (k.tp_dst, x.tp_dst) = (tp_dst, u16::MAX);
            }
        }
    }
    Ok((m, w & fw::ALL == 0))
}

fn address_mask(w: u32, shift: u32) -> u32 {
    u32::MAX.checked_shl(w >> shift & 0x3f).unwrap_or(0)
}

/// The number of wildcarded low bits of an address, as six bits at `shift`.
fn address_bits(mask: u32, shift: u32) -> u32 {
    mask.trailing_zeros() << shift
}

/// Writes a match. Fields and masks that 1.0 lacks are left out.
pub(super) fn encode(m: &Match, out: &mut Vec<u8>) {
    let k = &m.key;
    let FlowMask(x) = &m.mask;
    let bit = |wild: bool, bit: u32| if wild { bit } else { 0 };
    let tci = x.vlans[0].tci;
    let mut w = bit(x.in_port == 0, fw::IN_PORT)
        | bit(x.dl_src != [0xff; 6], fw::DL_SRC)
        | bit(x.dl_dst != [0xff; 6], fw::DL_DST)
        | bit(x.dl_type == 0, fw::DL_TYPE)
        | bit(x.nw_proto == 0, fw::NW_PROTO)
        | bit(x.nw_tos & 0xfc != 0xfc, fw::NW_TOS)
        | bit(x.tp_src != u16::MAX, fw::TP_SRC)
        | bit(x.tp_dst != u16::MAX, fw::TP_DST)
        | address_bits(x.nw_src, fw::NW_SRC_SHIFT)
        | address_bits(x.nw_dst, fw::NW_DST_SHIFT);
    let tag = k.vlans[0];
    let (mut vlan, mut pcp) = (0, 0);
    if tci & Vlan::CFI != 0 && !tag.present() {
        vlan = VLAN_NONE;
        w |= fw::DL_VLAN_PCP;
    } else {
        w |= bit(tci & Vlan::VID_MASK != Vlan::VID_MASK, fw::DL_VLAN);
        w |= bit(tci & Vlan::PCP_MASK != Vlan::PCP_MASK, fw::DL_VLAN_PCP);
        if w & fw::DL_VLAN == 0 {
            vlan = tag.vid();
        }
        if w & fw::DL_VLAN_PCP == 0 {
            pcp = tag.pcp();
        }
    }
    out.u32(w);
    // The key holds ports as 1.0 writes them.
    out.u16(u16::try_from(k.in_port & 0xffff).expect("16 bits"));
    out.put(&k.dl_src);
    out.put(&k.dl_dst);
    out.u16(vlan);
    out.u8(pcp);
    out.u8(0);
    out.u16(k.dl_type);
    out.u8(k.nw_tos & 0xfc);
    out.u8(k.nw_proto);
    out.zeros(2);
    out.u32(k.nw_src);
    out.u32(k.nw_dst);
    out.u16(k.tp_src);
    out.u16(k.tp_dst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A match of 1.0 on a type of packet, a protocol, DSCP and ports, with addresses that may count.
    fn sent(dl_type: u16, proto: u8, addresses: bool) -> Vec<u8> {
        let mut w = fw::ALL & !(fw::DL_TYPE | fw::NW_PROTO | fw::NW_TOS | fw::TP_SRC | fw::TP_DST);
        if addresses {
            w &= !(0x3f << fw::NW_SRC_SHIFT);
        }
        let mut out = Vec::new();
        out.u32(w);
        out.zeros(18);
        out.u16(dl_type);
        out.u8(0x20);
        out.u8(proto);
        out.zeros(2);
        out.u32(if addresses { 0x0a00_0001 } else { 0 });
        out.u32(0);
        out.u16(1111);
        out.u16(2222);
        out
    }

    #[test]
    fn ipv6_has_what_its_header_has_but_no_addresses() {
        let (m, _) = decode(&mut Reader(&sent(ETH_IPV6, 6, true))).unwrap();
        let (key, FlowMask(mask)) = (m.key, m.mask);
        assert_eq!(
            (key.nw_tos, key.nw_proto, key.tp_src, key.tp_dst),
            (0x20, 6, 1111, 2222)
        );
        assert_eq!(
            (mask.nw_proto, mask.tp_src, mask.tp_dst),
            (0xff, u16::MAX, u16::MAX)
        );
        assert_eq!((key.nw_src, mask.nw_src, mask.ipv6_src), (0, 0, [0; 16]));
        // In IPv6, ICMPv6 has a type, and ICMP has none.
        let ports = |proto| {
            decode(&mut Reader(&sent(ETH_IPV6, proto, false)))
                .unwrap()
                .0
                .mask
                .0
                .tp_src
        };
        assert_eq!([58, 1].map(ports), [u16::MAX, 0]);
        let mut out = Vec::new();
        encode(&m, &mut out);
        let (again, _) = decode(&mut Reader(&out)).unwrap();
        assert_eq!((again.key, again.mask), (m.key, m.mask));
    }
}
