//! Flows that packets add (`learn`), and what workers leave to control threads.
//!
//! **Problem.** The next packet must find what this one has taught, and a worker that translates waits for no
//! other thread.
//!
//! **Shape.** Mostly the flow is there, and is refreshed without a lock ([`Bridge::renew`]). The worker adds
//! a new flow itself if it gets all locks at the first try and need not search a table. Otherwise it hands
//! the flow to a control thread ([`LearnSender`]). The thread that holds a lock adds the flow after its own
//! change, or another one waits for the lock and adds it
//! ([`Ofproto::do_deferred_work`](crate::Ofproto::do_deferred_work)). Then the packet's translation is not
//! cached.
//!
//! **Bounds.** Up to [`MAX_QUEUED_FLOWS`] flows wait. Further ones are counted (`learn_queue_full`) and not
//! learned; the next packet tries again.

use super::change::Change;
use super::select::compact;
use super::{Bridge, BridgeState, Event};
use crate::model::{Learned, Learner, Rule};
use heddle_openflow::message::{FlowMod, FlowRemovedReason};
use heddle_openflow::{ErrorKind, Version};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Maximum number of flows of a bridge that wait for a control thread.
const MAX_QUEUED_FLOWS: usize = 1024;
/// Maximum number of events of flows that workers have added and no thread has emitted: beyond it workers add
/// no flows.
const MAX_UNSENT_EVENTS: usize = 4096;

/// Maximum number of flows of a table that workers search.
const MAX_SEARCHED_FLOWS: usize = 256;

/// A flow to be learned, and its limit.
type Flow = (Arc<FlowMod>, u32);

/// The workers' side of what they hand to control threads.
pub(super) struct LearnSender {
    /// Sending tries once, and never waits.
    flows: SyncSender<Flow>,
    /// [`Bridge::do_deferred_work`] has something to do.
    any: AtomicBool,
}

/// The control threads' side, guarded by the bridge's state.
pub(crate) struct LearnReceiver {
    flows: Receiver<Flow>,
    /// Events of flows that workers have added, not yet emitted.
    unsent_events: Vec<Event>,
}

pub(super) fn learn_queue() -> (LearnSender, LearnReceiver) {
    let (flows, queued) = sync_channel(MAX_QUEUED_FLOWS);
    let sender = LearnSender {
        flows,
        any: false.into(),
    };
    let receiver = LearnReceiver {
        flows: queued,
        unsent_events: Vec::new(),
    };
    (sender, receiver)
}

impl LearnReceiver {
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.unsent_events)
    }
}

impl Learner for Bridge {
    fn learn(&self, flow: &Arc<FlowMod>, limit: u32) -> Learned {
        if self.renew(flow) {
            return Learned::Yes(true);
        }
        self.learn_at_once(flow, limit).unwrap_or_else(|| {
            if self.learn_sender.flows.try_send((flow.clone(), limit)).is_err() {
                crate::coverage::LEARN_QUEUE_FULL.count();
            }
            self.wake_control_thread();
            Learned::Later
        })
    }

    fn learn_again(&self, flow: &Arc<FlowMod>, limit: u32, used_ms: u64) {
        if let Some(rule) = self.learned(flow) {
            if is_as_wanted(&rule, flow) {
                rule.modified_ms.fetch_max(used_ms, Relaxed);
                return;
            }
            if rule.modified_ms.load(Relaxed) > used_ms {
                return;
            }
        }
        if self.learn(flow, limit) == Learned::Yes(true)
            && let Some(rule) = self.learned(flow).filter(|r| is_as_wanted(r, flow))
        {
            // Not now: the next packets that are credited may be later than these.
            rule.modified_ms.fetch_min(used_ms, Relaxed);
        }
    }

    fn has_learned(&self, flow: &FlowMod) -> bool {
        self.learned(flow).is_some()
    }
}

impl Bridge {
    /// Refreshes the flow if it is there as wanted; `false`: it is not. Takes no lock.
    fn renew(&self, flow: &FlowMod) -> bool {
        let same = self.learned(flow).filter(|rule| is_as_wanted(rule, flow));
        if let Some(rule) = &same {
            rule.modified_ms.store(self.now_ms(), Relaxed);
        }
        same.is_some()
    }

    /// `None`: another thread holds a lock, a table must be searched, or too many events wait.
    fn learn_at_once(&self, flow: &FlowMod, limit: u32) -> Option<Learned> {
        let _order = self.order.try_lock()?;
        let mut state = self.state.try_lock()?;
        let _alone = self.tables_in_use.try_write()?;
        let searched = limit == 0 || Self::counts(&state, flow);
        if !searched || state.learn_receiver.unsent_events.len() >= MAX_UNSENT_EVENTS {
            return None;
        }
        let (learned, events) = self.learn_in(&mut state, flow, limit, false);
        let left = !events.is_empty() || state.refs.has_orphans();
        state.learn_receiver.unsent_events.extend(events);
        if left {
            self.wake_control_thread();
        }
        Some(learned)
    }

    /// Makes a control thread call [`Bridge::do_deferred_work`]. Only the first call wakes it.
    fn wake_control_thread(&self) {
        // AcqRel pairs with that in `do_deferred_work`: the thread that takes the flag finds earlier work.
        if !self.learn_sender.any.swap(true, AcqRel)
            && let Some(of) = self.of.upgrade()
        {
            of.wake_deferred_work();
        }
    }

    /// `searches`: tables may be searched.
    fn learn_in(
        &self,
        state: &mut BridgeState,
        flow: &FlowMod,
        limit: u32,
        searches: bool,
    ) -> (Learned, Vec<Event>) {
        if self.renew(flow) {
            return (Learned::Yes(true), Vec::new());
        }
        if limit != 0 && self.learned(flow).is_none() && self.count_with_cookie(state, flow) >= limit {
            return (Learned::Yes(false), Vec::new());
        }
        // Acts as a strict modification that adds a missing flow.
        let (result, events, _) =
            self.change_in(state, None, searches, |b| b.modify(Version::V10, flow, true));
        let learned = match result {
            Ok(()) => Learned::Yes(true),
            Err(e) => Learned::No(e),
        };
        (learned, events)
    }

    fn learned(&self, flow: &FlowMod) -> Option<Arc<Rule>> {
        let table = self.tables.get(usize::from(flow.table_id))?;
        let matches = compact(&flow.match_);
        let found = table
            .rules
            .find_exact(self.current_version(), &matches, i32::from(flow.priority));
        found.filter(|e| !e.data.hidden).map(|e| e.data.clone())
    }

    /// Whether the number of flows with this flow's cookie is known or quickly counted.
    fn counts(state: &BridgeState, flow: &FlowMod) -> bool {
        let table = state.tables.get(usize::from(flow.table_id));
        table.is_none_or(|t| t.n_flows <= MAX_SEARCHED_FLOWS || t.counts_cookie(flow.new_cookie))
    }

    fn count_with_cookie(&self, state: &mut BridgeState, flow: &FlowMod) -> u32 {
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

    /// Does what workers have left. Control threads call it after each change, and a few times a second. Work
    /// that comes meanwhile is left for the next call, or else packets could keep the caller for ever.
    pub(crate) fn do_deferred_work(&self) {
        if !self.learn_sender.any.swap(false, AcqRel) {
            return;
        }
        let waiting: Vec<Flow> = self.state.lock().learn_receiver.flows.try_iter().collect();
        // The first round emits the events of flows that workers have added.
        for flow in std::iter::once(None).chain(waiting.into_iter().map(Some)) {
            let _order = self.order.lock();
            let mut state = self.state.lock();
            let mut events = state.learn_receiver.take_events();
            events.extend(match flow {
                Some((flow, limit)) => self.learn_in(&mut state, &flow, limit, true).1,
                None => self.delete_orphans_in(&mut state),
            });
            drop(state);
            self.emit(&events);
        }
    }

    /// Deletes learned flows that no flow learns any more, after changes by workers. Returns the events.
    fn delete_orphans_in(&self, state: &mut BridgeState) -> Vec<Event> {
        if !state.refs.has_orphans() {
            return Vec::new();
        }
        // Each change does so at its end, even one without steps.
        self.change_in(state, None, true, |_| Ok::<_, ErrorKind>(())).1
    }
}

/// Whether a rule equals the one that learning `flow` would add.
fn is_as_wanted(rule: &Rule, flow: &FlowMod) -> bool {
    *rule.instructions == flow.instructions && (rule.cookie == flow.new_cookie || !flow.modify_cookie)
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
