//! The rewrites of a router, for packets that are laid out alike: Ethernet addresses, and IPv4 fields whose
//! change concerns no other header.
//!
//! **Design.** Adjacent rewrites are compiled once for all packets of a line, into words to keep and words to
//! put ([`Quick::of`]). Each word costs a packet a load, two operations and a store. All other rewrites are
//! done by [`super::set`], which is also the plain twin: a property test compares the two.
//!
//! **Checksum.** IPv4's follows by RFC 1624; sums of 16-bit words may be taken in either byte order, so it
//! is done in the processor's.

use super::Meta;
use super::program::Op;
use heddle_datapath_api::{Action, Masked};
use heddle_flow::packet_type;
use heddle_wire::ip::Ipv4;

/// Bits that stay, and bits that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words<T> {
    keep: T,
    put: T,
}

/// Type of service and time to live of the header at `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields {
    at: usize,
    tos: Words<u8>,
    ttl: Words<u8>,
}

/// At most one rewrite of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quick {
    /// Both Ethernet addresses, from the frame's start on.
    eth: Option<(Words<u64>, Words<u32>)>,
    ipv4: Option<Fields>,
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
    /// Compiles the first of these steps that are such rewrites, for packets with the offsets of `meta`. Also
    /// returns the number of these steps.
    pub(super) fn of(ops: &[Op], meta: &Meta) -> (Self, usize) {
        let (mut all, mut n) = (Self::default(), 0);
        while let Some(Op::Apply(action)) = ops.get(n)
            && all.add(action, meta)
        {
            n += 1;
        }
        (all, n)
    }
    /// `false`: the action is another rewrite, or there is one of its kind already.
    fn add(&mut self, action: &Action, meta: &Meta) -> bool {
        match action {
            Action::SetEth { src, dst }
                if meta.packet_type == packet_type::ETHERNET && self.eth.is_none() =>
            {
                let (mask, value) = (words(dst.mask, src.mask), words(dst.value, src.value));
                let low = Words {
                    keep: !mask.0,
                    put: value.0 & mask.0,
                };
                let high = Words {
                    keep: !mask.1,
                    put: value.1 & mask.1,
                };
                self.eth = Some((low, high));
            }
            Action::SetIpv4 { src, dst, tos, ttl } if src.mask | dst.mask == 0 && self.ipv4.is_none() => {
                self.ipv4 = Some(Fields {
                    at: meta.l3.into(),
                    tos: byte(tos),
                    ttl: byte(ttl),
                });
            }
            _ => return false,
        }
        true
    }

    /// Rewrites a packet's private bytes. `false`: they end before a header does.
    #[inline(always)]
    pub(super) fn apply(&self, head: &mut [u8]) -> bool {
        if let Some((low, high)) = &self.eth {
            let Some(both) = head.first_chunk_mut::<12>() else {
                return false;
            };
            let [a, b, c, d, e, f, g, h, i, j, k, l] = *both;
            let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]) & low.keep | low.put;
            let rest = u32::from_le_bytes([i, j, k, l]) & high.keep | high.put;
            both[..8].copy_from_slice(&first.to_le_bytes());
            both[8..].copy_from_slice(&rest.to_le_bytes());
        }
        if let Some(fields) = &self.ipv4 {
            let header = head.get_mut(fields.at..).and_then(|h| h.first_chunk_mut());
            let Some(header): Option<&mut [u8; Ipv4::LEN]> = header else {
                return false;
            };
            fields.apply(header);
        }
        true
    }
}

impl Fields {
    #[inline(always)]
    fn apply(&self, header: &mut [u8; Ipv4::LEN]) {
        let [.., was, proto, low, high] = *header.first_chunk::<12>().expect("it is longer");
        let was = (header[1], was);
        let now = (
            was.0 & self.tos.keep | self.tos.put,
            was.1 & self.ttl.keep | self.ttl.put,
        );
        if was == now {
            return;
        }
        // Old and new values: the TOS is the second byte of a word, the TTL the first.
        let tos = 0xffff + (u32::from(now.0) << 8) - (u32::from(was.0) << 8);
        let ttl = 0xffff + u32::from(now.1) - u32::from(was.1);
        let sum = u32::from(!u16::from_le_bytes([low, high])) + tos + ttl;
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        let [low, high, ..] = (!sum).to_le_bytes();
        header[1] = now.0;
        header[8..12].copy_from_slice(&[now.1, proto, low, high]);
    }
}
