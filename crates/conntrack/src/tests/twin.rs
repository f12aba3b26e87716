//! A plain twin of the tracker: one list, searched from its beginning; no hash, no cache, no other thread.
//!
//! The twin implements the rules anew: the connection of a packet, the checks of RFC 9293 that a middlebox
//! can make, translation and expiry. The tracker chooses a free port for a connection; the twin checks that
//! this choice was allowed.

use super::frames::{Frame, Inner};
use crate::action::{CtAction, NatEnd};
use crate::events::Event;
use crate::protocol::tcp::{ACK, FIN, PSH, RST, SYN, URG};
use crate::track::general::state::{DNAT, EST, INV, NEW, REL, RPL, SNAT, TRK};
use crate::tuple::{Tuple, bits};
use heddle_wire::ip::proto;

/// One endpoint of a TCP connection: the end of its data, the limit of its data, its window.
#[derive(Clone, Copy, Debug, Default)]
struct PeerModel {
    sent: u32,
    may: u32,
    window: i64,
    /// `None` if the SYN had no scale, `Some(None)` if no SYN was seen.
    scale: Option<Option<u32>>,
    stage: Stage,
}

/// Progress of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Stage {
    #[default]
    Silent,
    Began,
    Heard,
    Ends,
    Ended,
    Reset,
}

/// Effect of a segment on its connection.
#[derive(PartialEq)]
enum Effect {
    Part,
    Beginning,
    Nonsense(Event),
    Another,
}

#[derive(Clone, Debug)]
struct Conn {
    zone: u16,
    orig: Tuple,
    reply: Tuple,
    nat: Option<NatEnd>,
    mark: u32,
    label: u128,
    expires_s: u64,
    dead: bool,
    /// The connection counts against the zone's limit.
    counted: bool,
    ends: [PeerModel; 2],
    has_reply: bool,
}

/// Result of `ct` for a packet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TwinState {
    pub(super) state: u8,
    pub(super) zone: u16,
    pub(super) mark: u32,
    pub(super) label: u128,
    pub(super) orig: Option<Tuple>,
    found: Option<(usize, bool, bool)>,
}

#[derive(Default)]
pub(super) struct Twin {
    conns: Vec<Conn>,
    /// Number of connections that were swept.
    swept: usize,
    pub(super) now_s: u64,
    pub(super) max: usize,
    /// Limit of zone 1.
    pub(super) limit: Option<usize>,
    pub(super) unchecked: bool,
    pub(super) events: Vec<Event>,
}

const RECENT: i64 = 0xffff + 1500;

/// Returns `a` - `b` as a signed distance of sequence numbers (RFC 9293, 3.4).
fn beyond(a: u32, b: u32) -> i64 {
    i64::from(a.wrapping_sub(b).cast_signed())
}

fn nonsense(flags: u16) -> bool {
    let is = |f| flags & f != 0;
    let alone = !is(ACK) && (is(FIN) || is(PSH) || is(URG));
    alone || is(SYN) && (is(RST) || is(FIN)) || !is(SYN) && !is(ACK) && !is(RST)
}

impl Twin {
    fn alive(&self, c: &Conn) -> bool {
        !c.dead && self.now_s < c.expires_s
    }
    fn find(&self, t: &Tuple, zone: u16) -> Option<(usize, bool)> {
        let mut all = self.conns.iter().enumerate();
        all.find_map(|(n, c)| {
            let mine = self.alive(c) && c.zone == zone;
            let reply = if *t == c.orig { false } else { *t == c.reply };
            (mine && (*t == c.orig || reply)).then_some((n, reply))
        })
    }
    pub(super) fn count(&self) -> usize {
        self.conns.len() - self.swept
    }
    pub(super) fn sweep(&mut self) {
        let now = self.now_s;
        self.swept = 0;
        for c in &mut self.conns {
            c.dead |= now >= c.expires_s;
            c.counted &= !c.dead;
            self.swept += usize::from(c.dead);
        }
    }
    pub(super) fn flush(&mut self, zone: u16) {
        let now = self.now_s;
        let of_zone = self
            .conns
            .iter_mut()
            .filter(|c| c.zone == zone && !c.dead && now < c.expires_s);
        if of_zone.map(|c| c.dead = true).count() > 0 {
            self.sweep();
        }
    }
    pub(super) fn set_limit(&mut self, limit: Option<usize>) {
        if self.limit.is_none() || limit.is_none() {
            self.conns.iter_mut().for_each(|c| c.counted = false);
        }
        self.limit = limit;
    }

    /// Tracks a packet and translates it in place. `got` is the packet as the tracker has translated it, if
    /// it has.
    pub(super) fn track(
        &mut self,
        f: &mut Frame,
        known: &mut TwinState,
        action: &CtAction,
        got: Option<&[u8]>,
    ) {
        self.events.clear();
        let zone = action.zone;
        if f.bad {
            self.events.push(Event::L4Checksum);
            *known = TwinState {
                state: INV | TRK,
                zone,
                ..TwinState::default()
            };
            return;
        }
        if let Some((n, reply, related)) = known.found.filter(|_| !action.force && known.zone == zone)
            && self.alive(&self.conns[n])
        {
            return self.finish(f, known, action, Some((n, reply)), related, self.conns[n].orig);
        }
        let prior = std::mem::take(known);
        known.state = if prior.zone == zone { prior.state } else { 0 };
        let natted = known.state & (SNAT | DNAT) != 0;
        let related = matches!(f.inner, Inner::Error(_));
        let mut tuple = f.tuple();
        let mut hit = self.find(&tuple, zone);
        if natted {
            // The reversed tuple of a translated packet is that of its replies, so it finds the connection.
            hit = self.find(&tuple.reversed(), zone).map(|(n, reply)| (n, !reply));
            match hit {
                Some((n, true)) => tuple = self.conns[n].reply,
                Some((n, false)) => tuple = self.conns[n].orig,
                None => self.events.push(Event::NatLost),
            }
        }
        if let Some((n, true)) = hit.filter(|_| action.force) {
            self.conns[n].dead = true;
            hit = None;
        }
        if hit.is_none() && natted && action.nat.is_none() {
            let same = prior.orig.filter(|o| o.ipv6 == f.v6).map(|o| {
                let id = |t: &Tuple| u16::try_from(t.src.l4 >> 16).unwrap();
                match o.is_icmp() {
                    true => o.with_icmp(id(&tuple), o.tp().0.to_be_bytes()[1], 0).unwrap(),
                    false => o,
                }
            });
            hit = same.and_then(|o| self.find(&o, zone)).map(|(n, _)| (n, false));
        }
        match hit {
            Some(_) if related => known.state |= REL | if hit.is_some_and(|h| h.1) { RPL } else { 0 },
            Some((n, reply)) => match self.advance(n, reply, f) {
                Effect::Part => known.state = known.state & !NEW | EST | if reply { RPL } else { 0 },
                Effect::Beginning => known.state |= NEW,
                Effect::Nonsense(e) => {
                    known.state = INV;
                    self.events.extend((e != Event::Malformed).then_some(e));
                }
                Effect::Another => {
                    self.conns[n].dead = true;
                    hit = self.begin(f, tuple, known, action, got);
                }
            },
            None if related => known.state = INV,
            None => hit = self.begin(f, tuple, known, action, got),
        }
        self.finish(f, known, action, hit, related, tuple);
    }

    fn finish(
        &mut self,
        f: &mut Frame,
        known: &mut TwinState,
        action: &CtAction,
        hit: Option<(usize, bool)>,
        related: bool,
        tuple: Tuple,
    ) {
        known.state |= TRK;
        known.zone = action.zone;
        known.found = None;
        let Some((n, reply)) = hit else {
            (known.mark, known.label, known.orig) = (0, 0, Some(tuple));
            return;
        };
        let c = &mut self.conns[n];
        known.orig = Some(c.orig);
        if let Some((v, m)) = action.mark {
            c.mark = c.mark & !m | v & m;
        }
        if let Some((v, m)) = action.label {
            c.label = c.label & !m | v & m;
        }
        (known.mark, known.label) = (c.mark, c.label);
        if action.nat.is_none() {
            known.found = Some((n, reply, related));
        } else if let Some(end) = c.nat
            && known.state & (SNAT | DNAT) == 0
        {
            let to = if reply { c.orig } else { c.reply }.reversed();
            let source = (end == NatEnd::Src) != reply;
            known.state |= if source { SNAT } else { DNAT };
            *f = f.translated(&to, source);
        }
    }

    fn begin(
        &mut self,
        f: &Frame,
        tuple: Tuple,
        known: &mut TwinState,
        action: &CtAction,
        got: Option<&[u8]>,
    ) -> Option<(usize, bool)> {
        let may = match &f.inner {
            Inner::Tcp { flags, .. } => !nonsense(*flags) && flags & (SYN | ACK) != SYN | ACK,
            Inner::Echo => !f.echo_reply,
            _ => true,
        };
        known.state = if may { NEW } else { INV };
        if !may || !action.commit && !action.force {
            return None;
        }
        let counted = self.limit.is_some() && action.zone == 1;
        let of_zone = self.conns.iter().filter(|c| c.counted).count();
        let refused = if counted && self.limit.is_some_and(|l| l > 0 && of_zone >= l) {
            Some(Event::ZoneLimit)
        } else if self.count() >= self.max {
            Some(Event::Full)
        } else {
            None
        };
        let reply = match refused {
            Some(e) => Err(e),
            None => self.reply(f, tuple, action, got),
        };
        match reply {
            Ok(reply) => {
                let mut c = Conn {
                    zone: action.zone,
                    orig: tuple,
                    reply,
                    nat: action.nat.and_then(|n| n.new).map(|r| r.end),
                    mark: 0,
                    label: 0,
                    expires_s: self.now_s,
                    dead: false,
                    counted,
                    ends: [PeerModel::default(); 2],
                    has_reply: false,
                };
                c.expires_s += match &f.inner {
                    Inner::Tcp { .. } => 30,
                    _ => 60,
                };
                c.first(&f.inner);
                self.conns.push(c);
                Some((self.conns.len() - 1, false))
            }
            Err(e) => {
                self.events.push(e);
                None
            }
        }
    }

    /// Returns the tuple of replies: the tracker's choice. Panics if this choice is not allowed.
    fn reply(&self, f: &Frame, tuple: Tuple, action: &CtAction, got: Option<&[u8]>) -> Result<Tuple, Event> {
        let Some(range) = action.nat.and_then(|n| n.new) else {
            let taken = self.find(&tuple.reversed(), action.zone);
            return taken.map_or(Ok(tuple.reversed()), |_| Err(Event::Clash));
        };
        let has_ports = matches!(tuple.proto, proto::TCP | proto::UDP | proto::SCTP);
        let free = |t: &Tuple| self.find(&t.reversed(), action.zone).is_none();
        let addrs: Vec<u128> = match range.addresses {
            Some((a, b)) if bits(a) != 0 && a.is_ipv6() == f.v6 => (bits(a)..=bits(b)).collect(),
            _ => match range.end {
                NatEnd::Src => vec![tuple.src.addr],
                NatEnd::Dst => vec![tuple.dst.addr],
            },
        };
        let candidates = |addr: u128| {
            let mut t = tuple;
            let end = match range.end {
                NatEnd::Src => &mut t.src,
                NatEnd::Dst => &mut t.dst,
            };
            end.addr = addr;
            let own = end.l4;
            let (from, to) = match range.ports {
                Some((a, b)) if has_ports => (a.into(), b.into()),
                _ => (own, own),
            };
            (from..=to).map(move |port| {
                let mut t = t;
                match range.end {
                    NatEnd::Src => t.src.l4 = port,
                    NatEnd::Dst => t.dst.l4 = port,
                }
                t
            })
        };
        let all_taken = |addr: u128| !candidates(addr).any(|t| free(&t));
        // If the source port may be any port, the tests always leave one free.
        let any_port = has_ports && (range.end == NatEnd::Dst || range.ports.is_none()) || tuple.is_icmp();
        let ports = |b: &[u8]| {
            if has_ports {
                b[f.ip_len()..][..4].to_vec()
            } else {
                vec![]
            }
        };
        let addresses = |b: &[u8]| b[if f.v6 { 8..40 } else { 12..20 }].to_vec();
        let Some(got) = got else {
            let may = !any_port && addrs.iter().any(|a| all_taken(*a));
            assert!(may, "{range:?} has something for {tuple:?}");
            return Err(Event::NatExhausted);
        };
        let mut t = tuple;
        let a = addresses(got);
        let number = |b: &[u8]| b.iter().fold(0, |n, b| n << 8 | u128::from(*b));
        (t.src.addr, t.dst.addr) = (number(&a[..a.len() / 2]), number(&a[a.len() / 2..]));
        if has_ports {
            let p = ports(got);
            t.src.l4 = u16::from_be_bytes([p[0], p[1]]).into();
            t.dst.l4 = u16::from_be_bytes([p[2], p[3]]).into();
        }
        if tuple.is_icmp() {
            let at = f.ip_len() + 4;
            t = t.with_icmp_id(u32::from(got[at]) << 8 | u32::from(got[at + 1]));
        }
        assert!(free(&t), "{t:?} is taken");
        let addr = match range.end {
            NatEnd::Src => t.src.addr,
            NatEnd::Dst => t.dst.addr,
        };
        assert!(addrs.contains(&addr), "{t:?} is no address of {range:?}");
        let allowed = candidates(addr).any(|c| c == t);
        let by_source = any_port && all_taken(addr) && t.src.l4 != 0 && {
            candidates(addr).any(|mut c| {
                if tuple.is_icmp() {
                    c = c.with_icmp_id(t.src.l4 >> 16);
                } else {
                    c.src.l4 = t.src.l4;
                }
                c == t
            })
        };
        assert!(allowed || by_source, "{t:?} is not of {range:?}");
        Ok(t.reversed())
    }

    fn advance(&mut self, n: usize, reply: bool, f: &Frame) -> Effect {
        let now = self.now_s;
        let unchecked = self.unchecked;
        let events = &mut self.events;
        let c = &mut self.conns[n];
        let Inner::Tcp { .. } = &f.inner else {
            c.has_reply |= reply;
            c.expires_s = now + if c.has_reply { 30 } else { 60 };
            return if c.has_reply {
                Effect::Part
            } else {
                Effect::Beginning
            };
        };
        let (says, lives) = c.segment(reply, &f.inner, unchecked, events);
        if let Some(s) = lives {
            c.expires_s = now + s;
        }
        says
    }
}

impl Conn {
    fn first(&mut self, s: &Inner) {
        let &Inner::Tcp {
            flags,
            seq,
            window,
            scale,
            len,
            ..
        } = s
        else {
            return;
        };
        let syn = flags & SYN != 0;
        let scale = scale.map(|s| u32::from(s.min(14)));
        let given = match (syn, scale) {
            (false, _) => Some(None),
            (true, Some(s)) => Some(Some(s)),
            (true, None) => None,
        };
        let extra = u32::from(syn) + u32::from(flags & FIN != 0);
        let shift = given.flatten().unwrap_or(0);
        self.ends[0] = PeerModel {
            sent: seq,
            may: seq.wrapping_add(u32::try_from(len).unwrap() + extra + 1),
            window: (i64::from(window.max(1)) + (1 << shift) - 1) >> shift,
            scale: given,
            stage: Stage::Began,
        };
        self.ends[1] = PeerModel {
            sent: 0,
            may: 1,
            window: 1,
            scale: if syn { None } else { Some(None) },
            stage: Stage::Silent,
        };
    }

    /// Returns the effect of a segment, and the connection's new lifetime in seconds; `None`: unchanged.
    fn segment(
        &mut self,
        reply: bool,
        s: &Inner,
        unchecked: bool,
        events: &mut Vec<Event>,
    ) -> (Effect, Option<u64>) {
        let &Inner::Tcp {
            flags,
            seq,
            ack,
            window,
            scale,
            len,
        } = s
        else {
            unreachable!()
        };
        let is = |f| flags & f != 0;
        let [mut me, mut you] = self.ends;
        if reply {
            std::mem::swap(&mut me, &mut you);
        }
        let mut done = |me: PeerModel, you: PeerModel| self.ends = if reply { [you, me] } else { [me, you] };
        if nonsense(flags) {
            return (Effect::Nonsense(Event::TcpFlags), None);
        }
        if is(SYN) && !is(ACK) {
            if me.stage >= Stage::Ended && you.stage >= Stage::Ended {
                return (Effect::Another, None);
            }
            if me.stage <= Stage::Began {
                me.stage = Stage::Began;
                done(me, you);
                return (Effect::Beginning, Some(30));
            }
        }
        let (mut mine, mut yours) = match (me.scale, you.scale) {
            _ if is(SYN) => (0, 0),
            (Some(Some(a)), Some(Some(b))) => (a, b),
            (Some(None), Some(None)) => (14, 14),
            _ => (0, 0),
        };
        let len = u32::try_from(len).unwrap() + u32::from(is(SYN)) + u32::from(is(FIN));
        let (mut from, mut to, mut window) = (seq, seq.wrapping_add(len), i64::from(window));
        let mut skews = true;
        if me.stage == Stage::Silent {
            if is(SYN)
                && let Some(Some(theirs)) = you.scale
            {
                match scale {
                    Some(shift) => {
                        let shift = u32::from(shift.min(14));
                        me.scale = Some(Some(shift));
                        window = (window + (1 << shift) - 1) >> shift;
                        (mine, yours) = (shift, theirs);
                    }
                    None => {
                        you.window = (you.window << theirs).min(0xffff);
                        you.scale = None;
                    }
                }
            }
            me.sent = seq;
            me.stage = Stage::Began;
            let reach = u32::try_from((you.window << yours).max(1)).unwrap();
            let may = to.wrapping_add(reach);
            if me.may == 1 || beyond(may, me.may) >= 0 {
                me.may = may;
                skews = false;
            }
            me.window = me.window.max(window);
        }
        let ack = if !is(ACK) || ack == 0 && is(RST) {
            you.sent
        } else {
            ack
        };
        if from == to {
            (from, to) = (me.sent, me.sent);
        }
        let skew = if skews { beyond(you.sent, ack) } else { 0 };
        let back = u32::try_from(you.window << yours).unwrap();
        let fits = beyond(me.may, to) >= 0
            && beyond(from, me.sent.wrapping_sub(back)) >= 0
            && (-RECENT..=RECENT << mine).contains(&skew)
            && (!is(RST) || beyond(seq, me.sent).abs() <= 1);
        let opens = you.stage == Stage::Silent || you.stage >= Stage::Ended || me.stage >= Stage::Ended;
        let near = beyond(me.may.wrapping_add(0xffff + 1500), to) >= 0
            && beyond(from, me.sent.wrapping_sub(0xffff + 1500)) >= 0;
        if !(fits || unchecked || opens && near) {
            done(me, you);
            return (Effect::Nonsense(Event::TcpOutOfWindow), None);
        }
        me.window = me.window.max(window);
        if beyond(to, me.sent) > 0 {
            me.sent = to;
        }
        let offered = u32::try_from(window << mine).unwrap();
        if beyond(ack.wrapping_add(offered), you.may) >= 0 {
            you.may = ack.wrapping_add(offered.max(1));
        }
        if is(FIN) {
            me.stage = me.stage.max(Stage::Ends);
        }
        if is(ACK) && (fits || unchecked) {
            you.stage = match you.stage {
                Stage::Began => Stage::Heard,
                Stage::Ends => Stage::Ended,
                other => other,
            };
        }
        if is(RST) {
            (me.stage, you.stage) = (Stage::Reset, Stage::Reset);
        }
        done(me, you);
        if !fits && !unchecked {
            return (Effect::Part, None);
        }
        if !fits {
            events.push(Event::TcpUnchecked);
        }
        let (low, high) = (me.stage.min(you.stage), me.stage.max(you.stage));
        let lives = match (low, high) {
            (Stage::Ended | Stage::Reset, _) => 30,
            (Stage::Ends, _) => 45,
            (Stage::Silent | Stage::Began, _) => 30,
            (_, Stage::Heard) => 24 * 60 * 60,
            _ => 15 * 60,
        };
        (Effect::Part, Some(lives))
    }
}
