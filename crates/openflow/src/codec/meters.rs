//! Meter modifications, configurations and statistics (1.3 and later; the same in all of them).

use crate::error::ErrorKind;
use crate::message::{Band, BandKind, MeterCommand, MeterConfig, MeterFlags, MeterMod, MeterStats};
use crate::wire::cursor::{Put, Reader};

/// Length of every known band.
const BAND_LEN: u16 = 16;
const DROP: u16 = 1;
const DSCP_REMARK: u16 = 2;
/// The fixed part of statistics.
const STATS_LEN: usize = 40;

pub(super) fn decode_mod(mut r: Reader<'_>) -> Result<MeterMod, ErrorKind> {
    let (command, flags) = (r.u16()?, r.u16()?);
    let meter_id = r.u32()?;
    let command = match command {
        0 => MeterCommand::Add,
        1 => MeterCommand::Modify,
        2 => MeterCommand::Delete,
        _ => return Err(ErrorKind::MeterModFailedBadCommand),
    };
    let mut config = MeterConfig {
        meter_id,
        flags: MeterFlags::empty(),
        bands: Vec::new(),
    };
    if command != MeterCommand::Delete {
        config.flags = MeterFlags::from_bits_retain(flags);
        if config.flags.contains(MeterFlags::KBPS | MeterFlags::PKTPS) {
            return Err(ErrorKind::MeterModFailedBadFlags);
        }
        config.bands = bands(r)?;
    }
    Ok(MeterMod { command, config })
}

fn bands(mut r: Reader<'_>) -> Result<Vec<Band>, ErrorKind> {
    let mut all = Vec::new();
    while r.len() >= usize::from(BAND_LEN) {
        let (ty, len) = (r.u16()?, r.u16()?);
        if len != BAND_LEN {
            return Err(ErrorKind::BadRequestBadLen);
        }
        let (rate, burst_size) = (r.u32()?, r.u32()?);
        let [level, _, _, _] = r.array()?;
        let kind = match ty {
            DROP => BandKind::Drop,
            DSCP_REMARK => BandKind::DscpRemark(level),
            _ => return Err(ErrorKind::MeterModFailedBadBand),
        };
        all.push(Band {
            kind,
            rate,
            burst_size,
        });
    }
    if r.is_empty() {
        Ok(all)
    } else {
        Err(ErrorKind::BadRequestBadLen)
    }
}

fn put_bands(bands: &[Band], out: &mut Vec<u8>) {
    for b in bands {
        let (ty, level) = match b.kind {
            BandKind::Drop => (DROP, 0),
            BandKind::DscpRemark(level) => (DSCP_REMARK, level),
        };
        out.u16(ty);
        out.u16(BAND_LEN);
        out.u32(b.rate);
        out.u32(b.burst_size);
        out.put(&[level, 0, 0, 0]);
    }
}

pub(super) fn encode_mod(m: &MeterMod, out: &mut Vec<u8>) {
    out.u16(m.command as u16);
    out.u16(m.config.flags.bits());
    out.u32(m.config.meter_id);
    put_bands(&m.config.bands, out);
}

pub(super) fn put_config(c: &MeterConfig, out: &mut Vec<u8>) {
    let start = out.end();
    out.u16(0);
    out.u16(c.flags.bits());
    out.u32(c.meter_id);
    put_bands(&c.bands, out);
    out.patch_len(start, 0);
}

pub(super) fn pull_config(r: &mut Reader<'_>) -> Result<MeterConfig, ErrorKind> {
    let (len, flags) = (usize::from(r.u16()?), r.u16()?);
    let meter_id = r.u32()?;
    let body = r.bytes(len.checked_sub(8).ok_or(ErrorKind::BadRequestBadLen)?)?;
    Ok(MeterConfig {
        meter_id,
        flags: MeterFlags::from_bits_retain(flags),
        bands: bands(Reader(body))?,
    })
}

pub(super) fn put_stats(s: &MeterStats, out: &mut Vec<u8>) {
    let start = out.end();
    out.u32(s.meter_id);
    out.u16(0);
    out.zeros(6);
    out.u32(s.flow_count);
    out.u64(s.packet_in_count);
    out.u64(s.byte_in_count);
    out.u32(s.duration_sec);
    out.u32(s.duration_nsec);
    for (packets, bytes) in &s.bands {
        out.u64(*packets);
        out.u64(*bytes);
    }
    out.patch_len(start, 4);
}

pub(super) fn pull_stats(r: &mut Reader<'_>) -> Result<MeterStats, ErrorKind> {
    let meter_id = r.u32()?;
    let len = usize::from(r.u16()?);
    r.skip(6)?;
    let mut s = MeterStats {
        meter_id,
        flow_count: r.u32()?,
        packet_in_count: r.u64()?,
        byte_in_count: r.u64()?,
        duration_sec: r.u32()?,
        duration_nsec: r.u32()?,
        bands: Vec::new(),
    };
    let mut bands = Reader(r.bytes(len.checked_sub(STATS_LEN).ok_or(ErrorKind::BadRequestBadLen)?)?);
    while !bands.is_empty() {
        s.bands.push((bands.u64()?, bands.u64()?));
    }
    Ok(s)
}
