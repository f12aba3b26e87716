//! Decapsulation by the cache of outer headers, compared with a full reading.

use super::round::any_encap;
use super::*;
use crate::outer_cache::{OuterHeaderCache, View};
use crate::{OptionTable, TunnelKind, TunnelPop};
use heddle_packet::Csum;
use proptest::prelude::*;

const L3: u16 = 14;

proptest! {
    /// A packet that the cache accepts has the key and the bytes of a full reading. Any other is left as it
    /// is. Packets without a fault of the same peer are accepted.
    #[test]
    fn cached_and_full_decapsulation_agree(
        (encap, _) in any_encap(),
        (v6, csum, known) in (any::<bool>(), any::<bool>(), any::<bool>()),
        lens in (0_usize..300, 0_usize..300),
        changes in prop::collection::vec((0_usize..110, 1_u8..=255), 0..3),
        padding in 0_usize..8,
    ) {
        let kind = encap.kind();
        let template = Outer { csum, ..outer(v6, encap) }.build().unwrap();
        let pop = TunnelPop { kind, port: 5, options: OptionTable::of(&map()) };
        let outside = |len, port: u8| {
            let mut bytes = frame(&vec![port; len]);
            bytes[35] = port;
            let mut p = Packet::from_bytes(&bytes);
            let inner = inner(&p, 0);
            template.apply(&mut p, inner, 7).unwrap();
            p.to_vec()
        };
        let mut first = Packet::from_bytes(&outside(lens.0, 1));
        let mut key = FlowKey::default();
        let Some(view) = View::of(&first, L3) else { return Ok(()) };
        let popped = pop.apply(&mut first, L3, &mut key).unwrap();
        let cache = OuterHeaderCache::new(&pop, view, L3, &popped);
        let udp = matches!(kind, TunnelKind::Geneve | TunnelKind::Vxlan);
        prop_assert_eq!(cache.is_some(), udp && popped.taken - L3 <= 64);
        let Some(cache) = cache else { return Ok(()) };

        let mut bytes = outside(lens.1, 2);
        bytes.resize(bytes.len() + padding, 0x5a);
        for (at, by) in &changes {
            if let Some(b) = bytes.get_mut(*at) {
                *b ^= by;
            }
        }
        let read = || {
            let mut p = Packet::from_bytes(&bytes);
            p.offload.csum = if known { Csum::Valid } else { Csum::Unknown };
            p
        };
        let (mut quick, mut full) = (read(), read());
        let view = View::of(&quick, L3).filter(|_| bytes[12] == if v6 { 0x86 } else { 8 });
        let alike = view.is_some_and(|v| cache.apply(&pop, &mut quick, &v, L3));
        let mut found = FlowKey::default();
        if alike {
            prop_assert_eq!(pop.apply(&mut full, L3, &mut found), Ok(popped));
            prop_assert_eq!((found, full.to_vec(), full.offload), (key, quick.to_vec(), quick.offload));
        } else {
            prop_assert_eq!((quick.to_vec(), quick.offload), (bytes, full.offload));
            prop_assert!(!changes.is_empty() || view.is_none());
        }
    }
}
