//! `multipath`, `bundle` and `bundle_load`: choices by a hash of the packet.

use super::ctx::{Ctx, key_port};
use heddle_flow::{FlowKey, hash};
use heddle_openflow::Port;
use heddle_openflow::action::{Bundle, BundleAlgorithm, HashFields, Multipath, MultipathAlgorithm};

fn hash_of(k: &FlowKey, fields: HashFields, basis: u16) -> u32 {
    let basis = basis.into();
    match fields {
        HashFields::EthSrc => hash::eth_src(k, basis),
        HashFields::SymmetricL4 => hash::symmetric_l4(k, basis),
        HashFields::SymmetricL3L4 => hash::symmetric_l3l4(k, basis, false),
        HashFields::SymmetricL3L4Udp => hash::symmetric_l3l4(k, basis, true),
        HashFields::NwSrc => hash::nw_src(k, basis),
        HashFields::NwDst => hash::nw_dst(k, basis),
        HashFields::SymmetricL3 => hash::symmetric_l3(k, basis),
    }
}

/// The link of a hash (RFC 2992 compares these ways).
fn link(hash: u32, algorithm: MultipathAlgorithm, n_links: u32, arg: u32) -> u32 {
    /// Maximum number of links whose weights are compared: more take too long.
    const MAX_HRW: u32 = 64;
    match algorithm {
        MultipathAlgorithm::ModuloN => hash % n_links,
        MultipathAlgorithm::HashThreshold if n_links == 1 => 0,
        MultipathAlgorithm::HashThreshold => hash / (u32::MAX / n_links + 1),
        MultipathAlgorithm::Hrw if n_links <= MAX_HRW => highest_weight(hash, n_links),
        MultipathAlgorithm::Hrw => again_until_it_fits(hash, n_links, 0),
        MultipathAlgorithm::IterHash => again_until_it_fits(hash, n_links, arg),
    }
}

/// The first link with the highest random weight.
fn highest_weight(hash: u32, n_links: u32) -> u32 {
    let weight = |l: u32| hash::two_words(hash, l);
    (1..n_links).fold(0, |best, l| if weight(l) > weight(best) { l } else { best })
}

fn again_until_it_fits(hash: u32, n_links: u32, modulo: u32) -> u32 {
    let modulo = if modulo < n_links || modulo / 2 > n_links {
        n_links.next_power_of_two()
    } else {
        modulo
    };
    // At least about half of the values fit, so this number of tries finds one in practice.
    (0..1 << 16)
        .map(|i| (hash::two_words(hash, i) % modulo) & 0xffff)
        .find(|l| *l < n_links)
        .unwrap_or(0)
}

impl Ctx<'_> {
    fn mask_hash_fields(&mut self, fields: HashFields) {
        let (k, m) = (&self.flow, &mut self.out.mask);
        match fields {
            HashFields::EthSrc => m.0.dl_src = [0xff; 6],
            HashFields::SymmetricL4 => hash::mask_symmetric_l4(k, m),
            HashFields::SymmetricL3L4 | HashFields::SymmetricL3L4Udp => {
                hash::mask_symmetric_l3l4(k, m, fields == HashFields::SymmetricL3L4Udp);
                if !super::mask::is_ip_any(k) {
                    hash::mask_symmetric_l2(self.out.extra());
                }
            }
            HashFields::NwSrc => hash::mask_nw_src(k, m),
            HashFields::NwDst => hash::mask_nw_dst(k, m),
            HashFields::SymmetricL3 => hash::mask_addresses(k, m),
        }
    }

    pub(super) fn multipath(&mut self, m: &Multipath) {
        let hash = hash_of(&self.flow, m.fields, m.basis);
        let link = link(hash, m.algorithm, u32::from(m.max_link) + 1, m.arg);
        self.mask_hash_fields(m.fields);
        self.write_number(m.dst, link.into());
    }

    pub(super) fn bundle(&mut self, b: &Bundle, last: bool) {
        let port = match b.algorithm {
            BundleAlgorithm::ActiveBackup => b.members.iter().copied().find(|p| self.is_member_up(*p)),
            BundleAlgorithm::Hrw => self.highest_random_member(b),
        };
        let port = port.unwrap_or(Port::NONE);
        match b.dst {
            Some(dst) => self.write_number(dst, u64::from(key_port(port)) & 0xffff),
            None => self.output(port, 0, false, last),
        }
    }

    fn highest_random_member(&mut self, b: &Bundle) -> Option<Port> {
        if b.members.len() > 1 {
            self.mask_hash_fields(b.fields);
        }
        let hash = hash_of(&self.flow, b.fields, b.basis);
        let mut best: Option<(u32, Port)> = None;
        for (i, port) in (0..).zip(&b.members) {
            let weight = hash::two_words(i, hash);
            if self.is_member_up(*port) && best.is_none_or(|(high, _)| weight > high) {
                best = Some((weight, *port));
            }
        }
        best.map(|(_, port)| port)
    }

    fn is_member_up(&mut self, port: Port) -> bool {
        match port {
            Port::IN_PORT | Port::TABLE | Port::NORMAL | Port::FLOOD | Port::ALL | Port::NONE => true,
            Port::CONTROLLER => false,
            port => self.is_up(port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_spreads_over_all_links() {
        for algorithm in MultipathAlgorithm::ALL {
            for n in [1, 2, 3, 16, 64, 65, 100, 65536] {
                let (mut seen, tries) = (vec![0_u32; n as usize], 4000);
                for i in 0..tries {
                    let l = link(hash::two_words(i, 7), algorithm, n, 0);
                    seen[l as usize] += 1;
                }
                let most = seen.iter().max().copied().unwrap_or(0);
                assert!(most <= 3 * tries / n + 40, "{algorithm:?} {n}: {most}");
                if n <= 16 {
                    assert!(seen.iter().all(|s| *s > 0), "{algorithm:?} {n}");
                }
            }
        }
    }

    #[test]
    fn a_new_link_takes_flows_from_all_others_alike() {
        let moved = (0..2000)
            .filter(|i| {
                let h = hash::two_words(*i, 1);
                let (a, b) = (highest_weight(h, 4), highest_weight(h, 5));
                assert!(a == b || b == 4, "only the new link takes");
                a != b
            })
            .count();
        assert!((300..500).contains(&moved), "{moved} of 2000 moved");
    }
}
