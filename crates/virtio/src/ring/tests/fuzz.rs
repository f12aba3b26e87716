//! A fuzzer for rings from the driver's side: bytes are a script of a hostile driver's writes and of the
//! device's looks.
//!
//! A script is worth keeping when it had a new outcome. An outcome is its errors, its drops, the amount that
//! was moved, and whether chains of several pieces were among it.
//!
//! * `cargo test` replays the corpus, `corpus/rings` of this crate, and a fixed number of mutants of it.
//! * `make fuzz [SECONDS=180] [KEEP=1]` continues for half of that time (the other half is for sessions), as
//!   `heddle-fuzz` describes.

use super::random::{Act, Desc, Offer, Seen, run};
use super::*;
use heddle_fuzz::{Bytes, Corpus, Dice, Fuzzer};
use std::collections::BTreeSet;

/// Longest script, bytes.
const MAX_LEN: usize = 400;

/// A script of a driver's acts.
struct Script<'a>(Bytes<'a>);

impl Script<'_> {
    /// An address near something, or anywhere.
    fn addr(&mut self) -> u64 {
        let off = u64::from(self.0.u16());
        match self.0.u8() % 8 {
            0 => off,
            1 => u64::MAX - off,
            2 => BASE + LEN as u64 - off,
            3 => BASE + (128 << 10) - 64 + off % 128,
            _ => BASE + off * 16,
        }
    }
    fn len(&mut self) -> u32 {
        let n = u32::from(self.0.u16());
        match self.0.u8() % 8 {
            0 => u32::MAX - n,
            1 => n * 4096,
            2 => n % 40,
            3 => 16 * (n % 20),
            _ => n % 3000,
        }
    }
    fn desc(&mut self) -> Desc {
        Desc {
            addr: self.addr(),
            len: self.len(),
            third: self.0.u16(),
            fourth: self.0.u16(),
        }
    }
    /// A chain of up to eight descriptors that are right but for, sometimes, one field.
    fn offer(&mut self) -> Act {
        const NEXT: u16 = 1;
        const WRITE: u16 = 2;
        let how = self.0.u8();
        let n = 1 + u16::from(how >> 4 & 7);
        let write = if how & 1 != 0 { WRITE } else { 0 };
        let descs = (0..n).map(|i| {
            let mut d = Desc {
                addr: BASE + (128 << 10) + 512 * u64::from(self.0.u8()),
                len: 8 * u32::from(self.0.u8()),
                third: write | if i + 1 < n { NEXT } else { 0 },
                fourth: i + 1,
            };
            match self.0.u8() {
                0 => d.addr = self.addr(),
                1 => d.len = self.len(),
                2 => d.third ^= 1 << (self.0.u8() % 16),
                3 => d.fourth = u16::from(self.0.u8() % 20),
                4 => d.fourth = self.0.u16(),
                _ => {}
            }
            d
        });
        Act::Offer(Offer {
            descs: descs.collect(),
            indirect: how & 2 != 0,
        })
    }
    fn act(&mut self) -> Act {
        let kind = self.0.u8();
        match kind % 16 {
            _ if kind >= 248 => Act::Reset,
            _ if kind >= 208 => self.offer(),
            0..=3 => Act::Desc(u16::from(self.0.u8() % 16), self.desc()),
            4 => {
                let at = (BASE + u64::from(self.0.u16() % 0x2000)) & !15;
                let n = 1 + self.0.u8() % 4;
                Act::Table(at, (0..n).map(|_| self.desc()).collect())
            }
            5 => Act::Head(u16::from(self.0.u8() % 16), self.0.u16() % 20),
            6 => Act::AvailIdx(self.0.u16() % 40),
            7 => Act::AvailIdx(self.0.u16()),
            8 => Act::Area(self.0.u8() % 2, self.0.u16() % 300, self.0.u16()),
            9 => {
                let at = self.addr();
                let n = 1 + self.0.u8() % 16;
                Act::Bytes(at, (0..n).map(|_| self.0.u8()).collect())
            }
            10 | 11 => Act::Receive,
            12 => Act::Complete,
            13 => {
                let n = 1 + self.0.u8() % 3;
                Act::Send((0..n).map(|_| 14 + usize::from(self.0.u16()) % 3000).collect())
            }
            14 => [Act::Arm, Act::Disarm][usize::from(self.0.u8() % 2)].clone(),
            _ => Act::Table2,
        }
    }
}

fn play(script: &[u8]) -> Seen {
    let mut script = Script(Bytes::new(script, MAX_LEN));
    let features = combinations().nth(usize::from(script.0.u8() % 32)).unwrap();
    let mut acts = Vec::new();
    while !script.0.is_empty() {
        acts.push(script.act());
    }
    run(features, &acts)
}

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), "rings")
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn the_corpus_and_mutants_of_it_break_nothing() {
    let corpus = corpus().scripts().unwrap();
    let seen: BTreeSet<Seen> = corpus.iter().map(|s| play(s)).collect();
    assert!(
        seen.len() * 2 > corpus.len(),
        "a corpus of many outcomes: {}",
        seen.len()
    );
    let mut dice = Dice::new(1);
    for _ in 0..2000 {
        play(&dice.mutant(&corpus, MAX_LEN));
    }
}

/// The named outcomes that the corpus is there to reach: the scripts get beyond the first checks.
#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn the_corpus_reaches_the_rings_refusals() {
    let seen: Vec<Seen> = corpus().scripts().unwrap().iter().map(|s| play(s)).collect();
    let names: BTreeSet<&str> = seen.iter().flat_map(|s| s.errors.iter().copied()).collect();
    for name in [
        "ring-avail-jump",
        "ring-buffer",
        "ring-direction",
        "ring-indirect-length",
        "ring-chain-too-long",
        "ring-runt-buffer",
        "ring-next",
        "ring-head",
        "ring-indirect-nested",
    ] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    assert!(
        seen.iter().any(|s| s.next_in_table),
        "an indirect table's `next` leads out of it"
    );
    assert!(seen.iter().any(|s| s.received > 0) && seen.iter().any(|s| s.sent > 0));
}

struct Rings;

impl Fuzzer for Rings {
    type Outcome = Seen;
    type OutcomeClass = (bool, String);
    const NAME: &'static str = "rings";
    const MAX_SCRIPT_LEN: usize = MAX_LEN;
    fn play(&self, script: &[u8]) -> (BTreeSet<Seen>, BTreeSet<(bool, String)>) {
        let seen = play(script);
        let parts = seen.parts().collect();
        ([seen].into(), parts)
    }
}

#[test]
#[ignore = "runs for FUZZ_SECONDS; make fuzz"]
fn explore() {
    heddle_fuzz::explore(&Rings, &corpus()).unwrap();
}
