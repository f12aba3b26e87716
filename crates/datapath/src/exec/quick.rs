//! The rewrites of a router, for packets that are laid out alike: Ethernet addresses, and IPv4 fields whose
//! change concerns no other header.
//!
//! **Shape.** A rewrite is looked at once for all packets of a line and becomes words to keep and words to
//! put ([`Quick::of`]); per packet that is a load, two operations and a store of each. Whatever is not of
//! this kind is [`super::set`]'s, which is also the plain twin: a packet that has no room for the header is
//! left to it, and a property test compares the two.
//!
//! **Checksum.** IPv4's follows by RFC 1624; sums of 16-bit words may be taken in either byte order, so it
//! is done in the processor's.

use super::Meta;
use crate::action::{Action, Masked};
use heddle_flow::packet_type;
use heddle_wire::ip::Ipv4;

/// Bits that stay, and bits that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words<T> {
    keep: T,
    put: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quick {
    /// Both Ethernet addresses, from the frame's start on.
    Eth(Words<u64>, Words<u32>),
    /// Type of service and time to live of the header at `at`.
    Ipv4 {
        at: usize,
        tos: Words<u8>,
        ttl: Words<u8>,
    },
}

/// Two addresses, the destination first, as words of the frame.
fn words(dst: [u8; 6], src: [u8; 6]) -> (u64, u32) {
    let [a, b, c, d, e, f] = dst;
    let [g, h, i, j, k, l] = src;
    (
        u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        u32::from_le_bytes([i, j, k, l]),
    )
}

fn byte(m: &Masked<u8>) -> Words<u8> {
    Words {
        keep: !m.mask,
        put: m.value & m.mask,
    }
}

impl Quick {
    /// What `action` does to packets that are laid out so. `None`: it is none of these rewrites.
    pub(super) fn of(action: &Action, meta: &Meta) -> Option<Self> {
        match action {
            Action::SetEth { src, dst } if meta.packet_type == packet_type::ETHERNET => {
                let (mask, value) = (words(dst.mask, src.mask), words(dst.value, src.value));
                let low = Words {
                    keep: !mask.0,
                    put: value.0 & mask.0,
                };
                let high = Words {
                    keep: !mask.1,
                    put: value.1 & mask.1,
                };
                Some(Self::Eth(low, high))
            }
            Action::SetIpv4 { src, dst, tos, ttl } if src.mask | dst.mask == 0 => Some(Self::Ipv4 {
                at: meta.l3.into(),
                tos: byte(tos),
                ttl: byte(ttl),
            }),
            _ => None,
        }
    }

    /// Rewrites a packet's private bytes. `false`: they end before the header does, and are as they were.
    #[inline]
    pub(super) fn apply(&self, head: &mut [u8]) -> bool {
        match self {
            Self::Eth(low, high) => {
                let Some(both) = head.first_chunk_mut::<12>() else {
                    return false;
                };
                let [a, b, c, d, e, f, g, h, i, j, k, l] = *both;
                let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]) & low.keep | low.put;
                let rest = u32::from_le_bytes([i, j, k, l]) & high.keep | high.put;
                both[..8].copy_from_slice(&first.to_le_bytes());
                both[8..].copy_from_slice(&rest.to_le_bytes());
            }
            Self::Ipv4 { at, tos, ttl } => {
                let header = head.get_mut(*at..).and_then(|h| h.first_chunk_mut());
                let Some(header): Option<&mut [u8; Ipv4::LEN]> = header else {
                    return false;
                };
                let was = (header[1], header[8]);
                let now = (was.0 & tos.keep | tos.put, was.1 & ttl.keep | ttl.put);
                if was != now {
                    (header[1], header[8]) = now;
                    // They are the second and the first byte of their words.
                    let word = |low: u8, high: u8| u32::from(low) | u32::from(high) << 8;
                    let sum = word(!header[10], !header[11]) // complements of all that was
                        + word(u8::MAX, !was.0)
                        + word(!was.1, u8::MAX)
                        + word(0, now.0)
                        + word(now.1, 0);
                    let sum = (sum & 0xffff) + (sum >> 16);
                    let sum = (sum & 0xffff) + (sum >> 16);
                    let [a, b, ..] = (!sum).to_le_bytes();
                    (header[10], header[11]) = (a, b);
                }
            }
        }
        true
    }
}
