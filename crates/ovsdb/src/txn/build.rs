//! Builds the operations of a transaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{OpResult, TxnError};
use crate::replica::Row;
use crate::value::{Atom, Datum};

/// Values by column, for inserts and updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns(pub(crate) BTreeMap<String, Datum>);

impl Columns {
    /// No column.
    pub fn new() -> Columns {
        Columns::default()
    }

    /// Adds a column, or replaces its value.
    #[must_use]
    pub fn with(mut self, column: &str, value: impl Into<Datum>) -> Columns {
        self.set(column, value);
        self
    }

    /// Adds a column, or replaces its value.
    pub fn set(&mut self, column: &str, value: impl Into<Datum>) {
        self.0.insert(column.to_string(), value.into());
    }

    /// The columns and values, ascending by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Datum)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// No column.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn to_json(&self) -> Value {
        Value::Object(self.0.iter().map(|(k, v)| (k.clone(), v.to_json())).collect())
    }
}

/// Condition on the rows of an operation (`<condition>*`, RFC 7047 section 5.1).
#[derive(Clone, Debug)]
pub struct Condition(Vec<(String, &'static str, Datum)>);

impl Condition {
    /// Every row of the table.
    pub fn all() -> Condition {
        Condition(Vec::new())
    }

    /// Rows whose column is exactly this value.
    pub fn equals(column: &str, value: impl Into<Datum>) -> Condition {
        Condition::all().and(column, "==", value)
    }

    /// Adds a condition; `function` is one of `<`, `<=`, `==`, `!=`, `>=`, `>`, `includes`, `excludes`.
    #[must_use]
    pub fn and(mut self, column: &str, function: &'static str, value: impl Into<Datum>) -> Condition {
        self.0.push((column.to_string(), function, value.into()));
        self
    }

    fn to_json(&self) -> Value {
        self.0
            .iter()
            .map(|(column, function, value)| json!([column, function, value.to_json()]))
            .collect()
    }
}

impl From<Uuid> for Condition {
    fn from(uuid: Uuid) -> Condition {
        Condition::equals("_uuid", uuid)
    }
}

impl From<&Row> for Condition {
    fn from(row: &Row) -> Condition {
        Condition::from(row.uuid())
    }
}

impl From<&Arc<Row>> for Condition {
    fn from(row: &Arc<Row>) -> Condition {
        Condition::from(row.uuid())
    }
}

impl From<&Inserted> for Condition {
    fn from(row: &Inserted) -> Condition {
        Condition::equals("_uuid", row.reference())
    }
}

/// A row that a transaction inserts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserted {
    name: Arc<str>,
    index: usize,
}

impl Inserted {
    /// A value that refers to the row, for other columns of the same transaction.
    pub fn reference(&self) -> Atom {
        Atom::NamedUuid(self.name.clone())
    }

    /// The identity that the server gave to the row, from the results of the transaction.
    pub fn uuid(&self, results: &[OpResult]) -> Option<Uuid> {
        results.get(self.index)?.uuid
    }
}

/// Operator of a mutation (`<mutator>`, RFC 7047 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutator {
    /// `+=`
    Add,
    /// `-=`
    Subtract,
    /// `*=`
    Multiply,
    /// `/=`
    Divide,
    /// `%=`
    Modulo,
    /// Adds elements to a set, or pairs of new keys to a map.
    Insert,
    /// Takes elements out of a set, or pairs (given whole, or by a set of keys) out of a map.
    Delete,
}

/// A change relative to the value that the server has (`<mutation>`).
#[derive(Clone, Debug)]
pub struct Mutation {
    column: String,
    mutator: Mutator,
    value: Datum,
}

impl Mutation {
    /// Applies `mutator` with `value` to the column.
    pub fn new(column: &str, mutator: Mutator, value: impl Into<Datum>) -> Mutation {
        Mutation {
            column: column.to_string(),
            mutator,
            value: value.into(),
        }
    }

    fn to_json(&self) -> Value {
        let mutator = match self.mutator {
            Mutator::Add => "+=",
            Mutator::Subtract => "-=",
            Mutator::Multiply => "*=",
            Mutator::Divide => "/=",
            Mutator::Modulo => "%=",
            Mutator::Insert => "insert",
            Mutator::Delete => "delete",
        };
        json!([self.column, mutator, self.value.to_json()])
    }
}

/// When a `wait` is satisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitUntil {
    /// The rows are as given.
    Equal,
    /// The rows are not as given.
    NotEqual,
}

/// A transaction in the making.
///
/// ```
/// use heddle_ovsdb::{Columns, Mutation, Mutator, Txn};
/// # let bridge = uuid::Uuid::nil();
/// let mut txn = Txn::new();
/// let iface = txn.insert("Interface", Columns::new().with("name", "p1"));
/// let port = txn.insert("Port", Columns::new().with("name", "p1").with("interfaces", iface.reference()));
/// txn.mutate("Bridge", bridge, [Mutation::new("ports", Mutator::Insert, port.reference())]);
/// txn.comment("add p1");
/// assert_eq!(txn.len(), 4);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Txn {
    ops: Vec<Value>,
    assert_lock: bool,
    /// The first value that no server takes; reported when the transaction is sent.
    invalid: Option<String>,
}

impl Txn {
    /// Without operations.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// No operation: sending it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Makes the server refuse the transaction unless this client holds its lock at that moment.
    pub fn assert_lock(&mut self) -> &mut Txn {
        self.assert_lock = true;
        self
    }

    /// Inserts a row; columns that are not given get their defaults.
    pub fn insert(&mut self, table: &str, columns: Columns) -> Inserted {
        let index = self.ops.len();
        let name: Arc<str> = Arc::from(format!("row{index}"));
        self.check_columns(table, &columns);
        self.ops.push(json!({
            "op": "insert", "table": table, "row": columns.to_json(), "uuid-name": &*name,
        }));
        Inserted { name, index }
    }

    /// Sets columns of rows. Without columns nothing is added.
    pub fn update(&mut self, table: &str, rows: impl Into<Condition>, columns: Columns) {
        if columns.is_empty() {
            return;
        }
        self.check_columns(table, &columns);
        let rows = self.condition(table, rows.into());
        self.ops
            .push(json!({"op": "update", "table": table, "where": rows, "row": columns.to_json()}));
    }

    /// Changes columns of rows relative to the server's values. Without mutations nothing is added.
    pub fn mutate(
        &mut self,
        table: &str,
        rows: impl Into<Condition>,
        mutations: impl IntoIterator<Item = Mutation>,
    ) {
        let mut list = Vec::new();
        for mutation in mutations {
            self.check(table, &mutation.column, &mutation.value);
            list.push(mutation.to_json());
        }
        if list.is_empty() {
            return;
        }
        let rows = self.condition(table, rows.into());
        self.ops
            .push(json!({"op": "mutate", "table": table, "where": rows, "mutations": list}));
    }

    /// Deletes rows.
    pub fn delete(&mut self, table: &str, rows: impl Into<Condition>) {
        let rows = self.condition(table, rows.into());
        self.ops
            .push(json!({"op": "delete", "table": table, "where": rows}));
    }

    /// Reads rows; `None` for all columns. See [`OpResult::rows`].
    pub fn select(&mut self, table: &str, rows: impl Into<Condition>, columns: Option<&[&str]>) {
        let rows = self.condition(table, rows.into());
        let mut op = json!({"op": "select", "table": table, "where": rows});
        if let (Some(columns), Some(op)) = (columns, op.as_object_mut()) {
            op.insert("columns".to_string(), json!(columns));
        }
        self.ops.push(op);
    }

    /// Makes the transaction wait until the rows are (or are not) as given, and fail with
    /// [`TxnError::TimedOut`] after `timeout`. Zero makes it a check that the caller's view is current.
    pub fn wait(
        &mut self,
        table: &str,
        rows: impl Into<Condition>,
        until: WaitUntil,
        expected: &[Columns],
        timeout: Duration,
    ) {
        let names: Vec<&str> = expected
            .first()
            .into_iter()
            .flat_map(Columns::iter)
            .map(|(name, _)| name)
            .collect();
        for row in expected {
            self.check_columns(table, row);
        }
        let until = match until {
            WaitUntil::Equal => "==",
            WaitUntil::NotEqual => "!=",
        };
        let rows = self.condition(table, rows.into());
        let list: Vec<Value> = expected.iter().map(Columns::to_json).collect();
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX >> 1);
        self.ops.push(json!({
            "op": "wait", "table": table, "where": rows, "columns": names, "until": until, "rows": list,
            "timeout": timeout_ms,
        }));
    }

    /// Leaves a note in the database's log.
    pub fn comment(&mut self, text: &str) {
        // A NUL would cost the connection, and a comment is worth less than its transaction.
        self.ops
            .push(json!({"op": "comment", "comment": text.replace('\0', "")}));
    }

    /// Makes the transaction fail with [`TxnError::Aborted`]: a trial run.
    pub fn abort(&mut self) {
        self.ops.push(json!({"op": "abort"}));
    }

    fn check(&mut self, table: &str, column: &str, value: &Datum) {
        if let (Err(e), None) = (value.check_sendable(), &self.invalid) {
            self.invalid = Some(format!("{table}.{column}: {e}"));
        }
    }

    fn check_columns(&mut self, table: &str, columns: &Columns) {
        for (name, value) in columns.iter() {
            self.check(table, name, value);
        }
    }

    fn condition(&mut self, table: &str, rows: Condition) -> Value {
        for (column, _, value) in &rows.0 {
            self.check(table, column, value);
        }
        rows.to_json()
    }

    /// `params` of the `transact` request, and the number of operations before the caller's.
    pub(crate) fn into_params(self, db: &str, lock: Option<&str>) -> Result<(Value, usize), TxnError> {
        if let Some(why) = self.invalid {
            return Err(TxnError::Invalid(why));
        }
        let mut params = Vec::with_capacity(self.ops.len() + 2);
        params.push(Value::from(db));
        if self.assert_lock {
            let lock =
                lock.ok_or_else(|| TxnError::Invalid("assert without a lock in the options".into()))?;
            let mut op = Map::new();
            op.insert("op".into(), "assert".into());
            op.insert("lock".into(), lock.into());
            params.push(Value::Object(op));
        }
        let before = params.len() - 1;
        params.extend(self.ops);
        Ok((Value::Array(params), before))
    }
}
