//! Recirculation: packets are looked up again in the same burst, after their program has changed them.
//!
//! **Problem.** Some actions lead to headers that were not parsed, like those behind a popped label. Others
//! choose by a value that only the datapath has, like a hash. The packet is then looked up again in the same
//! caches, under a recirculation id. Most packets of a virtual network are recirculated, some several times,
//! so they are recirculated in bursts. A *stage* is a received burst, or the packets of it under one id.
//!
//! **Shape.** If a program ends with a recirculation, its packets gather in the next stage, with packets of
//! other groups under the same id. The stage is then looked up and executed like a burst. Gathered packets
//! whose headers have not changed are not parsed again: the key stays, with another origin. Packets with rare
//! headers do not gather: they run one by one. So do those of a program that continues after a recirculation.
//! The program continues when the recirculated packet has come to its end. So outputs are in the order of the
//! actions.
//!
//! **Order.** Packets of one flow leave in the order in which they came. So the next stage runs before any
//! group that does not join it ([`Worker::execute_all`]).
//!
//! **Bounds.** A packet has at most [`MAX_DEPTH`] nested lookups, and [`MAX_LOOKUPS`] together with its
//! copies; packets of one stage share the latter. Packets beyond are dropped ([`DropKind::Recirc`]). A stage
//! has no more packets than the stage before it.

use super::keys::ChangedContext;
use super::stage::{Change, NextOrigin, Stage};
use super::{Choice, Group, Scratch, Worker};
use crate::exec::program::{NextHop, Tail};
use crate::exec::{InFlight, LineResult, LiveId, Meta, Recirculated};
use heddle_datapath_api::DropKind;
use heddle_flow_cache::{LookupKeys, MAX_LISTED};
use std::ops::Range;

/// Maximum number of nested lookups of a packet, without the first.
const MAX_DEPTH: usize = 32;
/// Maximum number of lookups of a packet and its copies. A program that recirculates ten copies would cause a
/// million at the sixth level.
const MAX_LOOKUPS: usize = 1024;

impl Scratch {
    /// An empty stage for packets under this recirculation id.
    pub(super) fn stage(&mut self, recirc_id: u32) -> Box<Stage> {
        let mut st = self.spare_stages.pop().unwrap_or_else(Stage::new);
        st.begin(recirc_id);
        st
    }
}

/// Packets after the steps before a recirculation.
struct Ran {
    ids: Range<LiveId>,
    /// A bit for each packet that a step dropped.
    failed: u64,
    meta: Meta,
    /// The program has tracked them.
    tracks: bool,
}

impl Ran {
    /// The packets that were not dropped, with their numbers.
    fn packets(&self) -> impl Iterator<Item = (LiveId, usize)> + use<> {
        let failed = self.failed;
        self.ids
            .clone()
            .zip(0..)
            .filter(move |(_, i)| failed >> i & 1 == 0)
    }
}

impl Worker {
    /// Runs a group's steps before its recirculation at the end, and puts the packets into the next stage.
    pub(super) fn recirculate_group(&mut self, st: &Stage, group: &Group, tail: Tail, to: &mut Stage) {
        let program = group.choice.program(&self.cache, &self.once);
        if program.is_some_and(|p| p.only_tracks().is_some()) {
            return self.track_group(st, group, to);
        }
        let mut r = usize::from(group.run);
        if let NextHop::Pop(step) = tail.hop {
            // Actions find the headers of all packets of the group at the same offsets, see
            // `Program::merges`.
            for ids in st.ids.ranges(group.first..group.end) {
                let Some(ran) = self.run_batch_before_recirc(st, group, tail, r, ids) else {
                    return;
                };
                let ids = ran.packets().map(|(id, _)| id);
                self.decapsulate(to, group.choice, step, ids, &ran.meta);
            }
            return;
        }
        let (runs, keys) = (&st.keys.runs, &st.keys.compact);
        while let Some(run) = runs.get(r).filter(|run| run.first < group.end) {
            // Runs without context that only get another origin are copied together. This halves the cycles
            // of recirculated traffic of many flows.
            let before = keys[r].origin();
            let same =
                |r: usize| runs[r].is_plain() & (keys[r].origin() == before) & (runs[r].end <= group.end);
            let n = match tail.alone && run.first >= group.first {
                true => (r..runs.len()).take_while(|r| same(*r)).count(),
                false => 0,
            };
            if n == 0 {
                let places = run.first.max(group.first)..run.end.min(group.end);
                for ids in st.ids.ranges(places) {
                    self.recirculate_batch(st, group, tail, r, ids, to);
                }
                r += 1;
                continue;
            }
            let origin = self.origin(st, to, before);
            to.keys.copy_runs(&st.keys, r..r + n, to.ids.len(), origin);
            for ids in st.ids.ranges(run.first..runs[r + n - 1].end) {
                to.ids.push(ids);
            }
            r += n;
        }
    }

    /// Runs the steps before the recirculation on neighbours of one run.
    fn run_batch_before_recirc(
        &mut self,
        st: &Stage,
        group: &Group,
        tail: Tail,
        r: usize,
        ids: Range<LiveId>,
    ) -> Option<Ran> {
        let program = group.choice.program(&self.cache, &self.once)?;
        let mut exec = self.resources.exec(st.keys.full(r), st.keys.context(r));
        let LineResult { mut failed, meta } = exec.line(program, ids.clone(), group.longest, st.keys.meta(r));
        let ids = match tail.copy {
            true => exec.copy_all(ids, &mut failed),
            false => ids,
        };
        Some(Ran {
            ids,
            failed,
            meta,
            tracks: program.tracks,
        })
    }

    /// Runs the steps before the recirculation on neighbours of one run, and puts them into the next stage.
    fn recirculate_batch(
        &mut self,
        st: &Stage,
        group: &Group,
        tail: Tail,
        r: usize,
        ids: Range<LiveId>,
        to: &mut Stage,
    ) {
        let Some(ran) = self.run_batch_before_recirc(st, group, tail, r, ids) else {
            return;
        };
        let (meta, tracks) = (ran.meta, ran.tracks);
        let changed = st.changed_context(r, meta);
        let key = st.keys.compact[r];
        let origin = self.origin(st, to, key.origin());
        let key = key.with_origin(origin);
        if ran.failed == 0 && !tail.rewritten && !tracks {
            to.push(&mut self.resources, ran.ids, Change::Nothing(&key, changed));
            return;
        }
        let how = self.resources.read_as(meta.packet_type);
        for (id, i) in ran.packets() {
            let known = self.resources.tracked.get(i).filter(|_| tracks).copied();
            let changed = ChangedContext {
                ct: known.as_ref(),
                ..changed
            };
            let change = if tail.rewritten || tracks && self.resources.tracked.is_translated(i) {
                Change::Headers(how, origin, changed.context())
            } else {
                Change::Nothing(&key, changed)
            };
            to.push(&mut self.resources, id..id + 1, change);
        }
    }

    /// Takes the packet at a place of a stage through a program to its end, with all lookups on its way.
    pub(super) fn run_single_packet(
        &mut self,
        st: &mut Stage,
        choice: Choice,
        place: u16,
        r: usize,
        depth: usize,
    ) {
        let id = st.ids.at(place);
        if depth == 0 {
            self.scratch.lookups = MAX_LOOKUPS;
        }
        let mut in_flight = InFlight::new(id, st.keys.meta(r));
        let resumed = self.resources.resumed.len();
        loop {
            let Some(program) = choice.program(&self.cache, &self.once) else {
                return self.resources.resumed.truncate(resumed);
            };
            if program.needs_key {
                st.keys.make_full(r, self.resources.live.get(id));
            }
            let mut exec = self.resources.exec(st.keys.full(r), st.keys.context(r));
            if !exec.run_steps(program, &mut in_flight) {
                if self.resources.resumed.len() <= resumed {
                    return;
                }
                let Some(next) = self.resources.resumed.pop() else {
                    return;
                };
                in_flight = next;
                continue;
            }
            let Some(came) = self.resources.recirc.take() else {
                continue;
            };
            if let NextHop::Later(wait) = came.hop {
                self.have_wait(st, r, &wait, &came);
                continue;
            }
            let Recirculated { id, hop, meta, ct } = came;
            let mut next = self.scratch.stage(hop.id());
            next.may_free_copies = false;
            if let NextHop::Pop(step) = hop {
                self.decapsulate(&mut next, choice, step, std::iter::once(id), &meta);
            } else {
                let origin = self.origin(st, &mut next, st.keys.compact[r].origin());
                let changed = ChangedContext {
                    full: false,
                    ct: ct.as_ref(),
                    ..st.changed_context(r, meta)
                };
                let how = self.resources.read_as(meta.packet_type);
                let change = Change::Headers(how, origin, changed.context());
                next.push(&mut self.resources, id..id + 1, change);
            }
            let left = self.scratch.lookups;
            self.run_stage(next, depth + 1, Some(left));
        }
    }

    /// The origin in stage `to` of packets whose origin in stage `st` is `before`.
    #[inline]
    pub(super) fn origin(&mut self, st: &Stage, to: &mut Stage, before: u32) -> u32 {
        if to.origin.before != before {
            let in_port = self.cache.source(before).in_port;
            debug_assert!(st.keys.recirc_id == 0 || before > MAX_LISTED);
            to.origin = NextOrigin {
                before,
                here: self.cache.origin_of(in_port, to.keys.recirc_id),
            };
        }
        to.origin.here
    }

    /// Looks a stage's packets up and runs their programs. `left`: the number of lookups that are left to
    /// them, if not the usual one.
    #[inline(never)]
    pub(super) fn run_stage(&mut self, mut st: Box<Stage>, depth: usize, left: Option<usize>) {
        let n = usize::from(st.ids.len());
        let left = left.unwrap_or(match depth {
            1 => MAX_LOOKUPS * n,
            _ => self.scratch.lookups,
        });
        if depth > MAX_DEPTH || n > left {
            for id in st.ids.ranges(0..st.ids.len()).flatten() {
                self.resources.lost(DropKind::Recirc, id);
            }
        } else {
            self.scratch.lookups = left - n;
            self.counters.recirculated.add(n as u64);
            let translated = self.lookup_all(&mut st);
            self.scratch.translated += translated;
            for (r, brief) in st.to_link.drain(..) {
                self.cache.link(&brief, &st.keys.compact[r], r);
            }
            self.execute_all(&mut st, depth);
        }
        self.scratch.spare_stages.push(st);
    }
}
