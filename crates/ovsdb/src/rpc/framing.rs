//! Finds where one JSON object ends in a stream of concatenated ones.
//!
//! OVSDB puts no length and no separator between messages (RFC 7047 section 4): the end of a message is the
//! brace that closes it. The scanner tracks nesting and strings only, and reads each byte once. The text of a
//! whole message is then given to the JSON parser, which does the checking.
//!
//! Bounds: the stream ends with an error at a message above `limit` bytes, nesting deeper than [`MAX_DEPTH`],
//! or anything but an object at the top. No more is stored then. Buffered memory is at most `limit` plus one
//! read.

use serde_json::Value;
use thiserror::Error;

/// Deepest nesting accepted; the JSON parser's own bound is 128 as well.
pub const MAX_DEPTH: usize = 128;

/// Capacity that an empty buffer keeps; after a large message the rest is given back.
const RETAINED_BYTES: usize = 256 << 10;

/// The peer does not speak JSON-RPC. The connection has no way to find the next message and must be dropped.
#[derive(Debug, Error)]
pub enum FrameError {
    /// A byte that cannot begin a message.
    #[error("message begins with byte {0:#04x} instead of an object")]
    NotObject(u8),
    /// The message is longer than the limit.
    #[error("message longer than {0} bytes")]
    TooLong(usize),
    /// Nested too deeply.
    #[error("message nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// Braces match but the inside is no JSON.
    #[error("bad JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Cuts a byte stream into JSON objects.
#[derive(Debug)]
pub struct Framer {
    buf: Vec<u8>,
    /// Bytes of `buf` before this were given out; they go at the next [`push`](Framer::push), all at once.
    start: usize,
    /// Bytes of `buf` before this were scanned; those from `start` on belong to one message.
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    limit: usize,
}

impl Framer {
    /// An empty framer that takes messages of up to `limit` bytes.
    pub fn new(limit: usize) -> Framer {
        Framer {
            buf: Vec::new(),
            start: 0,
            scanned: 0,
            depth: 0,
            in_string: false,
            escaped: false,
            limit,
        }
    }

    /// Appends bytes that were read. Call [`next`](Framer::next) until it has nothing before the next read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buf.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        if self.buf.is_empty() && self.buf.capacity() > RETAINED_BYTES {
            self.buf.shrink_to(RETAINED_BYTES);
        }
        self.buf.extend_from_slice(bytes);
    }

    /// The next whole message, `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError`]; the framer is of no further use then.
    #[expect(
        clippy::should_implement_trait,
        reason = "fallible, and not the end when there is none"
    )]
    pub fn next(&mut self) -> Result<Option<Value>, FrameError> {
        let Some(end) = self.scan()? else {
            return Ok(None);
        };
        let text = self.buf.get(self.start..end).unwrap_or_default();
        let value = serde_json::from_slice(text)?;
        self.start = end;
        self.scanned = end;
        Ok(Some(value))
    }

    /// The offset after the message that begins at `start`, if it is complete.
    fn scan(&mut self) -> Result<Option<usize>, FrameError> {
        if self.depth == 0 {
            let blank = self
                .buf
                .iter()
                .skip(self.start)
                .take_while(|b| b.is_ascii_whitespace())
                .count();
            self.start += blank;
            self.scanned = self.start;
            match self.buf.get(self.start) {
                None => return Ok(None),
                Some(b'{') => {}
                Some(other) => return Err(FrameError::NotObject(*other)),
            }
        }
        for (i, byte) in self.buf.iter().enumerate().skip(self.scanned) {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        return Err(FrameError::TooDeep);
                    }
                }
                b'}' | b']' => {
                    // Depth is at least 1 here: the message began with a brace and has not ended.
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return if i - self.start < self.limit {
                            Ok(Some(i + 1))
                        } else {
                            Err(FrameError::TooLong(self.limit))
                        };
                    }
                }
                _ => {}
            }
        }
        self.scanned = self.buf.len();
        if self.scanned - self.start > self.limit {
            return Err(FrameError::TooLong(self.limit));
        }
        Ok(None)
    }
}
