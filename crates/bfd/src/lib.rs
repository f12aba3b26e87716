//! Bidirectional Forwarding Detection (RFC 5880, over one hop as in RFC 5881), as Open vSwitch does it:
//! asynchronous mode without authentication and echo.
//!
//! **Problem.** Two ends of a link or a tunnel have to know within fractions of a second whether packets
//! still pass both ways. Each sends control messages at an agreed rate, and regards the path as broken when
//! some in a row are missing.
//!
//! A [`Session`] is one end. It has no socket, no clock and no thread. The owner passes the time and received
//! messages to it ([`Now`], [`Session::receive`]). The owner runs it again at [`Session::wake_ms`] and sends
//! its frames ([`Session::frame`]).
//!
//! **Invariants.** A message is checked in full before any of its values is used. No message, however
//! malformed, makes a session do more than a few comparisons. A message is never sent with both the poll and
//! the final flag (RFC 5880 §6.5).
//!
//! **Deviations from RFC 5880**, all of them Open vSwitch's. A session belongs to a port, not to a
//! discriminator (§6.3). Messages that are longer than necessary are accepted with a warning. There is no
//! demand mode (§6.6). Additions are *decay* (requesting fewer messages while the port is idle) and
//! *forwarding if packets come in*, whatever the session's state is.
//!
//! **Costs.** A message in or out allocates its frame only.

mod config;
mod frame;
mod message;
mod session;
mod show;
#[cfg(test)]
mod tests;

pub use config::{Config, Filter};
pub use frame::{FRAME_LEN, UDP_PORT, Udp, udp_of};
pub use message::{Diag, Flags, MESSAGE_LEN, Message, State};
pub use session::{Now, Session};
