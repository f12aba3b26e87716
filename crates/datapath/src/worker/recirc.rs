//! Recirculation: packets are looked up again in the same burst, after their program has changed them.
//!
//! **Problem.** Some actions lead to headers that were not parsed, like those behind a popped label. Others
//! choose by a value that only the datapath has, like a hash. The packet is then looked up again in the same
//! caches, under a recirculation id. Most packets of a virtual network are recirculated, some several times,
//! so they are recirculated in bursts. A *stage* is a received burst, or the packets of it under one id.
//!
//! **Shape.** If a program ends with a recirculation, its packets gather in the next stage, with packets of
//! other groups under the same id. The stage is then looked up and executed like a burst. Packets whose
//! headers have not changed are not parsed again: the key stays, with another origin. A program that
//! continues after a recirculation runs packet by packet. It continues when the recirculated packet has come
//! to its end, so outputs are in the order of the actions.
//!
//! **Order.** Packets of one flow leave in the order in which they came. If a group may have packets of a
//! flow that also has packets in the next stage, that stage runs first. A hash of 64 values distinguishes
//! flows ([`super::stage`]). If two flows have the same value, the stage runs too early, which is harmless.
//!
//! **Bounds.** A packet has at most [`MAX_DEPTH`] nested lookups, and [`MAX_LOOKUPS`] together with its
//! copies; packets of one stage share the latter. Packets beyond are dropped ([`DropKind::Recirc`]). A stage
//! has no more packets than the stage before it.

use super::keys::Carried;
use super::stage::{Change, Stage};
use super::{Choice, Group, Scratch, Worker};
use crate::exec::program::{Goes, Tail};
use crate::exec::{Going, LiveId, Meta, Recirculated};
use heddle_datapath_api::DropKind;
use heddle_flow_cache::MAX_LISTED;
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
pub(super) struct Ran {
    pub(super) ids: Range<LiveId>,
    /// A bit for each packet that a step dropped.
    pub(super) failed: u64,
    pub(super) meta: Meta,
    /// The program has tracked them.
    tracks: bool,
}

impl Ran {
    /// The packets that were not dropped, with their numbers.
    pub(super) fn packets(&self) -> impl Iterator<Item = (LiveId, usize)> + use<> {
        let failed = self.failed;
        self.ids
            .clone()
            .zip(0..)
            .filter(move |(_, i)| failed >> i & 1 == 0)
    }
}

impl Worker {
    /// Runs a group that recirculates, or any group while packets are in the next stage.
    #[inline(never)]
    pub(super) fn execute_beside(
        &mut self,
        st: &mut Stage,
        g: usize,
        next: &mut Option<Box<Stage>>,
        depth: usize,
    ) {
        let group = &st.groups[g].clone();
        let mut r = usize::from(group.run);
        let program = group.choice.program(&self.cache, &self.once);
        let Some((tail, recirculates)) = program.map(|p| (p.tail, p.recirculates)) else {
            return;
        };
        let tail = tail.filter(|_| st.keys.is_regular(r));
        if let Some(waiting) = next {
            let joins = tail.is_some_and(|t| t.goes.id() == waiting.keys.recirc_id);
            // The next stage runs first if this group recirculates under another id or packet by packet. It
            // also does so if this group may overtake its packets.
            let sends = tail.is_none_or(|t| t.copy);
            if !joins && recirculates || sends && st.overtakes(g, waiting) {
                let waiting = next.take().expect("it is there");
                self.run_stage(waiting, depth + 1);
            }
        }
        if let Some(tail) = tail {
            let to = next.get_or_insert_with(|| {
                let mut to = self.scratch.stage(tail.goes.id());
                (to.next_group, to.top) = (g, st.top);
                to
            });
            to.top &= !tail.copy;
            return self.recirculate(st, group, tail, to);
        }
        if !recirculates {
            return self.execute(st, group, st.top && next.is_none());
        }
        for place in group.first..group.end {
            // A group may have packets of several runs, with different contexts.
            r += usize::from(st.keys.runs[r].end <= place);
            self.walk(st, group.choice, (place, r), depth);
            if st.top {
                self.engine.exec(None, None).make_room();
            }
        }
    }

    /// Runs the steps before the recirculation at the end, and puts the packets into the next stage.
    fn recirculate(&mut self, st: &Stage, group: &Group, tail: Tail, to: &mut Stage) {
        let program = group.choice.program(&self.cache, &self.once);
        if program.is_some_and(|p| p.tracking().is_some()) {
            return self.track_group(st, (group, tail), to);
        }
        if let Goes::Pop(step) = tail.goes {
            return self.decapsulate_group(st, (group, tail), step, to);
        }
        let (runs, keys) = (&st.keys.runs, &st.keys.compact);
        let mut r = usize::from(group.run);
        while let Some(run) = runs.get(r).filter(|run| run.first < group.end) {
            // Runs without context that only get another origin are copied together. This halves the cycles
            // of recirculated traffic of many flows.
            let context = keys[r].context();
            let same =
                |r: usize| runs[r].is_plain() & (keys[r].context() == context) & (runs[r].end <= group.end);
            let n = match tail.alone && run.first >= group.first {
                true => (r..runs.len()).take_while(|r| same(*r)).count(),
                false => 0,
            };
            if n == 0 {
                let places = run.first.max(group.first)..run.end.min(group.end);
                for ids in st.ids.ranges(places) {
                    self.recirculate_run(st, (group, tail), r, ids, to);
                }
                r += 1;
                continue;
            }
            let origin = self.origin(st, to, context);
            to.keys.copy_runs(&st.keys, r..r + n, to.ids.len(), origin);
            for ids in st.ids.ranges(run.first..runs[r + n - 1].end) {
                to.ids.push_all(ids);
            }
            r += n;
        }
    }

    /// Runs the steps before the recirculation on neighbours of one run.
    pub(super) fn run_line(
        &mut self,
        st: &Stage,
        (group, tail): (&Group, Tail),
        r: usize,
        ids: Range<LiveId>,
    ) -> Option<Ran> {
        let program = group.choice.program(&self.cache, &self.once)?;
        let mut exec = self.engine.exec(st.keys.full(r), st.keys.context_of(r));
        let (mut failed, meta) = exec.line(program, ids.clone(), group.longest, st.keys.meta(r));
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

    /// Runs those steps, and puts the packets into the next stage.
    pub(super) fn recirculate_run(
        &mut self,
        st: &Stage,
        of: (&Group, Tail),
        r: usize,
        ids: Range<LiveId>,
        to: &mut Stage,
    ) {
        let Some(ran) = self.run_line(st, of, r, ids) else {
            return;
        };
        let (tail, meta, tracks) = (of.1, ran.meta, ran.tracks);
        let carried = st.carried(r, meta);
        let key = st.keys.compact[r];
        let origin = self.origin(st, to, key.context());
        let key = key.with_context(origin);
        if ran.failed == 0 && !tail.rewritten && !tracks {
            self.push(to, ran.ids, Change::Nothing(&key, carried));
            return;
        }
        let how = self.engine.read_as(meta.packet_type);
        for (id, i) in ran.packets() {
            let known = self.engine.tracked.get(i).filter(|_| tracks).copied();
            let carried = Carried {
                ct: known.as_ref(),
                ..carried
            };
            let change = if tail.rewritten || tracks && self.engine.tracked.is_translated(i) {
                Change::Rewritten(how, origin, carried)
            } else {
                Change::Nothing(&key, carried)
            };
            self.push(to, id..id + 1, change);
        }
    }

    /// Puts packets into a stage; a runt is dropped.
    #[inline(always)]
    pub(super) fn push(&mut self, to: &mut Stage, ids: Range<LiveId>, change: Change<'_>) {
        let first = ids.start;
        if !to.push(&mut self.engine.packets.live(), ids, change) {
            self.engine.drop_runt(first);
        }
    }

    /// Takes the packet at a place of a stage through a program to its end, with all lookups on its way.
    fn walk(&mut self, st: &mut Stage, choice: Choice, (place, r): (u16, usize), depth: usize) {
        let id = st.ids.at(place);
        if depth == 0 {
            self.scratch.lookups = MAX_LOOKUPS;
        }
        let mut going = Going::new(id, st.keys.meta(r));
        let resumed = self.engine.resumed.len();
        loop {
            let Some(program) = choice.program(&self.cache, &self.once) else {
                return self.engine.resumed.truncate(resumed);
            };
            if program.needs_key {
                st.keys.make_full(r, self.engine.packets.live().get(id));
            }
            let mut exec = self.engine.exec(st.keys.full(r), st.keys.context_of(r));
            if !exec.go_on(program, &mut going) {
                if self.engine.resumed.len() <= resumed {
                    return;
                }
                let Some(next) = self.engine.resumed.pop() else {
                    return;
                };
                going = next.going();
                continue;
            }
            let Some(came) = self.engine.recirc.take() else {
                continue;
            };
            if let Goes::Later(wait) = came.goes {
                self.have_wait(st, r, &wait, &came);
                continue;
            }
            let Recirculated { id, goes, meta, ct } = came;
            let mut next = self.scratch.stage(goes.id());
            next.top = false;
            if let Goes::Pop(step) = goes {
                self.decapsulate(&mut next, choice, step, std::iter::once(id), &meta);
            } else {
                let origin = self.origin(st, &mut next, st.keys.compact[r].context());
                let carried = Carried {
                    full: false,
                    ct: ct.as_ref(),
                    ..st.carried(r, meta)
                };
                let how = self.engine.read_as(meta.packet_type);
                self.push(&mut next, id..id + 1, Change::Rewritten(how, origin, carried));
            }
            let left = self.scratch.lookups;
            self.run_stage_within(next, depth + 1, left);
        }
    }

    /// The origin in stage `to` of packets whose origin in stage `st` is `before`.
    #[inline]
    pub(super) fn origin(&mut self, st: &Stage, to: &mut Stage, before: u32) -> u32 {
        if to.origin.0 != before {
            let (in_port, _) = self.cache.source(before);
            debug_assert!(st.keys.recirc_id == 0 || before > MAX_LISTED);
            to.origin = (before, self.cache.origin_of(in_port, to.keys.recirc_id));
        }
        to.origin.1
    }

    /// Looks a stage's packets up and runs their programs.
    pub(super) fn run_stage(&mut self, st: Box<Stage>, depth: usize) {
        let left = match depth {
            1 => MAX_LOOKUPS * usize::from(st.ids.len()),
            _ => self.scratch.lookups,
        };
        self.run_stage_within(st, depth, left);
    }

    fn run_stage_within(&mut self, mut st: Box<Stage>, depth: usize, left: usize) {
        let n = usize::from(st.ids.len());
        if depth > MAX_DEPTH || n > left {
            for id in st.ids.ranges(0..st.ids.len()).flatten() {
                self.engine.lost(DropKind::Recirc, id);
            }
        } else {
            self.scratch.lookups = left - n;
            self.counters.recirculated.add(n as u64);
            let translated = self.lookup_all(&mut st);
            self.scratch.translated += translated;
            for (r, brief) in st.learners.drain(..) {
                self.cache.link(&brief, &st.keys.compact[r], r);
            }
            self.execute_all(&mut st, depth);
        }
        self.scratch.spare_stages.push(st);
    }
}
