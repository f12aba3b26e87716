//! Hello, errors, features and configuration.

use super::ports;
use crate::error::{ErrorKind, parse_body};
use crate::message::{Capabilities, ConfigFlags, ErrorMsg, Hello, SwitchConfig, SwitchFeatures};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};

/// The only hello element: a bitmap of versions (OpenFlow 1.3.1 §7.5.1).
const VERSION_BITMAP: u16 = 1;

/// Reads a hello's elements. No fault of a hello is an error: elements that cannot be read are left out.
pub(super) fn decode_hello(mut r: Reader<'_>) -> Hello {
    let mut hello = Hello::default();
    while let (Ok(ty), Ok(len)) = (r.u16(), r.u16()) {
        let Some(body_len) = usize::from(len).checked_sub(4) else {
            break;
        };
        let padded = usize::from(len).next_multiple_of(8) - 4;
        let Ok(body) = r.bytes(padded.min(r.len())) else {
            break;
        };
        let Some(mut words) = body.get(..body_len).map(Reader) else {
            break;
        };
        if ty == VERSION_BITMAP {
            hello.bitmap = words.u32().ok();
        }
    }
    hello
}

pub(super) fn encode_hello(h: &Hello, out: &mut Vec<u8>) {
    if let Some(bitmap) = h.bitmap {
        out.u16(VERSION_BITMAP);
        out.u16(8);
        out.u32(bitmap);
    }
}

pub(super) fn decode_error(version: u8, r: Reader<'_>) -> Result<ErrorMsg, ErrorKind> {
    let (raw, data) = parse_body(version, r.0).ok_or(ErrorKind::BadRequestBadLen)?;
    let kind = Version::from_wire(version).and_then(|v| ErrorKind::from_code(v, raw));
    Ok(ErrorMsg {
        kind,
        raw,
        data: data.to_vec(),
    })
}

/// Capabilities that a version can name.
fn capabilities_in(version: Version) -> Capabilities {
    use Capabilities as C;
    let common = C::FLOW_STATS | C::TABLE_STATS | C::PORT_STATS | C::IP_REASM | C::QUEUE_STATS;
    common
        | match version {
            Version::V10 => C::ARP_MATCH_IP,
            Version::V11 => C::GROUP_STATS | C::ARP_MATCH_IP,
            Version::V12 | Version::V13 => C::GROUP_STATS | C::PORT_BLOCKED,
            Version::V14 | Version::V15 => C::GROUP_STATS | C::PORT_BLOCKED | C::BUNDLES | C::FLOW_MONITORING,
        }
}

pub(super) fn encode_features(version: Version, f: &SwitchFeatures, out: &mut Vec<u8>) {
    out.u64(f.datapath_id);
    out.u32(f.n_buffers);
    out.u8(f.n_tables);
    out.u8(if version >= Version::V13 {
        f.auxiliary_id
    } else {
        0
    });
    out.zeros(2);
    out.u32((f.capabilities & capabilities_in(version)).bits());
    out.u32(if version == Version::V10 { f.actions } else { 0 });
    if version < Version::V13 {
        // Ports that do not fit are left out: port descriptions have all.
        let room = usize::from(u16::MAX) - 32;
        let size = if version == Version::V10 { 48 } else { 64 };
        f.ports
            .iter()
            .take(room / size)
            .for_each(|p| ports::put_desc(version, p, out));
    }
}

pub(super) fn decode_features(version: Version, mut r: Reader<'_>) -> Result<SwitchFeatures, ErrorKind> {
    let mut f = SwitchFeatures {
        datapath_id: r.u64()?,
        n_buffers: r.u32()?,
        n_tables: r.u8()?,
        auxiliary_id: r.u8()?,
        ..SwitchFeatures::default()
    };
    r.skip(2)?;
    f.capabilities = Capabilities::from_bits_truncate(r.u32()?) & capabilities_in(version);
    let actions = r.u32()?;
    if version == Version::V10 {
        f.actions = actions;
    }
    while !r.is_empty() {
        if version >= Version::V13 {
            return Err(ErrorKind::BadRequestBadLen);
        }
        f.ports.push(ports::pull_desc(version, &mut r)?);
    }
    Ok(f)
}

pub(super) fn encode_config(c: &SwitchConfig, out: &mut Vec<u8>) {
    out.u16(c.flags.bits());
    out.u16(c.miss_send_len);
}

pub(super) fn decode_config(version: Version, mut r: Reader<'_>) -> Result<SwitchConfig, ErrorKind> {
    let (raw, miss_send_len) = (r.u16()?, r.u16()?);
    let mut known = ConfigFlags::FRAG_MASK;
    // The specifications of 1.1 and 1.2 have this bit; Open vSwitch has it in 1.0 too.
    if version < Version::V13 {
        known |= ConfigFlags::INVALID_TTL_TO_CONTROLLER;
    }
    if raw & !known.bits() != 0 {
        return Err(ErrorKind::SwitchConfigFailedBadFlags);
    }
    Ok(SwitchConfig {
        flags: ConfigFlags::from_bits_truncate(raw),
        miss_send_len,
    })
}
