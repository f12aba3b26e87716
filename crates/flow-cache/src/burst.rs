//! The packets of a burst, as they are looked up.
//!
//! Neighbours with equal keys are one [`Run`]: the cache looks them up and counts them once. The reader of
//! packets makes the runs and keeps their keys ([`LookupKeys`]).

use crate::compact::CompactKey;
use crate::program_table::{NO_PROGRAM, ProgramId};
use heddle_flow::FlowKey;

/// A packet's key, as it is looked up.
#[derive(Clone, Copy)]
pub struct Sought<'a> {
    /// With its origin.
    pub key: &'a CompactKey,
    /// The full key, if the compact key is not the whole key. Only its members outside of the compact key
    /// count.
    pub context: Option<&'a FlowKey>,
}

/// The form in which a run's key is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyForm {
    /// The compact key is the whole key.
    Compact,
    /// The compact key has all headers. The packets' context (a tunnel, a connection, marks) is in this slot.
    InContext(u8),
    /// The full key is in this slot. The compact key has a part of it.
    Full(u8),
}

/// Packets of several flows that a program may execute as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merges {
    /// Packets of one flow only.
    No,
    /// Packets whose headers have the same offsets: the program rewrites some.
    Alike,
    /// All packets. A program that needs their keys reads the keys run by run.
    All,
}

/// A run's program, as far as it is known before the lookup. The entry of a known program has counted the
/// run already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunProgram {
    /// The program's number, or [`NO_PROGRAM`].
    pub number: ProgramId,
    /// Further packets that may join the run. The run's compact key is the first packet's.
    pub merges: Merges,
}

impl RunProgram {
    /// The program is not known: the run is to be looked up.
    pub const UNKNOWN: Self = Self {
        number: NO_PROGRAM,
        merges: Merges::No,
    };
    /// Whether the program is known.
    #[inline]
    pub fn is_known(self) -> bool {
        self.number != NO_PROGRAM
    }
}

/// Neighbours in a burst with equal keys: packets `first..end`.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first packet.
    pub first: u16,
    /// One more than the last packet.
    pub end: u16,
    /// The form of the run's key.
    pub form: KeyForm,
    /// For the reader of packets: the slot of a compact run's full key, if it was made.
    pub full: u8,
    /// The program of the run, if it is known.
    pub program: RunProgram,
    /// Bytes of all packets together.
    pub bytes: u64,
    /// Bytes of the longest packet.
    pub longest: u32,
}

impl Run {
    /// The number of its packets.
    #[inline]
    pub fn packets(&self) -> u64 {
        u64::from(self.end - self.first)
    }
    /// Whether the run is to be looked up by its compact key alone.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.form == KeyForm::Compact && !self.program.is_known()
    }
    /// Adds packet `i`, the next one, of `total` bytes.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // packets are shorter than 4 GiB
    pub fn extend(&mut self, i: u16, total: usize) {
        self.end = i + 1;
        self.bytes += total as u64;
        self.longest = self.longest.max(total as u32);
    }
}

/// The runs of a burst with their keys.
pub trait LookupKeys {
    /// The runs.
    fn runs(&self) -> &[Run];
    /// The compact key of each run.
    fn keys(&self) -> &[CompactKey];
    /// Whether any run has more than its compact key.
    fn has_context(&self) -> bool;
    /// The key whose members outside of the compact key count for run `r`, if any do.
    fn context(&self, r: usize) -> Option<&FlowKey>;
    /// The key of run `r`, if the run is to be looked up.
    #[inline]
    fn sought(&self, r: usize) -> Option<Sought<'_>> {
        let run = self.runs().get(r)?;
        Some(Sought {
            key: self.keys().get(r).filter(|_| !run.program.is_known())?,
            context: self.context(r),
        })
    }
}
