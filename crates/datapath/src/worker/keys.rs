//! The keys of a stage's packets, as runs of equal keys.
//!
//! An ordinary packet gets its compact key straight from its bytes. Other packets get a full key at once. An
//! ordinary packet gets one later, if an action needs it. Neighbours with equal keys are one [`Run`] from
//! here on: the worker looks them up, counts them and runs their program once.
//!
//! **Shortcut.** If a run has two packets, the next packet's bytes are first compared with the last one's
//! ([`SameKey`]). On bursts of one flow that saves a quarter of a packet's cycles; the runs save another
//! half.

use super::parse::{ReadAs, ordinary_meta, parse};
use crate::exec::{Meta, ct};
use heddle_conntrack::CtState;
use heddle_datapath_api::HashAlg;
use heddle_flow::{FlowKey, hash, packet_type};
use heddle_flow_cache::{CompactKey, Frame, KeyForm, LookupKeys, Merges, Run, RunProgram, SameKey, VIEW};
use heddle_packet::Packet;
use std::ops::Range;

/// The slot number that means "no slot".
const NO_SLOT: u8 = u8::MAX;

/// The context of packets: the fields of their key that are not headers.
#[derive(Clone, Copy)]
pub(crate) enum Context<'a> {
    /// The packets have none.
    None,
    /// The tunnel of the packets in this context slot ([`Keys::last_context`]).
    SameTunnel(u8),
    /// The tunnel that the packets came out of.
    Tunnel(&'a FlowKey),
    /// The mark with which they came in.
    Mark(u32),
    /// The state of their connection.
    Connection(&'a CtState),
    /// The context that the control plane gave an injected packet.
    Injected(&'a FlowKey),
    /// The context of their last lookup, as their program has changed it.
    Changed(ChangedContext<'a>),
}

impl Context<'_> {
    /// Writes the context into a key. If the key has no headers, `headers` has them.
    #[inline(always)]
    pub(crate) fn write(&self, key: &mut FlowKey, headers: Option<&CompactKey>) {
        let changed = match self {
            Self::None | Self::SameTunnel(_) => return,
            Self::Tunnel(from) => return key.copy_tunnel(from),
            Self::Mark(mark) => return key.pkt_mark = *mark,
            Self::Connection(known) => return ct::write_known(known, key),
            Self::Injected(from) => return key.copy_context(from),
            Self::Changed(changed) => changed,
        };
        if let Some(before) = changed.before {
            key.copy_context(before);
        }
        if let Some(known) = changed.ct {
            ct::write_known(known, key);
        }
        (key.skb_priority, key.pkt_mark) = (changed.meta.priority, changed.meta.mark);
        if let Some((alg, basis)) = changed.meta.hash {
            let of = |key: &FlowKey| match alg {
                HashAlg::L4 => hash::five_tuple(key, basis),
                HashAlg::SymL4 => hash::symmetric_l3l4(key, basis, false),
            };
            // A key without a hash has zero.
            key.dp_hash = headers.map_or_else(|| of(key), |h| of(&h.whole())).max(1);
        }
    }
}

/// The context of packets after their program: that of their last lookup with the program's changes.
#[derive(Clone, Copy)]
pub(crate) struct ChangedContext<'a> {
    /// The key whose context counted at the last lookup, if any did.
    pub(crate) before: Option<&'a FlowKey>,
    /// `before` is the packets' full key, and the compact key does not lay their headers out (IP options, an
    /// IP packet that ends early).
    pub(crate) full: bool,
    pub(crate) meta: Meta,
    /// The state of their connection, if the program tracked them.
    pub(crate) ct: Option<&'a CtState>,
}

impl<'a> ChangedContext<'a> {
    #[inline]
    pub(super) fn context(self) -> Context<'a> {
        let m = &self.meta;
        let marks = (m.priority, m.mark, m.hash.is_some());
        if self.before.is_none() && self.ct.is_none() && marks == (0, 0, false) {
            Context::None
        } else {
            Context::Changed(self)
        }
    }
}

/// Packets that are added together: their places in the stage, all their bytes, the longest one's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Added {
    pub(crate) places: Range<u16>,
    pub(crate) bytes: u64,
    pub(crate) longest: usize,
}

impl Added {
    #[inline]
    pub(crate) fn one(place: u16, len: usize) -> Self {
        Self {
            places: place..place + 1,
            bytes: len as u64,
            longest: len,
        }
    }
}

/// The full key of a run, and the offsets of its packets' headers.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct FullKey {
    key: FlowKey,
    meta: Meta,
}

/// The forms that a new run may have.
#[derive(Clone, Copy)]
struct Forms {
    /// The form of the last run, if the packets may join that one.
    last: KeyForm,
    /// The form of a run of their own.
    own: KeyForm,
}

/// The keys and runs of one burst, or of packets of it that are recirculated together.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) runs: Vec<Run>,
    /// The compact key of each run, by the run's number.
    pub(crate) compact: Vec<CompactKey>,
    /// Full keys of the runs that refer to them. Slots are reused.
    full: Vec<FullKey>,
    /// Number of full keys, like those of fragments.
    pub(crate) n_full: usize,
    /// Contexts of packets with ordinary headers. Headers, input port and recirculation id are zero.
    contexts: Vec<FlowKey>,
    n_contexts: usize,
    /// The recirculation id of the lookup.
    pub(crate) recirc_id: u32,
    /// The last packet's bytes, if the last run has several packets and is to be looked up.
    same_key: Option<SameKey>,
}

impl Keys {
    /// Room for `burst` packets.
    pub(crate) fn new(burst: usize) -> Self {
        Self {
            runs: Vec::with_capacity(burst),
            compact: vec![CompactKey::default(); burst],
            full: Vec::new(),
            n_full: 0,
            contexts: Vec::new(),
            n_contexts: 0,
            recirc_id: 0,
            same_key: None,
        }
    }
    /// Removes all runs; the next packets are looked up under this recirculation id.
    pub(crate) fn begin(&mut self, recirc_id: u32) {
        self.runs.clear();
        (self.n_full, self.n_contexts) = (0, 0);
        self.recirc_id = recirc_id;
        self.same_key = None;
    }

    /// Reads the packet at place `i`, the next one, of any type, with its context.
    #[inline(always)]
    pub(crate) fn read(&mut self, i: u16, p: &mut Packet, how: ReadAs, origin: u32, context: &Context<'_>) {
        let frame = Frame {
            head: p.head_len(),
            total: p.len(),
            origin,
            vlan: how.vlan_limit > 0,
        };
        let bytes = match how.packet_type {
            packet_type::ETHERNET => p.window::<VIEW>(),
            _ => None,
        };
        let Some(bytes) = bytes else {
            return self.read_full(i, p, how, origin, context);
        };
        let form = match context {
            Context::None => Some(KeyForm::Compact),
            Context::SameTunnel(at) => Some(KeyForm::InContext(*at)),
            _ => None,
        };
        if let (Some(same_key), Some(form)) = (&self.same_key, form)
            && same_key.is(bytes, frame)
            && let Some(run) = self.runs.last_mut()
            && run.form == form
        {
            return run.extend(i, frame.total);
        }
        let Some(key) = CompactKey::read(bytes, frame) else {
            return self.read_full(i, p, how, origin, context);
        };
        if self.add(&Added::one(i, frame.total), &key, RunProgram::UNKNOWN, context) && form.is_some() {
            // A run of two packets probably continues.
            self.same_key = SameKey::of(bytes, frame);
        }
    }
    /// Reads a packet of any type into a full key.
    #[cold]
    fn read_full(&mut self, i: u16, p: &mut Packet, how: ReadAs, origin: u32, context: &Context<'_>) {
        if p.take_header() {
            let mark = p.mark();
            let context = if mark == 0 {
                Context::None
            } else {
                Context::Mark(mark)
            };
            return self.read(i, p, how, origin, &context);
        }
        let same_tunnel = match context {
            Context::SameTunnel(at) => self.contexts.get(usize::from(*at)).copied(),
            _ => None,
        };
        let at = self.take_full();
        let FullKey { key, meta } = &mut self.full[at];
        parse(p, how, key, meta);
        match &same_tunnel {
            Some(tunnel) => key.copy_tunnel(tunnel),
            None => context.write(key, None),
        }
        let compact = CompactKey::of(key, origin);
        self.add_full(&Added::one(i, p.len()), at, &compact);
    }

    /// Adds packets whose compact key is known. Returns whether they joined the last run.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        packets: &Added,
        key: &CompactKey,
        program: RunProgram,
        context: &Context<'_>,
    ) -> bool {
        self.same_key = None;
        let form = match context {
            Context::None => KeyForm::Compact,
            Context::SameTunnel(at) => KeyForm::InContext(*at),
            context => return self.add_in_new_context(packets, key, program, context),
        };
        let forms = Forms {
            last: form,
            own: form,
        };
        self.add_run(packets, key, program, forms, |_| true)
    }
    #[inline]
    fn add_in_new_context(
        &mut self,
        packets: &Added,
        key: &CompactKey,
        program: RunProgram,
        context: &Context<'_>,
    ) -> bool {
        let at = self.n_contexts;
        if at == self.contexts.len() {
            self.contexts.push(FlowKey::default());
        }
        if let Some(new) = self.contexts.get_mut(at) {
            new.clear_context();
            context.write(new, Some(key));
            (new.in_port, new.recirc_id, new.packet_type) = (0, 0, 0);
        }
        let [last, own] = slots(at).map(KeyForm::InContext);
        let equal =
            |keys: &Self| matches!(keys.contexts.get(..=at), Some([.., a, b]) if a.has_same_context(b));
        let joined = self.add_run(packets, key, program, Forms { last, own }, equal);
        self.n_contexts += usize::from(!joined);
        joined
    }
    /// Adds packets with a full key: `before`, with the context that the packets have now.
    pub(crate) fn add_changed(
        &mut self,
        packets: &Added,
        key: &CompactKey,
        before: &FlowKey,
        now: &ChangedContext<'_>,
    ) {
        let at = self.take_full();
        let FullKey { key: full, meta } = &mut self.full[at];
        (*full, *meta) = (*before, now.meta);
        full.clear_context();
        full.packet_type = before.packet_type;
        full.in_port = before.in_port;
        Context::Changed(*now).write(full, None);
        meta.hash = None;
        self.add_full(packets, at, key);
    }
    /// Adds the packets of whole compact runs of another stage, with this origin, from place `first` on.
    #[inline]
    pub(crate) fn copy_runs(&mut self, from: &Self, runs: Range<usize>, first: u16, origin: u32) {
        self.same_key = None;
        let n = self.runs.len();
        let (keys, all) = (&from.compact[runs.clone()], &from.runs[runs]);
        for (to, key) in self.compact[n..].iter_mut().zip(keys) {
            *to = key.with_origin(origin);
        }
        let before = all.first().map_or(0, |run| run.first);
        self.runs.extend(all.iter().map(|run| Run {
            first: run.first - before + first,
            end: run.end - before + first,
            full: NO_SLOT,
            program: RunProgram::UNKNOWN,
            ..*run
        }));
    }

    /// Adds packets to the last run, or as a run of their own. They join the last run if that has the right
    /// form and the same program, and if the program does the same to both. `joins` decides last.
    /// Returns whether they did.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // packets are shorter than 4 GiB
    fn add_run(
        &mut self,
        packets: &Added,
        key: &CompactKey,
        program: RunProgram,
        forms: Forms,
        joins: impl FnOnce(&Self) -> bool,
    ) -> bool {
        let n = self.runs.len();
        let same_key = |before: &CompactKey| match program.merges {
            Merges::No => before == key,
            Merges::Alike => before.laid_out_as(key),
            Merges::All => true,
        };
        if let Some(run) = self.runs.last()
            && (run.form, run.program) == (forms.last, program)
            && same_key(&self.compact[n - 1])
            && joins(self)
            && let Some(run) = self.runs.last_mut()
        {
            run.end = packets.places.end;
            run.bytes += packets.bytes;
            run.longest = run.longest.max(packets.longest as u32);
            return true;
        }
        self.compact[n] = *key;
        self.runs.push(Run {
            first: packets.places.start,
            end: packets.places.end,
            form: forms.own,
            full: NO_SLOT,
            program,
            bytes: packets.bytes,
            longest: packets.longest as u32,
        });
        false
    }
    /// A new last slot for a full key. Its contents are stale.
    fn take_full(&mut self) -> usize {
        // The last run has a full key from now on.
        self.same_key = None;
        let at = self.n_full;
        if at == self.full.len() {
            self.full.push(Default::default());
        }
        self.n_full += 1;
        at
    }
    /// Adds packets with the full key in the last slot `at`, to the last run if that has an equal key.
    fn add_full(&mut self, packets: &Added, at: usize, compact: &CompactKey) {
        let recirc_id = self.recirc_id;
        let FullKey { key, meta } = &mut self.full[at];
        key.recirc_id = recirc_id;
        (meta.priority, meta.mark) = (key.skb_priority, key.pkt_mark);
        let [last, own] = slots(at).map(KeyForm::Full);
        let equal = |keys: &Self| matches!(keys.full.get(..=at), Some([.., a, b]) if a == b);
        let joined = self.add_run(packets, compact, RunProgram::UNKNOWN, Forms { last, own }, equal);
        self.n_full -= usize::from(joined);
    }

    /// The context slot of the last run, if its headers are ordinary and it has one.
    #[inline]
    pub(crate) fn last_context(&self) -> Option<u8> {
        match self.runs.last()?.form {
            KeyForm::InContext(at) => Some(at),
            KeyForm::Compact | KeyForm::Full(_) => None,
        }
    }
    /// Makes the full key of run `r`, unless it was made; `p` is one of its packets, unchanged since the
    /// lookup.
    pub(crate) fn make_full(&mut self, r: usize, p: &Packet) {
        let run = self.runs[r];
        if run.full != NO_SLOT || matches!(run.form, KeyForm::Full(_)) {
            return;
        }
        let same_key = self.same_key.take();
        let at = self.take_full();
        self.same_key = same_key;
        let key = &mut self.full[at].key;
        *key = match run.form {
            KeyForm::InContext(at) => self.contexts[usize::from(at)],
            KeyForm::Compact | KeyForm::Full(_) => FlowKey::default(),
        };
        self.compact[r].write_to(key);
        (key.in_port, key.recirc_id) = (p.in_port, self.recirc_id);
        self.runs[r].full = slots(at)[1];
    }
    /// The full key of run `r`, if it was made.
    pub(crate) fn full(&self, r: usize) -> Option<&FlowKey> {
        let run = self.runs.get(r)?;
        let at = match run.form {
            KeyForm::Full(at) => at,
            KeyForm::Compact | KeyForm::InContext(_) => run.full,
        };
        let keys = self.full.get(..self.n_full)?;
        keys.get(usize::from(at)).map(|full| &full.key)
    }
    /// Whether actions find the headers of all packets of run `r` at the same offsets.
    #[inline]
    pub(crate) fn is_regular(&self, r: usize) -> bool {
        !self.compact[r].family().is_odd()
    }
    /// Whether all packets have equal [`Meta`].
    #[inline]
    pub(crate) fn all_are_alike(&self) -> bool {
        match self.compact.get(..self.runs.len()) {
            Some([first, others @ ..]) if !self.has_context() => others
                .iter()
                .fold(true, |same, key| same & first.laid_out_as(key)),
            _ => false,
        }
    }
    /// The [`Meta`] of the packets of run `r`.
    #[inline]
    pub(crate) fn meta(&self, r: usize) -> Meta {
        match self.runs[r].form {
            KeyForm::Full(at) => self.full[usize::from(at)].meta,
            KeyForm::Compact => ordinary_meta(&self.compact[r]),
            KeyForm::InContext(at) => {
                let context = &self.contexts[usize::from(at)];
                Meta {
                    priority: context.skb_priority,
                    mark: context.pkt_mark,
                    ..ordinary_meta(&self.compact[r])
                }
            }
        }
    }
}

impl LookupKeys for Keys {
    #[inline]
    fn runs(&self) -> &[Run] {
        &self.runs
    }
    #[inline]
    fn keys(&self) -> &[CompactKey] {
        &self.compact
    }
    #[inline]
    fn has_context(&self) -> bool {
        self.n_full + self.n_contexts > 0
    }
    #[inline]
    fn context(&self, r: usize) -> Option<&FlowKey> {
        match self.runs.get(r)?.form {
            KeyForm::InContext(at) => self.contexts.get(usize::from(at)),
            KeyForm::Full(at) => Some(&self.full.get(usize::from(at))?.key),
            KeyForm::Compact => None,
        }
    }
}

/// Slot `at` and the one before it, which is first, as runs refer to them.
fn slots(at: usize) -> [u8; 2] {
    let at = u8::try_from(at).expect("a burst has fewer packets");
    [at.wrapping_sub(1), at]
}

#[cfg(test)]
mod tests {
    use super::super::parse::fresh_origin;
    use super::*;
    use heddle_flow_cache::{NO_PROGRAM, ProgramId};
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

    /// A packet without context joins no run of tracked packets that have their program.
    #[test]
    fn a_packet_that_is_read_joins_no_linked_run() {
        let how = ReadAs {
            packet_type: 0,
            vlan_limit: 2,
        };
        let mut p = Packet::from_bytes(&crate::tests::udp(1, 2, 3, 4));
        for merges in [Merges::No, Merges::Alike, Merges::All] {
            let mut keys = Keys::new(3);
            keys.read(0, &mut p, how, 1, &Context::None);
            let key = keys.compact[0];
            keys.begin(7);
            keys.add(
                &Added::one(0, p.len()),
                &key,
                RunProgram {
                    number: ProgramId(5),
                    merges,
                },
                &Context::None,
            );
            keys.read(1, &mut p, how, 1, &Context::None);
            keys.read(2, &mut p, how, 1, &Context::None);
            let runs: Vec<_> = keys
                .runs
                .iter()
                .map(|run| (run.end, run.program.number))
                .collect();
            assert_eq!(runs, [(1, ProgramId(5)), (3, NO_PROGRAM)]);
        }
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
                let mut parsed = Keys::new(packets.len());
                for (i, p) in (0..).zip(packets) {
                    let mut copy = Packet::from_bytes(p.head());
                    copy.in_port = p.in_port;
                    let origin = fresh_origin(&copy);
                    parsed.read(i, &mut copy, ReadAs { packet_type: 0, vlan_limit: 2 }, origin, &Context::None);
                }
                parsed
            };
            let parsed = read(&packets);
            let alone: Vec<_> = packets.iter().map(|p| {
                let one = read(std::slice::from_ref(p));
                (one.runs[0].form, one.compact[0], one.full(0).copied(), one.meta(0))
            }).collect();
            let mut at = 0;
            for (r, run) in parsed.runs.iter().enumerate() {
                prop_assert_eq!(usize::from(run.first), at);
                let end = at + alone[at..].iter().take_while(|one| **one == alone[at]).count();
                prop_assert_eq!(usize::from(run.end), end);
                prop_assert_eq!((parsed.compact[r], parsed.full(r).copied()), (alone[at].1, alone[at].2));
                prop_assert_eq!(run.bytes, packets[at..end].iter().map(|p| p.len() as u64).sum::<u64>());
                at = end;
            }
            prop_assert_eq!(at, packets.len());
        }

        /// Packets out of a tunnel, mixed with other packets, form the same runs with and without
        /// [`SameKey`].
        #[test]
        fn packets_out_of_a_tunnel_are_compared_as_if_each_were_read(
            base in frame(),
            burst in prop::collection::vec((prop::collection::vec((0_usize..60, 0_usize..3), 0..2), 0_u32..8, any::<bool>()), 1..32),
        ) {
            let read = |remembers: bool| {
                let mut parsed = Keys::new(burst.len() + 1);
                let how = ReadAs { packet_type: 0, vlan_limit: 2 };
                let mut first = Packet::from_bytes(&base);
                let (seven, eight) = [7, 8].map(|tun_id| FlowKey { tun_id, ..FlowKey::default() }).into();
                parsed.read(0, &mut first, how, 1, &Context::Tunnel(&seven));
                let at = parsed.last_context();
                for (i, (changes, from, fresh)) in (1..).zip(&burst) {
                    let mut bytes = base.clone();
                    for (i, v) in changes { bytes[*i] = [0x45, 6, bytes[*i] ^ 1][*v]; }
                    let mut p = Packet::from_bytes(&bytes);
                    if !remembers {
                        parsed.same_key = None;
                    }
                    match at {
                        Some(at) if *from > 0 => {
                            parsed.read(i, &mut p, how, u32::from(*from > 1), &Context::SameTunnel(at));
                        }
                        _ if *fresh => parsed.read(i, &mut p, how, 1, &Context::None),
                        _ => parsed.read(i, &mut p, how, 1, &Context::Tunnel(&eight)),
                    }
                }
                let runs: Vec<_> = (0..parsed.runs.len()).map(|r| {
                    let run = &parsed.runs[r];
                    let what = (run.first, run.end, run.form, run.bytes, run.longest);
                    (what, parsed.compact[r], parsed.full(r).copied(), parsed.meta(r))
                }).collect();
                runs
            };
            prop_assert_eq!(read(true), read(false));
        }
    }
}
