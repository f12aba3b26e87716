//! Active connections: rows of the `Controller` table. A [`Dialer`] calls with back-off, for as long as it
//! lives.

use super::Manager;
use super::session::{Kind, Peer};
use super::stream::{CloseReason, serve};
use heddle_openflow::message::Role;
use heddle_stream::{Active, OPENFLOW_PORT, errno_text};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// A connection attempt that takes longer has failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// First pause between attempts.
const MIN_BACKOFF: Duration = Duration::from_secs(1);

/// One controller, as the database has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerConfig {
    /// `Controller.target`.
    pub target: String,
    /// Maximum pause between attempts (`max_backoff`).
    pub max_backoff: Duration,
    /// Silence after which the peer is probed (`inactivity_probe`); `None`: never.
    pub probe: Option<Duration>,
}

/// The status of a controller, for the database.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControllerStatus {
    /// `is_connected`.
    pub connected: bool,
    /// `role`: `other`, `master`, `slave`.
    pub role: Option<&'static str>,
    /// `status:state`: `ACTIVE`, `CONNECTING`, `BACKOFF`, `VOID`.
    pub state: &'static str,
    /// `status:last_error`.
    pub last_error: Option<String>,
    /// `status:sec_since_connect`.
    pub sec_since_connect: Option<u64>,
    /// `status:sec_since_disconnect`.
    pub sec_since_disconnect: Option<u64>,
}

/// Keeps one controller connected. Dropping it ends the connection.
pub struct Dialer {
    manager: Arc<Manager>,
    config: ControllerConfig,
    task: JoinHandle<()>,
    state: watch::Receiver<DialState>,
    peer: watch::Receiver<Option<Arc<Peer>>>,
}

#[derive(Clone, Default)]
struct DialState {
    name: &'static str,
    last_error: Option<String>,
    /// Times of the switch's clock, which tests move, ms.
    connected_at: Option<u64>,
    disconnected_at: Option<u64>,
}

impl Dialer {
    /// Starts calling.
    ///
    /// # Errors
    /// The target is not a connection method; the text has the reason.
    pub fn spawn(manager: Arc<Manager>, config: ControllerConfig) -> Result<Self, String> {
        let remote = Active::parse(&config.target, OPENFLOW_PORT).map_err(|e| e.to_string())?;
        let (state_tx, state) = watch::channel(DialState {
            name: "CONNECTING",
            ..DialState::default()
        });
        let (peer_tx, peer) = watch::channel(None);
        let task = tokio::spawn(dial(manager.clone(), remote, config.clone(), state_tx, peer_tx));
        Ok(Self {
            manager,
            config,
            task,
            state,
            peer,
        })
    }

    /// The configuration that it was started with.
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// The controller's current status.
    pub fn status(&self) -> ControllerStatus {
        let state = self.state.borrow().clone();
        let peer = self.peer.borrow().clone().filter(|p| p.is_open());
        let now_ms = self.manager.bridge.now_ms();
        let since = |at: Option<u64>| at.map(|at| now_ms.saturating_sub(at) / 1000);
        ControllerStatus {
            connected: peer.is_some(),
            role: peer.map(|p| match p.role() {
                Role::Primary => "master",
                Role::Secondary => "slave",
                Role::Equal | Role::NoChange => "other",
            }),
            state: state.name,
            last_error: state.last_error,
            sec_since_connect: since(state.connected_at),
            sec_since_disconnect: since(state.disconnected_at),
        }
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn dial(
    manager: Arc<Manager>,
    remote: Active,
    config: ControllerConfig,
    state: watch::Sender<DialState>,
    peer: watch::Sender<Option<Arc<Peer>>>,
) {
    let name = format!("{}<->{}", manager.bridge().name, config.target);
    let mut backoff = MIN_BACKOFF;
    // The log reports a controller that stays away only until the pauses have grown to their longest.
    let mut quiet = false;
    loop {
        state.send_modify(|s| s.name = "CONNECTING");
        if !quiet {
            log::info!(target: "rconn", "{name}: connecting...");
        }
        let outcome = tokio::select! {
            end = attempt(&manager, &remote, &config, &name, &state, &peer) => Some(end),
            () = manager.reconnect.notified() => None,
        };
        let was_up = peer.send_replace(None).is_some();
        if was_up {
            backoff = MIN_BACKOFF;
            quiet = false;
        }
        let error = match outcome {
            Some(CloseReason::Closed) => "connection closed by peer".to_owned(),
            Some(CloseReason::Silent) => "no response to inactivity probe".to_owned(),
            Some(CloseReason::Unread) => "does not read its events".to_owned(),
            Some(CloseReason::Io(ref e)) => errno_text(e),
            None => "disconnecting".to_owned(),
        };
        match outcome {
            _ if quiet => {}
            Some(CloseReason::Io(_)) if was_up => {
                log::warn!(target: "rconn", "{name}: connection dropped ({error})")
            }
            Some(CloseReason::Io(_)) => log::warn!(target: "rconn", "{name}: connection failed ({error})"),
            Some(CloseReason::Silent) => log::error!(target: "rconn", "{name}: {error}, disconnecting"),
            Some(CloseReason::Closed | CloseReason::Unread) | None => {
                log::info!(target: "rconn", "{name}: {error}")
            }
        }
        let longest = config.max_backoff.max(MIN_BACKOFF);
        if backoff < longest {
            log::info!(target: "rconn", "{name}: waiting {} seconds before reconnect", backoff.as_secs());
        } else if !quiet {
            let pause = longest.as_secs();
            log::info!(target: "rconn", "{name}: trying again every {pause} seconds, without further log lines");
            quiet = true;
        }
        state.send_modify(|s| {
            s.name = "BACKOFF";
            s.last_error = Some(error);
            if was_up {
                s.disconnected_at = Some(manager.bridge.now_ms());
            }
        });
        sleep(backoff).await;
        backoff = (backoff * 2).min(longest);
    }
}

async fn attempt(
    manager: &Arc<Manager>,
    remote: &Active,
    config: &ControllerConfig,
    name: &str,
    state: &watch::Sender<DialState>,
    peer: &watch::Sender<Option<Arc<Peer>>>,
) -> CloseReason {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let socket = match timeout(CONNECT_TIMEOUT, remote.connect(&manager.tls))
        .await
        .map_err(late)
        .flatten()
    {
        Ok(socket) => socket,
        Err(e) => return CloseReason::Io(e),
    };
    state.send_modify(|s| {
        s.name = "ACTIVE";
        s.connected_at = Some(manager.bridge.now_ms());
    });
    let mut up = peer.subscribe();
    let mut serving = std::pin::pin!(serve(
        manager.clone(),
        Kind::Controller,
        config.target.clone(),
        socket,
        config.probe,
        Some(peer),
        None,
    ));
    tokio::select! {
        end = &mut serving => return end,
        _ = up.wait_for(Option::is_some) => log::info!(target: "rconn", "{name}: connected"),
    }
    serving.await
}
