//! IPFIX (RFC 7011): sampled packets become records of flows, which go to collectors.
//!
//! **Shape.** An [`Exporter`] takes sampled packets ([`Sampled`]) and returns messages. It has no sockets and
//! no clock: the owner passes the time and sends the messages.
//!
//! **Elements** are those of Open vSwitch, in its order and under its template ids, so that collectors that
//! were set up for it still work. Only [`template`] lists them. [`record`] writes values in the same order,
//! and a test reads records back by the templates.
//!
//! **Deviations from Open vSwitch.** Template sets and sequence numbers are kept per observation domain (RFC
//! 7011 §3.1, §8). So collectors can read records of every domain, not only those of the first. Totals are
//! those of the record's flow (RFC 7012), not of all flows. Records of one domain share messages.
//!
//! **Bounds.** An exporter keeps at most [`MAX_FLOWS`] flows and [`MAX_DOMAINS`] domains, whatever packets it
//! is given. Flows are hashed with a random key.

mod exporter;
mod record;
pub mod template;
#[cfg(test)]
mod tests;

pub use exporter::{CacheConfig, Exporter, MAX_DOMAINS, MAX_FLOWS, Stats};
pub use record::{Direction, Interface, Sampled, Tunnel};
