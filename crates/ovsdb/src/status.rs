//! State of the client's connection and lock.

/// The connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnState {
    /// No connection; the next attempt waits for its time.
    Backoff,
    /// An attempt to connect is under way.
    Connecting,
    /// Connected; the schema and the contents are being loaded.
    Loading,
    /// The replica follows the database.
    Connected,
}

/// The lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// No lock is wanted, or none could be requested as there is no connection.
    None,
    /// Requested; the reply has not come yet.
    Requested,
    /// Another client has it; the server gives it to this one when it is this one's turn.
    Contended,
    /// This client has it.
    Held,
}

/// Connection and lock at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The connection.
    pub conn: ConnState,
    /// The lock.
    pub lock: LockState,
    /// Number of connections that have reached [`ConnState::Connected`].
    pub connections: u64,
    /// Why the last connection or attempt ended.
    pub last_error: Option<String>,
}

impl Status {
    pub(crate) fn new() -> Status {
        Status {
            conn: ConnState::Connecting,
            lock: LockState::None,
            connections: 0,
            last_error: None,
        }
    }

    /// Whether the replica follows the database now.
    pub fn is_connected(&self) -> bool {
        self.conn == ConnState::Connected
    }

    /// Whether this client has its lock, as far as the server has reported.
    pub fn has_lock(&self) -> bool {
        self.lock == LockState::Held
    }
}
