//! Passive connections: `RUNDIR/BRIDGE.mgmt`, where `ovs-ofctl` and `ovn-controller` call, and controllers
//! that call us.

use super::Manager;
use super::session::Kind;
use super::stream::serve;
use heddle_stream::{Acceptor, Incoming, Passive, Stream};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Most callers whose handshake is under way.
const MAX_OPENING: usize = 64;

/// A listening socket. Dropping it closes it, ends its connections and removes the file.
pub struct Listener {
    address: Option<SocketAddr>,
    probe: Option<Duration>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens; who calls is probed after this time of silence (`None`: never).
    ///
    /// # Errors
    /// Somebody else listens there, or the system refuses; the text names the place.
    pub fn bind(manager: Arc<Manager>, at: &Passive, probe: Option<Duration>) -> io::Result<Self> {
        let acceptor = at.listen(&manager.tls)?;
        Ok(Self {
            address: acceptor.address(),
            probe,
            task: tokio::spawn(accept(manager, acceptor, probe)),
        })
    }

    /// The address on the network, if it is there.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// After how much silence callers are probed.
    pub fn probe(&self) -> Option<Duration> {
        self.probe
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(manager: Arc<Manager>, acceptor: Acceptor, probe: Option<Duration>) {
    /// Callers since the start, by whose number the log tells them apart.
    static CALLERS: AtomicU64 = AtomicU64::new(0);
    let method = if acceptor.address().is_some() {
        "tcp"
    } else {
        "unix"
    };
    let mut opening = Opening::default();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = acceptor.accept() => match accepted {
                Ok(incoming) => opening.add(incoming),
                Err(e) => {
                    // Out of descriptors, most likely: wait for some to come free.
                    log::warn!(target: "ofproto", per_min = 5, burst = 5; "accept failed: {e}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            },
            Some(opened) = opening.tasks.join_next() => {
                // A handshake that failed has been logged, and one that was given up says nothing.
                if let Ok(Ok(socket)) = opened {
                    let name = format!("{method}#{}", CALLERS.fetch_add(1, Relaxed));
                    connections.spawn(serve(manager.clone(), Kind::Service, name, socket, probe, None));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Callers whose handshake is not done. There are never many: the oldest gives way, so that neither
/// descriptors run out nor anybody new is kept out by those who say nothing.
#[derive(Default)]
struct Opening {
    tasks: JoinSet<io::Result<Box<dyn Stream>>>,
    /// Oldest first; some may be done.
    order: VecDeque<AbortHandle>,
}

impl Opening {
    fn add(&mut self, incoming: Incoming) {
        self.order.push_back(self.tasks.spawn(incoming.open()));
        if self.order.len() > MAX_OPENING {
            self.order.retain(|task| !task.is_finished());
        }
        if self.order.len() > MAX_OPENING
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
        }
    }
}
