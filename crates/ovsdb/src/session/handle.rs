//! Handling of the server's messages.

use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use super::SharedState;
use super::connection::{CloseReason, Connection, Method, Pending};
use crate::call_error::CallError;
use crate::replica::{Change, Inconsistent, layouts, monitor_requests, parse_updates, parse_updates2};
use crate::rpc::{Message, error_reply, reply};
use crate::schema::Schema;
use crate::status::{ConnState, LockState};
use crate::txn::parse_reply;
use crate::value::{excerpt, parse_uuid};

/// Our name for the monitor; one connection has one.
const MONITOR: &str = "heddle";

impl Connection<'_> {
    pub(super) fn on_message(&mut self, json: Value) -> Result<(), CloseReason> {
        match Message::from_json(json)? {
            Message::Request { method, params, id } => {
                // Section 4.1.11: the server probes as well.
                let answer = if method == "echo" {
                    reply(id, Value::Array(params))
                } else {
                    error_reply(id, "unknown method".into())
                };
                self.outbox.push(&answer);
                Ok(())
            }
            Message::Notification { method, params } => self.on_notification(&method, &params),
            Message::Reply { id, outcome } => match id.as_u64().and_then(|id| self.pending.remove(&id)) {
                Some(pending) => self.on_reply(pending, outcome),
                None => {
                    log::debug!("reply to no request of ours: {}", excerpt(&id));
                    Ok(())
                }
            },
        }
    }

    fn on_reply(&mut self, pending: Pending, outcome: Result<Value, Value>) -> Result<(), CloseReason> {
        match (pending, outcome) {
            (Pending::Schema, Ok(schema)) => self.on_schema(Schema::from_json(&schema)?),
            (Pending::Schema, Err(e)) => {
                let db = &self.session.shared.db_name;
                return Err(CloseReason::Protocol(format!(
                    "no schema of database {db}: {}",
                    excerpt(&e)
                )));
            }
            (Pending::Monitor(method, schema), Ok(contents)) => {
                self.on_contents(method, schema, &contents)?
            }
            (Pending::Monitor(method, schema), Err(e)) => {
                // An old server does not know the newer methods; after any error, the next older method is
                // tried.
                let next = match method {
                    Method::CondSince => Method::Cond,
                    Method::Cond => Method::Plain,
                    Method::Plain => {
                        return Err(CloseReason::Protocol(format!("monitor refused: {}", excerpt(&e))));
                    }
                };
                self.monitor(next, schema);
            }
            (Pending::Lock, Ok(result)) => {
                let held = result.get("locked").and_then(Value::as_bool) == Some(true);
                self.set_lock(if held {
                    LockState::Held
                } else {
                    LockState::Contended
                });
            }
            (Pending::Lock, Err(e)) => {
                return Err(CloseReason::Protocol(format!("lock refused: {}", excerpt(&e))));
            }
            (Pending::Echo, _) => {}
            (Pending::Transact { before, ops, reply }, outcome) => {
                drop(reply.send(parse_reply(outcome, before, ops)));
            }
            (Pending::Call { reply }, outcome) => drop(reply.send(outcome.map_err(CallError::Server))),
        }
        Ok(())
    }

    /// Sets the columns to follow and requests the contents.
    fn on_schema(&mut self, schema: Schema) {
        let layouts = layouts(&schema, &self.session.spec);
        if *self.session.layouts != layouts {
            // The columns changed: an update since some transaction would lack the new columns of old rows.
            self.session.layouts = Arc::new(layouts);
            self.session.resume = None;
        }
        self.monitor(Method::CondSince, schema);
    }

    fn monitor(&mut self, method: Method, schema: Schema) {
        let db = self.session.shared.db_name.clone();
        let requests = monitor_requests(&self.session.layouts);
        let (name, params) = match method {
            Method::CondSince => {
                let since = self.session.resume.unwrap_or(Uuid::nil());
                (
                    "monitor_cond_since",
                    json!([db, MONITOR, requests, since.to_string()]),
                )
            }
            Method::Cond => ("monitor_cond", json!([db, MONITOR, requests])),
            Method::Plain => ("monitor", json!([db, MONITOR, requests])),
        };
        self.request(name, params, Pending::Monitor(method, schema));
    }

    fn on_contents(&mut self, method: Method, schema: Schema, contents: &Value) -> Result<(), CloseReason> {
        let layouts = self.session.layouts.clone();
        let (continues, resume, updates) = match method {
            Method::CondSince => match contents.as_array().map(Vec::as_slice) {
                Some([Value::Bool(found), last, updates]) => {
                    (*found, transaction_id(last), parse_updates2(updates, &layouts)?)
                }
                _ => {
                    return Err(CloseReason::Protocol(format!(
                        "monitor_cond_since: {}",
                        excerpt(contents)
                    )));
                }
            },
            Method::Cond => (false, None, parse_updates2(contents, &layouts)?),
            Method::Plain => (false, None, parse_updates(contents, &layouts)?),
        };
        if continues && self.session.resume.is_none() {
            return Err(Inconsistent("continued from a transaction that was not requested".into()).into());
        }
        let schema = Arc::new(schema);
        self.session.publish(|state| {
            let db = Arc::make_mut(&mut state.db);
            let changes = if continues {
                db.set_schema(schema);
                db.apply(updates)?
            } else {
                db.replace(schema, &layouts, updates)?
            };
            log_changes(state, changes);
            state.status.conn = ConnState::Connected;
            state.status.connections += 1;
            state.status.last_error = None;
            Ok::<(), Inconsistent>(())
        })?;
        self.session.resume = resume;
        self.following = Some(method);
        if let Some(lock) = self.session.options.lock.clone() {
            self.request("lock", json!([lock]), Pending::Lock);
            self.set_lock(LockState::Requested);
        }
        Ok(())
    }

    fn on_notification(&mut self, method: &str, params: &[Value]) -> Result<(), CloseReason> {
        match (method, params) {
            ("update", [id, updates]) => self.on_update(Method::Plain, id, None, updates),
            ("update2", [id, updates]) => self.on_update(Method::Cond, id, None, updates),
            ("update3", [id, last, updates]) => {
                self.on_update(Method::CondSince, id, transaction_id(last), updates)
            }
            // Sections 4.1.9 and 4.1.10.
            ("locked", [name]) if self.is_our_lock(name) => {
                self.set_lock(LockState::Held);
                Ok(())
            }
            ("stolen", [name]) if self.is_our_lock(name) => {
                self.set_lock(LockState::Contended);
                Ok(())
            }
            ("monitor_canceled", _) => Err(CloseReason::Protocol("the server canceled the monitor".into())),
            _ => {
                log::debug!("notification {method:.40} passed over");
                Ok(())
            }
        }
    }

    fn on_update(
        &mut self,
        method: Method,
        id: &Value,
        last: Option<Uuid>,
        updates: &Value,
    ) -> Result<(), CloseReason> {
        if id != MONITOR || self.following != Some(method) {
            return Err(CloseReason::Protocol(format!(
                "update for no monitor of ours: {}",
                excerpt(id)
            )));
        }
        let updates = match method {
            Method::Plain => parse_updates(updates, &self.session.layouts)?,
            Method::Cond | Method::CondSince => parse_updates2(updates, &self.session.layouts)?,
        };
        self.session.publish(|state| {
            let changes = Arc::make_mut(&mut state.db).apply(updates)?;
            log_changes(state, changes);
            Ok::<(), Inconsistent>(())
        })?;
        self.session.resume = last;
        Ok(())
    }

    fn is_our_lock(&self, name: &Value) -> bool {
        self.session
            .options
            .lock
            .as_deref()
            .is_some_and(|ours| name == ours)
    }

    fn set_lock(&self, lock: LockState) {
        self.session.publish(|state| state.status.lock = lock);
    }
}

fn log_changes(state: &mut SharedState, changes: Vec<Change>) {
    if !changes.is_empty() {
        state.log.push(state.db.seqno(), changes);
    }
}

/// An id to continue from; servers without a history give the nil one.
fn transaction_id(json: &Value) -> Option<Uuid> {
    json.as_str().and_then(parse_uuid).filter(|id| !id.is_nil())
}
