//! A socket that back ends connect to.

use super::{Frontend, FrontendError, Result};
use core::time::Duration;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How often a waiting side looks again.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// Listens at a path, which it removes when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`. A socket of that name that nobody listens at is replaced.
    ///
    /// # Errors
    /// [`FrontendError::Path`]; `AddrInUse` when somebody listens there.
    pub fn bind(path: &Path) -> Result<Self> {
        let named = |error| FrontendError::Path {
            path: path.display().to_string(),
            error,
        };
        let socket = match UnixListener::bind(path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && stale(path) => {
                std::fs::remove_file(path).map_err(named)?;
                UnixListener::bind(path).map_err(named)?
            }
            bound => bound.map_err(named)?,
        };
        socket.set_nonblocking(true).map_err(named)?;
        Ok(Self {
            socket,
            path: path.into(),
        })
    }
    /// The next back end's connection, whose answers are waited for up to `patience` each; `None` when nobody came within
    /// `wait`.
    ///
    /// # Errors
    /// [`FrontendError::Path`].
    pub fn accept(&self, wait: Duration, patience: Duration) -> Result<Option<Frontend>> {
        let end = Instant::now() + wait;
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => return Ok(Some(Frontend::new(stream, patience))),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    return Err(FrontendError::Path {
                        path: self.path.display().to_string(),
                        error,
                    });
                }
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Whether nobody listens at the socket any more.
fn stale(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // somebody may have removed it already
    }
}
