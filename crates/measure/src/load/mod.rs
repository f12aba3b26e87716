//! Load over ordinary sockets: what each end of a measurement does with its connections.
//!
//! **Problem.** The generator must cost little beside what it measures, and must not flatter it. One that
//! waits for a slow reply before it sends the next request leaves out just the requests that would have been
//! slow (*coordinated omission*).
//!
//! **How.** Connections are dealt to threads. A thread with one connection uses blocking calls, two per
//! transaction; one with more waits with epoll. At a fixed rate each request has a time when it is due,
//! whatever became of those before it, and its latency counts from then. Closed loop: the next request
//! follows the reply, and latency counts from its sending.
//!
//! **Invariants.** Threads end when [`Shared::stop`] is set and the sockets are shut down; none waits longer
//! than [`SOCKET_TIMEOUT`] otherwise. Their counters are read while they run: relaxed atomics of each
//! thread's own.

mod client;
mod poller;
mod server;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use socket::{Listening, Socket, connect};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Timeout of a socket call that may wait for a lost packet; then the thread checks whether to stop.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(100);
/// A UDP reply that takes longer counts as lost.
const LOST: Duration = Duration::from_millis(300);
/// Minimum size of buffers of streams.
const MIN_BUFFER_BYTES: usize = 128 << 10;

/// The exchange on the connections of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Request and response: the client sends requests, the server replies.
    Rr,
    /// The client sends all the time.
    Write,
    /// The server sends all the time.
    Read,
}

/// The transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP: a message is a datagram.
    Udp,
}

/// One load, as both ends receive it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Request and response, or a stream.
    pub pattern: Pattern,
    /// Transport protocol.
    pub transport: Transport,
    /// Number of connections, at least one.
    pub connections: usize,
    /// Threads at each end, among which connections are dealt; 0: the number of processors, or of connections
    /// if that is smaller.
    pub threads: usize,
    /// Bytes of a request, or of a message of a stream.
    pub request: usize,
    /// Bytes of a reply; streams have none.
    pub response: usize,
    /// Messages a second of all connections together; `None`: no limit.
    pub rate_per_s: Option<f64>,
}

impl Load {
    /// Refuses a load that cannot be measured.
    ///
    /// # Errors
    /// The reason, one line for the user.
    pub fn check(&self) -> Result<(), String> {
        let most = match self.transport {
            Transport::Tcp => 64 << 20,
            Transport::Udp => 65_507,
        };
        let sizes = match self.pattern {
            Pattern::Rr => vec![self.request, self.response],
            _ => vec![self.request],
        };
        if let Some(size) = sizes.iter().find(|&&s| s == 0 || s > most) {
            let what = if self.transport == Transport::Udp {
                "a datagram"
            } else {
                "a message"
            };
            return Err(format!("{size} bytes: {what} has 1 to {most}"));
        }
        if self.connections == 0 || self.connections > 60_000 {
            return Err(format!("{} connections: 1 to 60000", self.connections));
        }
        match self.rate_per_s {
            Some(r) if !(r.is_finite() && (0.01..=1e8).contains(&r)) => {
                Err(format!("{r} a second: 0.01 to 100000000"))
            }
            _ => Ok(()),
        }
    }

    /// Number of threads of an end on this machine.
    fn threads_here(&self) -> usize {
        let processors = heddle_sys::cpu::allowed().map_or(1, |c| c.len());
        let wanted = if self.threads == 0 {
            processors
        } else {
            self.threads
        };
        wanted.clamp(1, self.connections)
    }

    fn buffer(&self) -> Vec<u8> {
        let most = self.request.max(self.response).max(MIN_BUFFER_BYTES);
        // No zeros: a device on the path might compress them.
        (0..most)
            .map(|i| u8::try_from((i * 37 + i / 256) % 251).unwrap_or(0))
            .collect()
    }
}

/// Counters of one thread.
#[derive(Debug, Default)]
pub struct Counts {
    transactions: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    /// Only the owning thread adds, so no locked instruction is needed.
    fn add(&self, transactions: u64, bytes: u64) {
        self.transactions
            .store(self.transactions.load(Relaxed) + transactions, Relaxed);
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
    }
    fn lose(&self) {
        self.lost.store(self.lost.load(Relaxed) + 1, Relaxed);
    }
}

/// Flags that all threads of an end read.
#[derive(Debug, Default)]
pub struct Shared {
    stop: AtomicBool,
    measuring: AtomicBool,
    /// Set before either end stops: a connection that breaks from then on is no fault.
    over: AtomicBool,
}

/// Result of a thread that has ended.
#[derive(Debug, Default)]
struct Left {
    /// Latency, ns.
    latency: Option<Histogram<u64>>,
    /// Delays of requests that only this generator caused, ns.
    lag: Option<Histogram<u64>>,
    fault: Option<String>,
}

/// Sums over the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests with a reply, or messages of streams that were counted at this end.
    pub transactions: u64,
    /// Payload that went through this end's sockets, bytes.
    pub bytes: u64,
    /// Replies that did not come (UDP).
    pub lost: u64,
    /// Segments that TCP sent again.
    pub retransmitted: u64,
}

/// A running end.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    counts: Vec<Arc<Counts>>,
    sockets: Vec<Arc<Socket>>,
    threads: Vec<JoinHandle<Left>>,
}

/// Result of an end that has stopped.
#[derive(Debug, Default)]
pub struct EndResult {
    /// Latency of transactions, ns; of the client of request and response only.
    pub latency: Option<Histogram<u64>>,
    /// Delays of requests that only the generator caused, ns; at a fixed rate only.
    pub lag: Option<Histogram<u64>>,
    /// Errors, at most one per thread.
    pub faults: Vec<String>,
}

/// The role of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Connects, and measures latency.
    Client,
    /// Accepts connections.
    Server,
}

impl Running {
    /// Starts the threads of an end.
    ///
    /// # Errors
    /// No threads or descriptors are left; options of sockets are refused.
    pub fn start(load: &Load, role: Role, sockets: Vec<Arc<Socket>>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let n = load.threads_here().min(sockets.len().max(1));
        let mut hands: Vec<Vec<(usize, Arc<Socket>)>> = vec![Vec::new(); n];
        for (i, socket) in sockets.iter().enumerate() {
            hands[i % n].push((i, socket.clone()));
        }
        let (mut counts, mut threads) = (Vec::new(), Vec::new());
        let begin = heddle_sys::monotonic_ns();
        for hand in hands {
            let mine = Arc::new(Counts::default());
            counts.push(mine.clone());
            let (load, shared) = (load.clone(), shared.clone());
            let body = move || {
                let _ = heddle_sys::clock::set_timer_slack_ns(1);
                let done = match (load.pattern, role) {
                    (Pattern::Rr, Role::Client) => client::run(&load, begin, hand, &shared, &mine),
                    (Pattern::Rr, Role::Server) => server::run(&load, hand, &shared, &mine),
                    (Pattern::Write, Role::Client) | (Pattern::Read, Role::Server) => {
                        stream::send(&load, begin, hand, &shared, &mine)
                    }
                    _ => stream::receive(&load, hand, &shared, &mine),
                };
                done.unwrap_or_else(|e| Left {
                    // An error after the load is over is no fault: the other end may have closed its sockets.
                    fault: (!shared.over.load(Relaxed)).then(|| heddle_sys::errno_text(&e)),
                    ..Left::default()
                })
            };
            threads.push(std::thread::Builder::new().name("load".into()).spawn(body)?);
        }
        Ok(Self {
            shared,
            counts,
            sockets,
            threads,
        })
    }

    /// Turns the recording of latency on or off. After the measurement either side may stop first.
    pub fn measure(&self, measuring: bool) {
        self.shared.measuring.store(measuring, Relaxed);
        if !measuring {
            self.shared.over.store(true, Relaxed);
        }
    }

    /// Sums since the start.
    pub fn totals(&self) -> Totals {
        let mut t = Totals::default();
        for c in &self.counts {
            t.transactions += c.transactions.load(Relaxed);
            t.bytes += c.bytes.load(Relaxed);
            t.lost += c.lost.load(Relaxed);
        }
        t.retransmitted = self.sockets.iter().map(|s| u64::from(s.retransmitted())).sum();
        t
    }

    /// Whether a thread has ended by itself: its connections broke.
    pub fn is_broken(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Stops the load, and returns its result.
    pub fn stop(mut self) -> EndResult {
        self.end();
        let mut found = EndResult::default();
        for thread in self.threads.drain(..) {
            let Ok(left) = thread.join() else {
                found.faults.push("a thread ended early".into());
                continue;
            };
            add(&mut found.latency, left.latency);
            add(&mut found.lag, left.lag);
            found.faults.extend(left.fault);
        }
        found
    }

    fn end(&self) {
        self.shared.over.store(true, Relaxed);
        self.shared.stop.store(true, Relaxed);
        for socket in &self.sockets {
            socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn add(sum: &mut Option<Histogram<u64>>, more: Option<Histogram<u64>>) {
    match (sum.as_mut(), more) {
        (Some(sum), Some(more)) => {
            // Both histograms resize themselves, so this does not fail.
            let _ = sum.add(&more);
        }
        (None, more) => *sum = more,
        _ => {}
    }
}

/// Nanoseconds, three digits, from 1 ns to two minutes.
fn histogram() -> Histogram<u64> {
    let mut h = Histogram::new_with_bounds(1, 120_000_000_000, 3).expect("1 to 120 s, three digits");
    h.auto(true);
    h
}
