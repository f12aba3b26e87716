//! Connections in the kernel's own table (ctnetlink), and the mirror of the tracker's connections there.
//!
//! **Problem.** Programs beside the switch expect its connections in the kernel's table, where the datapath
//! of the kernel module has them. `conntrack -L` shows them. A controller deletes the connections of a
//! backend or a pod that has gone, and their next packets must begin new ones.
//!
//! **Parts**, each of which imports only those above it:
//!
//! | module | purpose |
//! | --- | --- |
//! | `entry` | a connection as the kernel's table has it |
//! | `message` | entries as messages of nfnetlink, and back |
//! | `labels` | a rule of nf_tables without which the kernel gives entries no labels |
//! | `table` | the kernel's table: write, remove, read, list |
//! | `established` | established connections that tc forwards, in zones of their own |
//! | `deletions` | entries that other programs have deleted |
//! | `choice` | which connections are mirrored: settings |
//! | `mirror` | the mirror: rounds over the tracker, deletions, comparison of both tables |
//!
//! **Threads.** One thread has the mirror. It reads the tracker's records like any thread that dumps
//! connections. Workers take no part.
//!
//! **Trust.** The kernel's messages may come from entries that any program with `CAP_NET_ADMIN` has made. A
//! message that cannot be decoded is ignored, or causes a comparison of the tables.

pub mod choice;
pub mod deletions;
mod entry;
pub mod established;
mod labels;
mod message;
pub mod mirror;
pub mod table;

pub use choice::Choice;
pub use deletions::Deletions;
pub use entry::{EntryKey, Established, KernelEntry, TC_ZONES};
pub use established::EstablishedTable;
pub use mirror::{Counts, Mirror};
pub use table::{KernelTable, Refused, Room, Table, Write};

#[cfg(test)]
mod tests;
