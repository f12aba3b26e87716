//! Actions that are carried and printed, but not executed yet.
//!
//! Each is checked as fully as one that is executed, keeps the bytes that it came as, and gets its text at
//! once. When one of them learns to run, it moves out of here into [`Action`].

use super::decode::{decode_list, is_output_port};
use super::field::{check_dst, check_src, from_nxm_ofs, pull_header};
use super::raw::Raw;
use super::verify::{Place, verify_actions};
use super::{learn, nat};
use crate::action::{Action, OpaqueAction, Port, Subfield};
use crate::codec::cursor::Reader;
use crate::codec::port::port_from_u16;
use crate::error::ErrorKind;
use crate::text::ActionsText;
use crate::version::Version;

const BAD_ARGUMENT: ErrorKind = ErrorKind::BadActionBadArgument;

/// Decodes the body `r` of an action whose bytes are `whole`.
pub(super) fn decode(
    version: Version,
    raw: Raw,
    r: Reader<'_>,
    whole: &[u8],
    depth: u8,
) -> Result<Action, ErrorKind> {
    let (name, text) = match raw {
        Raw::CtClear => ("ct_clear", "ct_clear".to_owned()),
        Raw::DecNshTtl => ("dec_nsh_ttl", "dec_nsh_ttl".to_owned()),
        Raw::Ct => ("ct", ct(version, r, depth)?),
        Raw::Nat => ("nat", nat::text(r)?),
        Raw::Learn => ("learn", learn::text(r, false)?),
        Raw::Learn2 => ("learn", learn::text(r, true)?),
        Raw::Conjunction => ("conjunction", conjunction(r)?),
        Raw::Multipath => ("multipath", multipath(r)?),
        Raw::Bundle => ("bundle", bundle(r, false)?),
        Raw::BundleLoad => ("bundle", bundle(r, true)?),
        Raw::FinTimeout => ("fin_timeout", fin_timeout(r)?),
        Raw::Sample => ("sample", sample(r, raw)?),
        Raw::Sample2 => ("sample", sample(r, raw)?),
        Raw::Sample3 => ("sample", sample(r, raw)?),
        Raw::CheckPktLarger => ("check_pkt_larger", check_pkt_larger(r)?),
        Raw::DeleteField => ("delete_field", delete_field(r)?),
        Raw::Encap => ("encap", encap(r)?),
        Raw::Decap => ("decap", decap(r)?),
        other => unreachable!("{other:?} is decoded by its own code"),
    };
    Ok(Action::Opaque(Box::new(OpaqueAction {
        name,
        text,
        wire: whole.to_vec(),
    })))
}

fn short(_: crate::codec::cursor::Short) -> ErrorKind {
    ErrorKind::BadActionBadLen
}

fn ct(version: Version, mut r: Reader<'_>, depth: u8) -> Result<String, ErrorKind> {
    const COMMIT: u16 = 1;
    const FORCE: u16 = 2;
    let flags = r.u16().map_err(short)?;
    let zone_src = r.u32().map_err(short)?;
    let zone = r.u16().map_err(short)?;
    let table = r.u8().map_err(short)?;
    r.skip(3).map_err(short)?;
    let alg = r.u16().map_err(short)?;
    if flags & FORCE != 0 && flags & COMMIT == 0 {
        return Err(BAD_ARGUMENT);
    }
    let mut parts = Vec::new();
    if flags & COMMIT != 0 {
        parts.push("commit".to_owned());
    }
    if flags & FORCE != 0 {
        parts.push("force".to_owned());
    }
    if table != 0xff {
        parts.push(format!("table={table}"));
    }
    if zone_src != 0 {
        let src = from_nxm_ofs(zone, zone_src)?;
        check_src(src, None)?;
        if src.n_bits != 16 {
            return Err(ErrorKind::BadActionBadSetLen);
        }
        parts.push(format!("zone={src}"));
    } else if zone != 0 {
        parts.push(format!("zone={zone}"));
    }
    let actions = decode_list(version, r.0, depth + 1)?;
    verify_actions(&actions, version, Place::Ct)?;
    let bare_nat = |a: &Action| matches!(a, Action::Opaque(o) if o.name == "nat" && nat::is_bare(&o.wire));
    if flags & COMMIT == 0 && !actions.iter().all(bare_nat) {
        return Err(BAD_ARGUMENT);
    }
    let exec = match actions.split_first() {
        Some((Action::Opaque(o), rest)) if o.name == "nat" => {
            parts.push(o.text.clone());
            rest
        }
        _ => &actions,
    };
    if !exec.is_empty() {
        parts.push(format!(
            "exec({})",
            ActionsText {
                actions: exec,
                names: None
            }
        ));
    }
    match alg {
        0 => {}
        21 => parts.push("alg=ftp".to_owned()),
        69 => parts.push("alg=tftp".to_owned()),
        n => parts.push(format!("alg={n}")),
    }
    Ok(format!("ct({})", parts.join(",")))
}

fn conjunction(mut r: Reader<'_>) -> Result<String, ErrorKind> {
    let (clause, n) = (r.u8().map_err(short)?, r.u8().map_err(short)?);
    let id = r.u32().map_err(short)?;
    if !(2..=64).contains(&n) || clause >= n {
        return Err(ErrorKind::BadActionBadConjunction);
    }
    Ok(format!("conjunction({id},{}/{n})", clause + 1))
}

/// The name of a set of fields that a hash takes.
fn hash_fields(v: u16) -> Result<&'static str, ErrorKind> {
    Ok(match v {
        0 => "eth_src",
        1 => "symmetric_l4",
        2 => "symmetric_l3l4",
        3 => "symmetric_l3l4+udp",
        4 => "nw_src",
        5 => "nw_dst",
        6 => "symmetric_l3",
        _ => return Err(BAD_ARGUMENT),
    })
}

fn multipath(mut r: Reader<'_>) -> Result<String, ErrorKind> {
    let (fields, basis) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    r.skip(2).map_err(short)?;
    let (algorithm, max_link) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let arg = r.u32().map_err(short)?;
    r.skip(2).map_err(short)?;
    let ofs_nbits = r.u16().map_err(short)?;
    let dst = from_nxm_ofs(ofs_nbits, r.u32().map_err(short)?)?;
    let fields = hash_fields(fields)?;
    let algorithm = match algorithm {
        0 => "modulo_n",
        1 => "hash_threshold",
        2 => "hrw",
        3 => "iter_hash",
        _ => return Err(BAD_ARGUMENT),
    };
    let links = u32::from(max_link) + 1;
    if dst.n_bits < 16 && links > 1 << dst.n_bits {
        return Err(BAD_ARGUMENT);
    }
    check_dst(dst, None)?;
    Ok(format!(
        "multipath({fields},{basis},{algorithm},{links},{arg},{dst})"
    ))
}

fn bundle(mut r: Reader<'_>, load: bool) -> Result<String, ErrorKind> {
    /// `NXM_OF_IN_PORT`: members are ports.
    const MEMBER_TYPE: u32 = 2;
    const MAX_MEMBERS: u16 = 2048;
    let algorithm = r.u16().map_err(short)?;
    let (fields, basis) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let member_type = r.u32().map_err(short)?;
    let n = r.u16().map_err(short)?;
    let (ofs_nbits, dst) = (r.u16().map_err(short)?, r.u32().map_err(short)?);
    let zero = r.u32().map_err(short)?;
    let short_list = r.len() < 2 * usize::from(n);
    let dst = if load {
        let dst = from_nxm_ofs(ofs_nbits, dst)?;
        if dst.n_bits < 16 && !short_list {
            return Err(BAD_ARGUMENT);
        }
        check_dst(dst, None)?;
        format!("{dst},")
    } else if short_list {
        return Err(ErrorKind::BadActionBadLen);
    } else if ofs_nbits != 0 || dst != 0 {
        return Err(BAD_ARGUMENT);
    } else {
        String::new()
    };
    let fields = hash_fields(fields)?;
    let algorithm = match algorithm {
        0 => "active_backup",
        1 => "hrw",
        _ => return Err(BAD_ARGUMENT),
    };
    if n > MAX_MEMBERS || member_type != MEMBER_TYPE || zero != 0 {
        return Err(BAD_ARGUMENT);
    }
    let mut members = Vec::with_capacity(n.into());
    for _ in 0..n {
        let port = port_from_u16(r.u16().map_err(short)?);
        if port != Port::NONE && (!is_output_port(port, Port::MAX) || port == Port::CONTROLLER) {
            return Err(ErrorKind::BadActionBadOutPort);
        }
        members.push(port.to_string());
    }
    let name = if load { "bundle_load" } else { "bundle" };
    Ok(format!(
        "{name}({fields},{basis},{algorithm},ofport,{dst}members:{})",
        members.join(",")
    ))
}

fn fin_timeout(mut r: Reader<'_>) -> Result<String, ErrorKind> {
    let (idle, hard) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let mut parts = Vec::new();
    if idle != 0 {
        parts.push(format!("idle_timeout={idle}"));
    }
    if hard != 0 {
        parts.push(format!("hard_timeout={hard}"));
    }
    Ok(format!("fin_timeout({})", parts.join(",")))
}

fn sample(mut r: Reader<'_>, raw: Raw) -> Result<String, ErrorKind> {
    let probability = r.u16().map_err(short)?;
    let (set, domain, point) = (
        r.u32().map_err(short)?,
        r.u32().map_err(short)?,
        r.u32().map_err(short)?,
    );
    let mut text = format!(
        "sample(probability={probability},collector_set_id={set},obs_domain_id={domain},obs_point_id={point}"
    );
    if raw != Raw::Sample {
        let port = port_from_u16(r.u16().map_err(short)?);
        let direction = r.u8().map_err(short)?;
        if port != Port::NONE {
            text += &format!(",sampling_port={port}");
        }
        if raw == Raw::Sample3 {
            if !r.is_zero() {
                return Err(ErrorKind::BadRequestMustBeZero);
            }
            text += match direction {
                0 => "",
                1 => ",ingress",
                2 => ",egress",
                _ => return Err(BAD_ARGUMENT),
            };
        }
    }
    if probability == 0 {
        Err(BAD_ARGUMENT)
    } else {
        Ok(text + ")")
    }
}

pub(super) fn output_trunc(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    /// An Ethernet header must remain.
    const MIN_LEN: u32 = 14;
    let port = port_from_u16(r.u16().map_err(short)?);
    let max_len = r.u32().map_err(short)?;
    if max_len < MIN_LEN {
        return Err(BAD_ARGUMENT);
    }
    Ok(Action::OutputTrunc { port, max_len })
}

fn check_pkt_larger(mut r: Reader<'_>) -> Result<String, ErrorKind> {
    let (len, ofs) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let dst = Subfield {
        field: pull_header(&mut r)?,
        ofs,
        n_bits: 1,
    };
    if !r.is_zero() {
        return Err(ErrorKind::BadRequestMustBeZero);
    }
    check_dst(dst, None)?;
    Ok(format!("check_pkt_larger({len})->{dst}"))
}

fn delete_field(mut r: Reader<'_>) -> Result<String, ErrorKind> {
    Ok(format!("delete_field:{}", pull_header(&mut r)?.name()))
}

/// Packet types that `encap` can push: namespace << 16 | type.
const ETHERNET: u32 = 0;
const NSH: u32 = 1 << 16 | 0x894f;
const MPLS: u32 = 1 << 16 | 0x8847;
const MPLS_MC: u32 = 1 << 16 | 0x8848;

fn encap(mut r: Reader<'_>) -> Result<String, ErrorKind> {
    r.skip(2).map_err(short)?;
    let ty = r.u32().map_err(short)?;
    // Properties (of NSH) are kept in the bytes; the text names the header only.
    Ok(match ty {
        ETHERNET => "encap(ethernet)".into(),
        NSH => "encap(nsh)".into(),
        MPLS => "encap(mpls)".into(),
        MPLS_MC => "encap(mpls_mc)".into(),
        _ => return Err(ErrorKind::BadActionBadHeaderType),
    })
}

fn decap(mut r: Reader<'_>) -> Result<String, ErrorKind> {
    /// "Whatever is next": the packet says.
    const NEXT: u32 = 0x0000_fffe;
    r.skip(2).map_err(short)?;
    let ty = r.u32().map_err(short)?;
    Ok(match ty {
        NEXT => "decap()".into(),
        _ => format!("decap(packet_type(ns={},type={:#x}))", ty >> 16, ty & 0xffff),
    })
}
