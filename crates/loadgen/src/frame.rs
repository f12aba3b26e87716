//! The frames: templates that are written once, and the places in them that change.

use crate::flows::Tuple;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Wraps};
use heddle_virtio::net_hdr;
use heddle_wire::checksum::Sum;
use heddle_wire::eth::{Ethernet, ethertype};
use heddle_wire::ip::{Ipv4, proto};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::{Be16, Be32, IntoBytes};

/// Bytes of the virtio-net header in front of each frame (VERSION_1).
pub const HDR: usize = net_hdr::LEN;
const TTL: u8 = 64;
/// Offset of [`Tuple::bytes`] in a frame.
pub const TUPLE_AT: usize = Ethernet::LEN + 8;
/// Bytes of a [`Stamp`].
pub const STAMP: usize = 16;
/// Number of bytes by which a probe is shorter.
pub const PROBE_SHORTER: usize = 2;

/// The kind and length of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// UDP over IPv4; bytes of the frame without the frame check sequence.
    Udp(usize),
    /// A segment of TCP over IPv4, with a correct checksum, and therefore without a stamp.
    Tcp(usize),
    /// A TCP GSO packet over IPv4.
    Tso {
        /// Bytes of the frame.
        size: usize,
        /// Payload bytes of a segment.
        mss: u16,
    },
}

impl Shape {
    /// Bytes of the frame.
    pub fn size(self) -> usize {
        match self {
            Self::Udp(size) | Self::Tcp(size) | Self::Tso { size, .. } => size,
        }
    }
    /// Offset of the L4 payload.
    pub fn payload_at(self) -> usize {
        let l4 = match self {
            Self::Udp(_) => Udp::LEN,
            Self::Tcp(_) | Self::Tso { .. } => Tcp::LEN,
        };
        Ethernet::LEN + Ipv4::LEN + l4
    }
    /// The same, `less` bytes shorter, if it can be a probe.
    #[must_use]
    pub fn shorter(self, less: usize) -> Self {
        match self {
            Self::Udp(size) => Self::Udp(size - less),
            Self::Tcp(size) => Self::Tcp(size),
            Self::Tso { size, mss } => Self::Tso {
                size: size - less,
                mss,
            },
        }
    }
    /// Minimum length of the frame, bytes: a probe has room for a stamp at both ends. `Tcp` has no probes,
    /// and needs the headers only.
    pub fn min(self) -> usize {
        match self {
            Self::Tcp(_) => self.payload_at(),
            _ => self.payload_at() + STAMP + PROBE_SHORTER,
        }
    }
    /// The number of bytes by which a probe is shorter.
    pub fn less(self) -> usize {
        match self {
            Self::Tcp(_) => 0,
            _ => PROBE_SHORTER,
        }
    }
    /// The longest frame: a packet of 65535 bytes behind an Ethernet header.
    pub const MAX: usize = Ethernet::LEN + 65535;
}

/// The first bytes of a checked packet's payload. Little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the sender.
    pub sender: u8,
    /// The sender's number of this packet.
    pub seq: u32,
    /// The cycle counter when it was sent.
    pub tsc: u64,
}

const MAGIC: [u8; 3] = *b"hdl";

impl Stamp {
    /// The stamp as bytes.
    #[inline]
    pub fn bytes(self) -> [u8; STAMP] {
        let [a, b, c] = MAGIC;
        let low = u32::from_le_bytes([a, b, c, self.sender]);
        let v = u128::from(low) | u128::from(self.seq) << 32 | u128::from(self.tsc) << 64;
        v.to_le_bytes()
    }
    /// Reads a stamp; `None` if the packet has none.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // fields of fixed width
    pub fn read(bytes: [u8; STAMP]) -> Option<Self> {
        let [a, b, c, sender, ..] = bytes;
        let v = u128::from_le_bytes(bytes);
        ([a, b, c] == MAGIC).then_some(Self {
            sender,
            seq: (v >> 32) as u32,
            tsc: (v >> 64) as u64,
        })
    }
}

/// The frame of one sender, with its virtio-net header.
#[derive(Clone, Debug)]
pub struct Template {
    /// Header and frame.
    pub bytes: Vec<u8>,
    /// Kind and length of the frame.
    pub shape: Shape,
    proto: u8,
    rest: Sum,
    /// Part of TCP's checksum that does not depend on addresses and ports.
    l4: Sum,
}

/// The bytes of a template that differ between flows, from [`TUPLE_AT`] on.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    bytes: [u8; PATCH],
    len: usize,
}

/// From [`TUPLE_AT`] to TCP's checksum.
const PATCH: usize = 30;
/// Offset of the checksum in a TCP header.
const TCP_SUM: usize = 16;

impl std::ops::Deref for Patch {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The Ethernet address of port `port`.
pub fn mac(port: u8) -> [u8; 6] {
    [0x02, b'h', b'd', b'l', 0, port]
}

impl Template {
    /// The frame from port `src` to port `dst`, of flow 0 of sender `sender`.
    ///
    /// # Panics
    /// When the shape has no room for a stamp, or is above [`Shape::MAX`].
    pub fn new(shape: Shape, src: u8, dst: u8, sender: u8) -> Self {
        let size = shape.size();
        assert!(
            (shape.min() - shape.less()..=Shape::MAX).contains(&size),
            "the size was checked before"
        );
        let be16 = |n: usize| Be16::new(u16::try_from(n).unwrap_or(u16::MAX));
        let ip_len = size - Ethernet::LEN;
        let tuple = Tuple::of(sender, 0);
        let eth = Ethernet {
            dst: mac(dst),
            src: mac(src),
            ethertype: ethertype::IP.into(),
        };
        let proto = match shape {
            Shape::Udp(_) => proto::UDP,
            Shape::Tcp(_) | Shape::Tso { .. } => proto::TCP,
        };
        let mut ip = Ipv4 {
            version_ihl: 0x45,
            total_len: be16(ip_len),
            frag: Be16::new(Ipv4::DONT),
            ttl: TTL,
            proto,
            ..Ipv4::default()
        };
        let rest = Sum::ZERO.bytes(ip.as_bytes());
        ip.src = Be32::new(tuple.src);
        ip.dst = Be32::new(tuple.dst);
        let l4_len = ip_len - Ipv4::LEN;
        let mut bytes = net_hdr::encode(&offload(shape), size).to_vec();
        bytes.extend(eth.as_bytes());
        bytes.extend(ip.as_bytes());
        match shape {
            Shape::Udp(_) => bytes.extend(
                Udp {
                    len: be16(l4_len),
                    ..Udp::default()
                }
                .as_bytes(),
            ),
            Shape::Tcp(_) => bytes.extend(
                Tcp {
                    ctl: Be16::new(5 << 12 | 0x10),
                    window: Be16::new(u16::MAX),
                    ..Tcp::default()
                }
                .as_bytes(),
            ),
            Shape::Tso { .. } => {
                // virtio 1.2 §5.1.6.2: the field holds the pseudo header's sum.
                let len = u32::try_from(l4_len).unwrap_or(0);
                let pseudo = Sum::ZERO.pseudo_v4(tuple.src, tuple.dst, proto, len);
                bytes.extend(
                    Tcp {
                        ctl: Be16::new(5 << 12 | 0x10),
                        window: Be16::new(u16::MAX),
                        csum: Be16::new(pseudo.folded()),
                        ..Tcp::default()
                    }
                    .as_bytes(),
                );
            }
        }
        let at = bytes.len();
        bytes.resize(HDR + size, 0);
        for (i, b) in bytes.iter_mut().enumerate().skip(at) {
            *b = pattern(i - HDR);
        }
        let l4 = Sum::ZERO.bytes(&bytes[HDR + Ethernet::LEN + Ipv4::LEN..]);
        let mut t = Self {
            bytes,
            shape,
            proto,
            rest,
            l4,
        };
        t.give(tuple);
        t
    }
    /// Changes the template to another flow's.
    pub fn give(&mut self, tuple: Tuple) {
        let patch = self.patch(tuple);
        self.bytes[HDR + TUPLE_AT..HDR + TUPLE_AT + patch.len()].copy_from_slice(&patch);
    }
    /// The same frame for another Ethernet address: a router's.
    #[must_use]
    pub fn to_ethernet(mut self, address: [u8; 6]) -> Self {
        self.bytes[HDR..HDR + address.len()].copy_from_slice(&address);
        self
    }
    /// The bytes at [`TUPLE_AT`] for another flow. (The pseudo header's checksum of a GSO packet depends on
    /// the addresses: GSO packets have one flow per sender.)
    #[inline]
    pub fn patch(&self, tuple: Tuple) -> Patch {
        let head = tuple.bytes(TTL, self.proto, self.rest);
        let mut bytes = [0; PATCH];
        bytes[..head.len()].copy_from_slice(&head);
        let Shape::Tcp(size) = self.shape else {
            return Patch {
                bytes,
                len: head.len(),
            };
        };
        // The bytes between the tuple and the checksum are the same for all flows.
        let between = HDR + TUPLE_AT + head.len();
        bytes[head.len()..].copy_from_slice(&self.bytes[between..between + PATCH - head.len()]);
        let ports = tuple
            .sport
            .to_be_bytes()
            .into_iter()
            .chain(tuple.dport.to_be_bytes());
        let mut ends = [0; 4];
        ends.iter_mut().zip(ports).for_each(|(to, b)| *to = b);
        let len = u32::try_from(size - Ethernet::LEN - Ipv4::LEN).unwrap_or(0);
        let sum = Sum::ZERO
            .bytes(&ends)
            .pseudo_v4(tuple.src, tuple.dst, self.proto, len)
            .sum(self.l4);
        let at = Ethernet::LEN + Ipv4::LEN + TCP_SUM - TUPLE_AT;
        bytes[at..at + 2].copy_from_slice(&sum.checksum().to_be_bytes());
        Patch { bytes, len: PATCH }
    }
    /// Whether `frame` (without header) is this template's, of any flow, as [`Stamp`] and the bytes at its
    /// end have changed it. The head may have been rewritten by a switch; the payload may not.
    pub fn matches(&self, frame: &[u8]) -> bool {
        let from = self.shape.payload_at() + STAMP;
        let to = frame.len().saturating_sub(TAIL);
        let (ours, theirs) = (self.bytes.get(HDR + from..HDR + to), frame.get(from..to));
        frame.len() == self.shape.size() && ours.is_some() && ours == theirs
    }
}

/// Bytes at the end of a checked frame that repeat the number in its stamp.
pub const TAIL: usize = 4;

/// The expected payload byte at offset `at` of the frame.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(37) >> 3).to_le_bytes()[0]
}

fn offload(shape: Shape) -> Offload {
    let Shape::Tso { mss, .. } = shape else {
        return Offload::default();
    };
    let start = Ethernet::LEN + Ipv4::LEN;
    let start = u16::try_from(start).unwrap_or(0);
    Offload {
        csum: Csum::Partial { start, offset: 16 },
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            ecn: false,
            size: mss,
            hdr_len: 54,
            wraps: Wraps::default(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_wire::checksum::checksum;

    #[test]
    fn headers_are_right_for_every_flow() {
        for shape in [
            Shape::Udp(64),
            Shape::Udp(9000),
            Shape::Tcp(60),
            Shape::Tcp(61),
            Shape::Tcp(9000),
            Shape::Tso {
                size: 65549,
                mss: 1448,
            },
        ] {
            let mut t = Template::new(shape, 1, 2, 3);
            assert_eq!(t.bytes.len(), HDR + shape.size());
            for n in [0, 1, 16_383, 16_384, 999_999] {
                let tuple = Tuple::of(3, n);
                t.give(tuple);
                let ip = &t.bytes[HDR + 14..HDR + 34];
                assert_eq!(checksum(ip), 0, "flow {n}");
                let (view, l4) = heddle_wire::split::<Ipv4>(&t.bytes[HDR + 14..]).unwrap();
                assert_eq!(usize::from(view.total_len.get()), shape.size() - 14);
                assert_eq!((view.src.get(), view.dst.get()), (tuple.src, tuple.dst));
                let (udp, _) = heddle_wire::split::<Udp>(l4).unwrap();
                assert_eq!((udp.src.get(), udp.dst.get()), (tuple.sport, tuple.dport));
                if matches!(shape, Shape::Tcp(_)) {
                    let len = u32::try_from(l4.len()).unwrap();
                    let pseudo = Sum::ZERO.pseudo_v4(tuple.src, tuple.dst, proto::TCP, len);
                    assert_eq!(pseudo.bytes(l4).checksum(), 0, "flow {n}");
                    assert!(t.bytes.len() == HDR + shape.size() && l4[12..14] == [0x50, 0x10]);
                }
            }
            if shape.size() < shape.payload_at() + STAMP {
                continue; // no room for what the rest is about
            }
            assert!(t.matches(&t.bytes[HDR..]));
            let mut bad = t.bytes[HDR..].to_vec();
            let at = shape.payload_at() + STAMP;
            bad[at] ^= 1;
            assert!(!t.matches(&bad), "a flipped bit is seen");
            assert!(!t.matches(&bad[1..]));
        }
    }

    #[test]
    fn a_router_is_sent_to() {
        let to_partner = Template::new(Shape::Udp(64), 1, 2, 3);
        let to_router = to_partner.clone().to_ethernet([2, 0, 0, 0, 0, 1]);
        assert_eq!(to_router.bytes[HDR..HDR + 6], [2, 0, 0, 0, 0, 1]);
        assert_eq!(to_router.bytes[HDR + 6..], to_partner.bytes[HDR + 6..]);
    }

    #[test]
    fn stamps_survive() {
        let s = Stamp {
            sender: 7,
            seq: 0x1234_5678,
            tsc: u64::MAX - 5,
        };
        assert_eq!(Stamp::read(s.bytes()), Some(s));
        assert_eq!(Stamp::read([0; STAMP]), None);
    }

    #[test]
    fn gso_frames_request_segmentation() {
        let t = Template::new(
            Shape::Tso {
                size: 9000,
                mss: 1448,
            },
            1,
            2,
            0,
        );
        let o = heddle_virtio::decode(&t.bytes, 128).unwrap();
        assert_eq!(o.gso.map(|g| (g.kind, g.size)), Some((GsoKind::Tcp4, 1448)));
        assert_eq!(
            o.csum,
            Csum::Partial {
                start: 34,
                offset: 16
            }
        );
    }
}
