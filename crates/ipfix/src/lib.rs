//! IPFIX (RFC 7011): sampled packets become records of flows, which go to collectors.
//!
//! **Shape.** An [`Exporter`] is told of sampled packets ([`Sampled`]) and gives out messages. It has no
//! sockets and no clock: who owns it passes the time and takes the messages.
//!
//! **Which elements.** Those that Open vSwitch exports, in its order and under its template ids, so that
//! collectors that were set up for it go on. [`template`] is the one place that lists them; [`record`] writes
//! values in the same order, and a test reads records back by the templates.
//!
//! **Deviations from Open vSwitch, which collectors gain by.** Template sets and sequence numbers are kept
//! per observation domain (RFC 7011 §3.1, §8): so records of every domain can be read, not only those of the
//! first one. Totals are those of the record's flow (RFC 7012), not of all flows. Records of one domain share
//! messages.
//!
//! **Bounds.** An exporter remembers at most [`MAX_FLOWS`] flows and [`MAX_DOMAINS`] domains, whatever it is
//! sent; keys are hashed with a random key.

mod exporter;
mod record;
pub mod template;
#[cfg(test)]
mod tests;

pub use exporter::{CacheConfig, Exporter, MAX_DOMAINS, MAX_FLOWS, Stats};
pub use record::{Direction, Interface, Sampled, Tunnel};
