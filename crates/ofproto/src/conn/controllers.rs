//! The configured controllers of one bridge, and what the bridge does when all of them are gone.

use super::{ControllerConfig, ControllerStatus, Dialer, Manager};
use crate::bridge::FailMode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Silence of all controllers after which a standalone bridge forwards by itself, as a multiple of the probe
/// interval (`Bridge.fail_mode`: three inactivity probes).
const FAIL_OPEN_PROBES: u32 = 3;
/// The probe interval where none is configured.
const DEFAULT_PROBE: Duration = Duration::from_secs(5);

/// The controllers of one bridge by target.
pub struct Controllers {
    manager: Arc<Manager>,
    dialers: BTreeMap<String, Dialer>,
    errors: BTreeMap<String, String>,
    alone_since: Option<Instant>,
    /// Whether the bridge forwards without them, as it was last set.
    fail_open: bool,
}

impl Controllers {
    /// A set without controllers.
    pub fn new(manager: Arc<Manager>) -> Self {
        Self {
            manager,
            dialers: BTreeMap::new(),
            errors: BTreeMap::new(),
            alone_since: None,
            fail_open: false,
        }
    }

    /// The manager that they share with all other connections of the bridge.
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// Makes the set of controllers this one. Unchanged controllers keep their connection.
    pub fn set(&mut self, wanted: Vec<ControllerConfig>) {
        self.dialers.retain(|_, d| wanted.contains(d.config()));
        self.errors.clear();
        for config in wanted {
            if self.dialers.contains_key(&config.target) {
                continue;
            }
            let target = config.target.clone();
            match Dialer::spawn(self.manager.clone(), config) {
                Ok(d) => {
                    self.dialers.insert(target, d);
                }
                Err(e) => {
                    log::warn!(target: "ofproto", "{}: {e}", self.manager.bridge().name);
                    self.errors.insert(target, e);
                }
            }
        }
        self.tick();
    }

    /// State of each controller by target.
    pub fn status(&self) -> BTreeMap<String, ControllerStatus> {
        let bad = |e: &String| ControllerStatus {
            state: "VOID",
            last_error: Some(e.clone()),
            ..Default::default()
        };
        let failed = self.errors.iter().map(|(t, e)| (t.clone(), bad(e)));
        self.dialers
            .iter()
            .map(|(t, d)| (t.clone(), d.status()))
            .chain(failed)
            .collect()
    }

    /// Time passes: a standalone bridge that has heard from no controller for long enough forwards by itself,
    /// until one is back.
    pub fn tick(&mut self) {
        let bridge = self.manager.bridge();
        let configured = !self.dialers.is_empty();
        let connected = self.dialers.values().any(|d| d.status().connected);
        if connected || !configured || bridge.config().fail_mode == FailMode::Secure {
            self.alone_since = None;
            // The bridge is called only for a change of its mode, since the call waits while its rules
            // change.
            if std::mem::replace(&mut self.fail_open, false) && bridge.set_fail_open(false) {
                log::warn!(target: "fail_open", "{}: no longer in fail-open mode", bridge.name);
            }
            return;
        }
        let since = *self.alone_since.get_or_insert_with(Instant::now);
        let probe = self
            .dialers
            .values()
            .filter_map(|d| d.config().probe)
            .max()
            .unwrap_or(DEFAULT_PROBE);
        let alone = since.elapsed();
        let waited = alone >= probe * FAIL_OPEN_PROBES;
        if waited && !std::mem::replace(&mut self.fail_open, true) && bridge.set_fail_open(true) {
            let seconds = alone.as_secs();
            log::warn!(target: "fail_open", "{}: no controller for {seconds} seconds, failing open", bridge.name);
        }
    }
}
