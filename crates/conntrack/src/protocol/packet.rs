//! The parts of a packet that the tracker reads: its tuple, and the fields of TCP that move windows.
//!
//! All lengths are checked here, against the bytes at hand and against the end in the IP header. A malformed
//! packet is [`Invalid`], which is `+inv` for the pipeline. The rules are those of Open vSwitch. Ports of TCP
//! and UDP are not zero. An ICMP error belongs to the connection of the packet that it quotes, whose source
//! must be the destination of the error. A checksum is verified only if its state is unknown.

use crate::tuple::{Endpoint, Tuple};
use heddle_wire::checksum::checksum;
use heddle_wire::ip::{Ipv4, Ipv6, Ipv6Ext, Ipv6Frag, proto};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::{Be16, split};

/// The state of a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    /// Right, or left to a device to fill in.
    Good,
    /// Wrong.
    Bad,
    /// Not verified yet.
    Unknown,
}

/// A packet as the datapath holds it.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    /// The packet from a byte at or before `l3` on. All headers are within; payload may be elsewhere.
    pub head: &'a [u8],
    /// Offset of the IP header in `head`.
    pub l3: usize,
    /// Offset in `head` of the header after IP and its extensions.
    pub l4: usize,
    /// End of the payload by the IP header, as an offset from the first byte of `head`. It may be beyond the
    /// end of `head`.
    pub end: usize,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// The protocol at `l4`.
    pub proto: u8,
    /// Part of a larger packet, first or later.
    pub fragment: bool,
    /// The IPv4 header's checksum.
    pub l3_sum: Checked,
    /// The checksum of TCP, UDP or ICMP.
    pub l4_sum: Checked,
    /// Verifies that checksum. Called only if its state is unknown and matters.
    pub verify: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet")
            .field("l3", &self.l3)
            .field("l4", &self.l4)
            .field("end", &self.end)
            .field("proto", &self.proto)
            .finish_non_exhaustive()
    }
}

/// The reason why a packet cannot belong to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// Headers that are cut off or contradict themselves, a port of zero, a meaningless ICMP type.
    Malformed,
    /// A fragment that was not reassembled.
    Fragment,
    /// The IPv4 header's checksum is wrong.
    L3Checksum,
    /// The checksum of TCP, UDP or ICMP is wrong.
    L4Checksum,
}

/// The result of reading a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Subject {
    /// Tuple of the packet. For an ICMP error: the tuple in the direction of the error of the connection that
    /// it is about.
    pub tuple: Tuple,
    /// An ICMP error.
    pub related: bool,
    /// Segment of TCP, unless an ICMP error quotes it.
    pub tcp: Option<Segment>,
}

/// The fields of a TCP segment that move a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Flags, FIN lowest.
    pub flags: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Window, unscaled.
    pub window: u16,
    /// Bytes of payload, of all segments of a GSO packet.
    pub len: u32,
    /// Window scale option of a SYN.
    pub scale: Option<u8>,
}

impl Packet<'_> {
    /// Reads the packet.
    ///
    /// # Errors
    /// The reason why the packet is invalid.
    pub fn read(&self) -> Result<Subject, Invalid> {
        let mut s = Subject::default();
        self.read_into(&mut s).map(|()| s)
    }
    /// The same as [`Packet::read`], into an existing value.
    ///
    /// # Errors
    /// The reason why the packet is invalid; the value is unspecified then.
    pub fn read_into(&self, s: &mut Subject) -> Result<(), Invalid> {
        use Invalid::Malformed;
        if self.fragment {
            return Err(Invalid::Fragment);
        }
        let l3 = self.head.get(self.l3..).ok_or(Malformed)?;
        let l4 = self.head.get(self.l4..).ok_or(Malformed)?;
        let size = self.end.checked_sub(self.l4).ok_or(Malformed)?;
        // Padding after the IP packet is not payload.
        let l4 = l4.get(..size).unwrap_or(l4);
        if self.ipv6 {
            let (ip, _) = split::<Ipv6>(l3).ok_or(Malformed)?;
            s.tuple = tuple6(ip, self.proto);
        } else {
            let (ip, _) = split::<Ipv4>(l3).ok_or(Malformed)?;
            let len = ip.header_len();
            if len < Ipv4::LEN || self.l3 + len > self.l4 {
                return Err(Malformed);
            }
            let good = match (self.l3_sum, l3.first_chunk()) {
                (Checked::Good, _) => true,
                (Checked::Bad, _) => false,
                (Checked::Unknown, Some(h)) if len == Ipv4::LEN => is_right(h),
                (Checked::Unknown, _) => checksum(l3.get(..len).ok_or(Malformed)?) == 0,
            };
            if !good {
                return Err(Invalid::L3Checksum);
            }
            s.tuple = tuple4(ip);
        }
        self.read_l4(s, l4, size)
    }

    fn read_l4(&self, s: &mut Subject, l4: &[u8], size: usize) -> Result<(), Invalid> {
        use Invalid::Malformed;
        (s.related, s.tcp) = (false, None);
        let t = &mut s.tuple;
        match (t.proto, t.ipv6) {
            (proto::TCP, _) => {
                let (h, rest) = split::<Tcp>(l4).ok_or(Malformed)?;
                let len = h.header_len();
                if len < Tcp::LEN || len > size {
                    return Err(Malformed);
                }
                self.check_l4(false)?;
                set_ports(t, h.src, h.dst).ok_or(Malformed)?;
                let options = rest.get(..len - Tcp::LEN).unwrap_or(rest);
                s.tcp = Some(segment(h, options, size - len));
            }
            (proto::UDP, v6) => {
                let (h, _) = split::<Udp>(l4).ok_or(Malformed)?;
                if !(Udp::LEN..=size).contains(&usize::from(h.len.get())) {
                    return Err(Malformed);
                }
                self.check_l4(h.csum.get() == 0 && !v6)?;
                set_ports(t, h.src, h.dst).ok_or(Malformed)?;
            }
            (proto::ICMP, false) | (proto::ICMPV6, true) => {
                let (h, inner) = l4.split_first_chunk::<8>().ok_or(Malformed)?;
                self.check_l4(false)?;
                let [kind, code, _, _, id @ .., _, _] = *h;
                if is_error(kind, t.ipv6) {
                    *t = about(*t, inner).ok_or(Malformed)?;
                    s.related = true;
                } else {
                    *t = echo(*t, u16::from_be_bytes(id), kind, code).ok_or(Malformed)?;
                }
            }
            (proto::SCTP, _) => {
                let (ports, _) = l4.split_first_chunk::<12>().ok_or(Malformed)?;
                let [s0, s1, d0, d1, ..] = *ports;
                t.src.l4 = u16::from_be_bytes([s0, s1]).into();
                t.dst.l4 = u16::from_be_bytes([d0, d1]).into();
            }
            // The protocol of the other family; or an extension header, after which no header can be read.
            (proto::ICMP, true) | (proto::ICMPV6, false) => return Err(Malformed),
            (p, true) if is_extension(p) => return Err(Malformed),
            _ => {}
        }
        Ok(())
    }

    #[inline]
    fn check_l4(&self, none: bool) -> Result<(), Invalid> {
        let good = match self.l4_sum {
            Checked::Good => true,
            Checked::Bad => false,
            Checked::Unknown => none || (self.verify)(),
        };
        if good { Ok(()) } else { Err(Invalid::L4Checksum) }
    }
}

#[inline]
fn tuple4(ip: &Ipv4) -> Tuple {
    let end = |a: u32| Endpoint {
        addr: a.into(),
        l4: 0,
    };
    Tuple {
        src: end(ip.src.get()),
        dst: end(ip.dst.get()),
        proto: ip.proto,
        ipv6: false,
    }
}

#[inline]
fn tuple6(ip: &Ipv6, proto: u8) -> Tuple {
    let end = |a: [u8; 16]| Endpoint {
        addr: u128::from_be_bytes(a),
        l4: 0,
    };
    Tuple {
        src: end(ip.src),
        dst: end(ip.dst),
        proto,
        ipv6: true,
    }
}

#[inline]
fn set_ports(tuple: &mut Tuple, src: Be16, dst: Be16) -> Option<()> {
    tuple.src.l4 = src.get().into();
    tuple.dst.l4 = dst.get().into();
    (src.get() != 0 && dst.get() != 0).then_some(())
}

/// Whether an IPv4 header without options has a right checksum.
#[inline]
pub(crate) fn is_right(h: &[u8; Ipv4::LEN]) -> bool {
    let word = |i: usize| u64::from(u32::from_ne_bytes([h[i], h[i + 1], h[i + 2], h[i + 3]]));
    let sum = word(0) + word(4) + word(8) + word(12) + word(16);
    // Ones' complement: the sum of right words is 0xffff, in any order of bytes, and never zero (RFC 1071).
    sum != 0 && sum.is_multiple_of(0xffff)
}

fn echo(tuple: Tuple, id: u16, kind: u8, code: u8) -> Option<Tuple> {
    tuple.with_icmp(id, kind, code).filter(|_| code == 0)
}

/// Whether an ICMP message of this type quotes a packet.
pub(crate) fn is_error(kind: u8, ipv6: bool) -> bool {
    if ipv6 {
        matches!(kind, 1..=4)
    } else {
        matches!(kind, 3 | 4 | 5 | 11 | 12)
    }
}

/// Offset of a quoted packet's transport header, and its tuple. Routers also quote first fragments (RFC
/// 1191), which have that header; later fragments have none.
pub(crate) fn quoted(ipv6: bool, bytes: &[u8]) -> Option<(usize, Tuple)> {
    let (at, tuple) = if ipv6 {
        let (ip, _) = split::<Ipv6>(bytes)?;
        let (at, proto) = behind_extensions(bytes, ip.next)?;
        (at, tuple6(ip, proto))
    } else {
        let (ip, _) = split::<Ipv4>(bytes)?;
        if ip.header_len() < Ipv4::LEN || ip.is_later_fragment() {
            return None;
        }
        (ip.header_len(), tuple4(ip))
    };
    let l4 = bytes.get(at..)?;
    let mut tuple = tuple;
    match (tuple.proto, ipv6) {
        (proto::TCP | proto::UDP | proto::SCTP, _) => {
            // RFC 792: eight bytes of the payload of the quoted packet are present.
            let [s0, s1, d0, d1, ..] = *l4.first_chunk::<8>()?;
            set_ports(&mut tuple, Be16::from_bytes([s0, s1]), Be16::from_bytes([d0, d1]))?;
        }
        (proto::ICMP, false) | (proto::ICMPV6, true) => {
            let [kind, code, _, _, id @ .., _, _] = *l4.first_chunk::<8>()?;
            tuple = echo(tuple, u16::from_be_bytes(id), kind, code)?;
        }
        (proto::ICMP, true) | (proto::ICMPV6, false) => return None,
        _ => {}
    }
    Some((at, tuple))
}

/// The tuple of the connection that an error is about, in the error's direction.
fn about(outer: Tuple, bytes: &[u8]) -> Option<Tuple> {
    let (_, tuple) = quoted(outer.ipv6, bytes)?;
    (tuple.src.addr == outer.dst.addr).then(|| tuple.reversed())
}

/// Whether this is an extension header of IPv6, so that other headers follow.
fn is_extension(proto: u8) -> bool {
    matches!(
        proto,
        proto::HOPOPTS | proto::ROUTING | proto::FRAGMENT | proto::AH | proto::DSTOPTS
    )
}

/// Maximum number of extension headers of a packet.
const MAX_EXTENSIONS: usize = 8;

/// Offset of the transport header behind an IPv6 header, and its protocol. `None`: the packet is cut off, or
/// a later fragment.
pub(crate) fn behind_extensions(bytes: &[u8], mut next: u8) -> Option<(usize, u8)> {
    let mut at = Ipv6::LEN;
    for _ in 0..MAX_EXTENSIONS {
        let rest = bytes.get(at..)?;
        match next {
            proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS | proto::AH => {
                let (ext, _) = split::<Ipv6Ext>(rest)?;
                let units = usize::from(ext.len);
                at += if next == proto::AH {
                    (units + 2) * 4
                } else {
                    (units + 1) * 8
                };
                next = ext.next;
            }
            proto::FRAGMENT => {
                let (frag, _) = split::<Ipv6Frag>(rest)?;
                if frag.offset.get() & Ipv6Frag::OFFSET != 0 {
                    return None;
                }
                at += Ipv6Frag::LEN;
                next = frag.next;
            }
            _ => return Some((at, next)),
        }
    }
    None
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // an IP packet is shorter than 4 GiB
fn segment(h: &Tcp, options: &[u8], len: usize) -> Segment {
    let flags = h.flags();
    Segment {
        flags,
        seq: h.seq.get(),
        ack: h.ack.get(),
        window: h.window.get(),
        len: len as u32,
        scale: if flags & crate::protocol::tcp::SYN != 0 {
            scale(options)
        } else {
            None
        },
    }
}

/// The window scale option (RFC 7323, 2.2).
fn scale(mut options: &[u8]) -> Option<u8> {
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (0, _) => return None,
            (1, _) => rest,
            (3, [_, shift, ..]) => return Some((*shift).min(crate::protocol::tcp::MAX_SCALE)),
            (_, [len, ..]) => options.get(usize::from(*len).max(2)..)?,
            _ => return None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Packets with headers that are cut off, or of the other family, have no connection.
    #[test]
    fn headers_without_an_end_are_malformed() {
        let mut six = vec![0x60, 0, 0, 0, 0, 8, 0, 64];
        six.extend([[0xfd; 16], [0xfc; 16]].concat());
        six.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        let mut four = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 0, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        four.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        let read = |bytes: &[u8], ipv6, proto| {
            let p = Packet {
                head: bytes,
                l3: 0,
                l4: if ipv6 { 40 } else { 20 },
                end: bytes.len(),
                ipv6,
                proto,
                fragment: false,
                l3_sum: Checked::Good,
                l4_sum: Checked::Good,
                verify: &|| true,
            };
            p.read().map(|s| s.tuple.proto)
        };
        for proto in [0, 1, 43, 44, 51, 60] {
            assert_eq!(read(&six, true, proto), Err(Invalid::Malformed), "{proto}");
        }
        for proto in [2, 47, 50, 59, 255] {
            assert_eq!(read(&six, true, proto), Ok(proto));
        }
        four[9] = 58;
        assert_eq!(read(&four, false, 58), Err(Invalid::Malformed));
        for proto in [0, 43, 44, 51, 60, 255] {
            four[9] = proto;
            assert_eq!(read(&four, false, proto), Ok(proto));
        }
    }

    /// Routers quote first fragments, whose transport header is there; behind a later one there is none.
    #[test]
    fn quoted_first_fragments_are_read() {
        let mut four = vec![
            0x45, 0, 5, 0xdc, 0, 0, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        four.extend([0, 1, 0, 2, 5, 0xc8, 0, 0]);
        let mut six = vec![0x60, 0, 0, 0, 0, 16, 44, 64];
        six.extend([[0xfd; 16], [0xfc; 16]].concat());
        six.extend([17, 0, 0, 1, 0, 0, 0, 9, 0, 1, 0, 2, 5, 0xc8, 0, 0]);
        for (v6, at, mut bytes, flag) in [(false, 20, four, (6, 0x21)), (true, 48, six, (42, 8))] {
            let (found, tuple) = quoted(v6, &bytes).expect("a first fragment");
            assert_eq!((found, tuple.src.l4, tuple.dst.l4), (at, 1, 2));
            bytes[flag.0] |= flag.1;
            assert_eq!(quoted(v6, &bytes), None, "a later fragment");
        }
    }

    proptest! {
        /// The fast check of a header and the plain one agree.
        #[test]
        fn short_headers_are_checked_alike(mut h in any::<[u8; 20]>(), right: bool) {
            if right {
                h[10..12].fill(0);
                let c = checksum(&h);
                h[10..12].copy_from_slice(&c.to_be_bytes());
            }
            prop_assert_eq!(is_right(&h), checksum(&h) == 0);
            prop_assert!(!right || is_right(&h) || h == [0; 20]);
        }
    }
}
