//! Smaller extensions on the wire: conjunctions, samples, length checks, encapsulation.

use super::encoder::{Encoded, Encoder, end};
use super::field::{Headers, check_dst, check_src, from_nxm_ofs, nxm, ofs_nbits, pull_header, put_header};
use super::raw::Raw;
use crate::action::{
    Action, CheckPktLarger, Conjunction, Encap, EncapProperty, FieldId, MAX_OBSERVATION_BITS, ObservationId,
    Port, Sample, SampleDirection, Subfield, packet_type,
};
use crate::error::{EncodeError, ErrorKind};
use crate::wire::cursor::{Put, Reader, Short};
use crate::wire::port::{port_from_u16, port_to_u16};

const BAD_ARGUMENT: ErrorKind = ErrorKind::BadActionBadArgument;

/// Class of properties of a network service header, and the properties.
const CLASS_NSH: u16 = 4;
const NSH_MD_TYPE: u8 = 1;
const NSH_TLV: u8 = 2;
/// Bytes of a property up to its value.
const PROP_HEAD: usize = 4;
const TLV_HEAD: usize = 8;

fn short(_: Short) -> ErrorKind {
    ErrorKind::BadActionBadLen
}

pub(super) fn decode_conjunction(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    let (clause, n_clauses) = (r.u8().map_err(short)?, r.u8().map_err(short)?);
    let id = r.u32().map_err(short)?;
    if !(2..=64).contains(&n_clauses) || clause >= n_clauses {
        return Err(ErrorKind::BadActionBadConjunction);
    }
    Ok(Action::Conjunction(Conjunction {
        id,
        clause,
        n_clauses,
    }))
}

pub(super) fn decode_fin_timeout(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    Ok(Action::FinTimeout {
        idle: r.u16().map_err(short)?,
        hard: r.u16().map_err(short)?,
    })
}

pub(super) fn decode_sample(mut r: Reader<'_>, form: u8) -> Result<Action, ErrorKind> {
    let mut s = Sample {
        probability: r.u16().map_err(short)?,
        collector_set_id: r.u32().map_err(short)?,
        obs_domain_id: observation_id(&mut r, form)?,
        obs_point_id: observation_id(&mut r, form)?,
        sampling_port: Port::NONE,
        direction: SampleDirection::Default,
        form,
    };
    if form > 1 {
        s.sampling_port = port_from_u16(r.u16().map_err(short)?);
        let direction = r.u8().map_err(short)?;
        if form > 2 {
            if !r.is_zero() {
                return Err(ErrorKind::BadRequestMustBeZero);
            }
            s.direction = match direction {
                0 => SampleDirection::Default,
                1 => SampleDirection::Ingress,
                2 => SampleDirection::Egress,
                _ => return Err(BAD_ARGUMENT),
            };
        }
    }
    if s.probability == 0 {
        Err(BAD_ARGUMENT)
    } else {
        Ok(Action::Sample(Box::new(s)))
    }
}

/// Reads a number, and in the fourth form the header of a field before it. With a field, the number has the
/// offset and width of a subfield.
fn observation_id(r: &mut Reader<'_>, form: u8) -> Result<ObservationId, ErrorKind> {
    let header = if form == 4 { r.u32().map_err(short)? } else { 0 };
    if header == 0 {
        return Ok(ObservationId::Value(r.u32().map_err(short)?));
    }
    let ofs_nbits = r.u16().map_err(short)?;
    r.u16().map_err(short)?;
    let src = from_nxm_ofs(ofs_nbits, header)?;
    check_src(src, None)?;
    if src.n_bits > MAX_OBSERVATION_BITS {
        return Err(BAD_ARGUMENT);
    }
    Ok(ObservationId::Field(src))
}

pub(super) fn decode_output_trunc(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    /// An Ethernet header must remain.
    const MIN_LEN: u32 = 14;
    let port = port_from_u16(r.u16().map_err(short)?);
    let max_len = r.u32().map_err(short)?;
    if max_len < MIN_LEN {
        return Err(BAD_ARGUMENT);
    }
    Ok(Action::OutputTrunc { port, max_len })
}

pub(super) fn decode_check_pkt_larger(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    let (pkt_len, ofs) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let dst = Subfield {
        field: pull_header(&mut r)?,
        ofs,
        n_bits: 1,
    };
    if !r.is_zero() {
        return Err(ErrorKind::BadRequestMustBeZero);
    }
    check_dst(dst, None)?;
    Ok(Action::CheckPktLarger(Box::new(CheckPktLarger { pkt_len, dst })))
}

pub(super) fn decode_delete_field(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    Ok(Action::DeleteField(pull_header(&mut r)?))
}

pub(super) fn decode_encap(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    let hdr_size = r.u16().map_err(short)?;
    let ty = r.u32().map_err(short)?;
    match ty {
        packet_type::ETHERNET | packet_type::NSH | packet_type::MPLS | packet_type::MPLS_MC => {}
        _ => return Err(ErrorKind::BadActionBadHeaderType),
    }
    let mut properties = Vec::new();
    while !r.is_empty() {
        properties.push(pull_property(&mut r)?);
    }
    Ok(Action::Encap(Box::new(Encap {
        packet_type: ty,
        hdr_size,
        properties,
    })))
}

fn pull_property(r: &mut Reader<'_>) -> Result<EncapProperty, ErrorKind> {
    let mut p = *r;
    let class = p.u16().map_err(short)?;
    let [ty, len] = p.array().map_err(short)?;
    let len = usize::from(len);
    if len < PROP_HEAD {
        return Err(ErrorKind::BadActionBadLen);
    }
    r.skip(len.next_multiple_of(8)).map_err(short)?;
    match (class, ty) {
        (CLASS_NSH, NSH_MD_TYPE) => {
            if len > 8 {
                return Err(ErrorKind::BadActionBadEdProp);
            }
            Ok(EncapProperty::NshMdType(p.u8().map_err(short)?))
        }
        (CLASS_NSH, NSH_TLV) => {
            let class = p.u16().map_err(short)?;
            let [ty, n] = p.array().map_err(short)?;
            let n = usize::from(n);
            if len != TLV_HEAD + n.next_multiple_of(8) {
                return Err(ErrorKind::BadActionBadEdProp);
            }
            let data = p.bytes(n).map_err(short)?.to_vec();
            Ok(EncapProperty::NshTlv { class, ty, data })
        }
        _ => Err(ErrorKind::BadActionUnknownEdProp),
    }
}

pub(super) fn decode_decap(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    r.skip(2).map_err(short)?;
    Ok(Action::Decap(r.u32().map_err(short)?))
}

impl Encoder {
    pub(super) fn conjunction(&self, c: Conjunction, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::Conjunction, "conjunction", out)?;
        out.put(&[c.clause, c.n_clauses]);
        out.u32(c.id);
        end(out, start);
        Ok(())
    }

    pub(super) fn fin_timeout(&self, idle: u16, hard: u16, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::FinTimeout, "fin_timeout", out)?;
        out.u16(idle);
        out.u16(hard);
        end(out, start);
        Ok(())
    }

    pub(super) fn sample(&self, s: &Sample, out: &mut Vec<u8>) -> Encoded {
        let field = |id: ObservationId| matches!(id, ObservationId::Field(_));
        let raw = if s.form == 4 || field(s.obs_domain_id) || field(s.obs_point_id) {
            Raw::Sample4
        } else if s.form == 3 || s.direction != SampleDirection::Default {
            Raw::Sample3
        } else if s.form == 2 || s.sampling_port != Port::NONE {
            Raw::Sample2
        } else {
            Raw::Sample
        };
        let start = self.begin(raw, "sample", out)?;
        out.u16(s.probability);
        out.u32(s.collector_set_id);
        for id in [s.obs_domain_id, s.obs_point_id] {
            match id {
                ObservationId::Value(value) => {
                    out.zeros(if raw == Raw::Sample4 { 4 } else { 0 });
                    out.u32(value);
                }
                ObservationId::Field(src) => {
                    out.u32(
                        nxm(src.field).ok_or_else(|| self.missing("sample from a field without header"))?,
                    );
                    out.u16(ofs_nbits(src));
                    out.zeros(2);
                }
            }
        }
        if raw != Raw::Sample {
            out.u16(port_to_u16(s.sampling_port));
            out.u8(s.direction as u8);
        }
        end(out, start);
        Ok(())
    }

    pub(super) fn check_pkt_larger(&self, c: &CheckPktLarger, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::CheckPktLarger, "check_pkt_larger", out)?;
        out.u16(c.pkt_len);
        out.u16(c.dst.ofs);
        if !put_header(out, c.dst.field, Headers::Nxm, false) {
            return Err(self.missing("check_pkt_larger to a field without header"));
        }
        end(out, start);
        Ok(())
    }

    pub(super) fn delete_field(&self, field: FieldId, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::DeleteField, "delete_field", out)?;
        if !put_header(out, field, Headers::Nxm, false) {
            return Err(self.missing("delete_field of a field without header"));
        }
        end(out, start);
        Ok(())
    }

    pub(super) fn encap(&self, e: &Encap, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::Encap, "encap", out)?;
        out.u16(e.hdr_size);
        out.u32(e.packet_type);
        for p in &e.properties {
            out.u16(CLASS_NSH);
            match p {
                EncapProperty::NshMdType(ty) => out.put(&[NSH_MD_TYPE, 5, *ty, 0, 0, 0]),
                EncapProperty::NshTlv { class, ty, data } => {
                    let too_long = |_| EncodeError::TooLong("a property of encap");
                    let padded = data.len().next_multiple_of(8);
                    let len = u8::try_from(TLV_HEAD + padded).map_err(too_long)?;
                    out.put(&[NSH_TLV, len]);
                    out.u16(*class);
                    out.put(&[*ty, u8::try_from(data.len()).map_err(too_long)?]);
                    out.put(data);
                    out.zeros(padded - data.len());
                }
            }
        }
        end(out, start);
        Ok(())
    }

    pub(super) fn decap(&self, packet_type: u32, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::Decap, "decap", out)?;
        out.zeros(2);
        out.u32(packet_type);
        end(out, start);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sample` whose domain is a whole field, and whose point is bits 32 to 63 of one.
    #[test]
    fn numbers_of_samples_from_fields_on_the_wire() {
        const BODY: [u8; 30] = [
            0x30, 0x39, 0, 0, 0x5b, 0xa0, 0, 0, 0, 2, 0, 0x0f, 0, 0, 0, 1, 0xd8, 0x10, 0x08, 0x1f, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0,
        ];
        let Ok(Action::Sample(s)) = decode_sample(Reader(&BODY), 4) else {
            panic!("not read")
        };
        let field = |text: &str| ObservationId::Field(text.parse().expect("a subfield"));
        assert_eq!(s.obs_domain_id, field("NXM_OF_IN_PORT[]"));
        assert_eq!(s.obs_point_id, field("NXM_NX_CT_LABEL[32..63]"));
        assert_eq!(
            (s.probability, s.collector_set_id, s.sampling_port),
            (12345, 23456, Port(0))
        );
        // 33 bits; and bits that the field does not have.
        for (at, ofs_nbits) in [(18, [0, 0x20]), (10, [0, 0x10])] {
            let mut odd = BODY;
            odd[at..at + 2].copy_from_slice(&ofs_nbits);
            assert!(decode_sample(Reader(&odd), 4).is_err());
        }
    }
}
