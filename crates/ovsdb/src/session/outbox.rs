//! Bytes on their way to the server.

use serde_json::Value;

/// No request is taken while more than this waits to be sent.
const MAX_BYTES_BEFORE_REQUEST: usize = 4 << 20;
/// A server that lets more than this wait does not read, and is dropped: replies to its echoes must not fill
/// memory.
const MAX_UNSENT_BYTES: usize = 64 << 20;

/// A queue of encoded messages.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    buf: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Appends a message.
    pub(super) fn push(&mut self, message: &Value) {
        if self.sent > 0 {
            self.buf.drain(..self.sent);
            self.sent = 0;
        }
        // Value's Display is its JSON text; writing to a Vec does not fail.
        self.buf.extend_from_slice(message.to_string().as_bytes());
    }

    /// Bytes to write next.
    pub(super) fn unsent(&self) -> &[u8] {
        self.buf.get(self.sent..).unwrap_or_default()
    }

    /// `n` bytes of [`unsent`](Outbox::unsent) were written.
    pub(super) fn advance(&mut self, n: usize) {
        self.sent = (self.sent + n).min(self.buf.len());
        if self.sent == self.buf.len() {
            self.sent = 0;
            self.buf.clear();
            self.buf.shrink_to(MAX_BYTES_BEFORE_REQUEST);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent().is_empty()
    }

    /// Whether a request may be added.
    pub(super) fn has_room(&self) -> bool {
        self.unsent().len() < MAX_BYTES_BEFORE_REQUEST
    }

    /// Whether the server has stopped reading.
    pub(super) fn is_stuck(&self) -> bool {
        self.unsent().len() > MAX_UNSENT_BYTES
    }
}
