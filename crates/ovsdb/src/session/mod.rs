//! The background task: connect, follow, and after the end of a connection wait and connect again.
//!
//! ```text
//! Connecting --ok--> Loading --contents--> Connected
//!     ^  \               |                    |
//!     |   failed         +---- connection ends
//!     |     v                       v
//!     +-- wait ------------------ Backoff
//! ```
//!
//! Log lines about connections have the module, the levels and the words that operators know from Open
//! vSwitch's daemons. Their rule is kept too: nothing more is logged once the waits have stopped growing.
//!
//! The replica survives a connection. If the server gives transaction ids, the id up to which the replica is
//! complete survives too. So the next connection loads only later changes.

mod backoff;
mod connection;
mod handle;
mod outbox;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use heddle_stream::{Active, errno_text};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use crate::call_error::CallError;
use crate::options::Options;
use crate::replica::{ChangeLog, Db, Layout, MonitorSpec};
use crate::status::{ConnState, LockState, Status};
use crate::txn::{OpResult, TxnError};
use backoff::{Backoff, WaitChange};
use connection::{CloseReason, Connection};

/// SharedState that all handles and the task share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) db_name: String,
    pub(crate) lock_name: Option<String>,
    pub(crate) state: Mutex<SharedState>,
}

#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) db: Arc<Db>,
    pub(crate) status: Status,
    pub(crate) log: ChangeLog,
}

impl Shared {
    pub(crate) fn new(db_name: &str, options: &Options) -> Shared {
        let state = SharedState {
            db: Arc::new(Db::default()),
            status: Status::new(),
            log: ChangeLog::new(options.change_log),
        };
        Shared {
            db_name: db_name.to_string(),
            lock_name: options.lock.clone(),
            state: Mutex::new(state),
        }
    }
}

/// A request of a handle.
#[derive(Debug)]
pub(crate) enum Command {
    Transact {
        params: Value,
        before: usize,
        ops: usize,
        reply: oneshot::Sender<Result<Vec<OpResult>, TxnError>>,
    },
    Call {
        method: String,
        params: Value,
        reply: oneshot::Sender<Result<Value, CallError>>,
    },
}

impl Command {
    /// Replies that there is no connection. A handle that no longer listens is no error.
    fn refuse(self) {
        match self {
            Command::Transact { reply, .. } => drop(reply.send(Err(TxnError::NotConnected))),
            Command::Call { reply, .. } => drop(reply.send(Err(CallError::NotConnected))),
        }
    }
}

/// The state of the task.
#[derive(Debug)]
pub(crate) struct Session {
    remotes: Vec<Active>,
    spec: MonitorSpec,
    options: Options,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    waker: watch::Sender<()>,
    /// The columns of the replica's tables.
    layouts: Arc<BTreeMap<Arc<str>, Arc<Layout>>>,
    /// The transaction up to which the replica is complete, if the server can continue from one.
    resume: Option<Uuid>,
}

/// The handles are all gone.
struct Abandoned;

impl Session {
    pub(crate) fn new(
        remotes: Vec<Active>,
        spec: MonitorSpec,
        options: Options,
        shared: Arc<Shared>,
        commands: mpsc::Receiver<Command>,
        waker: watch::Sender<()>,
    ) -> Session {
        Session {
            remotes,
            spec,
            options,
            shared,
            commands,
            waker,
            layouts: Arc::default(),
            resume: None,
        }
    }

    /// Runs until the last handle is dropped.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::new(self.options.backoff_min, self.options.backoff_max);
        let mut turn = 0;
        // parse_list never gives an empty list.
        while let Some(remote) = self.remotes.get(turn % self.remotes.len().max(1)).cloned() {
            let connected_at = Instant::now();
            let Ok(end) = self.attempt(&remote, &backoff).await else {
                return;
            };
            if matches!(end, CloseReason::Abandoned) {
                return;
            }
            let was_connected = self.shared.state.lock().status.is_connected();
            self.report_end(&remote, &end, &backoff);
            // A connection that worked for a while starts the series of waits anew; one that fails at once
            // does not.
            let worked = was_connected && connected_at.elapsed() >= backoff.current();
            if !was_connected {
                turn += 1;
            }
            let (wait, change) = backoff.next_wait(worked);
            match change {
                WaitChange::Nothing => {}
                WaitChange::Doubled => {
                    let seconds = wait.as_secs_f64();
                    log::info!(target: "reconnect", "{remote}: waiting {seconds} seconds before reconnect");
                }
                WaitChange::Longest => log::info!(
                    target: "reconnect",
                    "{remote}: continuing to reconnect in the background but suppressing further logging"
                ),
            }
            if self.idle_until(Instant::now() + wait).await.is_err() {
                return;
            }
        }
    }

    /// One connection from its attempt to its end.
    async fn attempt(&mut self, remote: &Active, backoff: &Backoff) -> Result<CloseReason, Abandoned> {
        self.publish(|state| state.status.conn = ConnState::Connecting);
        if !backoff.is_quiet() {
            log::info!(target: "reconnect", "{remote}: connecting...");
        }
        let connect = timeout(self.options.connect_timeout, remote.connect(&self.options.tls));
        let stream = {
            tokio::pin!(connect);
            loop {
                tokio::select! {
                    outcome = &mut connect => break outcome,
                    command = self.commands.recv() => command.ok_or(Abandoned)?.refuse(),
                }
            }
        };
        let stream = match stream {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => return Ok(CloseReason::NoConnection(e)),
            Err(_) => return Ok(CloseReason::NoConnection(io::ErrorKind::TimedOut.into())),
        };
        log::info!(target: "reconnect", "{remote}: connected");
        self.publish(|state| state.status.conn = ConnState::Loading);
        Ok(Connection::new(self, remote).run(stream).await)
    }

    fn report_end(&mut self, remote: &Active, end: &CloseReason, backoff: &Backoff) {
        match end {
            CloseReason::Abandoned => {}
            CloseReason::NoConnection(_) if backoff.is_quiet() => {}
            CloseReason::NoConnection(e) if e.kind() == io::ErrorKind::TimedOut => {
                log::info!(target: "reconnect", "{remote}: connection attempt timed out");
            }
            CloseReason::NoConnection(e) => {
                log::info!(target: "reconnect", "{remote}: connection attempt failed ({})", errno_text(e));
            }
            CloseReason::Peer => log::info!(target: "reconnect", "{remote}: connection closed by peer"),
            CloseReason::Io(e) => {
                log::warn!(target: "reconnect", "{remote}: connection dropped ({})", errno_text(e))
            }
            CloseReason::Probe(after) => log::error!(
                target: "reconnect",
                "{remote}: no response to inactivity probe after {} seconds, disconnecting",
                after.as_secs_f64()
            ),
            CloseReason::Protocol(why) => log::warn!("{remote}: disconnecting: {why}"),
            CloseReason::Inconsistent(why) => {
                log::warn!("{remote}: disconnecting to load the contents anew: {why}");
            }
        }
        if matches!(end, CloseReason::Inconsistent(_)) {
            self.resume = None;
        }
        self.publish(|state| {
            state.status.conn = ConnState::Backoff;
            state.status.lock = LockState::None;
            state.status.last_error = Some(end.to_string());
        });
    }

    /// Waits until `deadline`, refusing commands meanwhile.
    async fn idle_until(&mut self, deadline: Instant) -> Result<(), Abandoned> {
        loop {
            tokio::select! {
                () = sleep_until(deadline) => return Ok(()),
                command = self.commands.recv() => command.ok_or(Abandoned)?.refuse(),
            }
        }
    }

    /// Changes the shared state and wakes the handles.
    fn publish<T>(&self, change: impl FnOnce(&mut SharedState) -> T) -> T {
        let out = change(&mut self.shared.state.lock());
        self.waker.send_modify(|()| ());
        out
    }
}
