//! The pipeline, as workers call it on a miss.
//!
//! **Correctness.** A [`Translation`] is true for every packet whose key agrees with the request's key in all
//! bits of `mask`. It is true as long as every [`Dep`](crate::Dep) has the generation it names. An
//! implementation reads the generation of a thing *before* it reads the thing; a writer changes the thing
//! *before* it bumps the generation. So a translation that raced with a change carries an old generation and
//! dies on its first check. That is the safe error: one translation too many, never one too few.
//!
//! **Threads.** [`Translate::translate`] is called from any worker at any time and must not block: no lock
//! that a control-plane writer may hold, no I/O.

use crate::generations::Generations;
use crate::translation::Translation;
use heddle_flow::FlowKey;
use heddle_packet::Packet;

/// Why a translation is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A packet missed the caches. Side effects (MAC learning) take place.
    Miss,
    /// Background or on-hit check of a cached entry: no packet, no side effects but refreshing.
    Revalidate,
}

/// One key to be translated, on a miss or for revalidation.
pub struct Request<'a> {
    /// The packet's key; `in_port` is the datapath's port number.
    pub key: &'a FlowKey,
    /// The packet, where there is one.
    pub packet: Option<&'a Packet>,
    /// Coarse clock, milliseconds, read once per burst.
    pub now_ms: u64,
    /// Whether side effects take place.
    pub purpose: Purpose,
}

/// The pipeline, as the datapath sees it.
pub trait Translate: Send + Sync {
    /// Translates one key; see the module for what the result promises.
    fn translate(&self, request: &Request<'_>, out: &mut Translation);
    /// The counters that [`Dep`](crate::Dep)s refer to.
    fn generations(&self) -> &Generations;
}
