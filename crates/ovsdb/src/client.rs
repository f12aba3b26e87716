//! The handle by which the program uses the replica.
//!
//! All handles share one state under one mutex. Readers hold it for the length of a pointer copy, the
//! background task for one update; no lock is held across an `await`. The task ends when the last handle is
//! dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde_json::Value;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::call_error::CallError;
use crate::options::Options;
use crate::replica::{Change, Db, MonitorSpec};
use crate::session::{Command, Session, Shared};
use crate::status::Status;
use crate::txn::{OpResult, Txn, TxnError};
use heddle_stream::{Active, MethodError, OVSDB_PORT};

/// Requests that wait in line before [`Client::transact`] itself waits.
const MAX_QUEUED_COMMANDS: usize = 256;

/// A client could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpawnError {
    /// The remote cannot be used.
    #[error(transparent)]
    Remote(#[from] MethodError),
    /// Called outside of a tokio runtime.
    #[error("no tokio runtime")]
    NoRuntime,
}

/// The background task has ended; nothing will change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the database client has ended")]
pub struct Closed;

/// Result of [`Client::poll`].
#[derive(Clone, Debug)]
pub struct Batch {
    /// The newest contents.
    pub db: Arc<Db>,
    /// Connection and lock.
    pub status: Status,
    /// The rows that changed since this handle's last poll, each once. A row that went and came back is an
    /// insert.
    pub changes: Vec<Change>,
    /// The log does not reach back to the last poll: `changes` is empty, look at every row.
    pub resync: bool,
}

/// A handle of the replica. Each clone polls for itself, from the position of the original on.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    wake: watch::Receiver<()>,
    cursor: u64,
}

impl Client {
    /// Starts the background task: it connects to `remote` (`unix:PATH`, `tcp:IP:PORT`, `ssl:IP:PORT`, or
    /// several with commas) and replicates what `spec` names of the database `db`.
    ///
    /// # Errors
    /// [`SpawnError`]. A server that cannot be reached is no error: the task keeps trying.
    pub fn spawn(remote: &str, db: &str, spec: MonitorSpec, options: Options) -> Result<Client, SpawnError> {
        let remotes = Active::parse_list(remote, OVSDB_PORT)?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| SpawnError::NoRuntime)?;
        let shared = Arc::new(Shared::new(db, &options));
        let (commands, receiver) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let (waker, mut wake) = watch::channel(());
        // The state at the start is news to the first `changed`.
        wake.mark_changed();
        let session = Session::new(remotes, spec, options, shared.clone(), receiver, waker);
        runtime.spawn(session.run());
        Ok(Client {
            shared,
            commands,
            wake,
            cursor: 0,
        })
    }

    /// The newest contents; costs a reference count.
    pub fn snapshot(&self) -> Arc<Db> {
        self.shared.state.lock().db.clone()
    }

    /// Connection and lock.
    pub fn status(&self) -> Status {
        self.shared.state.lock().status.clone()
    }

    /// Whether this client has its lock.
    pub fn has_lock(&self) -> bool {
        self.shared.state.lock().status.has_lock()
    }

    /// Waits until contents, connection or lock changed since the last `changed` or [`poll`](Client::poll) of
    /// this handle. Safe to drop at any point.
    ///
    /// # Errors
    /// [`Closed`] when the task has ended with its runtime.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        self.wake.changed().await.map_err(|_| Closed)
    }

    /// The newest contents, and the changes since this handle's last poll.
    pub fn poll(&mut self) -> Batch {
        // Marked as seen before the state is read: an update between the two wakes the handle again, and is
        // not missed.
        self.wake.borrow_and_update();
        let state = self.shared.state.lock();
        let changes = state.log.since(self.cursor);
        self.cursor = state.db.seqno();
        Batch {
            db: state.db.clone(),
            status: state.status.clone(),
            resync: changes.is_none(),
            changes: changes.unwrap_or_default(),
        }
    }

    /// Waits until `condition` holds for the contents and the status. Changes remain to be polled.
    ///
    /// # Errors
    /// [`Closed`] when the task has ended with its runtime.
    pub async fn wait_until(&self, mut condition: impl FnMut(&Db, &Status) -> bool) -> Result<(), Closed> {
        let mut wake = self.wake.clone();
        loop {
            wake.borrow_and_update();
            let (db, status) = {
                let state = self.shared.state.lock();
                (state.db.clone(), state.status.clone())
            };
            if condition(&db, &status) {
                return Ok(());
            }
            drop(db);
            wake.changed().await.map_err(|_| Closed)?;
        }
    }

    /// Executes a transaction. When it returns a result, the replica has its effects.
    ///
    /// # Errors
    /// [`TxnError`]; if [`TxnError::is_retriable`], compute it anew later.
    pub async fn transact(&self, txn: Txn) -> Result<Vec<OpResult>, TxnError> {
        let (command, pending) = self.prepare(txn)?;
        self.commands
            .send(command)
            .await
            .map_err(|_| TxnError::NotConnected)?;
        pending.await
    }

    /// Hands a transaction over without waiting, also from a thread without a runtime. The caller may await
    /// the result.
    ///
    /// # Errors
    /// [`TxnError::Busy`] if too many wait in line, [`TxnError::Invalid`] for one that cannot be sent.
    pub fn submit(&self, txn: Txn) -> Result<PendingTxn, TxnError> {
        let (command, pending) = self.prepare(txn)?;
        match self.commands.try_send(command) {
            Ok(()) => Ok(pending),
            Err(mpsc::error::TrySendError::Full(_)) => Err(TxnError::Busy("request queue full".into())),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(TxnError::NotConnected),
        }
    }

    fn prepare(&self, txn: Txn) -> Result<(Command, PendingTxn), TxnError> {
        let ops = txn.len();
        let (params, before) = txn.into_params(&self.shared.db_name, self.shared.lock_name.as_deref())?;
        let (reply, receiver) = oneshot::channel();
        Ok((
            Command::Transact {
                params,
                before,
                ops,
                reply,
            },
            PendingTxn(receiver),
        ))
    }

    /// Sends any other request, such as `list_dbs`, and waits for its result.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let (reply, receiver) = oneshot::channel();
        let command = Command::Call {
            method: method.to_string(),
            params,
            reply,
        };
        self.commands
            .send(command)
            .await
            .map_err(|_| CallError::NotConnected)?;
        receiver.await.unwrap_or(Err(CallError::Disconnected))
    }
}

/// A transaction on its way. Dropping it does not take the transaction back.
#[derive(Debug)]
pub struct PendingTxn(oneshot::Receiver<Result<Vec<OpResult>, TxnError>>);

impl PendingTxn {}

impl Future for PendingTxn {
    type Output = Result<Vec<OpResult>, TxnError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A sender dropped with its connection is a lost reply.
        Pin::new(&mut self.0)
            .poll(context)
            .map(|r| r.unwrap_or(Err(TxnError::Disconnected)))
    }
}
