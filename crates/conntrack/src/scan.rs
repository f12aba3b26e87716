//! Connections for a thread that keeps a copy of some of them elsewhere. The thread passes over all records
//! again and again, reads a few words of each, and only the wanted ones whole.

use crate::dump::Conn;
use crate::protocol::tcp;
use crate::protocol::timeouts::Class;
use crate::table::key::Key;
use crate::table::record::{DNAT, Phase, Record, SNAT};
use crate::track::Conntrack;
use crate::track::offloaded::ConnId;
use crate::tuple::Tuple;
use heddle_sync::ReadGuard;
use heddle_wire::ip::proto;

/// A connection during a pass over the records.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub(crate) tracker: &'a Conntrack,
    pub(crate) record: &'a Record,
    number: u32,
    pub(crate) now_ms: u64,
}

impl Seen<'_> {
    /// Identity.
    pub fn id(&self) -> ConnId {
        ConnId {
            number: self.number,
            generation: self.record.generation(),
        }
    }
    /// Zone.
    pub fn zone(&self) -> u16 {
        self.record.zone()
    }
    /// Protocol.
    pub fn proto(&self) -> u8 {
        self.record.proto()
    }
    /// Whether an address or a port is translated.
    pub fn is_translated(&self) -> bool {
        self.record.flags() & (SNAT | DNAT) != 0
    }
    /// Whether the label has a bit.
    pub fn is_labelled(&self) -> bool {
        self.record.label() != 0
    }
    /// Whether packets came in both directions.
    pub fn is_replied(&self) -> bool {
        match self.record.proto() {
            proto::TCP => {
                let ends = self.record.peers();
                ends.iter().all(|end| end.state != tcp::TcpState::Closed)
            }
            _ => self.record.phase() == Phase::Both,
        }
    }
    /// State of a TCP connection.
    pub fn tcp_class(&self) -> Option<Class> {
        let [a, b] = (self.record.proto() == proto::TCP).then(|| self.record.peers())?;
        Some(tcp::class(a.state, b.state))
    }
    /// A number that changes with the mark, the label and the values of [`Seen::is_replied`] and
    /// [`Seen::tcp_class`].
    pub fn version(&self) -> u64 {
        let class = self.tcp_class().map_or(0, |class| class as u64 + 1);
        let state = class << 1 | u64::from(self.is_replied());
        u64::from(self.record.mark()) << 32 | u64::from(self.record.label_count() << 8) | state
    }
    /// All fields.
    pub fn conn(&self) -> Conn {
        self.tracker.conn(self.now_ms, self.record)
    }
}

impl Conntrack {
    /// Passes the connections of the next `budget` records to `see`, in steps like [`Conntrack::dump`].
    pub fn scan(&self, now_ms: u64, at: u32, budget: u32, mut see: impl FnMut(&Seen<'_>)) -> Option<u32> {
        self.walk(now_ms, at, budget, |number, record| {
            see(&Seen {
                tracker: self,
                record,
                number,
                now_ms,
            });
        })
    }
    /// The connection with this original tuple.
    pub fn find(&self, now_ms: u64, orig: &Tuple, zone: u16) -> Option<ConnId> {
        let _reading = ReadGuard::begin();
        let key = Key::new(orig, zone);
        self.index.find(self.hash(orig, zone), |e| {
            let r = self.slots.get(e.number)?;
            let is = r.direction(&key) == Some(false) && r.is_alive(now_ms);
            is.then(|| ConnId {
                number: e.number,
                generation: r.generation(),
            })
        })
    }
    /// Ends a connection and frees it. `false`: it had ended before.
    pub fn end(&self, now_ms: u64, id: ConnId) -> bool {
        let ended = {
            let _reading = ReadGuard::begin();
            self.alive(now_ms, id).is_some_and(|r| self.kill(id.number, r))
        };
        if ended {
            self.sweep_from(now_ms, (id.number, id.number + 1), 1);
        }
        ended
    }
}
