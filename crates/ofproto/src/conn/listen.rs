//! Passive connections: `RUNDIR/BRIDGE.mgmt`, where `ovs-ofctl` and `ovn-controller` call.

use super::Manager;
use super::session::Kind;
use super::stream::serve;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// A listening socket. Dropping it closes it, ends its connections and removes the file.
pub struct Listener {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens at `path`. A socket file that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// Somebody else listens there, or the system refuses; the text names the path.
    pub fn bind(manager: Arc<Manager>, path: &Path) -> io::Result<Self> {
        let what = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(what(io::ErrorKind::AddrInUse.into()));
        }
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(what(e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(what)?;
        let task = tokio::spawn(accept(manager, listener));
        Ok(Self {
            path: path.to_owned(),
            task,
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept(manager: Arc<Manager>, listener: UnixListener) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    connections.spawn(serve(manager.clone(), Kind::Service, socket, None, None));
                }
                Err(e) => {
                    // Out of descriptors, most likely: wait for some to come free.
                    log::warn!(target: "ofproto", "accept failed: {e}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
