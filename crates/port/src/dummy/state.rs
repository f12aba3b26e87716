//! The state that the handle, the queues and the stream of a dummy port share.

use super::counts::Queues;
use super::pcap::Pcap;
use super::stream::{Conn, Endpoint};
use super::{ConnState, MAX_QUEUES};
use heddle_sys::EventFd;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Packets that a receive queue holds at most.
const QUEUE_LIMIT: usize = 100;
const LOG: &str = "netdev_dummy";

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) state: Mutex<DummyState>,
    /// Raised when a worker is done with packets.
    pub(super) processed: Condvar,
}

#[derive(Debug)]
pub(super) struct DummyState {
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    pub(super) up: bool,
    pub(super) ifindex: u32,
    pub(super) numa_id: u32,
    /// Payload bytes of a segment (`ol_tso_segsz`); 0: the device does not segment.
    pub(super) tso_bytes: u16,
    pub(super) ip4: Option<(Ipv4Addr, Ipv4Addr)>,
    pub(super) ip6: Option<(Ipv6Addr, u8)>,
    pub(super) queues: Vec<Queue>,
    pub(super) received: Queues,
    pub(super) sent: Queues,
    /// The flow chooses among transmit queues, not the worker.
    pub(super) by_flow: bool,
    /// Counts calls of [`Shared::open_queues`]: a receiver of an earlier call finds its queue gone.
    pub(super) generation: u64,
    /// `pcap` is both: then `rx_pcap` is `None` and `both_pcap` set, so that records stay in order.
    rx_pcap: Option<Pcap>,
    tx_pcap: Option<Pcap>,
    both_pcap: Option<Pcap>,
    conn: Option<Conn>,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) frames: VecDeque<Vec<u8>>,
    /// Packets ever queued, and of them those that the worker is done with.
    pub(super) queued: u64,
    pub(super) finished: u64,
    pub(super) wake: Arc<EventFd>,
    /// The wake descriptor is readable.
    pub(super) signalled: bool,
}

/// A receive queue's place.
#[derive(Clone, Debug)]
pub(super) struct QueueId {
    pub(super) index: usize,
    pub(super) generation: u64,
    pub(super) wake: Arc<EventFd>,
}

impl Shared {
    pub(super) fn new(name: &str) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0xaa55_0000);
        // Relaxed: only uniqueness matters.
        let n = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        Arc::new(Self {
            name: name.to_owned(),
            processed: Condvar::new(),
            state: Mutex::new(DummyState {
                mac: [0xaa, 0x55, n[0], n[1], n[2], n[3]],
                mtu: 1500,
                up: true,
                ifindex: 0,
                numa_id: 0,
                tso_bytes: 0,
                ip4: None,
                ip6: None,
                queues: Vec::new(),
                received: Queues::default(),
                sent: Queues::default(),
                by_flow: false,
                generation: 0,
                rx_pcap: None,
                tx_pcap: None,
                both_pcap: None,
                conn: None,
            }),
        })
    }

    pub(super) fn open_queues(&self, n: usize) -> io::Result<Vec<QueueId>> {
        let mut wakes = Vec::new();
        for _ in 0..n {
            wakes.push(Arc::new(EventFd::new()?));
        }
        let mut state = self.state.lock();
        state.generation += 1;
        let generation = state.generation;
        state.received.resize(n);
        state.queues = wakes.iter().map(|w| Queue::new(Arc::clone(w))).collect();
        drop(state);
        self.processed.notify_all();
        Ok(wakes
            .into_iter()
            .enumerate()
            .map(|(index, wake)| QueueId {
                index,
                generation,
                wake,
            })
            .collect())
    }

    pub(super) fn inject(&self, qid: usize, frame: Vec<u8>) {
        let mut state = self.state.lock();
        state.inject(qid, frame);
    }

    pub(super) fn wait_processed(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        let generation = state.generation;
        let goals: Vec<u64> = state.queues.iter().map(|q| q.queued).collect();
        loop {
            let done = state.generation != generation
                || state
                    .queues
                    .iter()
                    .zip(&goals)
                    .all(|(q, goal)| q.finished >= *goal);
            if done {
                return true;
            }
            if self.processed.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
    }

    pub(super) fn conn_state(&self) -> ConnState {
        match &self.state.lock().conn {
            None => ConnState::Unknown,
            Some(c) if c.connected() => ConnState::Connected,
            Some(_) => ConnState::Disconnected,
        }
    }

    pub(super) fn close(&self) {
        let (conn, queues) = {
            let mut state = self.state.lock();
            state.generation += 1;
            (state.conn.take(), std::mem::take(&mut state.queues))
        };
        // Joined without the lock, which the stream's thread may be waiting for.
        drop((conn, queues));
        self.processed.notify_all();
    }

    pub(super) fn set_options(this: &Arc<Self>, options: &BTreeMap<String, String>) {
        let get = |key: &str| options.get(key).map(String::as_str);
        let number = |key: &str| get(key).and_then(|v| v.parse().ok()).unwrap_or(0);
        let open = |key: &str| {
            let path = get(key)?;
            Pcap::append(path)
                .inspect_err(|e| {
                    let why = heddle_sys::errno_text(e);
                    log::warn!(target: "pcap", "{path}: failed to open pcap file for appending ({why})");
                })
                .ok()
        };
        let old = {
            let mut state = this.state.lock();
            state.ifindex = number("ifindex");
            state.numa_id = number("numa_id");
            state.tso_bytes = u16::try_from(number("ol_tso_segsz")).unwrap_or(0);
            let n_rxq = state.queues.len();
            state.received.resize(n_rxq);
            state.sent.resize((number("n_txq") as usize).min(MAX_QUEUES));
            (state.rx_pcap, state.tx_pcap, state.both_pcap) = (None, None, None);
            if get("pcap").is_some() {
                state.both_pcap = open("pcap");
            } else {
                state.rx_pcap = open("rxq_pcap");
                state.tx_pcap = open("tx_pcap");
            }
            let endpoint = match (get("pstream"), get("stream")) {
                (Some(p), Some(s)) => {
                    log::warn!(target: LOG, "Open failed: both {p} and {s} are configured");
                    return;
                }
                (Some(p), None) => Some(Endpoint::Passive(p.to_owned())),
                (None, Some(s)) => Some(Endpoint::Active(s.to_owned())),
                (None, None) => None,
            };
            if state.conn.as_ref().map(Conn::endpoint) == endpoint.as_ref() {
                return;
            }
            (state.conn.take(), endpoint)
        };
        let (old_conn, endpoint) = old;
        drop(old_conn);
        let Some(endpoint) = endpoint else { return };
        let name = endpoint.name().to_owned();
        match Conn::start(endpoint, Arc::downgrade(this)) {
            Ok(conn) => this.state.lock().conn = Some(conn),
            Err(e) => log::warn!(target: LOG, "{name}: open failed ({})", heddle_sys::errno_text(&e)),
        }
    }
}

impl DummyState {
    fn inject(&mut self, qid: usize, frame: Vec<u8>) {
        if let Some(pcap) = self.both_pcap.as_mut().or(self.rx_pcap.as_mut()) {
            pcap.write(&frame);
        }
        let Some(queue) = self.queues.get_mut(qid) else {
            return;
        };
        if queue.frames.len() >= QUEUE_LIMIT {
            return;
        }
        queue.frames.push_back(frame);
        queue.queued += 1;
        if !queue.signalled {
            queue.signalled = true;
            queue.wake.notify();
        }
    }

    /// A finished frame leaves the switch.
    pub(super) fn transmit(&mut self, frame: &[u8]) {
        if let Some(conn) = &self.conn {
            conn.send(frame);
        }
        if let Some((addr, _)) = self.ip4
            && let Some(reply) = arp_reply(frame, addr, self.mac)
        {
            self.inject(0, reply);
        }
        if let Some(pcap) = self.both_pcap.as_mut().or(self.tx_pcap.as_mut()) {
            pcap.write(frame);
        }
    }
}

impl Queue {
    fn new(wake: Arc<EventFd>) -> Self {
        Self {
            frames: VecDeque::new(),
            queued: 0,
            finished: 0,
            wake,
            signalled: false,
        }
    }
}

/// The reply of a host with address `addr` and `mac` to `frame`, if that is an ARP request for it (RFC 826).
fn arp_reply(frame: &[u8], addr: Ipv4Addr, mac: [u8; 6]) -> Option<Vec<u8>> {
    const REQUEST: [u8; 10] = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1];
    let arp = frame.get(12..42)?;
    if !arp.starts_with(&REQUEST) || arp.get(26..30)? != addr.octets() {
        return None;
    }
    let (asker_mac, asker_ip) = (frame.get(6..12)?, arp.get(16..20)?);
    let reply = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2];
    Some([asker_mac, &mac, &reply, &mac, &addr.octets(), asker_mac, asker_ip].concat())
}
