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
//! **Parts**, each of which imports only those above it:
//!
//! | module | purpose |
//! | --- | --- |
//! | `tuple`, `action`, `events` | addresses and ports of a packet; the action `ct`; counted events |
//! | `protocol` | the reading of packets, states of TCP, timeouts |
//! | `table` | the index of connections, their records, zone limits |
//! | `nat` | the choice of addresses, the rewrite of packets |
//! | `track` | the tracker: general and short way, helpers, expiry, offloaded connections |
//! | `dump`, `format` | connections for users |
//! | `ipf` | fragments; the datapath hands them to the tracker after they are put together |
//!
//! **Deviations from Open vSwitch.** SCTP has its ports in the tuple (there: since 3.2). A limit of 0 is
//! none. An error of ICMPv6 about TCP is read if eight bytes of that are quoted, as those of ICMP are
//! (there: twenty).

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
mod table;
mod track;
mod tuple;

pub use action::{CtAction, CtHelper, CtNat, NatEnd, NatHow, NatRange};
pub use events::{Event, Events};
pub use heddle_sync::ReadGuard;
pub use nat::rewrite::{At, Ends, Rewrite};
pub use protocol::packet::{Checked, Invalid, Packet, Segment, Subject};
pub use protocol::tcp;
pub use protocol::timeouts::{Class, MAX_POLICIES, Policy, PolicyError};
pub use table::hash::Hash;
pub use table::key::Ends4;
pub use table::zones::ZoneLimit;
pub use track::general::{Found, Known, Verdict, state};
pub use track::short::{Brief, SHORT, Shape, Short};
pub use track::{Config, Conntrack, DEFAULT_MAX_CONNS, Guess, helper, offloaded};
pub use tuple::{Endpoint, Tuple, bits, ip};

#[cfg(test)]
mod tests;
