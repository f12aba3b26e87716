//! Connection tracking: zones, states, address translation, limits, expiry.
//!
//! **Problem.** All workers see packets of all connections, and the two directions of one may meet different
//! workers. A packet of an established connection must cost one lookup, and write nothing that others read. A
//! million connections may begin each second. A flood that fills the tables must not stop established
//! connections.
//!
//! **Use.** A worker reads a packet ([`Packet::read`]) and hashes its tuple ([`Conntrack::hash`]). It
//! prefetches for a group of packets ([`Conntrack::prefetch`], [`Conntrack::guess`]). Then it tracks each
//! packet ([`Conntrack::track`]; [`Conntrack::track_short`] for usual ones) under one [`ReadGuard`] of the
//! group. The packet has its [`CtState`] from then on, and the [`Verdict`] has the changes of its headers
//! ([`Rewrite::apply`]). A control thread calls [`Conntrack::sweep`].
//!
//! **Parts**, each of which imports only those above it:
//!
//! | module | purpose |
//! | --- | --- |
//! | `tuple`, `action`, `events` | addresses and ports of a packet; the action `ct`; counted events |
//! | `protocol` | the reading of packets, states of TCP, timeouts |
//! | `table` | the index of connections, their records, zone limits |
//! | `nat` | the choice of addresses, the rewrite of packets |
//! | `track` | the tracker: general path and fast path, helpers, expiry, offloaded connections |
//! | `dump`, `format`, `scan` | connections for users, and for threads that copy them |
//! | `transfer` | connections that move to another tracker, and come from there |
//! | `ipf` | fragments; the datapath hands them to the tracker after they are put together |
//!
//! **Deviations from Open vSwitch.** SCTP has its ports in the tuple (there: since 3.2). A limit of 0 is no
//! limit. An ICMPv6 error about TCP needs eight quoted bytes of it, like an ICMP error (there: twenty).

pub mod action;
/// Types that the models replace (`tests/model.rs`).
mod atomic {
    pub(crate) use heddle_sys::Zeroed;
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
    pub(crate) use zerocopy::FromZeros;
}
pub mod dump;
mod events;
pub mod format;
pub mod ipf;
mod nat;
mod protocol;
pub mod scan;
mod table;
mod track;
pub mod transfer;
mod tuple;

pub use action::{CtAction, CtHelper, CtNat, NatEnd, NatHow, NatRange};
pub use events::{Event, Events};
pub use heddle_sync::ReadGuard;
pub use nat::rewrite::{At, HeaderChange, Rewrite};
pub use protocol::packet::{Checked, Invalid, Packet, Segment, Subject};
pub use protocol::tcp;
pub use protocol::timeouts::{Class, MAX_POLICIES, Policy, PolicyError};
pub use table::hash::Hash;
pub use table::key::TranslatedEnds4;
pub use table::record::Phase;
pub use table::zones::ZoneLimit;
pub use track::general::{ConnRef, CtPacket, CtState, Verdict, state};
pub use track::short::{ConnSummary, FastPacket, SHORT, Shape};
pub use track::{Config, Conntrack, DEFAULT_MAX_CONNS, Guess, helper, offloaded};
pub use tuple::{Endpoint, Tuple, bits, ip};

#[cfg(test)]
mod tests;
