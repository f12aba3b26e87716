//! For tests that play a hostile side: bytes are a script of what it does; scripts come from a corpus and its
//! mutants.
//!
//! The fuzzer runs on the stable toolchain, without instrumentation. A script is worth keeping when it has an
//! outcome that no script before it had. Each fuzzer defines its outcomes: the set of events in a run.
//!
//! * A test of the fuzzer replays its [`Corpus`] and a fixed number of mutants of it ([`Dice`]).
//! * Mutants of messages know the shape of OpenFlow's ([`Dice::message`]).
//! * [`explore`] looks for new outcomes for `FUZZ_SECONDS` seconds. A script that fails is kept in a file,
//!   whose name is printed. After a memory fault, the printed seed repeats the run (`FUZZ_SEED`). With
//!   `FUZZ_KEEP` the corpus is replaced by the shortest scripts that together have all outcomes. [`rounds`]
//!   is the loop alone, for tests without outcomes.

mod corpus;
mod dice;
mod message;

pub use corpus::{Corpus, Fuzzer, explore, rounds};
pub use dice::Dice;

/// Reads a script; missing bytes are zeros.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Reads the first `most` bytes of `script`.
    pub fn new(script: &'a [u8], most: usize) -> Self {
        Self(script.get(..most).unwrap_or(script))
    }
    /// Whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(f, r)| (*f, r));
        self.0 = rest;
        first
    }
    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }
    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.u8()))
    }
}
