//! The listening control socket.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_stream::{Slots, bind_unix};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::{Registry, connection};

/// The longest wait of [`Server::stop`] for commands in progress.
const STOP_LIMIT: Duration = Duration::from_secs(1);
/// The longest time that a client is served with the spare descriptor.
const SPARE_LIMIT: Duration = Duration::from_secs(10);

/// Clients may have at most one of this number of equal parts of the process's descriptors.
const PART: u64 = 6;
/// Further clients, each served for [`SPARE_LIMIT`] at most, so that the operator can always connect.
const BRIEF_CLIENTS: u64 = 4;
/// Time from an error of accept(2) to the next attempt.
const ACCEPT_REST: Duration = Duration::from_millis(100);

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
        let listener = UnixListener::from_std(bind_unix(path)?)?;
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

    /// Takes no more clients and waits, for a second at most, for commands in progress. Does not remove the
    /// socket's file.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        if tokio::time::timeout(STOP_LIMIT, self.accepting).await.is_err() {
            log::debug!(target: "unixctl", "commands were still in progress at the end");
        }
    }
}

/// A reserve descriptor: if the process has no others left, an operator can still connect and find out why.
fn spare() -> Option<fs::File> {
    fs::File::open("/dev/null").ok()
}

async fn accept(listener: UnixListener, registry: Registry, mut stop: watch::Receiver<bool>) {
    // Clients that stay must not take the descriptors that ports need.
    let (slots, brief) = (Slots::part(PART), Slots::new(BRIEF_CLIENTS));
    let mut clients = JoinSet::new();
    let mut rest_until = None;
    let mut number = 0u64;
    let mut kept = spare();
    // Whether the next client uses up the spare descriptor.
    let mut last = false;
    loop {
        if kept.is_none() && !last {
            kept = spare();
        }
        let accepted = tokio::select! {
            accepted = async {
                if let Some(until) = rest_until {
                    sleep_until(until).await;
                }
                let (slot, limit) = tokio::select! {
                    biased;
                    slot = slots.take() => (slot, Duration::MAX),
                    slot = brief.take() => (slot, SPARE_LIMIT),
                };
                listener.accept().await.map(|(stream, _)| (stream, slot, limit))
            } => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = clients.join_next() => continue,
        };
        match accepted {
            Ok((stream, slot, limit)) => {
                let name = format!("unix#{number}");
                number += 1;
                let limit = if last { SPARE_LIMIT } else { limit };
                (last, rest_until) = (false, None);
                let serve = connection::serve(name, stream, registry.clone(), stop.clone());
                clients.spawn(async move {
                    let _slot = slot;
                    let _ = tokio::time::timeout(limit, serve).await; // frees the slot for the next client
                });
            }
            Err(error) => {
                last = kept.take().is_some();
                if last {
                    rest_until = None;
                    continue;
                }
                let why = crate::vlog::errno_text(&error);
                log::warn!(target: "unixctl", per_min = 5, burst = 5; "accept failed: {why}");
                // Out of descriptors, most likely: the connection stays pending, do not spin on it.
                rest_until = Some(Instant::now() + ACCEPT_REST);
            }
        }
    }
    drop(listener);
    while clients.join_next().await.is_some() {}
}
