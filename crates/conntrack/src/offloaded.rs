//! Connections whose packets go another way than through the tracker: an offload back end forwards them.
//!
//! **Problem.** The tracker does not see what the back end forwards. So it cannot know the windows of such a
//! connection, nor when it was used last; and the back end has to hear at once when the connection ends, or
//! is marked or labelled anew.
//!
//! **Shape.** A record has two bits. [`OFFLOADED`]: a back end has the connection. Whoever ends it, changes
//! its mark or label, or sees it close calls the back end ([`EndOffload::end`]), which has to stop with that
//! call. [`LOOSE`]: it was there, and no segment has said since where its windows are. As long as one of the
//! two is set, segments that are no SYN move the windows to where they are, as if the connection were picked
//! up in its midst. So somebody between the ends could reset it by a segment outside of its windows.
//!
//! **Order.** Who takes a connection to a back end sets the bit first and reads the connection then
//! ([`Conntrack::offload`]), so no change after that is missed: it either is in what was read, or ends it.
//!
//! **A restart.** A back end may outlive its process. What the next process finds in it are connections that
//! were established, and it takes them into its own table ([`Conntrack::adopt`]).

use crate::conntrack::Conntrack;
use crate::record::{CONTROL, DNAT, LOOSE, New, OFFLOADED, Phase, RELATED, Record, SNAT};
use crate::tcp;
use crate::timeouts::Class;
use crate::track::state::{EST, RPL, TRK};
use crate::tuple::Tuple;
use heddle_sync::ReadGuard;
use heddle_wire::ip::proto;
use std::fmt;
use std::sync::Arc;

/// A connection has been used of late if it was within so many milliseconds. Times of use have steps of a
/// second.
const LATE_MS: u64 = 2500;

/// Who forwards connections' packets. Called by workers: it must neither wait nor allocate.
pub trait EndOffload: Send + Sync {
    /// From now on packets of this connection come up. `number` is [`ConnId::number`].
    fn end(&self, number: u32);
}

/// Holds whoever was set; prints nothing of it.
#[derive(Default)]
pub(crate) struct Ender(std::sync::OnceLock<Arc<dyn EndOffload>>);

impl fmt::Debug for Ender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ender").finish_non_exhaustive()
    }
}

/// Names a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId {
    /// Its number, which another one gets when it is gone.
    pub number: u32,
    /// Tells the connections apart that have had the number.
    pub generation: u32,
}

/// What a back end has to know of an established connection of TCP or UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offloadable {
    /// Its name.
    pub id: ConnId,
    /// Zone.
    pub zone: u16,
    /// Packets of the direction in which it began.
    pub orig: Tuple,
    /// Its answers.
    pub reply: Tuple,
    /// The source of the original direction is translated.
    pub snat: bool,
    /// ... its destination.
    pub dnat: bool,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
}

impl Offloadable {
    /// Bits of `ct_state` of its packets, but for those that an action with `nat` adds.
    pub fn state(reply: bool) -> u8 {
        TRK | EST | if reply { RPL } else { 0 }
    }
}

impl Record {
    fn is_offloadable(&self) -> bool {
        let up = match self.proto() {
            proto::TCP => {
                let [a, b] = self.peers();
                tcp::class(a.state, b.state) == Class::TcpEstablished
            }
            proto::UDP => self.phase() == Phase::Both,
            _ => false,
        };
        // What announces others is read by helpers; of one that was announced, packets are `+rel`.
        up && self.flags() & (CONTROL | RELATED) == 0
    }
}

impl Conntrack {
    /// Who is to be called when a connection leaves its back end. Only the first call counts.
    pub fn set_end_offload(&self, end: Arc<dyn EndOffload>) {
        let _ = self.ender.0.set(end);
    }
    /// Shows established connections of TCP and UDP that were used of late and are in no back end, among the
    /// next `budget` records from `at`, which begins at 0. `None`: that were all; else where to go on.
    pub fn offloadable(
        &self,
        now_ms: u64,
        at: u32,
        budget: u32,
        mut show: impl FnMut(ConnId, u16),
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
            show(ConnId { number, generation }, r.zone());
        })
    }
    /// A back end takes this connection. `None`: it must not. From now on [`EndOffload::end`] is called when
    /// it has to let go, maybe before this returns.
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
            orig,
            reply: if natted { r.reply() } else { orig.reversed() },
            snat: flags & SNAT != 0,
            dnat: flags & DNAT != 0,
            mark: r.mark(),
            label: r.label(),
        })
    }
    /// Takes in a connection that an earlier process has tracked, and a back end has kept for it: it is
    /// established, by the default timeouts, and its windows are not known. What named it there is not read.
    /// `false`: it is there already, or there is no room.
    pub fn adopt(&self, now_ms: u64, c: &Offloadable) -> bool {
        let class = match c.orig.proto {
            proto::TCP => Class::TcpEstablished,
            proto::UDP => Class::UdpMultiple,
            _ => return false,
        };
        let policy = self.timeouts.find(None);
        let end = tcp::Peer {
            window: u16::MAX,
            scale: tcp::Scale::Unknown,
            state: tcp::State::Established,
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
        };
        let _reading = ReadGuard::begin();
        let Some(r) = self.take_in(now_ms, new) else {
            return false;
        };
        r.set_state(LOOSE);
        r.advance(|_| Phase::Both);
        true
    }
    /// A back end has let go of a connection.
    pub fn onload(&self, now_ms: u64, id: ConnId) {
        let _reading = ReadGuard::begin();
        if let Some(r) = self.alive(now_ms, id) {
            r.comes_back();
        }
    }
    /// A back end has a connection: whether it may keep it. `used`: it has forwarded packets of it of late.
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
    fn alive(&self, now_ms: u64, id: ConnId) -> Option<&Record> {
        let r = self.slots.get(id.number)?;
        (r.generation() == id.generation && r.is_alive(now_ms)).then_some(r)
    }
    /// Ends a connection, in a back end, too. `false`: it was over already.
    pub(crate) fn kill(&self, number: u32, r: &Record) -> bool {
        let first = r.kill();
        if first {
            self.slots.look_now(number);
        }
        self.leaves(number, r);
        first
    }
    /// A connection leaves its back end, if it is in one.
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
            _ => Class::UdpMultiple,
        }
    }
}
