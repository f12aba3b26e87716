//! Flows behind a recirculation: one filter in each chain that leads to them ([`super::paths`]).

use super::flows::FilterTable;
use super::paths::{StageFlow, forget, stage_of};
use super::plan;
use crate::{Handle, Rule, Why};
use heddle_datapath_api::FlowCounts;
use std::collections::HashMap;
use std::sync::Arc;

impl FilterTable {
    /// Installs a flow behind a recirculation: a filter in each chain that leads to it.
    pub(super) fn install_stage(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        plan::can_be_established(rule)?;
        self.input(rule)?;
        self.paths.begin(at);
        let flow = StageFlow {
            rule: Arc::new(rule.clone()),
            copies: Vec::new(),
        };
        let stage = stage_of(rule);
        self.paths.flows.insert(at, flow);
        self.paths.flows_of.entry(stage).or_default().push(at);
        let done = self.add_copies(at, &HashMap::new());
        if done.is_err() {
            self.remove_stage(at);
        }
        done
    }
    /// Adds a flow to all chains that lead to it. `second`: the priority of its old filter, by chain.
    ///
    /// # Errors
    /// All chains refuse it.
    fn add_copies(&mut self, at: Handle, second: &HashMap<u32, bool>) -> Result<(), Why> {
        let stage = self.paths.flows.get(&at).map(|flow| stage_of(&flow.rule));
        let chains = stage.and_then(|stage| self.paths.chains_of.get(&stage));
        let (mut refused, mut added) = (None, false);
        for chain in chains.cloned().unwrap_or_default() {
            let second = second.get(&chain).is_some_and(|second| !second);
            match self.add_copy(at, chain, second) {
                Ok(one) => added |= one,
                Err(why) => refused = Some(why),
            }
        }
        refused.filter(|_| !added).map_or(Ok(()), Err)
    }
    /// Whether a flow is one behind a recirculation.
    pub(super) fn is_stage(&self, at: Handle) -> bool {
        self.paths.flows.contains_key(&at)
    }
    /// Replaces the steps of a flow behind a recirculation.
    pub(super) fn change_stage(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        let checked = plan::can_be_established(rule).and_then(|()| self.input(rule).map(drop));
        if let Err(why) = checked {
            return (self.remove_stage(at), Err(why));
        }
        let Some(flow) = self.paths.flows.get_mut(&at) else {
            return (FlowCounts::default(), Err(Why::InPort));
        };
        flow.rule = Arc::new(rule.clone());
        let old = std::mem::take(&mut flow.copies);
        let second: HashMap<u32, bool> = old
            .iter()
            .filter_map(|id| self.paths.copies.get(id))
            .map(|copy| (copy.chain, copy.flow.second))
            .collect();
        // The filters of both rules have different priorities.
        let done = self.add_copies(at, &second);
        old.into_iter().for_each(|id| self.remove_copy(id));
        match done {
            Ok(()) => (self.paths.take(at, 0), Ok(())),
            Err(why) => (self.remove_stage(at), Err(why)),
        }
    }
    /// Removes a flow behind a recirculation; returns its counts.
    pub(super) fn remove_stage(&mut self, at: Handle) -> FlowCounts {
        let Some(flow) = self.paths.flows.get(&at) else {
            return FlowCounts::default();
        };
        let (stage, copies) = (stage_of(&flow.rule), flow.copies.clone());
        copies.into_iter().for_each(|id| self.remove_copy(id));
        self.paths.flows.remove(&at);
        forget(&mut self.paths.flows_of, &stage, &at);
        self.paths.close(at, FlowCounts::default())
    }
}
