//! JSON-RPC 1.0 as OVSDB speaks it over a byte stream (RFC 7047 section 4).

mod framing;
mod message;
#[cfg(test)]
mod tests;

pub use framing::{FrameError, Framer, MAX_DEPTH};
pub use message::{Message, MessageError, error_reply, reply, request};
