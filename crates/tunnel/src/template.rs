//! Templates of outer headers: offsets and sums that encapsulation needs for each packet, computed once.

#![deny(clippy::indexing_slicing)] // bytes of a packet

use heddle_wire::checksum::Sum;
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::split;

/// Fields behind the IP header that are filled in. Offsets are from the template's start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fill {
    /// UDP source port, length, checksum.
    Udp,
    /// The fields of UDP; length and sequence number of GTP-U, two bytes each.
    Gtpu {
        len: u16,
        seq: Option<u16>,
    },
    /// Checksum, sequence number.
    Gre {
        seq: Option<u16>,
    },
    /// Sequence number, timestamp.
    Erspan {
        seq: u16,
        timestamp: Option<u16>,
    },
    /// Source port, the frame's length and number, checksum, the frame's metadata.
    Stt,
    Nothing,
}

/// Offsets and sums of a template, computed once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Plan {
    /// Offset of the IP header.
    pub(crate) l3: u16,
    pub(crate) l4: u16,
    pub(crate) v6: bool,
    /// IPv4: each packet gets an identification of its own.
    pub(crate) numbered: bool,
    pub(crate) csum: bool,
    pub(crate) fill: Fill,
    /// IPv4: sum of the header without length, identification and checksum.
    pub(crate) ip_sum: u16,
    /// Sum of the template from `l4` on; with UDP plus the pseudo header without its length. With STT only
    /// the pseudo header of TCP.
    pub(crate) rest_sum: u16,
    /// Lowest source port, and the distance to the highest.
    pub(crate) ports: (u16, u16),
    /// The template at the end of a block, if only lengths, checksums and the UDP source port are filled in.
    pub(crate) block: Option<Box<[u8; BLOCK]>>,
}

/// Length of the block that one copy writes, bytes: Geneve with some options over IPv4 fits.
pub(crate) const BLOCK: usize = 64;

impl Plan {
    pub(crate) fn new(
        header: &[u8],
        l3: usize,
        l4: usize,
        fill: Fill,
        csum: bool,
        (low, high): (u16, u16),
    ) -> Self {
        let at = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let ip = header.get(l3..l4).unwrap_or_default();
        let rest = Sum::ZERO.bytes(header.get(l4..).unwrap_or_default());
        let v6 = l4 - l3 != Ipv4::LEN;
        let (mut pseudo, mut ip_sum, mut numbered) = (Sum::ZERO, 0, false);
        let proto = if fill == Fill::Stt { proto::TCP } else { proto::UDP };
        if v6 {
            if let Some((ip, _)) = split::<Ipv6>(ip) {
                pseudo = pseudo.pseudo_v6(&ip.src, &ip.dst, proto, 0);
            }
        } else if let Some((ip, _)) = split::<Ipv4>(ip) {
            pseudo = pseudo.pseudo_v4(ip.src.get(), ip.dst.get(), proto, 0);
            ip_sum = !ip.csum.get();
            numbered = ip.frag.get() & Ipv4::DONT == 0;
        }
        let sum = match fill {
            Fill::Udp | Fill::Gtpu { .. } => pseudo.sum(rest),
            Fill::Stt => pseudo,
            Fill::Gre { .. } | Fill::Erspan { .. } | Fill::Nothing => rest,
        };
        Self {
            l3: at(l3),
            l4: at(l4),
            v6,
            numbered,
            // GTP-U always has a checksum, as in Open vSwitch.
            csum: csum || matches!(fill, Fill::Gtpu { .. }),
            fill,
            ip_sum,
            rest_sum: sum.folded(),
            ports: (low, high.saturating_sub(low)),
            block: (fill == Fill::Udp && !numbered)
                .then(|| block_of(header))
                .flatten(),
        }
    }

    /// A source port for this hash. The highest is never chosen, as in Open vSwitch.
    #[inline]
    pub(crate) fn port(&self, hash: u32) -> u16 {
        let (low, span) = self.ports;
        // Less than `span`.
        let chosen = (u64::from(hash) * u64::from(span)) >> 32;
        low.wrapping_add(u16::try_from(chosen).unwrap_or(0))
    }
    #[inline]
    pub(crate) fn chooses_port(&self) -> bool {
        matches!(self.fill, Fill::Udp | Fill::Gtpu { .. })
    }
}

/// Headers at the end of a block, if they fit.
fn block_of(header: &[u8]) -> Option<Box<[u8; BLOCK]>> {
    let mut block = Box::new([0; BLOCK]);
    let at = BLOCK.checked_sub(header.len())?;
    block.get_mut(at..)?.copy_from_slice(header);
    Some(block)
}
