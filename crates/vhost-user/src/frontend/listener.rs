//! A socket that back ends connect to.

use super::{Frontend, FrontendError, Result};
use core::time::Duration;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Time between two polls of a side that waits.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// Listens at a path; its socket's file is removed when it is dropped. No other file ever is.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// The file that was made.
    file: (u64, u64),
}

impl Listener {
    /// Listens at `path`. A socket of that name without a listener is replaced; any other file is left alone.
    ///
    /// # Errors
    /// [`FrontendError::Path`]; `AddrInUse` when another process listens there, `AlreadyExists` when there is
    /// a file that is no socket.
    pub fn bind(path: &Path) -> Result<Self> {
        let named = |error| FrontendError::Path {
            path: path.display().to_string(),
            error,
        };
        let socket = match UnixListener::bind(path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                // A plain file refuses connections, as a socket without a listener does.
                let there = std::fs::symlink_metadata(path).map_err(named)?;
                if !there.file_type().is_socket() {
                    let text = "there is a file that is no socket";
                    return Err(named(std::io::Error::new(ErrorKind::AlreadyExists, text)));
                }
                if !stale(path) {
                    return Err(named(e));
                }
                std::fs::remove_file(path).map_err(named)?;
                UnixListener::bind(path).map_err(named)?
            }
            bound => bound.map_err(named)?,
        };
        socket.set_nonblocking(true).map_err(named)?;
        let meta = std::fs::symlink_metadata(path).map_err(named)?;
        Ok(Self {
            socket,
            path: path.into(),
            file: (meta.dev(), meta.ino()),
        })
    }
    /// The next back end's connection, with timeout `timeout` for each reply; `None` when no back end
    /// connects within `wait`.
    ///
    /// # Errors
    /// [`FrontendError::Path`].
    pub fn accept(&self, wait: Duration, timeout: Duration) -> Result<Option<Frontend>> {
        let end = Instant::now() + wait;
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => return Ok(Some(Frontend::new(stream, timeout))),
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

/// Whether the socket has no listener any more.
fn stale(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process may have put its own file there.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
