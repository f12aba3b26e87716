//! Connections whose packets an offload back end forwards, without the tracker.
//!
//! **Problem.** The tracker does not see packets that the back end forwards. So it knows neither the windows
//! of the connection nor the time of the last packet. The back end needs a call at once when the connection
//! ends, gets its first reply, or gets another mark or label.
//!
//! **Shape.** A record has two bits. [`OFFLOADED`]: a back end has the connection. A thread that ends it,
//! changes its mark or label, or sees its first reply or its close calls the back end ([`EndOffload::end`]).
//! The back end has to stop with this call. [`LOOSE`]: a back end had the connection, and no segment has
//! shown the windows since. While one of the two is set, segments other than SYN move the windows to their
//! own position. The tracker does the same for a connection that it picks up in its midst. So an attacker
//! between the endpoints could reset it by a segment outside of its windows.
//!
//! **Order.** The thread that moves a connection to a back end sets the bit first and then reads the
//! connection ([`Conntrack::offload`]). So no change is lost: a change is either read, or it calls the back
//! end.
//!
//! **A restart.** A back end may outlive its process. The next process finds established connections in it,
//! and takes them into its own table ([`Conntrack::adopt`]).

use crate::protocol::tcp;
use crate::protocol::timeouts::Class;
use crate::table::record::{CONTROL, DNAT, LOOSE, New, OFFLOADED, Phase, RELATED, Record, SNAT};
use crate::track::Conntrack;
use crate::track::general::state::{EST, NEW as NEW_CONN, RPL, TRK};
use crate::tuple::Tuple;
use heddle_sync::ReadGuard;
use heddle_wire::ip::proto;
use std::fmt;
use std::sync::Arc;

/// A connection is in use if its last packet is at most this old. Times of packets have steps of a second.
const LATE_MS: u64 = 2500;

/// A back end that forwards packets of connections. Workers call it: it must neither wait nor allocate.
pub trait EndOffload: Send + Sync {
    /// From now on the tracker gets the packets of this connection. `number` is [`ConnId::number`].
    fn end(&self, number: u32);
}

/// The back end that was set. Debug output omits it.
#[derive(Default)]
pub(crate) struct Ender(std::sync::OnceLock<Arc<dyn EndOffload>>);

impl fmt::Debug for Ender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ender").finish_non_exhaustive()
    }
}

/// The identity of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId {
    /// Number, which another connection gets after this one.
    pub number: u32,
    /// Differs between connections with the same number.
    pub generation: u32,
}

/// A connection that may go to a back end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Identity.
    pub id: ConnId,
    /// Zone.
    pub zone: u16,
    /// [`Offloadable::replied`].
    pub replied: bool,
}

/// The part of a TCP or UDP connection that a back end needs. It is established, or a stream of UDP without
/// a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offloadable {
    /// Identity.
    pub id: ConnId,
    /// Zone.
    pub zone: u16,
    /// Packets came in both directions. Otherwise the back end forwards the original direction only, and
    /// stops with the first reply ([`EndOffload::end`]).
    pub replied: bool,
    /// Tuple of the original direction.
    pub orig: Tuple,
    /// Tuple of the reply direction.
    pub reply: Tuple,
    /// The source of the original direction is translated.
    pub snat: bool,
    /// The destination of the original direction is translated.
    pub dnat: bool,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
}

impl Offloadable {
    /// Bits of `ct_state` of its packets, without those that an action with `nat` adds.
    pub fn state(&self, reply: bool) -> u8 {
        TRK | if self.replied { EST } else { NEW_CONN } | if reply { RPL } else { 0 }
    }
}

impl Record {
    fn is_replied(&self) -> bool {
        self.proto() == proto::TCP || self.phase() == Phase::Both
    }
    fn is_offloadable(&self) -> bool {
        let up = match self.proto() {
            proto::TCP => {
                let [a, b] = self.peers();
                tcp::class(a.state, b.state) == Class::TcpEstablished
            }
            // One packet is no stream yet.
            proto::UDP => self.phase() != Phase::First,
            _ => false,
        };
        // Helpers read the packets of `CONTROL` connections. Packets of `RELATED` connections are `+rel`.
        up && self.flags() & (CONTROL | RELATED) == 0
    }
}

impl Conntrack {
    /// Sets the back end that is called when a connection leaves it. Only the first call counts.
    pub fn set_end_offload(&self, end: Arc<dyn EndOffload>) {
        let _ = self.ender.0.set(end);
    }
    /// Passes connections of TCP and UDP to `show`: those in use that a back end may have and none has.
    /// Reads the next `budget` records from `at`, which begins at 0. Returns the next `at`; `None`: all
    /// records were read.
    pub fn offloadable(
        &self,
        now_ms: u64,
        at: u32,
        budget: u32,
        mut show: impl FnMut(Candidate),
    ) -> Option<u32> {
        self.walk(now_ms, at, budget, |number, r| {
            if r.state() & OFFLOADED != 0 || !r.is_offloadable() {
                return;
            }
            let left = r.expires_ms().saturating_sub(now_ms);
            if left + LATE_MS < self.timeouts.ms(r.policy(), r.offload_class()) {
                return;
            }
            let generation = r.generation();
            show(Candidate {
                id: ConnId { number, generation },
                zone: r.zone(),
                replied: r.is_replied(),
            });
        })
    }
    /// Moves this connection to a back end. `None`: it must not be offloaded. From now on, and maybe before
    /// this returns, [`EndOffload::end`] is called when the back end has to stop.
    pub fn offload(&self, now_ms: u64, id: ConnId) -> Option<Offloadable> {
        let _reading = ReadGuard::begin();
        let r = self.alive(now_ms, id)?;
        if !r.set_state(OFFLOADED) {
            return None;
        }
        // The number may have gone to another connection before the bit was set.
        if r.generation() != id.generation || !r.is_alive(now_ms) || !r.is_offloadable() {
            r.clear_state(OFFLOADED);
            return None;
        }
        let flags = r.flags();
        let orig = r.orig();
        let natted = flags & (SNAT | DNAT) != 0;
        Some(Offloadable {
            id,
            zone: r.zone(),
            replied: r.is_replied(),
            orig,
            reply: if natted { r.reply() } else { orig.reversed() },
            snat: flags & SNAT != 0,
            dnat: flags & DNAT != 0,
            mark: r.mark(),
            label: r.label(),
        })
    }
    /// Adds a connection that an earlier process has tracked and a back end still has. It gets the default
    /// timeouts and unknown windows. `id` is not read. `false`: the table has it already, or is full.
    pub fn adopt(&self, now_ms: u64, c: &Offloadable) -> bool {
        let (class, phase) = match (c.orig.proto, c.replied) {
            (proto::TCP, true) => (Class::TcpEstablished, Phase::Both),
            (proto::UDP, true) => (Class::UdpMultiple, Phase::Both),
            (proto::UDP, false) => (Class::UdpSingle, Phase::Single),
            _ => return false,
        };
        let policy = self.timeouts.find(None);
        let end = tcp::Peer {
            window: u16::MAX,
            scale: tcp::Scale::Unknown,
            state: tcp::TcpState::Established,
            ..tcp::Peer::default()
        };
        let flag = |has: bool, flag: u64| if has { flag } else { 0 };
        let new = New {
            zone: c.zone,
            orig: c.orig,
            reply: c.reply,
            flags: flag(c.snat, SNAT) | flag(c.dnat, DNAT),
            expires_ms: now_ms + self.timeouts.ms(policy, class),
            policy,
            mark: c.mark,
            label: c.label,
            tcp: [end; 2],
            admission: 0,
            parent: None,
            skews: Default::default(),
            state: LOOSE | phase.bits(),
        };
        let _reading = ReadGuard::begin();
        self.take_in(now_ms, new).is_ok()
    }
    /// The back end has stopped forwarding a connection.
    pub fn onload(&self, now_ms: u64, id: ConnId) {
        let _reading = ReadGuard::begin();
        if let Some(r) = self.alive(now_ms, id) {
            r.comes_back();
        }
    }
    /// Whether the back end may keep a connection. `used`: it has forwarded packets of the connection lately.
    pub fn still_offloaded(&self, now_ms: u64, id: ConnId, used: bool) -> bool {
        let _reading = ReadGuard::begin();
        let Some(r) = self.alive(now_ms, id) else {
            return false;
        };
        if used {
            self.touch(
                id.number,
                r,
                now_ms + self.timeouts.ms(r.policy(), r.offload_class()),
            );
        }
        r.state() & OFFLOADED != 0
    }
    pub(crate) fn alive(&self, now_ms: u64, id: ConnId) -> Option<&Record> {
        let r = self.slots.get(id.number)?;
        (r.generation() == id.generation && r.is_alive(now_ms)).then_some(r)
    }
    /// Ends a connection, and its offload. `false`: it had ended before.
    pub(crate) fn kill(&self, number: u32, r: &Record) -> bool {
        let first = r.kill();
        if first {
            self.slots.look_now(number);
        }
        self.leaves(number, r);
        first
    }
    /// Calls the back end if it has the connection.
    #[inline]
    pub(crate) fn leaves(&self, number: u32, r: &Record) {
        if r.state() & OFFLOADED != 0 {
            self.leaves_now(number, r);
        }
    }
    #[cold]
    fn leaves_now(&self, number: u32, r: &Record) {
        r.comes_back();
        if let Some(end) = self.ender.0.get() {
            end.end(number);
        }
    }
}

impl Record {
    fn offload_class(&self) -> Class {
        match self.proto() {
            proto::TCP => Class::TcpEstablished,
            _ if self.is_replied() => Class::UdpMultiple,
            _ => Class::UdpSingle,
        }
    }
}
