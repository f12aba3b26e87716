//! Errors of calls.

use serde_json::Value;
use thiserror::Error;

/// Why a call of [`crate::Client::call`] has no result.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CallError {
    /// There is no connection.
    #[error("not connected to the database")]
    NotConnected,
    /// The connection went before the reply came.
    #[error("connection lost before the reply")]
    Disconnected,
    /// The server's error object.
    #[error("server error: {0}")]
    Server(Value),
}
