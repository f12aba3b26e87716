//! Fields of a payload, one after the other.

/// Reads fields; `None` at the payload's end.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[b]| b)
    }
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
    /// The bytes that are left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }
    /// `Some` at the end.
    pub(super) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Appends fields.
pub(super) trait Writer {
    fn put_u16(&mut self, v: u16);
    fn put_u32(&mut self, v: u32);
    fn put_u64(&mut self, v: u64);
}

impl Writer for Vec<u8> {
    fn put_u16(&mut self, v: u16) {
        self.extend(v.to_ne_bytes());
    }
    fn put_u32(&mut self, v: u32) {
        self.extend(v.to_ne_bytes());
    }
    fn put_u64(&mut self, v: u64) {
        self.extend(v.to_ne_bytes());
    }
}
