//! TLS with the process's own key and one authority for all peers.
//!
//! Keys are read when a connection needs them, and again when a file has changed, so that certificates are
//! renewed without a restart. Files that cannot be read are reported in the log; the keys that were read
//! before stay in use.

mod bootstrap;
mod farewell;
mod files;
mod verify;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::Stream;
use crate::connect::connect_tcp;
use farewell::Farewell;
use files::Loaded;

/// A handshake that takes longer has failed.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Files with keys, as `ovs-vswitchd` takes them on its command line and in the table `SSL`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Our private key (PEM).
    pub private_key: Option<PathBuf>,
    /// Our certificate (PEM), perhaps with its chain.
    pub certificate: Option<PathBuf>,
    /// Certificates (PEM) of the authority that vouches for peers; the word `none` switches the check off.
    pub ca_cert: Option<PathBuf>,
    /// If `ca_cert` does not exist, take the first peer's authority on trust and write it there.
    pub bootstrap: bool,
    /// Further certificates (PEM) sent with ours, for peers that bootstrap.
    pub peer_ca_cert: Option<PathBuf>,
    /// Protocols that are allowed, such as `TLSv1.2,TLSv1.3`; those that are not implemented (older ones) are
    /// left out.
    pub protocols: Option<String>,
}

/// The keys of this process. Shared by all connections and listeners; control plane only.
#[derive(Default)]
pub struct Tls {
    state: Mutex<TlsState>,
}

#[derive(Default)]
struct TlsState {
    settings: Settings,
    loaded: Option<Loaded>,
    /// The last text that was logged: one fault is logged once.
    told: String,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("settings", &self.settings()).finish()
    }
}

impl Tls {
    /// Uses these files from the next connection on.
    pub fn configure(&self, settings: Settings) {
        let mut state = self.state.lock();
        if state.settings != settings {
            *state = TlsState {
                settings,
                ..TlsState::default()
            };
        }
    }

    /// The files in use.
    pub fn settings(&self) -> Settings {
        self.state.lock().settings.clone()
    }

    /// Configuration of connections that we open.
    fn client(&self) -> io::Result<Arc<ClientConfig>> {
        self.with(|loaded| loaded.client.clone())
    }

    /// Configuration of connections that we accept.
    fn server(&self) -> io::Result<Arc<ServerConfig>> {
        self.with(|loaded| loaded.server.clone())
    }

    fn with<T>(&self, pick: impl Fn(&Loaded) -> T) -> io::Result<T> {
        let mut state = self.state.lock();
        if state.loaded.as_ref().is_none_or(Loaded::changed) {
            match Loaded::read(&state.settings) {
                Ok(loaded) => {
                    state.loaded = Some(loaded);
                    state.told.clear();
                }
                Err(why) => {
                    if state.told != why {
                        log::error!(target: "stream_ssl", "{why}");
                    }
                    state.told = why;
                }
            }
        }
        match &state.loaded {
            Some(loaded) => Ok(pick(loaded)),
            None => Err(io::Error::other(state.told.clone())),
        }
    }

    /// Connects, with certificates of both sides. If the authority is still unknown and may be taken on
    /// trust, it is fetched first.
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let settings = self.settings();
        if settings.bootstrap && settings.ca_cert.as_ref().is_some_and(|f| !f.exists()) {
            bootstrap::fetch(&settings, to).await?;
        }
        let config = self.client()?;
        let socket = connect_tcp(to).await?;
        let name = ServerName::IpAddress(to.ip().into());
        let handshake = TlsConnector::from(config).connect(name, socket);
        Ok(Farewell::boxed(within(handshake, "SSL_connect").await?))
    }

    /// Performs the handshake with a caller.
    pub(crate) async fn accept(&self, socket: TcpStream) -> io::Result<Box<dyn Stream>> {
        let handshake = TlsAcceptor::from(self.server()?).accept(socket);
        Ok(Farewell::boxed(within(handshake, "SSL_accept").await?))
    }
}

/// A handshake with a time limit; a failure is logged where operators look for it.
async fn within<T>(handshake: impl Future<Output = io::Result<T>>, what: &str) -> io::Result<T> {
    let outcome = match timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    outcome.inspect_err(|e| log::warn!(target: "stream_ssl", "{what}: {e}"))
}
