//! From packets' bytes to runs of equal keys, and to the offsets that actions need.
//!
//! Ordinary packets get their compact key straight from their bytes; a full key is made for the others, and
//! later for those that somebody wants to know all about. Neighbours with equal keys are one [`Run`] from
//! here on: looked up, counted and acted on once. Where a run has two packets, the next one is first compared
//! with them as it is ([`Again`]), which is cheaper than to make its key. What actions need to know of an
//! ordinary packet follows from its key, so it is the same for a whole run.

use crate::exec::Meta;
use crate::exec::program::Merges;
use heddle_flow::extract::{Hint, NO_OFFSET, Oddity, extract};
use heddle_flow::key::frag;
use heddle_flow::{FlowKey, packet_type};
use heddle_flow_cache::{Again, Burst, CompactKey, Frame, Kind, MAX_LISTED, NO_BODY, NOWHERE, Run, VIEW};
use heddle_packet::{HEAD_SPACE, Packet};
use heddle_wire::ip::{Ipv6, Ipv6Ext, proto};
use heddle_wire::split;
use std::ops::Range;

/// Shortest frame that is looked at: an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// No place.
const NO_KEY: u8 = u8::MAX;

/// Full keys of a burst with what goes with them.
type Keys = Vec<(FlowKey, Meta)>;

/// The keys and runs of one burst, or of one part of it that was recirculated.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) runs: Vec<Run>,
    /// Of each run that is no runt, in its place.
    pub(crate) compact: Vec<CompactKey>,
    /// Of the runs that refer to them; places are used again.
    full: Keys,
    n_full: usize,
    /// What packets with ordinary headers carry: keys whose headers, input port and recirculation id are
    /// zero.
    carried: Vec<FlowKey>,
    n_carried: usize,
    /// The recirculation id that packets are looked up under.
    pub(crate) recirc_id: u32,
    /// The last packet, if the last run has several.
    again: Option<Again>,
}

/// How packets are to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// What they begin with.
    pub(crate) packet_type: u32,
    pub(crate) vlan_limit: u8,
}

impl Parsed {
    /// For bursts of up to `burst` packets.
    pub(crate) fn new(burst: usize) -> Self {
        Self {
            runs: Vec::with_capacity(burst),
            compact: vec![CompactKey::default(); burst],
            full: Vec::new(),
            n_full: 0,
            carried: Vec::new(),
            n_carried: 0,
            recirc_id: 0,
            again: None,
        }
    }
    /// Of packets that are looked up under this recirculation id; there are none yet.
    pub(crate) fn begin(&mut self, recirc_id: u32) {
        self.runs.clear();
        (self.n_full, self.n_carried) = (0, 0);
        self.recirc_id = recirc_id;
        self.again = None;
    }
    /// Reads packet `i`, which is the next one, and fresh from a port.
    #[inline(always)]
    pub(crate) fn push(&mut self, i: u16, p: &mut Packet, how: How) {
        self.push_from(i, p, how, fresh_origin(p));
    }
    /// Reads packet `i`, which is the next one, an Ethernet frame of this origin that carries nothing.
    #[inline(always)]
    pub(crate) fn push_from(&mut self, i: u16, p: &mut Packet, how: How, origin: u32) {
        let frame = how.frame(p, origin);
        let total = frame.total;
        let Some(bytes) = p.window::<VIEW>() else {
            return self.odd(i, p, how, origin);
        };
        if let Some(again) = &self.again {
            if again.is(bytes, frame)
                && let Some(run) = self.runs.last_mut()
                && run.kind == Kind::Ordinary
            {
                return run.extend(i, total);
            }
            self.again = None;
        }
        match CompactKey::read(bytes, frame) {
            Some(key) => self.ordinary(i, key, bytes, frame),
            None => self.odd(i, p, how, origin),
        }
    }
    #[inline(always)]
    fn ordinary(&mut self, i: u16, key: CompactKey, bytes: &[u8; VIEW], frame: Frame) {
        let n = self.runs.len();
        if let Some(run) = self.runs.last_mut()
            && run.kind == Kind::Ordinary
            && self.compact[n - 1] == key
        {
            run.extend(i, frame.total);
            // Where there are two, there may be more.
            self.again = Again::of(bytes, frame);
        } else {
            self.compact[n] = key;
            self.start(i, Kind::Ordinary, frame.total);
        }
    }
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // packets are shorter than 4 GiB
    fn start(&mut self, i: u16, kind: Kind, total: usize) {
        self.runs.push(Run {
            first: i,
            end: i + 1,
            kind,
            full: NO_KEY,
            body: NO_BODY,
            bytes: total as u64,
            longest: total as u32,
        });
    }
    /// As [`Self::push`], a packet of any type, which may carry something.
    pub(crate) fn push_odd(&mut self, i: u16, p: &mut Packet, how: How, carried: Option<&FlowKey>) {
        let origin = fresh_origin(p);
        if how.packet_type == packet_type::ETHERNET && p.len() < MIN_FRAME {
            return self.odd(i, p, how, origin);
        }
        self.push_full(i, p, how, origin, |key| {
            if let Some(carried) = carried {
                key.copy_carried(carried);
            }
        });
    }
    #[cold]
    fn odd(&mut self, i: u16, p: &mut Packet, how: How, origin: u32) {
        if p.len() < MIN_FRAME {
            self.again = None;
            return self.start(i, Kind::Runt, p.len());
        }
        self.push_full(i, p, how, origin, |_| {});
    }
    /// As [`Self::push_from`], a packet of any type that carries what `carry` writes into a key that is
    /// empty, with the headers beside it, or has them.
    #[inline]
    pub(crate) fn push_carrying(
        &mut self,
        i: u16,
        p: &mut Packet,
        how: How,
        origin: u32,
        carry: impl FnOnce(&mut FlowKey, Option<&CompactKey>),
    ) {
        let frame = how.frame(p, origin);
        let total = frame.total;
        let key = match how.packet_type {
            packet_type::ETHERNET => p.window::<VIEW>().and_then(|b| CompactKey::read(b, frame)),
            _ => None,
        };
        match key {
            Some(key) => {
                let bytes = (total as u64, total);
                self.add_carrying(i..i + 1, bytes, (key, NO_BODY), |c| carry(c, Some(&key)));
            }
            None if p.len() < MIN_FRAME && how.packet_type == packet_type::ETHERNET => {
                self.again = None;
                self.start(i, Kind::Runt, total);
            }
            None => self.push_full(i, p, how, origin, |key| carry(key, None)),
        }
    }
    /// As [`Self::push_carrying`], a frame that carries the tunnel that stands in place `at` already
    /// ([`Self::last_carried`]).
    #[inline]
    pub(crate) fn push_carried(&mut self, i: u16, p: &mut Packet, how: How, origin: u32, at: u8) {
        let frame = how.frame(p, origin);
        let kind = Kind::Carrying(at);
        let Some(view) = p.window::<VIEW>() else {
            return self.push_odd_carried(i, p, how, origin, at);
        };
        if let Some(again) = &self.again
            && again.is(view, frame)
            && let Some(run) = self.runs.last_mut()
            && run.kind == kind
        {
            return run.extend(i, frame.total);
        }
        let Some(key) = CompactKey::read(view, frame) else {
            return self.push_odd_carried(i, p, how, origin, at);
        };
        let (packets, bytes) = (i..i + 1, (frame.total as u64, frame.total));
        self.again = None;
        let alike = |p: &Self| p.runs.last().is_some_and(|run| run.body == NO_BODY);
        if self.extend_last(packets.end, bytes, &key, kind, alike) {
            self.again = Again::of(view, frame);
        } else {
            self.add_run(packets, bytes, (key, NO_BODY), kind);
        }
    }
    #[cold]
    fn push_odd_carried(&mut self, i: u16, p: &mut Packet, how: How, origin: u32, at: u8) {
        let before = self.carried.get(usize::from(at)).copied().unwrap_or_default();
        self.push_carrying(i, p, how, origin, |key, _| key.copy_tunnel(&before));
    }
    /// The place of what the last run's packets carry, if their headers are ordinary.
    #[inline]
    pub(crate) fn last_carried(&self) -> Option<u8> {
        match self.runs.last()?.kind {
            Kind::Carrying(at) => Some(at),
            _ => None,
        }
    }
    /// A packet of any type, by its full key; `carry` adds what it carries.
    fn push_full(&mut self, i: u16, p: &mut Packet, how: How, origin: u32, carry: impl FnOnce(&mut FlowKey)) {
        let recirc_id = self.recirc_id;
        let at = self.take_full();
        let (key, meta) = &mut self.full[at];
        parse(p, how, (key, meta));
        carry(key);
        key.recirc_id = recirc_id;
        (meta.priority, meta.mark) = (key.skb_priority, key.pkt_mark);
        let compact = CompactKey::of(key, origin);
        self.add_full(i..i + 1, at, compact, (p.len() as u64, p.len()));
    }
    /// Adds packets that are as they were looked up last, with this compact key, and carry nothing.
    pub(crate) fn push_run(&mut self, packets: Range<u16>, bytes: (u64, usize), key: CompactKey) {
        self.again = None;
        self.add_run(packets, bytes, (key, NO_BODY), Kind::Ordinary);
    }
    /// A run of its own.
    #[inline]
    fn add_run(
        &mut self,
        packets: Range<u16>,
        (bytes, longest): (u64, usize),
        (key, body): (CompactKey, u32),
        kind: Kind,
    ) {
        let n = self.runs.len();
        self.compact[n] = key;
        self.start(packets.start, kind, longest);
        if let Some(run) = self.runs.last_mut() {
            (run.end, run.bytes, run.body) = (packets.end, bytes, body);
        }
    }
    /// Adds packets to the last run, if that is of this kind and has this key, and `same` says so.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // packets are shorter than 4 GiB
    fn extend_last(
        &mut self,
        end: u16,
        (bytes, longest): (u64, usize),
        key: &CompactKey,
        kind: Kind,
        same: impl FnOnce(&Self) -> bool,
    ) -> bool {
        let n = self.runs.len();
        if self.runs.last().is_none_or(|run| run.kind != kind) || self.compact[n - 1] != *key || !same(self) {
            return false;
        }
        if let Some(run) = self.runs.last_mut() {
            run.end = end;
            run.bytes += bytes;
            run.longest = run.longest.max(longest as u32);
        }
        true
    }
    /// Adds packets that are as they were looked up last, with this compact key, with headers that stand
    /// outside of it, and these offsets; `carry` writes their full key over `before`.
    pub(crate) fn push_odd_run(
        &mut self,
        packets: Range<u16>,
        bytes: (u64, usize),
        key: CompactKey,
        (before, meta): (&FlowKey, Meta),
        carry: impl FnOnce(&mut FlowKey),
    ) {
        let recirc_id = self.recirc_id;
        let at = self.take_full();
        let (full, m) = &mut self.full[at];
        (*full, *m) = (*before, meta);
        full.clear_carried();
        full.packet_type = before.packet_type;
        full.in_port = before.in_port;
        carry(full);
        full.recirc_id = recirc_id;
        m.hash = None;
        (m.priority, m.mark) = (full.skb_priority, full.pkt_mark);
        self.add_full(packets, at, key, bytes);
    }
    /// Adds packets with ordinary headers, which this compact key says, that carry what `carry` writes: to
    /// the last run, if it is the same there. `body`: see [`Run::body`].
    #[inline]
    pub(crate) fn add_carrying(
        &mut self,
        packets: Range<u16>,
        bytes: (u64, usize),
        (key, body): (CompactKey, u32),
        carry: impl FnOnce(&mut FlowKey),
    ) {
        self.again = None;
        let at = self.n_carried;
        if at == self.carried.len() {
            self.carried.push(FlowKey::default());
        }
        if let Some(new) = self.carried.get_mut(at) {
            new.clear_carried();
            carry(new);
            (new.in_port, new.recirc_id, new.packet_type) = (0, 0, 0);
        }
        let place = u8::try_from(at).expect("a burst has fewer packets");
        let same = |p: &Self| {
            p.runs.last().is_some_and(|run| run.body == body)
                && matches!(p.carried.get(..=at), Some([.., a, b]) if a.carries_same(b))
        };
        let last = Kind::Carrying(place.wrapping_sub(1));
        if !self.extend_last(packets.end, bytes, &key, last, same) {
            self.n_carried += 1;
            self.add_run(packets, bytes, (key, body), Kind::Carrying(place));
        }
    }
    /// Adds a packet as it was looked up last, with this compact key, for which this program was found: to
    /// the last run, if the program does the same to both.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // packets are shorter than 4 GiB
    pub(crate) fn push_linked(
        &mut self,
        i: u16,
        len: usize,
        key: &CompactKey,
        (body, merges): (u32, Merges),
    ) {
        let n = self.runs.len();
        let kind = match merges {
            Merges::No => Kind::Linked,
            Merges::All | Merges::Alike => Kind::Mixed,
        };
        if let Some(run) = self.runs.last_mut()
            && (run.kind, run.body) == (kind, body)
            && match merges {
                Merges::All => true,
                Merges::Alike => self.compact[n - 1].laid_out_as(key),
                Merges::No => self.compact[n - 1] == *key,
            }
        {
            run.end = i + 1;
            run.bytes += len as u64;
            run.longest = run.longest.max(len as u32);
            return;
        }
        self.again = None;
        self.add_run(i..i + 1, (len as u64, len), (*key, body), kind);
    }
    /// Adds the packets of whole ordinary runs of another stage, as they are, from place `first` on, with
    /// this origin.
    #[inline]
    pub(crate) fn push_same(&mut self, from: &Self, runs: Range<usize>, first: u16, origin: u32) {
        self.again = None;
        let n = self.runs.len();
        let (keys, all) = (&from.compact[runs.clone()], &from.runs[runs]);
        for (to, key) in self.compact[n..].iter_mut().zip(keys) {
            *to = key.with_context(origin);
        }
        let before = all.first().map_or(0, |run| run.first);
        self.runs.extend(all.iter().map(|run| Run {
            first: run.first - before + first,
            end: run.end - before + first,
            full: NO_KEY,
            body: NO_BODY,
            ..*run
        }));
    }
    /// A place for a full key, the last one, with what was there.
    fn take_full(&mut self) -> usize {
        // The last run has a full key from now on.
        self.again = None;
        let at = self.n_full;
        if at == self.full.len() {
            self.full.push(Default::default());
        }
        self.n_full += 1;
        at
    }
    /// Packets with the full key in the last place: the last run's, or a new one's.
    fn add_full(&mut self, packets: Range<u16>, at: usize, key: CompactKey, bytes: (u64, usize)) {
        let place = u8::try_from(at).expect("a burst has fewer packets");
        let same = |p: &Self| matches!(p.full.get(..=at), Some([.., a, b]) if a == b);
        if self.extend_last(packets.end, bytes, &key, Kind::Full(place.wrapping_sub(1)), same) {
            self.n_full -= 1;
        } else {
            self.add_run(packets, bytes, (key, NO_BODY), Kind::Full(place));
        }
    }
    /// The compact key of run `r`, if it is no runt.
    #[inline]
    pub(crate) fn key(&self, r: usize) -> Option<&CompactKey> {
        (self.runs[r].kind != Kind::Runt).then(|| &self.compact[r])
    }
    /// Whether there are full keys, as those of fragments.
    #[inline]
    pub(crate) fn has_full(&self) -> bool {
        self.n_full > 0
    }
    /// As [`Self::outside`], of run `r`.
    #[inline]
    pub(crate) fn outside_of(&self, r: usize) -> Option<&FlowKey> {
        self.runs.get(r).and_then(|run| self.outside(run))
    }
    /// The full key of run `r`, made of its compact one unless there is one already; `p` is one of its
    /// packets, as it was looked up.
    pub(crate) fn full(&mut self, r: usize, p: &mut Packet) -> &FlowKey {
        let at = match self.runs[r] {
            Run {
                kind: Kind::Full(at), ..
            } => usize::from(at),
            Run { full: NO_KEY, .. } => {
                let again = self.again.take();
                let at = self.take_full();
                self.again = again;
                let (key, meta) = &mut self.full[at];
                if self.runs[r].kind == Kind::Runt {
                    parse(p, How::ETHERNET, (key, meta));
                } else {
                    *key = match self.runs[r].kind {
                        Kind::Carrying(at) => self.carried[usize::from(at)],
                        _ => FlowKey::default(),
                    };
                    self.compact[r].write_to(key);
                    (key.in_port, key.recirc_id) = (p.in_port, self.recirc_id);
                }
                self.runs[r].full = u8::try_from(at).expect("a burst has fewer packets");
                at
            }
            Run { full, .. } => usize::from(full),
        };
        &self.full[at].0
    }
    /// The full key of run `r`, if it was made.
    pub(crate) fn known(&self, r: usize) -> Option<&FlowKey> {
        let run = self.runs.get(r)?;
        let at = match run.kind {
            Kind::Full(at) => at,
            _ => run.full,
        };
        let keys = self.full.get(..self.n_full)?;
        keys.get(usize::from(at)).map(|(key, _)| key)
    }
    /// The TCP flags of run `r`.
    #[inline]
    pub(crate) fn tcp_flags(&self, r: usize) -> u16 {
        self.key(r).map_or(0, CompactKey::tcp_flags)
    }
    /// Whether actions lay all packets of run `r` out alike.
    #[inline]
    pub(crate) fn is_regular(&self, r: usize) -> bool {
        self.key(r).is_some_and(|key| !key.family().is_odd())
    }
    /// Whether what actions need to know of two runs' packets is the same.
    #[inline]
    pub(crate) fn are_alike(&self, a: usize, b: usize) -> bool {
        let plain = |r: usize| matches!(self.runs[r].kind, Kind::Ordinary | Kind::Linked | Kind::Mixed);
        plain(a) && plain(b) && self.compact[a].laid_out_as(&self.compact[b])
    }
    /// Whether what actions need to know of all packets, none of which is a runt, is the same.
    #[inline]
    pub(crate) fn all_are_alike(&self) -> bool {
        match self.compact.get(..self.runs.len()) {
            Some([first, others @ ..]) if !self.has_outside() => others
                .iter()
                .fold(true, |same, key| same & first.laid_out_as(key)),
            _ => false,
        }
    }
    /// What actions need to know of the packets of run `r`.
    #[inline]
    pub(crate) fn meta(&self, r: usize) -> Meta {
        match self.runs[r].kind {
            Kind::Full(at) => self.full[usize::from(at)].1,
            Kind::Ordinary | Kind::Linked | Kind::Mixed => ordinary_meta(&self.compact[r]),
            Kind::Carrying(at) => {
                let carried = &self.carried[usize::from(at)];
                Meta {
                    priority: carried.skb_priority,
                    mark: carried.pkt_mark,
                    ..ordinary_meta(&self.compact[r])
                }
            }
            Kind::Runt => Meta::default(),
        }
    }
}

impl Burst for Parsed {
    #[inline]
    fn runs(&self) -> &[Run] {
        &self.runs
    }
    #[inline]
    fn keys(&self) -> &[CompactKey] {
        &self.compact
    }
    #[inline]
    fn has_outside(&self) -> bool {
        self.n_full + self.n_carried > 0
    }
    #[inline]
    fn outside(&self, run: &Run) -> Option<&FlowKey> {
        match run.kind {
            Kind::Carrying(at) => self.carried.get(usize::from(at)),
            Kind::Full(at) => Some(&self.full.get(usize::from(at))?.0),
            Kind::Ordinary | Kind::Linked | Kind::Mixed | Kind::Runt => None,
        }
    }
}

/// What actions need to know of a packet with ordinary headers.
#[inline]
fn ordinary_meta(key: &CompactKey) -> Meta {
    Meta {
        l2_5: NO_OFFSET,
        l3: key.l3(),
        l4: key.l4(),
        // The protocols that need the true end are read the long way.
        l4_end: usize::MAX,
        proto: key.proto(),
        ..Meta::default()
    }
}

/// The origin of a packet that was not recirculated.
#[inline(always)]
pub(crate) fn fresh_origin(p: &Packet) -> u32 {
    if p.in_port <= MAX_LISTED {
        p.in_port
    } else {
        NOWHERE
    }
}

impl How {
    /// Frames, without looking behind tags.
    const ETHERNET: Self = Self {
        packet_type: packet_type::ETHERNET,
        vlan_limit: 0,
    };
    #[inline(always)]
    fn frame(self, p: &Packet, origin: u32) -> Frame {
        Frame {
            head: p.head_len(),
            total: p.len(),
            origin,
            vlan: self.vlan_limit > 0,
        }
    }
}

/// Makes the full key of `p` (`in_port` from the packet), and says where its layers are. A packet whose
/// headers go on in its foreign tail gets a longer head, or is made private, for that.
pub(crate) fn parse(p: &mut Packet, how: How, (key, meta): (&mut FlowKey, &mut Meta)) {
    let hint = Hint {
        total_len: p.len(),
        packet_type: how.packet_type,
        vlan_limit: how.vlan_limit,
    };
    let mut layers = extract(p.head(), &hint, key);
    if layers.oddity == Some(Oddity::BeyondView) && p.pull_tail(HEAD_SPACE) {
        layers = extract(p.head(), &hint, key);
    }
    if layers.oddity == Some(Oddity::BeyondView) && !p.segs().is_empty() {
        p.make_private();
        layers = extract(p.head(), &hint, key);
    }
    key.in_port = p.in_port;
    *meta = Meta {
        l2_5: layers.l2_5,
        l3: layers.l3,
        l4: layers.l4,
        l4_end: p.len().saturating_sub(layers.l2_pad.into()),
        proto: key.nw_proto,
        later_fragment: key.nw_frag & frag::LATER != 0,
        packet_type: how.packet_type,
        ..Meta::default()
    };
    if key.dl_type == 0x86dd && layers.l3 != NO_OFFSET {
        meta.routing_header = has_routing_header(p.head(), layers.l3.into(), layers.l4.into());
    }
}

/// As [`parse`], by value.
#[cfg(test)]
pub(crate) fn parsed(p: &mut Packet, packet_type: u32, vlan_limit: u8) -> (FlowKey, Meta) {
    let (mut key, mut meta) = Default::default();
    let how = How {
        packet_type,
        vlan_limit,
    };
    parse(p, how, (&mut key, &mut meta));
    (key, meta)
}

/// Whether a routing header with segments left stands between the IPv6 header and L4 (RFC 8200, 8.1: then the
/// pseudo header has the final destination, not the one in the header).
fn has_routing_header(head: &[u8], l3: usize, l4: usize) -> bool {
    let Some((ip, _)) = head.get(l3..).and_then(split::<Ipv6>) else {
        return false;
    };
    let (mut next, mut at) = (ip.next, l3 + 40);
    while at < l4.min(head.len()) {
        let Some((ext, _)) = head.get(at..).and_then(split::<Ipv6Ext>) else {
            return false;
        };
        if next == proto::ROUTING && ext.data[1] != 0 {
            return true;
        }
        at += match next {
            proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS => (usize::from(ext.len) + 1) * 8,
            proto::FRAGMENT => 8,
            proto::AH => (usize::from(ext.len) + 2) * 4,
            _ => return false,
        };
        next = ext.next;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Frames: tags, a version of IP, a protocol, and bytes for everything else.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let proto = prop::sample::select(vec![1_u8, 6, 17, 58, 132, 0, 44]);
        let junk = prop::collection::vec(any::<u8>(), 120);
        (0_usize..3, any::<bool>(), proto, junk).prop_map(|(tags, v6, proto, junk)| {
            let tags = [0x88, 0xa8, junk[12], junk[14], 0x81, 0, junk[13], junk[15]][..4 * tags].to_vec();
            let ip = if v6 {
                [
                    &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 60, proto, junk[24]],
                    &junk[25..57],
                ]
                .concat()
            } else {
                let fixed = [8, 0, 0x45, junk[20], 0, 80, 1, 2, 0x40, 0, junk[21], proto, 0, 0];
                [&fixed, &junk[25..33]].concat()
            };
            let mut payload = junk[60..].to_vec();
            if proto == 6 {
                payload[12] = payload[12] & 0xf | 0x50;
            }
            [&junk[..12], &tags, &ip, &payload].concat()
        })
    }

    proptest! {
        /// A burst's runs are neighbours with equal keys, however they were compared.
        #[test]
        fn runs_are_neighbours_with_equal_keys(
            base in frame(),
            burst in prop::collection::vec((prop::collection::vec((0_usize..60, 0_usize..3), 0..2), 0_usize..4, 0_u32..8), 1..32),
        ) {
            let packets: Vec<Packet> = burst.iter().map(|(changes, longer, port)| {
                let mut bytes = base.clone();
                for (i, v) in changes { bytes[*i] = [0x45, 6, bytes[*i] ^ 1][*v]; }
                bytes.resize(bytes.len() + longer, 0);
                let mut p = Packet::from_bytes(&bytes);
                p.in_port = u32::from(*port == 0);
                p
            }).collect();
            let read = |packets: &[Packet]| {
                let mut parsed = Parsed::new(packets.len());
                for (i, p) in (0..).zip(packets) {
                    let mut copy = Packet::from_bytes(p.head());
                    copy.in_port = p.in_port;
                    parsed.push(i, &mut copy, How { packet_type: 0, vlan_limit: 2 });
                }
                parsed
            };
            let parsed = read(&packets);
            let alone: Vec<_> = packets.iter().map(|p| {
                let one = read(std::slice::from_ref(p));
                (one.runs[0].kind, one.key(0).copied(), one.known(0).copied(), one.meta(0))
            }).collect();
            let mut at = 0;
            for (r, run) in parsed.runs.iter().enumerate() {
                prop_assert_eq!(usize::from(run.first), at);
                let end = at + alone[at..].iter().take_while(|one| **one == alone[at]).count();
                prop_assert_eq!(usize::from(run.end), end);
                prop_assert_eq!((parsed.key(r).copied(), parsed.known(r).copied()), (alone[at].1, alone[at].2));
                prop_assert_eq!(run.bytes, packets[at..end].iter().map(|p| p.len() as u64).sum::<u64>());
                at = end;
            }
            prop_assert_eq!(at, packets.len());
        }

        /// What comes out of a tunnel beside other packets is the same runs where nothing is remembered of
        /// the packet before.
        #[test]
        fn packets_out_of_a_tunnel_are_compared_as_if_each_were_read(
            base in frame(),
            burst in prop::collection::vec((prop::collection::vec((0_usize..60, 0_usize..3), 0..2), 0_u32..8, any::<bool>()), 1..32),
        ) {
            let read = |remembers: bool| {
                let mut parsed = Parsed::new(burst.len() + 1);
                let how = How { packet_type: 0, vlan_limit: 2 };
                let mut first = Packet::from_bytes(&base);
                parsed.push_carrying(0, &mut first, how, 1, |key, _| key.tun_id = 7);
                let at = parsed.last_carried();
                for (i, (changes, from, fresh)) in (1..).zip(&burst) {
                    let mut bytes = base.clone();
                    for (i, v) in changes { bytes[*i] = [0x45, 6, bytes[*i] ^ 1][*v]; }
                    let mut p = Packet::from_bytes(&bytes);
                    if !remembers {
                        parsed.again = None;
                    }
                    match at {
                        Some(at) if *from > 0 => parsed.push_carried(i, &mut p, how, u32::from(*from > 1), at),
                        _ if *fresh => parsed.push_from(i, &mut p, how, 1),
                        _ => parsed.push_carrying(i, &mut p, how, 1, |key, _| key.tun_id = 8),
                    }
                }
                let runs: Vec<_> = (0..parsed.runs.len()).map(|r| {
                    let run = &parsed.runs[r];
                    let what = (run.first, run.end, run.kind, run.bytes, run.longest);
                    (what, parsed.compact[r], parsed.known(r).copied(), parsed.meta(r))
                }).collect();
                runs
            };
            prop_assert_eq!(read(true), read(false));
        }
    }
}
