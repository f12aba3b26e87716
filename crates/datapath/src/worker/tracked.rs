//! Tracks groups of packets that are then looked up again: established traffic behind rules that use
//! connections.
//!
//! **Shape.** Four passes over the group let cache misses overlap. They read the packets, fetch their
//! connections, fetch the links of these connections, and track. A tracked packet is put into the next stage.
//! `Conntrack::track_short` tracks ordinary packets without context if the action only looks
//! (`CtAction::only_looks`). `Conntrack::track` tracks all others. After `track_short`, a link of the
//! connection (`links` of the flow cache) gives the packet its program in the next stage without a lookup.
//! If that program does not depend on the connection's state (`Program::after_tracking`), the packet gets no
//! context. `track_short` saves a third to a half of a packet's cycles, the links another fifth.

use super::keys::{ChangedContext, Context};
use super::stage::{Change, GroupPacket, Stage};
use super::{Choice, Group, Worker};
use crate::exec::LiveId;
use crate::exec::program::Program;
use heddle_conntrack::{ConnSummary, ReadGuard, TranslatedEnds4};
use heddle_datapath_api::DropKind;
use heddle_flow_cache::{CompactKey, KeyForm, LookupContext, LookupKeys, Merges, RunProgram};
use heddle_packet::Csum;
use heddle_wire::ip::Ipv4;
use std::sync::Arc;

/// The values that all packets of a tracked group share.
#[derive(Clone, Copy)]
struct Tracking<'a> {
    st: &'a Stage,
    choice: Choice,
    zone: u16,
    /// The action translates addresses.
    nat: bool,
    reading: &'a ReadGuard,
}

/// The result of `Conntrack::track_short` for a packet.
#[derive(Clone, Copy)]
struct Established {
    conn: ConnSummary,
    /// The addresses and ports to write, if the connection translates them.
    ends: Option<TranslatedEnds4>,
}

impl Worker {
    /// Tracks all packets of a group and puts them into the next stage. The group's program does nothing
    /// else, so the packets have the headers of their keys.
    pub(super) fn track_group(&mut self, st: &Stage, group: &Group, to: &mut Stage) {
        let program = group.choice.program(&self.cache, &self.once);
        let Some(action) = program.and_then(Program::only_tracks) else {
            return;
        };
        let (zone, nat, looks, keys) = (action.zone, action.nat.is_some(), action.only_looks(), &st.keys);
        let mut exec = self.resources.exec(None, None);
        exec.tracked.begin();
        // A bit for each packet that `track_short` may take.
        let mut plain = 0_u64;
        // The run of the packet before, if `track_short` may take that.
        let mut before = None;
        for GroupPacket { i, r, id } in st.packets(group) {
            let run = &keys.runs[r];
            debug_assert_eq!(run.program.merges, Merges::No);
            // A linked run has the state of another zone. It is not stored, and would be replaced.
            let ordinary = looks && run.form == KeyForm::Compact;
            if ordinary && exec.read_plain(zone, i, id, keys.compact[r].l3(), before == Some(r)) {
                before = Some(r);
                plain |= 1 << i;
                continue;
            }
            before = None;
            exec.context = keys.context(r);
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
        let lookup = shared.lookup(shared.translate.generations().any(), self.resources.now_ms);
        let mut last = None;
        for packet in st.packets(group) {
            let GroupPacket { i, r, id } = packet;
            let key = &keys.compact[r];
            let is_plain = plain >> i & 1 != 0;
            if !is_plain || last.is_none() || !self.resources.tracked.is_same(i) {
                last = if is_plain { self.track_short(i, &of) } else { None };
            }
            let Some(Established { conn, ends }) = &last else {
                self.track_any(packet, to, &of);
                continue;
            };
            let origin = self.origin(st, to, key.origin());
            let mut key = key.with_origin(origin);
            if let Some(ends) = ends {
                self.translate_ends(i, id, key.l3(), *ends);
                key = key.with_ends4(ends.src, ends.dst);
            }
            self.follow_link(conn, id, &key, to, &lookup, &of);
        }
    }

    /// Tracks packet `i` by `Conntrack::track_short`. `None`: the packet is not tracked yet.
    #[inline]
    fn track_short(&mut self, i: usize, of: &Tracking<'_>) -> Option<Established> {
        let (headers, guess) = self.resources.tracked.plain(i)?;
        let tracker = &self.shared.conntrack;
        let (conn, ends, events) =
            tracker.track_short(self.resources.now_ms, of.reading, headers, guess, of.zone, of.nat)?;
        if !events.is_empty() {
            self.counters.ct.add(events);
        }
        Some(Established { conn, ends })
    }

    /// Writes translated addresses and ports into packet `i` after `track_short`.
    #[inline]
    fn translate_ends(&mut self, i: usize, id: LiveId, l3: u16, ends: TranslatedEnds4) {
        let e = &mut self.resources;
        let Some((headers, _)) = e.tracked.plain(i) else {
            return;
        };
        let p = e.live.get_mut(id);
        let l4 = usize::from(l3) + Ipv4::LEN;
        let partial = matches!(p.offload.csum, Csum::Partial { start, .. } if usize::from(start) == l4);
        if let Some(h) = p.head_mut().get_mut(l3.into()..) {
            ends.apply(h, headers, partial);
        }
    }

    /// Puts a packet of a connection into the next stage, with the program that the connection is linked to,
    /// if any.
    #[inline]
    fn follow_link(
        &mut self,
        conn: &ConnSummary,
        id: LiveId,
        key: &CompactKey,
        to: &mut Stage,
        lookup: &LookupContext<'_>,
        of: &Tracking<'_>,
    ) {
        let len = self.resources.live.get(id).len() as u64;
        let number = self.cache.follow(conn, key, len, lookup);
        if let Some(number) = number
            && let Some(program) = self.cache.program(number)
            && let Some(program) = program.after_tracking(number, of.zone)
        {
            let change = Change::Tracked(key, program, Context::None);
            to.push(&mut self.resources, id..id + 1, change);
            return;
        }
        let program = of.choice.program(&self.cache, &self.once);
        let Some(action) = program.and_then(Program::only_tracks) else {
            return;
        };
        let known = self.shared.conntrack.known(conn, action);
        let program = number.map_or(RunProgram::UNKNOWN, |number| RunProgram {
            number,
            merges: Merges::No,
        });
        let change = Change::Tracked(key, program, Context::Connection(&known));
        to.push(&mut self.resources, id..id + 1, change);
        if number.is_none() {
            to.to_link.push((to.keys.runs.len() - 1, *conn));
        }
    }

    /// Tracks a packet and puts it into the next stage.
    #[inline(never)]
    fn track_any(&mut self, packet: GroupPacket, to: &mut Stage, of: &Tracking<'_>) {
        let GroupPacket { i, r, id } = packet;
        let keys = &of.st.keys;
        let program = of.choice.program(&self.cache, &self.once);
        let Some(action) = program.and_then(Program::only_tracks) else {
            return;
        };
        let mut exec = self.resources.exec(None, keys.context(r));
        if !exec.track_read(of.reading, action, i, id, || keys.meta(r)) {
            return exec.lost(DropKind::Untranslated, id..id + 1);
        }
        let origin = self.origin(of.st, to, keys.compact[r].origin());
        let key = keys.compact[r].with_origin(origin);
        let known = self.resources.tracked.get(i).copied();
        let changed = ChangedContext {
            ct: known.as_ref(),
            ..of.st.changed_context(r, keys.meta(r))
        };
        let change = if self.resources.tracked.is_translated(i) {
            let how = self.resources.read_as(changed.meta.packet_type);
            Change::Headers(how, origin, changed.context())
        } else {
            Change::Nothing(&key, changed)
        };
        to.push(&mut self.resources, id..id + 1, change);
    }
}
