//! FLOOD and ALL: every port but the input port.
//!
//! The order matters only to comparisons with Open vSwitch, which walks a hash table keyed by port number.
//! The table is rebuilt here, so that traces and captures agree. Its hash is murmur3's 32-bit mix, its
//! buckets are a power of two, and the newest entry of a bucket comes first.

use super::ctx::Ctx;
use crate::model::{BridgeView, port_config};
use heddle_flow::field::port_from_32;
use heddle_openflow::Port;

/// MurmurHash3 x86_32 of the words (port, 0) with the port as its seed, as `hash_int(port, 0)` computes it.
fn hash(port: u32) -> u32 {
    let round = |h: u32, data: u32| {
        let k = data
            .wrapping_mul(0xcc9e_2d51)
            .rotate_left(15)
            .wrapping_mul(0x1b87_3593);
        (h ^ k).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    };
    let mut h = round(round(port, 0), 0) ^ 8;
    h = (h ^ h >> 16).wrapping_mul(0x85eb_ca6b);
    h = (h ^ h >> 13).wrapping_mul(0xc2b2_ae35);
    h ^ h >> 16
}

/// Mask of a table for `n` entries.
fn mask_for(n: usize) -> usize {
    let below = |bits: usize| bits.checked_ilog2().map_or(0, |log| (1 << (log + 1)) - 1);
    let mask: usize = below(n / 2);
    mask | (mask & 1) << 1
}

/// Ports in the order of the table, inserted in the order given.
fn order(ports: impl Iterator<Item = Port>) -> Vec<Port> {
    let index = |p: Port, mask: usize| hash(port_from_32(p.0).unwrap_or(p.0)) as usize & mask;
    let mut buckets: Vec<Vec<Port>> = vec![Vec::new()];
    let mut n = 0;
    for p in ports {
        let mask = buckets.len() - 1;
        buckets[index(p, mask)].insert(0, p);
        n += 1;
        if n / 2 > mask && mask_for(n) > mask {
            let mask = mask_for(n);
            let mut bigger: Vec<Vec<Port>> = vec![Vec::new(); mask + 1];
            for p in buckets.into_iter().flatten() {
                bigger[index(p, mask)].insert(0, p);
            }
            buckets = bigger;
        }
    }
    buckets.into_iter().flatten().collect()
}

/// All ports of a bridge, in the order of floods.
fn ports(bridge: &BridgeView) -> Vec<Port> {
    order(bridge.bundles.values().flat_map(|b| b.ports.iter().copied()))
}

impl Ctx<'_> {
    /// Outputs to all ports but the input port. `all`: also to ports that do not flood.
    pub(super) fn flood(&mut self, all: bool, last: bool) {
        let in_port = self.in_port().map(|p| p.no);
        let bridge = self.at.bridge;
        self.look_at_all_ports();
        let mut targets = ports(bridge);
        targets.retain(|p| {
            Some(*p) != in_port
                && bridge
                    .ports
                    .get(p)
                    .is_some_and(|v| all || v.config & port_config::NO_FLOOD == 0)
        });
        let n = targets.len();
        for (i, port) in targets.into_iter().enumerate() {
            self.output_to(port, last && i + 1 == n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that Open vSwitch's own function returns.
    #[test]
    fn known_hashes() {
        assert_eq!(
            [1, 2, 3, 0xfffe].map(hash),
            [3_935_659_133, 2_714_478_798, 2_999_850_111, 2_011_172_913]
        );
    }

    #[test]
    fn keeps_every_port() {
        for n in 0..200u32 {
            let mut got = order((1..=n).map(Port));
            got.sort();
            assert_eq!(got, (1..=n).map(Port).collect::<Vec<_>>());
        }
    }
}
