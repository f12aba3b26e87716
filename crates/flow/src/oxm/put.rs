//! Writing matches. The order of entries is Open vSwitch's, and satisfies that prerequisites come first.

use super::COOKIE;
use crate::field::tlv;
use crate::field::{FieldId, FieldValue, OxmId, Prereq, dl_type, is_ip_any, is_nd};
use crate::key::{Match, Vlan};
use heddle_wire::eth::{self, ethertype};
use heddle_wire::icmp::{ND_ADVERT, ND_SOLICIT};
use heddle_wire::ip::proto;

/// Dialect to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatchForm {
    /// Nicira's, for OpenFlow 1.0's extensions.
    Nxm,
    /// OXM as an OpenFlow version has it (wire number: 3 is 1.2, 6 is 1.5).
    Oxm(u8),
}

impl MatchForm {
    /// The version by which headers are chosen.
    fn version(self) -> u8 {
        match self {
            MatchForm::Nxm => 0,
            MatchForm::Oxm(v) => v,
        }
    }
}

/// Appends a header. Returns whether the field has one.
pub fn put_header(field: FieldId, masked: bool, form: MatchForm, out: &mut Vec<u8>) -> bool {
    let header = field.header(form.version());
    if let Some(h) = header {
        header_bytes(h, masked, out);
    }
    header.is_some()
}

fn header_bytes(h: &OxmId, masked: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(&h.header(masked).to_be_bytes());
    if h.header_len() == 8 {
        out.extend_from_slice(&h.experimenter.to_be_bytes());
    }
}

/// Appends one entry. Returns whether the field has a header (else nothing was written).
pub fn put_field(
    field: FieldId,
    value: FieldValue,
    mask: Option<FieldValue>,
    form: MatchForm,
    out: &mut Vec<u8>,
) -> bool {
    let n = usize::from(field.info().n_bytes);
    if !put_header(field, mask.is_some(), form, out) {
        return false;
    }
    let mut put = |v: FieldValue| {
        out.resize(out.len() + n.saturating_sub(16), 0);
        out.extend_from_slice(v.bytes(n));
    };
    put(value);
    if let Some(m) = mask {
        put(m);
    }
    true
}

/// Appends Nicira's cookie entry; nothing for a zero mask.
pub fn put_cookie(cookie: u64, mask: u64, out: &mut Vec<u8>) {
    if mask == 0 {
        return;
    }
    header_bytes(&COOKIE, mask != u64::MAX, out);
    out.extend_from_slice(&(cookie & mask).to_be_bytes());
    if mask != u64::MAX {
        out.extend_from_slice(&mask.to_be_bytes());
    }
}

/// Output of a match, and whether an entry already implies an Ethernet header.
struct Put<'a> {
    m: &'a Match,
    form: MatchForm,
    out: &'a mut Vec<u8>,
    implied_ethernet: bool,
}

impl Put<'_> {
    fn entry(&mut self, field: FieldId, value: FieldValue, mask: Option<FieldValue>) {
        put_field(field, value, mask, self.form, self.out);
        self.implied_ethernet |= field.info().prereq != Prereq::None;
    }
    /// Writes the field, if the match has a condition on it.
    fn field(&mut self, field: FieldId) {
        let (v, m) = self.m.get_field(field);
        if !m.is_zero() {
            // One bit of the tunnel flags is public, so a match is never on all of the field's 16.
            let exact = field.is_exact(m) && field != FieldId::TunFlags;
            self.entry(field, v & m, (!exact).then_some(m));
        }
    }
    fn fields(&mut self, fields: &[FieldId]) {
        for f in fields {
            self.field(*f);
        }
    }
}

/// Appends a match, without header and padding. Fields that the form has no header for are left out.
pub fn put_match(m: &Match, form: MatchForm, out: &mut Vec<u8>) {
    use FieldId::*;
    let start = out.len();
    let oxm = form.version();
    let key = &m.key;
    let default_type = key.packet_type == 0 && m.mask.0.packet_type == u32::MAX;
    let mut p = Put {
        m,
        form,
        out,
        implied_ethernet: false,
    };
    if !default_type {
        p.field(PacketType);
    }
    p.fields(&[DpHash, RecircId, ConjId]);
    p.field(if oxm == 0 { InPort } else { InPortOxm });
    p.fields(&[ActsetOutput, EthSrc, EthDst, EthType]);
    put_vlan(&mut p, oxm);
    let ty = dl_type(key);
    if eth::is_mpls(ty) {
        p.fields(&[MplsTc, MplsBos, MplsTtl, MplsLabel]);
    }
    if is_ip_any(ty) {
        put_ip(&mut p, oxm);
    } else if matches!(ty, ethertype::ARP | ethertype::RARP) {
        p.fields(&[ArpOp, ArpSpa, ArpTpa, ArpSha, ArpTha]);
    }
    p.fields(&[
        TunId,
        TunFlags,
        TunSrc,
        TunDst,
        TunIpv6Src,
        TunIpv6Dst,
        TunGbpId,
        TunGbpFlags,
        NshFlags,
        NshTtl,
        NshMdtype,
        NshNp,
        NshSpi,
        NshSi,
        NshC1,
        NshC2,
        NshC3,
        NshC4,
    ]);
    put_options(&mut p);
    p.fields(&[
        TunErspanIdx,
        TunErspanVer,
        TunErspanDir,
        TunErspanHwid,
        TunGtpuFlags,
        TunGtpuMsgtype,
    ]);
    // OpenFlow 1.5 has registers of its own, in pairs.
    if oxm < 6 {
        p.fields(&[
            Reg0, Reg1, Reg2, Reg3, Reg4, Reg5, Reg6, Reg7, Reg8, Reg9, Reg10, Reg11, Reg12, Reg13, Reg14,
            Reg15,
        ]);
    } else {
        p.fields(&[Xreg0, Xreg1, Xreg2, Xreg3, Xreg4, Xreg5, Xreg6, Xreg7]);
    }
    p.fields(&[
        PktMark, CtState, CtZone, CtMark, CtLabel, CtNwSrc, CtIpv6Src, CtNwDst, CtIpv6Dst,
    ]);
    if key.ct_nw_proto != 0 {
        p.fields(&[CtNwProto, CtTpSrc, CtTpDst]);
    }
    p.field(Metadata);
    // If no entry implies it, "is Ethernet" must be an entry; first, as the standard wants.
    if default_type && !p.implied_ethernet {
        let mut first = Vec::with_capacity(8);
        put_field(PacketType, FieldValue::ZERO, None, form, &mut first);
        out.splice(start..start, first);
    }
}

/// Writes the options of a tunnel that are matched on, if the thread's map has them.
fn put_options(p: &mut Put<'_>) {
    for f in tlv::fields_of(p.m.mask.0.tun_present) {
        let mask = f.bytes(&p.m.mask.0);
        let exact = !mask.is_empty() && mask.iter().all(|b| *b == 0xff);
        put_header(FieldId::TunMetadata(f), !exact, p.form, p.out);
        p.out.extend_from_slice(f.bytes(&p.m.key));
        if !exact {
            p.out.extend_from_slice(mask);
        }
    }
}

fn put_vlan(p: &mut Put<'_>, oxm: u8) {
    if oxm == 0 {
        return p.field(FieldId::VlanTci);
    }
    p.field(FieldId::VlanVid);
    // OXM has no masked priority: some of its bits are sent as all of them.
    let tci = p.m.key.vlans[0].tci;
    if tci & (Vlan::VID_MASK | Vlan::CFI) != 0 && p.m.has_field(FieldId::VlanPcp) {
        p.entry(FieldId::VlanPcp, FieldValue::from_u64((tci >> 13).into()), None);
    }
}

fn put_ip(p: &mut Put<'_>, oxm: u8) {
    use FieldId::*;
    let key = &p.m.key;
    if dl_type(key) == ethertype::IP {
        p.fields(&[Ipv4Src, Ipv4Dst]);
    } else {
        p.fields(&[Ipv6Src, Ipv6Dst]);
    }
    p.field(IpFrag);
    p.field(if oxm == 0 { IpDscp } else { IpDscpShifted });
    p.fields(&[IpEcn, IpTtl, Ipv6Label]);
    if p.m.mask.0.nw_proto == 0 {
        return;
    }
    p.field(IpProto);
    match (dl_type(key), key.nw_proto) {
        (_, proto::TCP) => p.fields(&[TcpSrc, TcpDst, TcpFlags]),
        (_, proto::UDP) => p.fields(&[UdpSrc, UdpDst]),
        (_, proto::SCTP) => p.fields(&[SctpSrc, SctpDst]),
        (ethertype::IP, proto::ICMP) => p.fields(&[Icmpv4Type, Icmpv4Code]),
        (ethertype::IPV6, proto::ICMPV6) => {
            p.fields(&[Icmpv6Type, Icmpv6Code]);
            if is_nd(key) {
                p.fields(&[NdReserved, NdTarget, NdOptionsType]);
                if key.tp_src == ND_SOLICIT.into() {
                    p.field(NdSll);
                }
                if key.tp_src == ND_ADVERT.into() {
                    p.field(NdTll);
                }
            }
        }
        _ => {}
    }
}
