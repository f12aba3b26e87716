//! The network service header in a key.

use heddle_wire::nsh::{NshBase, NshContext};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A network service header (RFC 8300), as a key holds it.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Nsh {
    /// Flags, two bits.
    pub flags: u8,
    /// Time to live, six bits.
    pub ttl: u8,
    /// Metadata type.
    pub mdtype: u8,
    /// Next protocol: the type of the packet behind the header.
    pub np: u8,
    /// Service path (24 bits) and service index (8).
    pub path: u32,
    /// Context words; zero where the metadata is of another type than 1.
    pub c1: u32,
    /// The second.
    pub c2: u32,
    /// The third.
    pub c3: u32,
    /// The fourth.
    pub c4: u32,
}

impl Nsh {
    /// All ones.
    pub const ONES: Self = Self {
        flags: u8::MAX,
        ttl: u8::MAX,
        mdtype: u8::MAX,
        np: u8::MAX,
        path: u32::MAX,
        c1: u32::MAX,
        c2: u32::MAX,
        c3: u32::MAX,
        c4: u32::MAX,
    };
    /// Service path.
    pub fn spi(&self) -> u32 {
        self.path >> 8
    }
    /// Service index.
    pub fn si(&self) -> u8 {
        (self.path & 0xff) as u8
    }
    /// The context words.
    pub fn context(&self) -> [u32; 4] {
        [self.c1, self.c2, self.c3, self.c4]
    }
    /// The header's part that is always there, for a header with `metadata` bytes of metadata.
    pub fn base_header(&self, metadata: usize) -> NshBase {
        NshBase {
            first: NshBase::first_of(self.flags, self.ttl, metadata).into(),
            md_type: self.mdtype,
            next: self.np,
            path: self.path.into(),
        }
    }
    /// The context words as metadata of type 1.
    pub fn context_header(&self) -> NshContext {
        NshContext {
            c1: self.c1.into(),
            c2: self.c2.into(),
            c3: self.c3.into(),
            c4: self.c4.into(),
        }
    }
}

macro_rules! nsh_ops {
    ($($trait:ident $f:ident $op:tt),*) => {$(
        impl core::ops::$trait for Nsh {
            type Output = Self;
            fn $f(self, o: Self) -> Self {
                Self {
                    flags: self.flags $op o.flags,
                    ttl: self.ttl $op o.ttl,
                    mdtype: self.mdtype $op o.mdtype,
                    np: self.np $op o.np,
                    path: self.path $op o.path,
                    c1: self.c1 $op o.c1,
                    c2: self.c2 $op o.c2,
                    c3: self.c3 $op o.c3,
                    c4: self.c4 $op o.c4,
                }
            }
        }
    )*};
}
nsh_ops!(BitAnd bitand &, BitOr bitor |, BitXor bitxor ^);
