//! Address translation: the choice of addresses and ports, and the rewrite of packets.

mod choice;
pub(crate) mod rewrite;

pub(crate) use choice::reply;
