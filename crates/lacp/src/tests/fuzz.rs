//! Frames of a hostile partner: mutants of messages, read side by side with a plain twin, by an aggregator
//! with three links.
//!
//! A script is a list of steps: a link, the time since the step before, and a frame.

use super::*;
use heddle_fuzz::{Bytes, Dice, rounds};

/// Maximum number of bytes of a frame in a script.
const MAX_FRAME_LEN: usize = 140;
/// Maximum number of steps of a script.
const MAX_STEPS: usize = 64;

/// [`payload_of`] and [`Pdu::read`] by offsets into the frame.
#[allow(clippy::type_complexity)] // the shape of the function that it checks
fn plain(frame: &[u8]) -> Option<Result<(Vec<u8>, Vec<u8>), PduError>> {
    let u16_at = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut at = 12;
    while matches!(u16_at(at)?, 0x8100 | 0x88a8) && at < 28 {
        at += 4;
    }
    if u16_at(at)? != 0x8809 {
        return None;
    }
    let pdu = &frame[at + 2..];
    Some(if pdu.len() < 110 {
        Err(PduError::Malformed)
    } else if pdu[0] == 2 {
        Err(PduError::Marker)
    } else if pdu[0] != 1 || pdu[2..4] != [1, 20] || pdu[22..24] != [2, 20] {
        Err(PduError::Malformed)
    } else {
        Ok((pdu[4..19].to_vec(), pdu[24..39].to_vec()))
    })
}

/// The bytes of one end of a link, in the order of a message.
fn end_bytes(info: &Info) -> Vec<u8> {
    let mut bytes = info.sys_priority.to_be_bytes().to_vec();
    bytes.extend(info.sys_id);
    for n in [info.key, info.port_priority, info.port_id] {
        bytes.extend(n.to_be_bytes());
    }
    bytes.push(info.state.0);
    bytes
}

/// Plays a script; returns the number of messages that were read.
fn play(script: &[u8]) -> usize {
    let mut one = Aggregator::new(settings(A));
    for i in 0..3 {
        one.set_link(i, link(i), 1000);
    }
    let (mut bytes, mut now_ms, mut read) = (Bytes::new(script, usize::MAX), 1000, 0);
    for _ in 0..MAX_STEPS {
        if bytes.is_empty() {
            break;
        }
        let (head, ms) = (bytes.u8(), bytes.u16());
        let len = usize::from(bytes.u8()).min(MAX_FRAME_LEN);
        let frame: Vec<u8> = (0..len).map(|_| bytes.u8()).collect();
        now_ms += u64::from(ms % 4096);
        let id = u32::from(head & 3);
        one.set_carrier(id, head & 4 == 0, now_ms);
        let seen = payload_of(&frame).map(|payload| Pdu::read(payload).map_err(|e| (e, payload)));
        let ends = |pdu: &Pdu| (end_bytes(&pdu.actor), end_bytes(&pdu.partner));
        let seen_ends = seen.as_ref().map(|r| r.as_ref().map(ends).map_err(|(e, _)| *e));
        assert_eq!(seen_ends, plain(&frame), "{frame:02x?}");
        if let Some(payload) = payload_of(&frame) {
            let received = one.receive(id, payload, now_ms);
            let is_message = matches!(seen, Some(Ok(_)));
            assert!(is_message || received != Received::Message, "{frame:02x?}");
            read += usize::from(received == Received::Message);
        }
        check(&mut one, now_ms);
    }
    read
}

/// At most one system with one key is attached, and the number of messages in return is bounded.
fn check(one: &mut Aggregator, now_ms: u64) {
    assert!(one.run(now_ms).len() <= 3);
    let attached = || one.links.iter().filter(|l| l.attached);
    let known = attached().filter(|l| !l.is_new);
    let systems: std::collections::BTreeSet<_> = known.map(|l| (l.partner.sys_id, l.partner.key)).collect();
    assert!(systems.len() <= 1);
    assert_eq!(one.negotiated, attached().count() > 0);
    assert!(one.wake_ms().is_none_or(|at| at > now_ms));
    let _ = (one.details(), one.statistics());
}

fn step(head: u8, ms: u16, frame: &[u8]) -> Vec<u8> {
    let mut step = vec![head];
    step.extend(ms.to_le_bytes());
    step.push(u8::try_from(frame.len()).unwrap());
    step.extend(frame);
    step
}

/// A message of one of two systems.
fn message(dice: &mut Dice) -> Vec<u8> {
    let mut end = |sys: u8| Info {
        sys_priority: 1,
        sys_id: [sys; 6],
        key: u16::from(dice.byte() & 1),
        port_priority: 1,
        port_id: u16::from(dice.byte() & 3),
        state: Flags(dice.byte()),
    };
    let (actor, partner) = (end(2), end(1));
    let mut bytes = frame([4; 6], &Pdu { actor, partner });
    if dice.roll(8) == 0 {
        bytes.splice(12..12, [0x81, 0, 0, 5]);
    }
    bytes
}

/// Messages with some bytes changed, cut, or followed by others.
fn script(dice: &mut Dice, seeds: &[Vec<u8>]) -> Vec<u8> {
    if dice.roll(4) == 0 {
        return dice.mutant(seeds, 4096);
    }
    let mut script = Vec::new();
    for _ in 0..=dice.roll(MAX_STEPS) {
        let mut bytes = message(dice);
        for _ in 0..dice.roll(3) {
            let at = dice.roll(bytes.len());
            bytes[at] = dice.byte();
        }
        if dice.roll(8) == 0 {
            bytes.truncate(dice.roll(bytes.len() + 1));
        }
        let ms = u16::from(dice.byte()) << dice.roll(5);
        script.extend(step(dice.byte(), ms, &bytes));
    }
    script
}

fn seeds() -> Vec<Vec<u8>> {
    let mut dice = Dice::new(1);
    let one = |dice: &mut Dice| step(0, 100, &message(dice));
    let mut marker = message(&mut dice);
    marker[14] = 2;
    vec![
        one(&mut dice),
        (0..8).flat_map(|_| one(&mut dice)).collect(),
        step(1, 10, &marker),
        step(2, 10, &[0; 60]),
    ]
}

#[test]
fn mutants_are_read_as_the_twin_reads_them() {
    let (seeds, mut dice) = (seeds(), Dice::new(7));
    assert!(seeds.iter().map(|s| play(s)).sum::<usize>() >= 8);
    let read: usize = (0..2_000).map(|_| play(&script(&mut dice, &seeds))).sum();
    assert!(read > 5_000, "{read}");
}

/// Mutants for as long as `heddle_fuzz` runs.
#[test]
#[ignore = "make fuzz"]
fn explore() {
    let seeds = seeds();
    let (runs, slowest) = rounds("lacpdus", |dice, kept| {
        *kept = script(dice, &seeds);
        play(kept);
    });
    println!("{runs} scripts, the slowest took {slowest:?}");
}
