//! The monitored columns of one table, in the order in which rows store them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::MonitorSpec;
use crate::schema::{Schema, TableSchema};
use crate::value::ColumnType;
use crate::value::Datum;

/// One monitored column.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutColumn {
    /// Name of the column.
    pub name: Arc<str>,
    /// Type of the column.
    pub ty: ColumnType,
    /// The value that updates leave out; shared by all rows that have it.
    pub(crate) default: Arc<Datum>,
}

/// The monitored columns of a table, ascending by name, shared by all of its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    table: Arc<str>,
    columns: Vec<LayoutColumn>,
    /// Requested columns that the database does not have.
    absent: Vec<Arc<str>>,
}

impl Layout {
    /// `wanted` of `None` stands for every column of the table.
    fn new(
        table: &Arc<str>,
        schema: &TableSchema,
        wanted: Option<&std::collections::BTreeSet<String>>,
    ) -> Layout {
        let columns = schema
            .columns
            .iter()
            .filter(|(name, _)| wanted.is_none_or(|w| w.contains(&***name)))
            .map(|(name, c)| LayoutColumn {
                name: name.clone(),
                ty: c.ty.clone(),
                default: Arc::new(c.ty.default_datum()),
            })
            .collect();
        let absent = wanted
            .into_iter()
            .flatten()
            .filter(|name| !schema.columns.contains_key(name.as_str()))
            .map(|name| Arc::from(name.as_str()))
            .collect();
        Layout {
            table: table.clone(),
            columns,
            absent,
        }
    }

    /// The table's name.
    pub fn table(&self) -> &Arc<str> {
        &self.table
    }

    /// The columns, ascending by name.
    pub fn columns(&self) -> &[LayoutColumn] {
        &self.columns
    }

    /// The position of a column.
    pub fn position(&self, column: &str) -> Option<usize> {
        self.columns.binary_search_by(|c| (*c.name).cmp(column)).ok()
    }

    /// Whether the column was requested and is not in the database's schema.
    pub fn is_absent(&self, column: &str) -> bool {
        self.absent.iter().any(|a| **a == *column)
    }
}

/// The parts of `spec` that the database has, by table.
pub(crate) fn layouts(schema: &Schema, spec: &MonitorSpec) -> BTreeMap<Arc<str>, Arc<Layout>> {
    schema
        .tables
        .iter()
        .filter_map(|(name, table)| {
            let wanted = match spec.tables.get(&**name) {
                _ if spec.everything => None,
                Some(wanted) => wanted.as_ref(),
                None => return None,
            };
            Some((name.clone(), Arc::new(Layout::new(name, table, wanted))))
        })
        .collect()
}

/// `<monitor-requests>` for these tables (RFC 7047 section 4.1.5); `monitor_cond` takes the same form.
pub(crate) fn monitor_requests(layouts: &BTreeMap<Arc<str>, Arc<Layout>>) -> Value {
    let mut out = serde_json::Map::new();
    for (table, layout) in layouts {
        let columns: Vec<&str> = layout.columns.iter().map(|c| &*c.name).collect();
        out.insert(table.to_string(), json!([{ "columns": columns }]));
    }
    Value::Object(out)
}
