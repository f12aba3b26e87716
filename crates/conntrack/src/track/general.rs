//! Tracking of any packet: the action `ct`.
//!
//! The steps and their results are those of Open vSwitch's userspace datapath. Forget the result of another
//! zone. Look the packet up, a translated one by its reply tuple. Move its connection. Translate the packet.
//! Or begin a connection. A lookup takes no lock. An established packet of UDP or ICMP writes only the time
//! of expiry, once a second.

use crate::action::{CtAction, NatEnd};
use crate::events::{Event, Events};
use crate::nat;
use crate::nat::rewrite::{HeaderChange, Rewrite};
use crate::protocol::packet::{Invalid, Segment, Subject};
use crate::protocol::tcp::{self, Update};
use crate::protocol::timeouts::Class;
use crate::table::hash::Hash;
use crate::table::index::{Judgement, NotInserted, RecordRef};
use crate::table::key::Key;
use crate::table::record::{
    CONTROL, DNAT, FTP, LOOSE, New, OFFLOADED, Phase, RELATED, RELEARN, Record, SNAT, UNTRIED,
};
use crate::track::helper::{self, Control, Expectation, Parent};
use crate::track::short::ConnSummary;
use crate::track::{Conntrack, Guess};
use crate::tuple::{Tuple, is_request};
use heddle_sync::ReadGuard;
use heddle_wire::ip::proto;

/// Bits of `ct_state`.
pub mod state {
    /// The packet begins a connection.
    pub const NEW: u8 = 0x01;
    /// The connection has seen packets in both directions.
    pub const EST: u8 = 0x02;
    /// Another connection announced this one, or the packet is an error about a connection.
    pub const REL: u8 = 0x04;
    /// The packet is in the reply direction.
    pub const RPL: u8 = 0x08;
    /// The packet neither belongs to a connection nor can begin one.
    pub const INV: u8 = 0x10;
    /// The packet was tracked.
    pub const TRK: u8 = 0x20;
    /// The source was translated.
    pub const SNAT: u8 = 0x40;
    /// The destination was translated.
    pub const DNAT: u8 = 0x80;
}
use state::{EST, INV, NEW, REL, RPL, TRK};

const NATTED: u8 = state::SNAT | state::DNAT;

/// The connection of a packet, so that a second `ct` in the same zone need not look it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnRef {
    number: u32,
    generation: u32,
    reply: bool,
    related: bool,
}

/// The result of `ct`, which a later `ct` reads, too. All zero: the packet was not tracked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CtState {
    /// Bits of [`state`]; 0: not tracked, or `ct_clear` followed.
    pub state: u8,
    /// Zone.
    pub zone: u16,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// The tuple of the original direction; `None`: all zero.
    pub orig: Option<Tuple>,
    /// The connection.
    pub found: Option<ConnRef>,
}

impl ConnRef {
    pub(crate) const fn of(b: &ConnSummary) -> Self {
        Self {
            number: b.number,
            generation: b.generation,
            reply: b.reply,
            related: false,
        }
    }
}

impl CtState {
    /// Clears the fields that the next `ct` does not write.
    #[inline]
    pub fn forget(&mut self) {
        (self.state, self.found) = (0, None);
    }
}

/// The effects of `ct` beside the state; by default none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Changes of the headers.
    pub rewrite: Option<Rewrite>,
    /// The connection may announce others: call [`Conntrack::control`].
    pub control: Option<Control>,
    /// Events to be counted. After a refusal of a new connection, such as [`Event::NatExhausted`], the
    /// connection was not kept. The packet continues as `+new`, unless it is [`Verdict::untranslated`].
    pub events: Events,
    /// The packet was to begin a translated connection, which was not kept: drop the packet.
    pub untranslated: bool,
}

/// A packet at its `ct` action, and the results.
#[derive(Debug)]
pub struct CtPacket<'a> {
    /// Any clock.
    pub now_ms: u64,
    /// The packet.
    pub subject: &'a Subject,
    /// [`Conntrack::hash`] of the tuple and the zone of the action.
    pub hash: Hash,
    /// The action.
    pub action: &'a CtAction,
    /// The result of an earlier `ct` of the same pipeline, which gets the result of this one.
    pub known: &'a mut CtState,
    /// Other effects are added.
    pub verdict: &'a mut Verdict,
}

/// The connection that a lookup found for a packet.
#[derive(Clone, Copy)]
pub(crate) struct Hit<'a> {
    pub(crate) record: &'a Record,
    pub(crate) number: u32,
    /// The packet is in the reply direction.
    pub(crate) reply: bool,
}

/// A free record that a new connection may get.
#[derive(Clone, Copy)]
struct FreeRecord<'a> {
    number: u32,
    record: &'a Record,
}

/// The fields of a packet that move its connection.
#[derive(Clone, Copy)]
pub(crate) struct Moving<'a> {
    pub(crate) tcp: Option<&'a Segment>,
    pub(crate) icmp: bool,
    pub(crate) related: bool,
}

impl<'a> Moving<'a> {
    fn of(s: &'a Subject) -> Self {
        Self {
            tcp: s.tcp.as_ref(),
            icmp: s.tuple.is_icmp(),
            related: s.related,
        }
    }
}

/// The state of the connection after a packet.
pub(crate) enum Moved {
    Stays,
    /// The connection has ended; the packet may begin another one.
    Again,
}

/// Maximum number of lookups of a packet that begins a connection, if other workers are faster.
const TRIES: usize = 4;

impl Conntrack {
    /// A packet that cannot belong to a connection.
    pub fn invalid(&self, zone: u16, why: Invalid, known: &mut CtState) -> Events {
        *known = CtState {
            state: INV | TRK,
            zone,
            ..CtState::default()
        };
        match why {
            Invalid::Malformed => Event::Malformed,
            Invalid::Fragment => Event::Fragment,
            Invalid::L3Checksum => Event::L3Checksum,
            Invalid::L4Checksum => Event::L4Checksum,
        }
        .into()
    }

    /// Tracks a packet. `guess` is the result of [`Conntrack::guess`] for its hash, and `reading` spans the
    /// burst. Workers call this function; it waits for some microseconds at most.
    #[inline]
    pub fn track(&self, reading: &ReadGuard, guess: Guess, mut p: CtPacket<'_>) {
        let _ = reading;
        let (now_ms, zone) = (p.now_ms, p.action.zone);
        let mut absent = false;
        // The common case: the first `ct` in its zone, and a connection that exists.
        if !p.action.force && (p.known.state == 0 || p.known.zone != zone) {
            let key = Key::new(&p.subject.tuple, zone);
            let hit = guess.0.and_then(|e| self.is_meant(now_ms, e, &key, false));
            if let Some(h) = hit.or_else(|| self.lookup(now_ms, &key, p.hash, false)) {
                p.known.state = 0;
                if let Moved::Stays = self.advance_by(&mut p, h) {
                    return self.finish(&mut p, Some(h));
                }
                self.kill(h.number, h.record);
            } else {
                absent = true;
            }
        }
        self.track_slowly(p, absent);
    }

    /// The same as [`Conntrack::track`]. `absent`: a lookup with the tuple as received has found no
    /// connection.
    #[inline(never)]
    fn track_slowly(&self, mut p: CtPacket<'_>, absent: bool) {
        if self.track_again(&mut p) {
            return;
        }
        let (now_ms, action) = (p.now_ms, p.action);
        let zone = action.zone;
        let prior = std::mem::take(p.known);
        if prior.zone == zone {
            p.known.state = prior.state;
        }
        let natted = p.known.state & NATTED != 0;
        let mut subject = *p.subject;
        let find = |tuple: &Tuple, hash, natted: bool| {
            let tuple = if natted { tuple.reversed() } else { *tuple };
            self.lookup(now_ms, &Key::new(&tuple, zone), hash, natted)
        };
        let mut hit = if absent {
            None
        } else {
            find(&subject.tuple, p.hash, natted)
        };
        if natted {
            match hit {
                Some(h) => {
                    subject.tuple = if h.reply {
                        h.record.reply()
                    } else {
                        h.record.orig()
                    }
                }
                None => p.verdict.events.add(Event::NatLost),
            }
        }
        if action.force
            && let Some(h) = hit.filter(|h| h.reply)
        {
            self.kill(h.number, h.record);
            hit = None;
        }
        if hit.is_none() && natted && action.nat.is_none() {
            // The direction is unknown. Like Open vSwitch, take the original one.
            hit = self
                .by_orig(now_ms, &subject.tuple, &prior)
                .map(|h| Hit { reply: false, ..h });
        }
        let mut p = CtPacket {
            subject: &subject,
            ..p
        };
        let mut begins = false;
        match hit {
            Some(h) => match self.advance_by(&mut p, h) {
                Moved::Stays => {}
                Moved::Again => {
                    self.kill(h.number, h.record);
                    hit = None;
                    begins = true;
                }
            },
            None if subject.related => p.known.state = INV,
            None => begins = true,
        }
        let expected = if begins {
            self.expected(now_ms, &subject.tuple, zone)
        } else {
            None
        };
        if natted {
            p.hash = self.hash(&subject.tuple, zone);
        }
        let mut tries = 0;
        while begins && tries < TRIES {
            tries += 1;
            match self.begin(&mut p, expected.as_ref()) {
                Begun::Not => begins = false,
                Begun::Is(h) => {
                    hit = Some(h);
                    begins = false;
                }
                Begun::Taken => {
                    // Another worker was faster.
                    if let Some(h) = find(&subject.tuple, p.hash, false) {
                        p.known.state &= !NEW;
                        self.advance_by(&mut p, h);
                        hit = Some(h);
                        begins = false;
                    }
                }
            }
        }
        if begins {
            p.verdict.events.add(Event::Clash);
        }
        self.finish(&mut p, hit);
        let refused = hit.is_none() && p.known.state & INV == 0;
        p.verdict.untranslated = refused && translates(action, expected.is_some());
        if let Some(e) = expected.filter(|_| refused) {
            (p.known.mark, p.known.label, p.known.orig) = (e.mark, e.label, Some(e.orig));
        }
    }

    /// A second `ct` in the zone of the first: the connection has moved already. `false`: it is another zone,
    /// or the connection is gone.
    fn track_again(&self, p: &mut CtPacket<'_>) -> bool {
        let same = !p.action.force && p.action.zone == p.known.zone;
        let Some(f) = p.known.found.filter(|_| same) else {
            return false;
        };
        let Some(record) = self.slots.get(f.number) else {
            return false;
        };
        if record.generation() != f.generation || !record.is_alive(p.now_ms) {
            return false;
        }
        let hit = Hit {
            record,
            number: f.number,
            reply: f.reply,
        };
        // From here on only the relation to the connection matters.
        let subject = Subject {
            tuple: record.orig(),
            related: f.related,
            tcp: None,
        };
        let mut p = CtPacket {
            subject: &subject,
            known: p.known,
            verdict: p.verdict,
            ..*p
        };
        self.finish(&mut p, Some(hit));
        true
    }

    #[inline]
    pub(crate) fn lookup(&self, now_ms: u64, key: &Key, hash: Hash, natted: bool) -> Option<Hit<'_>> {
        self.index.find(hash, |e| self.is_meant(now_ms, e, key, natted))
    }
    /// The connection of an entry, if packets with this key belong to it.
    #[inline]
    pub(crate) fn is_meant(&self, now_ms: u64, e: RecordRef, key: &Key, natted: bool) -> Option<Hit<'_>> {
        let record = self.slots.get(e.number)?;
        let reply = record.direction(key)?;
        (e.is_of(record.generation()) && record.is_alive(now_ms)).then_some(Hit {
            record,
            number: e.number,
            // A translated packet was found by the tuple of the opposite direction.
            reply: reply != natted,
        })
    }

    /// The connection of a translated packet, by the original tuple in its metadata.
    fn by_orig(&self, now_ms: u64, tuple: &Tuple, prior: &CtState) -> Option<Hit<'_>> {
        let mut orig = prior.orig.filter(|o| o.proto != 0 && o.ipv6 == tuple.ipv6)?;
        if orig.is_icmp() {
            // The metadata of a packet has only the type of ICMP.
            orig = orig.with_icmp((tuple.src.l4 >> 16) as u16, (orig.src.l4 >> 8 & 0xff) as u8, 0)?;
        }
        let hash = self.hash(&orig, prior.zone);
        self.lookup(now_ms, &Key::new(&orig, prior.zone), hash, false)
    }

    /// Moves a connection by a packet.
    #[inline]
    fn advance_by(&self, p: &mut CtPacket<'_>, h: Hit<'_>) -> Moved {
        self.advance(p.now_ms, h, Moving::of(p.subject), &mut p.known.state, p.verdict)
    }

    /// Moves a connection by a packet, and writes the result into the bits of `state`.
    #[inline]
    pub(crate) fn advance(
        &self,
        now_ms: u64,
        h: Hit<'_>,
        s: Moving<'_>,
        state: &mut u8,
        v: &mut Verdict,
    ) -> Moved {
        let reply = h.reply;
        let rpl = if reply { RPL } else { 0 };
        if s.related {
            *state |= REL | rpl;
            return Moved::Stays;
        }
        let r = h.record;
        if r.flags() & RELATED != 0 {
            *state |= REL;
        }
        let established = if let Some(segment) = s.tcp {
            match self.advance_tcp(now_ms, h, segment, *state & NATTED != 0, v) {
                Some(established) => established,
                None => return Moved::Again,
            }
        } else {
            let class = if s.icmp {
                let (_, now) = r.advance(|p| if reply { Phase::Both } else { p });
                match now {
                    Phase::Both => Class::IcmpReply,
                    Phase::First | Phase::Single => Class::IcmpFirst,
                }
            } else {
                let (before, now) = r.advance(|p| match p {
                    _ if reply => Phase::Both,
                    Phase::First => Phase::Single,
                    other => other,
                });
                if before != now {
                    // A back end has it as a stream without a reply.
                    self.leaves(h.number, r);
                }
                if now == Phase::Both {
                    Class::UdpMultiple
                } else {
                    Class::UdpSingle
                }
            };
            self.touch(h.number, r, now_ms + self.timeouts.ms(r.policy(), class));
            Some(matches!(class, Class::IcmpReply | Class::UdpMultiple))
        };
        match established {
            Some(true) => *state = *state & !NEW | EST | rpl,
            Some(false) => *state |= NEW,
            None => *state = INV,
        }
        Moved::Stays
    }

    /// Sets the time of expiry of a connection.
    #[inline]
    pub(crate) fn touch(&self, number: u32, r: &Record, expires_ms: u64) {
        if r.touch(expires_ms) {
            self.slots.look_at(number, expires_ms);
        }
    }

    /// Whether the connection is established. `Some(None)`: the segment is invalid. `None`: the connection
    /// has ended, and the segment begins another one.
    #[inline]
    #[allow(clippy::option_option)] // see above
    fn advance_tcp(
        &self,
        now_ms: u64,
        h: Hit<'_>,
        segment: &Segment,
        natted: bool,
        v: &mut Verdict,
    ) -> Option<Option<bool>> {
        let (r, reply) = (h.record, h.reply);
        let check = self.tcp_seq_chk();
        // A back end or another node has forwarded segments that the tracker has not seen.
        let before = r.state();
        let unseen = before & (OFFLOADED | LOOSE | RELEARN) != 0 && tcp::resumes(segment);
        let counted;
        let segment = if r.flags() & CONTROL == 0 {
            segment
        } else {
            counted = as_sent(r, reply, segment, natted);
            &counted
        };
        let Some(out) = r.with_peers(|peers| {
            if unseen {
                tcp::resume(peers, reply, segment);
            }
            tcp::update(peers, reply, segment, check)
        }) else {
            // The connection continues; its windows are wide enough for a segment that was not seen.
            v.events.add(Event::Busy);
            return Some(Some(true));
        };
        if unseen || before & UNTRIED != 0 && out.update == Update::Valid {
            r.clear_state(LOOSE | RELEARN | UNTRIED);
        }
        if let Some(class) = out.class {
            if class != Class::TcpEstablished {
                self.leaves(h.number, r);
            }
            self.touch(h.number, r, now_ms + self.timeouts.ms(r.policy(), class));
        }
        if out.bypassed {
            v.events.add(Event::TcpUnchecked);
        }
        Some(match out.update {
            Update::Valid => Some(true),
            Update::New => Some(false),
            Update::BadFlags => {
                v.events.add(Event::TcpFlags);
                None
            }
            Update::OutOfWindow => {
                v.events.add(Event::TcpOutOfWindow);
                None
            }
            Update::Again => return None,
        })
    }

    /// A packet without a connection.
    fn begin(&self, p: &mut CtPacket<'_>, expected: Option<&Expectation>) -> Begun<'_> {
        let s = p.subject;
        let valid = match &s.tcp {
            Some(segment) => tcp::begins(segment),
            None if s.tuple.is_icmp() => is_request((s.tuple.src.l4 >> 8 & 0xff) as u8, s.tuple.ipv6),
            None => true,
        };
        if !valid {
            p.known.state = INV;
            return Begun::Not;
        }
        p.known.state = if expected.is_some() { NEW | REL } else { NEW };
        if !p.action.commit && !p.action.force {
            return Begun::Not;
        }
        match self.commit(p, expected) {
            Ok(h) => Begun::Is(h),
            Err(Refused::Taken) => Begun::Taken,
            Err(Refused::Why(event)) => {
                p.verdict.events.add(event);
                Begun::Not
            }
        }
    }

    fn commit(&self, p: &CtPacket<'_>, expected: Option<&Expectation>) -> Result<Hit<'_>, Refused> {
        let zone = p.action.zone;
        let admission = self.zones.admit(zone)?;
        let leave = |e: Event| {
            self.zones.leave(zone, admission);
            Refused::Why(e)
        };
        let (number, record) = self.slots.take().map_err(leave)?;
        let free = FreeRecord { number, record };
        if let Err(e) = self.enter(p, expected, admission, free) {
            self.slots.give(number);
            self.zones.leave(zone, admission);
            return Err(e);
        }
        Ok(Hit {
            record,
            number,
            reply: false,
        })
    }

    /// Adds a connection whose state is known; returns its number.
    pub(crate) fn take_in(&self, now_ms: u64, mut new: New) -> Result<(u32, &Record), Refused> {
        new.admission = self.zones.admit(new.zone)?;
        let entered = self.slots.take().map_err(Refused::Why);
        let entered = entered.and_then(|(number, record)| {
            let hashes = [&new.orig, &new.reply].map(|t| self.hash(t, new.zone));
            let done = self.insert(now_ms, &new, FreeRecord { number, record }, hashes);
            if done.is_err() {
                self.slots.give(number);
            }
            done.map(|()| (number, record))
        });
        if entered.is_err() {
            self.zones.leave(new.zone, new.admission);
        }
        entered
    }

    fn enter(
        &self,
        p: &CtPacket<'_>,
        expected: Option<&Expectation>,
        admission: u64,
        free: FreeRecord<'_>,
    ) -> Result<(), Refused> {
        let (s, action, now_ms, hash) = (p.subject, p.action, p.now_ms, p.hash);
        let policy = self.timeouts.find(action.timeout.as_deref());
        let class = match s.tuple.proto {
            proto::TCP => Class::TcpSynSent,
            _ if s.tuple.is_icmp() => Class::IcmpFirst,
            _ => Class::UdpFirst,
        };
        let range = action.nat.as_ref().and_then(|n| n.new.as_ref());
        let mut new = New {
            zone: action.zone,
            orig: s.tuple,
            reply: s.tuple.reversed(),
            flags: match range.map(|r| r.end) {
                None => 0,
                Some(NatEnd::Src) => SNAT,
                Some(NatEnd::Dst) => DNAT,
            },
            expires_ms: now_ms + self.timeouts.ms(policy, class),
            policy,
            mark: action.mark.map_or(0, |(v, m)| v & m),
            label: action.label.map_or(0, |(v, m)| v & m),
            tcp: s.tcp.as_ref().map(tcp::first).unwrap_or_default(),
            admission,
            parent: None,
            skews: Default::default(),
            state: 0,
        };
        if let Some(e) = expected {
            return self.enter_expected(p, e, new, free);
        }
        let add_helper =
            |new: &mut New| new.flags |= helper::flags(action.helper, &new.orig, &new.reply, false);
        add_helper(&mut new);
        let Some(range) = range else {
            return self.insert(now_ms, &new, free, [hash; 2]);
        };
        // A tuple that was free when it was chosen may be taken when it is entered.
        for _ in 0..TRIES {
            let hashes = [hash.0, self.hash_client(&s.tuple, action.zone)];
            let mut random = self.random();
            let is_free = |t: &Tuple| {
                let hash = self.hash(t, action.zone);
                let key = Key::new(t, action.zone);
                self.lookup(now_ms, &key, hash, false).is_none()
            };
            let reply = nat::reply(&s.tuple, range, hashes, &mut random, is_free);
            new.reply = reply.ok_or(Refused::Why(Event::NatExhausted))?;
            add_helper(&mut new);
            let hashes = [hash, self.hash(&new.reply, action.zone)];
            match self.insert(now_ms, &new, free, hashes) {
                Err(Refused::Why(Event::NatExhausted)) => {}
                other => return other,
            }
        }
        Err(Refused::Why(Event::NatExhausted))
    }

    /// Adds a connection that another one has announced. It gets the translation of the announcement, if any.
    #[cold]
    fn enter_expected(
        &self,
        p: &CtPacket<'_>,
        e: &Expectation,
        mut new: New,
        free: FreeRecord<'_>,
    ) -> Result<(), Refused> {
        let action = p.action;
        (new.mark, new.label, new.parent) = (e.mark, e.label, Some(e.orig));
        new.flags = RELATED | helper::flags(action.helper, &new.orig, &new.reply, true);
        if action.nat.is_some() {
            match e.end {
                NatEnd::Src => {
                    new.flags |= SNAT;
                    new.reply.dst.addr = e.address;
                }
                NatEnd::Dst => {
                    new.flags |= DNAT;
                    new.reply.src.addr = e.address;
                    new.reply.src.l4 = e.port.unwrap_or(new.reply.src.l4);
                }
            }
        }
        let hashes = [p.hash, self.hash(&new.reply, new.zone)];
        self.insert(p.now_ms, &new, free, hashes)
    }

    fn insert(
        &self,
        now_ms: u64,
        new: &New,
        FreeRecord { number, record }: FreeRecord<'_>,
        hashes: [Hash; 2],
    ) -> Result<(), Refused> {
        let generation = self.slots.fill(record, new);
        let keys = [Key::new(&new.orig, new.zone), Key::new(&new.reply, new.zone)];
        let both = hashes[0] == hashes[1];
        let is_same = |r: &Record, first: bool| {
            let [orig, reply] = &keys;
            let (a, b) = if first {
                (Some(orig), both.then_some(reply))
            } else {
                (Some(reply), None)
            };
            [a, b].into_iter().flatten().any(|k| r.direction(k).is_some())
        };
        let judge = |e: RecordRef, first: bool| {
            let Some(r) = self.slots.get(e.number) else {
                return Judgement::Dead;
            };
            if !e.is_of(r.generation()) {
                return Judgement::Dead;
            }
            if !is_same(r, first) {
                return Judgement::Other;
            }
            if r.is_alive(now_ms) {
                return Judgement::Taken;
            }
            self.kill(e.number, r);
            Judgement::Dead
        };
        let entry = RecordRef { number, generation };
        let publish = || record.publish(new.label != 0, new.state);
        // Before other threads find the record, which may then write other times.
        self.slots.look_at(number, new.expires_ms);
        let inserted = self.index.insert(entry, hashes, judge, publish);
        if inserted.is_err() {
            self.slots.look_never(number);
        }
        inserted.map_err(|e| match e {
            NotInserted::Taken(true) => Refused::Taken,
            NotInserted::Taken(false) => Refused::Why(Event::NatExhausted),
            NotInserted::Full => Refused::Why(Event::NoRoom),
            NotInserted::Busy => Refused::Why(Event::Busy),
        })
    }

    /// Writes the result that the packet has from here on.
    #[inline]
    fn finish(&self, p: &mut CtPacket<'_>, hit: Option<Hit<'_>>) {
        let (s, action) = (p.subject, p.action);
        let (known, v) = (&mut *p.known, &mut *p.verdict);
        known.state |= TRK;
        known.zone = action.zone;
        known.found = None;
        let Some(h) = hit else {
            (known.mark, known.label) = (0, 0);
            known.orig = Some(s.tuple);
            return;
        };
        let (r, reply) = (h.record, h.reply);
        let flags = r.flags();
        if action.nat.is_none() {
            known.found = Some(ConnRef {
                number: h.number,
                generation: r.generation(),
                reply,
                related: s.related,
            });
        } else if flags & (SNAT | DNAT) != 0 && known.state & NATTED == 0 {
            v.rewrite = Some(translate(r, reply, s.related, &mut known.state));
        }
        if flags & CONTROL != 0 && !s.related && known.state & INV == 0 {
            let parent = Parent {
                number: h.number,
                generation: r.generation(),
            };
            let translated = v.rewrite.is_some();
            let control = Control {
                parent,
                reply,
                translated,
            };
            if flags & FTP != 0 {
                v.control = Some(control);
            } else if !reply {
                self.expect_tftp(p.now_ms, control, r);
            }
        }
        known.mark = r.mark();
        known.label = r.label();
        known.orig = Some(r.parent().unwrap_or_else(|| r.orig()));
        if flags & RELATED == 0 {
            if let Some((value, mask)) = action.mark {
                let before = std::mem::replace(&mut known.mark, r.set_mark(value, mask));
                if known.mark != before {
                    self.leaves(h.number, r);
                }
            }
            if let Some((value, mask)) = action.label {
                let before = known.label;
                match r.set_label(value, mask) {
                    Some(label) => known.label = label,
                    // The packet continues with the present label.
                    None => v.events.add(Event::Busy),
                }
                if known.label != before {
                    self.leaves(h.number, r);
                }
            }
        }
    }
}

/// Whether a new connection is translated. `expected`: another connection has announced it.
fn translates(action: &CtAction, expected: bool) -> bool {
    (action.commit || action.force)
        && action
            .nat
            .as_ref()
            .is_some_and(|nat| nat.new.is_some() || expected)
}

/// The result of [`Conntrack::begin`].
enum Begun<'a> {
    Not,
    Is(Hit<'a>),
    Taken,
}

/// The reason why a connection was not kept.
pub(crate) enum Refused {
    /// The table has the connection already.
    Taken,
    Why(Event),
}

impl From<Event> for Refused {
    fn from(e: Event) -> Self {
        Self::Why(e)
    }
}

/// A segment of a connection in which text is replaced, with sequence numbers as its senders count them.
#[cold]
fn as_sent(r: &Record, reply: bool, s: &Segment, natted: bool) -> Segment {
    let mut s = *s;
    if natted {
        s.seq = s.seq.wrapping_add_signed(r.skew(reply).of_received(s.seq));
    } else if s.flags & tcp::ACK != 0 {
        s.ack = s.ack.wrapping_add_signed(r.skew(!reply).of_received(s.ack));
    }
    s
}

/// The bit of `state` for the translated endpoint of packets in a direction.
#[inline]
pub(crate) fn translated(flags: u64, reply: bool) -> u8 {
    if (flags & SNAT != 0) == reply {
        state::DNAT
    } else {
        state::SNAT
    }
}

/// The rewrite of a packet of a translated connection: it gets the reversed tuple of the opposite direction.
#[allow(clippy::cast_possible_truncation)] // ports
fn translate(r: &Record, reply: bool, related: bool, state: &mut u8) -> Rewrite {
    let back = if reply { r.orig() } else { r.reply() };
    let bit = translated(r.flags(), reply);
    *state |= bit;
    let source = bit == state::SNAT;
    let has_ports = matches!(back.proto, proto::TCP | proto::UDP | proto::SCTP);
    let mut outer = HeaderChange {
        src: source.then_some(back.dst.addr),
        dst: (!source).then_some(back.src.addr),
        ..HeaderChange::default()
    };
    let id = back.is_icmp().then_some((back.src.l4 >> 16) as u16);
    if !related {
        outer.ports = has_ports.then_some((back.dst.l4 as u16, back.src.l4 as u16));
        outer.id = id;
        return Rewrite { outer, inner: None };
    }
    // The quoted packet went in the opposite direction.
    let inner = HeaderChange {
        src: (!source).then_some(back.src.addr),
        dst: source.then_some(back.dst.addr),
        ports: has_ports.then_some((back.src.l4 as u16, back.dst.l4 as u16)),
        id,
    };
    Rewrite {
        outer,
        inner: Some(inner),
    }
}
