//! A fuzzer for sessions from the front end's side: bytes are a script of messages, descriptors and ring memory ([`script`]).
//!
//! The session is the real one, with real rings in the guest's memory and a device that moves packets through them. As for rings
//! (`heddle-virtio`), an input is worth keeping when something happened that none before it made happen: which request, in which
//! state of the session, was taken, refused with which text, or ended the session; which events the device saw; which way rings broke.
//!
//! * `cargo test` replays the corpus, `corpus/sessions` of this crate, and a fixed number of mutants of it.
//! * `make fuzz [SECONDS=180] [KEEP=1]` goes on for half of that (the other half is for rings); see there for what is left behind when a script fails.

mod play;
mod script;

use play::{MAX_LEN, play};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn corpus_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/sessions")
}

fn corpus() -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(corpus_dir()).unwrap();
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
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
        usize::try_from((z ^ (z >> 31)) % below.max(1) as u64).unwrap()
    }
    fn byte(&mut self) -> u8 {
        u8::try_from(self.roll(256)).unwrap()
    }
    fn mutant(&mut self, of: &[Vec<u8>]) -> Vec<u8> {
        let mut s = match of.len() {
            0 => Vec::new(),
            n => of[self.roll(n)].clone(),
        };
        for _ in 0..=self.roll(6) {
            let at = self.roll(s.len() + 1);
            match self.roll(6) {
                0 if at < s.len() => s[at] ^= 1 << self.roll(8),
                1 if at < s.len() => s[at] = self.byte(),
                2 | 3 => {
                    let n = 1 + self.roll(24);
                    let new: Vec<u8> = (0..n).map(|_| self.byte()).collect();
                    s.splice(at..at, new);
                }
                4 if at < s.len() => {
                    let end = (at + 1 + self.roll(12)).min(s.len());
                    s.drain(at..end);
                }
                _ if !of.is_empty() => {
                    // The rest of another script, from anywhere in it.
                    let other = &of[self.roll(of.len())];
                    let from = self.roll(other.len() + 1);
                    s.truncate(at);
                    s.extend_from_slice(&other[from..]);
                }
                _ => {}
            }
        }
        s.truncate(MAX_LEN);
        s
    }
}

#[test]
fn the_corpus_and_mutants_of_it_break_no_session() {
    let corpus = corpus();
    let seen: BTreeSet<String> = corpus.iter().flat_map(|s| play(s).plain).collect();
    // The fuzzer is not merely refused at the door.
    for what in [
        "start",
        "stop",
        "received",
        "sent",
        "broken",
        "IOTLB_MSG ok",
        "SET_MEM_TABLE ok",
        "ADD_MEM_REG ok",
        "REM_MEM_REG ok",
        "SET_LOG_BASE ok",
        "SET_INFLIGHT_FD ok",
        "RESET_DEVICE ok",
        "cut",
        "miss",
        "packed",
    ] {
        assert!(
            seen.iter().any(|s| s.contains(what)),
            "{what} is not among {seen:#?}"
        );
    }
    let mut dice = Dice(1);
    for _ in 0..300 {
        play(&dice.mutant(&corpus));
    }
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// See the module's header.
#[test]
#[ignore = "runs for FUZZ_SECONDS; make fuzz"]
fn go_on() {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let end = Instant::now() + Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(60).min(86_400));
    let failed = std::env::temp_dir().join(format!("fuzz-sessions-failed-{}", std::process::id()));
    let mut scripts = corpus();
    let mut seen: BTreeSet<String> = scripts.iter().flat_map(|s| play(s).all).collect();
    let seed = number("FUZZ_SEED").unwrap_or_else(heddle_sys::monotonic_ns);
    // A fault of memory ends the process before its script is written: the run is repeated from here.
    println!("FUZZ_SEED={seed}");
    let mut dice = Dice(seed);
    let before = descriptors();
    let (mut runs, mut new, mut slowest) = (0_u64, 0, Duration::ZERO);
    while Instant::now() < end {
        let script = dice.mutant(&scripts);
        let began = Instant::now();
        let outcome = std::panic::catch_unwind(|| play(&script)).unwrap_or_else(|why| {
            std::fs::write(&failed, &script).unwrap();
            eprintln!("a script that fails is in {}", failed.display());
            std::panic::resume_unwind(why)
        });
        slowest = slowest.max(began.elapsed());
        runs += 1;
        let had = seen.len();
        seen.extend(outcome.all);
        if seen.len() > had {
            new += 1;
            scripts.push(script);
        }
    }
    println!(
        "{runs} scripts, {new} new outcomes, {} in all, the slowest took {slowest:?}",
        seen.len()
    );
    assert!(
        descriptors() <= before,
        "descriptors are lost: {before} before, {} now",
        descriptors()
    );
    if std::env::var_os("FUZZ_KEEP").is_some() {
        thin(scripts);
    }
}

/// Replaces the corpus by scripts, short ones first, each of which does something that none before it did.
fn thin(mut scripts: Vec<Vec<u8>>) {
    scripts.sort_by_key(Vec::len);
    std::fs::create_dir_all(corpus_dir()).unwrap();
    for old in std::fs::read_dir(corpus_dir()).unwrap() {
        std::fs::remove_file(old.unwrap().path()).unwrap();
    }
    let mut done = BTreeSet::new();
    let mut kept = 0;
    for script in scripts {
        let before = done.len();
        done.extend(play(&script).plain);
        if done.len() > before {
            std::fs::write(corpus_dir().join(format!("{kept:03}")), script).unwrap();
            kept += 1;
        }
    }
    println!("{kept} scripts in the corpus for {} outcomes", done.len());
}
