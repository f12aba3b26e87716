//! The schema of a database as the server sends it (`<database-schema>`, RFC 7047 section 3.2).
//!
//! The client runs with whichever schema the database has: an older one lacks columns, a newer one has more.
//! The schema is therefore data, read at every connection. Code looks columns up ([`Schema::column`]) instead
//! of assuming them.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;

use crate::value::{BaseType, ColumnType};

/// A database's schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// Name of the database, e.g. `Open_vSwitch`.
    pub name: String,
    /// Version of the schema, `x.y.z`; empty if the server sends none.
    pub version: String,
    /// The tables by name.
    pub tables: BTreeMap<Arc<str>, TableSchema>,
}

/// One table of a schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSchema {
    /// The columns by name, without the implicit `_uuid` and `_version`.
    pub columns: BTreeMap<Arc<str>, ColumnSchema>,
    /// Rows stay without a reference to them (`isRoot`).
    pub is_root: bool,
}

/// One column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSchema {
    /// Type of the column.
    pub ty: ColumnType,
    /// The column's value is lost when the server restarts.
    pub ephemeral: bool,
    /// The column can change after the row was inserted.
    pub mutable: bool,
}

/// The server's schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("schema: {at}: {why}")]
pub struct SchemaError {
    /// Table and column, or the member at fault.
    pub at: String,
    /// The fault there.
    pub why: String,
}

impl Schema {
    /// Reads `<database-schema>`. A column that cannot be read is left out, with a warning in the log: the
    /// others work.
    ///
    /// # Errors
    /// [`SchemaError`] if there is no name or no table in it.
    pub fn from_json(json: &Value) -> Result<Schema, SchemaError> {
        parse::schema(json)
    }

    /// The first two numbers of the version.
    pub fn major_minor(&self) -> Option<(u32, u32)> {
        let mut numbers = self.version.split('.');
        let mut next = || numbers.next()?.parse().ok();
        Some((next()?, next()?))
    }

    /// The column's schema, or `None` without such a table or column.
    pub fn column(&self, table: &str, column: &str) -> Option<&ColumnSchema> {
        self.tables.get(table)?.columns.get(column)
    }
}
