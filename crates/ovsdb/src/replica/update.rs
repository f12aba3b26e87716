//! Reads the three forms of table updates into one: `<table-updates>` (RFC 7047 section 4.1.6) and
//! `<table-updates2>` (ovsdb-server(7) section 4.1.14, also used by `update3`).
//!
//! A column's value that does not parse spoils its cell only. If the row or the kind of its change is
//! unclear, the whole update is spoilt ([`Inconsistent`]): the replica must then be loaded anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use thiserror::Error;
use uuid::Uuid;

use super::Layout;
use super::row::Cell;
use crate::value::{Datum, ValueError, excerpt, parse_uuid};

/// Change of one row by an update.
#[derive(Clone, Debug)]
pub(crate) enum RowOp {
    /// The row is new or is replaced; one cell for each column of the layout.
    Full(Vec<Cell>),
    /// Differences of some columns, by position in the layout.
    Diff(Vec<(usize, Result<Datum, ValueError>)>),
    /// The row goes.
    Delete,
}

/// The operations of one update, by table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableUpdates(pub(crate) Vec<TableOps>);

/// The operations on one table, each row once.
pub(crate) type TableOps = (Arc<Layout>, Vec<(Uuid, RowOp)>);

/// An update cannot be applied to the present contents.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("inconsistent update: {0}")]
pub(crate) struct Inconsistent(pub(crate) String);

type Layouts = BTreeMap<Arc<str>, Arc<Layout>>;

/// `<table-updates>`.
pub(crate) fn parse_updates(json: &Value, layouts: &Layouts) -> Result<TableUpdates, Inconsistent> {
    parse(json, layouts, row_update)
}

/// `<table-updates2>`.
pub(crate) fn parse_updates2(json: &Value, layouts: &Layouts) -> Result<TableUpdates, Inconsistent> {
    parse(json, layouts, row_update2)
}

type RowParser = fn(&Map<String, Value>, &Layout) -> Option<RowOp>;

fn parse(json: &Value, layouts: &Layouts, row: RowParser) -> Result<TableUpdates, Inconsistent> {
    let tables = object(json, "table updates")?;
    let mut out = Vec::with_capacity(tables.len());
    for (table, rows) in tables {
        let Some(layout) = layouts.get(table.as_str()) else {
            log::debug!("update for table {table}, which is not monitored");
            continue;
        };
        let mut ops = Vec::new();
        for (uuid, update) in object(rows, "rows of a table update")? {
            let uuid =
                parse_uuid(uuid).ok_or_else(|| Inconsistent(format!("{table}: bad row id {uuid:.40}")))?;
            let op = row(object(update, "row update")?, layout)
                .ok_or_else(|| Inconsistent(format!("{table}: {}", excerpt(update))))?;
            ops.push((uuid, op));
        }
        out.push((layout.clone(), ops));
    }
    Ok(TableUpdates(out))
}

fn object<'a>(json: &'a Value, what: &str) -> Result<&'a Map<String, Value>, Inconsistent> {
    json.as_object()
        .ok_or_else(|| Inconsistent(format!("{what}: expected an object, found {}", excerpt(json))))
}

fn row_update(update: &Map<String, Value>, layout: &Layout) -> Option<RowOp> {
    match (update.get("new"), update.get("old")) {
        (Some(Value::Object(new)), _) => Some(RowOp::Full(full_row(new, layout))),
        (None | Some(Value::Null), Some(Value::Object(_))) => Some(RowOp::Delete),
        _ => None,
    }
}

fn row_update2(update: &Map<String, Value>, layout: &Layout) -> Option<RowOp> {
    let (kind, row) = update.iter().next()?;
    match (kind.as_str(), row) {
        ("initial" | "insert", Value::Object(row)) => Some(RowOp::Full(full_row(row, layout))),
        ("modify", Value::Object(row)) => Some(RowOp::Diff(row_diff(row, layout))),
        ("delete", _) => Some(RowOp::Delete),
        _ => None,
    }
}

fn full_row(row: &Map<String, Value>, layout: &Layout) -> Vec<Cell> {
    layout
        .columns()
        .iter()
        .map(|column| match row.get(&*column.name) {
            None => Cell::Value(column.default.clone()),
            Some(json) => match Datum::from_json(json, &column.ty) {
                Ok(datum) if datum == *column.default => Cell::Value(column.default.clone()),
                Ok(datum) => Cell::Value(Arc::new(datum)),
                Err(e) => bad_cell(layout, &column.name, &e),
            },
        })
        .collect()
}

fn row_diff(row: &Map<String, Value>, layout: &Layout) -> Vec<(usize, Result<Datum, ValueError>)> {
    let mut out = Vec::with_capacity(row.len());
    for (name, json) in row {
        let Some((index, column)) = layout
            .position(name)
            .and_then(|i| Some((i, layout.columns().get(i)?)))
        else {
            continue;
        };
        out.push((index, Datum::from_json(json, &column.ty)));
    }
    out
}

/// A cell that holds the reason why it has no value.
pub(super) fn bad_cell(layout: &Layout, column: &str, error: &ValueError) -> Cell {
    log::warn!(
        "{}.{column}: value from the server refused: {error}",
        layout.table()
    );
    Cell::Bad(Arc::from(error.to_string()))
}
