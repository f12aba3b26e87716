//! A measurement: ports, the loop that drives all of them from one thread, and its phases.
//!
//! One thread, no locks, no allocation while it runs. Per turn of the loop each sender posts at most one
//! burst, and each receiver takes all packets that have come. So no port waits for another.

mod engine;
mod link;
mod port;
#[cfg(test)]
mod tests;

pub(crate) use engine::load_of;
pub use engine::{Engine, Step};
pub use link::{Endpoint, Link};
pub use port::Port;
