//! Cuts a byte stream into JSON texts.
//!
//! RFC 7047 section 4 (whose framing the control socket shares) puts no delimiter between messages: one ends where
//! its outermost bracket closes. The scanner looks at each byte once, whatever the sizes of the reads, and holds one
//! message at most [`MAX_MESSAGE`] long.

/// The longest message taken. The largest real ones are `dpctl/add-flow` with a long flow: some kilobytes.
pub(super) const MAX_MESSAGE: usize = 4 << 20;

/// Why a stream cannot be cut any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum FramingError {
    #[error("syntax error at beginning of input")]
    NotAnObject,
    #[error("message is longer than {MAX_MESSAGE} bytes")]
    TooLong,
}

#[derive(Debug, Default)]
pub(super) struct Framer {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that have been looked at.
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Framer {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if it has arrived. Its brackets balance; nothing else is checked.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, FramingError> {
        if self.scanned == 0 {
            let blanks = self
                .buffer
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace())
                .count();
            self.buffer.drain(..blanks);
            if self.buffer.first().is_some_and(|byte| *byte != b'{') {
                return Err(FramingError::NotAnObject);
            }
        }
        while let Some(byte) = self.buffer.get(self.scanned).copied() {
            self.scanned += 1;
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
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth == 0 {
                let rest = self.buffer.split_off(self.scanned);
                self.scanned = 0;
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
        }
        if self.buffer.len() > MAX_MESSAGE {
            return Err(FramingError::TooLong);
        }
        Ok(None)
    }
}
