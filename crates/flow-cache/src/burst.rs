//! The packets of a burst, as they are looked up.
//!
//! Neighbours with equal keys are one [`Run`]: looked up, counted and acted on once. Who reads packets makes
//! runs of them and keeps their keys ([`Burst`]).

use crate::cache::NO_BODY;
use crate::compact::CompactKey;
use heddle_flow::FlowKey;

/// A packet's key, as it is looked up.
#[derive(Clone, Copy)]
pub struct Sought<'a> {
    /// With its origin.
    pub key: &'a CompactKey,
    /// Where it carries something besides its usual headers: a full key, of which what is outside of the
    /// compact one counts.
    pub outside: Option<&'a FlowKey>,
}

/// Which of its keys a run has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The compact one says all.
    Ordinary,
    /// The compact one says all of the headers; what the packet carries stands in this place.
    Carrying(u8),
    /// The compact one says all of the headers. The run has its program, which asks for nothing that its
    /// packets carry.
    Linked,
    /// As [`Kind::Linked`], of packets of many flows: the compact one says what the program asks for of their
    /// headers.
    Mixed,
    /// The compact one, and the full one in this place, of which what is outside counts too.
    Full(u8),
    /// None: shorter than a frame's header.
    Runt,
}

/// Neighbours in a burst with equal keys: packets `first..end`.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first packet.
    pub first: u16,
    /// The one after the last.
    pub end: u16,
    /// Which keys.
    pub kind: Kind,
    /// For who reads the packets: where an ordinary run's full key is.
    pub full: u8,
    /// The program of an entry that is known to be right and has counted the run; [`NO_BODY`]: it is to be
    /// looked up.
    pub body: u32,
    /// Length of all together.
    pub bytes: u64,
    /// Of the longest.
    pub longest: u32,
}

impl Run {
    /// How many packets it has.
    #[inline]
    pub fn packets(&self) -> u64 {
        u64::from(self.end - self.first)
    }
    /// Packet `i`, the next one, of `total` bytes, is one of it.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // packets are shorter than 4 GiB
    pub fn extend(&mut self, i: u16, total: usize) {
        self.end = i + 1;
        self.bytes += total as u64;
        self.longest = self.longest.max(total as u32);
    }
}

/// The runs of a burst with their keys.
pub trait Burst {
    /// The runs.
    fn runs(&self) -> &[Run];
    /// Of each run that is no runt, in its place.
    fn keys(&self) -> &[CompactKey];
    /// Whether anything of any packet stands outside of its compact key.
    fn has_outside(&self) -> bool;
    /// The key whose outside counts for this run, if any does.
    fn outside(&self, run: &Run) -> Option<&FlowKey>;
    /// Run `r` as it is looked up, if it is.
    #[inline]
    fn sought(&self, r: usize) -> Option<Sought<'_>> {
        let run = self.runs().get(r)?;
        Some(Sought {
            key: self
                .keys()
                .get(r)
                .filter(|_| run.kind != Kind::Runt && run.body == NO_BODY)?,
            outside: self.outside(run),
        })
    }
}
