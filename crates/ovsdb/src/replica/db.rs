//! One state of the replica.
//!
//! A [`Db`] that a reader holds never changes. The client's task owns the newest one and changes it in place
//! while no reader holds it, else copies the tables it touches (`Arc::make_mut`).

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::changes::{Change, ChangeKind};
use super::row::Cell;
use super::update::{Inconsistent, RowOp, TableUpdates, bad_cell};
use super::{Layout, Row};
use crate::schema::Schema;
use crate::value::{Atom, Datum};

/// The rows of one table, by identity.
#[derive(Clone, Debug)]
pub struct Table {
    layout: Arc<Layout>,
    rows: BTreeMap<Uuid, Arc<Row>>,
}

impl Table {
    /// The monitored columns.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The row of that identity.
    pub fn get(&self, uuid: Uuid) -> Option<&Arc<Row>> {
        self.rows.get(&uuid)
    }

    /// All rows, ascending by identity.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &Arc<Row>> {
        self.rows.values()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// No row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A consistent state of the monitored part of the database.
#[derive(Clone, Debug, Default)]
pub struct Db {
    schema: Option<Arc<Schema>>,
    tables: BTreeMap<Arc<str>, Arc<Table>>,
    seqno: u64,
    loaded: bool,
}

impl Db {
    /// Whether the database's contents have been loaded once. Before that there are no tables; after it the
    /// contents stay, also while the server is away.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Rises with every update that changed something.
    pub fn seqno(&self) -> u64 {
        self.seqno
    }

    /// The database's schema, once it is known.
    pub fn schema(&self) -> Option<&Arc<Schema>> {
        self.schema.as_ref()
    }

    /// A monitored table, `None` if it is not monitored or the database does not have it.
    pub fn table(&self, table: &str) -> Option<&Table> {
        self.tables.get(table).map(|t| &**t)
    }

    /// The monitored tables.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Table)> {
        self.tables.iter().map(|(name, t)| (name, &**t))
    }

    /// All rows of a table, ascending by identity; none without such a table.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = &Arc<Row>> {
        self.table(table).into_iter().flat_map(Table::rows)
    }

    /// One row.
    pub fn row(&self, table: &str, uuid: Uuid) -> Option<&Arc<Row>> {
        self.table(table)?.get(uuid)
    }

    /// The first row of a table that has one row only, such as `Open_vSwitch`.
    pub fn first(&self, table: &str) -> Option<&Arc<Row>> {
        self.rows(table).next()
    }

    /// The first row whose column is exactly this one value; a scan.
    pub fn find(&self, table: &str, column: &str, value: impl Into<Atom>) -> Option<&Arc<Row>> {
        let wanted = Datum::from(value.into());
        self.rows(table)
            .find(|row| row.datum(column).is_ok_and(|d| *d == wanted))
    }

    /// The rows of `target` that a row's column refers to. References to rows that are not there are passed
    /// over, as is a column that cannot be read.
    pub fn referenced<'a>(&'a self, row: &Row, column: &str, target: &str) -> Vec<&'a Arc<Row>> {
        let table = self.table(target);
        let uuids = row.uuids(column).unwrap_or_default();
        uuids.into_iter().filter_map(|u| table?.get(u)).collect()
    }

    /// The schema was read anew; the monitored columns are the same.
    pub(crate) fn set_schema(&mut self, schema: Arc<Schema>) {
        self.schema = Some(schema);
    }

    /// Applies one update. Either all of it is applied, or it is an error and nothing has changed.
    pub(crate) fn apply(&mut self, updates: TableUpdates) -> Result<Vec<Change>, Inconsistent> {
        self.check(&updates)?;
        let mut changes = Vec::new();
        for (layout, ops) in updates.0 {
            let Some(table) = self.tables.get_mut(layout.table()) else {
                continue;
            };
            let table = Arc::make_mut(table);
            for (uuid, op) in ops {
                changes.extend(table.apply(uuid, op));
            }
        }
        if !changes.is_empty() {
            self.seqno += 1;
        }
        Ok(changes)
    }

    /// A difference needs a row to apply to.
    fn check(&self, updates: &TableUpdates) -> Result<(), Inconsistent> {
        for (layout, ops) in &updates.0 {
            let table = self.tables.get(layout.table());
            for (uuid, op) in ops {
                let known = table.is_some_and(|t| t.rows.contains_key(uuid));
                if matches!(op, RowOp::Diff(_)) && !known {
                    return Err(Inconsistent(format!(
                        "{}: {uuid} modified but unknown",
                        layout.table()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Replaces all contents by the server's full contents; returns the differences. Rows that did not change
    /// keep their place in memory.
    pub(crate) fn replace(
        &mut self,
        schema: Arc<Schema>,
        layouts: &BTreeMap<Arc<str>, Arc<Layout>>,
        updates: TableUpdates,
    ) -> Result<Vec<Change>, Inconsistent> {
        let mut old = std::mem::take(&mut self.tables);
        let mut new: BTreeMap<Arc<str>, Table> = layouts
            .iter()
            .map(|(name, layout)| {
                (
                    name.clone(),
                    Table {
                        layout: layout.clone(),
                        rows: BTreeMap::new(),
                    },
                )
            })
            .collect();
        for (layout, ops) in updates.0 {
            let Some(table) = new.get_mut(layout.table()) else {
                continue;
            };
            for (uuid, op) in ops {
                if let RowOp::Full(cells) = op {
                    let mut row = Row::new(uuid, layout.clone());
                    row.cells = cells;
                    table.rows.insert(uuid, Arc::new(row));
                } else {
                    self.tables = old;
                    return Err(Inconsistent(format!(
                        "{}: {uuid}: not an initial row",
                        layout.table()
                    )));
                }
            }
        }
        let mut changes = Vec::new();
        for (name, table) in &mut new {
            let before = old.remove(name);
            changes.extend(table.changes_from(before.as_deref()));
        }
        for (name, gone) in old {
            changes.extend(gone.rows.keys().map(|u| change(&name, *u, ChangeKind::Delete)));
        }
        self.tables = new
            .into_iter()
            .map(|(name, table)| (name, Arc::new(table)))
            .collect();
        if !changes.is_empty() || !self.loaded || self.schema.as_ref() != Some(&schema) {
            self.seqno += 1;
        }
        self.schema = Some(schema);
        self.loaded = true;
        Ok(changes)
    }
}

fn change(table: &Arc<str>, uuid: Uuid, kind: ChangeKind) -> Change {
    Change {
        table: table.clone(),
        uuid,
        kind,
        columns: Vec::new(),
    }
}

impl Table {
    fn apply(&mut self, uuid: Uuid, op: RowOp) -> Option<Change> {
        let name = self.layout.table().clone();
        match op {
            RowOp::Delete => {
                if self.rows.remove(&uuid).is_none() {
                    log::debug!("{name}: {uuid} deleted but unknown");
                    return None;
                }
                Some(change(&name, uuid, ChangeKind::Delete))
            }
            RowOp::Full(cells) => {
                let mut row = Row::new(uuid, self.layout.clone());
                row.cells = cells;
                match self.rows.get(&uuid) {
                    None => {
                        self.rows.insert(uuid, Arc::new(row));
                        Some(change(&name, uuid, ChangeKind::Insert))
                    }
                    Some(old) => self.store_modified(&old.clone(), row),
                }
            }
            RowOp::Diff(diff) => {
                let old = self.rows.get(&uuid)?.clone();
                let mut row = (*old).clone();
                for (index, diff) in diff {
                    let (Some(cell), Some(column)) =
                        (row.cells.get_mut(index), self.layout.columns().get(index))
                    else {
                        continue;
                    };
                    *cell = match (&*cell, diff) {
                        (_, Err(e)) => bad_cell(&self.layout, &column.name, &e),
                        (Cell::Value(old), Ok(diff)) => {
                            Cell::Value(Arc::new(old.apply_diff(&diff, &column.ty)))
                        }
                        (Cell::Bad(_), Ok(new)) if column.ty.max <= 1 => Cell::Value(Arc::new(new)),
                        // The difference to an unknown value is unknown.
                        (Cell::Bad(why), Ok(_)) => Cell::Bad(why.clone()),
                    };
                }
                self.store_modified(&old, row)
            }
        }
    }

    fn store_modified(&mut self, old: &Arc<Row>, new: Row) -> Option<Change> {
        let columns = changed_columns(old, &new);
        if columns.is_empty() {
            return None;
        }
        let (table, uuid) = (self.layout.table().clone(), new.uuid());
        self.rows.insert(uuid, Arc::new(new));
        Some(Change {
            table,
            uuid,
            kind: ChangeKind::Modify,
            columns,
        })
    }

    /// The changes from `before` to this table; takes over the rows that are the same.
    fn changes_from(&mut self, before: Option<&Table>) -> Vec<Change> {
        let name = self.layout.table().clone();
        let mut changes = Vec::new();
        for (uuid, row) in &mut self.rows {
            match before.and_then(|t| t.rows.get(uuid)) {
                None => changes.push(change(&name, *uuid, ChangeKind::Insert)),
                Some(old) if **old == **row => *row = old.clone(),
                Some(old) => changes.push(Change {
                    table: name.clone(),
                    uuid: *uuid,
                    kind: ChangeKind::Modify,
                    columns: changed_columns(old, row),
                }),
            }
        }
        let gone = before
            .into_iter()
            .flat_map(|t| t.rows.keys())
            .filter(|u| !self.rows.contains_key(u));
        changes.extend(gone.map(|u| change(&name, *u, ChangeKind::Delete)));
        changes
    }
}

/// The columns in which two states of a row differ; a column that only one of them has differs.
fn changed_columns(old: &Row, new: &Row) -> Vec<Arc<str>> {
    let cell = |row: &Row, name: &str| {
        row.layout()
            .position(name)
            .and_then(|i| row.cells.get(i).cloned())
    };
    let mut out: Vec<Arc<str>> = Vec::new();
    if std::ptr::eq(old.layout(), new.layout()) {
        let pairs = old.cells.iter().zip(&new.cells).zip(new.layout().columns());
        out.extend(pairs.filter(|((a, b), _)| a != b).map(|(_, c)| c.name.clone()));
        return out;
    }
    for column in new.layout().columns() {
        if cell(old, &column.name) != cell(new, &column.name) {
            out.push(column.name.clone());
        }
    }
    let lost = old.layout().columns().iter().filter(|c| !new.has(&c.name));
    out.extend(lost.map(|c| c.name.clone()));
    out
}
