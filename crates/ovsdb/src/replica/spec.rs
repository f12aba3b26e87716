//! Tables and columns that a client monitors.

use std::collections::{BTreeMap, BTreeSet};

/// Tables and columns to monitor. Those that the database lacks are skipped; the rows then report them as
/// absent.
///
/// ```
/// use heddle_ovsdb::MonitorSpec;
/// let spec = MonitorSpec::new()
///     .table("Bridge", ["name", "ports", "datapath_type"])
///     .whole_table("Port");
/// # let _ = spec;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorSpec {
    /// Every table and column that there is; `tables` then only adds names whose absence is to be known.
    pub(crate) everything: bool,
    /// Columns by table; `None` for all columns of the table.
    pub(crate) tables: BTreeMap<String, Option<BTreeSet<String>>>,
}

impl MonitorSpec {
    /// A specification without tables.
    pub fn new() -> MonitorSpec {
        MonitorSpec::default()
    }

    /// All tables with all columns.
    pub fn all() -> MonitorSpec {
        MonitorSpec {
            everything: true,
            tables: BTreeMap::new(),
        }
    }

    /// Adds these columns of a table; a second call for the table adds to the first.
    #[must_use]
    pub fn table<'a>(mut self, table: &str, columns: impl IntoIterator<Item = &'a str>) -> MonitorSpec {
        let entry = self
            .tables
            .entry(table.to_string())
            .or_insert_with(|| Some(BTreeSet::new()));
        if let Some(set) = entry {
            set.extend(columns.into_iter().map(str::to_string));
        }
        self
    }

    /// Adds all columns of a table.
    #[must_use]
    pub fn whole_table(mut self, table: &str) -> MonitorSpec {
        self.tables.insert(table.to_string(), None);
        self
    }
}
