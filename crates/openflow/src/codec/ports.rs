//! Port descriptions, port status, port modification, and the queues of ports.

use crate::action::Port;
use crate::error::ErrorKind;
use crate::message::{
    PortConfig, PortDesc, PortFeatures, PortMod, PortReason, PortState, PortStatus, QueueConfig,
    QueueGetConfig,
};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::port::{port_from_u16, port_from_u32, port_to_u16};
use crate::wire::property;

const NAME_LEN: usize = 16;
/// The Ethernet property of port descriptions and modifications (1.4 and later).
const ETHERNET: u16 = 0;

/// Features that 1.0 has at the same place, and the distance by which its other features are lower.
const SAME_10: u32 = 0x7f;
const SHIFT_10: u32 = 4;

fn features_to_10(f: PortFeatures) -> u32 {
    let media = PortFeatures::COPPER
        | PortFeatures::FIBER
        | PortFeatures::AUTONEG
        | PortFeatures::PAUSE
        | PortFeatures::PAUSE_ASYM;
    f.bits() & SAME_10 | (f & media).bits() >> SHIFT_10
}

fn features_from_10(v: u32) -> PortFeatures {
    PortFeatures::from_bits_truncate(v & SAME_10 | (v & 0xf80) << SHIFT_10)
}

/// Bits of the configuration that a version has.
fn config_bits(version: Version) -> PortConfig {
    if version == Version::V10 {
        PortConfig::all()
    } else {
        PortConfig::PORT_DOWN | PortConfig::NO_RECV | PortConfig::NO_FWD | PortConfig::NO_PACKET_IN
    }
}

fn state_bits(version: Version) -> PortState {
    if version == Version::V10 {
        PortState::LINK_DOWN | PortState::STP_LEARN | PortState::STP_FORWARD
    } else {
        PortState::LINK_DOWN | PortState::BLOCKED | PortState::LIVE
    }
}

/// Writes a port description.
pub(super) fn put_desc(version: Version, p: &PortDesc, out: &mut Vec<u8>) {
    let start = out.end();
    let config = (p.config & config_bits(version)).bits();
    let state = (p.state & state_bits(version)).bits();
    let features = [p.curr, p.advertised, p.supported, p.peer];
    if version == Version::V10 {
        out.u16(port_to_u16(p.port));
    } else {
        out.u32(p.port.0);
        out.zeros(4);
    }
    out.put(&p.hw_addr);
    if version != Version::V10 {
        out.zeros(2);
    }
    out.text(&p.name, NAME_LEN);
    out.u32(config);
    out.u32(state);
    match version {
        Version::V10 => features.into_iter().for_each(|f| out.u32(features_to_10(f))),
        Version::V11 | Version::V12 | Version::V13 => {
            features.into_iter().for_each(|f| out.u32(f.bits()));
            out.u32(p.curr_speed);
            out.u32(p.max_speed);
        }
        Version::V14 | Version::V15 => {
            let prop = property::begin(out, ETHERNET);
            out.zeros(4);
            features.into_iter().for_each(|f| out.u32(f.bits()));
            out.u32(p.curr_speed);
            out.u32(p.max_speed);
            property::finish(out, prop);
            out.patch_len(start, 4);
        }
    }
}

/// Reads a port description.
pub(super) fn pull_desc(version: Version, r: &mut Reader<'_>) -> Result<PortDesc, ErrorKind> {
    let mut p = PortDesc::default();
    let mut props = Reader(&[]);
    if version == Version::V10 {
        p.port = port_from_u16(r.u16()?);
    } else if version < Version::V14 {
        p.port = port_from_u32(r.u32()?)?;
        r.skip(4)?;
    } else {
        let mut head = *r;
        p.port = port_from_u32(head.u32()?)?;
        let len = usize::from(head.u16()?);
        let whole = r.bytes(len)?;
        let (fixed, rest) = whole.split_at_checked(40).ok_or(ErrorKind::BadRequestBadLen)?;
        let mut fixed = Reader(fixed.get(8..).unwrap_or(&[]));
        fill_common(version, &mut p, &mut fixed)?;
        props = Reader(rest);
    }
    if version < Version::V14 {
        fill_common(version, &mut p, r)?;
        let from = |v| {
            if version == Version::V10 {
                features_from_10(v)
            } else {
                PortFeatures::from_bits_truncate(v)
            }
        };
        p.curr = from(r.u32()?);
        p.advertised = from(r.u32()?);
        p.supported = from(r.u32()?);
        p.peer = from(r.u32()?);
        if version != Version::V10 {
            (p.curr_speed, p.max_speed) = (r.u32()?, r.u32()?);
        }
    }
    while !props.is_empty() {
        let prop = property::pull(&mut props)?;
        if prop.experimenter.is_none() && prop.ty == ETHERNET {
            let mut b = Reader(prop.nested()?);
            let mut next = || b.u32().map_err(|_| ErrorKind::BadPropertyBadLen);
            p.curr = PortFeatures::from_bits_truncate(next()?);
            p.advertised = PortFeatures::from_bits_truncate(next()?);
            p.supported = PortFeatures::from_bits_truncate(next()?);
            p.peer = PortFeatures::from_bits_truncate(next()?);
            (p.curr_speed, p.max_speed) = (next()?, next()?);
        }
    }
    Ok(p)
}

fn fill_common(version: Version, p: &mut PortDesc, r: &mut Reader<'_>) -> Result<(), ErrorKind> {
    p.hw_addr = r.array()?;
    if version != Version::V10 {
        r.skip(2)?;
    }
    p.name = r.text(NAME_LEN)?;
    p.config = PortConfig::from_bits_truncate(r.u32()?) & config_bits(version);
    p.state = PortState::from_bits_truncate(r.u32()?) & state_bits(version);
    Ok(())
}

/// Writes a port status message's body.
pub(super) fn encode_status(version: Version, s: &PortStatus, out: &mut Vec<u8>) {
    out.u8(s.reason as u8);
    out.zeros(7);
    put_desc(version, &s.desc, out);
}

/// Reads a port status message's body.
pub(super) fn decode_status(version: Version, mut r: Reader<'_>) -> Result<PortStatus, ErrorKind> {
    let reason = match r.u8()? {
        0 => PortReason::Add,
        1 => PortReason::Delete,
        2 => PortReason::Modify,
        _ => return Err(ErrorKind::BadRequestBadReason),
    };
    r.skip(7)?;
    let desc = pull_desc(version, &mut r)?;
    if r.is_empty() {
        Ok(PortStatus { reason, desc })
    } else {
        Err(ErrorKind::BadRequestBadLen)
    }
}

/// Reads a port modification.
pub(super) fn decode_mod(version: Version, mut r: Reader<'_>) -> Result<PortMod, ErrorKind> {
    let mut m = PortMod::default();
    if version == Version::V10 {
        m.port = port_from_u16(r.u16()?);
        m.hw_addr = r.array()?;
    } else {
        m.port = port_from_u32(r.u32()?)?;
        r.skip(4)?;
        m.hw_addr = r.array()?;
        r.skip(2)?;
    }
    m.config = PortConfig::from_bits_truncate(r.u32()?) & config_bits(version);
    m.mask = PortConfig::from_bits_truncate(r.u32()?) & config_bits(version);
    match version {
        Version::V10 => m.advertise = features_from_10(r.u32()?),
        Version::V11 | Version::V12 | Version::V13 => {
            m.advertise = PortFeatures::from_bits_truncate(r.u32()?);
        }
        Version::V14 | Version::V15 => {
            while !r.is_empty() {
                let p = property::pull(&mut r)?;
                if p.standard()? != ETHERNET {
                    return Err(ErrorKind::BadPropertyBadType);
                }
                m.advertise = PortFeatures::from_bits_truncate(p.u32()?);
            }
        }
    }
    m.config &= m.mask;
    Ok(m)
}

/// Writes a port modification.
pub(super) fn encode_mod(version: Version, m: &PortMod, out: &mut Vec<u8>) {
    if version == Version::V10 {
        out.u16(port_to_u16(m.port));
        out.put(&m.hw_addr);
    } else {
        out.u32(m.port.0);
        out.zeros(4);
        out.put(&m.hw_addr);
        out.zeros(2);
    }
    out.u32((m.config & config_bits(version)).bits());
    out.u32((m.mask & config_bits(version)).bits());
    match version {
        Version::V10 => out.u32(features_to_10(m.advertise)),
        Version::V11 | Version::V12 | Version::V13 => out.u32(m.advertise.bits()),
        Version::V14 | Version::V15 => {
            if !m.advertise.is_empty() {
                property::put(out, ETHERNET, &m.advertise.bits().to_be_bytes());
            }
            return;
        }
    }
    out.zeros(4);
}

/// Properties of queues: least and largest rate.
const MIN_RATE: u16 = 1;
const MAX_RATE: u16 = 2;

/// Reads a request for queues (1.0 to 1.3).
pub(super) fn decode_queue_request(version: Version, mut r: Reader<'_>) -> Result<QueueGetConfig, ErrorKind> {
    let port = if version == Version::V10 {
        let p = port_from_u16(r.u16()?);
        r.skip(2)?;
        p
    } else {
        let p = port_from_u32(r.u32()?)?;
        r.skip(4)?;
        p
    };
    // 1.0 cannot request all ports.
    if port > Port::MAX && (port != Port::NONE || version == Version::V10) {
        return Err(ErrorKind::QueueOpFailedBadPort);
    }
    Ok(QueueGetConfig { port, queue: None })
}

/// Writes a request for queues (1.0 to 1.3).
pub(super) fn encode_queue_request(version: Version, q: &QueueGetConfig, out: &mut Vec<u8>) {
    if version == Version::V10 {
        out.u16(port_to_u16(q.port));
        out.zeros(2);
    } else {
        out.u32(q.port.0);
        out.zeros(4);
    }
}

/// Writes the reply of 1.0 to 1.3.
pub(super) fn encode_queues(version: Version, q: &QueueConfig, out: &mut Vec<u8>) {
    if version == Version::V10 {
        out.u16(port_to_u16(q.port));
        out.zeros(6);
    } else {
        out.u32(q.port.0);
        out.zeros(4);
    }
    for (id, min, max) in &q.queues {
        let start = out.end();
        out.u32(*id);
        let len_at = if version < Version::V12 {
            out.zeros(4);
            4
        } else {
            out.u32(q.port.0);
            out.zeros(8);
            8
        };
        for (ty, rate) in [(MIN_RATE, min), (MAX_RATE, max)] {
            if let Some(rate) = rate {
                out.u16(ty);
                out.u16(16);
                out.zeros(4);
                out.u16(*rate);
                out.zeros(6);
            }
        }
        out.patch_len(start, len_at);
    }
}

/// Reads the reply of 1.0 to 1.3.
pub(super) fn decode_queues(version: Version, mut r: Reader<'_>) -> Result<QueueConfig, ErrorKind> {
    let mut q = QueueConfig::default();
    if version == Version::V10 {
        q.port = port_from_u16(r.u16()?);
        r.skip(6)?;
    } else {
        q.port = port_from_u32(r.u32()?)?;
        r.skip(4)?;
    }
    while !r.is_empty() {
        let mut head = r;
        let id = head.u32()?;
        let fixed = if version < Version::V12 {
            8
        } else {
            head.skip(4)?;
            16
        };
        let whole = r.bytes(head.u16()?.into())?;
        let props = whole.get(fixed..).ok_or(ErrorKind::BadRequestBadLen)?;
        q.queues
            .push((id, rate(props, MIN_RATE)?, rate(props, MAX_RATE)?));
    }
    Ok(q)
}

/// The rate that a list of queue properties gives for a type.
fn rate(props: &[u8], ty: u16) -> Result<Option<u16>, ErrorKind> {
    let mut r = Reader(props);
    let mut found = None;
    while !r.is_empty() {
        let p = property::pull(&mut r)?;
        if p.experimenter.is_none() && p.ty == ty {
            found = Some(
                Reader(p.nested()?)
                    .u16()
                    .map_err(|_| ErrorKind::BadPropertyBadLen)?,
            );
        }
    }
    Ok(found)
}

/// Writes one queue's description (1.4 and later).
pub(super) fn put_queue_desc(port: Port, queue: &(u32, Option<u16>, Option<u16>), out: &mut Vec<u8>) {
    let start = out.end();
    let (id, min, max) = queue;
    out.u32(port.0);
    out.u32(*id);
    out.zeros(8);
    for (ty, rate) in [(MIN_RATE, min), (MAX_RATE, max)] {
        if let Some(rate) = rate {
            property::put(out, ty, &rate.to_be_bytes());
        }
    }
    out.patch_len(start, 8);
}

/// Reads one queue's description (1.4 and later).
pub(super) fn pull_queue_desc(r: &mut Reader<'_>) -> Result<QueueConfig, ErrorKind> {
    let mut head = *r;
    let (port, id) = (port_from_u32(head.u32()?)?, head.u32()?);
    let whole = r.bytes(head.u16()?.into())?;
    let mut props = Reader(whole.get(16..).ok_or(ErrorKind::BadRequestBadLen)?);
    let (mut min, mut max) = (None, None);
    while !props.is_empty() {
        let p = property::pull(&mut props)?;
        match p.ty {
            MIN_RATE if p.experimenter.is_none() => min = Some(p.u16()?),
            MAX_RATE if p.experimenter.is_none() => max = Some(p.u16()?),
            _ => {}
        }
    }
    Ok(QueueConfig {
        port,
        queues: vec![(id, min, max)],
    })
}
