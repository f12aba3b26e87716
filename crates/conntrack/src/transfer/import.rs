//! Adds a copy of another tracker's connection to this tracker.

use super::{ConnCopy, Malformed};
use crate::events::Event;
use crate::protocol::tcp::{self, TcpState};
use crate::protocol::timeouts::Class;
use crate::table::key::Key;
use crate::table::record::{
    DNAT, FTP, HAD, IMPORTED, LOOSE, New, Phase, RELATED, RELEARN, Record, SNAT, TFTP, UNTRIED,
};
use crate::table::skew::Skew;
use crate::track::Conntrack;
use crate::track::general::{Hit, Refused};
use crate::track::helper::{Control, Parent};
use crate::track::offloaded::ConnId;
use crate::tuple::Tuple;
use heddle_sync::ReadGuard;
use heddle_wire::ip::proto;
use std::fmt;

/// Outcome of an import.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Imported {
    /// The tracker had no such connection.
    New,
    /// An earlier import that no TCP segment has used yet got the values of this copy.
    Renewed,
    /// The tracker had tracked a connection between the same endpoints by itself. The copy replaced it.
    Replaced,
    /// An earlier import is in use here, or is not TCP. Its state stays.
    InUse,
}

/// The reason why a copy was not imported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// [`ConnCopy::check`] refuses the copy.
    Malformed,
    /// No time is left until the connection expires.
    Expired,
    /// Another connection has the translated address and port.
    NatClash,
    /// The zone's limit is reached.
    ZoneFull,
    /// The limit of all zones is reached, or the index is full.
    Full,
    /// A thread was preempted in the midst of a change to the table. A repetition may succeed.
    Busy,
}

impl Refusal {
    /// The reason in a few words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Expired => "expired",
            Self::NatClash => "translated address and port in use",
            Self::ZoneFull => "limit of the zone reached",
            Self::Full => "limit of all connections reached",
            Self::Busy => "busy, try again",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<Refused> for Refusal {
    fn from(why: Refused) -> Self {
        match why {
            Refused::Taken | Refused::Why(Event::Busy) => Self::Busy,
            Refused::Why(Event::NatExhausted) => Self::NatClash,
            Refused::Why(Event::ZoneLimit) => Self::ZoneFull,
            Refused::Why(_) => Self::Full,
        }
    }
}

/// Timeout class of a copy.
fn class(c: &ConnCopy) -> Class {
    match (&c.tcp, c.phase) {
        (Some([a, b]), _) => tcp::class(a.state, b.state),
        (None, Phase::Both) if c.orig.is_icmp() => Class::IcmpReply,
        (None, _) if c.orig.is_icmp() => Class::IcmpFirst,
        (None, Phase::Both) => Class::UdpMultiple,
        (None, Phase::Single) => Class::UdpSingle,
        (None, Phase::First) => Class::UdpFirst,
    }
}

/// An existing connection between the endpoints of a copy.
enum Existing<'a> {
    Nothing,
    /// The same connection: the copy's values replace its own.
    Same(Hit<'a>, Imported),
    /// A connection with another translation or direction: the import ends it.
    Other(Hit<'a>, ConnId),
    InUse,
}

/// Whether a connection has one of these addresses at an end.
fn is_of(r: &Record, owner: Option<&[(bool, u128)]>) -> bool {
    let Some(addresses) = owner else { return true };
    let orig = r.orig();
    let reply = match r.flags() & (SNAT | DNAT) {
        0 => orig.reversed(),
        _ => r.reply(),
    };
    let mut each = addresses.iter();
    each.any(|(ipv6, addr)| super::has_address(&orig, &reply, *ipv6, *addr))
}

impl Conntrack {
    /// Adds a copy of another tracker's connection to a zone, with the timeout policy of the name `policy`.
    /// `learn`: segments may have passed since the copy was made, so TCP windows are taken from the next
    /// segment. `owner`: addresses (whether IPv6, bits) of which a connection must have one to be replaced;
    /// `None`: any is.
    ///
    /// # Errors
    /// The reason why the copy is not imported. Connections between other endpoints have not changed.
    pub fn import(
        &self,
        now_ms: u64,
        zone: u16,
        policy: Option<&str>,
        c: &ConnCopy,
        learn: bool,
        owner: Option<&[(bool, u128)]>,
    ) -> Result<Imported, Refusal> {
        c.check()?;
        let policy = self.timeouts.find(policy);
        // A file must not keep connections for longer than the rules of this node.
        let left_ms = c.left_ms.min(self.timeouts.ms(policy, class(c)));
        if left_ms == 0 {
            return Err(Refusal::Expired);
        }
        let bits = state_bits(c, learn);
        let ended = {
            let _reading = ReadGuard::begin();
            if self.reply_is_taken(now_ms, zone, c) {
                return Err(Refusal::NatClash);
            }
            match self.existing(now_ms, zone, c) {
                Existing::Nothing => None,
                Existing::InUse => return Ok(Imported::InUse),
                Existing::Same(h, how) => {
                    // The tracker has seen segments since: the copy's windows may be old.
                    let had = how == Imported::Replaced || h.record.state() & HAD != 0;
                    let relearn = if had && c.tcp.is_some() { RELEARN } else { 0 };
                    let bits = bits | relearn | if had { HAD } else { 0 };
                    self.renew(h, c, now_ms + left_ms, bits);
                    return Ok(how);
                }
                Existing::Other(h, id) if is_of(h.record, owner) => Some(id),
                Existing::Other(..) => return Err(Refusal::NatClash),
            }
        };
        let how = match ended {
            Some(id) => {
                self.end(now_ms, id);
                Imported::Replaced
            }
            None => Imported::New,
        };
        let new = New {
            zone,
            orig: c.orig,
            reply: c.reply,
            flags: c.flags(),
            expires_ms: now_ms + left_ms,
            policy,
            mark: c.mark,
            label: c.label,
            tcp: c.tcp.unwrap_or_default(),
            admission: 0,
            parent: c.parent,
            skews: c.skews.map(Skew),
            state: bits,
        };
        let _reading = ReadGuard::begin();
        let (number, record) = self.take_in(now_ms, new)?;
        self.announce(now_ms, number, record, c);
        Ok(how)
    }

    fn holder(&self, now_ms: u64, zone: u16, t: &Tuple) -> Option<Hit<'_>> {
        self.lookup(now_ms, &Key::new(t, zone), self.hash(t, zone), false)
    }

    /// Whether another connection has the reply tuple of a translated copy.
    fn reply_is_taken(&self, now_ms: u64, zone: u16, c: &ConnCopy) -> bool {
        let own = self.holder(now_ms, zone, &c.orig).map(|h| h.number);
        let holder = self.holder(now_ms, zone, &c.reply).map(|h| h.number);
        c.nat.is_some() && holder.is_some() && holder != own
    }

    fn existing(&self, now_ms: u64, zone: u16, c: &ConnCopy) -> Existing<'_> {
        let Some(h) = self.holder(now_ms, zone, &c.orig) else {
            return Existing::Nothing;
        };
        let r = h.record;
        let flags = SNAT | DNAT | RELATED | FTP | TFTP;
        let reply = if c.nat.is_some() { r.reply() } else { c.reply };
        let same = !h.reply && (r.flags() ^ c.flags()) & flags == 0 && reply == c.reply;
        let keeps_label = r.flags() & RELATED != 0 && r.label() != c.label;
        if !same || keeps_label || r.parent() != c.parent {
            let id = ConnId {
                number: h.number,
                generation: r.generation(),
            };
            return Existing::Other(h, id);
        }
        let state = r.state();
        let untried = c.tcp.is_some() && state & UNTRIED != 0;
        match state & IMPORTED != 0 {
            true if untried => Existing::Same(h, Imported::Renewed),
            true => Existing::InUse,
            false => Existing::Same(h, Imported::Replaced),
        }
    }

    /// Replaces the values of an existing connection with those of a copy.
    fn renew(&self, h: Hit<'_>, c: &ConnCopy, expires_ms: u64, bits: u64) {
        let r = h.record;
        r.clear_state(LOOSE | RELEARN);
        r.set_state(bits & (LOOSE | RELEARN | IMPORTED | UNTRIED | HAD));
        if let Some(copied) = c.tcp {
            let put = |peers: &mut [tcp::Peer; 2]| *peers = copied;
            if r.with_peers(put).is_none() {
                // A worker that was preempted has the lock. So the windows are taken from the next segment.
                r.set_state(RELEARN);
            }
        } else {
            r.advance(|_| c.phase);
        }
        r.set_skews(c.skews.map(Skew));
        r.set_mark(c.mark, u32::MAX);
        let _ = r.set_label(c.label, u128::MAX);
        self.touch(h.number, r, expires_ms);
        // An offload back end has the earlier values.
        self.leaves(h.number, r);
    }

    fn announce(&self, now_ms: u64, number: u32, r: &Record, c: &ConnCopy) {
        let generation = r.generation();
        for a in &c.expected {
            let control = Control {
                parent: Parent { number, generation },
                reply: a.reply,
                translated: false,
            };
            self.expect(now_ms, control, r, a.port.into(), a.own_port.map(Into::into));
        }
    }
}

/// State bits of an imported connection.
fn state_bits(c: &ConnCopy, learn: bool) -> u64 {
    let Some([a, b]) = c.tcp else {
        debug_assert!(c.orig.proto != proto::TCP);
        return IMPORTED | c.phase.bits();
    };
    // Only established connections learn: in a handshake both endpoints repeat their segments.
    let up = a.state.min(b.state) >= TcpState::Established;
    let loose = if c.loose && up { LOOSE } else { 0 };
    let relearn = if learn && up { RELEARN } else { 0 };
    IMPORTED | UNTRIED | loose | relearn
}
