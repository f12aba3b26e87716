//! Groups of packets that are only tracked, and then looked up again: what established traffic behind rules
//! with connections does. Those whose headers are rewritten before, as a logical router does, are read again
//! in between.
//!
//! **Shape.** Four passes over the group, so that cache misses overlap: packets are read, their connections
//! are fetched, then what these had next; then each connection moves, and its packet goes into the next stage
//! at once. Packets of the usual kind that carried nothing are tracked in a short way, and have the program
//! that the connection's packets had before, where that is known (`links` of the flow cache): then nothing
//! is written down of what they carry, unless the program asks for it. All others go the general way.

use super::recirc::{Carried, Stage, live};
use super::{Choice, Group, Worker};
use crate::exec::LiveId;
use crate::exec::program::{Merges, Program, Tail};
use crate::worker::parse::How;
use heddle_conntrack::{Brief, Ends4, ReadGuard};
use heddle_datapath_api::DropKind;
use heddle_flow_cache::{CompactKey, Kind, Moment, NO_BODY};
use heddle_packet::Csum;
use heddle_wire::ip::Ipv4;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What is the same for a group.
#[derive(Clone, Copy)]
struct Of<'a> {
    st: &'a Stage,
    choice: Choice,
    zone: u16,
    /// Whether it translates.
    nat: bool,
    reading: &'a ReadGuard,
    now_ms: u64,
}

/// Which packets a program may be run on together that carry what a zone has said of their connections, if it
/// does not ask for that: it asks for nothing, or for what another zone says.
#[inline]
fn merges(program: &Program, zone: u16) -> Option<Merges> {
    if program.is_blind() {
        return Some(program.merges);
    }
    let tracking = program.tracking()?;
    let action = tracking.action;
    (tracking.forgets || action.zone != zone && !action.force).then_some(Merges::No)
}

impl Worker {
    /// Has all packets of a group tracked, whose program does nothing else with them any more, and puts them
    /// into the next stage.
    pub(super) fn gather_tracked(&mut self, st: &Stage, group: &Group, to: &mut Stage, now_ms: u64) {
        let s = &mut self.scratch;
        let program = group.choice.program(&self.cache, &s.once);
        let Some(action) = program.and_then(Program::tracking).map(|t| t.action) else {
            return;
        };
        let (zone, nat, looks, parsed) = (action.zone, action.nat.is_some(), action.only_looks(), &st.parsed);
        let mut exec = super::exec!(self, s, (None, None), now_ms);
        exec.tracked.begin();
        // Those that may be tracked in the short way, and the run of the packet before, if that is one.
        let (mut plain, mut before) = (0_u64, usize::MAX);
        for (i, r, id) in st.packets(group) {
            // What another zone has said of a linked run is forgotten here.
            let usual = looks && matches!(parsed.runs[r].kind, Kind::Ordinary | Kind::Linked);
            if usual && exec.read_plain(zone, i, id, parsed.compact[r].l3(), before == r) {
                before = r;
                plain |= 1 << i;
                continue;
            }
            before = usize::MAX;
            exec.carried = parsed.outside_of(r);
            exec.read_ahead(zone, i, id, &parsed.meta(r));
        }
        let n = usize::from(group.end - group.first);
        let cache = &self.cache;
        exec.guess_all(0..n, |number| cache.fetch_links(number));
        if cache.has_many() {
            (0..n)
                .filter_map(|i| exec.tracked.guessed(i))
                .for_each(|n| cache.fetch_linked(n));
        }
        let of = Of {
            st,
            choice: group.choice,
            zone,
            nat,
            reading: &ReadGuard::begin(),
            now_ms,
        };
        let shared = Arc::clone(&self.shared);
        let moment = shared.moment(shared.translate.generations().any(), now_ms);
        let mut last = None;
        for (i, r, id) in st.packets(group) {
            let key = &parsed.compact[r];
            let origin = self.origin(st, to, key.context());
            let brief = if plain >> i & 1 == 0 {
                None
            } else {
                self.track_briefly(i, last, &of)
            };
            let Some((brief, ends)) = brief else {
                last = None;
                self.go_on_tracked((i, r, id), to, &of);
                continue;
            };
            last = Some((brief, ends));
            let mut key = key.with_context(origin);
            if let Some(ends) = ends {
                self.give_ends(i, id, key.l3(), ends);
                key = key.with_ends4(ends.src, ends.dst);
            }
            self.go_on_brief(brief, (id, key), to, &moment, &of);
        }
    }

    /// Rewrites packets of a group, and has them tracked as they are then.
    pub(super) fn gather_rewritten(
        &mut self,
        st: &Stage,
        (group, tail): (&Group, Tail),
        to: &mut Stage,
        now_ms: u64,
    ) {
        let mut written = self.scratch.stage(st.parsed.recirc_id);
        let mut r = usize::from(group.run);
        while let Some(run) = st.parsed.runs.get(r).filter(|run| run.first < group.end) {
            for ids in st.ids.ranges(run.first.max(group.first)..run.end.min(group.end)) {
                // What another zone has said of a linked run is forgotten when it is tracked.
                if matches!(run.kind, Kind::Ordinary | Kind::Linked) {
                    self.rewrite_some(st, group, r, ids, &mut written, now_ms);
                } else {
                    self.gather_written(group, &mut written, to, now_ms);
                    self.gather_some(st, (group, tail), r, ids, to, now_ms);
                }
            }
            r += 1;
        }
        self.gather_written(group, &mut written, to, now_ms);
        self.scratch.spare_stages.push(written);
    }

    /// Rewrites neighbours of one run that carry nothing, and reads them again.
    fn rewrite_some(
        &mut self,
        st: &Stage,
        group: &Group,
        r: usize,
        ids: Range<LiveId>,
        written: &mut Stage,
        now_ms: u64,
    ) {
        let s = &mut self.scratch;
        let program = group.choice.program(&self.cache, &s.once);
        let Some(tracking) = program.and_then(Program::tracking) else {
            return;
        };
        let mut exec = super::exec!(self, s, (st.parsed.known(r), None), now_ms);
        let (failed, meta) = exec.steps(tracking.writes, ids.clone(), group.longest, st.parsed.meta(r));
        let how = How {
            packet_type: meta.packet_type,
            vlan_limit: self.shared.vlan_limit.load(Relaxed),
        };
        let origin = st.parsed.compact[r].context();
        let mut live = live!(self.scratch);
        for (id, _) in ids.zip(0..).filter(|(_, i)| failed >> i & 1 == 0) {
            let place = written.ids.len();
            written.ids.push(id);
            written.parsed.push_from(place, live.get_mut(id), how, origin);
        }
    }

    /// Has those tracked that were rewritten.
    fn gather_written(&mut self, group: &Group, written: &mut Stage, to: &mut Stage, now_ms: u64) {
        let end = written.ids.len();
        if end == 0 {
            return;
        }
        let all = Group {
            first: 0,
            end,
            run: 0,
            ..*group
        };
        self.gather_tracked(written, &all, to, now_ms);
        written.ids.be_first(0);
        written.parsed.begin(written.parsed.recirc_id);
    }

    /// Tracks packet `i`, which was read as one of the usual kind. `last` is what was said of the one before,
    /// if that was one, too.
    #[inline]
    fn track_briefly(
        &mut self,
        i: usize,
        last: Option<(Brief, Option<Ends4>)>,
        of: &Of<'_>,
    ) -> Option<(Brief, Option<Ends4>)> {
        let (short, guess, again) = self.scratch.tracked.plain(i)?;
        if again && last.is_some() {
            return last;
        }
        let tracker = &self.shared.conntrack;
        let (brief, ends, events) =
            tracker.track_short(of.now_ms, of.reading, short, guess, (of.zone, of.nat))?;
        if !events.is_empty() {
            self.counters.ct.add(events);
        }
        Some((brief, ends))
    }

    /// Gives packet `i`, which was read as one of the usual kind, other ends.
    #[inline]
    fn give_ends(&mut self, i: usize, id: LiveId, l3: u16, ends: Ends4) {
        let s = &mut self.scratch;
        let Some((short, ..)) = s.tracked.plain(i) else {
            return;
        };
        let mut live = live!(s);
        let p = live.get_mut(id);
        let l4 = usize::from(l3) + Ipv4::LEN;
        let partial = matches!(p.offload.csum, Csum::Partial { start, .. } if usize::from(start) == l4);
        if let Some(h) = p.head_mut().get_mut(l3.into()..) {
            ends.apply(h, short, partial);
        }
    }

    /// Puts a packet that carried nothing, but is of a connection of which this is known, into the next
    /// stage, with the program that others of it had there, if that is known.
    #[inline]
    fn go_on_brief(
        &mut self,
        brief: Brief,
        (id, key): (LiveId, CompactKey),
        to: &mut Stage,
        moment: &Moment<'_>,
        of: &Of<'_>,
    ) {
        let live = live!(self.scratch);
        let len = live.get(id).len();
        let body = self.cache.follow(&brief, &key, len as u64, moment);
        if let Some(body) = body
            && let Some(merges) = self.cache.program(body).and_then(|p| merges(p, of.zone))
        {
            to.parsed.push_linked(to.ids.len(), len, &key, (body, merges));
            return to.ids.push(id);
        }
        let program = of.choice.program(&self.cache, &self.scratch.once);
        let Some(action) = program.and_then(Program::tracking).map(|t| t.action) else {
            return;
        };
        let known = self.shared.conntrack.known(&brief, action);
        to.go_on_known(&live, id, (key, body.unwrap_or(NO_BODY)), &known);
        if body.is_none() {
            to.learners.push((to.parsed.runs.len() - 1, brief));
        }
    }

    /// Tracks packet `i`, of run `r`, in the general way, and puts it into the next stage.
    #[inline(never)]
    fn go_on_tracked(&mut self, (i, r, id): (usize, usize, LiveId), to: &mut Stage, of: &Of<'_>) {
        let parsed = &of.st.parsed;
        let s = &mut self.scratch;
        let program = of.choice.program(&self.cache, &s.once);
        let Some(action) = program.and_then(Program::tracking).map(|t| t.action) else {
            return;
        };
        let mut exec = super::exec!(self, s, (None, parsed.outside_of(r)), of.now_ms);
        if !exec.track_read(of.reading, action, i, id, || parsed.meta(r)) {
            return exec.lost(DropKind::Untranslated, id..id + 1);
        }
        let key = &parsed.compact[r];
        let origin = self.origin(of.st, to, key.context());
        let tracked = &self.scratch.tracked;
        let known = tracked.get(i);
        let kind = parsed.runs[r].kind;
        let mut live = live!(self.scratch);
        let plain = matches!(kind, Kind::Ordinary | Kind::Linked);
        if let (true, Some(known), false) = (plain, known, tracked.is_translated(i)) {
            return to.go_on_known(&live, id, (key.with_context(origin), NO_BODY), known);
        }
        let carried = Carried {
            before: parsed.outside_of(r),
            full: matches!(kind, Kind::Full(_)),
            meta: parsed.meta(r),
            ct: known,
        };
        if tracked.is_translated(i) {
            let how = How {
                packet_type: carried.meta.packet_type,
                vlan_limit: self.shared.vlan_limit.load(Relaxed),
            };
            to.read_again(live.get_mut(id), (id, origin), how, carried);
        } else {
            to.go_on(&live, id..id + 1, key.with_context(origin), carried);
        }
    }
}
