//! Reads numbers and texts from bytes, with an error at their end.

use crate::Error;

/// Bytes that are not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }
    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        self.array().map(u8::from_be_bytes)
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_be_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_be_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_be_bytes)
    }
    pub(crate) fn u128(&mut self) -> Result<u128, Error> {
        self.array().map(u128::from_be_bytes)
    }
    pub(crate) fn text(&mut self) -> Result<String, Error> {
        let n = usize::from(self.u16()?);
        if n > crate::MAX_NAME_BYTES {
            return Err(Error::TooLarge("a name"));
        }
        let text =
            std::str::from_utf8(self.bytes(n)?).map_err(|_| Error::Malformed("a name is not UTF-8"))?;
        if text.chars().any(char::is_control) {
            return Err(Error::Malformed("a name has control characters"));
        }
        Ok(text.to_owned())
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
