//! Load generation and measurement of switches with vhost-user ports.
//!
//! **Problem.** A switch is measured by the packets that arrive, with a generator that costs less than the
//! switch and that treats each switch the same. The generator here is the driver side of virtqueues
//! ([`heddle_virtio::driver::Stream`]): one thread, one core, polls all ports.
//!
//! * [`frame`], [`flows`]: the packets.
//! * [`rules`]: the OpenFlow rules that belong to flows.
//! * [`load`]: what is measured; [`error`]: why it cannot be.
//! * [`traffic`]: senders and receivers on rings, with counters.
//! * [`run`]: ports, connections, the loop of a measurement.
//! * [`floor`]: the same generator against a loop that only moves descriptors and copies; the limit of this
//!   machine.
//! * [`ping`]: packets one by one with every byte checked, for tests.
//! * [`line`]: the cost of a cache line between two cores, which decides everything else.
//! * [`report`]: results as data and as a table.
//!
//! **Written and read bytes.** Transmit buffers hold their frame; how much of it is written for each packet
//! is [`load::Touch`]'s choice. One of N packets carries a sequence number and a time stamp
//! ([`load::Checks`]). These *probes* are two bytes shorter than the others, so a receiver knows them by
//! their length. Each packet's length is checked.

#![allow(clippy::cast_precision_loss)] // rates and times: far below 2^52

pub mod error;
pub mod floor;
pub mod flows;
pub mod frame;
pub mod line;
pub mod load;
pub mod ping;
pub mod report;
pub mod rules;
pub mod run;
pub mod traffic;
