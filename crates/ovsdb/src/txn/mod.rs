//! Transactions (RFC 7047 sections 4.1.3 and 5.2): built by the caller, executed by the server as a whole or
//! not at all.

mod build;
mod desired;
mod outcome;
#[cfg(test)]
mod tests;

pub use build::{Columns, Condition, Inserted, Mutation, Mutator, Txn, WaitUntil};
pub use desired::Refused;
pub(crate) use outcome::parse_reply;
pub use outcome::{OpResult, TxnError};
