//! Messages of hosts and routers; mutants of them, read side by side with a plain twin.

use super::*;
use heddle_fuzz::{Dice, rounds};
use std::net::IpAddr;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |p: &[u8]| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// A frame of IPv4, with a router alert option.
fn igmp(src: [u8; 4], mut body: Vec<u8>) -> Vec<u8> {
    let sum = plain_sum(&body);
    body[2..4].copy_from_slice(&(!sum).to_be_bytes());
    let mut frame = bytes("01005e000016 020000000001 0800 46c0");
    frame.extend(u16::try_from(24 + body.len()).unwrap().to_be_bytes());
    frame.extend(bytes("0000 4000 01 02 0000"));
    frame.extend(src);
    frame.extend(bytes("e0000016 94040000"));
    frame.extend(body);
    frame
}

/// A frame of IPv6, with these bytes in front of its hop-by-hop header.
fn mld(src: [u8; 16], tag: &[u8], mut body: Vec<u8>) -> Vec<u8> {
    let mut summed = src.to_vec();
    let dst = bytes("ff020000000000000000000000000016");
    summed.extend(&dst);
    summed.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    summed.extend([0, 0, 0, 58]);
    summed.extend(&body);
    let sum = plain_sum(&summed);
    body[2..4].copy_from_slice(&(!sum).to_be_bytes());
    let mut frame = bytes("333300000016 020000000001");
    frame.extend(tag);
    frame.extend(bytes("86dd 60000000"));
    frame.extend(u16::try_from(8 + body.len()).unwrap().to_be_bytes());
    frame.extend([0, 1]);
    frame.extend(src);
    frame.extend(dst);
    frame.extend(bytes("3a00050200000100"));
    frame.extend(body);
    frame
}

/// The ones'-complement sum, word by word.
fn plain_sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// The message of a frame.
#[derive(Debug, PartialEq)]
enum Seen {
    Query(bool),
    Report(Vec<(IpAddr, Option<Protocol>)>),
}

fn seen(frame: &[u8], is_summed: bool) -> Option<Seen> {
    Some(match read(frame, is_summed)? {
        Message::Query { has_source } => Seen::Query(has_source),
        Message::Report(records) => {
            Seen::Report(records.map(|r| (r.group.to_canonical(), r.joins)).collect())
        }
    })
}

/// [`read`] by offsets into the frame, without views.
fn plain(frame: &[u8], is_summed: bool) -> Option<Seen> {
    let u8_at = |at: usize| frame.get(at).copied();
    let u16_at = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let mut at = 12;
    let mut tags = 0;
    while matches!(u16_at(at)?, 0x8100 | 0x88a8) && tags < 4 {
        at += 4;
        tags += 1;
    }
    let (ty, ip) = (u16_at(at)?, at + 2);
    let v6 = ty == 0x86dd;
    let (start, end, src) = match ty {
        0x0800 => {
            frame.get(ip..ip + 20)?;
            let header = usize::from(u8_at(ip)? & 15) * 4;
            if u8_at(ip + 9)? != 2 || u16_at(ip + 6)? & 0x3fff != 0 || header < 20 {
                return None;
            }
            let total = usize::from(u16_at(ip + 2)?);
            (ip + header, ip + total, frame.get(ip + 12..ip + 16)?)
        }
        0x86dd => {
            frame.get(ip..ip + 40)?;
            let end = ip + 40 + usize::from(u16_at(ip + 4)?);
            let (mut next, mut at) = (u8_at(ip + 6)?, ip + 40);
            while next != 58 {
                if at + 8 > end {
                    return None;
                }
                let len = usize::from(u8_at(at + 1)?);
                let size = match next {
                    0 | 43 | 60 => 8 + len * 8,
                    51 => 8 + len * 4,
                    _ => return None,
                };
                next = u8_at(at)?;
                at += size;
            }
            (at, end, frame.get(ip + 8..ip + 24)?)
        }
        _ => return None,
    };
    let body = frame.get(start..end).filter(|b| b.len() >= 8)?;
    let mut summed = Vec::new();
    if v6 {
        summed.extend_from_slice(frame.get(ip + 8..ip + 40)?);
        summed.extend(u32::try_from(body.len()).ok()?.to_be_bytes());
        summed.extend([0, 0, 0, 58]);
    }
    summed.extend_from_slice(body);
    if !is_summed && plain_sum(&summed) != 0xffff {
        return None;
    }
    let address = |at: usize| -> Option<IpAddr> {
        Some(if v6 {
            IpAddr::from(<[u8; 16]>::try_from(body.get(at..at + 16)?).ok()?).to_canonical()
        } else {
            IpAddr::from(<[u8; 4]>::try_from(body.get(at..at + 4)?).ok()?)
        })
    };
    let has_source = src.iter().any(|b| *b != 0);
    let one = |at, joins| Some(vec![(address(at)?, joins)]);
    let found = match (v6, body[0]) {
        (false, 0x11) => return Some(Seen::Query(has_source)),
        (true, 130) if body.len() >= 24 => return Some(Seen::Query(has_source)),
        (false, 0x12) => one(4, Some(Protocol::Igmp1))?,
        (false, 0x16) => one(4, Some(Protocol::Igmp2))?,
        (false, 0x17) => one(4, None)?,
        (true, 131) => one(8, Some(Protocol::Mld1))?,
        (true, 132) => one(8, None)?,
        (false, 0x22) | (true, 143) => {
            let (fixed, width) = if v6 { (20, 16) } else { (8, 4) };
            let n = u16::from_be_bytes([body[6], body[7]]).min(MAX_RECORDS);
            let (mut at, mut all) = (8, Vec::new());
            for _ in 0..n {
                let Some(r) = body.get(at..at + fixed) else { break };
                let sources = usize::from(u16::from_be_bytes([r[2], r[3]]));
                if (1..=6).contains(&r[0]) {
                    let leaves = sources == 0 && (r[0] == 1 || r[0] == 3);
                    let protocol = if v6 { Protocol::Mld2 } else { Protocol::Igmp3 };
                    all.push((address(at + 4)?, (!leaves).then_some(protocol)));
                }
                at += fixed + sources * width + usize::from(r[1]) * 4;
            }
            all
        }
        _ => return None,
    };
    Some(Seen::Report(
        found.into_iter().filter(|(ip, _)| ip.is_multicast()).collect(),
    ))
}

fn v4(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Messages of all kinds.
fn seeds() -> Vec<Vec<u8>> {
    let local = |last| {
        let mut a = [0; 16];
        (a[0], a[1], a[15]) = (0xfe, 0x80, last);
        a
    };
    let tag = bytes("8100000a");
    vec![
        igmp([10, 0, 0, 1], bytes("11640000 00000000 027d0000")),
        igmp([0; 4], bytes("11640000 00000000 027d0000")),
        igmp([10, 0, 0, 2], bytes("12000000 ef010101")),
        igmp([10, 0, 0, 2], bytes("16000000 ef010102")),
        igmp([10, 0, 0, 2], bytes("17000000 ef010102")),
        igmp(
            [10, 0, 0, 2],
            bytes(
                "22000000 00000005 04000000ef010103 03000000ef010104 01010002ef0101050a0000010a000002deadbeef \
                   09000000ef010106 020000000a000001",
            ),
        ),
        mld(
            local(1),
            &[],
            bytes("82000000 27100000 00000000000000000000000000000000"),
        ),
        mld(
            [0; 16],
            &tag,
            bytes("82000000 27100000 00000000000000000000000000000000"),
        ),
        mld(
            local(2),
            &[],
            bytes("83000000 00000000 ff050000000000000000000000000001"),
        ),
        mld(
            local(2),
            &tag,
            bytes("84000000 00000000 ff050000000000000000000000000001"),
        ),
        mld(
            local(2),
            &[],
            bytes(
                "8f000000 00000003 04000000ff050000000000000000000000000003 \
                   03000000ff050000000000000000000000000004 \
                   05000001ff050000000000000000000000000005fe800000000000000000000000000009",
            ),
        ),
    ]
}

#[test]
fn messages_of_all_versions_are_read() {
    use Protocol::*;
    let all: Vec<Option<Seen>> = seeds().iter().map(|f| seen(f, false)).collect();
    let report = |list: &[(&str, Option<Protocol>)]| {
        Some(Seen::Report(list.iter().map(|(a, p)| (v4(a), *p)).collect()))
    };
    assert_eq!(
        all,
        [
            Some(Seen::Query(true)),
            Some(Seen::Query(false)),
            report(&[("239.1.1.1", Some(Igmp1))]),
            report(&[("239.1.1.2", Some(Igmp2))]),
            report(&[("239.1.1.2", None)]),
            // A record of an unknown type, and one about an address of a host, are skipped.
            report(&[
                ("239.1.1.3", Some(Igmp3)),
                ("239.1.1.4", None),
                ("239.1.1.5", Some(Igmp3))
            ]),
            Some(Seen::Query(true)),
            Some(Seen::Query(false)),
            report(&[("ff05::1", Some(Mld1))]),
            report(&[("ff05::1", None)]),
            report(&[
                ("ff05::3", Some(Mld2)),
                ("ff05::4", None),
                ("ff05::5", Some(Mld2))
            ]),
        ]
    );
}

#[test]
fn wrong_checksums_and_cut_messages_are_refused() {
    for frame in seeds() {
        for cut in 0..frame.len() {
            assert_eq!(read(&frame[..cut], false), None, "{frame:02x?} to {cut}");
        }
        let mut bad = frame.clone();
        *bad.last_mut().unwrap() ^= 0x55;
        assert_eq!(read(&bad, false), None);
        assert!(read(&bad, true).is_some());
        // Padding of the frame is no part of the message.
        let mut padded = frame.clone();
        padded.extend([7; 9]);
        assert_eq!(seen(&padded, false), seen(&frame, false));
    }
}

#[test]
fn a_message_with_very_many_records_is_read_up_to_the_limit() {
    let mut body = bytes("22000000 0000ffff");
    for n in 0..1000_u16 {
        body.extend([4, 0, 0, 0, 239, 9]);
        body.extend(n.to_be_bytes());
    }
    let frame = igmp([10, 0, 0, 2], body);
    let Some(Message::Report(records)) = read(&frame, false) else {
        panic!("no report");
    };
    assert_eq!(records.count(), usize::from(MAX_RECORDS));
}

/// A mutant is read as the twin reads it.
fn check(frame: &[u8], is_summed: bool) {
    assert_eq!(seen(frame, is_summed), plain(frame, is_summed), "{frame:02x?}");
}

fn check_mutant(dice: &mut Dice, seeds: &[Vec<u8>], script: &mut Vec<u8>) {
    *script = match dice.roll(3) {
        0 => dice.mutant(seeds, 1600),
        _ => {
            let mut frame = seeds[dice.roll(seeds.len())].clone();
            for _ in 0..dice.roll(4) {
                let at = dice.roll(frame.len());
                frame[at] = dice.byte();
            }
            frame
        }
    };
    // Most mutants have wrong checksums.
    check(script, dice.roll(8) > 0);
}

#[test]
fn mutants_are_read_as_the_twin_reads_them() {
    let (seeds, mut dice) = (seeds(), Dice::new(7));
    for _ in 0..20_000 {
        check_mutant(&mut dice, &seeds, &mut Vec::new());
    }
}

/// Mutants for as long as `heddle_fuzz` runs.
#[test]
#[ignore = "make fuzz"]
fn explore() {
    let seeds = seeds();
    let (runs, slowest) = rounds("memberships", |dice, script| check_mutant(dice, &seeds, script));
    println!("{runs} messages, the slowest took {slowest:?}");
}
