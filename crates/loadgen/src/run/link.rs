//! The connection of a port: made, checked, made again.

use core::time::Duration;
use heddle_vhost_user::frontend::{Frontend, FrontendError, Listener, Nic, NicConfig};
use std::path::{Path, PathBuf};

/// Timeout of one reply of a back end.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A switch that is absent for longer is reported.
const SOON: Duration = Duration::from_secs(1);

/// A port's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The back end connects to us (`dpdkvhostuserclient`).
    Listen(PathBuf),
    /// The back end listens (`dpdkvhostuser`).
    Connect(PathBuf),
}

impl Endpoint {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Listen(p) | Self::Connect(p) => p,
        }
    }
    /// The missing peer of this socket, as text for people.
    pub fn wanted(&self) -> String {
        match self {
            Self::Listen(p) => format!(
                "waiting for a switch to connect to {} (a dpdkvhostuserclient port with that path)",
                p.display()
            ),
            Self::Connect(p) => format!(
                "waiting for a switch that listens at {} (a dpdkvhostuser port)",
                p.display()
            ),
        }
    }
}

impl core::str::FromStr for Endpoint {
    type Err = String;
    /// Parses `listen:PATH` or `connect:PATH`; a path alone, which has a slash, means `listen`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("listen", path)) => Ok(Self::Listen(path.into())),
            Some(("connect", path)) => Ok(Self::Connect(path.into())),
            _ if text.is_empty() => Err("an empty path".into()),
            Some((scheme, _)) if !scheme.contains('/') => {
                Err(format!("'{scheme}:' is neither 'listen:PATH' nor 'connect:PATH'"))
            }
            // Probably the name of a port of the switch; as a path, no switch would ever connect to it.
            _ if !text.contains('/') => Err(format!(
                "'{text}' is no socket: give 'listen:PATH', 'connect:PATH', or a path with a slash"
            )),
            _ => Ok(Self::Listen(text.into())),
        }
    }
}

/// A port's connection.
#[derive(Debug)]
pub struct Link {
    endpoint: Endpoint,
    listener: Option<Listener>,
    session: Option<Frontend>,
}

impl Link {
    /// Opens the socket if this side listens; makes no connection yet.
    ///
    /// # Errors
    /// [`FrontendError::Path`].
    pub fn new(endpoint: Endpoint) -> Result<Self, FrontendError> {
        let listener = match &endpoint {
            Endpoint::Listen(path) => Some(Listener::bind(path)?),
            Endpoint::Connect(_) => None,
        };
        Ok(Self {
            endpoint,
            listener,
            session: None,
        })
    }
    fn front(&self, wait: Duration) -> Result<Option<Frontend>, FrontendError> {
        match &self.listener {
            Some(listener) => listener.accept(wait, CONNECT_TIMEOUT),
            None => Frontend::connect(self.endpoint.path(), wait, CONNECT_TIMEOUT).map(Some),
        }
    }
    /// Makes the first connection, and the device from the features of both sides. Calls `tell` once with the
    /// missing peer if that takes more than a moment.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn open(
        &mut self,
        config: &NicConfig,
        wait: Duration,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Nic, FrontendError> {
        let soon = match self.front(SOON.min(wait)) {
            Ok(Some(front)) => Some(front),
            Ok(None) | Err(FrontendError::Path { .. }) => None,
            Err(e) => return Err(e),
        };
        let met = match soon {
            Some(front) => Some(front),
            None => {
                tell(&self.endpoint.wanted());
                self.front(wait.saturating_sub(SOON))?
            }
        };
        let mut front = met.ok_or(FrontendError::Timeout {
            what: "a back end",
            after: wait,
        })?;
        let nic = Nic::negotiate(&mut front, config)?;
        nic.attach(&mut front)?;
        self.session = Some(front);
        Ok(nic)
    }
    /// Whether the back end is there.
    pub fn is_up(&self) -> bool {
        self.session.is_some()
    }
    /// Checks the session; returns once why it has ended.
    pub fn watch(&mut self) -> Option<FrontendError> {
        let session = self.session.as_mut()?;
        let gone = session.check().err()?;
        self.session = None;
        Some(gone)
    }
    /// Tries to hand `nic` to the next back end, without waiting for one. Returns whether one has it.
    ///
    /// # Errors
    /// The error of a back end that connected.
    pub fn renew(&mut self, nic: &Nic) -> Result<bool, FrontendError> {
        let mut front = match self.front(Duration::ZERO) {
            Ok(Some(front)) => front,
            Ok(None) | Err(FrontendError::Path { .. }) => return Ok(false), // no back end yet
            Err(e) => return Err(e),
        };
        nic.renew(&mut front, NicConfig::PROTOCOL)?;
        nic.attach(&mut front)?;
        self.session = Some(front);
        Ok(true)
    }
    /// Ends the session as a guest that shuts down does.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn close(&mut self, nic: &Nic) -> Result<(), FrontendError> {
        if let Some(mut session) = self.session.take() {
            nic.detach(&mut session)?;
        }
        Ok(())
    }
}
