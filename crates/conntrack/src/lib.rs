//! Connection tracking: zones, states, address translation, limits, expiry.
//!
//! **Problem.** All workers see packets of all connections, some in one direction on one worker and back on
//! another. An established packet must cost one lookup and write nothing that others read, connections come
//! by the million a second, and whatever fills the tables must not stop those who are there.
//!
//! **Use.** A worker reads a packet ([`Packet::read`]), hashes its tuple ([`Conntrack::hash`]), prefetches
//! for the whole burst ([`Conntrack::prefetch`], [`Conntrack::guess`]), and tracks each
//! ([`Conntrack::track`]) under one [`ReadGuard`] of the burst. The packet carries what is [`Known`] from
//! then on; the [`Verdict`] says how it is to be rewritten ([`Rewrite::apply`]). A control thread calls
//! [`Conntrack::sweep`].
//!
//! **Parts.** What is read of a packet: `packet`, `tuple`. Where connections are: `index` (from hashes to
//! numbers), `slots` (who has which number), `record` (what a number stands for). How they move: `track`,
//! `short` (the usual ones), `tcp`, `timeouts`, `zones`, `nat`. What they announce: `helper`. What others
//! see: `dump`, `format`.
//! What goes another way than through here: `offloaded`.
//! Fragments wait in `ipf`, which the datapath asks before it hands the tracker what they are pieces of.
//!
//! **Deviations from Open vSwitch.** SCTP has its ports in the tuple (there: since 3.2). A limit of 0 is
//! none. An error of ICMPv6 about TCP is read if eight bytes of that are quoted, as those of ICMP are
//! (there: twenty).

pub mod action;
/// What models replace (`tests/model.rs`).
mod atomic {
    pub(crate) use heddle_sys::Zeroed;
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
    pub(crate) use zerocopy::FromZeros;
}
mod conntrack;
pub mod dump;
mod events;
pub mod format;
mod free_list;
mod hash;
pub mod helper;
mod index;
pub mod ipf;
mod key;
mod nat;
pub mod offloaded;
mod packet;
mod record;
mod record_words;
mod rewrite;
mod short;
mod skew;
mod slots;
mod sweep;
pub mod tcp;
mod tcp_words;
mod timeouts;
mod track;
mod tuple;
mod zones;

pub use action::{CtAction, CtHelper, CtNat, NatEnd, NatHow, NatRange};
pub use conntrack::{Config, Conntrack, DEFAULT_MAX_CONNS, Guess};
pub use events::{Event, Events};
pub use hash::Hash;
pub use heddle_sync::ReadGuard;
pub use key::Ends4;
pub use packet::{Checked, Invalid, Packet, Segment, Subject};
pub use rewrite::{At, Ends, Rewrite};
pub use short::{Brief, SHORT, Shape, Short};
pub use timeouts::{Class, MAX_POLICIES, Policy, PolicyError};
pub use track::{Found, Known, Verdict, state};
pub use tuple::{Endpoint, Tuple, bits, ip};
pub use zones::ZoneLimit;

#[cfg(test)]
mod tests;
