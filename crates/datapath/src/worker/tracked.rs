//! Tracks groups of packets that are then looked up again: established traffic behind rules that use
//! connections. A logical router also rewrites headers before. Its packets are parsed again before they are
//! tracked.
//!
//! **Shape.** Four passes over the group let cache misses overlap. They read the packets, fetch their
//! connections, fetch the links of these connections, and track. A tracked packet is put into the next stage.
//! `Conntrack::track_short` tracks ordinary packets without context if the action only looks
//! (`CtAction::only_looks`). `Conntrack::track` tracks all others. After `track_short`, a link of the
//! connection (`links` of the flow cache) gives the packet its program in the next stage without a lookup.
//! Such a packet has no context unless the program looks at it. `track_short` saves a third to a half of a
//! packet's cycles, the links another fifth.

use super::keys::Carried;
use super::stage::{Change, Stage};
use super::{Choice, Group, Worker};
use crate::exec::LiveId;
use crate::exec::program::{Merges, Program, Tail};
use heddle_conntrack::{Brief, Ends4, ReadGuard};
use heddle_datapath_api::DropKind;
use heddle_flow_cache::{CompactKey, KeyForm, Moment, RunProgram};
use heddle_packet::Csum;
use heddle_wire::ip::Ipv4;
use std::sync::Arc;

/// Facts that all packets of a tracked group share.
#[derive(Clone, Copy)]
struct Tracking<'a> {
    st: &'a Stage,
    choice: Choice,
    zone: u16,
    /// The action translates addresses.
    nat: bool,
    reading: &'a ReadGuard,
}

/// The runs that a program may execute together after `zone` has tracked their packets. `None`: the program
/// looks at the state that `zone` has of their connections.
#[inline]
fn merges(program: &Program, zone: u16) -> Option<Merges> {
    if program.is_blind() {
        return Some(program.merges);
    }
    let tracking = program.tracking()?;
    let action = tracking.action;
    (tracking.forgets || action.zone != zone && !action.force).then_some(Merges::No)
}

/// Whether the tracker needs no context of a run. A linked run has the state of another zone, which is not
/// stored and would be replaced. The key of a run of several flows is not the key of each packet.
fn is_plain(form: KeyForm, program: RunProgram) -> bool {
    form == KeyForm::Compact && !program.is_of_many_flows()
}

impl Worker {
    /// Tracks all packets of a group and puts them into the next stage. The group's program does nothing
    /// else, except that it may rewrite headers first.
    pub(super) fn track_group(&mut self, st: &Stage, of: (&Group, Tail), to: &mut Stage) {
        let group = of.0;
        let program = group.choice.program(&self.cache, &self.once);
        let Some(tracking) = program.and_then(Program::tracking) else {
            return;
        };
        if tracking.writes.is_empty() && !tracking.forgets {
            return self.track_as_read(st, group, to);
        }
        let mut written = self.scratch.stage(st.keys.recirc_id);
        let mut r = usize::from(group.run);
        while let Some(run) = st.keys.runs.get(r).filter(|run| run.first < group.end) {
            let plain = is_plain(run.form, run.program);
            if !plain {
                self.track_as_read_all(&mut written, group, to);
            }
            for ids in st.ids.ranges(run.first.max(group.first)..run.end.min(group.end)) {
                if plain {
                    self.rewrite(st, group, (r, ids), &mut written);
                } else {
                    self.recirculate_run(st, of, r, ids, to);
                }
            }
            r += 1;
        }
        self.track_as_read_all(&mut written, group, to);
        self.scratch.spare_stages.push(written);
    }

    /// Rewrites neighbours of a run without context, and reads them into stage `written`.
    fn rewrite(
        &mut self,
        st: &Stage,
        group: &Group,
        (r, ids): (usize, std::ops::Range<LiveId>),
        written: &mut Stage,
    ) {
        let program = group.choice.program(&self.cache, &self.once);
        let Some(tracking) = program.and_then(Program::tracking) else {
            return;
        };
        let mut exec = self.engine.exec(st.keys.full(r), None);
        let (failed, meta) = exec.steps(tracking.writes, ids.clone(), group.longest, st.keys.meta(r));
        let how = self.engine.read_as(meta.packet_type);
        let origin = st.keys.compact[r].context();
        for (id, _) in ids.zip(0..).filter(|(_, i)| failed >> i & 1 == 0) {
            let place = written.ids.len();
            written.ids.push(id);
            let mut live = self.engine.packets.live();
            written.keys.read(place, live.get_mut(id), how, origin);
        }
    }

    /// Tracks all packets of a stage of rewritten packets, and empties it.
    fn track_as_read_all(&mut self, written: &mut Stage, group: &Group, to: &mut Stage) {
        let end = written.ids.len();
        if end > 0 {
            let all = Group {
                first: 0,
                end,
                run: 0,
                ..*group
            };
            self.track_as_read(written, &all, to);
            written.begin(written.keys.recirc_id);
        }
    }

    /// Tracks the packets of a group with the headers that its keys have.
    fn track_as_read(&mut self, st: &Stage, group: &Group, to: &mut Stage) {
        let program = group.choice.program(&self.cache, &self.once);
        let Some(action) = program.and_then(Program::tracking).map(|t| t.action) else {
            return;
        };
        let (zone, nat, looks, keys) = (action.zone, action.nat.is_some(), action.only_looks(), &st.keys);
        let mut exec = self.engine.exec(None, None);
        exec.tracked.begin();
        // A bit for each packet that `track_short` may take.
        let mut plain = 0_u64;
        // The run of the packet before, if `track_short` may take that.
        let mut before = None;
        for (i, r, id) in st.packets(group) {
            let run = &keys.runs[r];
            let ordinary = looks && is_plain(run.form, run.program);
            if ordinary && exec.read_plain(zone, i, id, keys.compact[r].l3(), before == Some(r)) {
                before = Some(r);
                plain |= 1 << i;
                continue;
            }
            before = None;
            exec.carried = keys.context_of(r);
            exec.read_ahead(zone, i, id, &keys.meta(r));
        }
        let n = usize::from(group.end - group.first);
        let cache = &self.cache;
        exec.guess_all(0..n, |number| cache.fetch_links(number));
        if cache.has_many() {
            (0..n)
                .filter_map(|i| exec.tracked.guessed(i))
                .for_each(|n| cache.fetch_linked(n));
        }
        let of = Tracking {
            st,
            choice: group.choice,
            zone,
            nat,
            reading: &ReadGuard::begin(),
        };
        let shared = Arc::clone(&self.shared);
        let moment = shared.moment(shared.translate.generations().any(), self.engine.now_ms);
        let mut last = None;
        for (i, r, id) in st.packets(group) {
            let key = &keys.compact[r];
            last = match plain >> i & 1 {
                0 => None,
                _ => self.track_short(i, last, &of),
            };
            let Some((brief, ends)) = last else {
                self.track_any((i, r, id), to, &of);
                continue;
            };
            let origin = self.origin(st, to, key.context());
            let mut key = key.with_context(origin);
            if let Some(ends) = ends {
                self.translate_ends(i, id, key.l3(), ends);
                key = key.with_ends4(ends.src, ends.dst);
            }
            self.follow_link(brief, (id, key), to, &moment, &of);
        }
    }

    /// Tracks packet `i` by `Conntrack::track_short`. If the packet before is alike, its result `last` is
    /// also the one of packet `i`. `None`: the packet is not tracked yet.
    #[inline]
    fn track_short(
        &mut self,
        i: usize,
        last: Option<(Brief, Option<Ends4>)>,
        of: &Tracking<'_>,
    ) -> Option<(Brief, Option<Ends4>)> {
        let (short, guess, same) = self.engine.tracked.plain(i)?;
        if same && last.is_some() {
            return last;
        }
        let tracker = &self.shared.conntrack;
        let (brief, ends, events) =
            tracker.track_short(self.engine.now_ms, of.reading, short, guess, of.zone, of.nat)?;
        if !events.is_empty() {
            self.counters.ct.add(events);
        }
        Some((brief, ends))
    }

    /// Writes translated addresses and ports into packet `i` after `track_short`.
    #[inline]
    fn translate_ends(&mut self, i: usize, id: LiveId, l3: u16, ends: Ends4) {
        let e = &mut self.engine;
        let Some((short, ..)) = e.tracked.plain(i) else {
            return;
        };
        let mut live = e.packets.live();
        let p = live.get_mut(id);
        let l4 = usize::from(l3) + Ipv4::LEN;
        let partial = matches!(p.offload.csum, Csum::Partial { start, .. } if usize::from(start) == l4);
        if let Some(h) = p.head_mut().get_mut(l3.into()..) {
            ends.apply(h, short, partial);
        }
    }

    /// Puts a packet of a connection into the next stage, with the program that the connection is linked to,
    /// if any.
    #[inline]
    fn follow_link(
        &mut self,
        brief: Brief,
        (id, key): (LiveId, CompactKey),
        to: &mut Stage,
        moment: &Moment<'_>,
        of: &Tracking<'_>,
    ) {
        let len = self.engine.packets.live().get(id).len() as u64;
        let body = self.cache.follow(&brief, &key, len, moment);
        if let Some(body) = body
            && let Some(merges) = self.cache.program(body).and_then(|p| merges(p, of.zone))
        {
            return self.push(to, id..id + 1, Change::TrackedTo(&key, (body, merges)));
        }
        let program = of.choice.program(&self.cache, &self.once);
        let Some(action) = program.and_then(Program::tracking).map(|t| t.action) else {
            return;
        };
        let known = self.shared.conntrack.known(&brief, action);
        let program = body.map_or(RunProgram::UNKNOWN, RunProgram::of_one_flow);
        self.push(to, id..id + 1, Change::Tracked(&key, program, &known));
        if body.is_none() {
            to.learners.push((to.keys.runs.len() - 1, brief));
        }
    }

    /// Tracks packet `i`, of run `r`, and puts it into the next stage.
    #[inline(never)]
    fn track_any(&mut self, (i, r, id): (usize, usize, LiveId), to: &mut Stage, of: &Tracking<'_>) {
        let keys = &of.st.keys;
        let program = of.choice.program(&self.cache, &self.once);
        let Some(action) = program.and_then(Program::tracking).map(|t| t.action) else {
            return;
        };
        let mut exec = self.engine.exec(None, keys.context_of(r));
        if !exec.track_read(of.reading, action, i, id, || keys.meta(r)) {
            return exec.lost(DropKind::Untranslated, id..id + 1);
        }
        let origin = self.origin(of.st, to, keys.compact[r].context());
        let key = keys.compact[r].with_context(origin);
        let known = self.engine.tracked.get(i).copied();
        let carried = Carried {
            ct: known.as_ref(),
            ..of.st.carried(r, keys.meta(r))
        };
        let change = if self.engine.tracked.is_translated(i) {
            Change::Rewritten(self.engine.read_as(carried.meta.packet_type), origin, carried)
        } else {
            Change::Nothing(&key, carried)
        };
        self.push(to, id..id + 1, change);
    }
}
