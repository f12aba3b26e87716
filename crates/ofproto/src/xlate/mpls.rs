//! MPLS actions, and label stacks in keys.
//!
//! When the last label is popped, the headers behind it were never parsed. The packet can be output, but
//! before a table or an L3 action it has to come back from the datapath and be parsed again.

use super::ctx::Ctx;
use super::flow::Flow;
use super::limits::XlateError;
use super::mask::is_ip_any;
use super::report::Kind;
use crate::features::Feature;
use heddle_flow::{FlowKey, FlowMask, Nsh, key::N_MPLS};
use heddle_wire::eth::{ethertype as eth, is_mpls};

/// Bits of a label stack entry (RFC 3032, 2.1).
pub(super) mod lse {
    pub(in crate::xlate) const LABEL: u32 = 0xffff_f000;
    pub(in crate::xlate) const TC: u32 = 0x0000_0e00;
    pub(in crate::xlate) const BOS: u32 = 0x0000_0100;
    pub(in crate::xlate) const TTL: u32 = 0x0000_00ff;
}

/// The number of entries that the key shows: up to the one with the bottom bit.
pub(super) fn count(key: &FlowKey, wc: Option<&mut FlowMask>) -> usize {
    if !is_mpls(key.dl_type) {
        return 0;
    }
    let bottom = key.mpls_lse.iter().position(|l| l & lse::BOS != 0);
    if let Some(wc) = wc {
        let seen = bottom.map_or(N_MPLS, |i| i + 1);
        wc.0.mpls_lse.iter_mut().take(seen).for_each(|m| *m |= lse::BOS);
    }
    bottom.map_or_else(|| key.mpls_lse.iter().filter(|l| **l != 0).count(), |i| i + 1)
}

/// Adds an outermost entry to a key with `n` of them: a copy of the outermost, or one made from the IP
/// header.
pub(super) fn push(key: &mut FlowKey, n: usize, ethertype: u16, wc: Option<&mut FlowMask>) {
    if n > 0 {
        if let Some(wc) = wc {
            wc.0.mpls_lse.iter_mut().take(n).for_each(|m| *m = u32::MAX);
        }
        key.mpls_lse.copy_within(..N_MPLS - 1, 1);
        key.mpls_lse[0] &= !lse::BOS;
    } else {
        let label = if key.dl_type == eth::IPV6 { 2 } else { 0 };
        let (mut tc, mut ttl) = (0, 64);
        if is_ip_any(key) {
            tc = u32::from(key.nw_tos >> 2);
            if key.nw_ttl != 0 {
                ttl = u32::from(key.nw_ttl);
            }
            if let Some(wc) = wc {
                wc.0.nw_tos |= 0xfc;
                wc.0.nw_ttl = u8::MAX;
            }
        }
        key.mpls_lse[0] = label << 12 | (tc << 9) & lse::TC | lse::BOS | ttl;
    }
    key.dl_type = ethertype;
}

/// Removes the outermost of `n` entries. `false`: there is none, or the headers below the last one are not
/// known.
pub(super) fn pop(key: &mut FlowKey, n: usize, ethertype: u16, wc: Option<&mut FlowMask>) -> bool {
    if n == 0 || n == N_MPLS && key.mpls_lse[n - 1] & lse::BOS == 0 {
        return false;
    }
    if let Some(wc) = wc {
        wc.0.mpls_lse
            .iter_mut()
            .take(n)
            .skip(1)
            .for_each(|m| *m = u32::MAX);
    }
    key.mpls_lse.copy_within(1.., 0);
    key.mpls_lse[n - 1] = 0;
    key.dl_type = ethertype;
    true
}

/// Everything behind the EtherType is unknown once there is a label before it.
pub(super) fn clear_l3(key: &mut FlowKey) {
    *key = FlowKey {
        nw_src: 0,
        nw_dst: 0,
        ipv6_src: [0; 16],
        ipv6_dst: [0; 16],
        ipv6_label: 0,
        nw_proto: 0,
        nw_tos: 0,
        nw_ttl: 0,
        nw_frag: 0,
        nd_target: [0; 16],
        arp_sha: [0; 6],
        arp_tha: [0; 6],
        tcp_flags: 0,
        tp_src: 0,
        tp_dst: 0,
        igmp_group: 0,
        nsh: Nsh::default(),
        dp_hash: 0,
        ..*key
    };
}

impl Flow {
    /// Sets bits of the outermost entry, if there is one.
    pub(super) fn set_mpls_bits(&mut self, wc: &mut FlowMask, bits: u32, mask: u32) {
        if is_mpls(self.dl_type) {
            wc.0.mpls_lse[0] |= mask;
            let entry = &mut self.mpls_lse[0];
            *entry = *entry & !mask | bits & mask;
        }
    }
}

impl Ctx<'_> {
    pub(super) fn push_mpls(&mut self, ethertype: u16) {
        let n = count(&self.flow, Some(&mut self.out.mask));
        if n >= N_MPLS {
            self.too_many_labels("an MPLS push action", "would have");
            return;
        }
        if n == 0 {
            // Changes behind the label are emitted before the label hides them.
            self.commit();
        }
        push(&mut self.flow, n, ethertype, Some(&mut self.out.mask));
        if n == 0 {
            clear_l3(&mut self.flow);
        }
    }

    pub(super) fn pop_mpls(&mut self, ethertype: u16) {
        let n = count(&self.flow, Some(&mut self.out.mask));
        if pop(&mut self.flow, n, ethertype, Some(&mut self.out.mask)) {
            self.flow.was_mpls |= !is_mpls(ethertype) && self.at.bridge.features.has(Feature::Recirc);
        } else if n >= N_MPLS {
            self.too_many_labels("an MPLS pop action", "has");
            self.out.actions.clear();
        }
    }

    pub(super) fn too_many_labels(&mut self, what: &str, has: &str) {
        if self.input.has_packet() {
            self.report_error(|| {
                format!(
                    "dropping packet on which {what} can't be performed as it {has} more MPLS LSEs \
                     than the {N_MPLS} supported."
                )
            });
        }
        self.out.error = Some(XlateError::TooManyMplsLabels);
    }

    /// Decrements the outermost TTL. `false`: it ran out (or there is none), and the list of actions ends.
    pub(super) fn dec_mpls_ttl(&mut self) -> bool {
        if is_mpls(self.flow.dl_type) {
            self.out.mask.0.mpls_lse[0] |= lse::TTL;
            if self.flow.mpls_lse[0] & lse::TTL > 1 {
                self.flow.mpls_lse[0] -= 1;
                return true;
            }
            self.ttl_exception(0);
        }
        self.trace
            .report(Kind::Warn, || "MPLS decrement TTL exception".to_owned());
        false
    }
}
