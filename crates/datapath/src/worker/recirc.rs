//! Recirculation: packets that are looked up again, as they have become, in the same burst.
//!
//! **Problem.** Some actions lead to headers that were not parsed (what is behind a popped label), or choose by a hash that
//! only the packet at hand has. The packet goes on under a recirculation id, which its key then has, through the same
//! caches.
//!
//! **Bounds.** [`MAX_ROUNDS`] lookups of one packet; then it is dropped by name. The number of packets is that of the burst's
//! copies at most.
//!
//! **Costs.** One parse of the full key and one lookup among wildcarded entries per packet: ids are not part of compact
//! keys. Nothing is allocated once the list has grown.

use super::Worker;
use crate::action::HashAlg;
use crate::drops::DropKind;
use crate::exec::{Live, Meta, Recirculated};
use crate::parse::parse;
use crate::worker::miss::Subject;
use heddle_flow::{FlowKey, hash};
use std::sync::atomic::Ordering::Relaxed;

/// Most lookups of a packet, the first not counted.
const MAX_ROUNDS: usize = 6;

impl Worker {
    /// Takes the burst's recirculated packets to their ends.
    pub(super) fn recirculate_all(&mut self, now_ms: u64) {
        let any = self.shared.translate.generations().any();
        let mut round = Vec::new();
        for _ in 0..MAX_ROUNDS {
            std::mem::swap(&mut round, &mut self.scratch.recirc);
            if round.is_empty() {
                break;
            }
            for r in round.drain(..) {
                self.recirculate(&r, any, now_ms);
            }
        }
        let left = self.scratch.recirc.len() as u64;
        self.counters.drops.add(DropKind::Recirc, left);
        self.scratch.recirc.clear();
        if round.capacity() > self.scratch.recirc.capacity() {
            self.scratch.recirc = round;
        }
    }

    fn recirculate(&mut self, r: &Recirculated, any: u64, now_ms: u64) {
        let (key, meta) = self.parse_again(r);
        let subject = Subject {
            key: &key,
            compact: None,
            id: r.id,
        };
        let (choice, to_count) = match self.cache.find_wide(&key) {
            Some((slot, _)) => self.revalidate_of(slot, &subject, any, now_ms),
            None => (self.miss_of(&subject, any, now_ms), None),
        };
        let s = &mut self.scratch;
        if let Some(e) = to_count.and_then(|slot| self.cache.entry(slot)) {
            let live = Live {
                burst: &mut s.burst,
                copies: &mut s.copies,
            };
            e.count(1, live.get(r.id).len() as u64, now_ms, key.tcp_flags);
        }
        let s = &mut self.scratch;
        let Some(program) = choice.program(&self.cache, &s.once) else {
            return;
        };
        let mut exec = super::exec!(self, s, Some(&key), now_ms);
        exec.run(program, r.id, meta);
    }

    /// The key of the packet as it is now, with what goes along with it.
    fn parse_again(&mut self, r: &Recirculated) -> (FlowKey, Meta) {
        let s = &mut self.scratch;
        let mut live = Live {
            burst: &mut s.burst,
            copies: &mut s.copies,
        };
        let (mut key, mut meta) = parse(
            live.get_mut(r.id),
            r.meta.packet_type,
            self.shared.vlan_limit.load(Relaxed),
        );
        key.recirc_id = r.recirc;
        (key.skb_priority, key.pkt_mark) = (r.meta.priority, r.meta.mark);
        (meta.priority, meta.mark) = (r.meta.priority, r.meta.mark);
        // What the packet arrived in does not change on the way.
        key.copy_tunnel(&r.key);
        key.dp_hash = match r.meta.hash {
            None => r.key.dp_hash,
            // Zero means that there is none.
            Some((HashAlg::L4, basis)) => hash::five_tuple(&key, basis).max(1),
            Some((HashAlg::SymL4, basis)) => hash::symmetric_l3l4(&key, basis, false).max(1),
        };
        (key, meta)
    }
}
