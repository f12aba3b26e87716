//! Reading and writing big-endian bytes.
//!
//! [`Reader`] never indexes: each step splits off the front of a slice or returns [`Short`]. By default a
//! short read means `OFPBRC_BAD_LEN`; decoders of actions and properties map it to their own error.

use crate::error::ErrorKind;

/// The input ended too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Short;

impl From<Short> for ErrorKind {
    fn from(_: Short) -> ErrorKind {
        ErrorKind::BadRequestBadLen
    }
}

/// The rest of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Short)?;
        self.0 = rest;
        Ok(*head)
    }
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], Short> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Short)?;
        self.0 = rest;
        Ok(head)
    }
    pub(crate) fn skip(&mut self, n: usize) -> Result<(), Short> {
        self.bytes(n).map(|_| ())
    }
    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        self.array::<1>().map(|b| b[0])
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_be_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_be_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_be_bytes)
    }
    /// A text of `n` bytes that ends at its first zero byte. Bytes that are not UTF-8 are replaced.
    pub(crate) fn text(&mut self, n: usize) -> Result<String, Short> {
        let raw = self.bytes(n)?;
        let end = raw.iter().position(|b| *b == 0).unwrap_or(n);
        Ok(String::from_utf8_lossy(raw.get(..end).unwrap_or(raw)).into_owned())
    }
    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Whether all that is left is zero.
    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|b| *b == 0)
    }
}

/// Appends to a message.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);
    fn zeros(&mut self, n: usize);
    fn end(&self) -> usize;
    fn patch(&mut self, at: usize, bytes: &[u8]);

    fn u8(&mut self, v: u8) {
        self.put(&[v]);
    }
    fn u16(&mut self, v: u16) {
        self.put(&v.to_be_bytes());
    }
    fn u32(&mut self, v: u32) {
        self.put(&v.to_be_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.put(&v.to_be_bytes());
    }
    /// A text in a field of `n` bytes, cut so that at least one zero byte ends it.
    fn text(&mut self, s: &str, n: usize) {
        let mut end = s.len().min(n.saturating_sub(1));
        while !s.is_char_boundary(end) {
            end -= 1;
        }
        let s = s.get(..end).unwrap_or("").as_bytes();
        self.put(s);
        self.zeros(n - s.len());
    }
    /// Writes zeros until the bytes since `start` are a multiple of eight.
    fn pad8(&mut self, start: usize) {
        self.zeros((self.end() - start).wrapping_neg() % 8);
    }
    /// Writes the number of bytes since `start` into the 16 bits at `start + at`. Saturates: a part that
    /// is longer than a message can be makes the whole message too long, which is reported for the whole.
    fn patch_len(&mut self, start: usize, at: usize) {
        let len = u16::try_from(self.end() - start).unwrap_or(u16::MAX);
        self.patch(start + at, &len.to_be_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn zeros(&mut self, n: usize) {
        self.resize(self.len() + n, 0);
    }
    fn end(&self) -> usize {
        self.len()
    }
    fn patch(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }
}
