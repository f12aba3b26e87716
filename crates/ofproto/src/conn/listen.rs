//! Passive connections: `RUNDIR/BRIDGE.mgmt`, where `ovs-ofctl` and `ovn-controller` call, and controllers that call us.

use super::Manager;
use super::session::Kind;
use super::stream::serve;
use heddle_stream::{Acceptor, Passive};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

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
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = acceptor.accept() => match accepted {
                Ok(incoming) => {
                    let manager = manager.clone();
                    connections.spawn(async move {
                        // A failed handshake has been logged; the caller is gone.
                        if let Ok(socket) = incoming.open().await {
                            serve(manager, Kind::Service, socket, probe, None).await;
                        }
                    });
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
