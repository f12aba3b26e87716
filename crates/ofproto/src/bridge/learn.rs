//! Flows that packets add (`learn`), and what workers leave to control threads.

use super::change::Change;
use super::select::compact;
use super::{Bridge, Event, State};
use crate::model::Rule;
use heddle_openflow::message::{FlowMod, FlowRemovedReason};
use heddle_openflow::{ErrorKind, Version};
use parking_lot::MutexGuard;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most flows that wait for a control thread. What comes on top is not learned; the next packet tries again.
const MAX_WAITING: usize = 4096;

/// What came of learning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// Whether the flow is there now; not if the limit was reached.
    Yes(bool),
    /// A control thread will see to it.
    Later,
    /// It cannot be added.
    No(ErrorKind),
}

/// What workers leave to control threads.
#[derive(Default)]
pub(crate) struct Later {
    flows: VecDeque<(Arc<FlowMod>, u32)>,
    events: Vec<Event>,
}

impl Later {
    fn any(&self) -> bool {
        !self.flows.is_empty() || !self.events.is_empty()
    }
}

impl Bridge {
    /// Adds a flow, or makes one that is there young again; called by any thread, never waits for another. At most `limit` flows
    /// (0: any number) of its table have its cookie.
    pub(crate) fn learn(&self, flow: &Arc<FlowMod>, limit: u32) -> Learned {
        let order = self.order.try_lock();
        let Some(state) = order.as_ref().and_then(|_| self.state.try_lock()) else {
            let mut later = self.later.lock();
            if later.flows.len() < MAX_WAITING {
                later.flows.push_back((flow.clone(), limit));
            }
            return Learned::Later;
        };
        let (learned, events) = self.learn_in(state, flow, limit);
        if !events.is_empty() {
            self.later.lock().events.extend(events);
        }
        learned
    }

    fn learn_in(
        &self,
        mut state: MutexGuard<'_, State>,
        flow: &FlowMod,
        limit: u32,
    ) -> (Learned, Vec<Event>) {
        if let Some(rule) = self.learned(flow)
            && *rule.instructions == flow.instructions
            && (rule.cookie == flow.new_cookie || !flow.modify_cookie)
        {
            rule.modified_ms.store(self.now_ms(), Relaxed);
            return (Learned::Yes(true), Vec::new());
        }
        if limit != 0 && self.learned(flow).is_none() && self.count_with_cookie(&mut state, flow) >= limit {
            return (Learned::Yes(false), Vec::new());
        }
        // As a strict modification that adds what is not there.
        let (result, events, _) = self.change_in(state, None, |b| b.modify(Version::V10, flow, true));
        let learned = match result {
            Ok(()) => Learned::Yes(true),
            Err(e) => Learned::No(e),
        };
        (learned, events)
    }

    /// Whether a flow that was learned is still there.
    pub(crate) fn has_learned(&self, flow: &FlowMod) -> bool {
        self.learned(flow).is_some()
    }

    fn learned(&self, flow: &FlowMod) -> Option<Arc<Rule>> {
        let table = self.tables.get(usize::from(flow.table_id))?;
        let matches = compact(&flow.match_);
        let found = table
            .rules
            .find_exact(self.current_version(), &matches, i32::from(flow.priority));
        found.filter(|e| !e.data.hidden).map(|e| e.data.clone())
    }

    fn count_with_cookie(&self, state: &mut State, flow: &FlowMod) -> u32 {
        let at = usize::from(flow.table_id);
        let (Some(table), Some(counted)) = (self.tables.get(at), state.tables.get_mut(at)) else {
            return 0;
        };
        counted.count_cookie(flow.new_cookie, || {
            let mut n = 0;
            table.rules.for_each(self.current_version(), |e| {
                n += u32::from(e.data.cookie == flow.new_cookie);
            });
            n
        })
    }

    /// Does what workers have left: control threads call it after they have changed something, and a few times a second. What comes
    /// meanwhile is left for the next time, or else packets could keep the caller for as long as they come.
    pub(super) fn settle(&self) {
        let waiting = self.later.lock().flows.len();
        for _ in 0..waiting.max(1) {
            if !self.later.lock().any() {
                return;
            }
            let _order = self.order.lock();
            self.emit(&self.take_events());
            let next = self.later.lock().flows.pop_front();
            if let Some((flow, limit)) = next {
                let (_, events) = self.learn_in(self.state.lock(), &flow, limit);
                self.emit(&events);
            }
        }
    }

    /// Events of what workers have learned, which nobody has been told yet.
    pub(super) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.later.lock().events)
    }
}

impl Change<'_> {
    /// Deletes learned flows that no flow learns any more. They may have learned others.
    pub(super) fn delete_orphans(&mut self) {
        loop {
            let orphans = self.state.refs.take_orphans();
            if orphans.is_empty() {
                return;
            }
            for (table, cookie) in orphans {
                let mut gone = Vec::new();
                // This change's own steps count: what it has added, and not what it has removed.
                if let Some(t) = self.bridge.tables.get(usize::from(table)) {
                    t.rules.for_each(self.version, |e| {
                        if e.data.cookie == cookie && !e.data.hidden {
                            gone.push(e.clone());
                        }
                    });
                }
                for e in gone {
                    self.remove(&e, FlowRemovedReason::Delete);
                }
            }
        }
    }
}
