//! The three kinds of JSON-RPC 1.0 message (RFC 7047 section 4): request, notification, reply.

use serde_json::{Value, json};
use thiserror::Error;

/// A message from the peer.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Wants a reply with the same `id`.
    Request {
        /// Name of the method.
        method: String,
        /// Arguments.
        params: Vec<Value>,
        /// Not null.
        id: Value,
    },
    /// Wants no reply.
    Notification {
        /// Name of the notification.
        method: String,
        /// Arguments.
        params: Vec<Value>,
    },
    /// Reply to a request of ours.
    Reply {
        /// The request's `id`.
        id: Value,
        /// The result, or the peer's error object.
        outcome: Result<Value, Value>,
    },
}

/// JSON that is no message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a JSON-RPC message: {0}")]
pub struct MessageError(&'static str);

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// [`MessageError`] for an object that is none of the three kinds.
    pub fn from_json(json: Value) -> Result<Message, MessageError> {
        let Value::Object(mut top) = json else {
            return Err(MessageError("no object"));
        };
        let id = top.remove("id").unwrap_or(Value::Null);
        if let Some(method) = top.remove("method") {
            let Value::String(method) = method else {
                return Err(MessageError("method is no string"));
            };
            let params = match top.remove("params") {
                Some(Value::Array(params)) => params,
                // RFC 7047 section 4.1.1 shows requests with null for no parameters.
                None | Some(Value::Null) => Vec::new(),
                Some(_) => return Err(MessageError("params is no array")),
            };
            return Ok(match id {
                Value::Null => Message::Notification { method, params },
                id => Message::Request { method, params, id },
            });
        }
        let error = top.remove("error").unwrap_or(Value::Null);
        let result = top.remove("result");
        if id.is_null() {
            return Err(MessageError("neither method nor id"));
        }
        let outcome = match (error, result) {
            (Value::Null, Some(result)) => Ok(result),
            (Value::Null, None) => return Err(MessageError("neither result nor error")),
            (error, _) => Err(error),
        };
        Ok(Message::Reply { id, outcome })
    }
}

/// A request as JSON.
pub fn request(method: &str, params: Value, id: u64) -> Value {
    json!({"method": method, "params": params, "id": id})
}

/// A reply with a result as JSON.
pub fn reply(id: Value, result: Value) -> Value {
    json!({"result": result, "error": null, "id": id})
}

/// A reply with an error as JSON.
pub fn error_reply(id: Value, error: Value) -> Value {
    json!({"result": null, "error": error, "id": id})
}
