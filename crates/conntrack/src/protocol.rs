//! Protocols: what a packet has of them (`packet`), the states of TCP (`tcp`), the timeouts of all states.

pub(crate) mod packet;
pub mod tcp;
pub(crate) mod timeouts;
