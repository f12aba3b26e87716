//! Moves of a port's connections to another node, or from there (`heddle migrate`).
//!
//! **Steps.** The source node copies the port's connections ([`copy`]), once or several times. The target
//! node adds the copies ([`import`]). At the end ([`finish`]) the source ends its own connections, and the
//! target checks TCP windows as usual again. [`abort`] gives a move up: the source keeps its connections, and
//! the target ends the copies.
//!
//! **State.** A step is one request or a series of them. A [`Session`] is kept between the requests of a
//! move: its role, selection, mapping of zones and counts. A repeated step replaces it. If the daemon is
//! killed, it loses its connections and the session.

mod identity;
mod selection;
mod work;

pub(crate) use identity::{PortIdentity, zones_of};
pub(crate) use selection::{ExtraZones, MovedZone, Selection};
pub(crate) use work::{abort, copy, finish, import};

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of ports with a move that is not finished.
const MAX_SESSIONS: usize = 4096;

/// Role of this node in a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The guest leaves this node.
    Source,
    /// The guest comes to this node.
    Target,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Target => "target",
        }
    }
}

/// The move of one port, at this node.
#[derive(Debug)]
pub(crate) struct Session {
    /// Number by which the requests of a series name the session.
    pub(crate) id: u64,
    pub(crate) role: Role,
    /// The guest could send packets during the last export.
    pub(crate) live: bool,
    pub(crate) began_ms: u64,
    pub(crate) selection: Selection,
    /// At the target: for each zone of the file, the zone of this node, or the reason why there is none.
    pub(crate) mapping: Vec<Result<MovedZone, String>>,
    /// Number of connections by outcome.
    pub(crate) counts: Mutex<BTreeMap<String, u64>>,
}

impl Session {
    pub(crate) fn add(&self, counts: &BTreeMap<String, u64>) {
        let mut sums = self.counts.lock();
        for (name, n) in counts {
            *sums.entry(name.clone()).or_default() += n;
        }
    }
}

/// All moves that are not finished.
#[derive(Debug, Default)]
pub(crate) struct Moves(Mutex<Sessions>);

#[derive(Debug, Default)]
struct Sessions {
    /// Sessions by logical port.
    by_port: BTreeMap<String, Arc<Session>>,
    last: u64,
}

impl Moves {
    /// Begins a step. Replaces an earlier session of the same port and role. A session of the other role is
    /// an error: `finish` and `abort` would act on the wrong connections.
    pub(crate) fn begin(
        &self,
        role: Role,
        live: bool,
        selection: Selection,
        mapping: Vec<Result<MovedZone, String>>,
        now_ms: u64,
    ) -> Result<Arc<Session>, String> {
        let mut state = self.0.lock();
        let port = selection.port.clone();
        if state.by_port.len() >= MAX_SESSIONS && !state.by_port.contains_key(&port) {
            return Err(format!(
                "{MAX_SESSIONS} moves are not finished ('heddle migrate status'): finish or abort some"
            ));
        }
        if let Some(other) = state.by_port.get(&port).filter(|s| s.role != role) {
            return Err(format!(
                "port {port}: this node is the {} of a move that is not finished: 'heddle migrate finish {port}' if the \
                 guest moved, 'heddle migrate abort {port}' if it did not",
                other.role.name()
            ));
        }
        state.last += 1;
        let session = Arc::new(Session {
            id: state.last,
            role,
            live,
            began_ms: now_ms,
            selection,
            mapping,
            counts: Mutex::default(),
        });
        state.by_port.insert(port, session.clone());
        Ok(session)
    }
    /// The session of a series of requests.
    pub(crate) fn session(&self, id: u64) -> Result<Arc<Session>, String> {
        let state = self.0.lock();
        let found = state.by_port.values().find(|s| s.id == id);
        found.cloned().ok_or_else(|| {
            "another 'heddle migrate' of this port has begun or ended meanwhile: repeat it".to_owned()
        })
    }
    /// The move of a logical port.
    pub(crate) fn of_port(&self, port: &str) -> Option<Arc<Session>> {
        self.0.lock().by_port.get(port).cloned()
    }
    /// Forgets a session, unless a later one has replaced it.
    pub(crate) fn end(&self, session: &Session) {
        let mut state = self.0.lock();
        let port = &session.selection.port;
        if state.by_port.get(port).is_some_and(|s| s.id == session.id) {
            state.by_port.remove(port);
        }
    }
    /// All moves.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.0.lock().by_port.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests;
