//! Passive connections: `RUNDIR/BRIDGE.mgmt`, where `ovs-ofctl` and `ovn-controller` call, and controllers
//! that call us.

use super::Manager;
use super::session::Kind;
use super::stream::serve;
use heddle_stream::{Acceptor, Pace, Passive, descriptor_part};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

/// A listening socket. Dropping it closes it, ends its connections and removes the file.
pub struct Listener {
    address: Option<SocketAddr>,
    probe: Option<Duration>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens; callers are probed after this time of silence (`None`: never).
    ///
    /// # Errors
    /// Another process listens there, or the system refuses; the text has the address.
    pub fn bind(manager: Arc<Manager>, at: &Passive, probe: Option<Duration>) -> io::Result<Self> {
        let acceptor = at.listen(&manager.tls)?;
        Ok(Self {
            address: acceptor.address(),
            probe,
            task: tokio::spawn(accept(manager, acceptor, at.to_string(), probe)),
        })
    }

    /// The address on the network, if it is there.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Silence after which callers are probed.
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
/// descriptors. Listeners of one kind have equal shares of it, and one caller more that waits for a place.
const PART: u64 = 6;
/// Minimum share of a listener.
const MIN_SHARE: usize = 4;
/// A connection that was idle for less than this is not closed for a new caller.
const MIN_IDLE: Duration = Duration::from_secs(1);
/// Time between two searches for an idle connection.
const RETRY: Duration = Duration::from_millis(100);

/// One listener's share of the connections of its kind. The share shrinks when listeners are added.
struct Share(&'static AtomicUsize);

impl Share {
    fn new(by_network: bool) -> Self {
        static LISTENERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
        let [unix, network] = &LISTENERS;
        let listeners = if by_network { network } else { unix };
        listeners.fetch_add(1, Relaxed);
        Self(listeners)
    }

    /// Maximum number of connections of the listener.
    fn limit(&self) -> usize {
        let all = usize::try_from(descriptor_part(PART)).unwrap_or(usize::MAX);
        (all / self.0.load(Relaxed).max(1)).max(MIN_SHARE)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

async fn accept(manager: Arc<Manager>, acceptor: Acceptor, at: String, probe: Option<Duration>) {
    /// Callers since the start, by whose number the log tells them apart.
    static CALLERS: AtomicU64 = AtomicU64::new(0);
    let by_network = acceptor.address().is_some();
    let method = if by_network { "tcp" } else { "unix" };
    let share = Share::new(by_network);
    let mut pace = Pace::default();
    let mut callers = Callers::default();
    let mut connections = JoinSet::new();
    let acceptor = &acceptor;
    let next = move || acceptor.accept();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            incoming = pace.accept("ofproto", next) => {
                make_room(&mut connections, &mut callers, &share, &manager.bridge().name, &at).await;
                let manager = manager.clone();
                let activity = Arc::new(Activity::default());
                let seen = activity.clone();
                let task = connections.spawn(async move {
                    // A handshake that failed has been logged.
                    let Ok(socket) = incoming.open().await else { return };
                    let name = format!("{method}#{}", CALLERS.fetch_add(1, Relaxed));
                    serve(manager, Kind::Service, name, socket, probe, None, Some(&*seen)).await;
                });
                callers.add(task, activity);
            }
        }
    }
}

/// Waits until the listener has a place for one more caller, and closes idle connections for it.
async fn make_room(
    connections: &mut JoinSet<()>,
    callers: &mut Callers,
    share: &Share,
    bridge: &str,
    at: &str,
) {
    loop {
        while connections.try_join_next().is_some() {}
        let limit = share.limit();
        if connections.len() < limit {
            return;
        }
        log::warn!(target: "ofproto", per_min = 2, burst = 1;
            "{bridge}: {at} has {} connections, and its limit is {limit}: new callers take the places of those \
             that are idle longest; end unused callers, or raise the limit of open files", connections.len());
        if let Some(task) = callers.take_idle(Instant::now()) {
            task.abort();
        }
        // The end of a connection is seen above.
        let _ = timeout(RETRY, connections.join_next()).await;
    }
}

/// When a connection was last in use.
pub(super) struct Activity(Mutex<Use>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    /// Whether a message has come, such as HELLO.
    greeted: bool,
    last: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(Use {
            greeted: false,
            last: Instant::now(),
        }))
    }
}

impl Activity {
    /// Whole messages have come.
    pub(super) fn received(&self) {
        *self.0.lock() = Use {
            greeted: true,
            last: Instant::now(),
        };
    }

    /// The caller reads its replies.
    pub(super) fn reads(&self) {
        self.0.lock().last = Instant::now();
    }
}

/// One listener's connections, with those whose handshake is under way.
#[derive(Default)]
struct Callers(Vec<(AbortHandle, Arc<Activity>)>);

impl Callers {
    fn add(&mut self, task: AbortHandle, activity: Arc<Activity>) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|(task, _)| !task.is_finished());
        }
        self.0.push((task, activity));
    }

    /// Takes the connection out that is to give its place to a new caller: one without HELLO first, then the
    /// one that is idle longest. `None` if all are in use.
    fn take_idle(&mut self, now: Instant) -> Option<AbortHandle> {
        self.0.retain(|(task, _)| !task.is_finished());
        let uses = self.0.iter().map(|(_, activity)| *activity.0.lock());
        let idle = uses
            .enumerate()
            .filter(|(_, u)| now.saturating_duration_since(u.last) >= MIN_IDLE);
        let (i, _) = idle.min_by_key(|(_, u)| *u)?;
        Some(self.0.swap_remove(i).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_without_hello_and_idle_ones_give_way_and_active_ones_do_not() {
        let start = Instant::now();
        let mut callers = Callers::default();
        let mut connections = JoinSet::new();
        let mut ids = Vec::new();
        for (greeted, idle_ms) in [(true, 0), (true, 9000), (false, 2000), (true, 5000), (false, 999)] {
            let task = connections.spawn(std::future::pending::<()>());
            ids.push(task.id());
            let last = start + MIN_IDLE * 9 - Duration::from_millis(idle_ms);
            callers.add(task, Arc::new(Activity(Mutex::new(Use { greeted, last }))));
        }
        let now = start + MIN_IDLE * 9;
        let mut taken = || callers.take_idle(now).map(|task| task.id());
        assert_eq!(
            [taken(), taken(), taken(), taken()],
            [Some(ids[2]), Some(ids[1]), Some(ids[3]), None]
        );
    }

    #[test]
    fn listeners_have_equal_shares() {
        // Other tests make no listeners by the network.
        let one = Share::new(true);
        let all = one.limit();
        let two = Share::new(true);
        assert_eq!([one.limit(), two.limit()], [(all / 2).max(MIN_SHARE); 2]);
        drop(two);
        assert_eq!(one.limit(), all);
    }
}
