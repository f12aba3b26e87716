//! Recirculation: packets that are looked up again, as they have become, in the same burst.
//!
//! **Problem.** Some actions lead to headers that were not parsed (what is behind a popped label), or choose by a hash that
//! only the packet at hand has. The packet goes on under a recirculation id, which its key then has, through the same
//! caches. What is to be done after it waits until it has gone its way, so that outputs are in the order of the actions.
//!
//! **Bounds.** [`MAX_DEPTH`] lookups of one packet within each other, and [`MAX_LOOKUPS`] of it and its copies; then it is dropped by name.
//! The number of packets is that of the burst's copies at most.
//!
//! **Costs.** One parse of the full key and one lookup among wildcarded entries per packet: ids are not part of compact
//! keys. Nothing is allocated once the list of visits has grown.

use super::{Choice, Worker};
use crate::action::HashAlg;
use crate::cache::Level;
use crate::drops::DropKind;
use crate::exec::{Going, Live, LiveId, Meta, Recirculated};
use crate::parse::parse;
use crate::worker::miss::Subject;
use heddle_flow::{FlowKey, hash};
use std::sync::atomic::Ordering::Relaxed;

/// Most lookups of a packet, the first not counted.
const MAX_DEPTH: usize = 6;
/// Most lookups of a packet and its copies: a program that recirculates ten copies would look a million times.
const MAX_LOOKUPS: usize = 1024;

/// A packet in a program.
pub(super) struct Visit {
    choice: Choice,
    going: Going,
    /// Its key when it was looked up.
    key: FlowKey,
}

impl Worker {
    /// Takes packet `id` to its end by what was chosen for it, with all lookups on its way.
    pub(super) fn walk(&mut self, choice: Choice, id: LiveId, meta: Meta, key: &FlowKey, now_ms: u64) {
        let any = self.shared.translate.generations().any();
        let mut lookups = 0;
        debug_assert!(self.scratch.walk.is_empty());
        self.scratch.walk.push(Visit {
            choice,
            going: Going::new(id, meta),
            key: *key,
        });
        loop {
            let s = &mut self.scratch;
            let Some(visit) = s.walk.last_mut() else { return };
            let goes_on = match visit.choice.program(&self.cache, &s.once) {
                Some(program) => {
                    let mut exec = super::exec!(self, s, Some(&visit.key), now_ms);
                    exec.go_on(program, &mut visit.going)
                }
                None => false,
            };
            if !goes_on {
                s.walk.pop();
                continue;
            }
            let Some(r) = s.recirc.take() else { continue };
            lookups += 1;
            if s.walk.len() > MAX_DEPTH || lookups > MAX_LOOKUPS {
                self.counters.drops.add(DropKind::Recirc, 1);
                continue;
            }
            let visit = self.look_up_again(&r, any, now_ms);
            self.scratch.walk.push(visit);
        }
    }

    fn look_up_again(&mut self, r: &Recirculated, any: u64, now_ms: u64) -> Visit {
        let (key, meta) = self.parse_again(r);
        let subject = Subject {
            key: &key,
            compact: None,
            id: r.id,
        };
        self.counters.recirculated.add(1);
        let (choice, to_count) = match self.cache.find_wide(&key) {
            Some((slot, level)) => {
                match level {
                    Level::L1 => self.counters.l1_hits.add(1),
                    _ => self.counters.l2_hits.add(1),
                }
                self.revalidate_of(slot, &subject, any, now_ms)
            }
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
        Visit {
            choice,
            going: Going::new(r.id, meta),
            key,
        }
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
