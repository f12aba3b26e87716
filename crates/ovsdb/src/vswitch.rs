//! The database `Open_vSwitch`, for programs that make ports in a few transactions and end.

use crate::blocking::{Connection, Error, Sent};
use serde_json::{Value, json};
use std::time::Duration;

/// The name of the database, and of its table with one row.
pub const NAME: &str = "Open_vSwitch";

/// A connection to the database of a switch.
#[derive(Debug)]
pub struct Vswitch {
    connection: Connection,
    timeout: Duration,
}

impl Vswitch {
    /// Connects to `unix:PATH` or `tcp:HOST:PORT`. The switch may take up to `timeout` to make a port.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Address`].
    pub fn open(address: &str, timeout: Duration) -> Result<Vswitch, Error> {
        // The server replies to a `wait` after `timeout` at the latest; the connection must live longer.
        let connection = Connection::open(address, timeout + Duration::from_secs(2))?;
        Ok(Vswitch { connection, timeout })
    }

    /// The longest time that the switch may take to make a port.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The results of a transaction, one for each operation.
    ///
    /// # Errors
    /// See [`Connection::receive`].
    pub fn transact(&mut self, operations: &[Value]) -> Result<Vec<Value>, Error> {
        self.connection.transact(NAME, operations)
    }

    /// The rows of a table that fulfil a condition.
    ///
    /// # Errors
    /// See [`Connection::receive`].
    pub fn select(&mut self, table: &str, condition: &Value, columns: &Value) -> Result<Vec<Value>, Error> {
        let results = self.transact(&[select(table, condition, columns)])?;
        Ok(rows(results.first()))
    }

    /// Sends a request that waits until the switch has set `ofport` of the Interface, to a number or an
    /// error.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn send_wait_for_port(&mut self, name: &str, columns: &Value) -> Result<Sent, Error> {
        let condition = json!([["name", "==", name]]);
        let millis = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let wait = json!({"op": "wait", "timeout": millis, "table": "Interface", "where": condition,
            "columns": ["ofport"], "until": "!=", "rows": [{"ofport": ["set", []]}]});
        self.connection
            .send(NAME, &[wait, select("Interface", &condition, columns)])
    }

    /// The columns of the Interface, or `None` if its row is gone.
    ///
    /// # Errors
    /// See [`Connection::receive`]; [`Error::is_timeout`] of operation 0 if the switch has not made the port.
    pub fn receive_port(&mut self, sent: Sent) -> Result<Option<Value>, Error> {
        let results = self.connection.receive(sent)?;
        Ok(rows(results.get(1)).into_iter().next())
    }
}

fn select(table: &str, condition: &Value, columns: &Value) -> Value {
    json!({"op": "select", "table": table, "where": condition, "columns": columns})
}

/// The operation that inserts a row, to which others of the transaction refer by `name`.
#[must_use]
pub fn insert(table: &str, name: &str, row: &Value) -> Value {
    json!({"op": "insert", "table": table, "uuid-name": name, "row": row})
}

/// The rows of the result of a `select`.
#[must_use]
pub fn rows(result: Option<&Value>) -> Vec<Value> {
    let rows = result.and_then(|r| r.get("rows")).and_then(Value::as_array);
    rows.cloned().unwrap_or_default()
}

/// The pairs of strings of a column that is a map.
pub fn pairs(map: &Value) -> impl Iterator<Item = (&str, &str)> {
    let pairs = map.get(1).and_then(Value::as_array).into_iter().flatten();
    pairs.filter_map(|pair| Some((pair.get(0)?.as_str()?, pair.get(1)?.as_str()?)))
}
