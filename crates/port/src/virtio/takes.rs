//! Unfinished packets that a guest takes as they are (virtio 1.2 §5.1.6.4): the others are finished in
//! software.

use crate::gro::GsoKinds;
use heddle_packet::{Csum, Gso, Offload};
use heddle_virtio::ring::Features;

/// Features that a guest has negotiated for packets that it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Takes {
    csum: bool,
    ecn: bool,
    gso_kinds: GsoKinds,
}

impl Takes {
    pub(super) fn of(features: Features) -> Self {
        // §5.1.3.1: each kind of GSO packet requires GUEST_CSUM.
        let csum = features.contains(Features::GUEST_CSUM);
        let has = |f| csum && features.contains(f);
        Self {
            csum,
            ecn: has(Features::GUEST_ECN),
            gso_kinds: GsoKinds {
                tcp4: has(Features::GUEST_TSO4),
                tcp6: has(Features::GUEST_TSO6),
                // A train's IP version is not in the metadata; Linux offers both or none.
                udp: has(Features::GUEST_USO4 | Features::GUEST_USO6),
            },
        }
    }
    /// The kinds of GSO packets that it takes.
    pub(super) fn gso_support(self) -> GsoKinds {
        self.gso_kinds
    }
    /// Whether the guest takes a packet with this metadata.
    #[inline]
    pub(super) fn takes(self, offload: &Offload) -> bool {
        match offload.gso {
            None => self.csum || !matches!(offload.csum, Csum::Partial { .. }),
            Some(gso) => self.takes_gso(gso),
        }
    }
    fn takes_gso(self, gso: Gso) -> bool {
        // GSO packets in tunnels are not negotiated.
        self.gso_kinds.takes(gso.kind) && (self.ecn || !gso.ecn) && gso.wraps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_packet::{GsoKind, Wraps};

    #[test]
    fn each_feature_is_for_its_kind() {
        let gso = |kind, ecn| Offload {
            csum: Csum::Partial {
                start: 34,
                offset: 16,
            },
            gso: Some(Gso {
                kind,
                ecn,
                size: 1400,
                hdr_len: 54,
                wraps: Wraps::default(),
            }),
        };
        let partial = Offload {
            gso: None,
            ..gso(GsoKind::Tcp4, false)
        };
        let none = Takes::of(Features::VERSION_1 | Features::GUEST_TSO4);
        assert_eq!(none, Takes::default(), "nothing without GUEST_CSUM");
        assert!(none.takes(&Offload::default()) && !none.takes(&partial));
        let all = [
            (Features::GUEST_TSO4, gso(GsoKind::Tcp4, false)),
            (Features::GUEST_TSO6, gso(GsoKind::Tcp6, false)),
            (
                Features::GUEST_TSO4 | Features::GUEST_ECN,
                gso(GsoKind::Tcp4, true),
            ),
            (
                Features::GUEST_USO4 | Features::GUEST_USO6,
                gso(GsoKind::Udp, false),
            ),
        ];
        for (need, offload) in all {
            let with = Takes::of(need | Features::GUEST_CSUM);
            assert!(with.takes(&offload) && with.takes(&partial), "{need:?}");
            let others = Features::all() - need;
            assert!(!Takes::of(others).takes(&offload), "{need:?}");
        }
        assert!(!Takes::of(Features::GUEST_CSUM | Features::GUEST_USO4).takes(&gso(GsoKind::Udp, false)));
    }
}
