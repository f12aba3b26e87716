//! One row of the replica and its typed accessors.
//!
//! An accessor fails for its column alone. A value in another shape than its schema's, or a column of another
//! type than the code expects, is a [`ColumnError`] there. The other columns of the row work.
//!
//! A requested column that the database's schema lacks reads as empty (no element, `None`, an empty map) from
//! accessors that can return that. Accessors of exactly one value return [`ColumnError::Absent`].

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;
use uuid::Uuid;

use super::Layout;
use crate::value::{Atom, Datum};

/// A column of a row cannot be read as wanted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ColumnError {
    /// The column is not monitored: a mistake in the program's list of columns.
    #[error("{table}.{column} is not monitored")]
    NotMonitored {
        /// The table.
        table: Arc<str>,
        /// The column.
        column: String,
    },
    /// The database's schema has no such column. Do without it.
    #[error("the database has no column {table}.{column}")]
    Absent {
        /// The table.
        table: Arc<str>,
        /// The column.
        column: String,
    },
    /// The server's value does not match its schema.
    #[error("{table}.{column}: {why}")]
    Bad {
        /// The table.
        table: Arc<str>,
        /// The column.
        column: String,
        /// The value's fault.
        why: Arc<str>,
    },
    /// The column holds another type, or another number of values, than the accessor gives.
    #[error("{table}.{column} does not hold {wanted}")]
    Type {
        /// The table.
        table: Arc<str>,
        /// The column.
        column: String,
        /// Type that the accessor wanted.
        wanted: &'static str,
    },
}

/// The value of one column, or the reason why it has none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Value(Arc<Datum>),
    Bad(Arc<str>),
}

/// One row. Cheap to clone: the columns' values are shared.
#[derive(Clone, Debug)]
pub struct Row {
    uuid: Uuid,
    layout: Arc<Layout>,
    /// One cell for each column of the layout, in its order.
    pub(crate) cells: Vec<Cell>,
}

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        self.uuid == other.uuid
            && (Arc::ptr_eq(&self.layout, &other.layout) || self.layout == other.layout)
            && self.cells == other.cells
    }
}

impl Row {
    /// A row of default values.
    pub(crate) fn new(uuid: Uuid, layout: Arc<Layout>) -> Row {
        let cells = layout
            .columns()
            .iter()
            .map(|c| Cell::Value(c.default.clone()))
            .collect();
        Row { uuid, layout, cells }
    }

    /// The row's identity.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The table's name.
    pub fn table(&self) -> &Arc<str> {
        self.layout.table()
    }

    /// The columns that rows of this table have here.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the column is monitored and in the database's schema.
    pub fn has(&self, column: &str) -> bool {
        self.layout.position(column).is_some()
    }

    /// The column's value as it is.
    ///
    /// # Errors
    /// [`ColumnError`]; all but `Type` are possible.
    pub fn datum(&self, column: &str) -> Result<&Datum, ColumnError> {
        let table = || self.layout.table().clone();
        let name = || column.to_string();
        match self.layout.position(column).and_then(|i| self.cells.get(i)) {
            Some(Cell::Value(v)) => Ok(v),
            Some(Cell::Bad(why)) => Err(ColumnError::Bad {
                table: table(),
                column: name(),
                why: why.clone(),
            }),
            None if self.layout.is_absent(column) => Err(ColumnError::Absent {
                table: table(),
                column: name(),
            }),
            None => Err(ColumnError::NotMonitored {
                table: table(),
                column: name(),
            }),
        }
    }

    fn type_error(&self, column: &str, wanted: &'static str) -> ColumnError {
        ColumnError::Type {
            table: self.layout.table().clone(),
            column: column.to_string(),
            wanted,
        }
    }

    /// The value, or `None` for an absent column.
    fn present(&self, column: &str) -> Result<Option<&Datum>, ColumnError> {
        match self.datum(column) {
            Ok(v) => Ok(Some(v)),
            Err(ColumnError::Absent { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Elements of a set, each through `pick`.
    fn elements<'a, T>(
        &'a self,
        column: &str,
        wanted: &'static str,
        pick: impl Fn(&'a Atom) -> Option<T>,
    ) -> Result<Vec<T>, ColumnError> {
        let Some(datum) = self.present(column)? else {
            return Ok(Vec::new());
        };
        let atoms = datum.as_set().ok_or_else(|| self.type_error(column, wanted))?;
        atoms
            .iter()
            .map(|a| pick(a).ok_or_else(|| self.type_error(column, wanted)))
            .collect()
    }

    fn optional<'a, T>(
        &'a self,
        column: &str,
        wanted: &'static str,
        pick: impl Fn(&'a Atom) -> Option<T>,
    ) -> Result<Option<T>, ColumnError> {
        let Some(datum) = self.present(column)? else {
            return Ok(None);
        };
        match datum.as_set() {
            Some([]) => Ok(None),
            Some([one]) => pick(one).map(Some).ok_or_else(|| self.type_error(column, wanted)),
            _ => Err(self.type_error(column, wanted)),
        }
    }

    fn exactly_one<'a, T>(
        &'a self,
        column: &str,
        wanted: &'static str,
        pick: impl Fn(&'a Atom) -> Option<T>,
    ) -> Result<T, ColumnError> {
        match self.datum(column)?.as_set() {
            Some([one]) => pick(one).ok_or_else(|| self.type_error(column, wanted)),
            _ => Err(self.type_error(column, wanted)),
        }
    }

    /// The pairs of a map of strings.
    fn pairs(&self, column: &str) -> Result<&[(Atom, Atom)], ColumnError> {
        match self.present(column)? {
            Some(datum) => datum.as_map().ok_or_else(|| self.type_error(column, "a map")),
            None => Ok(&[]),
        }
    }

    /// A map of strings to strings.
    ///
    /// # Errors
    /// [`ColumnError`] for this column.
    pub fn map_str(&self, column: &str) -> Result<BTreeMap<String, String>, ColumnError> {
        let wanted = "a map of strings to strings";
        self.pairs(column)?
            .iter()
            .map(|(k, v)| match (k, v) {
                (Atom::String(k), Atom::String(v)) => Ok((k.to_string(), v.to_string())),
                _ => Err(self.type_error(column, wanted)),
            })
            .collect()
    }

    /// A map of strings to integers, such as `statistics`.
    ///
    /// # Errors
    /// [`ColumnError`] for this column.
    pub fn map_int(&self, column: &str) -> Result<BTreeMap<String, i64>, ColumnError> {
        let wanted = "a map of strings to integers";
        self.pairs(column)?
            .iter()
            .map(|(k, v)| match (k, v) {
                (Atom::String(k), Atom::Integer(v)) => Ok((k.to_string(), *v)),
                _ => Err(self.type_error(column, wanted)),
            })
            .collect()
    }

    /// A map of strings to rows, such as `Open_vSwitch.datapaths`.
    ///
    /// # Errors
    /// [`ColumnError`] for this column.
    pub fn map_str_uuid(&self, column: &str) -> Result<BTreeMap<String, Uuid>, ColumnError> {
        let wanted = "a map of strings to rows";
        self.pairs(column)?
            .iter()
            .map(|(k, v)| match (k, v) {
                (Atom::String(k), Atom::Uuid(v)) => Ok((k.to_string(), *v)),
                _ => Err(self.type_error(column, wanted)),
            })
            .collect()
    }

    /// A map of integers to rows, such as `QoS.queues` and `Bridge.flow_tables`.
    ///
    /// # Errors
    /// [`ColumnError`] for this column.
    pub fn map_int_uuid(&self, column: &str) -> Result<BTreeMap<i64, Uuid>, ColumnError> {
        let wanted = "a map of integers to rows";
        self.pairs(column)?
            .iter()
            .map(|(k, v)| match (k, v) {
                (Atom::Integer(k), Atom::Uuid(v)) => Ok((*k, *v)),
                _ => Err(self.type_error(column, wanted)),
            })
            .collect()
    }

    /// One value of a map of strings to strings, without copying the map.
    ///
    /// # Errors
    /// [`ColumnError`] for this column.
    pub fn map_get(&self, column: &str, key: &str) -> Result<Option<&str>, ColumnError> {
        let pairs = self.pairs(column)?;
        let found = pairs
            .iter()
            .find(|(k, _)| matches!(k, Atom::String(k) if **k == *key));
        match found {
            None => Ok(None),
            Some((_, Atom::String(v))) => Ok(Some(v)),
            Some(_) => Err(self.type_error(column, "a map of strings to strings")),
        }
    }
}

fn pick_str(a: &Atom) -> Option<&str> {
    if let Atom::String(s) = a { Some(s) } else { None }
}

fn pick_int(a: &Atom) -> Option<i64> {
    if let Atom::Integer(i) = a { Some(*i) } else { None }
}

fn pick_real(a: &Atom) -> Option<f64> {
    if let Atom::Real(x) = a { Some(*x) } else { None }
}

fn pick_bool(a: &Atom) -> Option<bool> {
    if let Atom::Boolean(b) = a { Some(*b) } else { None }
}

fn pick_uuid(a: &Atom) -> Option<Uuid> {
    if let Atom::Uuid(u) = a { Some(*u) } else { None }
}

macro_rules! accessors {
    ($($ty:ty, $what:literal, $pick:ident: $one:ident, $opt:ident, $many:ident;)*) => {
        impl Row {$(
            #[doc = concat!("The column as exactly one ", $what, ".")]
            ///
            /// # Errors
            /// [`ColumnError`] for this column.
            pub fn $one(&self, column: &str) -> Result<$ty, ColumnError> {
                self.exactly_one(column, concat!("exactly one ", $what), $pick)
            }

            #[doc = concat!("The column as one ", $what, " or none.")]
            ///
            /// # Errors
            /// [`ColumnError`] for this column.
            pub fn $opt(&self, column: &str) -> Result<Option<$ty>, ColumnError> {
                self.optional(column, concat!("at most one ", $what), $pick)
            }

            #[doc = concat!("The column as a set of ", $what, " values, ascending.")]
            ///
            /// # Errors
            /// [`ColumnError`] for this column.
            pub fn $many(&self, column: &str) -> Result<Vec<$ty>, ColumnError> {
                self.elements(column, concat!("a set of ", $what, " values"), $pick)
            }
        )*}
    };
}

accessors! {
    &str, "string", pick_str: str, opt_str, strs;
    i64, "integer", pick_int: int, opt_int, ints;
    f64, "real", pick_real: real, opt_real, reals;
    bool, "boolean", pick_bool: bool, opt_bool, bools;
    Uuid, "uuid", pick_uuid: uuid_of, opt_uuid, uuids;
}
