//! Results of a transaction.

use serde_json::{Map, Value};
use thiserror::Error;
use uuid::Uuid;

use crate::schema::Schema;
use crate::value::{Atom, AtomType, Datum, ValueError, excerpt};

/// The result of one operation; members that the operation does not have are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpResult {
    /// Rows that an `update`, `mutate` or `delete` matched.
    pub count: Option<u64>,
    /// The row that an `insert` made.
    pub uuid: Option<Uuid>,
    /// The rows of a `select`, as JSON; see [`value`](OpResult::value).
    pub rows: Vec<Map<String, Value>>,
}

impl OpResult {
    /// One column of a selected row, read by its type in the schema. `None` without such a row or column.
    pub fn value(
        &self,
        schema: &Schema,
        table: &str,
        row: usize,
        column: &str,
    ) -> Option<Result<Datum, ValueError>> {
        let json = self.rows.get(row)?.get(column)?;
        if column == "_uuid" {
            return Some(Atom::from_json(json, AtomType::Uuid).map(Datum::from));
        }
        Some(Datum::from_json(json, &schema.column(table, column)?.ty))
    }
}

/// Why a transaction did not (or may not) take effect.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TxnError {
    /// There is no connection with loaded contents. Compute it anew when there is.
    #[error("not connected to the database")]
    NotConnected,
    /// The connection went after the request was sent: it may or may not have been executed. Compare with the
    /// replica after the reconnection.
    #[error("connection lost before the reply")]
    Disconnected,
    /// The lock that the transaction asserts is not held. Wait for it.
    #[error("lock not held")]
    NotLocked,
    /// A `wait` was not satisfied in time: the caller's view was old. Compute it anew from the new contents.
    #[error("wait timed out")]
    TimedOut,
    /// The server canceled it or cannot serve the database now. Try again after the next change.
    #[error("server cannot execute it now: {0}")]
    Busy(String),
    /// The transaction had an `abort` operation.
    #[error("aborted as requested")]
    Aborted,
    /// The server refused it; the same transaction will fail again.
    #[error("{error}{}{}", match .index { Some(i) => format!(" in operation {i}"), None => " at commit".into() },
        match .details { Some(d) => format!(": {d}"), None => String::new() })]
    Refused {
        /// Position of the operation in the transaction; `None` where only the whole failed.
        index: Option<usize>,
        /// The error's name (RFC 7047 section 5.2), e.g. `constraint violation`.
        error: String,
        /// The server's words.
        details: Option<String>,
    },
    /// The transaction holds a value that cannot be sent; nothing was sent.
    #[error("invalid transaction: {0}")]
    Invalid(String),
    /// The server's reply makes no sense. It may have been executed.
    #[error("reply not understood: {0}")]
    BadReply(String),
}

impl TxnError {
    /// Whether the same intent, computed anew from the newest contents, can succeed later. The others need
    /// another transaction, or a program that is corrected.
    pub fn is_retriable(&self) -> bool {
        match self {
            TxnError::NotConnected
            | TxnError::Disconnected
            | TxnError::NotLocked
            | TxnError::TimedOut
            | TxnError::Busy(_) => true,
            TxnError::Aborted | TxnError::Refused { .. } | TxnError::Invalid(_) | TxnError::BadReply(_) => {
                false
            }
        }
    }
}

/// Reads the reply to `transact` (RFC 7047 section 4.1.3). `before` operations of ours precede `ops`
/// operations of the caller.
pub(crate) fn parse_reply(
    outcome: Result<Value, Value>,
    before: usize,
    ops: usize,
) -> Result<Vec<OpResult>, TxnError> {
    let results = match outcome {
        Ok(Value::Array(results)) => results,
        Ok(other) => return Err(TxnError::BadReply(excerpt(&other))),
        Err(error) => return Err(call_error(&error)),
    };
    for (index, result) in results.iter().enumerate() {
        let Some(error) = result.get("error").and_then(Value::as_str) else {
            continue;
        };
        let details = result.get("details").and_then(Value::as_str);
        // An error after the last operation is one of the commit.
        let index = index.checked_sub(before).filter(|i| *i < ops);
        return Err(op_error(error, details, index));
    }
    if results.len() != before + ops {
        return Err(TxnError::BadReply(format!(
            "{} results for {} operations",
            results.len(),
            before + ops
        )));
    }
    Ok(results.into_iter().skip(before).map(op_result).collect())
}

fn op_result(result: Value) -> OpResult {
    let Value::Object(mut result) = result else {
        return OpResult::default();
    };
    let rows = match result.remove("rows") {
        Some(Value::Array(rows)) => rows
            .into_iter()
            .filter_map(|row| {
                if let Value::Object(row) = row {
                    Some(row)
                } else {
                    None
                }
            })
            .collect(),
        _ => Vec::new(),
    };
    let uuid = result
        .get("uuid")
        .and_then(|u| match Atom::from_json(u, AtomType::Uuid) {
            Ok(Atom::Uuid(u)) => Some(u),
            _ => None,
        });
    OpResult {
        count: result.get("count").and_then(Value::as_u64),
        uuid,
        rows,
    }
}

fn op_error(error: &str, details: Option<&str>, index: Option<usize>) -> TxnError {
    match error {
        "not owner" => TxnError::NotLocked,
        "timed out" => TxnError::TimedOut,
        "aborted" => TxnError::Aborted,
        // A cluster without a leader, or a database being converted: the reference client tries these again
        // as well.
        "unknown database" | "cluster error" => TxnError::Busy(error.to_string()),
        _ => TxnError::Refused {
            index,
            error: error.to_string(),
            details: details.map(str::to_string),
        },
    }
}

/// An error of the whole request: a string, or an object like an operation's.
fn call_error(error: &Value) -> TxnError {
    match error {
        Value::String(name) if name == "canceled" => TxnError::Busy(name.clone()),
        Value::String(name) => op_error(name, None, None),
        other => match other.get("error").and_then(Value::as_str) {
            Some(name) => op_error(name, other.get("details").and_then(Value::as_str), None),
            None => TxnError::BadReply(excerpt(other)),
        },
    }
}
