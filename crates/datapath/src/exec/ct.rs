//! Connection state of packets within programs.
//!
//! A packet that is tracked and looked up again carries its connection's state, mark, label, zone and
//! original addresses ([`CtState`]). Within a program each packet has its own ([`Tracked`]), even if the
//! other steps run for all packets of a run at once. Packets that are tracked together are first all read.
//! Then all their connections are fetched, then all packets are tracked. So cache misses overlap.

use super::{Exec, Live, LiveId, Meta, helper};
use crate::counters::CtCounts;
use heddle_conntrack::{
    At, Checked, Conntrack, CtAction, CtPacket, CtState, Endpoint, FastPacket, Guess, Hash, Invalid,
    Packet as View, ReadGuard, SHORT, Shape, Subject, Tuple, Verdict,
};
use heddle_datapath_api::DropKind;
use heddle_flow::FlowKey;
use heddle_flow::extract::NO_OFFSET;
use heddle_packet::{BURST, Csum, Packet};
use heddle_port::sum::add_bytes;
use heddle_wire::checksum::Sum;
use heddle_wire::ip::{Ipv4, Ipv6, proto, pseudo};
use heddle_wire::split;

/// Writes what is known of a connection into a key.
#[inline]
#[allow(clippy::cast_possible_truncation)] // addresses of IPv4
pub(crate) fn write_known(known: &CtState, key: &mut FlowKey) {
    let orig = known.orig.unwrap_or_default();
    key.ct_state = known.state.into();
    key.ct_mark = known.mark;
    key.ct_label = known.label.to_be_bytes();
    key.ct_zone = known.zone;
    key.ct_nw_proto = orig.proto;
    (key.ct_tp_src, key.ct_tp_dst) = orig.tp();
    let (src, dst) = (orig.src.addr, orig.dst.addr);
    if orig.ipv6 {
        (key.ct_ipv6_src, key.ct_ipv6_dst) = (src.to_be_bytes(), dst.to_be_bytes());
        (key.ct_nw_src, key.ct_nw_dst) = (0, 0);
    } else {
        (key.ct_nw_src, key.ct_nw_dst) = (src as u32, dst as u32);
        (key.ct_ipv6_src, key.ct_ipv6_dst) = ([0; 16], [0; 16]);
    }
}

/// The connection state in a packet's key at its lookup. A key has no ICMP identifiers: they are zero.
#[inline]
pub(super) fn known_of(key: Option<&FlowKey>) -> CtState {
    let Some(key) = key.filter(|k| k.ct_state != 0) else {
        return CtState::default();
    };
    let addrs = [key.ct_ipv6_src, key.ct_ipv6_dst].map(u128::from_be_bytes);
    let ipv6 = addrs != [0; 2];
    let [src, dst] = if ipv6 {
        addrs
    } else {
        [key.ct_nw_src.into(), key.ct_nw_dst.into()]
    };
    let end = |addr, port: u16| Endpoint {
        addr,
        l4: port.into(),
    };
    let tuple = Tuple {
        src: end(src, key.ct_tp_src),
        dst: end(dst, key.ct_tp_dst),
        proto: key.ct_nw_proto,
        ipv6,
    };
    let [kind, code] = [key.ct_tp_src, key.ct_tp_dst].map(|p| p.to_be_bytes()[1]);
    let icmp = if tuple.is_icmp() {
        tuple.with_icmp(0, kind, code)
    } else {
        None
    };
    CtState {
        state: key.ct_state.to_be_bytes()[3],
        zone: key.ct_zone,
        mark: key.ct_mark,
        label: u128::from_be_bytes(key.ct_label),
        orig: (key.ct_nw_proto != 0).then_some(icmp.unwrap_or(tuple)),
        found: None,
    }
}

/// The form in which a packet was read for the tracker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum What {
    /// The input is [`Read::short`].
    #[default]
    FastPacket,
    /// The input is a [`Subject`] in an array of its own. Few packets need one, so the parts that all packets
    /// need are adjacent.
    Subject,
    /// The input is [`Read::short`]: UDP with the addresses and ports of the packet before.
    SameUdp,
    /// Not read: the packet is invalid for this reason.
    Invalid(Invalid),
}

/// A packet that was read for the tracker.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    what: What,
    short: FastPacket,
    hash: Hash,
    guess: Guess,
}

/// The input of the tracker.
#[derive(Clone, Copy)]
struct ReadPacket<'a> {
    read: &'a Read,
    /// The input, if it is a [`What::Subject`].
    subject: &'a Subject,
}

/// A packet that is tracked, to have its headers translated.
struct Tracking<'a, M> {
    live: &'a mut Live,
    id: LiveId,
    /// Makes the packet's [`Meta`].
    meta: M,
}

/// The result of translating a packet's headers.
#[derive(Clone, Copy)]
struct Done {
    translated: bool,
    /// The translation was due and failed: the packet is to be dropped.
    untranslated: bool,
}

/// The tracker, as programs use it.
#[derive(Clone, Copy)]
pub(crate) struct Ct<'a> {
    pub(crate) tracker: &'a Conntrack,
    pub(crate) counts: &'a CtCounts,
    /// The burst's clock.
    pub(crate) now_ms: u64,
}

impl Ct<'_> {
    /// Reads a packet, and prefetches the bucket of its connection.
    #[inline]
    fn read(
        &self,
        read: &mut Read,
        subject: &mut Subject,
        zone: u16,
        p: &Packet,
        meta: &Meta,
        context: Option<&FlowKey>,
    ) {
        // A packet with odd headers has its full key in `context`.
        let usual = context.is_none_or(|k| k.dl_type == 0);
        if usual && read_short(&mut read.short, p, meta.l3) {
            read.what = What::FastPacket;
            read.hash = self.tracker.hash_short(&read.short, zone);
        } else {
            let verify = || l4_is_right(p, meta);
            let view = view(p, meta, context, &verify).ok_or(Invalid::Malformed);
            match view.and_then(|v| v.read_into(subject)) {
                Ok(()) => {
                    read.what = What::Subject;
                    read.hash = self.tracker.hash(&subject.tuple, zone);
                }
                Err(why) => return read.what = What::Invalid(why),
            }
        }
        self.tracker.prefetch(read.hash);
    }
    /// Tracks a packet that was read, and updates `known`, the state of its connection.
    #[inline]
    fn track(
        &self,
        reading: &ReadGuard,
        action: &CtAction,
        ReadPacket { read, subject }: ReadPacket<'_>,
        known: &mut CtState,
        packet: Tracking<'_, impl Fn() -> Meta>,
    ) -> Done {
        let Tracking { live, id, meta } = packet;
        let mut verdict = Verdict::default();
        let short;
        let subject = match read.what {
            What::Invalid(why) => Err(why),
            What::Subject => Ok(subject),
            What::FastPacket | What::SameUdp => {
                short = read.short.subject();
                Ok(&short)
            }
        };
        match subject {
            Ok(subject) => {
                let packet = CtPacket {
                    now_ms: self.now_ms,
                    subject,
                    hash: read.hash,
                    action,
                    known: &mut *known,
                    verdict: &mut verdict,
                };
                self.tracker.track(reading, read.guess, packet);
            }
            Err(why) => verdict.events = self.tracker.invalid(action.zone, why, known),
        }
        if !verdict.events.is_empty() {
            self.counts.add(verdict.events);
        }
        let translated = verdict.rewrite.is_some();
        if let Some(rewrite) = &verdict.rewrite {
            let p = live.get_mut(id);
            if let Some(v) = view(p, &meta(), None, &|| true) {
                let at = At {
                    l3: v.l3,
                    l4: v.l4,
                    ipv6: v.ipv6,
                    proto: v.proto,
                    partial: matches!(p.offload.csum, Csum::Partial { start, .. } if usize::from(start) == v.l4),
                    l4_len: v.end.saturating_sub(v.l4),
                };
                rewrite.apply(p.head_mut(), at);
            }
        }
        if let Some(control) = verdict.control {
            helper::follow(self, control, live.get_mut(id), &meta(), known);
        }
        Done {
            translated,
            untranslated: verdict.untranslated,
        }
    }
}

impl Exec<'_> {
    /// Tracks packets of a run; a bit in `failed` leaves one out. Returns a bit for each packet that fails
    /// now: its translation was due and failed.
    pub(crate) fn track_all(
        &mut self,
        action: &CtAction,
        ids: std::ops::Range<LiveId>,
        failed: u64,
        meta: &Meta,
    ) -> u64 {
        let ids = || ids.clone().enumerate().filter(|(i, _)| failed >> i & 1 == 0);
        for (i, id) in ids() {
            self.read_ahead(action.zone, i, id, meta);
        }
        self.guess_all(ids().map(|(i, _)| i), |_| {});
        let reading = ReadGuard::begin();
        let mut now = 0;
        for (i, id) in ids() {
            if !self.track_read(&reading, action, i, id, || *meta) {
                now |= 1 << i;
                self.lost(DropKind::Untranslated, id..id + 1);
            }
        }
        now
    }
    /// Reads packet `i`, before [`Exec::guess_all`].
    #[inline]
    pub(crate) fn read_ahead(&mut self, zone: u16, i: usize, id: LiveId, meta: &Meta) {
        let tracked = &mut *self.tracked;
        if let (Some(read), Some(subject)) = (tracked.read.get_mut(i), tracked.subjects.get_mut(i)) {
            self.ct
                .read(read, subject, zone, self.live.get(id), meta, self.context);
        }
    }
    /// Reads packet `i`, which has no context and its IP header at `l3`. `false`: it is not of the most
    /// common kinds, and not read. `same`: packet `i - 1` was read so and is of the same run.
    #[inline]
    pub(crate) fn read_plain(&mut self, zone: u16, i: usize, id: LiveId, l3: u16, same: bool) -> bool {
        let p = self.live.get(id);
        let before = self.tracked.read.get(i.wrapping_sub(1)).map(|r| r.hash);
        let Some(read) = self.tracked.read.get_mut(i) else {
            return false;
        };
        if !read_short(&mut read.short, p, l3) {
            return false;
        }
        if let Some(hash) = before.filter(|_| same && read.short.needs_no_update()) {
            (read.what, read.hash, read.guess) = (What::SameUdp, hash, Guess::default());
            return true;
        }
        read.what = What::FastPacket;
        read.hash = self.ct.tracker.hash_short(&read.short, zone);
        self.ct.tracker.prefetch(read.hash);
        true
    }
    /// Fetches the connections of packets that were read, and calls `also` with the number of each.
    #[inline]
    pub(crate) fn guess_all(&mut self, packets: impl Iterator<Item = usize>, also: impl Fn(u32)) {
        for i in packets {
            let read = self.tracked.read.get_mut(i);
            let Some(read) = read.filter(|r| r.what != What::SameUdp) else {
                continue;
            };
            let tracker = self.ct.tracker;
            read.guess = match read.what {
                What::FastPacket => tracker.guess_short(read.hash, &read.short),
                _ => tracker.guess(read.hash),
            };
            if let Some(number) = read.guess.number() {
                also(number);
            }
        }
    }
    /// Tracks packet `i`, which was read. `false`: its translation was due and failed; the caller drops it.
    #[inline]
    #[must_use]
    pub(crate) fn track_read(
        &mut self,
        reading: &ReadGuard,
        action: &CtAction,
        i: usize,
        id: LiveId,
        meta: impl Fn() -> Meta,
    ) -> bool {
        let Tracked {
            known,
            read,
            subjects,
            changed,
            translated,
            ..
        } = &mut *self.tracked;
        let (Some(known), Some(read), Some(subject)) = (known.get_mut(i), read.get(i), subjects.get(i))
        else {
            return true;
        };
        if *changed >> i & 1 == 0 {
            match self.context {
                None => known.forget(),
                context => *known = known_of(context),
            }
            *changed |= 1 << i;
        }
        let done = self.ct.track(
            reading,
            action,
            ReadPacket { read, subject },
            known,
            Tracking {
                live: &mut *self.live,
                id,
                meta,
            },
        );
        *translated |= u64::from(done.translated) << i;
        !done.untranslated
    }
    /// Tracks one packet. `before`: the connection state that an earlier action of the same program left.
    ///
    /// # Errors
    /// The packet's translation was due and failed.
    pub(crate) fn track_one(
        &mut self,
        action: &CtAction,
        id: LiveId,
        meta: &Meta,
        before: Option<CtState>,
    ) -> Result<CtState, DropKind> {
        let known = before.unwrap_or_else(|| known_of(self.context));
        self.track_in(action, id, meta, self.context, known)
    }
    /// Tracks one packet that has this key at its lookup, if the key was made, and this connection state.
    ///
    /// # Errors
    /// The packet's translation was due and failed.
    pub(super) fn track_in(
        &mut self,
        action: &CtAction,
        id: LiveId,
        meta: &Meta,
        key: Option<&FlowKey>,
        mut known: CtState,
    ) -> Result<CtState, DropKind> {
        let (mut read, mut subject) = (Read::default(), Subject::default());
        let p = self.live.get(id);
        self.ct.read(&mut read, &mut subject, action.zone, p, meta, key);
        let input = ReadPacket {
            read: &read,
            subject: &subject,
        };
        let packet = Tracking {
            live: &mut *self.live,
            id,
            meta: || *meta,
        };
        let done = self
            .ct
            .track(&ReadGuard::begin(), action, input, &mut known, packet);
        if done.untranslated {
            return Err(DropKind::Untranslated);
        }
        Ok(known)
    }
}

/// Connection state of the packets of a program, by their number in the run or group.
#[derive(Debug)]
pub(crate) struct Tracked {
    known: [CtState; BURST],
    /// Packets that are about to be tracked.
    read: [Read; BURST],
    subjects: [Subject; BURST],
    /// A bit for each packet whose state is no longer that of its lookup, and a bit for each packet whose
    /// headers were translated.
    changed: u64,
    translated: u64,
}

impl Tracked {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            known: [CtState::default(); BURST],
            read: [Read::default(); BURST],
            subjects: [Subject::default(); BURST],
            changed: 0,
            translated: 0,
        })
    }
    /// Begins with other packets: the program has changed none of them.
    pub(crate) fn begin(&mut self) {
        (self.changed, self.translated) = (0, 0);
    }
    /// The headers of packet `i` that [`Exec::read_plain`] has read, and a guess of its connection.
    #[inline]
    pub(crate) fn plain(&self, i: usize) -> Option<(&FastPacket, Guess)> {
        let read = self.read.get(i)?;
        Some((&read.short, read.guess))
    }
    /// Whether the tracker's result for packet `i - 1` is also that for packet `i`.
    #[inline]
    pub(crate) fn is_same(&self, i: usize) -> bool {
        self.read.get(i).is_some_and(|read| read.what == What::SameUdp)
    }
    /// The number of the connection that packet `i` probably belongs to.
    #[inline]
    pub(crate) fn guessed(&self, i: usize) -> Option<u32> {
        self.read.get(i)?.guess.number()
    }
    /// The connection state of packet `i`, if it is no longer that of its lookup.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<&CtState> {
        (self.changed >> i & 1 != 0).then(|| self.known.get(i))?
    }
    /// Whether packet `i`'s headers were translated.
    #[inline]
    pub(crate) fn is_translated(&self, i: usize) -> bool {
        self.translated >> i & 1 != 0
    }
    /// Clears the connection state of packet `i`.
    #[inline]
    pub(crate) fn clear(&mut self, i: usize) {
        if let Some(known) = self.known.get_mut(i) {
            *known = CtState::default();
            self.changed |= 1 << i;
        }
    }
}

/// Reads a packet of the most common kinds, with its IP header at `l3`. `false`: it is of another kind, or
/// not valid.
#[inline]
fn read_short(s: &mut FastPacket, p: &Packet, l3: u16) -> bool {
    /// An IP header behind at most one tag.
    const WINDOW: usize = 18 + SHORT;
    let Some(w) = p.window::<WINDOW>() else {
        return false;
    };
    let h = match l3 {
        14 => &w[14..14 + SHORT],
        18 => &w[18..],
        _ => return false,
    };
    let Some(h) = h.first_chunk() else { return false };
    let l3 = usize::from(l3);
    p.head_len() >= l3 + FastPacket::read_bytes(h)
        && s.read(
            h,
            Shape {
                there: p.len() - l3,
                is_gso: p.offload.gso.is_some(),
                good: true,
            },
        )
        && (p.offload.csum != Csum::Unknown || short_is_right(p, l3, h))
}

/// Whether the L4 checksum of a packet that `read_short` has read is right.
#[inline(never)]
fn short_is_right(p: &Packet, l3: usize, h: &[u8; SHORT]) -> bool {
    let (ipv6, l4, proto) = match h[0] >> 4 {
        6 => (true, Ipv6::LEN, h[6]),
        _ => (false, Ipv4::LEN, h[9]),
    };
    // UDP over IPv4 may have none.
    let none = !ipv6 && proto == proto::UDP && h[l4 + 6..l4 + 8] == [0; 2];
    none || sum_is_right(p, l3, l3 + l4, proto)
}

/// A packet as the tracker sees it; `None`: it is not IP. `context`: the key's part outside of the compact
/// one, with its fragment bits. `verify` checks the L4 checksum.
#[inline]
pub(crate) fn view<'a>(
    p: &'a Packet,
    meta: &Meta,
    context: Option<&FlowKey>,
    verify: &'a dyn Fn() -> bool,
) -> Option<View<'a>> {
    if meta.l3 == NO_OFFSET || context.is_some_and(|k| !matches!(k.dl_type, 0 | 0x0800 | 0x86dd)) {
        return None;
    }
    let (head, l3) = (p.head(), usize::from(meta.l3));
    let IpExtent { ipv6, end } = extent(head, l3)?;
    // A GSO packet may be longer than its header's length field allows.
    let end = if p.offload.gso.is_some() {
        p.len()
    } else {
        end.min(p.len())
    };
    let l4 = if meta.l4 == NO_OFFSET { end } else { meta.l4.into() };
    Some(View {
        head,
        l3,
        l4,
        end,
        ipv6,
        proto: meta.proto,
        fragment: meta.later_fragment || context.is_some_and(|k| k.nw_frag != 0),
        l3_sum: Checked::Unknown,
        l4_sum: match p.offload.csum {
            Csum::Unknown => Checked::Unknown,
            Csum::Valid | Csum::Partial { .. } => Checked::Good,
        },
        verify,
    })
}

/// An IP packet by its own header.
struct IpExtent {
    ipv6: bool,
    /// The offset of its end in the frame.
    end: usize,
}

/// `None`: no IP header is at `l3`.
#[inline]
fn extent(head: &[u8], l3: usize) -> Option<IpExtent> {
    let ip = head.get(l3..)?;
    let ipv6 = match ip.first()? >> 4 {
        4 => false,
        6 => true,
        _ => return None,
    };
    let len = if ipv6 {
        Ipv6::LEN + usize::from(split::<Ipv6>(ip)?.0.payload_len.get())
    } else {
        usize::from(split::<Ipv4>(ip)?.0.total_len.get())
    };
    Some(IpExtent { ipv6, end: l3 + len })
}

/// Whether the checksum of TCP, UDP or ICMP is right.
#[cold]
pub(crate) fn l4_is_right(p: &Packet, meta: &Meta) -> bool {
    sum_is_right(p, meta.l3.into(), meta.l4.into(), meta.proto)
}

fn sum_is_right(p: &Packet, l3: usize, l4: usize, proto: u8) -> bool {
    let right = || {
        let head = p.head();
        let IpExtent { ipv6, end } = extent(head, l3)?;
        let len = end.min(p.len()).checked_sub(l4)?;
        let sum = match (ipv6, proto) {
            (false, proto::ICMP) => Sum::ZERO,
            (ipv6, proto) => pseudo(head.get(l3..)?, ipv6, proto, u32::try_from(len).ok()?)?,
        };
        Some(add_bytes(sum, p, l4, len)?.checksum() == 0)
    };
    right().unwrap_or(false)
}
