//! Routes: device, gateway and source address of packets to a destination.
//!
//! **Problem.** A tunnel's outer packets go where the host's own packets to that address would go. Workers
//! look routes up during a translation. The kernel's routes change now and then, and all at once when a
//! routing daemon restarts.
//!
//! **Shape.** [`Routes`] publishes an immutable [`Table`]. Readers take no lock. Writers build a new table.
//! A table has the system's routes ([`System`]) and those set by hand in separate parts. So a route by hand
//! copies no million others. Rules choose among numbered tables as in Linux ([`Rule`]). Within a table the
//! longest prefix wins ([`RouteEntry`]).
//!
//! **Changes.** A caller that caches a result calls [`Routes::thing`] before [`Routes::lookup`]. The hook
//! given to [`Routes::new`] gets that number when the result changes ([`watch`]).
//!
//! **Deviations from Linux.** Rules and routes for a type of service, ports or protocols are ignored, as a
//! lookup has none of these. A multipath route uses one hop for all packets to a destination.

mod entry;
mod fib;
mod path_mtu;
mod prefix;
mod rule;
pub mod source;
mod system;
#[cfg(test)]
mod tests;
mod user;
mod watch;

pub use entry::{DEFAULT, Hop, Kind, LOCAL, MAIN, RouteEntry};
pub use path_mtu::{LearnedMtu, PathLimits, PathReport};
pub use prefix::Prefix;
pub use rule::{Action, Rule};
pub use source::Address;
pub use system::{System, SystemHop, SystemRoute};
pub use user::UserRoute;

use fib::Fib;
use heddle_sync::{RcuCell, ReadGuard};
use parking_lot::Mutex;
use path_mtu::PathMtus;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use system::Cached;

/// A lookup's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Query {
    /// The mark of the packets.
    pub mark: u32,
    /// Destination of the packets.
    pub dst: IpAddr,
    /// Source of the packets, if it is fixed. There is no route if this is not an address of this host.
    pub src: Option<IpAddr>,
}

impl Query {
    /// Packets to `dst`, without mark and fixed source.
    pub fn to(dst: IpAddr) -> Query {
        Query {
            mark: 0,
            dst,
            src: None,
        }
    }
}

/// A lookup's result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Device by which packets leave; for a bridge, its internal port's.
    pub device: Arc<str>,
    /// Gateway; `None`: the destination itself.
    pub gateway: Option<IpAddr>,
    /// Source address of the packets.
    pub source: IpAddr,
    /// Longest packet, with its IP header, bytes.
    pub mtu_bytes: Option<u32>,
    /// The same for the whole path, if an ICMP error has reported that it is shorter.
    pub path_mtu_bytes: Option<u32>,
    /// The destination is this host.
    pub local: bool,
}

impl Route {
    fn new((entry, hop, source): (&RouteEntry, &Hop, IpAddr)) -> Route {
        Route {
            device: hop.device.clone(),
            gateway: hop.gateway,
            source,
            mtu_bytes: hop.mtu_bytes,
            path_mtu_bytes: None,
            local: entry.kind == Kind::Local,
        }
    }
}

/// Snapshot of all routes.
#[derive(Clone, Default, Debug)]
pub(crate) struct Table {
    system: Arc<Cached>,
    /// Addresses of dummy devices.
    addresses: Vec<Address>,
    /// Routes set by hand, and those of dummy devices.
    own: HashMap<u32, Fib>,
    /// Rules of the system and by hand, by priority; those of one priority in order of arrival.
    rules: Vec<Rule>,
    /// Some rule or route is for packets with a mark.
    reads_marks: bool,
    path_mtus: Arc<PathMtus>,
}

impl Table {
    /// The best route of one numbered table. Routes with the packets' mark come first.
    fn best(&self, table: u32, dst: IpAddr, mark: u32) -> Option<&RouteEntry> {
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

    fn lookup(&self, q: &Query) -> Option<(&RouteEntry, &Hop, IpAddr)> {
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
                // Only forwards, so that the loop ends.
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

    /// Whether `addr` is an address of this host.
    fn is_own(&self, addr: IpAddr) -> bool {
        self.addresses().any(|a| a.addr == addr)
            || self.best(LOCAL, addr, 0).is_some_and(|e| e.kind == Kind::Local)
    }

    fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.system.addresses.iter().chain(&self.addresses)
    }
}

/// Gets the number of a dependency after it has changed, see [`Routes::thing`].
pub type Hook = Box<dyn Fn(u64) + Send + Sync>;

/// The routes of this host: those of its kernel and those set by hand. See the module's text.
pub struct Routes {
    now: RcuCell<Table>,
    writer: Mutex<user::Given>,
    watch: watch::Watch,
    notify: Hook,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}

impl Routes {
    /// No routes. `notify` gets the [`Routes::thing`] of each lookup whose result changes, after the change.
    pub fn new(notify: Hook) -> Self {
        let given = user::Given::default();
        Self {
            now: RcuCell::new(given.table(Arc::default())),
            writer: Mutex::new(given),
            watch: watch::Watch::default(),
            notify,
        }
    }

    /// The route of such packets. Never waits.
    pub fn lookup(&self, q: &Query) -> Option<Route> {
        let reading = ReadGuard::begin();
        self.now.load(&reading).route(q)
    }

    /// The devices of all next hops of such packets; none if the destination is this host.
    pub fn devices(&self, q: &Query) -> Vec<Arc<str>> {
        let reading = ReadGuard::begin();
        match self.now.load(&reading).lookup(q) {
            Some((entry, ..)) if entry.kind == Kind::Unicast => {
                entry.hops.iter().map(|hop| hop.device.clone()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether lookups may depend on [`Query::mark`]. To be called after [`Routes::thing`], whose number the
    /// hook gets when this changes, too. Never waits.
    pub fn reads_marks(&self) -> bool {
        let reading = ReadGuard::begin();
        self.now.load(&reading).reads_marks
    }

    /// The number of a lookup's dependency: the hook gets it when the result changes. To be called before
    /// [`Routes::lookup`]. Never waits.
    pub fn thing(&self, q: &Query) -> u64 {
        self.watch.register(q)
    }

    /// Whether `addr` is an address of `device`. Never waits.
    pub fn is_address(&self, device: &str, addr: IpAddr) -> bool {
        let reading = ReadGuard::begin();
        self.now
            .load(&reading)
            .addresses()
            .any(|a| a.addr == addr && &*a.device == device)
    }

    /// Whether `device` has an address. Never waits.
    pub fn has_address(&self, device: &str) -> bool {
        let reading = ReadGuard::begin();
        self.now.load(&reading).addresses().any(|a| &*a.device == device)
    }

    /// The address of `device` on the smallest network that contains `to`.
    pub fn source_near(&self, device: &str, to: IpAddr) -> Option<IpAddr> {
        source::on_network_of(self.now.get().addresses(), device, to)
    }

    /// Whether an address of this host satisfies `is`. Never waits.
    pub fn any_address(&self, mut is: impl FnMut(&Address) -> bool) -> bool {
        let reading = ReadGuard::begin();
        self.now.load(&reading).addresses().any(&mut is)
    }

    /// This host's addresses, the system's first.
    pub fn addresses(&self) -> Vec<Address> {
        self.now.get().addresses().cloned().collect()
    }

    /// The number of the dependency of [`Routes::addresses`] and [`Routes::is_address`].
    pub fn addresses_thing(&self) -> u64 {
        self.watch.addresses()
    }

    /// The number of the dependency on the addresses of one device.
    pub fn device_thing(&self, device: &str) -> u64 {
        self.watch.device(device)
    }

    /// The number that the hook gets at any change of routes.
    #[cfg(test)]
    pub(crate) fn any_thing(&self) -> u64 {
        self.watch.any()
    }

    /// Replaces the kernel's routes, rules and addresses.
    pub fn set_system(&self, system: &System) {
        let given = self.writer.lock();
        self.publish(given.table(Arc::new(Cached::new(system))));
    }

    fn publish(&self, table: Table) {
        let before = self.now.get();
        let now = Arc::new(table);
        self.now.replace(now.clone());
        self.watch.changed(&before, &now, &self.notify);
        drop(before);
        self.now.tidy();
    }

    /// Changes routes, rules and addresses set by hand.
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
