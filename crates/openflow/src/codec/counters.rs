//! Counters of ports and queues, the switch's description, and features of groups and meters.

use crate::action::Port;
use crate::error::ErrorKind;
use crate::message::{DescStats, GroupFeatures, IpfixStats, MeterFeatures, PortStats, QueueStats};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::port::{port_from_u16, port_from_u32, port_to_u16};
use crate::wire::property;

const DESC_LEN: usize = 256;
const SERIAL_LEN: usize = 32;

pub(super) fn put_desc(d: &DescStats, out: &mut Vec<u8>) {
    out.text(&d.mfr_desc, DESC_LEN);
    out.text(&d.hw_desc, DESC_LEN);
    out.text(&d.sw_desc, DESC_LEN);
    out.text(&d.serial_num, SERIAL_LEN);
    out.text(&d.dp_desc, DESC_LEN);
}

pub(super) fn pull_desc(r: &mut Reader<'_>) -> Result<DescStats, ErrorKind> {
    Ok(DescStats {
        mfr_desc: r.text(DESC_LEN)?,
        hw_desc: r.text(DESC_LEN)?,
        sw_desc: r.text(DESC_LEN)?,
        serial_num: r.text(SERIAL_LEN)?,
        dp_desc: r.text(DESC_LEN)?,
    })
}

/// The Ethernet property of port counters (1.4 and later).
const ETHERNET: u16 = 0;
/// Intel's experimenter id, and its type for counters with names.
const INTEL: u32 = 0x0000_aa01;
const INTEL_CUSTOM: u32 = 2;
/// The fixed part of 1.4's port counters.
const FIXED_14: usize = 80;

/// Writes one port's counters.
pub(super) fn put_port(version: Version, s: &PortStats, out: &mut Vec<u8>) {
    let start = out.end();
    match version {
        Version::V10 => {
            out.u16(port_to_u16(s.port));
            out.zeros(6);
        }
        Version::V11 | Version::V12 | Version::V13 => {
            out.u32(s.port.0);
            out.zeros(4);
        }
        Version::V14 | Version::V15 => {
            out.zeros(4);
            out.u32(s.port.0);
            out.u32(s.duration_sec);
            out.u32(s.duration_nsec);
        }
    }
    let common = [
        s.rx_packets,
        s.tx_packets,
        s.rx_bytes,
        s.tx_bytes,
        s.rx_dropped,
        s.tx_dropped,
        s.rx_errors,
        s.tx_errors,
    ];
    let ethernet = [s.rx_frame_err, s.rx_over_err, s.rx_crc_err, s.collisions];
    common.into_iter().for_each(|v| out.u64(v));
    if version < Version::V14 {
        ethernet.into_iter().for_each(|v| out.u64(v));
        if version == Version::V13 {
            out.u32(s.duration_sec);
            out.u32(s.duration_nsec);
        }
        return;
    }
    let prop = property::begin(out, ETHERNET);
    out.zeros(4);
    ethernet.into_iter().for_each(|v| out.u64(v));
    property::finish(out, prop);
    // The length of each name is a byte.
    for chunk in s.custom.chunks(usize::from(u8::MAX)) {
        let prop = property::begin(out, 0xffff);
        out.u32(INTEL);
        out.u32(INTEL_CUSTOM);
        out.zeros(2);
        out.u16(u16::try_from(chunk.len()).expect("chunks of 255"));
        for (name, value) in chunk {
            let len = name.len().min(u8::MAX.into());
            out.u8(u8::try_from(len).expect("at most 255"));
            out.put(name.as_bytes().get(..len).unwrap_or(&[]));
            out.u64(*value);
        }
        property::finish(out, prop);
    }
    out.patch_len(start, 0);
}

/// Reads one port's counters.
pub(super) fn pull_port(version: Version, r: &mut Reader<'_>) -> Result<PortStats, ErrorKind> {
    let mut s = PortStats::unknown(Port::NONE);
    let mut props = Reader(&[]);
    let mut fixed = *r;
    match version {
        Version::V10 => {
            s.port = port_from_u16(r.u16()?);
            r.skip(6)?;
        }
        Version::V11 | Version::V12 | Version::V13 => {
            s.port = port_from_u32(r.u32()?)?;
            r.skip(4)?;
        }
        Version::V14 | Version::V15 => {
            let len = { *r }.u16()?;
            let whole = r.bytes(len.into())?;
            let (head, rest) = whole
                .split_at_checked(FIXED_14)
                .ok_or(ErrorKind::BadRequestBadLen)?;
            (fixed, props) = (Reader(head), Reader(rest));
            fixed.skip(4)?;
            s.port = port_from_u32(fixed.u32()?)?;
            (s.duration_sec, s.duration_nsec) = (fixed.u32()?, fixed.u32()?);
        }
    }
    let v14 = version >= Version::V14;
    let from = if v14 { &mut fixed } else { &mut *r };
    for v in [
        &mut s.rx_packets,
        &mut s.tx_packets,
        &mut s.rx_bytes,
        &mut s.tx_bytes,
        &mut s.rx_dropped,
        &mut s.tx_dropped,
        &mut s.rx_errors,
        &mut s.tx_errors,
    ] {
        *v = from.u64()?;
    }
    if !v14 {
        pull_ethernet(&mut s, r)?;
        if version == Version::V13 {
            (s.duration_sec, s.duration_nsec) = (r.u32()?, r.u32()?);
        }
    }
    while !props.is_empty() {
        let p = property::pull(&mut props)?;
        match p.experimenter {
            None if p.ty == ETHERNET => pull_ethernet(&mut s, &mut Reader(p.nested()?))?,
            Some((INTEL, INTEL_CUSTOM)) => {
                let mut b = Reader(p.body);
                b.skip(2)?;
                let n = b.u16()?;
                for _ in 0..n {
                    let len = b.u8()?;
                    let name = String::from_utf8_lossy(b.bytes(len.into())?).into_owned();
                    s.custom.push((name, b.u64()?));
                }
            }
            _ => {}
        }
    }
    Ok(s)
}

fn pull_ethernet(s: &mut PortStats, r: &mut Reader<'_>) -> Result<(), ErrorKind> {
    s.rx_frame_err = r.u64()?;
    s.rx_over_err = r.u64()?;
    s.rx_crc_err = r.u64()?;
    s.collisions = r.u64()?;
    Ok(())
}

/// Writes one queue's counters.
pub(super) fn put_queue(version: Version, s: &QueueStats, out: &mut Vec<u8>) {
    let start = out.end();
    match version {
        Version::V10 => {
            out.u16(port_to_u16(s.port));
            out.zeros(2);
        }
        Version::V11 | Version::V12 | Version::V13 => out.u32(s.port.0),
        Version::V14 | Version::V15 => {
            out.zeros(8);
            out.u32(s.port.0);
        }
    }
    out.u32(s.queue);
    out.u64(s.tx_bytes);
    out.u64(s.tx_packets);
    out.u64(s.tx_errors);
    if version >= Version::V13 {
        out.u32(s.duration_sec);
        out.u32(s.duration_nsec);
    }
    if version >= Version::V14 {
        out.patch_len(start, 0);
    }
}

/// Reads one queue's counters.
pub(super) fn pull_queue(version: Version, r: &mut Reader<'_>) -> Result<QueueStats, ErrorKind> {
    let mut whole = *r;
    if version >= Version::V14 {
        let len = { *r }.u16()?;
        whole = Reader(r.bytes(len.into())?);
        whole.skip(8)?;
    }
    let b = if version >= Version::V14 { &mut whole } else { r };
    let port = if version == Version::V10 {
        let p = port_from_u16(b.u16()?);
        b.skip(2)?;
        p
    } else {
        port_from_u32(b.u32()?)?
    };
    let mut s = QueueStats {
        port,
        queue: b.u32()?,
        tx_bytes: b.u64()?,
        tx_packets: b.u64()?,
        tx_errors: b.u64()?,
        duration_sec: u32::MAX,
        duration_nsec: u32::MAX,
    };
    if version >= Version::V13 {
        (s.duration_sec, s.duration_nsec) = (b.u32()?, b.u32()?);
    }
    Ok(s)
}

pub(super) fn put_group_features(f: &GroupFeatures, out: &mut Vec<u8>) {
    out.u32(f.types);
    out.u32(f.capabilities);
    f.max_groups.iter().chain(&f.actions).for_each(|v| out.u32(*v));
}

pub(super) fn pull_group_features(r: &mut Reader<'_>) -> Result<GroupFeatures, ErrorKind> {
    let mut f = GroupFeatures {
        types: r.u32()?,
        capabilities: r.u32()?,
        ..GroupFeatures::default()
    };
    for v in f.max_groups.iter_mut().chain(&mut f.actions) {
        *v = r.u32()?;
    }
    Ok(f)
}

pub(super) fn put_ipfix(s: &IpfixStats, out: &mut Vec<u8>) {
    let counters = [
        s.total_flows,
        s.current_flows,
        s.packets,
        s.ipv4_packets,
        s.ipv6_packets,
        s.error_packets,
        s.ipv4_error_packets,
        s.ipv6_error_packets,
        s.tx_packets,
        s.tx_errors,
    ];
    counters.into_iter().for_each(|n| out.u64(n));
    out.u32(s.collector_set);
    out.zeros(4);
}

pub(super) fn pull_ipfix(r: &mut Reader<'_>) -> Result<IpfixStats, ErrorKind> {
    let s = IpfixStats {
        total_flows: r.u64()?,
        current_flows: r.u64()?,
        packets: r.u64()?,
        ipv4_packets: r.u64()?,
        ipv6_packets: r.u64()?,
        error_packets: r.u64()?,
        ipv4_error_packets: r.u64()?,
        ipv6_error_packets: r.u64()?,
        tx_packets: r.u64()?,
        tx_errors: r.u64()?,
        collector_set: r.u32()?,
    };
    r.skip(4)?;
    Ok(s)
}

pub(super) fn put_meter_features(f: &MeterFeatures, out: &mut Vec<u8>) {
    out.u32(f.max_meters);
    out.u32(f.band_types);
    out.u32(f.capabilities);
    out.u8(f.max_bands);
    out.u8(f.max_color);
    out.zeros(2);
}

pub(super) fn pull_meter_features(r: &mut Reader<'_>) -> Result<MeterFeatures, ErrorKind> {
    let f = MeterFeatures {
        max_meters: r.u32()?,
        band_types: r.u32()?,
        capabilities: r.u32()?,
        max_bands: r.u8()?,
        max_color: r.u8()?,
    };
    r.skip(2)?;
    Ok(f)
}
