//! Flow monitors: which flows they are about, and which changes they report.
//!
//! The monitors themselves belong to connections. This module decides whether a flow concerns a monitor. It
//! also reads all flows in step with the reported changes.

use super::select::{Select, has_group, has_output};
use super::{Bridge, FlowChanged, Linked};
use crate::model::Rule;
use heddle_classifier::MiniMatch;
use heddle_openflow::message::{FlowEvent, FlowMonitorRequest, FlowStatsRequest, MonitorFlags};
use heddle_openflow::{ErrorKind, Port as OfPort};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One flow monitor, as a controller requested it.
#[derive(Debug)]
pub struct Monitor {
    /// The kinds of changes that it reports, and in which form.
    pub flags: MonitorFlags,
    matches: MiniMatch,
    request: FlowMonitorRequest,
}

impl Monitor {
    /// The monitor of this request.
    ///
    /// # Errors
    /// There is no such table.
    pub fn new(request: FlowMonitorRequest) -> Result<Self, ErrorKind> {
        if request.table_id != 0xff && usize::from(request.table_id) >= crate::model::N_TABLES {
            return Err(ErrorKind::BadRequestBadTableId);
        }
        Ok(Self {
            flags: request.flags,
            matches: MiniMatch::new(&request.match_),
            request,
        })
    }

    /// Whether it reports this change.
    pub fn concerns(&self, change: &FlowChanged) -> bool {
        let kind = match change.what {
            FlowEvent::Initial => MonitorFlags::INITIAL,
            FlowEvent::Added => MonitorFlags::ADD,
            FlowEvent::Removed(_) => MonitorFlags::REMOVED,
            FlowEvent::Modified => MonitorFlags::MODIFY,
        };
        let port = self.request.out_port;
        let old = change.old.as_deref();
        self.flags.contains(kind)
            && self.is_about(&change.rule)
            && (port == OfPort::NONE
                || has_output(&change.rule, port)
                || old.is_some_and(|o| has_output(o, port)))
    }

    /// Whether table, match and group fit: no change of a rule alters them.
    fn is_about(&self, rule: &Rule) -> bool {
        (self.request.table_id == 0xff || self.request.table_id == rule.table)
            && has_group(rule, self.request.out_group)
            && rule.matches.within(&self.matches)
    }

    fn select(&self) -> Select {
        Select::for_stats(&FlowStatsRequest {
            match_: self.request.match_,
            table_id: self.request.table_id,
            out_port: self.request.out_port,
            out_group: self.request.out_group,
            cookie: 0,
            cookie_mask: 0,
            nxm: false,
        })
    }
}

impl Bridge {
    /// Runs `f` with all flows that some monitors are about, while no flow changes and all earlier changes
    /// have been emitted. A flow comes once, with the monitors that it concerns. `monitors` is called under
    /// these conditions too.
    pub(crate) fn look_at_flows<R>(
        &self,
        monitors: impl FnOnce() -> Vec<Arc<Monitor>>,
        f: impl FnOnce(Vec<(Linked, Vec<Arc<Monitor>>)>) -> R,
    ) -> R {
        let _order = self.order.lock();
        let before = self.state.lock().learn_receiver.take_events();
        self.emit(&before);
        let version = self.current_version();
        let mut found: Vec<(Linked, Vec<Arc<Monitor>>)> = Vec::new();
        let mut index = HashMap::new();
        for m in monitors() {
            for e in m.select().run(self, version) {
                let at = *index.entry(Arc::as_ptr(&e)).or_insert_with(|| {
                    found.push((e.clone(), Vec::new()));
                    found.len() - 1
                });
                found[at].1.push(m.clone());
            }
        }
        f(found)
    }

    /// Adds `more` to the number of flow monitors.
    pub fn count_monitors(&self, more: isize) {
        if more >= 0 {
            self.monitors.fetch_add(more.unsigned_abs(), Relaxed);
        } else {
            self.monitors.fetch_sub(more.unsigned_abs(), Relaxed);
        }
    }

    /// The version of the tables that workers read now.
    pub fn tables_version(&self) -> u64 {
        self.current_version()
    }
}
