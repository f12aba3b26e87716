//! Checksum and segmentation metadata that travels with a packet.

/// The state of a packet's L4 checksum.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Csum {
    /// Not verified: the field is as the sender wrote it.
    #[default]
    Unknown,
    /// The receiving device has verified it.
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

/// The kind of segments that a GSO packet is cut into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP, each segment a datagram (USO).
    Udp,
    /// A datagram of any protocol that came in fragments, and leaves in fragments. No device takes this kind.
    Fragments,
}

impl GsoKind {
    /// Whether some devices cut this kind.
    #[inline]
    pub fn is_for_devices(self) -> bool {
        !matches!(self, Self::Fragments)
    }
}

/// The kind of tunnel headers around a GSO packet, as far as they differ from segment to segment.
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

/// The tunnels around a GSO packet, outermost first. Each is an IP header and the headers of its [`Wrap`];
/// the packet's bytes show their lengths.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Wraps(u16);

impl Wraps {
    /// Maximum number of tunnels.
    pub const MOST: usize = 4;

    /// Whether there is no tunnel.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Adds one more tunnel around the others; `None` if there are too many.
    #[must_use]
    pub fn with(self, outer: Wrap) -> Option<Self> {
        (self.0 >> 12 == 0).then_some(Self(self.0 << 4 | outer as u16))
    }
    /// The outermost tunnel, and the others within.
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

/// Segmentation data of a GSO packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// The kind of its segments.
    pub kind: GsoKind,
    /// TCP with CWR only on the first segment.
    pub ecn: bool,
    /// Payload bytes of each segment (the last may be shorter). A multiple of eight for
    /// [`GsoKind::Fragments`].
    pub size: u16,
    /// Bytes of headers that each segment repeats, as the sender claims; a hint only.
    pub hdr_len: u16,
    /// The tunnels around the packet.
    pub wraps: Wraps,
}

/// Offload metadata of one packet.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Offload {
    /// The L4 checksum's state.
    pub csum: Csum,
    /// Segmentation data, if this is a GSO packet. Implies `csum` partial, except for
    /// [`GsoKind::Fragments`].
    pub gso: Option<Gso>,
}

impl Offload {
    /// Whether the metadata is the default: an unknown checksum, and no GSO.
    #[inline]
    pub fn is_plain(&self) -> bool {
        matches!(self.csum, Csum::Unknown) && self.gso.is_none()
    }
    /// The packet's headers have moved `by` bytes away from its start.
    #[inline]
    pub(crate) fn shift(&mut self, by: i32) {
        if let Csum::Partial { start, .. } = &mut self.csum {
            *start = (i32::from(*start) + by).clamp(0, i32::from(u16::MAX)) as u16;
        }
        if let Some(g) = &mut self.gso {
            g.hdr_len = (i32::from(g.hdr_len) + by).clamp(0, i32::from(u16::MAX)) as u16;
        }
    }
}
