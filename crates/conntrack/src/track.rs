//! The tracker of one datapath: its shared parts and its settings.

pub(crate) mod general;
pub mod helper;
pub mod offloaded;
pub(crate) mod short;
pub(crate) mod sweep;

use crate::events::Event;
use crate::protocol::timeouts::{Policy, PolicyError, Timeouts};
use crate::table::hash::{Hash, Keys};
use crate::table::index::{Index, RecordRef};
use crate::table::slots::Slots;
use crate::table::zones::{ZoneLimit, Zones};
use crate::track::helper::Expectations;
use crate::track::offloaded::Ender;
use crate::track::short::FastPacket;
use crate::track::sweep::Prepared;
use crate::tuple::{Endpoint, Tuple};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Default maximum number of connections (`dpctl/ct-set-maxconns`), as in Open vSwitch.
pub const DEFAULT_MAX_CONNS: u32 = 3_000_000;

/// Size of a tracker.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of records with address space. Memory is allocated when they are used. Larger than the number
    /// of connections, since a record is used again a little after its connection has ended.
    pub capacity: usize,
    /// Maximum number of connections at first.
    pub max_conns: u32,
    /// Random seed of hashes. It must stay secret.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        use std::hash::{BuildHasher, Hasher};
        Self {
            capacity: 1 << 24,
            max_conns: DEFAULT_MAX_CONNS,
            // The standard library's keys are random.
            seed: std::collections::hash_map::RandomState::new()
                .build_hasher()
                .finish(),
        }
    }
}

/// The connection that a packet probably belongs to; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guess(pub(crate) Option<RecordRef>);

impl Guess {
    /// Number of the connection.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        self.0.map(|e| e.number)
    }
}

/// A connection tracker. See the text of the crate.
#[derive(Debug)]
pub struct Conntrack {
    pub(crate) slots: Slots,
    pub(crate) index: Index,
    pub(crate) timeouts: Timeouts,
    pub(crate) zones: Zones,
    pub(crate) expectations: Expectations,
    pub(crate) keys: Keys,
    seq_chk: AtomicBool,
    dice: AtomicU64,
    pub(crate) sweep_at: AtomicU32,
    pub(crate) sweeping: Mutex<()>,
    pub(crate) prepared: Mutex<Prepared>,
    pub(crate) ender: Ender,
}

impl Conntrack {
    /// Makes a tracker without connections.
    ///
    /// # Errors
    /// The error of mmap(2) if the address space is too small.
    pub fn new(config: Config) -> io::Result<Self> {
        let slots = Slots::new(config.capacity, config.max_conns)?;
        Ok(Self {
            index: Index::new(slots.capacity())?,
            slots,
            timeouts: Timeouts::new(),
            zones: Zones::new()?,
            expectations: Expectations::new(),
            keys: Keys::new(config.seed),
            seq_chk: AtomicBool::new(true),
            dice: AtomicU64::new(config.seed),
            sweep_at: AtomicU32::new(0),
            sweeping: Mutex::new(()),
            prepared: Mutex::default(),
            ender: Ender::default(),
        })
    }
    /// The hash of a tuple, the same for both directions.
    #[inline]
    pub fn hash(&self, tuple: &Tuple, zone: u16) -> Hash {
        self.keys.hash(tuple, zone)
    }
    /// Prefetches the memory that [`Conntrack::track`] reads first. Call it for all packets of a burst, then
    /// [`Conntrack::guess`] for all, then track them.
    #[inline]
    pub fn prefetch(&self, hash: Hash) {
        self.index.prefetch(hash);
    }
    /// The connection that the packet probably belongs to; prefetches its record.
    #[inline]
    pub fn guess(&self, hash: Hash) -> Guess {
        self.guess_and_fetch(hash, true)
    }
    /// The same as [`Conntrack::guess`], for a packet of the fast path.
    #[inline]
    pub fn guess_short(&self, hash: Hash, s: &FastPacket) -> Guess {
        self.guess_and_fetch(hash, !s.is_udp4())
    }
    #[inline]
    fn guess_and_fetch(&self, hash: Hash, all: bool) -> Guess {
        let entry = self.index.guess(hash);
        if let Some(record) = entry.and_then(|e| self.slots.get(e.number)) {
            record.prefetch(all);
        }
        Guess(entry)
    }
    /// A hash of the client of connections: its address and the zone, no ports or protocol.
    pub(crate) fn hash_client(&self, t: &Tuple, zone: u16) -> u32 {
        let client = Tuple {
            src: Endpoint {
                addr: t.src.addr,
                l4: 0,
            },
            dst: Endpoint::default(),
            proto: 0,
            ipv6: t.ipv6,
        };
        self.hash(&client, zone).0
    }
    /// The next number of a sequence that starts at random.
    pub(crate) fn random(&self) -> u64 {
        self.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }

    /// Number of connections, including expired ones that are not freed yet.
    pub fn n_conns(&self) -> u32 {
        self.slots.count()
    }
    /// Maximum number of connections.
    pub fn max_conns(&self) -> u32 {
        self.slots.limit()
    }
    /// Sets the maximum number of connections. Beyond the number of records, new connections give
    /// [`Event::NoRoom`].
    pub fn set_max_conns(&self, n: u32) {
        self.slots.set_limit(n);
    }
    /// Whether TCP segments outside of their windows are invalid.
    #[inline]
    pub fn tcp_seq_chk(&self) -> bool {
        self.seq_chk.load(Relaxed)
    }
    /// Sets whether TCP segments outside of their windows are invalid.
    pub fn set_tcp_seq_chk(&self, on: bool) {
        self.seq_chk.store(on, Relaxed);
    }

    /// The limit of zones without a limit of their own; 0: no limit.
    pub fn default_limit(&self) -> u32 {
        self.zones.default()
    }
    /// Sets the default limit; `None`: no limit.
    pub fn set_default_limit(&self, limit: Option<u32>) {
        self.zones.set(None, limit);
    }
    /// Sets or removes a zone's limit.
    pub fn set_zone_limit(&self, zone: u16, limit: Option<u32>) {
        self.zones.set(Some(zone), limit);
    }
    /// The limit and the count of a zone.
    pub fn zone_limit(&self, zone: u16) -> ZoneLimit {
        self.zones.get(zone)
    }
    /// All zones with limits of their own.
    pub fn zone_limits(&self) -> Vec<ZoneLimit> {
        self.zones.all()
    }

    /// Adds or replaces a timeout policy. Settings have the names of the database and are in seconds.
    ///
    /// # Errors
    /// An unknown setting, or too many policies.
    pub fn set_timeout_policy(&self, name: &str, settings: &[(&str, u32)]) -> Result<(), PolicyError> {
        self.timeouts.set(name, settings)
    }
    /// Removes a policy; its connections use the default timeouts from then on. `false`: no policy has this
    /// name.
    pub fn remove_timeout_policy(&self, name: &str) -> bool {
        self.timeouts.remove(name)
    }
    /// All policies by name, with their settings in seconds.
    pub fn timeout_policies(&self) -> Vec<Policy> {
        self.timeouts.list()
    }
    /// Names of all events of packets, for `coverage/show`.
    pub fn events() -> impl Iterator<Item = (Event, &'static str)> {
        Event::ALL.into_iter().map(|e| (e, e.name()))
    }
}
