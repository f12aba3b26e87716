//! Packets that are looked up again, as they have become, in the same burst.
//!
//! **Problem.** Some actions lead to headers that were not parsed (what is behind a popped label), or choose
//! by what only the datapath can say (a hash). The packet goes on under a recirculation id, through the same
//! caches. Most packets of a virtual network do so, some several times, so they go in bursts: a *stage* is
//! what was received, or what goes on under one id.
//!
//! **Shape.** Where a program ends with a recirculation, its packets gather in the next stage, and other
//! groups' packets under the same id beside them; the stage is then looked up and executed as a burst is.
//! What a program has not written is not read again: the key stays, and has another origin. Programs that go
//! on after a recirculation are run packet by packet: what is to be done after it waits until the packet has
//! gone its way, so that outputs are in the order of the actions.
//!
//! **Order.** Packets of one flow leave in the order in which they came: before a group is run that may have
//! packets of a flow of which some wait in the next stage, that stage is run. Flows are told apart by 64 bits
//! ([`Stage::flows`]): in doubt the stage is run.
//!
//! **Bounds.** [`MAX_DEPTH`] lookups of one packet within each other, and [`MAX_LOOKUPS`] of it and its
//! copies; then it is dropped by name. The number of packets is that of the burst's copies at most.

use super::peers::peer_of;
use super::{Choice, Group, Scratch, Worker};
use crate::exec::ct;
use crate::exec::program::{Goes, Program, Tail};
use crate::exec::{Going, Live, LiveId, Meta, Recirculated, tunnel};
use crate::worker::parse::{How, Parsed, fresh_origin};
use arrayvec::ArrayVec;
use heddle_conntrack::{Brief, Known};
use heddle_datapath_api::{DropKind, HashAlg};
use heddle_flow::{FlowKey, hash, packet_type};
use heddle_flow_cache::{Burst, CompactKey, Kind, MAX_LISTED, NO_BODY, Run};
use heddle_packet::{BURST, Packet};
use heddle_tunnel::outer_cache::{OuterHeaderCache, View};
use heddle_tunnel::{TunnelKind, TunnelPop};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most lookups of a packet, the first not counted.
const MAX_DEPTH: usize = 32;
/// Most lookups of a packet and its copies: a program that recirculates ten copies would look a million
/// times.
const MAX_LOOKUPS: usize = 1024;

/// The packets at hand, where the rest of the scratch space is used beside them.
macro_rules! live {
    ($scratch:expr) => {
        $crate::exec::Live {
            burst: &mut $scratch.burst,
            copies: &mut $scratch.copies,
        }
    };
}

pub(super) use live;

/// Packets by their place in a stage.
#[derive(Debug, Default)]
pub(super) struct Ids {
    first: LiveId,
    len: u16,
    /// All of them, where they are not neighbours.
    list: ArrayVec<LiveId, BURST>,
}

impl Ids {
    /// Those of a whole burst.
    pub(super) fn be_first(&mut self, n: usize) {
        self.list.clear();
        (self.first, self.len) = (0, u16::try_from(n).expect("a burst has fewer packets"));
    }
    fn clear(&mut self) {
        self.list.clear();
        self.len = 0;
    }
    #[inline]
    pub(super) fn push(&mut self, id: LiveId) {
        let next = self.first + self.len;
        if id == next && self.len > 0 && self.list.is_empty() && usize::from(id) != BURST {
            return self.len += 1;
        }
        if self.len == 0 {
            self.first = id;
        } else if self.list.is_empty() && (id != next || usize::from(id) == BURST) {
            // Copies are no neighbours of the burst's packets.
            self.list.extend(self.first..next);
        }
        if !self.list.is_empty() {
            self.list.push(id);
        }
        self.len += 1;
    }
    /// As many as these, which are neighbours.
    #[inline]
    fn push_all(&mut self, ids: Range<LiveId>) {
        if self.len == 0 {
            (self.first, self.len) = (ids.start, ids.end - ids.start);
        } else if self.list.is_empty()
            && ids.start == self.first + self.len
            && usize::from(ids.start) != BURST
        {
            self.len += ids.end - ids.start;
        } else {
            ids.for_each(|id| self.push(id));
        }
    }
    #[inline]
    pub(super) fn len(&self) -> u16 {
        self.len
    }
    #[inline]
    pub(super) fn at(&self, place: u16) -> LiveId {
        self.list
            .get(usize::from(place))
            .copied()
            .unwrap_or(self.first + place)
    }
    /// The packets of these places, as few ranges as they are.
    #[inline]
    pub(super) fn ranges(&self, places: Range<u16>) -> impl Iterator<Item = Range<LiveId>> {
        let mut at = places.start;
        std::iter::from_fn(move || {
            if at >= places.end {
                return None;
            }
            let first = self.at(at);
            if self.list.is_empty() {
                let n = places.end - at;
                at = places.end;
                return Some(first..first + n);
            }
            let mut end = first + 1;
            at += 1;
            while at < places.end && self.at(at) == end && usize::from(end) != BURST {
                (at, end) = (at + 1, end + 1);
            }
            Some(first..end)
        })
    }
}

/// Packets that are looked up together.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) ids: Ids,
    pub(super) parsed: Parsed,
    pub(super) groups: Vec<Group>,
    /// Flows of which there are packets: a bit for each, by a hash. They are of the groups of the stage
    /// before, from the one that came first up to this one.
    flows: u64,
    known: usize,
    /// None of its packets is a copy, nor are packets that wait elsewhere: between two of them copies may be
    /// given back.
    pub(super) top: bool,
    /// Runs that are to be looked up, whose connections are to know what was found.
    pub(super) learners: ArrayVec<(usize, Brief), BURST>,
    /// The last origin of the stage before that was asked for, and what it is here.
    origin: (u32, u32),
    /// The outer headers of the last packet that came out of a tunnel, which tunnel's end took them off, and
    /// the place of what they told.
    seen: Option<(OuterHeaderCache, Arc<TunnelPop>, u8)>,
}

impl Stage {
    fn new() -> Box<Self> {
        Box::new(Self {
            ids: Ids::default(),
            parsed: Parsed::new(BURST),
            groups: Vec::with_capacity(BURST),
            learners: ArrayVec::new(),
            flows: 0,
            known: 0,
            top: true,
            origin: (u32::MAX, 0),
            seen: None,
        })
    }
}

impl Scratch {
    /// An empty stage, of packets under this id.
    pub(super) fn stage(&mut self, recirc_id: u32) -> Box<Stage> {
        let mut st = self.spare_stages.pop().unwrap_or_else(Stage::new);
        st.ids.clear();
        st.parsed.begin(recirc_id);
        st.groups.clear();
        st.learners.clear();
        (st.flows, st.known, st.top, st.origin) = (0, 0, true, (u32::MAX, 0));
        st.seen = None;
        st
    }
    pub(super) fn live(&mut self) -> Live<'_> {
        live!(self)
    }
}

/// The bit of a packet's flow: that of its addresses and ports.
fn flow_bit(key: &CompactKey) -> u64 {
    let w = key.words();
    let mixed = (w[3] ^ w[4] ^ w[5] ^ w[6] ^ w[7]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 << (mixed >> 58)
}

/// What goes along with a packet.
#[derive(Clone, Copy)]
pub(super) struct Carried<'a> {
    /// What it carried when it was looked up last, where that was something.
    pub(super) before: Option<&'a FlowKey>,
    /// Its headers are not laid out as its compact key says, even where that says all that is in them (IP
    /// options, an IP packet that ends early): `before` is the full key.
    pub(super) full: bool,
    pub(super) meta: Meta,
    /// What is known of its connection that it did not come with.
    pub(super) ct: Option<&'a Known>,
}

impl Carried<'_> {
    #[inline]
    fn nothing(&self) -> bool {
        let m = &self.meta;
        self.before.is_none() && self.ct.is_none() && (m.priority, m.mark, m.hash.is_none()) == (0, 0, true)
    }
    /// Adds it to a key. Where that has no headers, `headers` says them.
    #[inline(always)]
    pub(super) fn add(&self, key: &mut FlowKey, headers: Option<&CompactKey>) {
        if let Some(before) = self.before {
            key.copy_carried(before);
        }
        if let Some(known) = self.ct {
            ct::write_known(known, key);
        }
        (key.skb_priority, key.pkt_mark) = (self.meta.priority, self.meta.mark);
        if let Some((alg, basis)) = self.meta.hash {
            let of = |key: &FlowKey| match alg {
                HashAlg::L4 => hash::five_tuple(key, basis),
                HashAlg::SymL4 => hash::symmetric_l3l4(key, basis, false),
            };
            // Zero means that there is none.
            key.dp_hash = headers.map_or_else(|| of(key), |h| of(&h.whole())).max(1);
        }
    }
}

/// Packets after a line.
struct Ran {
    ids: Range<LiveId>,
    /// A bit for each that was lost on its way.
    failed: u64,
    meta: Meta,
    /// Their connections are known now.
    tracks: bool,
}

impl Worker {
    /// Runs a group that recirculates, or one beside packets that wait to be looked up again.
    #[inline(never)]
    pub(super) fn execute_beside(
        &mut self,
        st: &mut Stage,
        g: usize,
        next: &mut Option<Box<Stage>>,
        depth: usize,
        now_ms: u64,
    ) {
        let group = &st.groups[g].clone();
        let r = usize::from(group.run);
        let program = group.choice.program(&self.cache, &self.scratch.once);
        let Some((tail, recirculates)) = program.map(|p| (p.tail, p.recirculates)) else {
            return;
        };
        let tail = tail.filter(|_| st.parsed.is_regular(r));
        if let Some(waiting) = next {
            let goes_on = tail.is_some_and(|t| t.goes.id() == waiting.parsed.recirc_id);
            // A group that goes on under another id, or in another way, waits; any other only if it may
            // overtake.
            let sends = tail.is_none_or(|t| t.copy);
            if !goes_on && recirculates || sends && st.overtakes(g, waiting) {
                let waiting = next.take().expect("it is there");
                self.run_stage(waiting, depth + 1, now_ms);
            }
        }
        if let Some(tail) = tail {
            let to = next.get_or_insert_with(|| {
                let mut to = self.scratch.stage(tail.goes.id());
                (to.known, to.top) = (g, st.top);
                to
            });
            to.top &= !tail.copy;
            return self.gather(st, group, tail, to, now_ms);
        }
        if !recirculates {
            return self.execute(st, group, st.top && next.is_none(), now_ms);
        }
        let mut r = r;
        for place in group.first..group.end {
            // A group may have packets of several runs, which carry different things.
            r += usize::from(st.parsed.runs[r].end <= place);
            self.walk(st, group.choice, (place, r), depth, now_ms);
            if st.top {
                let s = &mut self.scratch;
                super::exec!(self, s, (None, None), now_ms).make_room();
            }
        }
    }

    /// Runs what comes before the recirculation at the end, and puts the packets into the next stage.
    fn gather(&mut self, st: &Stage, group: &Group, tail: Tail, to: &mut Stage, now_ms: u64) {
        let program = group.choice.program(&self.cache, &self.scratch.once);
        match program.and_then(Program::tracking) {
            Some(tracking) if tracking.writes.is_empty() && !tracking.forgets => {
                return self.gather_tracked(st, group, to, now_ms);
            }
            Some(_) => return self.gather_rewritten(st, (group, tail), to, now_ms),
            None => {}
        }
        if let Goes::Pop(step) = tail.goes {
            return self.gather_popped(st, (group, tail), step, to, now_ms);
        }
        let (runs, keys) = (&st.parsed.runs, &st.parsed.compact);
        let mut r = usize::from(group.run);
        while let Some(run) = runs.get(r).filter(|run| run.first < group.end) {
            let context = keys[r].context();
            // Those of which nothing but the origin is another one now: all at once.
            let same = |run: &Run, key: &CompactKey| {
                (run.kind == Kind::Ordinary) & (key.context() == context) & (run.end <= group.end)
            };
            let n = match tail.alone && run.first >= group.first {
                true => runs[r..]
                    .iter()
                    .zip(&keys[r..])
                    .take_while(|(r, k)| same(r, k))
                    .count(),
                false => 0,
            };
            if n == 0 {
                let places = run.first.max(group.first)..run.end.min(group.end);
                for ids in st.ids.ranges(places) {
                    self.gather_some(st, (group, tail), r, ids, to, now_ms);
                }
                r += 1;
                continue;
            }
            let origin = self.origin(st, to, context);
            to.parsed.push_same(&st.parsed, r..r + n, to.ids.len(), origin);
            for ids in st.ids.ranges(run.first..runs[r + n - 1].end) {
                to.ids.push_all(ids);
            }
            r += n;
        }
    }

    /// Runs what comes before the recirculation on neighbours of one run.
    fn run_line(
        &mut self,
        st: &Stage,
        (group, tail): (&Group, Tail),
        r: usize,
        ids: Range<LiveId>,
        now_ms: u64,
    ) -> Option<Ran> {
        let s = &mut self.scratch;
        let program = group.choice.program(&self.cache, &s.once)?;
        let mut exec = super::exec!(self, s, (st.parsed.known(r), st.parsed.outside_of(r)), now_ms);
        let (mut failed, meta) = exec.line(program, ids.clone(), group.longest, st.parsed.meta(r));
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

    /// Does so, and puts them into the next stage.
    pub(super) fn gather_some(
        &mut self,
        st: &Stage,
        (group, tail): (&Group, Tail),
        r: usize,
        ids: Range<LiveId>,
        to: &mut Stage,
        now_ms: u64,
    ) {
        let Some(Ran {
            ids,
            failed,
            meta,
            tracks,
        }) = self.run_line(st, (group, tail), r, ids, now_ms)
        else {
            return;
        };
        let mut carried = Carried {
            before: st.parsed.outside(&st.parsed.runs[r]),
            full: matches!(st.parsed.runs[r].kind, Kind::Full(_)),
            meta,
            ct: None,
        };
        let key = st.parsed.compact[r];
        let origin = self.origin(st, to, key.context());
        let how = self.how(meta.packet_type);
        let going = ids.clone().zip(0..).filter(|(_, i)| failed >> i & 1 == 0);
        let tracked = &self.scratch.tracked;
        let mut live = live!(self.scratch);
        if failed == 0 && !tail.rewritten && !tracks {
            return to.go_on(&live, ids, key.with_context(origin), carried);
        }
        for (id, i) in going {
            carried.ct = tracked.get(i).filter(|_| tracks);
            if tail.rewritten || tracks && tracked.is_translated(i) {
                to.read_again(live.get_mut(id), (id, origin), how, carried);
            } else {
                to.go_on(&live, id..id + 1, key.with_context(origin), carried);
            }
        }
    }

    /// Runs what comes before packets of a group are taken out of a tunnel, and puts them into the next
    /// stage.
    fn gather_popped(
        &mut self,
        st: &Stage,
        (group, tail): (&Group, Tail),
        step: u16,
        to: &mut Stage,
        now_ms: u64,
    ) {
        // All are laid out alike, see `Program::merges`.
        let r = usize::from(group.run);
        for ids in st.ids.ranges(group.first..group.end) {
            let Some(Ran {
                ids, failed, meta, ..
            }) = self.run_line(st, (group, tail), r, ids, now_ms)
            else {
                return;
            };
            let how = self.how(meta.packet_type);
            let going = ids.zip(0..).filter(|(_, i)| failed >> i & 1 == 0);
            self.pop_all(to, group.choice, step, going.map(|(id, _)| id), (how, &meta));
        }
    }

    /// Takes the packet at a place of a stage through a program to its end, with all lookups on its way.
    fn walk(&mut self, st: &mut Stage, choice: Choice, (place, r): (u16, usize), depth: usize, now_ms: u64) {
        let id = st.ids.at(place);
        if depth == 0 {
            self.scratch.lookups = MAX_LOOKUPS;
        }
        let mut going = Going::new(id, st.parsed.meta(r));
        let resumed = self.scratch.resumed.len();
        loop {
            let s = &mut self.scratch;
            let Some(program) = choice.program(&self.cache, &s.once) else {
                return s.resumed.truncate(resumed);
            };
            if program.needs_key {
                let mut live = live!(s);
                st.parsed.full(r, live.get_mut(id));
            }
            let mut exec = super::exec!(self, s, (st.parsed.known(r), st.parsed.outside_of(r)), now_ms);
            if !exec.go_on(program, &mut going) {
                if s.resumed.len() <= resumed {
                    return;
                }
                let Some(next) = s.resumed.pop() else { return };
                going = next.going();
                continue;
            }
            let Some(came) = s.recirc.take() else {
                continue;
            };
            if let Goes::Later(wait) = came.goes {
                self.have_wait(st, r, &wait, &came);
                continue;
            }
            let Recirculated { id, goes, meta, ct } = came;
            let mut next = s.stage(goes.id());
            next.top = false;
            let how = self.how(meta.packet_type);
            if let Goes::Pop(step) = goes {
                self.pop_all(&mut next, choice, step, [id].into_iter(), (how, &meta));
            } else {
                let before = st.parsed.outside(&st.parsed.runs[r]);
                let origin = self.origin(st, &mut next, st.parsed.compact[r].context());
                let carried = Carried {
                    before,
                    full: false,
                    meta,
                    ct: ct.as_ref(),
                };
                let mut live = live!(self.scratch);
                next.read_again(live.get_mut(id), (id, origin), how, carried);
            }
            let left = self.scratch.lookups;
            self.run_stage_within(next, depth + 1, left, now_ms);
        }
    }

    fn how(&self, packet_type: u32) -> How {
        How {
            packet_type,
            vlan_limit: self.shared.vlan_limit.load(Relaxed),
        }
    }

    /// Packets that come out of the tunnel of this step: they are as if the tunnel's port had received them.
    fn pop_all(
        &mut self,
        to: &mut Stage,
        choice: Choice,
        step: u16,
        ids: impl Iterator<Item = LiveId>,
        (how, meta): (How, &Meta),
    ) {
        let s = &mut self.scratch;
        let program = choice.program(&self.cache, &s.once);
        let Some(tunnel) = program.and_then(|p| p.pop_of(step)) else {
            return self.counters.drops.add(DropKind::InvalidPort, ids.count() as u64);
        };
        let mut live = live!(s);
        for id in ids {
            let p = live.get_mut(id);
            let (l3, view) = (meta.l3, View::of(p, meta.l3));
            if let (Some((seen, of, at)), Some(view)) = (&to.seen, &view)
                && Arc::ptr_eq(of, tunnel)
                && seen.apply(tunnel, p, view, l3)
            {
                p.in_port = tunnel.port;
                let (place, origin) = (to.ids.len(), fresh_origin(p));
                to.ids.push(id);
                let how = How {
                    packet_type: packet_type::ETHERNET,
                    ..how
                };
                to.parsed.push_carried(place, p, how, origin, *at);
                continue;
            }
            let waiting = (&mut self.frames, &mut self.pool, self.now_ms);
            match tunnel::pop(p, meta, tunnel, &mut s.popped, waiting) {
                Ok(None) => {}
                Ok(Some(out)) => {
                    p.in_port = tunnel.port;
                    let (place, origin, popped) = (to.ids.len(), fresh_origin(p), &s.popped);
                    to.ids.push(id);
                    let how = How {
                        packet_type: out.packet_type,
                        ..how
                    };
                    to.parsed
                        .push_carrying(place, p, how, origin, |key, _| key.copy_tunnel(popped));
                    let frame = out.packet_type == packet_type::ETHERNET;
                    let at = to.parsed.last_carried().filter(|_| frame);
                    let new = view.and_then(|v| Some((OuterHeaderCache::new(tunnel, v, l3, &out)?, at?)));
                    match (&mut to.seen, new) {
                        (Some((seen, of, at)), Some(new)) if Arc::ptr_eq(of, tunnel) => (*seen, *at) = new,
                        (old, new) => *old = new.map(|(seen, at)| (seen, Arc::clone(tunnel), at)),
                    }
                }
                Err(kind) => {
                    self.counters.drops.add(kind, 1);
                    self.tx.watch.lost(kind, 1, p, None);
                }
            }
        }
        if tunnel.kind == TunnelKind::Stt {
            self.count_lost_segments();
        }
    }

    /// Drops segments that have waited for too long.
    #[inline]
    pub(super) fn expire_segments(&mut self) {
        if self.frames.any() {
            let now_ms = self.shared.clock.now_ms();
            self.frames.expire(&mut self.pool, now_ms);
            self.count_lost_segments();
        }
    }
    fn count_lost_segments(&mut self) {
        let lost = self.frames.take_lost();
        for (kind, n) in [
            (DropKind::SegmentTimeout, lost.timeout),
            (DropKind::SegmentEvicted, lost.evicted),
        ] {
            if n > 0 {
                self.counters.drops.add(kind, n);
            }
        }
    }

    /// What the packets of an origin of a stage have for one in the next stage.
    #[inline]
    pub(super) fn origin(&mut self, st: &Stage, to: &mut Stage, before: u32) -> u32 {
        if to.origin.0 != before {
            let (in_port, _) = self.cache.source(before);
            debug_assert!(st.parsed.recirc_id == 0 || before > MAX_LISTED);
            to.origin = (before, self.cache.origin_of(in_port, to.parsed.recirc_id));
        }
        to.origin.1
    }

    /// Looks a stage's packets up and runs what was chosen for them.
    pub(super) fn run_stage(&mut self, st: Box<Stage>, depth: usize, now_ms: u64) {
        let left = match depth {
            1 => MAX_LOOKUPS * usize::from(st.ids.len()),
            _ => self.scratch.lookups,
        };
        self.run_stage_within(st, depth, left, now_ms);
    }

    fn run_stage_within(&mut self, mut st: Box<Stage>, depth: usize, left: usize, now_ms: u64) {
        let n = usize::from(st.ids.len());
        if depth > MAX_DEPTH || n > left {
            for id in st.ids.ranges(0..st.ids.len()).flatten() {
                self.lost(DropKind::Recirc, id);
            }
        } else {
            self.scratch.lookups = left - n;
            self.counters.recirculated.add(n as u64);
            let translated = self.lookup_all(&mut st, now_ms);
            self.scratch.translated += translated;
            for (r, brief) in st.learners.drain(..) {
                self.cache.link(&brief, &st.parsed.compact[r], r);
            }
            self.execute_all(&mut st, depth, now_ms);
        }
        self.scratch.spare_stages.push(st);
    }
}

impl Stage {
    /// Packets that are as they were looked up last, with this key: now of another origin.
    #[inline]
    pub(super) fn go_on(
        &mut self,
        live: &Live<'_>,
        ids: Range<LiveId>,
        key: CompactKey,
        carried: Carried<'_>,
    ) {
        let (first, mut bytes, mut longest) = (self.ids.len(), 0, 0);
        for id in ids.clone() {
            let n = live.get(id).len();
            (bytes, longest) = (bytes + n as u64, longest.max(n));
        }
        self.ids.push_all(ids);
        let places = first..self.ids.len();
        let bytes = (bytes, longest);
        match carried.before {
            Some(before) if carried.full => {
                let before = (before, carried.meta);
                self.parsed
                    .push_odd_run(places, bytes, key, before, |full| carried.add(full, None));
            }
            None if carried.nothing() => self.parsed.push_run(places, bytes, key),
            _ => self
                .parsed
                .add_carrying(places, bytes, (key, NO_BODY), |c| carried.add(c, Some(&key))),
        }
    }

    /// As [`Stage::go_on`], one packet that came with nothing but its headers. `body`: see [`Run::body`].
    #[inline]
    pub(super) fn go_on_known(
        &mut self,
        live: &Live<'_>,
        id: LiveId,
        (key, body): (CompactKey, u32),
        known: &Known,
    ) {
        let (place, len) = (self.ids.len(), live.get(id).len());
        self.ids.push_all(id..id + 1);
        self.parsed
            .add_carrying(place..place + 1, (len as u64, len), (key, body), |k| {
                ct::write_known(known, k);
            });
    }

    /// A packet that may have changed.
    pub(super) fn read_again(
        &mut self,
        p: &mut Packet,
        (id, origin): (LiveId, u32),
        how: How,
        carried: Carried<'_>,
    ) {
        let place = self.ids.len();
        self.ids.push(id);
        if carried.nothing() && how.packet_type == packet_type::ETHERNET {
            self.parsed.push_from(place, p, how, origin);
        } else {
            self.parsed
                .push_carrying(place, p, how, origin, |key, headers| carried.add(key, headers));
        }
    }
    /// Who sent the packets of run `r`, among those behind their queue.
    pub(super) fn peer(&self, r: usize) -> u8 {
        peer_of(self.parsed.runs.get(r).and_then(|run| self.parsed.outside(run)))
    }
    /// The packets of a group: its number there, its run, itself.
    #[inline]
    pub(super) fn packets(&self, group: &Group) -> impl Iterator<Item = (usize, usize, LiveId)> {
        let mut r = usize::from(group.run);
        (0..).zip(group.first..group.end).map(move |(i, place)| {
            r += usize::from(self.parsed.runs[r].end <= place);
            (i, r, self.ids.at(place))
        })
    }
    /// Whether group `g` of this stage may have packets of flows of which some wait.
    fn overtakes(&self, g: usize, waiting: &mut Stage) -> bool {
        for before in waiting.known..g {
            waiting.flows |= self.flows_of(before);
        }
        waiting.known = g;
        self.flows_of(g) & waiting.flows != 0
    }
    /// A bit for each flow of a group.
    fn flows_of(&self, g: usize) -> u64 {
        let group = &self.groups[g];
        let runs = self.parsed.runs.iter().zip(&self.parsed.compact);
        runs.skip(group.run.into())
            .take_while(|(run, _)| run.first < group.end)
            .fold(0, |bits, (run, key)| {
                bits | if run.kind == Kind::Mixed {
                    u64::MAX
                } else {
                    flow_bit(key)
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a list of numbers.
        #[test]
        fn ids_are_a_list(jumps in prop::collection::vec(0_u16..4, 0..BURST), first in 0_u16..40, part in any::<(u16, u16)>()) {
            let (mut ids, mut plain) = (Ids::default(), Vec::new());
            let mut id = first;
            for jump in jumps {
                plain.push(id);
                ids.push(id);
                // Mostly neighbours.
                id += [1, 1, 1, 5][usize::from(jump)];
            }
            let n = u16::try_from(plain.len()).unwrap();
            prop_assert_eq!(ids.len(), n);
            prop_assert!((0..n).all(|i| ids.at(i) == plain[usize::from(i)]));
            let from = part.0 % (n + 1);
            let to = from + part.1 % (n + 1 - from);
            let ranges: Vec<_> = ids.ranges(from..to).collect();
            prop_assert!(ranges.iter().all(|r| (usize::from(r.start) < BURST) == (usize::from(r.end) <= BURST)));
            let all: Vec<_> = ranges.into_iter().flatten().collect();
            prop_assert_eq!(&all[..], &plain[usize::from(from)..usize::from(to)]);
        }
    }
}
