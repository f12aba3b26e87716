//! Link Aggregation Control Protocol (IEEE 802.1AX-2020, clause 6), as Open vSwitch does it.
//!
//! **Problem.** Two systems are joined by several links. They have to agree which links carry the packets of
//! one aggregation. Each has to know within seconds that the other system, or a link, is gone.
//!
//! An [`Aggregator`] is one system's end of an aggregation. It has no socket, no clock and no thread. The
//! owner passes times, carriers and received messages to it, runs it again at [`Aggregator::wake_ms`], and
//! sends the messages that [`Aggregator::run`] returns.
//!
//! **Invariants.** A message is checked in full before any of its values is used. No message, however
//! malformed, makes an aggregator do more than a few comparisons. A link's partner
//! chooses the rate of messages. One is sent at once if the partner's view of this system is out of date.
//!
//! **Deviations from IEEE 802.1AX**, all of them Open vSwitch's. One aggregation has one aggregator. A link
//! whose partner has another system or key than the selected one stays detached, and forms no aggregation of
//! its own (§6.4.14). Links collect and distribute at the same time (§6.4.13, coupled control). The
//! number of messages within a fast period is not limited (§6.4.16); the owner may lose some. Marker messages
//! are counted, and not replied to. With the fallback, which is an addition, links without a partner are
//! attached. Unlike Open vSwitch, a system that has just started announces each link as attached until it has
//! heard a partner there: see [`Aggregator::run`].

mod aggregator;
mod frame;
mod info;
mod show;
#[cfg(test)]
mod tests;

pub use aggregator::{Aggregator, Outgoing, Received, Settings, Status};
pub use frame::{DESTINATION, ETHERTYPE, FRAME_LEN, frame, payload_of};
pub use info::{Flags, INFO_LEN, Info, Pdu, PduError};

/// Settings of a link ([`Aggregator::set_link`]).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinkSettings {
    /// Name, for the log and the commands.
    pub name: String,
    /// Number of the port.
    pub port_id: u16,
    /// Priority of the port: the lower number is preferred.
    pub port_priority: u16,
    /// Aggregation key; 0: the number of the aggregator's first port.
    pub key: u16,
}
