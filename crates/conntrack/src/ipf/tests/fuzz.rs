//! Scripts of fragments, IPv4 and IPv6: in any order, overlapping, tiny, with false lengths and offsets. They
//! come from several ports, over time, with settings that change. A plain twin, which searches a list, has
//! the same results, datagrams and counters. Memory is bounded. A second table gets the same fragments with
//! broken bytes between them, and has to stay consistent.
//!
//! Each script of the corpus (`corpus/fragments`) has an outcome that no script before it has. `cargo test`
//! replays the corpus with a fixed number of mutants ([`heddle_fuzz`]). `make fuzz FUZZ=fragments` searches
//! for a limited time and, with `KEEP=1`, renews the corpus.

#![allow(clippy::cast_possible_truncation)] // parts of numbers on purpose

use super::*;
use crate::ipf::datagram::cost;
use crate::ipf::table::{MAX_BYTES, TIMEOUT_MS};
use heddle_fuzz::{Bytes, Corpus, Dice, Fuzzer};
use std::collections::BTreeSet;

type Seen = BTreeSet<String>;

fn pick<T: Copy>(bytes: &mut Bytes<'_>, of: &[T]) -> T {
    of[usize::from(bytes.u8()) % of.len()]
}

/// A fragment as its sender wants it to be read.
#[derive(Clone, Copy, Debug)]
struct Sent {
    ipv6: bool,
    options: bool,
    id: u8,
    port: u32,
    proto: u8,
    start: usize,
    /// Payload bytes that are there, and payload bytes according to the header.
    there: usize,
    claimed: usize,
    last: bool,
    /// Mask that changes the datagram's bytes; 0: none.
    forged: u8,
}

impl Sent {
    fn read(bytes: &mut Bytes<'_>) -> Self {
        let (flags, who) = (bytes.u8(), bytes.u8());
        let start = match bytes.u8() {
            n @ 0..200 => usize::from(n % 8) * 8,
            200..240 => 1208,
            n => 65_408 + usize::from(n - 240) * 8,
        };
        let there = match bytes.u8() {
            n @ 0..120 => usize::from(n % 4 + 1) * 8,
            n @ 120..200 => usize::from(n),
            200..230 => 1208,
            230..240 => 60_000,
            n => usize::from(n - 240),
        };
        let lie = pick(
            bytes,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, -1, 8, -8, 1000, -1000_isize],
        );
        Self {
            ipv6: flags & 1 != 0,
            options: flags & 2 != 0,
            last: flags & 0xc == 0xc,
            forged: if flags & 0xf0 == 0xf0 { 0x55 } else { 0 },
            id: who & 3,
            port: (who >> 2 & 3).into(),
            proto: [17, 17, 6, 1][usize::from(who >> 6)],
            start,
            there,
            claimed: there.saturating_add_signed(lie),
        }
    }
    fn payload(&self) -> Vec<u8> {
        let at = self.start + usize::from(self.id) * 11;
        (at..at + self.there)
            .map(|n| (n % 251) as u8 ^ self.forged)
            .collect()
    }
    /// Bytes from the IP header to the payload.
    fn headers(&self) -> usize {
        match (self.ipv6, self.options) {
            (false, o) => 20 + if o { 4 } else { 0 },
            (true, o) => 48 + if o { 8 } else { 0 },
        }
    }
    fn frame(&self) -> Vec<u8> {
        let mut f = vec![0; 14];
        let size = self.headers() + self.claimed;
        let units = self.start / 8;
        if self.ipv6 {
            let next = if self.options { 0 } else { 44 };
            f.extend([0x60, 0, 0, 0]);
            f.extend((((size - 40) & 0xffff) as u16).to_be_bytes());
            f.extend([next, 64]);
            f.extend([[1; 16], [2; 16]].concat());
            if self.options {
                f.extend([44, 0, 5, 2, 0, 0, 1, 0]);
            }
            f.extend([self.proto, 0]);
            f.extend(((units << 3) as u16 | u16::from(!self.last)).to_be_bytes());
            f.extend([0, 0, 0, self.id]);
        } else {
            f.extend([if self.options { 0x46 } else { 0x45 }, 0]);
            f.extend(((size & 0xffff) as u16).to_be_bytes());
            f.extend([0, self.id]);
            f.extend((units as u16 | if self.last { 0 } else { 0x2000 }).to_be_bytes());
            f.extend([64, self.proto, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
            if self.options {
                f.extend([148, 4, 0, 0]);
            }
            let sum = checksum(&f[14..]).to_be_bytes();
            f[24..26].copy_from_slice(&sum);
        }
        f.extend(self.payload());
        f
    }
    fn place(&self) -> FragmentContext {
        at(self.port)
    }
}

/// Identity of a datagram. The protocol is not part of it for IPv6.
type Name = (bool, u8, u32, u8);

#[derive(Clone, Debug)]
struct Datagram {
    name: Name,
    expires_ms: u64,
    pieces: Vec<(Sent, Vec<u8>)>,
}

impl Datagram {
    fn bytes(&self) -> usize {
        self.pieces
            .iter()
            .map(|(s, _)| cost(14 + s.headers() + s.there))
            .sum()
    }
    fn end(&self) -> Option<usize> {
        let last = self.pieces.iter().find(|(s, _)| s.last);
        last.map(|(s, _)| s.start + s.claimed)
    }
    fn takes(&self, new: &Sent) -> bool {
        let (from, to) = (new.start, new.start + new.claimed);
        let apart = |s: &Sent| s.start + s.claimed <= from || to <= s.start;
        let within = |end: usize| !new.last && to <= end;
        let cuts = |s: &Sent| new.last && s.start >= to;
        self.end().is_none_or(within) && self.pieces.iter().all(|(s, _)| apart(s) && !cuts(s))
    }
    fn whole(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![None; self.end()?];
        for (s, payload) in &self.pieces {
            for (to, b) in bytes[s.start..].iter_mut().zip(&payload[..s.claimed]) {
                *to = Some(*b);
            }
        }
        bytes.into_iter().collect()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Waits,
    Whole(Vec<u8>, usize),
    Refused(Refusal),
}

/// The datagrams that wait, oldest first, and the counters of IPv4 and IPv6.
#[derive(Debug)]
struct List {
    all: Vec<Datagram>,
    max: usize,
    min: [usize; 2],
    enabled: [bool; 2],
    /// Accepted, completed, expired, too small, overlapping, purged.
    counts: [[u64; 6]; 2],
}

impl List {
    fn count(&mut self, ipv6: bool, what: usize, n: usize) {
        self.counts[usize::from(ipv6)][what] += n as u64;
    }
    fn fragments(&self) -> usize {
        self.all.iter().map(|d| d.pieces.len()).sum()
    }
    fn bytes(&self) -> usize {
        self.all.iter().map(Datagram::bytes).sum()
    }
    fn expire(&mut self, now_ms: u64) -> bool {
        if self.all.first().is_none_or(|d| d.expires_ms > now_ms) {
            return false;
        }
        let d = self.all.remove(0);
        self.count(d.name.0, 2, d.pieces.len());
        true
    }
    /// Returns the oldest datagram of the port that holds the most bytes.
    fn to_evict(&self) -> Option<usize> {
        let held = |port: u32| -> usize {
            let of = self.all.iter().filter(|d| d.name.2 == port);
            of.map(Datagram::bytes).sum()
        };
        let port = self.all.iter().map(|d| (held(d.name.2), d.name.2)).max()?.1;
        self.all.iter().position(|d| d.name.2 == port)
    }
    fn offer(&mut self, now_ms: u64, s: Sent) -> Outcome {
        let v6 = usize::from(s.ipv6);
        if !self.enabled[v6] {
            return Outcome::Refused(Refusal::Disabled);
        }
        let before = if s.ipv6 { s.headers() - 48 } else { s.headers() };
        let sized = s.claimed <= s.there && s.claimed > 0 && (s.last || s.claimed.is_multiple_of(8));
        // A packet with the whole datagram is no fragment for IPv4, but a datagram by itself for IPv6 (RFC
        // 8200, 4.5).
        let part = s.ipv6 || s.start > 0 || !s.last;
        if !sized || !part || before + s.start + s.claimed > 65_535 {
            return Outcome::Refused(Refusal::Malformed);
        }
        if !s.last && s.headers() + s.claimed < self.min[v6] {
            self.count(s.ipv6, 3, 1);
            return Outcome::Refused(Refusal::TooSmall);
        }
        let name = (s.ipv6, s.id, s.port, if s.ipv6 { 0 } else { s.proto });
        self.expire(now_ms);
        if self.all.iter().any(|d| d.name == name && !d.takes(&s)) {
            self.count(s.ipv6, 4, 1);
            return Outcome::Refused(Refusal::Overlap);
        }
        let size = cost(14 + s.headers() + s.there);
        while self.fragments() >= self.max || self.bytes() + size > MAX_BYTES {
            let Some(i) = self.to_evict().filter(|i| self.all[*i].name != name) else {
                return Outcome::Refused(Refusal::Full);
            };
            let d = self.all.remove(i);
            self.count(d.name.0, 5, d.pieces.len());
        }
        self.count(s.ipv6, 0, 1);
        let i = self.all.iter().position(|d| d.name == name).unwrap_or_else(|| {
            self.all.push(Datagram {
                name,
                expires_ms: now_ms + TIMEOUT_MS,
                pieces: Vec::new(),
            });
            self.all.len() - 1
        });
        self.all[i].pieces.push((s, s.payload()));
        let Some(bytes) = self.all[i].whole() else {
            return Outcome::Waits;
        };
        let n = self.all.remove(i).pieces.len();
        self.count(s.ipv6, 1, n);
        Outcome::Whole(bytes, n)
    }
}

/// Both tables and the twin of the first one.
struct Play {
    ipf: Ipf<u32>,
    wild: Ipf<u32>,
    twin: List,
    now_ms: u64,
    seen: Seen,
}

impl Play {
    fn offer(&mut self, s: Sent) {
        let frame = s.frame();
        let outcome = match offer(&self.ipf, self.now_ms, &frame, s.place(), 7) {
            Offered::Waits => Outcome::Waits,
            Offered::Refused(why) => Outcome::Refused(why),
            Offered::Whole(d) => self.whole(&s, d),
        };
        self.seen.insert(match &outcome {
            Outcome::Whole(bytes, n) => format!("{} whole {} of {n}", s.ipv6, bytes.len().ilog2()),
            other => format!("{} {} {other:?}", s.ipv6, s.last),
        });
        assert_eq!(outcome, self.twin.offer(self.now_ms, s), "{s:?}");
        // The second table has no twin, so its result is not compared.
        drop(offer(&self.wild, self.now_ms, &frame, s.place(), 7));
    }
    fn whole(&self, s: &Sent, d: crate::ipf::Datagram<u32>) -> Outcome {
        let mut bytes = d.bytes().to_vec();
        let sum = d.sum_is_right();
        let _ = d.packet(&|| sum).read();
        let list = d.into_fragments();
        assert!(
            list.windows(2).all(|w| w[0].piece.end() == w[1].piece.start),
            "{s:?}"
        );
        // Only the payload is compared.
        let payload: usize = list.iter().map(|f| f.piece.len).sum();
        bytes.drain(..bytes.len().saturating_sub(payload));
        Outcome::Whole(bytes, list.len())
    }
    fn broken(&mut self, bytes: &mut Bytes<'_>) {
        let s = Sent::read(bytes);
        let mut frame = s.frame();
        let head = frame.len().min(14 + 64);
        for _ in 0..bytes.u8() % 4 {
            frame[14 + usize::from(bytes.u8()) % (head - 14)] = bytes.u8();
        }
        if bytes.u8() & 1 == 0 {
            frame.truncate(15 + usize::from(bytes.u8()));
        }
        // A right checksum, so that the table also reads the other fields.
        let end = 14 + usize::from(frame[14] & 0xf) * 4;
        if frame[14] >> 4 == 4 && end >= 34 && frame.len() >= end {
            frame[24..26].fill(0);
            let sum = checksum(&frame[14..end]).to_be_bytes();
            frame[24..26].copy_from_slice(&sum);
        }
        let outcome = offer(&self.wild, self.now_ms, &frame, s.place(), 7);
        if let Offered::Whole(d) = outcome {
            let sum = d.sum_is_right();
            let _ = d.packet(&|| sum).read();
            d.into_fragments();
        }
    }
    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.u8() {
            0..190 => self.offer(Sent::read(bytes)),
            190..220 => self.broken(bytes),
            220..226 => self.now_ms += pick(bytes, &[1, 1000, TIMEOUT_MS - 1, TIMEOUT_MS]),
            226..232 => {
                while !self.ipf.sweep(self.now_ms) {}
                while self.twin.expire(self.now_ms) {}
                while !self.wild.sweep(self.now_ms) {}
            }
            232..238 => {
                let n = pick(bytes, &[0, 1, 3, 20, 1000]);
                assert!(self.ipf.set_max(n) && self.wild.set_max(n));
                self.twin.max = n as usize;
            }
            238..242 => {
                let (v6, n) = (bytes.u8() & 1 == 1, pick(bytes, &[0, 400, 1280]));
                // Also values below the minimum of the command.
                for table in [&self.ipf, &self.wild] {
                    table.min[usize::from(v6)].store(n, Relaxed);
                }
                self.twin.min[usize::from(v6)] = n as usize;
            }
            242..244 => {
                let (v6, on) = (bytes.u8() & 1 == 1, bytes.u8() & 3 != 0);
                self.ipf.set_enabled(v6, on);
                self.twin.enabled[usize::from(v6)] = on;
            }
            // One port sends beginnings of datagrams that never end.
            _ => {
                let (of, n) = (Sent::read(bytes), bytes.u8() % 64);
                for id in 0..n {
                    self.offer(Sent {
                        id,
                        last: false,
                        ..of
                    });
                }
            }
        }
    }
    fn check(&self) {
        for (table, waiting) in [(&self.ipf, Some(self.twin.fragments())), (&self.wild, None)] {
            assert!(table.is_consistent());
            let (n, bytes) = (table.status().waiting as usize, table.table().held());
            assert!(bytes <= MAX_BYTES && n <= 1000, "{n} fragments, {bytes} bytes");
            assert!(waiting.is_none_or(|w| w == n));
        }
        assert_eq!(self.ipf.table().held(), self.twin.bytes());
        let counts = self.ipf.status().families.map(|f| {
            [
                f.accepted,
                f.completed,
                f.expired,
                f.too_small,
                f.overlap,
                f.purged,
            ]
        });
        assert_eq!(counts, self.twin.counts);
    }
}

fn play(script: &[u8]) -> Seen {
    let mut bytes = Bytes::new(script, Fragments::MAX_SCRIPT_LEN);
    let mut p = Play {
        ipf: small(),
        wild: small(),
        twin: List {
            all: Vec::new(),
            max: 1000,
            min: [0; 2],
            enabled: [true; 2],
            counts: [[0; 6]; 2],
        },
        now_ms: 1000,
        seen: Seen::new(),
    };
    while !bytes.is_empty() {
        p.step(&mut bytes);
        p.check();
    }
    let dropped = p.ipf.dropped();
    p.seen.insert(format!(
        "expired {}, purged {}",
        dropped.0.min(3),
        dropped.1.min(3)
    ));
    p.seen
}

struct Fragments;

impl Fuzzer for Fragments {
    type Outcome = String;
    type OutcomeClass = String;
    const NAME: &'static str = "fragments";
    const MAX_SCRIPT_LEN: usize = 500;
    fn play(&self, script: &[u8]) -> (Seen, Seen) {
        let seen = play(script);
        (seen.clone(), seen)
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        Dice::noise()
    }
}

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), Fragments::NAME)
}

/// The corpus, and mutants of it.
#[test]
fn scripts_of_fragments_break_nothing() {
    let scripts = corpus().scripts().unwrap();
    let seen: Seen = scripts.iter().flat_map(|s| play(s)).collect();
    assert!(seen.len() > 40, "{} outcomes: {seen:#?}", seen.len());
    let mut dice = Dice::new(3);
    for _ in 0..100 {
        play(&dice.mutant(&scripts, Fragments::MAX_SCRIPT_LEN));
    }
}

/// Floods of the largest fragments reach the bound of memory, and no more.
#[test]
fn memory_is_bounded() {
    // Sixty beginnings of 60,000 bytes from each of four ports, of UDP and then of TCP.
    let flood = |port: u8, proto: u8| [250, 0, proto << 6 | port << 2, 0, 235, 0, 60];
    let script: Vec<u8> = (0..8).flat_map(|n| flood(n % 4, n / 4 * 2)).collect();
    let seen = play(&script);
    assert!(seen.contains("expired 0, purged 3"), "{seen:?}");
}

/// `make fuzz FUZZ=fragments`.
#[test]
#[ignore = "as long as FUZZ_SECONDS says"]
fn explore() {
    heddle_fuzz::explore(&Fragments, &corpus()).unwrap();
}
