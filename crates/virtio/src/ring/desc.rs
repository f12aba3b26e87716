//! A descriptor as it was read: sixteen claims' worth of bytes in private memory.

use crate::mem::Claim;

/// Another descriptor follows (split and packed).
pub(crate) const F_NEXT: u16 = 1;
/// The device writes to the buffer.
pub(crate) const F_WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(crate) const F_INDIRECT: u16 = 4;
/// Packed: made available, if it equals the driver's wrap counter (virtio 1.2 §2.8.1).
pub(crate) const F_AVAIL: u16 = 1 << 7;
/// Packed: used, if it equals F_AVAIL.
pub(crate) const F_USED: u16 = 1 << 15;
/// Packed event area (§2.8.10): notify always.
pub(crate) const AREA_ENABLE: u16 = 0;
/// Notify never.
pub(crate) const AREA_DISABLE: u16 = 1;
/// Notify when a named descriptor is passed.
pub(crate) const AREA_DESC: u16 = 2;

/// Bytes of a descriptor.
pub(super) const SIZE: usize = 16;
/// Packed: where a descriptor's flags are.
pub(super) const FLAGS: usize = 14;

/// One descriptor, read once. The two layouts agree in `addr` and `len`; the last two fields are `flags,
/// next` in a split ring and `id, flags` in a packed one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawDesc {
    pub(super) addr: u64,
    pub(super) len: u32,
    third: u16,
    fourth: u16,
}

impl RawDesc {
    /// The descriptor in two words, each byte of which was read once.
    #[inline]
    pub(super) fn from_words((addr, rest): (u64, u64)) -> Self {
        Self {
            addr,
            len: rest as u32,
            third: (rest >> 32) as u16,
            fourth: (rest >> 48) as u16,
        }
    }
    /// Decodes one that was copied out of an indirect table.
    #[inline]
    pub(super) fn decode(bytes: &[u8; SIZE]) -> Self {
        #[expect(clippy::indexing_slicing, reason = "0 and 8 are the words of 16 bytes")]
        let word = |at: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(w)
        };
        Self::from_words((word(0), word(8)))
    }
    #[inline]
    pub(super) fn split_flags(&self) -> u16 {
        self.third
    }
    #[inline]
    pub(super) fn split_next(&self) -> Claim<u16> {
        Claim::new(self.fourth)
    }
    /// The identifier that the device hands back; the driver chooses it freely (§2.8.7), so every value is
    /// allowed.
    #[inline]
    pub(super) fn packed_id(&self) -> u16 {
        Claim::new(self.third).any()
    }
    #[inline]
    pub(super) fn packed_flags(&self) -> u16 {
        self.fourth
    }
}
