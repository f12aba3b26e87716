//! Packets for inspection: examples of dropped packets, and copies for a capture.
//!
//! **Problem.** A counter of drops does not show which packets are dropped. Copying all of them would make a
//! flood of drops more expensive than forwarding. A capture must not slow down traffic that it does not
//! match.
//!
//! **Costs.** A drop costs an addition and a comparison with the clock; packets of one run that are all
//! dropped cost that together. Each pair of a name and a port has a slot, and a slot gives one example in
//! [`PERIOD_MS`]. A capture is limited to the packets and bytes that a worker and the reader can handle in a
//! few percent of their time. Skipped packets are counted, burst by burst.
//!
//! **Bounds.** Queues to the control side hold [`EXAMPLES`] and [`CAPTURED_PACKETS`], the latter not more
//! than [`CAPTURED_BYTES`]. Workers never wait: an example or packet that finds no room is lost. Lost packets
//! of a capture are counted.

use crate::exec::{Live, LiveId};
use crossbeam_queue::ArrayQueue;
use heddle_datapath_api::{DropKind, PortNo};
use heddle_flow::FlowKey;
use heddle_packet::{Packet, mark_header};
#[expect(clippy::disallowed_types, reason = "workers only try")]
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of an example.
const HEAD_BYTES: usize = 192;
/// Slots of a worker, and how often each gives an example.
const SLOTS: usize = 256;
const PERIOD_MS: u64 = 100;
/// Examples that wait for the control side.
const EXAMPLES: usize = 4096;
/// Captured packets that wait for the control side, and their bytes.
const CAPTURED_PACKETS: usize = 16 << 10;
const CAPTURED_BYTES: usize = 16 << 20;
/// Capture limits of a worker per millisecond: about a percent of its time, and a few percent of the
/// reader's. Unused milliseconds are saved for a burst, up to the maximum below.
const PACKETS_PER_MS: u32 = 16;
const BYTES_PER_MS: usize = 16 << 10;
const MAX_SAVED_MS: u32 = 256;
/// Number of skipped packets that are reported together. Fewer are reported as soon as others can be copied.
const TOGETHER: u64 = 256;

/// One example of many dropped packets.
#[derive(Clone, Debug)]
pub struct DropExample {
    /// Reason of the drop.
    pub kind: DropKind,
    /// The port that it came in by.
    pub in_port: PortNo,
    /// The port that it was to be sent by, if an output was reached.
    pub out_port: Option<PortNo>,
    /// Time of the drop, by the datapath's clock.
    pub at_ms: u64,
    /// Number of such drops since the previous example: with this reason, of packets that came in by this
    /// port. Two such pairs may share a slot: then the count is of both.
    pub seen: u64,
    /// Length of the whole packet, bytes.
    pub len: usize,
    /// First bytes of the packet, as it was when it was dropped.
    pub head: Vec<u8>,
    /// The packet's context at its last lookup, if it is known.
    pub context: Option<Box<FlowKey>>,
}

/// A request for a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureWish {
    /// Packets that are received or sent by `port`; without one, packets that are received.
    pub traffic: bool,
    /// Dropped packets, if the outer option is set; the inner one selects a reason.
    pub drops: Option<Option<DropKind>>,
    /// Only packets of this port.
    pub port: Option<PortNo>,
    /// Maximum number of bytes of a packet.
    pub snap_len: usize,
}

/// Direction of a captured packet, or the reason of its drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePoint {
    /// Received.
    In,
    /// Sent.
    Out,
    /// Dropped.
    Dropped(DropKind),
}

/// A captured packet.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Time of its burst since 1970.
    pub at: Duration,
    /// The port that it was received or sent by.
    pub port: PortNo,
    /// Direction, or the reason of its drop.
    pub way: CapturePoint,
    /// Length of the whole packet, bytes.
    pub len: usize,
    /// First bytes of the packet.
    pub bytes: Vec<u8>,
}

/// Shared by workers and the control side.
#[expect(clippy::disallowed_types, reason = "workers only try")]
pub(crate) struct WatchInbox {
    pub(crate) examples: ArrayQueue<DropExample>,
    /// Incremented with each new wish.
    version: AtomicU32,
    wish: Mutex<Option<CaptureWish>>,
    captured: ArrayQueue<Captured>,
    captured_bytes: AtomicUsize,
    missed: AtomicU64,
}

#[expect(clippy::disallowed_types, reason = "workers only try")]
impl Default for WatchInbox {
    fn default() -> Self {
        Self {
            examples: ArrayQueue::new(EXAMPLES),
            version: 0.into(),
            wish: Mutex::default(),
            captured: ArrayQueue::new(CAPTURED_PACKETS),
            captured_bytes: 0.into(),
            missed: 0.into(),
        }
    }
}

impl WatchInbox {
    /// Starts a capture with the workers' next bursts, or stops it. Packets of an earlier capture are
    /// discarded.
    #[expect(clippy::disallowed_methods, reason = "the control side")]
    pub(crate) fn capture(&self, wish: Option<CaptureWish>) {
        *self.wish.lock() = wish;
        self.take(usize::MAX, &mut drop);
        self.missed.store(0, Relaxed);
        // After the wish: a worker that reads the new number tries the lock.
        self.version.fetch_add(1, Relaxed);
    }
    /// Hands over up to `max` captured packets.
    pub(crate) fn take(&self, max: usize, f: &mut dyn FnMut(Captured)) {
        for _ in 0..max {
            let Some(packet) = self.captured.pop() else { return };
            self.captured_bytes.fetch_sub(packet.bytes.len(), Relaxed);
            f(packet);
        }
    }
    /// Number of packets that the capture skipped.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }
    fn push(&self, packet: Captured) {
        let bytes = packet.bytes.len();
        let before = self.captured_bytes.fetch_add(bytes, Relaxed);
        if before + bytes > CAPTURED_BYTES || self.captured.push(packet).is_err() {
            self.captured_bytes.fetch_sub(bytes, Relaxed);
            self.missed.fetch_add(1, Relaxed);
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Slot {
    due_ms: u64,
    seen: u64,
}

/// A worker's part of a capture.
struct Capture {
    wish: CaptureWish,
    /// The current millisecond and what may still be copied in it; `None`: no packet yet.
    ms: Option<u64>,
    packets: u32,
    bytes: usize,
    at: Duration,
    /// Skipped packets that are not reported yet.
    missed: u64,
}

/// A worker's end of the [`WatchInbox`].
pub(crate) struct PacketWatch {
    inbox: Arc<WatchInbox>,
    slots: Box<[Slot; SLOTS]>,
    now_ms: u64,
    version: u32,
    capture: Option<Box<Capture>>,
    /// The output port of packets that are being sent.
    out_port: Option<PortNo>,
}

impl Default for PacketWatch {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

/// First bytes of a packet.
fn first(p: &Packet, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; p.len().min(most)];
    let n = p.copy_from(0, &mut bytes);
    bytes.truncate(n);
    bytes
}

/// The first `n` bytes of a frame without its [`mark_header`] of this length.
#[cold]
fn without_header(p: &Packet, header: usize, n: usize) -> Vec<u8> {
    let mut bytes = first(p, p.len());
    bytes.drain(mark_header::AT.min(bytes.len())..(mark_header::AT + header).min(bytes.len()));
    bytes.truncate(n);
    bytes
}

impl PacketWatch {
    pub(crate) fn new(inbox: Arc<WatchInbox>) -> Self {
        Self {
            inbox,
            slots: Box::new([Slot::default(); SLOTS]),
            now_ms: 0,
            version: 0,
            capture: None,
            out_port: None,
        }
    }

    /// Begins a burst, of these packets if they were received.
    #[inline]
    pub(crate) fn begin(&mut self, now_ms: u64, received: &[Packet]) {
        self.now_ms = now_ms;
        let version = self.inbox.version.load(Relaxed);
        if version != self.version || self.capture.is_some() {
            self.begin_capture(version, received);
        }
    }

    #[cold]
    fn begin_capture(&mut self, version: u32, received: &[Packet]) {
        if version != self.version
            && let Some(wish) = self.inbox.wish.try_lock()
        {
            self.version = version;
            self.capture = wish.map(|wish| {
                Box::new(Capture {
                    wish,
                    ms: None,
                    packets: 0,
                    bytes: 0,
                    at: Duration::ZERO,
                    missed: 0,
                })
            });
        }
        let Some(c) = &mut self.capture else { return };
        c.save(self.now_ms);
        if c.packets > 0 {
            #[expect(clippy::disallowed_methods, reason = "of bursts of which something is copied")]
            let now = std::time::SystemTime::now();
            c.at = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        }
        let wish = c.wish;
        if wish.traffic {
            let wanted = |p: &&Packet| wish.port.is_none_or(|port| port.0 == p.in_port);
            // All packets of a burst came by one port.
            if c.packets > 0 {
                let all = received.iter().filter(wanted);
                all.for_each(|p| c.copy(&self.inbox, p, p.in_port, CapturePoint::In));
            } else if received.first().as_ref().is_some_and(wanted) {
                c.missed += received.len() as u64;
            }
        }
        c.report_missed(&self.inbox);
    }

    /// Captures packets that are sent by a port.
    #[inline]
    pub(crate) fn sent(&mut self, no: u32, live: &Live, ids: &[Range<LiveId>]) {
        if let Some(c) = &mut self.capture
            && c.wish.traffic
            && c.wish.port == Some(PortNo(no))
        {
            if c.packets > 0 {
                let all = ids.iter().flat_map(|ids| live.all(ids));
                all.for_each(|p| c.copy(&self.inbox, p, no, CapturePoint::Out));
            } else {
                c.missed += ids.iter().map(|ids| ids.len() as u64).sum::<u64>();
            }
            c.report_missed(&self.inbox);
        }
    }

    /// Records that `n` packets like `p` were dropped.
    #[inline]
    pub(crate) fn lost(&mut self, kind: DropKind, n: u64, p: &Packet, context: Option<&FlowKey>) {
        // Ports and reasons are small numbers: mostly the pairs of one switch get slots of their own.
        let at = (p.in_port as usize).wrapping_mul(59).wrapping_add(kind as usize) % SLOTS;
        let slot = &mut self.slots[at];
        slot.seen += n;
        if self.now_ms >= slot.due_ms {
            self.example(at, kind, p, context);
        }
        if let Some(c) = &mut self.capture {
            c.lost(&self.inbox, kind, n, p);
        }
    }

    /// Records the drop of packets that port `no` did not take.
    pub(crate) fn lost_to(&mut self, no: u32, kind: DropKind, n: u64, p: &Packet) {
        self.out_port = Some(PortNo(no));
        self.lost(kind, n, p, None);
        self.out_port = None;
    }

    #[cold]
    fn example(&mut self, at: usize, kind: DropKind, p: &Packet, context: Option<&FlowKey>) {
        let slot = &mut self.slots[at];
        let seen = std::mem::take(&mut slot.seen);
        slot.due_ms = self.now_ms + PERIOD_MS;
        let example = DropExample {
            kind,
            in_port: PortNo(p.in_port),
            out_port: self.out_port,
            at_ms: self.now_ms,
            seen,
            len: p.len(),
            head: first(p, HEAD_BYTES),
            context: context.map(|key| Box::new(*key)),
        };
        if self.inbox.examples.push(example).is_err() {
            // The control side does not read examples; the next one includes this count.
            slot.seen = seen;
        }
    }
}

impl Capture {
    #[cold]
    fn lost(&mut self, inbox: &WatchInbox, kind: DropKind, n: u64, p: &Packet) {
        let wish = self.wish;
        if wish.drops.is_some_and(|wanted| wanted.is_none_or(|k| k == kind))
            && wish.port.is_none_or(|port| port.0 == p.in_port)
        {
            self.copy(inbox, p, p.in_port, CapturePoint::Dropped(kind));
            self.missed += n - 1;
            self.report_missed(inbox);
        }
    }

    /// Allows more copies after time has passed.
    fn save(&mut self, now_ms: u64) {
        if self.ms == Some(now_ms) {
            return;
        }
        let passed = self.ms.map_or(u64::MAX, |ms| now_ms.saturating_sub(ms));
        let ms = u32::try_from(passed).map_or(MAX_SAVED_MS, |ms| ms.min(MAX_SAVED_MS));
        self.packets = (self.packets + ms * PACKETS_PER_MS).min(MAX_SAVED_MS * PACKETS_PER_MS);
        self.bytes = (self.bytes + ms as usize * BYTES_PER_MS).min(MAX_SAVED_MS as usize * BYTES_PER_MS);
        self.ms = Some(now_ms);
    }

    /// Reports skipped packets to the inbox. A report for each packet or burst would cost more than the
    /// check.
    fn report_missed(&mut self, inbox: &WatchInbox) {
        if self.missed >= TOGETHER || self.missed > 0 && self.packets > 0 {
            inbox.missed.fetch_add(std::mem::take(&mut self.missed), Relaxed);
        }
    }

    fn copy(&mut self, inbox: &WatchInbox, p: &Packet, port: u32, way: CapturePoint) {
        let header = p.header_len();
        let len = p.len() - header;
        let n = len.min(self.wish.snap_len);
        if self.packets == 0 || self.bytes < n {
            self.missed += 1;
            return;
        }
        self.packets -= 1;
        self.bytes -= n;
        inbox.push(Captured {
            at: self.at,
            port: PortNo(port),
            way,
            len,
            bytes: match header {
                0 => first(p, n),
                _ => without_header(p, header, n),
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(port: u32, len: usize) -> Packet {
        let mut p = Packet::new();
        p.set_bytes(&vec![7; len]);
        p.in_port = port;
        p
    }

    #[test]
    fn a_flood_gives_few_examples_and_whole_counts() {
        let inbox = Arc::new(WatchInbox::default());
        let mut watch = PacketWatch::new(Arc::clone(&inbox));
        let (loud, quiet) = (packet(1, 60), packet(2, 1500));
        for ms in 1000..2000 {
            watch.begin(ms, &[]);
            for _ in 0..100 {
                watch.lost(DropKind::Policy, 32, &loud, None);
            }
            if ms == 1500 {
                watch.lost(DropKind::Policy, 1, &quiet, None);
            }
        }
        let mut all = Vec::new();
        while let Some(e) = inbox.examples.pop() {
            all.push(e);
        }
        let of = |port| all.iter().filter(move |e| e.in_port == PortNo(port));
        assert_eq!(of(1).count(), 10, "one in {PERIOD_MS} ms");
        assert_eq!(
            of(2).map(|e| (e.seen, e.len, e.head.len())).collect::<Vec<_>>(),
            [(1, 1500, HEAD_BYTES)]
        );
        let counted: u64 = of(1).map(|e| e.seen).sum();
        // Packets dropped after the last example are counted in the next one.
        assert_eq!(
            counted + watch.slots.iter().map(|s| s.seen).sum::<u64>(),
            1000 * 100 * 32
        );
    }

    #[test]
    fn examples_that_are_not_taken_are_bounded_and_counts_are_kept() {
        let inbox = Arc::new(WatchInbox::default());
        let mut watch = PacketWatch::new(Arc::clone(&inbox));
        let p = packet(1, 60);
        let n = EXAMPLES as u64 + 10;
        for i in 1..=n {
            watch.begin(i * PERIOD_MS, &[]);
            watch.lost(DropKind::Policy, 1, &p, None);
        }
        assert_eq!(inbox.examples.len(), EXAMPLES);
        assert_eq!(watch.slots.iter().map(|s| s.seen).sum::<u64>(), 10);
    }

    #[test]
    fn a_capture_takes_what_is_wanted_and_reports_what_it_missed() {
        let inbox = Arc::new(WatchInbox::default());
        let mut watch = PacketWatch::new(Arc::clone(&inbox));
        let burst = [packet(1, 60), packet(2, 1500)];
        watch.begin(1, &burst);
        assert_eq!(inbox.captured.len(), 0, "nobody asked");
        inbox.capture(Some(CaptureWish {
            traffic: true,
            drops: Some(Some(DropKind::TxFull)),
            port: Some(PortNo(2)),
            snap_len: 100,
        }));
        watch.begin(2, &burst);
        watch.lost(DropKind::TxFull, 3, &burst[1], None);
        watch.lost(DropKind::TxFull, 1, &burst[0], None);
        watch.lost(DropKind::Policy, 1, &burst[1], None);
        let mut got = Vec::new();
        inbox.take(9, &mut |c| got.push((c.port, c.way, c.len, c.bytes.len())));
        watch.begin(2, &[]);
        let two = PortNo(2);
        assert_eq!(
            got,
            [
                (two, CapturePoint::In, 1500, 100),
                (two, CapturePoint::Dropped(DropKind::TxFull), 1500, 100)
            ]
        );
        assert_eq!(inbox.missed(), 2, "of the three that were dropped together");
        watch.lost(DropKind::TxFull, TOGETHER + 1, &burst[1], None);
        assert_eq!(inbox.missed(), 2 + TOGETHER, "many are told of at once");
        inbox.take(9, &mut drop);
        // The saved number first, then the number of one millisecond.
        let (saved, before) = (u64::from(PACKETS_PER_MS * MAX_SAVED_MS), inbox.missed());
        for ms in [3, 4] {
            for _ in 0..2 * saved {
                watch.begin(ms, &burst[1..]);
            }
        }
        let taken = saved + u64::from(PACKETS_PER_MS);
        assert_eq!(inbox.captured.len() as u64, taken);
        let untold = watch.capture.as_ref().map_or(0, |c| c.missed);
        assert_eq!(inbox.missed() - before + untold, 4 * saved - taken);
        inbox.capture(None);
        assert_eq!((inbox.captured.len(), inbox.missed()), (0, 0));
        watch.begin(5, &burst);
        assert!(watch.capture.is_none());
    }

    #[test]
    fn captured_bytes_are_bounded() {
        let inbox = Arc::new(WatchInbox::default());
        let mut watch = PacketWatch::new(Arc::clone(&inbox));
        inbox.capture(Some(CaptureWish {
            traffic: true,
            snap_len: 1 << 16,
            ..CaptureWish::default()
        }));
        let burst = [packet(1, 60_000)];
        let n = 2 * (CAPTURED_BYTES / 60_000) as u64;
        for ms in 1..=n {
            watch.begin(ms, &burst);
        }
        assert!(inbox.captured_bytes.load(Relaxed) <= CAPTURED_BYTES);
        assert_eq!(inbox.captured.len() as u64 + inbox.missed(), n);
    }
}
