//! A fuzzer for rings from the driver's side: bytes are a script of what a hostile driver writes and when the device looks.
//!
//! It runs on the stable toolchain, without instrumentation: an input is worth keeping when it has an outcome that none before it
//! had (which errors, which drops, how much was moved and whether chains of several pieces were among it).
//!
//! * `cargo test` replays the corpus, `corpus/rings` of this crate, and a fixed number of mutants of it.
//! * `make fuzz [SECONDS=180] [KEEP=1]` goes on for half of that (the other half is for sessions). A script that fails is kept in a file that is named; a
//!   fault of memory leaves the seed, with which the run is repeated (`FUZZ_SEED`). With `KEEP=1` the
//!   corpus becomes the shortest scripts that together do all that was seen.

use super::random::{Act, Desc, Offer, Seen, run};
use super::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest script, bytes.
const MAX_LEN: usize = 400;

/// Reads a script; missing bytes are zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(f, r)| (*f, r));
        self.0 = rest;
        first
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }
    /// An address near something, or anywhere.
    fn addr(&mut self) -> u64 {
        let off = u64::from(self.u16());
        match self.u8() % 8 {
            0 => off,
            1 => u64::MAX - off,
            2 => BASE + LEN as u64 - off,
            3 => BASE + (128 << 10) - 64 + off % 128,
            _ => BASE + off * 16,
        }
    }
    fn len(&mut self) -> u32 {
        let n = u32::from(self.u16());
        match self.u8() % 8 {
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
            third: self.u16(),
            fourth: self.u16(),
        }
    }
    /// A chain of up to eight descriptors that are right but for, sometimes, one field.
    fn offer(&mut self) -> Act {
        const NEXT: u16 = 1;
        const WRITE: u16 = 2;
        let how = self.u8();
        let n = 1 + u16::from(how >> 4 & 7);
        let write = if how & 1 != 0 { WRITE } else { 0 };
        let descs = (0..n).map(|i| {
            let mut d = Desc {
                addr: BASE + (128 << 10) + 512 * u64::from(self.u8()),
                len: 8 * u32::from(self.u8()),
                third: write | if i + 1 < n { NEXT } else { 0 },
                fourth: i + 1,
            };
            match self.u8() {
                0 => d.addr = self.addr(),
                1 => d.len = self.len(),
                2 => d.third ^= 1 << (self.u8() % 16),
                3 => d.fourth = u16::from(self.u8() % 20),
                4 => d.fourth = self.u16(),
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
        let kind = self.u8();
        match kind % 16 {
            _ if kind >= 248 => Act::Reset,
            _ if kind >= 208 => self.offer(),
            0..=3 => Act::Desc(u16::from(self.u8() % 16), self.desc()),
            4 => {
                let at = (BASE + u64::from(self.u16() % 0x2000)) & !15;
                let n = 1 + self.u8() % 4;
                Act::Table(at, (0..n).map(|_| self.desc()).collect())
            }
            5 => Act::Head(u16::from(self.u8() % 16), self.u16() % 20),
            6 => Act::AvailIdx(self.u16() % 40),
            7 => Act::AvailIdx(self.u16()),
            8 => Act::Area(self.u8() % 2, self.u16() % 300, self.u16()),
            9 => {
                let at = self.addr();
                let n = 1 + self.u8() % 16;
                Act::Bytes(at, (0..n).map(|_| self.u8()).collect())
            }
            10 | 11 => Act::Receive,
            12 => Act::Complete,
            13 => {
                let n = 1 + self.u8() % 3;
                Act::Send((0..n).map(|_| 14 + usize::from(self.u16()) % 3000).collect())
            }
            14 => [Act::Arm, Act::Disarm][usize::from(self.u8() % 2)].clone(),
            _ => Act::Table2,
        }
    }
}

fn play(script: &[u8]) -> Seen {
    let mut bytes = Bytes(&script[..script.len().min(MAX_LEN)]);
    let features = combinations().nth(usize::from(bytes.u8() % 32)).unwrap();
    let mut acts = Vec::new();
    while !bytes.0.is_empty() {
        acts.push(bytes.act());
    }
    run(features, &acts)
}

fn corpus_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/rings")
}

fn corpus() -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(corpus_dir())
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

/// A small generator of numbers (SplitMix64): the same mutants for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }
    fn mutant(&mut self, of: &[Vec<u8>]) -> Vec<u8> {
        let mut s = of[self.roll(of.len())].clone();
        for _ in 0..=self.roll(6) {
            let at = self.roll(s.len() + 1);
            match self.roll(5) {
                0 if at < s.len() => s[at] ^= 1 << self.roll(8),
                1 if at < s.len() => s[at] = self.roll(256) as u8,
                2 => {
                    let n = 1 + self.roll(12);
                    let new: Vec<u8> = (0..n).map(|_| self.roll(256) as u8).collect();
                    s.splice(at..at, new);
                }
                3 if at < s.len() => {
                    let end = (at + 1 + self.roll(12)).min(s.len());
                    s.drain(at..end);
                }
                _ => {
                    // The rest of another script, from anywhere in it.
                    let other = &of[self.roll(of.len())];
                    let from = self.roll(other.len() + 1);
                    s.truncate(at);
                    s.extend_from_slice(&other[from..]);
                }
            }
        }
        s.truncate(MAX_LEN);
        s
    }
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn the_corpus_and_mutants_of_it_break_nothing() {
    let corpus = corpus();
    let seen: BTreeSet<Seen> = corpus.iter().map(|s| play(s)).collect();
    assert!(
        seen.len() * 2 > corpus.len(),
        "a corpus of many outcomes: {}",
        seen.len()
    );
    let mut dice = Dice(1);
    for _ in 0..2000 {
        play(&dice.mutant(&corpus));
    }
}

/// The named outcomes that the corpus is there to reach: the fuzzer is not merely refused at the door.
#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn the_corpus_reaches_the_rings_refusals() {
    let seen: Vec<Seen> = corpus().iter().map(|s| play(s)).collect();
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

/// See the module's header.
#[test]
#[ignore = "runs for FUZZ_SECONDS; make fuzz"]
fn go_on() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(60).min(86_400));
    let keep = std::env::var_os("FUZZ_KEEP").is_some();
    let failed = std::env::temp_dir().join(format!("fuzz-rings-failed-{}", std::process::id()));
    let mut scripts = corpus();
    let mut seen: BTreeSet<Seen> = scripts.iter().map(|s| play(s)).collect();
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(heddle_sys::monotonic_ns);
    // A fault of memory ends the process before its script is written: the run is repeated from here.
    println!("FUZZ_SEED={seed}");
    let mut dice = Dice(seed);
    let (mut runs, mut new) = (0_u64, 0);
    while Instant::now() < end {
        let script = dice.mutant(&scripts);
        let outcome = std::panic::catch_unwind(|| play(&script)).unwrap_or_else(|why| {
            std::fs::write(&failed, &script).unwrap();
            eprintln!("a script that fails is in {}", failed.display());
            std::panic::resume_unwind(why)
        });
        runs += 1;
        if seen.insert(outcome) {
            new += 1;
            scripts.push(script);
        }
    }
    println!("{runs} scripts, {new} new outcomes, {} in all", seen.len());
    if keep {
        thin(scripts);
    }
}

/// Replaces the corpus by scripts, short ones first, each of which does something that none before it did.
fn thin(mut scripts: Vec<Vec<u8>>) {
    scripts.sort_by_key(Vec::len);
    for old in std::fs::read_dir(corpus_dir()).unwrap() {
        std::fs::remove_file(old.unwrap().path()).unwrap();
    }
    let mut done = BTreeSet::new();
    let mut kept = 0;
    for script in scripts {
        let parts: Vec<_> = play(&script).parts().collect();
        let before = done.len();
        done.extend(parts);
        if done.len() > before {
            std::fs::write(corpus_dir().join(format!("{kept:03}")), script).unwrap();
            kept += 1;
        }
    }
    println!(
        "{kept} scripts in the corpus for {} outcomes: {done:?}",
        done.len()
    );
}
