//! Checksum and segmentation metadata that travels with a packet.

/// What is known of a packet's L4 checksum.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Csum {
    /// Nothing is known: the bytes say what the sender wrote.
    #[default]
    Unknown,
    /// The receiver's device has verified it.
    Valid,
    /// Not filled in: sum the packet from `start` to its end and store it at `start + offset`. The field
    /// holds the pseudo-header's sum (virtio 1.2 §5.1.6.2, `VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    Partial {
        /// Bytes from the start of the packet.
        start: u16,
        /// Bytes from `start` to the checksum field.
        offset: u16,
    },
}

/// The kind of segment train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP, each segment a datagram (USO).
    Udp,
}

/// Headers of a tunnel around a train, as far as they differ from segment to segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Wrap {
    /// UDP and a VXLAN header.
    Vxlan = 1,
    /// UDP and a Geneve header with options.
    Geneve,
    /// GRE, around a frame or a packet.
    Gre,
    /// GRE and an ERSPAN header.
    Erspan,
    /// UDP and a GTP-U header.
    Gtpu,
    /// A segment routing header.
    Srv6,
    /// A header like TCP's and an STT header, each segment a frame of its own.
    Stt,
}

/// The tunnels that a train is in. What is written before its headers says where each ends: an IP header, and
/// what [`Wrap`] says.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Wraps(u16);

impl Wraps {
    /// Most of them.
    pub const MOST: usize = 4;

    /// Whether there is none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// With one more around; `None` if there are too many.
    #[must_use]
    pub fn with(self, outer: Wrap) -> Option<Self> {
        (self.0 >> 12 == 0).then_some(Self(self.0 << 4 | outer as u16))
    }
    /// The outermost one, and those within.
    pub fn split(self) -> Option<(Wrap, Self)> {
        const ALL: [Wrap; 7] = [
            Wrap::Vxlan,
            Wrap::Geneve,
            Wrap::Gre,
            Wrap::Erspan,
            Wrap::Gtpu,
            Wrap::Srv6,
            Wrap::Stt,
        ];
        let outer = ALL.into_iter().find(|w| *w as u16 == self.0 & 0xf)?;
        Some((outer, Self(self.0 >> 4)))
    }
}

/// A packet that stands for a train of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// Which protocol is segmented.
    pub kind: GsoKind,
    /// TCP with CWR only on the first segment.
    pub ecn: bool,
    /// Payload bytes of each segment (the last may be shorter).
    pub size: u16,
    /// Bytes of headers that each segment repeats, as the sender claims; a hint only.
    pub hdr_len: u16,
    /// Tunnels that it is in.
    pub wraps: Wraps,
}

/// Offload metadata of one packet.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Offload {
    /// The L4 checksum's state.
    pub csum: Csum,
    /// Segment train, if any. Implies `csum` partial.
    pub gso: Option<Gso>,
}

impl Offload {
    /// Whether there is nothing to say: no checksum to fill in or verified, no segment train.
    #[inline]
    pub fn is_plain(&self) -> bool {
        matches!(self.csum, Csum::Unknown) && self.gso.is_none()
    }
}
