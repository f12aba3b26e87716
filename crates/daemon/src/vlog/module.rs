//! The table of log modules and their thresholds.
//!
//! A module is a `log` target. The table is a snapshot, read without a lock on each message that passes the
//! global threshold of the `log` crate, by workers too. A new target replaces the snapshot; thresholds are
//! atomics. Modules are never removed: targets are string constants, so the program bounds their number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use heddle_sync::Published;
use parking_lot::Mutex;

use super::level::{Destination, Level};

/// One log module. The atomics are independent settings that guard no other memory, hence `Relaxed`
/// throughout.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    levels: [AtomicU8; 3],
    pub(super) honor_rate_limits: AtomicBool,
}

impl Module {
    fn new(name: &str, levels: [Level; 3], honor: bool) -> Arc<Module> {
        Arc::new(Module {
            name: name.to_owned(),
            levels: levels.map(|level| AtomicU8::new(level as u8)),
            honor_rate_limits: AtomicBool::new(honor),
        })
    }

    pub(super) fn level(&self, dest: Destination) -> Level {
        Level::from_u8(self.levels[dest.index()].load(Relaxed))
    }

    pub(super) fn set_level(&self, dest: Destination, level: Level) {
        self.levels[dest.index()].store(level as u8, Relaxed);
    }
}

/// All modules, and the initial thresholds of a new one.
#[derive(Debug)]
pub(super) struct Modules {
    table: Published<Table>,
    /// Held by a thread that replaces the table, or sets all of it.
    changing: Mutex<()>,
}

#[derive(Debug, Clone)]
struct Table {
    by_name: BTreeMap<String, Arc<Module>>,
    default_levels: [Level; 3],
    default_honor: bool,
}

impl Modules {
    pub(super) fn new() -> Modules {
        let levels = [Level::Info; 3];
        Modules {
            changing: Mutex::new(()),
            table: Published::new(Table {
                by_name: BTreeMap::new(),
                default_levels: levels,
                default_honor: true,
            }),
        }
    }

    /// The module called exactly `name`; added with the default thresholds when it is new.
    pub(super) fn get_or_add(&self, name: &str) -> Arc<Module> {
        if let Some(module) = self.table.load().by_name.get(name) {
            return module.clone();
        }
        let _alone = self.changing.lock();
        let mut table = Table::clone(&self.table.load());
        let fresh = Module::new(name, table.default_levels, table.default_honor);
        let module = table.by_name.entry(name.to_owned()).or_insert(fresh).clone();
        self.table.store(table);
        module
    }

    /// Finds a module by a name that a person typed, in any case.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Module>> {
        let table = self.table.load();
        table
            .by_name
            .values()
            .find(|module| module.name.eq_ignore_ascii_case(name))
            .cloned()
    }

    /// All modules, sorted by name.
    pub(super) fn all(&self) -> Vec<Arc<Module>> {
        self.table.load().by_name.values().cloned().collect()
    }

    /// Sets one module, or all of them and those to come, at one destination or at all.
    pub(super) fn set(&self, module: Option<&Module>, dest: Option<Destination>, level: Level) {
        for d in Destination::ALL
            .into_iter()
            .filter(|d| dest.is_none_or(|only| only == *d))
        {
            match module {
                Some(module) => module.set_level(d, level),
                None => {
                    let _alone = self.changing.lock();
                    let mut table = Table::clone(&self.table.load());
                    table.default_levels[d.index()] = level;
                    table
                        .by_name
                        .values()
                        .for_each(|module| module.set_level(d, level));
                    self.table.store(table);
                }
            }
        }
    }

    /// Whether rate limits apply, for all modules and those to come.
    pub(super) fn set_honor_rate_limits(&self, honor: bool) {
        let _alone = self.changing.lock();
        let mut table = Table::clone(&self.table.load());
        table.default_honor = honor;
        table
            .by_name
            .values()
            .for_each(|module| module.honor_rate_limits.store(honor, Relaxed));
        self.table.store(table);
    }

    /// The most verbose threshold in force anywhere, for the global filter of the `log` crate.
    pub(super) fn most_verbose(&self, file_open: bool) -> Level {
        let table = self.table.load();
        let dests = Destination::ALL
            .into_iter()
            .filter(|dest| file_open || *dest != Destination::File);
        dests
            .flat_map(|dest| {
                let of_modules = table.by_name.values().map(move |module| module.level(dest));
                of_modules.chain([table.default_levels[dest.index()]])
            })
            .max()
            .unwrap_or(Level::Off)
    }
}

/// The module name of a `log` target.
///
/// Code that names its module (`target: "bridge"`) gets that. Code of Heddle's crates that does not gets the
/// last part of its path (`heddle_ofproto::xlate` → `xlate`), other crates get their crate's name.
pub(super) fn module_name(target: &str) -> &str {
    match target.split_once("::") {
        None => target.strip_prefix("heddle_").unwrap_or(target),
        Some((krate, rest)) if krate.starts_with("heddle") => rest.rsplit("::").next().unwrap_or(rest),
        Some((krate, _)) => krate,
    }
}
