//! One burst: parse all, look all up, run all programs, send, give the buffers back.
//!
//! Each step runs over the whole burst. In one burst of [`SAMPLE`], the worker reads the cycle counter
//! between two steps to measure them. All steps after parsing work on runs of packets with equal keys. A
//! packet is counted on its entry before its program runs. So a receiver of a packet finds it counted.

use super::keys::Context;
use super::parse::fresh_origin;
use super::schedule::sender_of;
use super::stage::{Stage, is_runt};
use super::{Choice, Group, Worker};
use crate::exec::PacketFacts;
use crate::exec::program::{Program, Tail};
use crate::shared::UNSET;
use heddle_flow_cache::{CacheEntry, CommonProgram, Level, LookupKeys, Merges, NO_PROGRAM, NO_SLOT, Run};
use heddle_packet::BURST;
use heddle_sync::ReadGuard;
use heddle_sys::Tsc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One burst in this number is measured, and its cycles count for all of them.
const SAMPLE: u64 = 8;

/// Lookup results of one burst, added to the worker's counters at its end.
#[derive(Default)]
struct Hits {
    l0: u64,
    l1: u64,
    l2: u64,
}

impl Hits {
    /// A run of packets: the first was found at `level`, the others were equal to it.
    #[inline]
    fn add(&mut self, level: Level, packets: u64) {
        match level {
            Level::L1 => self.l1 += 1,
            Level::L2 => self.l2 += 1,
        }
        self.l0 += packets - 1;
    }
}

impl Worker {
    /// Forwards the packets of the burst. `given`: a program for all of them, without a lookup. `t0`
    /// is the cycle counter now. Returns the cycle counter at the end.
    pub(super) fn burst(&mut self, given: Option<&Arc<Program>>, t0: u64) -> u64 {
        let now_ms = self.shared.clock.now_ms();
        let resources = &mut self.resources;
        resources.now_ms = now_ms;
        let received = if given.is_none() {
            &*resources.live.burst
        } else {
            &[]
        };
        resources.tx.watch.begin(now_ms, received);
        let sampled = self.counters.bursts.get().is_multiple_of(SAMPLE);
        let time = || if sampled { Tsc::now() } else { 0 };
        let mut st = self.scratch.stage(0);
        self.parse_all(&mut st, given.is_some());
        let t1 = time();
        let translated = match given {
            Some(program) => {
                self.once.push(Arc::clone(program));
                for (r, run) in st.keys.runs.iter().enumerate() {
                    st.groups.push(Group::of(run, r, Choice::Once(0)));
                }
                0
            }
            None => {
                self.counters.packets.add(self.resources.live.burst.len() as u64);
                self.lookup_all(&mut st)
            }
        };
        let t2 = time();
        self.execute_all(&mut st, 0);
        self.scratch.spare_stages.push(st);
        let within = std::mem::take(&mut self.scratch.translated);
        self.pending_credits.pay(now_ms);
        let t3 = time();
        self.resources.tx.joins = self.shared.joins.load(Relaxed);
        self.send_all();
        let t4 = Tsc::now();
        let c = &self.counters;
        c.bursts.add(1);
        c.cycles_translate.add(translated + within);
        if sampled {
            let all = |cycles: u64| cycles * SAMPLE;
            c.cycles_parse.add(all(t1.wrapping_sub(t0)));
            c.cycles_lookup
                .add(all(t2.wrapping_sub(t1).saturating_sub(translated)));
            c.cycles_exec.add(all(t3.wrapping_sub(t2).saturating_sub(within)));
            c.cycles_tx.add(all(t4.wrapping_sub(t3)));
        }
        if now_ms.saturating_sub(self.cache_tidied_ms) >= super::CACHE_TIDY_INTERVAL_MS {
            self.cache_tidied_ms = now_ms;
            self.cache.tidy();
            self.counters.masks.set(self.cache.n_masks() as u64);
            self.publish_rx_drops();
        }
        t4
    }

    /// Reads the packets of the burst. Runts are dropped, unless a program is `given`.
    fn parse_all(&mut self, st: &mut Stage, given: bool) {
        self.once.clear();
        let (s, resources) = (&self.scratch, &mut self.resources);
        let how = resources.read_as(s.packet_type);
        let injected = s.context.as_deref().map(Context::Injected);
        let (mut place, mut runts) = (0, 0_u64);
        for (i, p) in resources.live.burst.iter_mut().enumerate() {
            let origin = fresh_origin(p);
            let runt = is_runt(p, how);
            if runt && !given {
                runts |= 1 << i;
                continue;
            }
            match &injected {
                Some(context) if !runt => st.keys.read(place, p, how, origin, context),
                _ => st.keys.read(place, p, how, origin, &Context::None),
            }
            place += 1;
        }
        st.ids.hold_first(resources.live.burst.len());
        if runts != 0 {
            st.ids.hold_first(0);
            for id in (0..).take(resources.live.burst.len()) {
                match runts >> id & 1 {
                    0 => st.ids.push(id..id + 1),
                    _ => resources.drop_runt(id),
                }
            }
        }
    }

    /// Chooses a program for each packet; returns the cycles that translation took.
    pub(super) fn lookup_all(&mut self, st: &mut Stage) -> u64 {
        let now_ms = self.resources.now_ms;
        let any = self.shared.translate.generations().any();
        let inv_prob = self.shared.inv_prob.load(Relaxed);
        if inv_prob != self.inv_prob {
            self.inv_prob = inv_prob;
            self.cache.set_inv_prob((inv_prob != UNSET).then_some(inv_prob));
        }
        let mut hits = Hits::default();
        if st.keys.runs.iter().all(|run| run.program.is_known()) {
            for (r, run) in st.keys.runs.iter().enumerate() {
                hits.add(Level::L1, run.packets());
                st.groups
                    .push(Group::of(run, r, Choice::Cached(run.program.number)));
            }
            self.count_hits(&hits);
            return 0;
        }
        let (mut translated, mut now, mut reading) = (0, None, None);
        let lookup = self.shared.lookup(any, now_ms);
        if let Some(common) = self.cache.find(&st.keys, &lookup)
            && self.take_common(st, &common)
        {
            return 0;
        }
        for r in 0..st.keys.runs.len() {
            let run = &st.keys.runs[r];
            let found = self.cache.found(r);
            // The usual case: the entry is valid, and has counted the run already.
            if found.program != NO_PROGRAM {
                now = None;
                hits.add(found.level, run.packets());
                st.groups.push(Group::of(run, r, Choice::Cached(found.program)));
                continue;
            }
            let run = *run;
            let lookup = self.shared.lookup(any, now_ms);
            if let Some(n) = self.cache.current(found.slot, &lookup)
                && let Some(e) = self.cache.entry(found.slot)
            {
                now = None;
                e.count(run.packets(), run.bytes, now_ms, st.keys.compact[r].tcp_flags());
                hits.add(found.level, run.packets());
                st.groups.push(Group::of(&run, r, Choice::Cached(n)));
                continue;
            }
            // One read guard serves all translations of the burst.
            reading.get_or_insert_with(ReadGuard::begin);
            // A run right after a measured one starts at the end of that one: one clock read less.
            let t = now.unwrap_or_else(Tsc::now);
            let found = (found.slot != NO_SLOT).then_some((found.slot, found.level));
            let missed = self.choose(st, r, found, any, &mut hits);
            let end = Tsc::now();
            let cycles = end.wrapping_sub(t);
            now = Some(end);
            translated += cycles;
            if let Some(slot) = self.source_of(st.ids.at(run.first)) {
                let sender = sender_of(st.keys.context(r));
                self.rx[slot].scheduler.charge(cycles, missed, sender);
            }
        }
        self.count_hits(&hits);
        translated
    }

    fn count_hits(&mut self, hits: &Hits) {
        let c = &self.counters;
        c.l0_hits.add(hits.l0);
        c.l1_hits.add(hits.l1);
        c.l2_hits.add(hits.l2);
        c.l2_probes.add(self.cache.take_probes());
    }

    /// Makes the whole burst one group, if its program does the same to all packets.
    fn take_common(&mut self, st: &mut Stage, common: &CommonProgram) -> bool {
        let Some(program) = self.cache.program(common.program) else {
            return false;
        };
        let merges = match program.merges {
            // A tracked fragment waits for the rest of its datagram. Fragments have full keys.
            Merges::All => !(program.tracks && st.keys.n_full > 0),
            Merges::Alike => st.keys.all_are_alike(),
            Merges::No => false,
        };
        if !merges {
            return false;
        }
        let end = st.ids.len();
        st.groups.push(Group {
            first: 0,
            end,
            run: 0,
            longest: common.longest,
            choice: Choice::Cached(common.program),
        });
        self.count_hits(&Hits {
            l0: u64::from(end) - common.l1 - common.l2,
            l1: common.l1,
            l2: common.l2,
        });
        true
    }

    /// Chooses programs for a run that has no entry, or an entry that may be stale. A packet that needs a
    /// translation becomes a group of its own, and the rest of the run is looked up again. Returns whether a
    /// packet without an entry was translated.
    fn choose(
        &mut self,
        st: &mut Stage,
        r: usize,
        mut found: Option<(u32, Level)>,
        any: u64,
        hits: &mut Hits,
    ) -> bool {
        let now_ms = self.resources.now_ms;
        let mut run = st.keys.runs[r];
        let mut missed = false;
        while run.first < run.end {
            let id = st.ids.at(run.first);
            if found.is_none_or(|(slot, _)| !self.cache.entry(slot).is_some_and(CacheEntry::alive)) {
                // The translation of an earlier packet may have stored an entry since.
                let sought = st.keys.sought(r);
                found = sought.and_then(|s| Some((self.cache.find_fresh(s)?, Level::L2)));
            }
            let (choice, to_count) = match found {
                Some((slot, _)) => self.revalidate(st, slot, r, id, any, now_ms),
                None => {
                    let choice = self.miss(st, r, id, any, now_ms);
                    missed |= choice != Choice::Dropped;
                    (choice, None)
                }
            };
            if let (Some(slot), Some((_, level))) = (to_count, found) {
                let packets = run.packets();
                if let Some(e) = self.cache.entry(slot) {
                    e.count(packets, run.bytes, now_ms, st.keys.compact[r].tcp_flags());
                }
                hits.add(level, packets);
                st.groups.push(Group::of(&run, r, choice));
                return missed;
            }
            if let Some((_, level)) = found.take() {
                hits.add(level, 1);
            }
            // This packet was translated, and is counted and credited. The next packet may find its new
            // entry.
            let len = self.resources.live.get(id).len();
            let one = Run {
                end: run.first + 1,
                ..run
            };
            st.groups.push(Group::of(&one, r, choice));
            run.first += 1;
            run.bytes -= len as u64;
        }
        missed
    }

    /// Runs the chosen programs. Packets to be looked up again gather in the next stage ([`super::recirc`]).
    pub(super) fn execute_all(&mut self, st: &mut Stage, depth: usize) {
        let mut next: Option<Box<Stage>> = None;
        for g in 0..st.groups.len() {
            let group = st.groups[g];
            let Some(program) = group.choice.program(&self.cache, &self.once) else {
                continue;
            };
            let (recirculates, mut r) = (program.recirculates, usize::from(group.run));
            if !recirculates && next.is_none() {
                self.execute(st, &group);
                continue;
            }
            let tail = program.tail.filter(|_| st.keys.is_regular(r));
            // A group that also sends its packets joins only packets of its own program: others may have more
            // to send first.
            let joins = |to: &Stage, tail: Tail| {
                tail.hop.id() == to.keys.recirc_id && (!tail.copy || to.from == Some(group.choice))
            };
            if let Some(waiting) = next.take_if(|to| !tail.is_some_and(|tail| joins(to, tail))) {
                self.run_stage(waiting, depth + 1, None);
            }
            if let Some(tail) = tail {
                let to = next.get_or_insert_with(|| {
                    let mut to = self.scratch.stage(tail.hop.id());
                    (to.from, to.may_free_copies) = (Some(group.choice), st.may_free_copies);
                    to
                });
                if to.from != Some(group.choice) {
                    to.from = None;
                }
                to.may_free_copies &= !tail.copy;
                self.recirculate_group(st, &group, tail, to);
                continue;
            }
            if !recirculates {
                self.execute(st, &group);
                continue;
            }
            for place in group.first..group.end {
                // A group may have packets of several runs, with different contexts.
                r += usize::from(st.keys.runs[r].end <= place);
                self.run_single_packet(st, group.choice, place, r, depth);
                if st.may_free_copies {
                    self.resources.exec(None, None).make_room();
                }
            }
        }
        if let Some(next) = next {
            self.run_stage(next, depth + 1, None);
        }
    }

    /// Runs a group that does not recirculate.
    #[inline]
    fn execute(&mut self, st: &mut Stage, group: &Group) {
        let Some(program) = group.choice.program(&self.cache, &self.once) else {
            return;
        };
        let (r, resources) = (usize::from(group.run), &mut self.resources);
        if program.needs_key {
            // Before the program changes the packet.
            st.keys.make_full(r, resources.live.get(st.ids.at(group.first)));
        }
        let mut exec = resources.exec(st.keys.full(r), st.keys.context(r));
        let packets = PacketFacts {
            longest: group.longest,
            regular: st.keys.is_regular(r),
            may_free_copies: st.may_free_copies,
        };
        for ids in st.ids.ranges(group.first..group.end) {
            exec.group(program, ids, packets, || st.keys.meta(r));
        }
    }

    fn send_all(&mut self) {
        let e = &mut self.resources;
        e.tx.finish(&mut e.live, &mut e.pool, &e.counters.drops);
        e.counters.tx_batches.add(std::mem::take(&mut e.tx.batches));
        e.counters.tx_packets.add(std::mem::take(&mut e.tx.sent));
        e.upcalls.announce();
        debug_assert!(e.live.burst.len() <= BURST);
        e.pool.put_all(e.live.burst.drain(..));
        e.pool.put_all(e.live.copies.drain(..));
        self.free_evicted();
    }
}
