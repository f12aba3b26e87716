//! Header views and builders, checksums.
//!
//! A view is a `repr(C)` struct of byte-aligned big-endian fields that zerocopy lays over a slice. Reading
//! costs only the loads, and the packet need not be aligned. A view does not validate: the caller checks
//! lengths within a header (`heddle-flow`'s `extract`).
//!
//! [`checksum`] has the Internet checksum, full and incremental; [`crc32c`] SCTP's. All functions here are
//! pure and none allocates.

#![deny(clippy::indexing_slicing)] // bytes of a packet

pub mod arp;
pub mod checksum;
pub mod crc32c;
pub mod eth;
pub mod icmp;
pub mod ip;
pub mod l4;
pub mod membership;
pub mod nsh;
pub mod tunnel;

pub use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16 as Be16, U32 as Be32, U64 as Be64},
};

/// Splits a header off the front of `bytes`; `None` when they are too few.
pub fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Option<(&T, &[u8])> {
    T::ref_from_prefix(bytes).ok()
}

/// Splits a header off the front of `bytes`, to write.
pub fn split_mut<T: FromBytes + IntoBytes + KnownLayout + Unaligned>(
    bytes: &mut [u8],
) -> Option<(&mut T, &mut [u8])> {
    T::mut_from_prefix(bytes).ok()
}

/// Declares views: `repr(C)`, byte-aligned, with the derives that zerocopy needs.
macro_rules! views {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $t:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $t,)*
        }

        impl $name {
            /// Bytes of the header.
            pub const LEN: usize = core::mem::size_of::<Self>();
        }
    )*};
}
pub(crate) use views;
