//! One connection: the loop over socket, commands and the inactivity probe.
//!
//! Reading never waits for writing or the other way round: both are branches of one `select`. So a server
//! that sends much and a client that sends much cannot block each other. Messages are handled in `handle.rs`.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::outbox::Outbox;
use super::{Command, Session};
use crate::call_error::CallError;
use crate::replica::Inconsistent;
use heddle_stream::{Active, Stream, errno_text};

use crate::rpc::{FrameError, Framer, MessageError, request};
use crate::schema::{Schema, SchemaError};
use crate::txn::{OpResult, TxnError};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// Why a connection, or an attempt, ended.
#[derive(Debug, Error)]
pub(super) enum CloseReason {
    #[error("the last handle was dropped")]
    Abandoned,
    #[error("connection attempt failed ({})", errno_text(.0))]
    NoConnection(io::Error),
    #[error("connection closed by peer")]
    Peer,
    #[error("connection dropped ({})", errno_text(.0))]
    Io(io::Error),
    #[error("no response to inactivity probe")]
    Probe(Duration),
    #[error("{0}")]
    Protocol(String),
    #[error("{0}")]
    Inconsistent(#[from] Inconsistent),
}

impl From<FrameError> for CloseReason {
    fn from(e: FrameError) -> CloseReason {
        CloseReason::Protocol(e.to_string())
    }
}

impl From<MessageError> for CloseReason {
    fn from(e: MessageError) -> CloseReason {
        CloseReason::Protocol(e.to_string())
    }
}

impl From<SchemaError> for CloseReason {
    fn from(e: SchemaError) -> CloseReason {
        CloseReason::Protocol(e.to_string())
    }
}

/// The ways to follow a database, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// `monitor_cond_since` and `update3`.
    CondSince,
    /// `monitor_cond` and `update2`.
    Cond,
    /// `monitor` and `update`, of RFC 7047 itself.
    Plain,
}

/// Purpose of a request whose reply is pending.
#[derive(Debug)]
pub(super) enum Pending {
    Schema,
    Monitor(Method, Schema),
    Lock,
    Echo,
    Transact {
        before: usize,
        ops: usize,
        reply: oneshot::Sender<Result<Vec<OpResult>, TxnError>>,
    },
    Call {
        reply: oneshot::Sender<Result<Value, CallError>>,
    },
}

/// The state of one connection. Dropping it drops the pending replies, which wakes the waiting handles.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    pub(super) session: &'a mut Session,
    pub(super) outbox: Outbox,
    pub(super) pending: BTreeMap<u64, Pending>,
    next_id: u64,
    /// Method by which the contents are followed, once they are loaded.
    pub(super) following: Option<Method>,
    probe: Probe,
}

#[derive(Debug)]
struct Probe {
    interval: Option<Duration>,
    deadline: Instant,
    sent: bool,
}

impl Probe {
    /// The server has shown that it lives.
    fn activity(&mut self) {
        self.sent = false;
        if let Some(interval) = self.interval {
            self.deadline = Instant::now() + interval;
        }
    }
}

impl<'a> Connection<'a> {
    pub(super) fn new(session: &'a mut Session, remote: &Active) -> Connection<'a> {
        let probed = !remote.is_local() || session.options.probe_local;
        let interval = session.options.probe_interval.filter(|_| probed);
        Connection {
            session,
            outbox: Outbox::default(),
            pending: BTreeMap::new(),
            next_id: 0,
            following: None,
            probe: Probe {
                interval,
                deadline: Instant::now() + interval.unwrap_or_default(),
                sent: false,
            },
        }
    }

    /// Runs to the end of the connection.
    pub(super) async fn run(mut self, stream: Box<dyn Stream>) -> CloseReason {
        self.request(
            "get_schema",
            serde_json::json!([self.session.shared.db_name]),
            Pending::Schema,
        );
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut framer = Framer::new(self.session.options.max_message);
        let mut chunk = vec![0; READ_BYTES];
        loop {
            // While loading, commands are taken only to be refused; later only as far as there is room.
            let take = self.following.is_none()
                || (self.outbox.has_room() && self.pending.len() < self.session.options.max_in_flight.max(1));
            // The order matters: after a pause of this process, bytes in the socket are read before the
            // probe's clock is checked. The first two branches are bounded by the outbox and by `take`.
            tokio::select! {
                biased;
                written = writer.write(self.outbox.unsent()), if !self.outbox.is_empty() => match written {
                    Ok(0) => return CloseReason::Peer,
                    Ok(n) => self.outbox.advance(n),
                    Err(e) => return CloseReason::Io(e),
                },
                command = self.session.commands.recv(), if take => match command {
                    Some(command) => self.on_command(command),
                    None => return CloseReason::Abandoned,
                },
                read = reader.read(&mut chunk) => match read {
                    Ok(0) => return CloseReason::Peer,
                    Ok(n) => {
                        framer.push(chunk.get(..n).unwrap_or_default());
                        if let Err(end) = self.drain(&mut framer) {
                            return end;
                        }
                        self.probe.activity();
                    }
                    Err(e) => return CloseReason::Io(e),
                },
                () = sleep_until(self.probe.deadline), if self.probe.interval.is_some() => {
                    if let Err(end) = self.on_probe() {
                        return end;
                    }
                }
            }
        }
    }

    fn drain(&mut self, framer: &mut Framer) -> Result<(), CloseReason> {
        while let Some(json) = framer.next()? {
            self.on_message(json)?;
            if self.outbox.is_stuck() {
                return Err(CloseReason::Protocol(
                    "the server does not read the replies to its requests".into(),
                ));
            }
        }
        Ok(())
    }

    fn on_probe(&mut self) -> Result<(), CloseReason> {
        let interval = self.probe.interval.unwrap_or_default();
        if self.probe.sent {
            return Err(CloseReason::Probe(interval));
        }
        self.request("echo", serde_json::json!([]), Pending::Echo);
        self.probe.sent = true;
        self.probe.deadline = Instant::now() + interval;
        Ok(())
    }

    fn on_command(&mut self, command: Command) {
        match command {
            command if self.following.is_none() => command.refuse(),
            Command::Transact {
                params,
                before,
                ops,
                reply,
            } => {
                self.request("transact", params, Pending::Transact { before, ops, reply });
            }
            Command::Call {
                method,
                params,
                reply,
            } => self.request(&method, params, Pending::Call { reply }),
        }
    }

    /// Sends a request and remembers the purpose of its reply.
    pub(super) fn request(&mut self, method: &str, params: Value, pending: Pending) {
        let id = self.next_id;
        self.next_id += 1;
        self.outbox.push(&request(method, params, id));
        self.pending.insert(id, pending);
    }
}
