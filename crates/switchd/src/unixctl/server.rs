//! The listening control socket.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Registry, connection};

/// How long [`Server::stop`] waits for commands in progress.
const STOP_LIMIT: Duration = Duration::from_secs(1);
/// How long a client may take that is served with the spare descriptor.
const SPARE_LIMIT: Duration = Duration::from_secs(10);

/// A control socket that is being served.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Listens on `path` (readable and writable by the owner and the group) and serves `registry` there. A
    /// socket that is in the way is removed; any other kind of file is left alone. Call it within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the socket cannot be made, for example because the directory does not exist.
    pub fn start(path: &Path, registry: Registry) -> io::Result<Server> {
        if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        let listener = StdListener::from(bind_socket(path)?);
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let (stop, stopped) = watch::channel(false);
        let accepting = tokio::spawn(accept(listener, registry, stopped));
        Ok(Server {
            path: path.to_owned(),
            stop,
            accepting,
        })
    }

    /// The file name of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes no more clients and waits, for a second at most, until commands in progress have been answered.
    /// Does not remove the socket's file.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        if tokio::time::timeout(STOP_LIMIT, self.accepting).await.is_err() {
            log::debug!(target: "unixctl", "commands were still in progress at the end");
        }
    }
}

/// Makes the listening socket. A path that is too long for a socket address is reached through its
/// directory's descriptor.
fn bind_socket(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // On Linux the descriptor's mode becomes the file's mode, less the umask.
    fchmod(&fd, Mode::from_raw_mode(0o770))?;
    match SocketAddrUnix::new(path) {
        Ok(address) => bind(&fd, &address)?,
        Err(Errno::NAMETOOLONG) => {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let dir = fs::File::open(path.parent().unwrap_or(Path::new(".")))?;
            let short = Path::new("/proc/self/fd")
                .join(dir.as_raw_fd().to_string())
                .join(name);
            bind(&fd, &SocketAddrUnix::new(&short)?)?;
        }
        Err(error) => return Err(error.into()),
    }
    listen(&fd, 64)?;
    Ok(fd)
}

/// A descriptor that is kept so that, when the process has no others left, somebody can still ask why.
fn spare() -> Option<fs::File> {
    fs::File::open("/dev/null").ok()
}

async fn accept(listener: UnixListener, registry: Registry, mut stop: watch::Receiver<bool>) {
    let mut clients = JoinSet::new();
    let mut number = 0u64;
    let mut kept = spare();
    // Whether the next client takes the place of the spare one.
    let mut last = false;
    loop {
        if kept.is_none() && !last {
            kept = spare();
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = clients.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let name = format!("unix#{number}");
                number += 1;
                let limit = if last { SPARE_LIMIT } else { Duration::MAX };
                last = false;
                let serve = connection::serve(name, stream, registry.clone(), stop.clone());
                clients.spawn(async move {
                    let _ = tokio::time::timeout(limit, serve).await; // its place is needed for the next
                });
            }
            Err(error) => {
                last = kept.take().is_some();
                if last {
                    continue;
                }
                let why = crate::vlog::errno_text(&error);
                log::warn!(target: "unixctl", per_min = 5, burst = 5; "accept failed: {why}");
                // Out of descriptors, most likely: the connection stays pending, do not spin on it.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    while clients.join_next().await.is_some() {}
}
