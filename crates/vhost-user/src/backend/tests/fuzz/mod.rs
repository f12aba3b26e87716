//! A fuzzer for sessions from the front end's side: bytes are a script of messages, descriptors and ring
//! memory ([`script`]).
//!
//! The session is the real one, with real rings in the guest's memory and a device that moves packets through
//! them. As for rings (`heddle-virtio`), an input is kept when it causes something new. That is a request
//! taken or refused in a state of the session, with which text, or the end of the session. It is also an
//! event of the device, or a way in which a ring broke.
//!
//! * `cargo test` replays the corpus, `corpus/sessions` of this crate, and a fixed number of mutants of it.
//! * `make fuzz [SECONDS=180] [KEEP=1]` continues for half of that time (the other half is for rings), as
//!   `heddle-fuzz` describes.

mod play;
mod script;

use heddle_fuzz::{Corpus, Dice, Fuzzer};
use play::{MAX_LEN, play};
use std::collections::BTreeSet;

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), "sessions")
}

#[test]
fn the_corpus_and_mutants_of_it_break_no_session() {
    let corpus = corpus().scripts().unwrap();
    let seen: BTreeSet<String> = corpus.iter().flat_map(|s| play(s).plain).collect();
    // The scripts get beyond the first checks of the session.
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
    let mut dice = Dice::new(1);
    for _ in 0..300 {
        play(&dice.mutant(&corpus, MAX_LEN));
    }
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

struct Sessions;

impl Fuzzer for Sessions {
    type Outcome = String;
    type OutcomeClass = String;
    const NAME: &'static str = "sessions";
    const MAX_SCRIPT_LEN: usize = MAX_LEN;
    fn play(&self, script: &[u8]) -> (BTreeSet<String>, BTreeSet<String>) {
        let out = play(script);
        (out.all, out.plain)
    }
}

#[test]
#[ignore = "runs for FUZZ_SECONDS; make fuzz"]
fn explore() {
    let before = descriptors();
    heddle_fuzz::explore(&Sessions, &corpus()).unwrap();
    // A thread of their own closes foreign descriptors.
    for _ in 0..100 {
        if descriptors() <= before {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("descriptors are lost: {before} before, {} now", descriptors());
}
