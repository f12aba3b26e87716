//! Packets of the twin test: their fields and their bytes.

use crate::protocol::packet::{Checked, Packet};
use crate::protocol::tcp::SYN;
use crate::tuple::{Endpoint, Tuple};
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::ip::proto;

/// The part of a packet behind the IP header.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Inner {
    Tcp {
        flags: u16,
        seq: u32,
        ack: u32,
        window: u16,
        scale: Option<u8>,
        len: usize,
    },
    Udp,
    /// An echo request or reply.
    Echo,
    /// An error about another packet.
    Error(Box<Frame>),
    Sctp,
    /// A protocol that the tracker does not know.
    Other,
}

/// An IP packet. The first port of an echo is its identifier.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) v6: bool,
    pub(super) src: u128,
    pub(super) dst: u128,
    pub(super) ports: (u16, u16),
    /// An echo is a reply, not a request.
    pub(super) echo_reply: bool,
    pub(super) inner: Inner,
    /// The transport checksum is wrong.
    pub(super) bad: bool,
}

/// Bytes of an ICMP error before the quoted packet, and bytes that it quotes behind the packet's IP header.
const QUOTED: usize = 8;

impl Frame {
    pub(super) fn proto(&self) -> u8 {
        match (&self.inner, self.v6) {
            (Inner::Tcp { .. }, _) => proto::TCP,
            (Inner::Udp, _) => proto::UDP,
            (Inner::Echo | Inner::Error(_), false) => proto::ICMP,
            (Inner::Echo | Inner::Error(_), true) => proto::ICMPV6,
            (Inner::Sctp, _) => proto::SCTP,
            (Inner::Other, _) => 99,
        }
    }
    fn kind(&self) -> u8 {
        match (self.v6, self.echo_reply) {
            (false, false) => 8,
            (false, true) => 0,
            (true, false) => 128,
            (true, true) => 129,
        }
    }
    /// Returns the tuple that the tracker looks up; for an error, the reversed tuple of the quoted packet.
    pub(super) fn tuple(&self) -> Tuple {
        if let Inner::Error(about) = &self.inner {
            return about.tuple().reversed();
        }
        let end = |addr, l4: u16| Endpoint { addr, l4: l4.into() };
        let (a, b) = match self.inner {
            Inner::Other | Inner::Echo => (0, 0),
            _ => self.ports,
        };
        let t = Tuple {
            src: end(self.src, a),
            dst: end(self.dst, b),
            proto: self.proto(),
            ipv6: self.v6,
        };
        match self.inner {
            Inner::Echo => t.with_icmp(self.ports.0, self.kind(), 0).unwrap(),
            _ => t,
        }
    }
    fn pseudo(&self, len: usize) -> Sum {
        let len = u32::try_from(len).unwrap();
        match (self.v6, self.proto()) {
            (_, proto::ICMP) => Sum::ZERO,
            (false, p) => Sum::ZERO.pseudo_v4(
                u32::try_from(self.src).unwrap(),
                u32::try_from(self.dst).unwrap(),
                p,
                len,
            ),
            (true, p) => Sum::ZERO.pseudo_v6(&self.src.to_be_bytes(), &self.dst.to_be_bytes(), p, len),
        }
    }
    fn l4(&self) -> Vec<u8> {
        let mut b = Vec::new();
        let ports = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        let at = match &self.inner {
            Inner::Tcp {
                flags,
                seq,
                ack,
                window,
                scale,
                len,
            } => {
                b.extend(ports);
                b.extend(seq.to_be_bytes());
                b.extend(ack.to_be_bytes());
                let scale = scale.filter(|_| flags & SYN != 0);
                let words: u16 = if scale.is_some() { 6 } else { 5 };
                b.extend((words << 12 | flags).to_be_bytes());
                b.extend(window.to_be_bytes());
                b.extend([0; 4]);
                b.extend(scale.map(|s| [1, 3, 3, s]).into_iter().flatten());
                b.extend(vec![7; *len]);
                16
            }
            Inner::Udp => {
                b.extend(ports);
                b.extend([0, 11, 0, 0, 1, 2, 3]);
                6
            }
            Inner::Echo => {
                b.extend([self.kind(), 0, 0, 0]);
                b.extend(ports);
                2
            }
            Inner::Error(about) => {
                b.extend([if self.v6 { 1 } else { 3 }, 1, 0, 0, 0, 0, 0, 0]);
                let mut quoted = about.bytes();
                quoted.truncate(about.ip_len() + QUOTED);
                b.extend(quoted);
                2
            }
            Inner::Sctp => {
                b.extend(ports);
                b.extend([5, 5, 5, 5, 0, 0, 0, 0, 1, 0, 0, 4]);
                let crc = heddle_wire::crc32c::crc32c(&b);
                b[8..12].copy_from_slice(&crc);
                return b;
            }
            Inner::Other => return vec![1; 6],
        };
        let c = self.pseudo(b.len()).bytes(&b).checksum_nonzero();
        b[at..at + 2].copy_from_slice(&(c ^ u16::from(self.bad)).to_be_bytes());
        b
    }
    pub(super) fn ip_len(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }
    /// Returns the bytes from the IP header on.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let l4 = self.l4();
        let len = u16::try_from(l4.len()).unwrap();
        let mut b = Vec::new();
        if self.v6 {
            b.extend([0x60, 0, 0, 0]);
            b.extend(len.to_be_bytes());
            b.extend([self.proto(), 64]);
            b.extend(self.src.to_be_bytes());
            b.extend(self.dst.to_be_bytes());
        } else {
            b.extend([0x45, 0]);
            b.extend((len + 20).to_be_bytes());
            b.extend([0, 0, 0, 0, 64, self.proto(), 0, 0]);
            b.extend(u32::try_from(self.src).unwrap().to_be_bytes());
            b.extend(u32::try_from(self.dst).unwrap().to_be_bytes());
            let c = checksum(&b);
            b[10..12].copy_from_slice(&c.to_be_bytes());
        }
        b.extend(l4);
        b
    }
    /// Returns the packet in the form that the datapath passes to the tracker.
    pub(super) fn packet<'a>(&self, bytes: &'a [u8], verify: &'a dyn Fn() -> bool) -> Packet<'a> {
        Packet {
            head: bytes,
            l3: 0,
            l4: self.ip_len(),
            end: bytes.len(),
            ipv6: self.v6,
            proto: self.proto(),
            fragment: false,
            l3_sum: Checked::Unknown,
            l4_sum: Checked::Unknown,
            verify,
        }
    }
    /// Whether the checksum in these bytes is right.
    pub(super) fn is_right(&self, bytes: &[u8]) -> bool {
        let l4 = &bytes[self.ip_len()..];
        self.pseudo(l4.len()).bytes(l4).checksum() == 0
    }
    /// Returns a copy with the addresses and ports of this tuple. An error quotes a packet with the reversed
    /// tuple. Its own source address changes if `source`, else its destination address.
    pub(super) fn translated(&self, t: &Tuple, source: bool) -> Self {
        let mut to = self.clone();
        if let Inner::Error(about) = &mut to.inner {
            **about = about.translated(&t.reversed(), !source);
            if source {
                to.src = t.src.addr;
            } else {
                to.dst = t.dst.addr;
            }
            return to;
        }
        (to.src, to.dst) = (t.src.addr, t.dst.addr);
        if matches!(self.inner, Inner::Tcp { .. } | Inner::Udp | Inner::Sctp) {
            to.ports = (t.src.l4.try_into().unwrap(), t.dst.l4.try_into().unwrap());
        }
        if matches!(self.inner, Inner::Echo) {
            to.ports.0 = (t.src.l4 >> 16).try_into().unwrap();
        }
        to
    }
}
