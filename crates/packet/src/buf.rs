//! The private bytes of packets: a small area beside the packet's own fields, or a separate big buffer.
//!
//! Nearly every packet needs its first headers only. The headers of a burst should be close together (few
//! pages) and on different sets of the first-level cache. A packet that is received or copied whole takes a
//! [`Big`] buffer.

#![allow(unsafe_code)] // a zeroed buffer that no stack ever holds

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// Capacity of a big buffer: a GSO packet of 64 KiB, Ethernet and tunnel headers, and the headroom.
pub const BUF_SIZE: usize = 68 * 1024;
/// Bytes kept free in front of a received packet, for tags and tunnel headers that are pushed later. Geneve
/// over IPv4 with all its options fits, or several shorter headers. A packet that needs more takes a big
/// buffer.
pub const HEADROOM: usize = 320;
/// Bytes from the headroom on that every packet has room for.
pub const HEAD_SPACE: usize = 256;

/// The area that every packet has, on cache lines of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Small(pub(crate) [u8; HEADROOM + HEAD_SPACE]);

/// A buffer for a whole packet, on cache lines of its own.
#[repr(C, align(64))]
pub(crate) struct Big(pub(crate) [u8; BUF_SIZE]);

impl Big {
    /// A fresh buffer of zeros; its pages are touched only when they are written.
    pub(crate) fn new() -> Box<Self> {
        let layout = Layout::new::<Self>();
        // SAFETY: the layout has a size above zero, and all bytes zero are a valid `Big`. The pointer is
        // checked, and comes from the global allocator with the layout that the box will free it with.
        unsafe {
            let p = alloc_zeroed(layout).cast::<Self>();
            if p.is_null() {
                handle_alloc_error(layout);
            }
            Box::from_raw(p)
        }
    }
}

impl core::fmt::Debug for Big {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Big")
    }
}
