//! Runs compiled actions over packets.
//!
//! The packets of a run have equal keys and one program. Programs of the two most common shapes ([`Shape`])
//! run over all packets at once, action by action. Other programs run packet by packet.
//!
//! The packets of a burst stay in place until the burst ends, their copies at least until they are sent.
//! Outputs queue their numbers ([`LiveId`]) per port. So several outputs share one packet, and one call sends
//! many packets to a port. A packet that was queued is not written any more (the compiler's invariant).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod balance;
pub(crate) mod csum;
pub(crate) mod ct;
pub(crate) mod encap;
pub(crate) mod fragments;
mod helper;
pub(crate) mod program;
mod quick;
mod set;
mod tags;
#[cfg(test)]
mod tests;
mod too_big;
pub(crate) mod tunnel;
pub(crate) mod tx;
pub(crate) mod upcalls;
pub(crate) mod watch;

use crate::counters::Drops;
use crate::exec::ct::{Ct, Tracked};
use crate::exec::fragments::{Gathered, WaitingFragment};
use crate::exec::program::{MAX_NESTING, NextHop, Op, Program, Shape, growth};
use crate::exec::quick::Quick;
use crate::exec::tx::TxTable;
use crate::exec::upcalls::UpcallTx;
use arrayvec::ArrayVec;
use heddle_conntrack::CtState;
use heddle_conntrack::ipf::Ipf;
use heddle_datapath_api::meter::Verdict;
use heddle_datapath_api::{Action, DropKind, HashAlg, Meter, PortNo, Upcall, UpcallKind, UpcallPacket};
use heddle_flow::FlowKey;
use heddle_packet::{BURST, Burst, Csum, GsoKind, Packet, Pool};
use heddle_port::segment;
use std::ops::Range;
use std::sync::Arc;
use tags::TagError;

/// Maximum number of copies of packets at a time.
pub(crate) const MAX_COPIES: usize = 4096;

/// A packet of the burst (below [`BURST`]) or a copy.
pub(crate) type LiveId = u16;

/// The offsets of a packet's headers, and its marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Meta {
    /// Offsets from the packet's start; `u16::MAX`: none.
    pub(crate) l2_5: u16,
    pub(crate) l3: u16,
    pub(crate) l4: u16,
    /// End of the IP payload.
    pub(crate) l4_end: usize,
    /// IP protocol of the L4 header.
    pub(crate) proto: u8,
    /// A fragment without L4 header.
    pub(crate) later_fragment: bool,
    /// An IPv6 routing header with segments left: the destination is not in the pseudo header.
    pub(crate) routing_header: bool,
    pub(crate) priority: u32,
    pub(crate) mark: u32,
    /// Type of the packet's first header, see [`heddle_flow::packet_type`].
    pub(crate) packet_type: u32,
    /// Algorithm and basis of the hash for the next lookup.
    pub(crate) hash: Option<(HashAlg, u32)>,
}

/// A packet to return to after a copy.
#[derive(Debug)]
struct Saved {
    id: LiveId,
    meta: Meta,
    ct: Option<CtState>,
    /// The step to continue at if the copy ends early.
    end: usize,
}

/// A packet on its way through a program.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) id: LiveId,
    pub(crate) meta: Meta,
    /// The packet's connection state, if it is no longer that of its lookup.
    ct: Option<CtState>,
    /// The next step.
    at: usize,
    /// Packets to return to when copies have ended, the next one last.
    saved: ArrayVec<Saved, MAX_NESTING>,
}

impl InFlight {
    /// A packet at the first step of its program.
    pub(crate) fn new(id: LiveId, meta: Meta) -> Self {
        Self {
            id,
            meta,
            ct: None,
            at: 0,
            saved: ArrayVec::new(),
        }
    }
}

/// A packet to be looked up again.
#[derive(Clone, Copy)]
pub(crate) struct Recirculated {
    pub(crate) id: LiveId,
    pub(crate) hop: NextHop,
    pub(crate) meta: Meta,
    /// The packet's connection state, if it is no longer that of its lookup.
    pub(crate) ct: Option<CtState>,
}

/// The packets of one burst and their copies.
#[derive(Default)]
pub(crate) struct Live {
    pub(crate) burst: Burst,
    pub(crate) copies: Vec<Packet>,
}

impl Live {
    #[inline]
    pub(crate) fn get(&self, id: LiveId) -> &Packet {
        let i = usize::from(id);
        if i < BURST {
            &self.burst[i]
        } else {
            &self.copies[i - BURST]
        }
    }
    /// Several packets. Either each is of the burst, or each is a copy.
    #[inline]
    pub(crate) fn all(&self, ids: &Range<LiveId>) -> &[Packet] {
        let (from, to) = (usize::from(ids.start), usize::from(ids.end));
        if from < BURST {
            &self.burst[from..to]
        } else {
            &self.copies[from - BURST..to - BURST]
        }
    }
    /// Like [`Self::all`], mutable.
    #[inline]
    fn all_mut(&mut self, ids: &Range<LiveId>) -> &mut [Packet] {
        let (from, to) = (usize::from(ids.start), usize::from(ids.end));
        if from < BURST {
            &mut self.burst[from..to]
        } else {
            &mut self.copies[from - BURST..to - BURST]
        }
    }
    pub(crate) fn get_mut(&mut self, id: LiveId) -> &mut Packet {
        let i = usize::from(id);
        if i < BURST {
            &mut self.burst[i]
        } else {
            &mut self.copies[i - BURST]
        }
    }
}

/// The facts about a group of packets that a program may use.
#[derive(Clone, Copy)]
pub(crate) struct PacketFacts {
    /// The longest packet's length.
    pub(crate) longest: u32,
    /// Actions find the headers of all packets at the same offsets.
    pub(crate) regular: bool,
    /// Copies may be freed between two packets.
    pub(crate) may_free_copies: bool,
}

/// The packets of a line after its steps.
pub(crate) struct LineResult {
    /// A bit for each packet that failed, by its number.
    pub(crate) failed: u64,
    /// The [`Meta`] of the others.
    pub(crate) meta: Meta,
}

/// All that a program may touch.
pub(crate) struct Exec<'a> {
    pub(crate) live: &'a mut Live,
    /// The packets' full key at their lookup, if it was made.
    pub(crate) key: Option<&'a FlowKey>,
    /// The packets' context at their lookup, if any.
    pub(crate) context: Option<&'a FlowKey>,
    pub(crate) ct: Ct<'a>,
    pub(crate) fragments: &'a Ipf<WaitingFragment>,
    /// Fragments that continue when the packet at hand has ended, the next one last.
    pub(crate) resumed: &'a mut Vec<InFlight>,
    /// Connection state of the packets of the last line or group.
    pub(crate) tracked: &'a mut Tracked,
    pub(crate) pool: &'a mut Pool,
    pub(crate) tx: &'a mut TxTable,
    pub(crate) upcalls: &'a mut UpcallTx,
    pub(crate) recirc: &'a mut Option<Recirculated>,
    pub(crate) drops: &'a Drops,
    /// State of the draws of samples; not zero.
    pub(crate) random: &'a mut u64,
    /// The burst's clock.
    pub(crate) now_ms: u64,
}

/// The next number of a sequence that looks random (xorshift64*, Vigna): good enough for samples.
fn draw(state: &mut u64) -> u32 {
    let mut x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    u32::try_from(x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32).expect("32 bits")
}

impl Exec<'_> {
    /// Runs `program`, which recirculates nothing, on packets `ids` of a run.
    #[inline]
    pub(crate) fn group(
        &mut self,
        program: &Program,
        ids: Range<LiveId>,
        packets: PacketFacts,
        meta: impl Fn() -> Meta,
    ) {
        let PacketFacts {
            longest,
            regular,
            may_free_copies,
        } = packets;
        match program.shape {
            Shape::Output(port) => self.output_all(port, ids, longest),
            Shape::Line if regular => _ = self.line(program, ids, longest, meta()),
            // A flood that a rule drops.
            _ if let [Op::Drop(kind)] = *program.ops => self.lost(kind, ids),
            _ => {
                let meta = meta();
                for id in ids {
                    self.run(program, id, meta);
                    if may_free_copies {
                        self.make_room();
                    }
                }
            }
        }
    }

    /// Counts packets as dropped, and reports them to the watch.
    pub(crate) fn lost(&mut self, kind: DropKind, ids: Range<LiveId>) {
        let n = ids.len() as u64;
        self.drops.add(kind, n);
        if n > 0 {
            let first = self.live.get(ids.start);
            self.tx.watch.lost(kind, n, first, self.context);
        }
    }

    /// Copies packets and returns the copies' ids, which are consecutive. `failed` has a bit for each packet
    /// that failed, and gets one for each packet that finds no room for its copy.
    pub(crate) fn copy_all(&mut self, ids: Range<LiveId>, failed: &mut u64) -> Range<LiveId> {
        let first = LiveId::try_from(self.live.copies.len() + BURST).unwrap_or(LiveId::MAX);
        let n = ids.end - ids.start;
        for (i, id) in ids.enumerate() {
            // A packet behind the first one without room finds no room either.
            if self.copy(id).is_none() && *failed >> i & 1 == 0 {
                *failed |= 1 << i;
                self.lost(DropKind::Copies, id..id + 1);
            }
        }
        first..first + n
    }

    /// Called between two packets or groups. If there are many copies, sends all queued packets and frees the
    /// copies, so that the next packet finds room for its own.
    pub(crate) fn make_room(&mut self) {
        if self.live.copies.len() >= MAX_COPIES / 2 {
            self.tx.flush(self.live, self.pool, self.drops);
            for p in self.live.copies.drain(..) {
                self.pool.put(p);
            }
        }
    }

    /// Runs a program of rewrites and outputs, action by action. All packets have their layers at the same
    /// offsets after each action, as they had before it. A recirculation at the end is left to the
    /// caller.
    pub(crate) fn line(
        &mut self,
        program: &Program,
        ids: Range<LiveId>,
        longest: u32,
        meta: Meta,
    ) -> LineResult {
        if program.tracks {
            self.tracked.begin();
        }
        self.steps(&program.ops, ids, longest, meta)
    }

    /// Runs steps of a line.
    pub(crate) fn steps(
        &mut self,
        ops: &[Op],
        ids: Range<LiveId>,
        mut longest: u32,
        mut meta: Meta,
    ) -> LineResult {
        // Later steps leave out packets that failed.
        let mut failed = 0_u64;
        let lost = |failed: u64, id: LiveId| failed >> (id - ids.start) & 1 != 0;
        let mut at = 0;
        while let Some(op) = ops.get(at) {
            let (quick, n) = Quick::of(&ops[at..], &meta);
            if n > 0 {
                failed = self.rewrite_all(&quick, &ids, failed);
                at += n;
                continue;
            }
            at += 1;
            match op {
                Op::Apply(Action::TunnelPush(push)) => {
                    let inner = tunnel::inner(&meta);
                    let before = failed;
                    for id in ids.clone().filter(|id| !lost(before, *id)) {
                        if let Err(kind) = tunnel::push_one(self.live.get_mut(id), inner, push, self.now_ms) {
                            failed |= 1 << (id - ids.start);
                            self.lost(kind, id..id + 1);
                        }
                    }
                    meta = tunnel::outside(&meta, push);
                    longest = longest.saturating_add(u32::try_from(push.header.len()).unwrap_or(0));
                }
                Op::Apply(action) => {
                    let before = meta;
                    for id in ids.clone() {
                        if lost(failed, id) {
                            continue;
                        }
                        let mut m = before;
                        match apply(self.live.get_mut(id), &mut m, action, self.now_ms) {
                            Ok(()) => meta = m,
                            Err(kind) => {
                                failed |= 1 << (id - ids.start);
                                self.lost(kind, id..id + 1);
                            }
                        }
                    }
                    longest = longest.saturating_add_signed(growth(action).max(0));
                }
                Op::Balance(table, _) => self.balance_all(table, ids.clone(), failed, longest, &meta),
                Op::Output(port) if failed == 0 => self.output_all(*port, ids.clone(), longest),
                Op::Output(port) => {
                    for id in ids.clone().filter(|id| !lost(failed, *id)) {
                        self.output_all(*port, id..id + 1, longest);
                    }
                }
                Op::Ct(action) => {
                    failed |= self.track_all(action, ids.clone(), failed, &meta);
                }
                Op::CtClear => (0..ids.len()).for_each(|i| self.tracked.clear(i)),
                Op::Recirc { .. } | Op::Pop { .. } => break,
                _ => debug_assert!(false, "not part of this shape"),
            }
        }
        LineResult { failed, meta }
    }

    /// Rewrites the packets that have not `failed`. Returns `failed` with the packets that fail now.
    fn rewrite_all(&mut self, quick: &Quick, ids: &Range<LiveId>, failed: u64) -> u64 {
        let mut all = failed;
        for (i, p) in self.live.all_mut(ids).iter_mut().enumerate() {
            if failed >> i & 1 == 0 && !quick.apply(p.head_mut()) {
                all |= 1 << i;
            }
        }
        let new = all & !failed;
        if new != 0 {
            for (id, _) in ids.clone().zip(0..).filter(|(_, i)| new >> i & 1 != 0) {
                self.lost(DropKind::Header, id..id + 1);
            }
        }
        all
    }

    /// Runs `program`, which looks no packet up again, on packet `id` of the burst.
    fn run(&mut self, program: &Program, id: LiveId, meta: Meta) {
        let before = self.resumed.len();
        let mut in_flight = InFlight::new(id, meta);
        loop {
            self.run_steps(program, &mut in_flight);
            if self.resumed.len() <= before {
                return;
            }
            let Some(next) = self.resumed.pop() else { return };
            in_flight = next;
        }
    }

    /// Continues `program` at its next step. `true`: a packet has to be looked up again ([`Exec::recirc`])
    /// before the program continues. `false`: the program has ended.
    pub(crate) fn run_steps(&mut self, program: &Program, in_flight: &mut InFlight) -> bool {
        while let Some(op) = program.ops.get(in_flight.at) {
            in_flight.at += 1;
            let InFlight {
                id,
                meta,
                ct,
                saved,
                at,
            } = &mut *in_flight;
            let mut failed = None;
            match op {
                Op::Output(port) => self.output(*port, *id),
                Op::OutputTrunc(port, n) => self.output_trunc(*port, *n, *id),
                Op::Balance(table, cut) => self.balance_one(table, *cut, *id, meta),
                Op::Userspace(upcall, cut) => self.userspace(upcall, *cut, *id, meta),
                Op::Copy => match self.copy(*id) {
                    Some(new) => *id = new,
                    None => failed = Some(DropKind::Copies),
                },
                // The compiler bounds the nesting by the same constant.
                Op::Save(end) => {
                    let packet = Saved {
                        id: *id,
                        meta: *meta,
                        ct: *ct,
                        end: *end,
                    };
                    _ = saved.try_push(packet);
                }
                Op::Restore => {
                    // If nothing is saved, a fragment that was resumed within a clone has reached the clone's
                    // end.
                    let Some(s) = saved.pop() else { return false };
                    (*id, *meta, *ct) = (s.id, s.meta, s.ct);
                }
                Op::Cut(n) => cut(self.live.get_mut(*id), *n),
                Op::Apply(action) => {
                    failed = apply(self.live.get_mut(*id), meta, action, self.now_ms).err();
                }
                Op::Meter(meter) => failed = self.meter(meter, *id, meta).err(),
                Op::Recirc { id: recirc, copy } => {
                    match self.recirculate_packet(NextHop::Recirc(*recirc), *copy, *id, meta, *ct) {
                        Ok(()) => return true,
                        Err(kind) => failed = Some(kind),
                    }
                }
                Op::Pop { copy, .. } => {
                    match self.recirculate_packet(NextHop::pop_at(*at - 1), *copy, *id, meta, None) {
                        Ok(()) => return true,
                        Err(kind) => failed = Some(kind),
                    }
                }
                Op::Wait(wait) => match self.recirculate_packet(NextHop::Later(*wait), false, *id, meta, *ct)
                {
                    Ok(()) => return true,
                    Err(kind) => failed = Some(kind),
                },
                Op::Ct(action) if self.is_fragment(meta) => {
                    let joins = matches!(program.ops.get(*at), Some(Op::Recirc { .. }));
                    match self.track_fragment(action, joins, in_flight) {
                        Gathered::Continues(known) => in_flight.ct = Some(known),
                        Gathered::Waits => match in_flight.saved.last() {
                            Some(saved) => in_flight.at = saved.end,
                            None => return false,
                        },
                        Gathered::Resumed => return false,
                        Gathered::Dropped(kind) => failed = Some(kind),
                    }
                }
                Op::Ct(action) => match self.track_one(action, *id, meta, *ct) {
                    Ok(known) => *ct = Some(known),
                    Err(kind) => failed = Some(kind),
                },
                Op::CtClear => *ct = Some(CtState::default()),
                Op::Shorter { len, at: other } => {
                    if wire_len(self.live.get(*id), meta) <= usize::from(*len) {
                        *at = *other;
                    }
                }
                Op::Unless {
                    probability,
                    at: other,
                } => {
                    if draw(self.random) > *probability {
                        *at = *other;
                    }
                }
                Op::Jump(to) => *at = *to,
                Op::Drop(kind) => failed = Some(*kind),
            }
            if let Some(kind) = failed {
                self.lost(kind, in_flight.id..in_flight.id + 1);
                // Only the copy at hand ends.
                let Some(saved) = in_flight.saved.last() else {
                    return false;
                };
                in_flight.at = saved.end;
            }
        }
        false
    }

    fn meter(&mut self, meter: &Meter, id: LiveId, meta: &Meta) -> Result<(), DropKind> {
        match meter.police(self.live.get(id), self.now_ms) {
            Verdict::Pass => Ok(()),
            Verdict::Drop => Err(DropKind::Meter),
            Verdict::Remark(steps) => {
                set::remark(self.live.get_mut(id), meta, steps);
                Ok(())
            }
        }
    }

    fn recirculate_packet(
        &mut self,
        hop: NextHop,
        copy: bool,
        id: LiveId,
        meta: &Meta,
        ct: Option<CtState>,
    ) -> Result<(), DropKind> {
        let id = if copy {
            self.copy(id).ok_or(DropKind::Copies)?
        } else {
            id
        };
        *self.recirc = Some(Recirculated {
            id,
            hop,
            meta: *meta,
            ct,
        });
        Ok(())
    }

    fn output(&mut self, port: u32, id: LiveId) {
        let longest = u32::try_from(self.live.get(id).len()).unwrap_or(u32::MAX);
        self.output_all(port, id..id + 1, longest);
    }

    /// Queues packets on a port.
    #[inline]
    fn output_all(&mut self, port: u32, mut ids: Range<LiveId>, longest: u32) {
        while !ids.is_empty() {
            match self.tx.push(port, &mut ids, longest, self.live, self.drops) {
                Ok(false) => {}
                Ok(true) => self.tx.flush_port(port, self.live, self.pool, self.drops),
                Err(kind) => return self.lost(kind, ids),
            }
        }
    }

    fn output_trunc(&mut self, port: u32, n: u32, id: LiveId) {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        if n >= self.live.get(id).len() {
            return self.output(port, id);
        }
        let Some(copy) = self.copy(id) else {
            return self.lost(DropKind::Copies, id..id + 1);
        };
        cut(self.live.get_mut(copy), u32::try_from(n).unwrap_or(u32::MAX));
        self.output(port, copy);
    }

    pub(crate) fn copy(&mut self, id: LiveId) -> Option<LiveId> {
        let n = self.live.copies.len();
        if n >= MAX_COPIES {
            return None;
        }
        if self.live.get(id).is_long() {
            // All copies of a flooded GSO packet share one payload.
            self.pool.share(self.live.get_mut(id));
        }
        let of = self.live.get(id);
        let mut p = self
            .pool
            .get_for(if of.shares() { of.head_len() } else { of.len() });
        of.share_into(&mut p);
        self.live.copies.push(p);
        LiveId::try_from(n + BURST).ok()
    }

    /// A packet of these bytes, among the copies. `None`: there is no room.
    fn new_packet(&mut self, bytes: &[u8], in_port: u32) -> Option<LiveId> {
        let n = self.live.copies.len();
        if n >= MAX_COPIES {
            return None;
        }
        let mut p = self.pool.get_for(bytes.len());
        p.set_bytes(bytes);
        p.in_port = in_port;
        self.live.copies.push(p);
        LiveId::try_from(n + BURST).ok()
    }

    fn userspace(&mut self, upcall: &Arc<Upcall>, cut: u32, id: LiveId, meta: &Meta) {
        if !self.upcalls.has_room(upcall.kind) || !upcall.cookie.0.admit(self.live.get(id).head()) {
            // Only the upcall is lost: the packet itself continues.
            let lost = match upcall.kind {
                UpcallKind::Sample => DropKind::Sample,
                UpcallKind::Controller | UpcallKind::SlowPath(_) => DropKind::Upcall,
            };
            return self.lost(lost, id..id + 1);
        }
        let p = self.live.get(id);
        let mut bytes = match upcall.kind {
            UpcallKind::Sample => sample_of(p, upcall.max_len),
            UpcallKind::Controller | UpcallKind::SlowPath(_) => p.to_vec(),
        };
        let total_len = p.len();
        bytes.truncate(usize::try_from(cut).unwrap_or(usize::MAX));
        if upcall.max_len != u16::MAX {
            bytes.truncate(upcall.max_len.into());
        }
        let mut key = self.key.copied().unwrap_or_default();
        (key.skb_priority, key.pkt_mark) = (meta.priority, meta.mark);
        let wants_all = matches!(upcall.kind, UpcallKind::SlowPath(_)) && upcall.max_len == u16::MAX;
        let packet = wants_all.then(|| {
            let mut copy = Packet::new();
            p.copy_into(&mut copy);
            copy
        });
        let in_port = PortNo(p.in_port);
        let WireSize {
            packets: segments,
            bytes: wire_bytes,
        } = on_wire(p, meta);
        self.upcalls.push(UpcallPacket {
            upcall: Arc::clone(upcall),
            bytes,
            packet_type: meta.packet_type,
            total_len,
            segments,
            wire_bytes,
            in_port,
            key,
            packet,
        });
    }
}

/// Length of a sample that needs only headers, bytes. A whole GSO packet would be expensive to copy.
const SAMPLED_LEN: usize = 256;

/// The first bytes of a packet: `max_len` of them, or its headers if that is 0xffff.
fn sample_of(p: &Packet, max_len: u16) -> Vec<u8> {
    if max_len == u16::MAX {
        let head = p.head();
        return head.get(..SAMPLED_LEN).unwrap_or(head).to_vec();
    }
    let mut bytes = vec![0; p.len().min(max_len.into())];
    let copied = p.copy_from(0, &mut bytes);
    bytes.truncate(copied);
    bytes
}

/// The packets that a packet is cut into for the wire.
struct WireSize {
    packets: u32,
    /// Bytes with all headers.
    bytes: u64,
}

fn on_wire(p: &Packet, meta: &Meta) -> WireSize {
    let len = p.len() as u64;
    let Some(gso) = p.offload.gso.filter(|g| g.size != 0) else {
        return WireSize {
            packets: 1,
            bytes: len,
        };
    };
    let size = u64::from(gso.size);
    let header = (wire_len(p, meta) as u64).saturating_sub(size);
    let n = len.saturating_sub(header).div_ceil(size).max(1);
    WireSize {
        packets: u32::try_from(n).unwrap_or(u32::MAX),
        bytes: len + (n - 1) * header,
    }
}

/// Length of the packet, or of the segments that it will be cut into.
fn wire_len(p: &Packet, meta: &Meta) -> usize {
    let Some(gso) = p.offload.gso else { return p.len() };
    if gso.kind == GsoKind::Fragments {
        return segment::longest_piece(p).unwrap_or(p.len());
    }
    // The L4 header of the GSO packet itself, inside of all tunnels.
    let l4 = usize::from(match p.offload.csum {
        Csum::Partial { start, .. } => start,
        Csum::Unknown | Csum::Valid => meta.l4,
    });
    // Length of the L4 header. TCP has it in its data offset.
    let header = if gso.kind == GsoKind::Udp {
        8
    } else {
        usize::from(p.head().get(l4 + 12).map_or(5, |b| b >> 4)) * 4
    };
    p.len().min(l4 + header + usize::from(gso.size))
}

/// Cuts a packet to `n` bytes.
fn cut(p: &mut Packet, n: u32) {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    if n < p.len() {
        // A checksum that is filled in later would miss the bytes that are cut off.
        p.make_private();
        csum::fill_in(p);
        p.offload.gso = None;
        p.truncate(n);
    }
}

/// Applies an action that changes the packet or its metadata; `now_ms` is any clock.
fn apply(p: &mut Packet, meta: &mut Meta, action: &Action, now_ms: u64) -> Result<(), DropKind> {
    let tagged = match action {
        Action::PushVlan { tpid, tci } => tags::push_vlan(p, meta, *tpid, *tci),
        Action::PopVlan => tags::pop_vlan(p, meta),
        Action::PushMpls { lse, ethertype } => tags::push_mpls(p, meta, *lse, *ethertype),
        Action::PopMpls { ethertype } => tags::pop_mpls(p, meta, *ethertype),
        Action::SetMpls(m) => tags::set_mpls(p, meta, m),
        Action::AddMpls { lse, ethertype } => encap::add_mpls(p, meta, *lse, *ethertype),
        Action::PushEth { src, dst } => encap::push_eth(p, meta, *src, *dst),
        Action::PopEth => encap::pop_eth(p, meta),
        Action::PushNsh(header) => encap::push_nsh(p, meta, header),
        Action::PopNsh => return encap::pop_nsh(p, meta).ok_or(DropKind::NshDecap),
        Action::SetNsh(m) => encap::set_nsh(p, meta, m),
        Action::TooBig { frame_len } => {
            return too_big::replace(p, meta, *frame_len).ok_or(DropKind::TooLongForPath);
        }
        Action::TunnelPush(push) => return tunnel::push(p, meta, push, now_ms),
        Action::SetPriority(m) => {
            meta.priority = (meta.priority & !m.mask) | (m.value & m.mask);
            // The queue goes with the packet to its output port.
            p.set_queue(meta.priority);
            Ok(())
        }
        Action::Hash { alg, basis } => {
            meta.hash = Some((*alg, *basis));
            Ok(())
        }
        Action::SetMark(m) => {
            meta.mark = (meta.mark & !m.mask) | (m.value & m.mask);
            p.set_mark(meta.mark);
            Ok(())
        }
        _ => return set::set(p, meta, action).ok_or(DropKind::Header),
    };
    tagged.map_err(|e| match e {
        TagError::Headroom => DropKind::Headroom,
        TagError::Header => DropKind::Header,
    })
}
