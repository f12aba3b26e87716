//! OpenFlow tables as such: names, limits, eviction, vacancy, and what controllers may change about them.
//!
//! The database (`Flow_Table`) and controllers (table mods, table features) both configure a table. The
//! database's name wins; flows are evicted if either requests it.

use super::evict::Evictor;
use super::{Bridge, Event, Linked, TableConfig, change::Change};
use crate::model;
use heddle_classifier::PrefixField;
use heddle_openflow::ErrorKind;
use heddle_openflow::message::{
    FlowRemovedReason, TableDesc, TableFeatures, TableFeaturesCommand, TableMiss, TableMod, TableReason,
    TableStatus,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Tables that controllers see; the last one is the switch's own, as in Open vSwitch.
pub(super) const N_SHOWN_TABLES: u8 = 254;
/// Maximum number of flows that a table without a configured limit reports.
const MAX_ENTRIES: u32 = 1_000_000;
/// Criteria of eviction: `OFPTMPEF14_OTHER | IMPORTANCE | LIFETIME`.
const EVICTION_FLAGS: u32 = 7;
/// Bytes of a name, its end included.
const NAME_LEN: usize = 32;

/// One table's state.
#[derive(Debug, Default)]
pub(crate) struct TableState {
    /// The configuration from the database.
    config: TableConfig,
    /// A name that a controller gave it.
    given_name: Option<String>,
    /// A controller wants eviction.
    evict: bool,
    evictor: Option<Evictor>,
    /// Percentages at which vacancy events are due (down, up), and which of them comes next.
    vacancy_limits: (u8, u8),
    vacancy: Option<TableReason>,
    /// Flows that controllers see.
    pub(super) n_flows: usize,
    /// Number of flows by cookie, of those cookies that were counted once: packets that learn with a limit
    /// count them again and again.
    with_cookie: HashMap<u64, u32>,
}

/// Cookies whose flows are counted all the time, per table.
const MAX_COOKIES: usize = 1024;

impl TableState {
    /// Adds a rule that was linked.
    pub(super) fn linked(&mut self, e: &Linked) {
        self.n_flows += usize::from(!e.data.hidden);
        if let Some(n) = self.with_cookie.get_mut(&e.data.cookie) {
            *n += 1;
        }
        if let Some(evictor) = &mut self.evictor {
            evictor.add(e);
        }
    }

    /// Removes a rule that was unlinked.
    pub(super) fn unlinked(&mut self, e: &Linked) {
        self.n_flows -= usize::from(!e.data.hidden);
        if let Some(n) = self.with_cookie.get_mut(&e.data.cookie) {
            *n -= 1;
        }
        if let Some(evictor) = &mut self.evictor {
            evictor.remove(e);
        }
    }

    /// Number of flows with this cookie; `count` looks at all flows, the first time.
    pub(super) fn count_cookie(&mut self, cookie: u64, count: impl FnOnce() -> u32) -> u32 {
        if self.with_cookie.len() >= MAX_COOKIES && !self.with_cookie.contains_key(&cookie) {
            self.with_cookie.clear();
        }
        *self.with_cookie.entry(cookie).or_insert_with(count)
    }

    /// Whether [`TableState::count_cookie`] knows it already.
    pub(super) fn counts_cookie(&self, cookie: u64) -> bool {
        self.with_cookie.contains_key(&cookie)
    }

    /// The name that controllers see.
    pub(super) fn name(&self) -> &str {
        let database = self.config.name.as_deref().filter(|n| !n.is_empty());
        database.or(self.given_name.as_deref()).unwrap_or_default()
    }

    /// Whether a controller may give it this name.
    fn may_be_named(&self, name: &str) -> bool {
        match self.config.name.as_deref() {
            Some(own) if !own.is_empty() => {
                let room = NAME_LEN - 1;
                own.bytes().take(room).eq(name.bytes().take(room))
            }
            _ => true,
        }
    }

    fn evicts(&self) -> bool {
        self.config.evict || self.evict
    }

    pub(super) fn max_entries(&self) -> u32 {
        let limit = self.config.flow_limit;
        limit.map_or(MAX_ENTRIES, |n| u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// Free part of the table, in percent.
    fn free_percent(&self) -> u8 {
        // A table without a limit is as good as empty.
        let Some(limit) = self.config.flow_limit else {
            return 100;
        };
        let free = limit.saturating_sub(self.n_flows).saturating_mul(100);
        u8::try_from(free.checked_div(limit).unwrap_or(100)).unwrap_or(100)
    }

    fn set_vacancy(&mut self, on: bool, limits: Option<(u8, u8)>) {
        self.vacancy_limits = limits.unwrap_or_default();
        if !on {
            self.vacancy = None;
        } else if self.vacancy.is_none() {
            let next = if self.free_percent() < self.vacancy_limits.1 {
                TableReason::VacancyUp
            } else {
                TableReason::VacancyDown
            };
            self.vacancy = Some(next);
        }
    }

    /// The vacancy event that is due, if one is; the other one comes next then.
    fn vacancy_event(&mut self) -> Option<TableReason> {
        let next = self.vacancy?;
        let free = self.free_percent();
        let (down, up) = self.vacancy_limits;
        let due = match next {
            TableReason::VacancyDown => free < down,
            TableReason::VacancyUp => free > up,
        };
        if !due {
            return None;
        }
        self.vacancy = Some(match next {
            TableReason::VacancyDown => TableReason::VacancyUp,
            TableReason::VacancyUp => TableReason::VacancyDown,
        });
        Some(next)
    }

    pub(super) fn desc(&self, table_id: u8) -> TableDesc {
        TableDesc {
            table_id,
            eviction: self.evict,
            eviction_flags: EVICTION_FLAGS,
            vacancy: self.vacancy.is_some(),
            vacancy_limits: (self.vacancy_limits.0, self.vacancy_limits.1, self.free_percent()),
        }
    }

    pub(super) fn features(&self, table_id: u8) -> TableFeatures {
        TableFeatures {
            table_id,
            command: TableFeaturesCommand::Replace,
            name: self.name().to_owned(),
            metadata_match: u64::MAX,
            metadata_write: u64::MAX,
            max_entries: self.max_entries(),
            eviction: true,
            vacancy: true,
            next: (table_id + 1..N_SHOWN_TABLES).collect(),
            any_properties: true,
            unknown: false,
        }
    }
}

impl Change<'_> {
    /// Refuses, or evicts the flow that is worth least, when the table's configured limit is reached.
    pub(super) fn make_room(&mut self, table: u8) -> Result<(), ErrorKind> {
        let t = &mut self.state.tables[usize::from(table)];
        if t.config.flow_limit.is_none_or(|limit| t.n_flows < limit) {
            return Ok(());
        }
        let victim = t.evictor.as_mut().and_then(|e| e.victim());
        let victim = victim.ok_or(ErrorKind::FlowModFailedTableFull)?;
        self.remove(&victim, FlowRemovedReason::Eviction);
        Ok(())
    }

    /// Reports that a table has become full or empty, if a controller requested that.
    pub(super) fn table_status(&mut self, table: u8) {
        let t = &mut self.state.tables[usize::from(table)];
        let Some(reason) = t.vacancy_event() else { return };
        let desc = t.desc(table);
        self.events
            .push(Event::TableStatus(Arc::new(TableStatus { reason, desc })));
    }

    /// Makes the evictor match the configuration.
    fn configure_eviction(&mut self, table: u8) {
        let t = &mut self.state.tables[usize::from(table)];
        if !t.evicts() {
            t.evictor = None;
        } else if t.evictor.as_ref().is_none_or(|e| e.fields() != t.config.groups) {
            let mut all = Vec::new();
            self.bridge.tables[usize::from(table)]
                .rules
                .for_each(self.version, |e| all.push(e.clone()));
            t.evictor = Some(Evictor::new(t.config.groups.clone(), all));
        }
    }
}

impl Bridge {
    /// Number of rules; `None` while another thread changes some.
    pub(crate) fn n_rules(&self) -> Option<u64> {
        let state = self.state.try_lock()?;
        Some(state.tables.iter().map(|t| t.n_flows as u64).sum())
    }

    /// Takes over the tables' configuration from the database (`Flow_Table`). A table that has more flows
    /// than it may have evicts some, if it evicts at all.
    pub fn configure_tables(&self, mut configs: BTreeMap<u8, TableConfig>) {
        let done: Result<(), ErrorKind> = self.change(None, |c| {
            for table in self.tables.iter().map(|t| t.id) {
                let config = configs.remove(&table).unwrap_or_default();
                let t = &mut c.state.tables[usize::from(table)];
                if t.config == config {
                    continue;
                }
                let prefixes = config.prefixes.clone();
                t.config = config;
                // A lookup that runs meanwhile tracks the old ones: the mask is right in either case.
                self.tables[usize::from(table)]
                    .rules
                    .set_prefixes(&prefixes.unwrap_or_else(PrefixField::default_ones));
                c.configure_eviction(table);
                c.shrink(table);
            }
            Ok(())
        });
        debug_assert!(done.is_ok(), "nothing above fails");
    }

    /// Carries out a table mod.
    pub(super) fn table_mod(&self, tm: &TableMod) -> Result<(), ErrorKind> {
        let all = tm.table_id == 0xff;
        if !all && usize::from(tm.table_id) >= self.tables.len() {
            return Err(ErrorKind::TableModFailedBadTable);
        }
        if tm.eviction_flags.is_some_and(|f| f != EVICTION_FLAGS) {
            return Err(ErrorKind::TableModFailedBadConfig);
        }
        if !all && tm.table_id >= N_SHOWN_TABLES {
            return Err(ErrorKind::TableModFailedEperm);
        }
        let tables = || {
            let shown = self.tables.iter().take(N_SHOWN_TABLES.into());
            shown.filter(|t| all || t.id == tm.table_id)
        };
        self.change(None, |c| {
            for t in tables() {
                let state = &mut c.state.tables[usize::from(t.id)];
                if let Some(evict) = tm.eviction {
                    state.evict = evict;
                }
                if let Some(on) = tm.vacancy {
                    state.set_vacancy(on, tm.vacancy_limits);
                }
                c.configure_eviction(t.id);
            }
            Ok::<(), ErrorKind>(())
        })?;
        for (t, miss) in tables().filter_map(|t| Some((t, tm.miss?))) {
            t.set_miss(match miss {
                TableMiss::Controller => model::TableMiss::Controller,
                TableMiss::Continue => model::TableMiss::Continue,
                TableMiss::Drop => model::TableMiss::Drop,
            });
            if let Some(of) = self.of.upgrade() {
                of.generations().bump(t.slot);
            }
        }
        Ok(())
    }

    /// Changes the features of tables that can change: their names. A request for fewer features than a table
    /// has is granted, and the table keeps all of them (OpenFlow 1.5 §7.3.5.18.1).
    pub(super) fn change_table_features(&self, wanted: &[TableFeatures]) -> Result<(), ErrorKind> {
        const EPERM: ErrorKind = ErrorKind::TableFeaturesFailedEperm;
        let mut state = self.state.lock();
        let mut seen = [false; 256];
        for w in wanted {
            if std::mem::replace(&mut seen[usize::from(w.table_id)], true) {
                return Err(ErrorKind::TableFeaturesFailedDupTable);
            }
        }
        match wanted.first().map(|w| w.command) {
            None | Some(TableFeaturesCommand::Modify) => {}
            // All tables have to be named: there is no way to do without one.
            Some(TableFeaturesCommand::Replace) => {
                if seen.iter().take(N_SHOWN_TABLES.into()).any(|s| !s) {
                    return Err(EPERM);
                }
            }
            Some(TableFeaturesCommand::Enable | TableFeaturesCommand::Disable) => return Err(EPERM),
        }
        for w in wanted {
            if w.table_id >= N_SHOWN_TABLES {
                return Err(if usize::from(w.table_id) < self.tables.len() {
                    EPERM
                } else {
                    ErrorKind::TableFeaturesFailedTooMany
                });
            }
            let t = &state.tables[usize::from(w.table_id)];
            let can = t.features(w.table_id);
            let more = w.any_properties && (w.unknown || w.next.iter().any(|n| !can.next.contains(n)));
            if w.max_entries != can.max_entries || more || !t.may_be_named(&w.name) {
                return Err(EPERM);
            }
        }
        for w in wanted {
            let t = &mut state.tables[usize::from(w.table_id)];
            // While the database names a table, a controller's name is not kept for later.
            if t.config.name.is_none() {
                t.given_name = Some(w.name.clone()).filter(|n| !n.is_empty());
            }
        }
        Ok(())
    }

    pub(super) fn table_features(&self) -> Vec<TableFeatures> {
        let state = self.state.lock();
        (0..N_SHOWN_TABLES)
            .map(|t| state.tables[usize::from(t)].features(t))
            .collect()
    }

    pub(super) fn table_descs(&self) -> Vec<TableDesc> {
        let state = self.state.lock();
        (0..N_SHOWN_TABLES)
            .map(|t| state.tables[usize::from(t)].desc(t))
            .collect()
    }
}

impl Change<'_> {
    /// Evicts flows until the table holds no more than it may.
    fn shrink(&mut self, table: u8) {
        loop {
            let t = &mut self.state.tables[usize::from(table)];
            if t.config.flow_limit.is_none_or(|limit| t.n_flows <= limit) {
                return;
            }
            let Some(victim) = t.evictor.as_mut().and_then(|e| e.victim()) else {
                return;
            };
            self.remove(&victim, FlowRemovedReason::Eviction);
        }
    }
}
