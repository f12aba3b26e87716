//! Writes differences only: the desired values of a row against the replica's.
//!
//! Status and statistics are computed whole and written often, mostly without change. Equal columns are not
//! sent, and columns that the database's schema lacks are passed over. A value that its column cannot hold is
//! reported for that column alone, so that it does not fail the rest of the transaction.

use super::{Columns, Txn};
use crate::replica::{ColumnError, Row};
use crate::value::ValueError;

/// A value that was not sent because its column cannot hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The column.
    pub column: String,
    /// Why; `None` if the column is not monitored, so that there is nothing to compare with.
    pub why: Option<ValueError>,
}

impl Row {
    /// The columns of `desired` in which this row differs, in the shape of their types; and those that cannot
    /// be set.
    pub fn differing(&self, desired: &Columns) -> (Columns, Vec<Refused>) {
        let (mut changed, mut refused) = (Columns::new(), Vec::new());
        for (name, value) in desired.iter() {
            let column = self
                .layout()
                .position(name)
                .and_then(|i| self.layout().columns().get(i));
            let present = self.datum(name);
            let Some(column) = column else {
                if !matches!(present, Err(ColumnError::Absent { .. })) {
                    refused.push(Refused {
                        column: name.to_string(),
                        why: None,
                    });
                }
                continue;
            };
            match value.conform(&column.ty) {
                Err(why) => refused.push(Refused {
                    column: name.to_string(),
                    why: Some(why),
                }),
                Ok(value) if present.is_ok_and(|p| *p == value) => {}
                Ok(value) => changed.set(name, value),
            }
        }
        (changed, refused)
    }
}

impl Txn {
    /// Adds an update of the row for the desired columns in which it differs; without any, adds nothing.
    /// Returns the refused columns.
    pub fn update_changed(&mut self, row: &Row, desired: &Columns) -> Vec<Refused> {
        let (changed, refused) = row.differing(desired);
        self.update(row.table(), row, changed);
        refused
    }
}
