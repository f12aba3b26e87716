//! Bidirectional Forwarding Detection (RFC 5880, over one hop as in RFC 5881), as Open vSwitch does it:
//! asynchronous mode without authentication and echo.
//!
//! **Problem.** Two ends of a link or a tunnel want to know within fractions of a second whether packets
//! still pass both ways. Each sends control messages at the rate that both agree on, and takes the path for
//! broken when some were missing in a row.
//!
//! A [`Session`] is one end. It has no socket, no clock and no thread: whoever owns it says what time it is
//! and what came in ([`Now`], [`Session::receive`]), asks when it wants to run next
//! ([`Session::wake_ms`]), and sends the frames that it makes ([`Session::frame`]).
//!
//! **Invariants.** What a peer says is looked at in full before any of it is taken over, and no message,
//! however made up, makes a session do more than a few comparisons. A message is never sent with both the
//! poll and the final flag (RFC 5880 §6.5).
//!
//! **Deviations from RFC 5880**, all of them Open vSwitch's: a session belongs to a port, not to a
//! discriminator (§6.3); messages that are longer than they need be are taken with a warning; there is no
//! demand mode (§6.6). On top of it come *decay* (asking for fewer messages while the port is idle) and
//! *forwarding if packets come in* whatever the session says.
//!
//! **Costs.** A message in or out costs some hundred nanoseconds and allocates nothing but the frame.

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
