//! One receive queue.

use crate::frame::{HDR, PROBE_SHORTER, STAMP, Stamp, TAIL, Template};
use crate::load::Load;
use crate::load::{Checks, HEAD, Touch};
use hdrhistogram::Histogram;
use heddle_vhost_user::frontend::NicQueue;
use heddle_virtio::Features;
use heddle_virtio::driver::{DriverError, View};

/// Longest latency that is distinguished, in cycles: about half a minute. Longer ones count as this.
const MAX_LATENCY_CYCLES: u64 = 1 << 36;
/// Offset of the number of buffers in a virtio-net header (virtio 1.2 §5.1.6.1).
const NUM_BUFFERS: usize = 10;
/// A byte in the line that a UDP frame's stamp begins in.
const STAMP_LINE: usize = HDR + 42;

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets whose length is that of our senders' packets.
    pub packets: u64,
    /// Bytes of those, without virtio-net headers.
    pub bytes: u64,
    /// Packets of another length: neighbour discovery, segments of a GSO packet.
    pub foreign: u64,
    /// Bytes of those.
    pub foreign_bytes: u64,
    /// Packets that were read.
    pub read: u64,
    /// Read packets with wrong contents.
    pub corrupt: u64,
    /// Read packets behind one with a higher number of the same sender.
    pub reordered: u64,
}

impl Received {
    /// Sums, field by field.
    #[must_use]
    pub fn plus(self, o: Self) -> Self {
        Self {
            packets: self.packets + o.packets,
            bytes: self.bytes + o.bytes,
            foreign: self.foreign + o.foreign,
            foreign_bytes: self.foreign_bytes + o.foreign_bytes,
            read: self.read + o.read,
            corrupt: self.corrupt + o.corrupt,
            reordered: self.reordered + o.reordered,
        }
    }
    /// The difference to the earlier counters `o`.
    #[must_use]
    pub fn since(self, o: Self) -> Self {
        Self {
            packets: self.packets - o.packets,
            bytes: self.bytes - o.bytes,
            foreign: self.foreign - o.foreign,
            foreign_bytes: self.foreign_bytes - o.foreign_bytes,
            read: self.read - o.read,
            corrupt: self.corrupt - o.corrupt,
            reordered: self.reordered - o.reordered,
        }
    }
}

/// A packet that is to be read: its first buffer, its bytes with header, and where in `parts` its buffers
/// begin.
#[derive(Clone, Copy, Debug)]
struct Look {
    first: u16,
    len: u32,
    parts: usize,
    /// Carries a stamp.
    stamped: bool,
}

/// A packet whose buffers are being collected.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    missing: u16,
    first: u16,
    len: u32,
    parts: usize,
}

/// A receiver on one receive queue. All frames that come from senders have one shape.
#[derive(Debug)]
pub struct Receiver {
    sort: Sorter,
    /// The expected frame.
    template: Template,
    scratch: Vec<u8>,
    /// The next expected number of each sender.
    next: Box<[Option<u32>; 256]>,
    latency: Histogram<u64>,
}

/// Counts packets by their lengths, and selects those to read.
#[derive(Debug)]
struct Sorter {
    view: View,
    checks: Checks,
    touch: Touch,
    /// Whether all of a packet's buffers are to be read.
    keep: bool,
    mergeable: bool,
    /// Bytes of a receive buffer.
    capacity: u32,
    /// Bytes of a whole packet and of a probe, with header.
    full: u32,
    probe: u32,
    open: Open,
    look: Vec<Look>,
    /// Buffers of packets to be read whole, with the bytes in each.
    parts: Vec<(u16, u32)>,
    counts: Received,
}

impl Sorter {
    #[inline]
    fn buffer(&mut self, buffer: u16, len: u32) {
        if self.open.missing > 0 {
            self.more(buffer, len);
        } else if len == self.full || len == self.probe || !self.mergeable || len != self.capacity {
            self.packet(buffer, len, self.parts.len(), false);
        } else {
            self.first_of_many(buffer, len);
        }
    }
    /// The first of several full buffers: the header has their number.
    fn first_of_many(&mut self, buffer: u16, len: u32) {
        let mut n = [0; 2];
        self.view.read(buffer, NUM_BUFFERS, &mut n);
        self.open = Open {
            missing: u16::from_le_bytes(n).max(1),
            first: buffer,
            len: 0,
            parts: self.parts.len(),
        };
        self.more(buffer, len);
    }
    fn more(&mut self, buffer: u16, len: u32) {
        self.open.missing -= 1;
        self.open.len += len;
        if self.keep {
            self.parts.push((buffer, len));
        }
        if self.open.missing == 0 {
            self.packet(self.open.first, self.open.len, self.open.parts, true);
        }
    }
    #[inline]
    fn packet(&mut self, first: u16, len: u32, parts: usize, collected: bool) {
        let bytes = u64::from(len).saturating_sub(HDR as u64);
        if len != self.full && len != self.probe {
            self.counts.foreign += 1;
            self.counts.foreign_bytes += bytes;
            return;
        }
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        let stamped = match self.checks {
            Checks::Lengths => false,
            Checks::Probes(1) | Checks::Content => true,
            Checks::Probes(_) => len == self.probe,
        };
        if stamped || self.touch != Touch::Changes {
            if self.keep && !collected {
                self.parts.push((first, len));
            }
            // The switch has written these lines.
            self.view.prefetch(first, 0);
            self.view.prefetch(first, STAMP_LINE);
            self.look.push(Look {
                first,
                len,
                parts,
                stamped,
            });
        }
    }
}

impl Receiver {
    /// The receiver of port `port`. `features` are the negotiated ones, `capacity` the bytes of a receive
    /// buffer.
    pub fn new(queue: &NicQueue, features: Features, capacity: u32, port: u8, load: &Load) -> Self {
        let (shape, checks) = (load.shape, load.checks);
        let full = u32::try_from(HDR + shape.size()).unwrap_or(u32::MAX);
        let less = match checks {
            Checks::Probes(n) if n > 1 => PROBE_SHORTER,
            _ => 0,
        };
        let template = Template::new(shape, 0, port, 0);
        let size = usize::from(queue.config.size);
        Self {
            sort: Sorter {
                view: queue.stream.view().clone(),
                checks,
                touch: load.touch,
                keep: checks == Checks::Content || load.touch == Touch::Packets,
                mergeable: features.contains(Features::MRG_RXBUF),
                capacity,
                full,
                probe: full - u32::try_from(less).unwrap_or(0),
                open: Open::default(),
                look: Vec::with_capacity(size),
                parts: Vec::with_capacity(size),
                counts: Received::default(),
            },
            scratch: Vec::with_capacity(template.bytes.len()),
            template,
            next: Box::new([None; 256]),
            latency: Histogram::new_with_bounds(1, MAX_LATENCY_CYCLES, 3)
                .expect("bounds that the library allows"),
        }
    }
    /// The present counters.
    pub fn counts(&self) -> Received {
        self.sort.counts
    }
    /// Latencies since the last [`Receiver::forget_latency`], in cycles.
    pub fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }
    /// Clears the latencies: after warming up.
    pub fn forget_latency(&mut self) {
        self.latency.reset();
    }

    /// Takes the packets that have come, and posts the buffers again; `clock` returns the time of reading, in
    /// cycles. Returns the number of buffers.
    ///
    /// # Errors
    /// [`DriverError::Device`].
    #[inline]
    pub fn poll(&mut self, queue: &mut NicQueue, clock: impl Fn() -> u64) -> Result<usize, DriverError> {
        let sort = &mut self.sort;
        let n = queue
            .stream
            .take(usize::MAX, |buffer, len| sort.buffer(buffer, len))?;
        if n == 0 {
            return Ok(0);
        }
        if !self.sort.look.is_empty() {
            self.read_all(clock());
        }
        if self.sort.open.missing == 0 {
            // Else a packet's buffers are not all there, and the first ones may still have to be read.
            let free = queue.stream.free();
            queue.post(free);
            self.sort.parts.clear();
        }
        Ok(n)
    }

    fn read_all(&mut self, now: u64) {
        for i in 0..self.sort.look.len() {
            let Some(&look) = self.sort.look.get(i) else { break };
            self.sort.counts.read += 1;
            if self.sort.touch != Touch::Changes && !self.head(look) {
                self.sort.counts.corrupt += 1;
                continue;
            }
            if !look.stamped {
                continue;
            }
            let stamp = self.stamp(look.first);
            let good = stamp.filter(|s| self.sort.checks != Checks::Content || self.content(look, s.seq));
            let Some(stamp) = good else {
                self.sort.counts.corrupt += 1;
                continue;
            };
            // A latency beyond the bound counts as the bound.
            self.latency
                .saturating_record(now.saturating_sub(stamp.tsc).max(1));
            let next = &mut self.next[usize::from(stamp.sender)];
            if next.is_some_and(|n| stamp.seq.wrapping_sub(n) > u32::MAX / 2) {
                self.sort.counts.reordered += 1;
            } else {
                *next = Some(stamp.seq.wrapping_add(1));
            }
        }
        self.sort.look.clear();
    }
    /// Reads a packet's head, and all of it where guests do; returns whether it is for this port.
    #[inline]
    fn head(&mut self, look: Look) -> bool {
        let mut head = [0; HEAD];
        self.sort.view.read(look.first, 0, &mut head);
        let ours = &self.template.bytes[HDR..HDR + 6];
        let good = head.get(HDR..HDR + 6) == Some(ours);
        core::hint::black_box(&head); // all of it is read, whatever is looked at
        if self.sort.touch == Touch::Packets && self.sort.checks != Checks::Content {
            self.gather(look);
            core::hint::black_box(&self.scratch);
        }
        good
    }
    fn stamp(&self, buffer: u16) -> Option<Stamp> {
        let mut bytes = [0; STAMP];
        self.sort
            .view
            .read(buffer, HDR + self.template.shape.payload_at(), &mut bytes);
        Stamp::read(bytes)
    }
    /// Whether the whole packet is the one sent with number `seq`.
    fn content(&mut self, look: Look, seq: u32) -> bool {
        let whole = self.gather(look);
        let frame = self.scratch.get(HDR..).unwrap_or_default();
        whole && frame.ends_with(&seq.to_le_bytes()) && self.template.matches(frame)
    }
    /// Copies a packet out of its buffers; returns whether all of it was there.
    fn gather(&mut self, look: Look) -> bool {
        self.scratch.clear();
        let mut left = look.len as usize;
        for &(buffer, len) in self.sort.parts.get(look.parts..).unwrap_or_default() {
            let (at, n) = (self.scratch.len(), left.min(len as usize));
            self.scratch.resize(at + n, 0);
            self.sort.view.read(buffer, 0, &mut self.scratch[at..]);
            left -= n;
            if left == 0 {
                break;
            }
        }
        left == 0
    }
}

const _: () = assert!(TAIL == size_of::<u32>(), "the number is repeated at the end");
