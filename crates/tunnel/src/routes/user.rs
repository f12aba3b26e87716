//! Routes and rules set by hand (`ovs/route/add`, `ovs/route/rule/add`), and addresses of dummy devices.

use super::entry::{Hop, Kind, LOCAL, MAIN, RouteEntry};
use super::fib::Fib;
use super::path_mtu::PathMtus;
use super::prefix::Prefix;
use super::rule::Rule;
use super::source::{Address, on_network_of};
use super::system::Cached;
use super::{Action, Routes, Table};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// A route to be set by hand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserRoute {
    /// Table number.
    pub table: u32,
    /// An address within the destination network, as the operator wrote it.
    pub addr: IpAddr,
    /// Prefix length, bits.
    pub len: u8,
    /// Mark of the packets; 0: all packets for whose mark there is no route.
    pub mark: u32,
    /// Device by which packets leave.
    pub device: Arc<str>,
    /// Gateway; `None`: the destination itself.
    pub gateway: Option<IpAddr>,
    /// Source address; `None`: the device's address on the destination's or the gateway's network.
    pub source: Option<IpAddr>,
}

/// Routes, rules and addresses set by hand, and MTUs that were learned.
#[derive(Default)]
pub(super) struct Given {
    routes: HashMap<u32, Fib>,
    rules: Vec<Rule>,
    addresses: Vec<Address>,
    pub(super) path_mtus: Arc<PathMtus>,
}

impl Given {
    /// Builds the table of these and the system's.
    pub(super) fn table(&self, system: Arc<Cached>) -> Table {
        let mut own = self.routes.clone();
        for a in &self.addresses {
            let hop = Hop {
                device: a.device.clone(),
                gateway: None,
                source: a.addr,
                mtu_bytes: None,
                weight: 1,
            };
            let mut give = |table: u32, prefix: Option<Prefix>, kind: Kind| {
                if let Some(prefix) = prefix {
                    own.entry(table).or_default().replace(RouteEntry {
                        prefix,
                        user: false,
                        mark: 0,
                        metric: 0,
                        kind,
                        hops: vec![hop.clone()],
                    });
                }
            };
            give(LOCAL, Some(Prefix::host(a.addr)), Kind::Local);
            give(MAIN, a.network(), Kind::Unicast);
        }
        let mut rules = match system.rules.as_slice() {
            [] => Rule::standard(),
            rules => rules.to_vec(),
        };
        rules.extend(self.rules.iter().cloned());
        rules.sort_by_key(|r| r.priority);
        let marked_rule = rules.iter().any(|r| r.mark_mask != 0 && !r.elsewhere);
        let reads_marks = marked_rule || own.values().any(|fib| fib.entries().iter().any(|e| e.mark != 0));
        Table {
            reads_marks,
            system,
            addresses: self.addresses.clone(),
            own,
            rules,
            path_mtus: self.path_mtus.clone(),
        }
    }
}

impl Routes {
    /// Adds a route, in place of one with the same prefix and mark. `false`: the device has no suitable
    /// source address.
    pub fn add_user(&self, r: &UserRoute) -> bool {
        let Some(prefix) = Prefix::new(r.addr, r.len) else {
            return false;
        };
        let now = self.now.get();
        let source = [Some(r.addr), r.gateway].into_iter().flatten().find_map(|to| {
            let Some(source) = r.source else {
                return on_network_of(now.addresses(), &r.device, to);
            };
            let own = now.addresses().any(|a| {
                a.addr == source && a.device == r.device && a.network().is_some_and(|n| n.contains(to))
            });
            own.then_some(source)
        });
        drop(now);
        let Some(source) = source else { return false };
        let hop = Hop {
            device: r.device.clone(),
            gateway: r.gateway,
            source,
            mtu_bytes: None,
            weight: 1,
        };
        self.change(|given, _| {
            given.routes.entry(r.table).or_default().replace(RouteEntry {
                prefix,
                user: true,
                mark: r.mark,
                metric: 0,
                kind: Kind::Unicast,
                hops: vec![hop],
            });
        });
        true
    }

    /// Removes a route that was set by hand. Returns whether there was one.
    pub fn del_user(&self, table: u32, prefix: Prefix, mark: u32) -> bool {
        self.change(|given, _| {
            let Some(fib) = given.routes.get_mut(&table) else {
                return false;
            };
            let found = fib.remove(prefix, mark, true);
            if fib.is_empty() {
                given.routes.remove(&table);
            }
            found
        })
    }

    /// Adds a rule. Without a priority it comes before all others, except those of priority 0.
    pub fn add_rule(&self, mut rule: Rule, priority: Option<u32>) {
        self.change(|given, now| {
            rule.priority = priority.unwrap_or_else(|| free_priority(&now.rules));
            given.rules.push(rule);
        });
    }

    /// Removes the first equal rule that was set by hand. Returns whether there was one.
    pub fn del_rule(&self, rule: &Rule, priority: Option<u32>) -> bool {
        self.change(|given, _| {
            let same = |r: &&Rule| {
                let wanted = Rule {
                    priority: priority.unwrap_or(r.priority),
                    ..rule.clone()
                };
                **r == wanted
            };
            let first = given
                .rules
                .iter()
                .filter(same)
                .min_by_key(|r| r.priority)
                .cloned();
            let at = first.and_then(|first| given.rules.iter().position(|r| *r == first));
            at.map(|at| given.rules.remove(at)).is_some()
        })
    }

    /// Adds an address to a dummy device, with the routes that the kernel would add.
    pub fn add_address(&self, address: Address) {
        self.change(|given, _| {
            given
                .addresses
                .retain(|a| a.device != address.device || a.addr != address.addr);
            given.addresses.push(address);
        });
    }

    /// Removes all addresses of a dummy device.
    pub fn remove_addresses(&self, device: &str) {
        if self.writer.lock().addresses.iter().any(|a| &*a.device == device) {
            self.change(|given, _| given.addresses.retain(|a| &*a.device != device));
        }
    }

    /// All rules, in order.
    pub fn rules(&self) -> Vec<Rule> {
        self.now.get().rules.clone()
    }

    /// The numbers of tables that have routes.
    pub fn tables(&self) -> Vec<u32> {
        let now = self.now.get();
        let mut numbers: Vec<u32> = now.system.tables.keys().chain(now.own.keys()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The routes of a table: the system's, then those set by hand.
    pub fn entries(&self, table: u32) -> Vec<RouteEntry> {
        let now = self.now.get();
        let of = |tables: &HashMap<u32, Fib>| {
            let fib = tables.get(&table);
            fib.map(|f| f.entries().into_iter().cloned().collect::<Vec<_>>())
                .unwrap_or_default()
        };
        [of(&now.system.tables), of(&now.own)].concat()
    }
}

/// The priority before the first rule that has room before it, except for rules of priority 0: the choice of
/// Open vSwitch.
fn free_priority(rules: &[Rule]) -> u32 {
    let mut found = 0;
    let mut previous = 0;
    for rule in rules {
        if rule.priority > 0 && (found == 0 || rule.priority - previous > 1) {
            found = rule.priority - 1;
        }
        previous = rule.priority;
    }
    found
}

impl Rule {
    /// The table that the rule uses; `None`: its action is another one.
    pub fn table(&self) -> Option<u32> {
        match self.action {
            Action::Table { table, .. } => Some(table),
            _ => None,
        }
    }
}
