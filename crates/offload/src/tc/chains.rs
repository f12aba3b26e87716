//! Adds the filters of flows that track or recirculate, and the chains behind them
//! ([`super::paths`]).

use super::actions::{self, IntoTunnel};
use super::ct::{self, ConnMatch};
use super::encap::Encap;
use super::flows::FilterTable;
use super::installed::{Installed, id_of};
use super::keys::Keys;
use super::message::{self, Counted, FilterId};
use super::miss_filter::MISS_PRIORITY;
use super::paths::{Chain, Copy, Entrance, Miss, Owner};
use super::plan::{self, PathState, Undo};
use super::side::TcSide;
use crate::{Handle, Rule, Why};
use heddle_datapath_api::PortNo;
use heddle_sys::route_batch::RouteRequest;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage::NewTrafficFilter;
use netlink_packet_route::tc::{TcAction, TcFilterFlowerOption as Key};
use std::collections::HashMap;
use std::sync::Arc;

/// Bits of a filter's handle above those of its flow's handle.
const VARIANT_SHIFT: u32 = 31;
/// Priority of the last filter but one: it hands over packets of established connections, translated back.
const ESTABLISHED_MISS_PRIORITY: u16 = MISS_PRIORITY - 1;
const ETH_P_ALL: u16 = 3;
/// Maximum number of filters of one flow.
const MAX_COPIES: usize = 64;
/// Maximum number of filters in chains other than the first one.
const MAX_IN_CHAINS: usize = 1 << 17;

const TOO_MANY: Why = Why::Action("recirc (too many flows lead to it, through tc)");

/// The part in a tunnel of a flow that leads into it.
fn into_side(encap: &Encap) -> TcSide {
    TcSide::Into {
        tunnel: encap.id(),
        csum: encap.key.csum,
        dont_fragment: encap.key.dont_fragment,
        tos: encap.key.tos,
        ttl: encap.key.ttl,
    }
}

impl FilterTable {
    /// Adds the filters of a flow to a chain with packets of this place, which the filters of `path` lead to.
    /// Returns none if no packet of the chain matches the flow.
    pub(super) fn add_at(
        &mut self,
        at: Handle,
        rule: &Rule,
        second: bool,
        place: &PathState,
        chain: u32,
        path: &[Entrance],
    ) -> Result<Vec<Installed>, Why> {
        let id = id_of(rule);
        let mut all = Vec::new();
        for (variant, rule) in (0..).zip(plan::variants(rule, place)) {
            match self.add_one(at, &rule, (second, variant), place, chain, path.to_vec()) {
                Ok(one) => all.extend(one.map(|one| Installed { id, ..one })),
                Err(why) => {
                    for one in all {
                        self.delete_filter(one.filter_id);
                        one.child.into_iter().for_each(|chain| self.bury(chain));
                    }
                    return Err(why);
                }
            }
        }
        Ok(all)
    }
    /// Adds one filter of a flow to a chain. Makes the chain that the filter leads to.
    fn add_one(
        &mut self,
        at: Handle,
        rule: &Rule,
        (second, variant): (bool, u32),
        place: &PathState,
        chain: u32,
        mut path: Vec<Entrance>,
    ) -> Result<Option<Installed>, Why> {
        let way = self.input(rule)?;
        let Some(mut plan) = plan::plan(rule, place)? else {
            return Ok(None);
        };
        if !self.alone && !plan.is_plain() {
            return Err(super::BESIDE_EBPF);
        }
        let mut keys = Keys::of(&plan.matched)?;
        keys.keys.extend(plan.conn.iter().flat_map(ConnMatch::keys));
        let mut filter_id = self.filter_id(at, way.ifindex, keys.protocol, second);
        filter_id.chain = chain;
        filter_id.handle |= variant << VARIANT_SHIFT;
        let tunnel = self.tunnel(rule)?;
        let into = tunnel.as_ref().map(|(encap, ifindex)| IntoTunnel {
            encap,
            ifindex: *ifindex,
        });
        let side = tunnel
            .as_ref()
            .map_or(TcSide::Plain, |(encap, _)| into_side(encap));
        let mut flow = Installed::new(&plan.matched, filter_id, second, side);
        if plan.is_plain() && self.has_card_actions(way.ifindex, rule) {
            let actions = actions::finish(self.actions_of(rule, &plan, into, true)?, self.cookie)?;
            if self.add_to_card(filter_id, keys.clone(), actions) {
                return Ok(Some(flow));
            }
        }
        let card_only = self.policy == super::TcPolicy::SkipSw;
        let mut actions = self.actions_of(rule, &plan, into, card_only)?;
        if let Some(next) = plan.next.take() {
            path.push(Entrance {
                at,
                uncounted: flow.uncounted,
            });
            let chain = self.build_chain(way.ifindex, rule, next, path)?;
            actions.push(ct::goto_chain(chain));
            flow.child = Some(chain);
        }
        let done = actions::finish(actions, self.cookie);
        if let Err(why) = done.and_then(|actions| self.add_actions(filter_id, keys, actions)) {
            if let Some(chain) = flow.child {
                self.bury(chain);
            }
            return Err(why);
        }
        Ok(Some(flow))
    }
    /// The actions of a plan, without the jump to the next chain.
    pub(super) fn actions_of(
        &mut self,
        rule: &Rule,
        plan: &plan::Plan,
        tunnel: Option<actions::IntoTunnel<'_>>,
        card_only: bool,
    ) -> Result<Vec<TcAction>, Why> {
        let mut zones = HashMap::new();
        for step in &plan.steps {
            if let plan::Step::Track { zone, .. } = step {
                zones.insert(*zone, self.conns.zones_of(*zone)?);
            }
        }
        let ports = &self.ports;
        let device = |no: PortNo| ports.get(no).map(|out| out.ifindex);
        let ways = actions::Ways {
            card_only,
            tunnel,
            device: &device,
        };
        let mut all = Vec::new();
        for (n, step) in plan.steps.iter().enumerate() {
            let ends = plan.next.is_none() && n + 1 == plan.steps.len();
            match step {
                plan::Step::Ops(known, ops) => {
                    let rule = plan::rule_of(rule, known, ops);
                    all.extend(actions::steps(&rule, &ways, ends)?);
                }
                plan::Step::Track { zone, nat } => {
                    let kernel = zones.get(zone).ok_or(Why::Connection)?;
                    all.push(ct::track(kernel.forth, *nat));
                }
            }
        }
        Ok(all)
    }

    /// Makes the chain behind a filter, with its flows. Returns the chain's number.
    pub(super) fn build_chain(
        &mut self,
        ifindex: u32,
        rule: &Rule,
        (recirc, place): (u32, PathState),
        path: Vec<Entrance>,
    ) -> Result<u32, Why> {
        let miss = self.devices.get(&ifindex).and_then(|d| d.miss.as_ref());
        let miss = miss.ok_or(super::BESIDE_EBPF)?.ifindex;
        let era = self.cookie.era;
        if self.paths.by_filter.len() >= MAX_IN_CHAINS {
            return Err(TOO_MANY);
        }
        let chain = self.paths.chain_number(era).ok_or(Why::Full)?;
        let mut misses = Vec::new();
        for (priority, keys, actions) in self.last_filters(rule, &place, miss)? {
            let filter_id = FilterId {
                ifindex,
                chain,
                priority,
                protocol: ETH_P_ALL,
                handle: 1,
            };
            let request = RouteRequest {
                message: NewTrafficFilter(filter_id.filter(keys, actions, message::SKIP_HW)),
                flags: NLM_F_CREATE | NLM_F_EXCL,
            };
            if let Err(error) = self.request(request) {
                self.delete_all(misses.iter().map(|m: &Miss| m.filter_id).collect());
                return Err(super::why(&error));
            }
            misses.push(Miss {
                filter_id,
                read: Counted::default(),
            });
        }
        for (index, miss) in misses.iter().enumerate() {
            let owner = Owner::Miss(chain, index);
            self.paths.by_filter.insert(miss.filter_id, owner);
        }
        self.count_flows(ifindex, misses.len().cast_signed());
        let stage = (rule.in_port, recirc);
        self.paths.chains_of.entry(stage).or_default().push(chain);
        self.paths.chains.insert(
            chain,
            Chain {
                ifindex,
                in_port: rule.in_port,
                recirc,
                place,
                path,
                misses,
                copies: Vec::new(),
            },
        );
        let flows = self.paths.flows_of.get(&stage).cloned().unwrap_or_default();
        for at in flows {
            // A flow that has no filter here leaves its packets to the last filter.
            if let Err(why) = self.add_copy(at, chain, false) {
                log::debug!(target: "netdev_offload", "tc: a flow has no filter in chain {chain}: {why}");
            }
        }
        Ok(chain)
    }

    /// The last filters of a chain: priority, keys and actions.
    #[allow(clippy::type_complexity)]
    fn last_filters(
        &mut self,
        rule: &Rule,
        place: &PathState,
        miss: u32,
    ) -> Result<Vec<(u16, Vec<Key>, Vec<TcAction>)>, Why> {
        let all = place.undo.as_slice();
        let plain = (MISS_PRIORITY, Vec::new());
        let kinds = match (place.last_translation(), all) {
            // Packets of other connections were not translated.
            (Some(_), [_, rest @ ..]) => {
                let established = ct::ConnMatch::default().keys();
                vec![
                    (ESTABLISHED_MISS_PRIORITY, established, all),
                    (plain.0, plain.1, rest),
                ]
            }
            _ => vec![(plain.0, plain.1, all)],
        };
        let mut filters = Vec::new();
        for (priority, keys, undo) in kinds {
            let mut actions = Vec::new();
            for step in undo {
                match step {
                    Undo::Nat(zone) => actions.push(ct::track(self.conns.zones_of(*zone)?.back, true)),
                    Undo::Rewrites(known, ops) => {
                        let rule = plan::rule_of(rule, known, ops);
                        let ways = actions::Ways {
                            card_only: false,
                            tunnel: None,
                            device: &|_| None,
                        };
                        actions.extend(actions::steps(&rule, &ways, false)?);
                    }
                }
            }
            actions.push(actions::redirect(miss));
            filters.push((priority, keys, actions::finish(actions, self.cookie)?));
        }
        Ok(filters)
    }

    /// Adds the filter of a stage's flow to a chain. `second`: at the second priority. `false`: no packet of
    /// the chain matches it.
    pub(super) fn add_copy(&mut self, at: Handle, chain: u32, second: bool) -> Result<bool, Why> {
        let (Some(flow), Some(to)) = (self.paths.flows.get(&at), self.paths.chains.get(&chain)) else {
            return Ok(false);
        };
        if flow.copies.len() >= MAX_COPIES || self.paths.by_filter.len() >= MAX_IN_CHAINS {
            return Err(TOO_MANY);
        }
        let rule = Arc::clone(&flow.rule);
        let (place, path) = (to.place.clone(), to.path.clone());
        let added = self.add_at(at, &rule, second, &place, chain, &path)?;
        let any = !added.is_empty();
        added
            .into_iter()
            .for_each(|one| _ = self.insert_copy(at, chain, one));
        Ok(any)
    }

    /// Takes up a filter that was added; returns its number.
    fn insert_copy(&mut self, at: Handle, chain: u32, installed: Installed) -> u64 {
        let id = self.paths.next_copy;
        self.paths.next_copy += 1;
        self.count_flows(installed.filter_id.ifindex, 1);
        if let Some(id) = installed.side.tunnel() {
            self.tunnels.count_flow(id, 1);
        }
        let owner = Owner::Copy(id);
        self.paths.by_filter.insert(installed.filter_id, owner);
        let copy = Copy {
            at,
            chain,
            flow: installed,
        };
        self.paths.copies.insert(id, copy);
        if let Some(to) = self.paths.chains.get_mut(&chain) {
            to.copies.push(id);
        }
        if let Some(flow) = self.paths.flows.get_mut(&at) {
            flow.copies.push(id);
        }
        id
    }

    /// Takes up another filter of a flow in chain 0.
    pub(super) fn insert_other(&mut self, at: Handle, installed: Installed) {
        let id = self.insert_copy(at, 0, installed);
        self.paths.others.entry(at).or_default().push(id);
    }
    /// Removes the other filters of a flow in chain 0.
    pub(super) fn remove_others(&mut self, at: Handle) {
        let all = self.paths.others.remove(&at).unwrap_or_default();
        all.into_iter().for_each(|id| self.remove_copy(id));
    }
}
