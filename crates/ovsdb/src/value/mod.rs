//! OVSDB values: atoms, and the sets and maps that columns hold (RFC 7047 section 5.1).
//!
//! The type of a column decides how JSON is read: the number `1` is an integer in one column and a real in
//! another. A bare atom is a set of one. So values are always read against an [`AtomType`] or a
//! [`ColumnType`](crate::ColumnType); writing needs no type.

mod atom;
mod datum;
mod delta;
#[cfg(test)]
pub(crate) mod tests;
mod types;

pub(crate) use atom::parse_uuid;
pub use atom::{Atom, AtomType};
pub use datum::Datum;
pub use types::{BaseType, ColumnType, Reference};

use thiserror::Error;

/// Why a JSON value is not a value of the column's type. The value is refused; the rest of its row is kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ValueError {
    /// The JSON has another shape than the type requires.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// Shape that the column's type requires.
        expected: &'static str,
        /// The JSON, shortened.
        found: String,
    },
    /// A number does not fit 64 bits, or is not finite.
    #[error("number {0} out of range")]
    Range(String),
    /// A map names one key twice.
    #[error("map has the key {0} twice")]
    DuplicateKey(String),
    /// More or fewer elements than the column's type allows.
    #[error("{found} elements where the column takes {min} to {max}")]
    Size {
        /// Elements found.
        found: usize,
        /// Minimum allowed.
        min: usize,
        /// Maximum allowed.
        max: usize,
    },
    /// A value outside the column's `enum`, or outside its numeric or length limits.
    #[error("{0} is not among the values that the column allows")]
    NotAllowed(String),
    /// A string holds a NUL, which OVSDB servers refuse by dropping the connection.
    #[error("string holds a NUL character")]
    Nul,
}

/// A short rendering of foreign JSON for messages: bounded, so that a huge value does not fill the log.
pub(crate) fn excerpt(json: &serde_json::Value) -> String {
    const LIMIT: usize = 80;
    let text = match json {
        // Containers can be huge: only their size is printed.
        serde_json::Value::Array(a) if a.len() > 8 => return format!("array of {} elements", a.len()),
        serde_json::Value::Object(o) if o.len() > 8 => return format!("object of {} members", o.len()),
        other => other.to_string(),
    };
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
