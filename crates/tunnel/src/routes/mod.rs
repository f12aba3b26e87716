//! Routes: by which device, from which address and to whom packets to an address go.
//!
//! **Problem.** A tunnel's outer packets go where the host's own packets to that address would go. Workers
//! ask within a translation; the kernel's routes change now and then, all at once where a routing daemon
//! begins anew.
//!
//! **Shape.** [`Routes`] publishes a [`Table`] that never changes. Readers take no lock. Writers make a new
//! table: what the system says ([`System`]) in one part, what was given by hand in another, so that a route
//! by hand does not copy a million of the system's. Rules choose among numbered tables as in Linux
//! ([`Rule`]); within one the longest prefix counts ([`Entry`]).
//!
//! **Changes.** Who keeps an answer asks [`Routes::thing`] before [`Routes::lookup`]; that number is told to
//! the hook given to [`Routes::new`] when the answer changes ([`watch`]).
//!
//! **Where this is not Linux.** Rules and routes that ask for a type of service, ports or protocols are not
//! for tunnels: a lookup has no such thing. Of several ways one is taken for all packets to a destination.

mod entry;
mod fib;
mod prefix;
mod rule;
pub mod source;
mod system;
#[cfg(test)]
mod tests;
mod user;
mod watch;

pub use entry::{DEFAULT, Entry, Hop, Kind, LOCAL, MAIN};
pub use prefix::Prefix;
pub use rule::{Action, Rule};
pub use source::Address;
pub use system::{System, SystemHop, SystemRoute};
pub use user::UserRoute;

use fib::Fib;
use heddle_sync::{RcuCell, ReadGuard};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use system::Cached;

/// A question.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Query {
    /// The mark of the packets.
    pub mark: u32,
    /// Where they go.
    pub dst: IpAddr,
    /// Where they come from, if that is fixed; no answer if this is not an address of this host.
    pub src: Option<IpAddr>,
}

impl Query {
    /// About packets to `dst` of which nothing else is known.
    pub fn to(dst: IpAddr) -> Query {
        Query {
            mark: 0,
            dst,
            src: None,
        }
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The device that packets leave by, for a bridge its internal port's.
    pub device: Arc<str>,
    /// Who gets them there; `None`: the destination itself.
    pub gateway: Option<IpAddr>,
    /// Where they come from.
    pub source: IpAddr,
    /// Longest packet, with its IP header, bytes.
    pub mtu_bytes: Option<u32>,
    /// The destination is this host.
    pub local: bool,
}

impl Route {
    fn new((entry, hop, source): (&Entry, &Hop, IpAddr)) -> Route {
        Route {
            device: hop.device.clone(),
            gateway: hop.gateway,
            source,
            mtu_bytes: hop.mtu_bytes,
            local: entry.kind == Kind::Local,
        }
    }
}

/// All routes at one time.
#[derive(Clone, Default, Debug)]
pub(crate) struct Table {
    system: Arc<Cached>,
    /// Addresses given to pretended devices.
    addresses: Vec<Address>,
    /// Routes by hand, and those of pretended devices.
    own: HashMap<u32, Fib>,
    /// Of both, in order; two of one priority in the order in which they came.
    rules: Vec<Rule>,
}

impl Table {
    /// The route in one numbered table.
    fn best(&self, table: u32, dst: IpAddr, mark: u32) -> Option<&Entry> {
        let of = |mark| {
            let system = self.system.tables.get(&table).and_then(|f| f.best(dst, mark));
            let own = self.own.get(&table).and_then(|f| f.best(dst, mark));
            match (system, own) {
                (Some(s), Some(o)) if s.beats(o) => Some(s),
                (s, o) => o.or(s),
            }
        };
        let marked = if mark == 0 { None } else { of(mark) };
        marked.or_else(|| of(0))
    }

    fn lookup(&self, q: &Query) -> Option<(&Entry, &Hop, IpAddr)> {
        if q.src.is_some_and(|src| !self.is_own(src)) {
            return None;
        }
        let mut at = 0;
        while let Some(rule) = self.rules.get(at) {
            at += 1;
            if !rule.holds(q) {
                continue;
            }
            let entry = match rule.action {
                Action::Nop => continue,
                Action::Refuse => return None,
                // Forwards only, so that it ends.
                Action::Goto(priority) => {
                    let there = self.rules.partition_point(|r| r.priority < priority);
                    at = at.max(there);
                    continue;
                }
                Action::Table { table, suppress_len } => self
                    .best(table, q.dst, q.mark)
                    .filter(|e| suppress_len.is_none_or(|len| e.prefix.len() > len)),
            };
            match entry {
                None => {}
                Some(e) if e.kind == Kind::Throw => {}
                Some(e) => return e.hop(q.dst).map(|hop| (e, hop, q.src.unwrap_or(hop.source))),
            }
        }
        None
    }

    /// Whether it is an address of this host.
    fn is_own(&self, addr: IpAddr) -> bool {
        self.addresses().any(|a| a.addr == addr)
            || self.best(LOCAL, addr, 0).is_some_and(|e| e.kind == Kind::Local)
    }

    fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.system.addresses.iter().chain(&self.addresses)
    }
}

/// Tells of a thing whose answer has changed.
pub type Hook = Box<dyn Fn(u64) + Send + Sync>;

/// The routes of this host, as its kernel says and as given by hand. See the module's text.
pub struct Routes {
    now: RcuCell<Table>,
    writer: Mutex<user::Given>,
    watch: watch::Watch,
    tell: Hook,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}

impl Routes {
    /// No routes. `tell` gets the numbers of [`Routes::thing`] whose answers change, after the change.
    pub fn new(tell: Hook) -> Self {
        let given = user::Given::default();
        Self {
            now: RcuCell::new(given.table(Arc::default())),
            writer: Mutex::new(given),
            watch: watch::Watch::default(),
            tell,
        }
    }

    /// The way of such packets. Waits for nobody.
    pub fn lookup(&self, q: &Query) -> Option<Route> {
        let reading = ReadGuard::begin();
        self.now.load(&reading).lookup(q).map(Route::new)
    }

    /// What the answer to `q` depends on: the hook gets this number when it changes. To be asked for before
    /// [`Routes::lookup`]. Waits for nobody.
    pub fn thing(&self, q: &Query) -> u64 {
        self.watch.register(q)
    }

    /// Whether `addr` is an address of `device`. Waits for nobody.
    pub fn is_address(&self, device: &str, addr: IpAddr) -> bool {
        let reading = ReadGuard::begin();
        self.now
            .load(&reading)
            .addresses()
            .any(|a| a.addr == addr && &*a.device == device)
    }

    /// Whether `device` has an address. Waits for nobody.
    pub fn has_address(&self, device: &str) -> bool {
        let reading = ReadGuard::begin();
        self.now.load(&reading).addresses().any(|a| &*a.device == device)
    }

    /// The address of `device` on the smallest network that `to` is on.
    pub fn source_near(&self, device: &str, to: IpAddr) -> Option<IpAddr> {
        source::on_network_of(self.now.get().addresses(), device, to)
    }

    /// Whether this host has such an address. Waits for nobody.
    pub fn any_address(&self, mut is: impl FnMut(&Address) -> bool) -> bool {
        let reading = ReadGuard::begin();
        self.now.load(&reading).addresses().any(&mut is)
    }

    /// This host's addresses, the system's first.
    pub fn addresses(&self) -> Vec<Address> {
        self.now.get().addresses().cloned().collect()
    }

    /// What [`Routes::addresses`] and [`Routes::is_address`] depend on.
    pub fn addresses_thing(&self) -> u64 {
        self.watch.addresses()
    }

    /// What depends on the addresses of one device.
    pub fn device_thing(&self, device: &str) -> u64 {
        self.watch.device(device)
    }

    /// The name of all routes together, for what depends on any of them.
    #[cfg(test)]
    pub(crate) fn any_thing(&self) -> u64 {
        self.watch.any()
    }

    /// Takes over what the kernel says.
    pub fn set_system(&self, system: &System) {
        let given = self.writer.lock();
        self.publish(given.table(Arc::new(Cached::new(system))));
    }

    fn publish(&self, table: Table) {
        let before = self.now.get();
        let now = Arc::new(table);
        self.now.replace(now.clone());
        self.watch.changed(&before, &now, &self.tell);
        drop(before);
        self.now.tidy();
    }

    /// Changes what was given by hand.
    fn change<T>(&self, f: impl FnOnce(&mut user::Given, &Table) -> T) -> T {
        let mut given = self.writer.lock();
        let now = self.now.get();
        let out = f(&mut given, &now);
        let system = now.system.clone();
        drop(now);
        self.publish(given.table(system));
        out
    }
}
