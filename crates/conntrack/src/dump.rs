//! Connections for output, and the removal of connections on request.

use crate::action::CtHelper;
use crate::protocol::tcp::Peer;
use crate::table::record::{RELATED, Record};
use crate::track::Conntrack;
use crate::tuple::Tuple;
use heddle_sync::ReadGuard;
use heddle_wire::ip::proto;

/// A connection at the time of reading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conn {
    /// Zone.
    pub zone: u16,
    /// Tuple of the original direction.
    pub orig: Tuple,
    /// Tuple of the reply direction.
    pub reply: Tuple,
    /// The connection that announced it.
    pub parent: Option<Tuple>,
    /// The helper that it was committed with.
    pub helper: Option<CtHelper>,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// Time until it expires without packets.
    pub left_ms: u64,
    /// Both ends of TCP.
    pub tcp: Option<[Peer; 2]>,
    /// Bucket of the index.
    pub bucket: u32,
}

/// Conditions on connections. `None`: no condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Zone.
    pub zone: Option<u16>,
    /// Mark: value and mask.
    pub mark: Option<(u32, u32)>,
    /// Label: value and mask.
    pub label: Option<(u128, u128)>,
    /// Parts of the tuple of the original direction.
    pub orig: PartialTuple,
    /// Parts of the tuple of the reply direction.
    pub reply: PartialTuple,
    /// Protocol.
    pub proto: Option<u8>,
    /// IPv6 (`true`) or IPv4.
    pub ipv6: Option<bool>,
}

/// Parts of a tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PartialTuple {
    /// Source address, as in [`crate::Endpoint`].
    pub src: Option<u128>,
    /// Destination address.
    pub dst: Option<u128>,
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
    /// ICMP identifier.
    pub icmp_id: Option<u16>,
    /// ICMP type.
    pub icmp_type: Option<u8>,
    /// ICMP code.
    pub icmp_code: Option<u8>,
}

fn is<T: PartialEq>(wanted: Option<T>, is: T) -> bool {
    wanted.is_none_or(|w| w == is)
}

impl PartialTuple {
    /// Whether a tuple has all of these parts.
    #[allow(clippy::cast_possible_truncation)] // parts of a word
    pub fn matches(&self, t: &Tuple) -> bool {
        let (src, dst) = (t.src.l4, t.dst.l4);
        let l4 = if t.is_icmp() {
            is(self.icmp_id, (src >> 16) as u16)
                && is(self.icmp_type, (src >> 8) as u8)
                && is(self.icmp_code, src as u8)
        } else {
            is(self.src_port, src as u16) && is(self.dst_port, dst as u16)
        };
        is(self.src, t.src.addr) && is(self.dst, t.dst.addr) && l4
    }
}

impl Filter {
    /// Whether a connection satisfies all conditions.
    pub fn matches(&self, c: &Conn) -> bool {
        is(self.zone, c.zone)
            && is(self.proto, c.orig.proto)
            && is(self.ipv6, c.orig.ipv6)
            && self.mark.is_none_or(|(v, m)| c.mark & m == v & m)
            && self.label.is_none_or(|(v, m)| c.label & m == v & m)
            && self.orig.matches(&c.orig)
            && self.reply.matches(&c.reply)
    }
}

impl Conntrack {
    /// Passes connections of the next `budget` records from `at`, which begins at 0, to `show`. Returns the
    /// next `at`; `None`: all records were read. A connection that begins or ends meanwhile may be left out.
    pub fn dump(&self, now_ms: u64, at: u32, budget: u32, mut show: impl FnMut(Conn)) -> Option<u32> {
        self.walk(now_ms, at, budget, |_, r| show(self.conn(now_ms, r)))
    }
    /// Ends matching connections of the next records, in steps like [`Conntrack::dump`]. Returns their number
    /// and the next `at`.
    pub fn flush(&self, now_ms: u64, at: u32, budget: u32, filter: &Filter) -> (usize, Option<u32>) {
        let mut n = 0;
        let next = self.walk(now_ms, at, budget, |number, r| {
            if is(filter.zone, r.zone()) && filter.matches(&self.conn(now_ms, r)) {
                n += usize::from(self.kill(number, r));
            }
        });
        (n, next)
    }
    /// Ends all matching connections and frees them, so that they are not counted any more. Returns their
    /// number.
    pub fn flush_all(&self, now_ms: u64, filter: &Filter) -> usize {
        const BATCH: u32 = 4096;
        let (mut n, mut at) = (0, Some(0));
        while let Some(from) = at {
            let (some, next) = self.flush(now_ms, from, BATCH, filter);
            if some > 0 {
                self.sweep_from(now_ms, (from, from.saturating_add(BATCH)), BATCH);
            }
            n += some;
            at = next;
        }
        n
    }
    /// Ends the connection with this original tuple; or with this reply tuple, if it has no address
    /// translation. `false`: no connection has the tuple.
    pub fn flush_tuple(&self, now_ms: u64, tuple: &Tuple, zone: u16) -> bool {
        let _reading = ReadGuard::begin();
        let key = crate::table::key::Key::new(tuple, zone);
        let found = self.index.find(self.hash(tuple, zone), |e| {
            let r = self.slots.get(e.number)?;
            let is = match r.direction(&key) {
                Some(true) => r.flags() & (crate::table::record::SNAT | crate::table::record::DNAT) == 0,
                found => found == Some(false),
            };
            (is && r.is_alive(now_ms)).then_some((e.number, r))
        });
        let ended = found.filter(|(number, r)| self.kill(*number, r));
        if let Some((number, _)) = ended {
            self.sweep_from(now_ms, (number, number + 1), 1);
        }
        ended.is_some()
    }
    /// Number of buckets of the index.
    pub fn buckets(&self) -> u32 {
        self.index.len()
    }

    pub(crate) fn walk(
        &self,
        now_ms: u64,
        at: u32,
        budget: u32,
        mut see: impl FnMut(u32, &Record),
    ) -> Option<u32> {
        let _reading = ReadGuard::begin();
        let used = self.slots.used();
        let to = at.saturating_add(budget).min(used);
        for number in at..to {
            // Reading a free record could allocate a page for it.
            if self.slots.may_be_used(number)
                && let Some(r) = self.slots.get(number)
                && r.is_alive(now_ms)
            {
                see(number, r);
            }
        }
        (to < used).then_some(to)
    }
    pub(crate) fn conn(&self, now_ms: u64, r: &Record) -> Conn {
        let orig = r.orig();
        Conn {
            zone: r.zone(),
            orig,
            reply: if r.flags() & (crate::table::record::SNAT | crate::table::record::DNAT) == 0 {
                orig.reversed()
            } else {
                r.reply()
            },
            helper: crate::track::helper::of_flags(r.flags()),
            parent: r.parent().filter(|_| r.flags() & RELATED != 0),
            mark: r.mark(),
            label: r.label(),
            left_ms: r.expires_ms().saturating_sub(now_ms),
            tcp: (orig.proto == proto::TCP).then(|| r.peers()),
            bucket: self.index.bucket_of(self.hash(&orig, r.zone())),
        }
    }
}
