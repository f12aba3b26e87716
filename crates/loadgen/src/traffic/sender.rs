//! One transmit queue.

use crate::flows::{Sequence, Spread, Tuple};
use crate::frame::{HDR, Shape, Stamp, TAIL, TUPLE_AT, Template};
use crate::load::Load;
use crate::load::{Checks, HEAD, Touch};
use heddle_vhost_user::frontend::NicQueue;
use heddle_virtio::driver::DriverError;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The rate of a sender.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// At the rate at which the device takes packets.
    Full,
    /// One packet per this number of cycles (of the cycle counter), as 32.32 fixed point.
    Every(u64),
}

impl Pace {
    /// `pps` packets per second on a counter of `hz`; not above 2^32 cycles between two.
    pub fn of_rate(pps: f64, hz: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        Self::Every(((hz as f64 / pps) * 4_294_967_296.0) as u64)
    }
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets posted.
    pub posted: u64,
    /// Packets that the device has given back.
    pub taken: u64,
    /// Number of attempts to post.
    pub wishes: u64,
    /// Number of attempts that found the ring full.
    pub full: u64,
    /// At a fixed rate: packets that were not sent because the ring was full when they were due.
    pub skipped: u64,
}

impl Sent {
    /// Sums, field by field.
    #[must_use]
    pub fn plus(self, o: Self) -> Self {
        Self {
            posted: self.posted + o.posted,
            taken: self.taken + o.taken,
            wishes: self.wishes + o.wishes,
            full: self.full + o.full,
            skipped: self.skipped + o.skipped,
        }
    }
    /// The difference to the earlier counters `o`.
    #[must_use]
    pub fn since(self, o: Self) -> Self {
        Self {
            posted: self.posted - o.posted,
            taken: self.taken - o.taken,
            wishes: self.wishes - o.wishes,
            full: self.full - o.full,
            skipped: self.skipped - o.skipped,
        }
    }
}

/// A sender on one transmit queue.
#[derive(Debug)]
pub struct Sender {
    frames: Frames,
    id: u8,
    checks: Checks,
    flows: Sequence,
    spread: Spread,
    /// The flow that each buffer's frame has now.
    current: Box<[u32]>,
    pace: Pace,
    /// When the next packet is due, as cycles in 32.32 fixed point.
    due: Option<u128>,
    /// Maximum number of packets of one post.
    burst: usize,
    touch: Touch,
    /// Destination address instead of the flows' own.
    address: Option<u32>,
    seq: u32,
    counts: Sent,
}

/// The frames of a sender.
#[derive(Clone, Debug)]
pub struct Frames {
    full: Template,
    /// The frame of a probe: [`Shape::less`] bytes shorter.
    probe: Template,
}

impl Frames {
    /// Frames from port `src` to port `dst`; `id` is the sender's number in stamps.
    ///
    /// # Panics
    /// The panics of [`Template::new`]; a shape of at least [`Shape::min`] is right.
    pub fn new(shape: Shape, src: u8, dst: u8, id: u8) -> Self {
        Self {
            full: Template::new(shape, src, dst, id),
            probe: Template::new(shape.shorter(shape.less()), src, dst, id),
        }
    }
    /// The same frames for another Ethernet address.
    #[must_use]
    pub fn to_ethernet(self, address: [u8; 6]) -> Self {
        Self {
            full: self.full.to_ethernet(address),
            probe: self.probe.to_ethernet(address),
        }
    }
}

impl Sender {
    /// Writes the frames into the queue's buffers, all of which must be free. `id` tells senders apart.
    pub fn new(
        queue: &mut NicQueue,
        frames: Frames,
        id: u8,
        flows: Sequence,
        pace: Pace,
        load: &Load,
    ) -> Self {
        let size = queue.config.size;
        let sender = Self {
            frames,
            id,
            checks: load.checks,
            flows,
            spread: load.spread,
            // Buffers have no flow yet: the template's tuple is that of another spread.
            current: vec![u32::MAX; size.into()].into_boxed_slice(),
            pace,
            due: None,
            burst: load.burst.clamp(1, size.into()),
            touch: load.touch,
            address: None,
            seq: 0,
            counts: Sent::default(),
        };
        for buffer in 0..size {
            let bytes = &sender.template(buffer).bytes;
            queue.stream.write(buffer, 0, bytes);
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            queue.stream.set_len(buffer, len);
        }
        sender
    }
    /// The same with another IPv4 destination than the flows', if one is given.
    #[must_use]
    pub fn to_address(self, address: Option<u32>) -> Self {
        Self { address, ..self }
    }
    #[inline]
    fn tuple(&self, flow: u32) -> Tuple {
        let tuple = self.spread.tuple(self.id, flow);
        Tuple {
            dst: self.address.unwrap_or(tuple.dst),
            ..tuple
        }
    }
    /// Whether the frame in `buffer` carries a stamp.
    #[inline]
    fn stamped(&self, buffer: u16) -> bool {
        match self.checks.every() {
            0 => false,
            n => buffer & (n - 1) == 0,
        }
    }
    #[inline]
    fn template(&self, buffer: u16) -> &Template {
        if matches!(self.checks, Checks::Probes(n) if n > 1) && self.stamped(buffer) {
            &self.frames.probe
        } else {
            &self.frames.full
        }
    }
    /// The present counters.
    pub fn counts(&self) -> Sent {
        self.counts
    }

    /// Sends the packets that are due at `now` (cycles); returns their number.
    ///
    /// # Errors
    /// [`DriverError::Device`].
    #[inline]
    pub fn poll(&mut self, queue: &mut NicQueue, now: u64) -> Result<usize, DriverError> {
        let want = match self.pace {
            Pace::Full => self.burst,
            Pace::Every(gap) => self.due(now, gap, queue.config.size),
        };
        if want == 0 {
            return Ok(0);
        }
        self.counts.wishes += 1;
        if queue.stream.free() < want {
            self.reap(queue)?;
        }
        let n = want.min(queue.stream.free());
        self.counts.full += u64::from(n < want);
        match self.pace {
            // A burst, or no packet: posting one at a time would make the device read the ring for each.
            Pace::Full if n < want => return Ok(0),
            Pace::Full => {}
            Pace::Every(gap) => self.due = self.due.map(|due| due + u128::from(gap) * n as u128),
        }
        self.send(queue, n, now);
        Ok(n)
    }
    /// The number of packets that are due, at most a burst. Packets that are late by more than a ring are
    /// skipped.
    fn due(&mut self, now: u64, gap: u64, ring: u16) -> usize {
        let (now, gap) = (u128::from(now) << 32, u128::from(gap.max(1)));
        let due = *self.due.get_or_insert(now);
        if now < due {
            return 0;
        }
        let n = (now - due) / gap + 1;
        if n > u128::from(ring) {
            let lost = n - u128::from(ring);
            self.counts.skipped += u64::try_from(lost).unwrap_or(u64::MAX);
            self.due = Some(due + lost * gap);
        }
        usize::try_from(n).unwrap_or(usize::MAX).min(self.burst)
    }
    #[inline]
    fn send(&mut self, queue: &mut NicQueue, n: usize, now: u64) {
        let touched = self.touch.of(self.frames.full.bytes.len());
        if touched > 0 {
            // The switch has read these lines: prefetch all of them at once.
            for k in 0..n {
                let buffer = queue.stream.upcoming(k);
                for at in (0..touched.min(HEAD)).step_by(LINE) {
                    queue.stream.view().prefetch_write(buffer, at);
                }
            }
        }
        for k in 0..n {
            let buffer = queue.stream.upcoming(k);
            let flow = self.flows.number();
            if touched > 0 {
                self.rewrite(queue, buffer, touched, flow);
            } else if let Some(current) = self.current.get_mut(usize::from(buffer))
                && *current != flow
            {
                *current = flow;
                let patch = self.template(buffer).patch(self.tuple(flow));
                queue.stream.write(buffer, HDR + TUPLE_AT, &patch);
            }
            if self.stamped(buffer) {
                self.stamp(queue, buffer, now, k);
            }
        }
        self.seq = self.seq.wrapping_add(u32::try_from(n).unwrap_or(0));
        self.counts.posted += n as u64;
        if n > 0 {
            queue.post(n);
        }
    }
    /// Writes the first `touched` bytes anew, as of `flow`.
    #[inline]
    fn rewrite(&self, queue: &NicQueue, buffer: u16, touched: usize, flow: u32) {
        let template = self.template(buffer);
        let bytes = &template.bytes[..touched.min(template.bytes.len())];
        let mut head = [0; HEAD];
        let n = bytes.len().min(HEAD);
        head[..n].copy_from_slice(&bytes[..n]);
        let patch = template.patch(self.tuple(flow));
        head[HDR + TUPLE_AT..HDR + TUPLE_AT + patch.len()].copy_from_slice(&patch);
        queue.stream.write(buffer, 0, &head[..n]);
        if let Some(rest) = bytes.get(HEAD..) {
            queue.stream.write(buffer, HEAD, rest);
        }
    }
    fn stamp(&self, queue: &NicQueue, buffer: u16, tsc: u64, k: usize) {
        let seq = self.seq.wrapping_add(u32::try_from(k).unwrap_or(0));
        let stamp = Stamp {
            sender: self.id,
            seq,
            tsc,
        };
        let shape = self.template(buffer).shape;
        queue
            .stream
            .write(buffer, HDR + shape.payload_at(), &stamp.bytes());
        if self.checks == Checks::Content {
            let end = HDR + shape.size() - TAIL;
            queue.stream.write(buffer, end, &seq.to_le_bytes());
        }
    }
    /// Takes used buffers back; returns their number.
    ///
    /// # Errors
    /// [`DriverError::Device`].
    #[inline]
    pub fn reap(&mut self, queue: &mut NicQueue) -> Result<usize, DriverError> {
        let n = queue.stream.take(usize::MAX, |_, _| ())?;
        self.counts.taken += n as u64;
        Ok(n)
    }
}
