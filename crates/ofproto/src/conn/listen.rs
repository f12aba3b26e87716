//! Passive connections: `RUNDIR/BRIDGE.mgmt`, where `ovs-ofctl` and `ovn-controller` call, and controllers
//! that call us.

use super::Manager;
use super::session::Kind;
use super::stream::serve;
use heddle_stream::{Acceptor, Pace, Passive, Slots};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
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

/// Connections of callers by Unix sockets, and by the network, are each at most this part of the process's
/// descriptors. So neither keeps the other out, nor ports from being opened.
const PART: u64 = 6;
/// A caller that says no HELLO for this long gives its place to another one, if all are taken.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The places of callers by Unix sockets, or of those by the network, of all bridges together.
fn slots(by_network: bool) -> &'static Slots {
    static SLOTS: [OnceLock<Slots>; 2] = [OnceLock::new(), OnceLock::new()];
    let [unix, network] = &SLOTS;
    let slots = if by_network { network } else { unix };
    slots.get_or_init(|| Slots::part(PART))
}

async fn accept(manager: Arc<Manager>, acceptor: Acceptor, probe: Option<Duration>) {
    /// Callers since the start, by whose number the log tells them apart.
    static CALLERS: AtomicU64 = AtomicU64::new(0);
    let by_network = acceptor.address().is_some();
    let method = if by_network { "tcp" } else { "unix" };
    let slots = slots(by_network);
    let mut pace = Pace::default();
    let mut opening = Opening::default();
    let mut connections = JoinSet::new();
    let acceptor = &acceptor;
    let next = move || async move { Ok((slots.take().await, acceptor.accept().await?)) };
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            (slot, incoming) = pace.accept("ofproto", next) => {
                let manager = manager.clone();
                let handshake = opening.ticket();
                let task = connections.spawn(async move {
                    // The last to be dropped, after the socket.
                    let _slot = slot;
                    // A handshake that failed has been logged.
                    let Ok(socket) = incoming.open().await else { return };
                    handshake.store(true, Relaxed);
                    let name = format!("{method}#{}", CALLERS.fetch_add(1, Relaxed));
                    let crowd = Some((slots, HELLO_TIMEOUT));
                    serve(manager, Kind::Service, name, socket, probe, None, crowd).await;
                });
                opening.add(task);
            }
        }
    }
}

/// Callers whose handshake is not done. Their number is bounded: a new caller evicts the oldest, so that
/// silent callers keep no new one out.
#[derive(Default)]
struct Opening {
    /// Oldest first, with whether the handshake is done.
    order: VecDeque<(AbortHandle, Arc<AtomicBool>)>,
    next: Arc<AtomicBool>,
}

impl Opening {
    /// The flag that the next task sets when its handshake is done.
    fn ticket(&mut self) -> Arc<AtomicBool> {
        self.next = Arc::default();
        self.next.clone()
    }

    /// The task that has the last ticket.
    fn add(&mut self, task: AbortHandle) {
        self.order.push_back((task, self.next.clone()));
        if self.order.len() > MAX_OPENING {
            self.order
                .retain(|(task, done)| !done.load(Relaxed) && !task.is_finished());
        }
        if self.order.len() > MAX_OPENING
            && let Some((oldest, done)) = self.order.pop_front()
            && !done.load(Relaxed)
        {
            oldest.abort();
        }
    }
}
