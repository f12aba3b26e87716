//! The table of connections: from the hash of a tuple to a number (`index`), from a number to the connection
//! (`record`). `slots` gives numbers to new connections, `zones` has their limits.

pub(crate) mod free_list;
pub(crate) mod hash;
pub(crate) mod index;
pub(crate) mod key;
pub(crate) mod record;
mod record_words;
pub(crate) mod skew;
pub(crate) mod slots;
mod tcp_words;
pub(crate) mod zones;
