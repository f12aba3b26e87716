//! The client of request and response.

use super::poller::Poller;
use super::{Counts, LOST, Left, Load, SOCKET_TIMEOUT, Shared, Socket, histogram};
use hdrhistogram::Histogram;
use heddle_sys::monotonic_ns;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The first message is due this long after the threads start.
const HEAD_START_NS: f64 = 10e6;

/// When the messages of a connection are due. The schedules of connections are shifted evenly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    next_ns: f64,
    period_ns: f64,
}

impl Due {
    /// The schedule of connection `index`; `None` for a load without a rate, which sends as fast as it can.
    pub(super) fn of(load: &Load, begin_ns: u64, index: usize) -> Option<Self> {
        let between_ns = 1e9 / load.rate_per_s?;
        Some(Self {
            next_ns: begin_ns as f64 + HEAD_START_NS + index as f64 * between_ns,
            period_ns: between_ns * load.connections as f64,
        })
    }
    /// When the next one is due. Each is due once, however late those before it were.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time, ns"
    )]
    pub(super) fn next(&mut self) -> u64 {
        let now = self.next_ns;
        self.next_ns += self.period_ns;
        now as u64
    }
}

/// Sleeps until `at_ns`; returns false if the load stops.
pub(super) fn sleep_until(at_ns: u64, shared: &Shared) -> bool {
    loop {
        if shared.stop.load(Relaxed) {
            return false;
        }
        let now = monotonic_ns();
        if now >= at_ns {
            return true;
        }
        std::thread::sleep(Duration::from_nanos(at_ns - now).min(SOCKET_TIMEOUT));
    }
}

pub(super) fn closed() -> io::Error {
    io::Error::new(
        ErrorKind::ConnectionReset,
        "the other end has closed the connection",
    )
}

/// Whether the call may be repeated.
pub(super) fn is_pause(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

pub(super) fn run(
    load: &Load,
    begin_ns: u64,
    hand: Vec<(usize, Arc<Socket>)>,
    shared: &Shared,
    counts: &Counts,
) -> io::Result<Left> {
    let mut record = Record {
        latency: histogram(),
        lag: histogram(),
        shared,
        counts,
        bytes: (load.request + load.response) as u64,
    };
    let done = match hand.as_slice() {
        [(index, socket)] => one(load, Due::of(load, begin_ns, *index), socket, &mut record),
        _ => many(load, begin_ns, &hand, &mut record),
    };
    let over = shared.over.load(Relaxed);
    Ok(Left {
        latency: Some(record.latency),
        lag: load.rate_per_s.map(|_| record.lag),
        fault: done.err().filter(|_| !over).map(|e| heddle_sys::errno_text(&e)),
    })
}

struct Record<'a> {
    latency: Histogram<u64>,
    lag: Histogram<u64>,
    shared: &'a Shared,
    counts: &'a Counts,
    bytes: u64,
}

impl Record<'_> {
    fn done(&mut self, from_ns: u64, to_ns: u64) {
        self.counts.add(1, self.bytes);
        if self.shared.measuring.load(Relaxed) {
            self.latency
                .saturating_record(to_ns.saturating_sub(from_ns).max(1));
        }
    }
    fn late(&mut self, due_ns: u64, sent_ns: u64) {
        if self.shared.measuring.load(Relaxed) {
            self.lag.saturating_record(sent_ns.saturating_sub(due_ns).max(1));
        }
    }
    fn enough(&self) -> bool {
        self.shared.stop.load(Relaxed)
    }
}

/// Writes the request's number into the message, so that a reply after the timeout is recognized.
pub(super) fn stamp(message: &mut [u8], number: u32) {
    for (byte, n) in message.iter_mut().zip(number.to_be_bytes().iter().rev()) {
        *byte = *n;
    }
}

/// Whether a reply has the number of its request, as far as both have room for it.
fn answers(answer: &[u8], request_len: usize, number: u32) -> bool {
    let n = request_len.min(answer.len()).min(4);
    answer
        .iter()
        .take(n)
        .eq(number.to_be_bytes().iter().rev().take(n))
}

/// Serves one connection, by blocking calls.
fn one(load: &Load, mut due: Option<Due>, socket: &Socket, record: &mut Record<'_>) -> io::Result<()> {
    let mut out = load.buffer();
    let mut buffer = load.buffer();
    let mut number = 0_u32;
    let mut from = monotonic_ns();
    while !record.enough() {
        if let Some(due) = &mut due {
            let at = due.next();
            if monotonic_ns() < at {
                if !sleep_until(at, record.shared) {
                    break;
                }
                record.late(at, monotonic_ns());
            }
            from = at;
        }
        let to = if socket.is_udp() {
            number = number.wrapping_add(1);
            stamp(&mut out[..load.request], number);
            datagram(load, socket, &out, &mut buffer, number, record)?
        } else {
            whole(load, socket, &out, &mut buffer)?;
            Some(monotonic_ns())
        };
        match to {
            Some(to) => {
                record.done(from, to);
                from = to;
            }
            None => {
                record.counts.lose();
                from = monotonic_ns();
            }
        }
    }
    Ok(())
}

/// A transaction over TCP.
fn whole(load: &Load, socket: &Socket, out: &[u8], buffer: &mut [u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < load.request {
        match socket.send(&out[sent..load.request]) {
            Ok(n) => sent += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let mut got = 0;
    while got < load.response {
        match socket.recv(&mut buffer[..load.response - got]) {
            Ok(0) => return Err(closed()),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A transaction over UDP. Returns the time of the reply in ns; `None`: no reply came in time.
fn datagram(
    load: &Load,
    socket: &Socket,
    out: &[u8],
    buffer: &mut [u8],
    number: u32,
    record: &Record<'_>,
) -> io::Result<Option<u64>> {
    while let Err(e) = socket.send(&out[..load.request]) {
        if !is_pause(&e) {
            return Err(e);
        }
        if record.enough() {
            return Ok(None);
        }
    }
    let given_up = monotonic_ns() + u64::try_from(LOST.as_nanos()).unwrap_or(u64::MAX);
    loop {
        match socket.recv(buffer) {
            Ok(n) if answers(&buffer[..n], load.request, number) => return Ok(Some(monotonic_ns())),
            Ok(_) => {}
            Err(e) if is_pause(&e) => {}
            Err(e) => return Err(e),
        }
        if record.enough() || monotonic_ns() > given_up {
            return Ok(None);
        }
    }
}

/// One of several connections.
struct Conn {
    socket: Arc<Socket>,
    due: Option<Due>,
    /// Time from which latency counts.
    from_ns: u64,
    sent_at_ns: u64,
    sent: usize,
    got: usize,
    number: u32,
    busy: bool,
    waits_to_send: bool,
}

fn many(
    load: &Load,
    begin_ns: u64,
    hand: &[(usize, Arc<Socket>)],
    record: &mut Record<'_>,
) -> io::Result<()> {
    let mut out = load.buffer();
    let mut buffer = load.buffer();
    let mut poller = Poller::new(hand.len())?;
    let mut waiting = BinaryHeap::new();
    let mut conns = Vec::new();
    for (i, (index, socket)) in hand.iter().enumerate() {
        socket.set_nonblocking()?;
        poller.add(&**socket, i, true, false)?;
        let mut due = Due::of(load, begin_ns, *index);
        let first = due.as_mut().map_or(0, Due::next);
        waiting.push(Reverse((first, i)));
        conns.push(Conn {
            socket: socket.clone(),
            due,
            from_ns: 0,
            sent_at_ns: 0,
            sent: 0,
            got: 0,
            number: 0,
            busy: false,
            waits_to_send: false,
        });
    }
    let lost_ns = u64::try_from(LOST.as_nanos()).unwrap_or(u64::MAX);
    let mut looked_ns = begin_ns;
    while !record.enough() {
        while let Some(&Reverse((at, i))) = waiting.peek() {
            let now = monotonic_ns();
            if at > now {
                break;
            }
            waiting.pop();
            if at > 0 {
                record.late(at, now);
            }
            let from = if at == 0 { now } else { at };
            begin(load, &mut conns[i], from, now, &mut out, &poller, i)?;
        }
        let due = waiting.peek().map(|Reverse((at, _))| *at);
        let ready = poller.wait(due)?.to_vec();
        for r in ready {
            let Some(conn) = conns.get_mut(r.index) else {
                continue;
            };
            if r.writable && conn.busy {
                push(load, conn, &mut out, &poller, r.index)?;
            }
            if !r.readable || !pull(load, conn, &mut buffer)? {
                continue;
            }
            let now = monotonic_ns();
            record.done(conn.from_ns, now);
            again(load, conn, now, &mut out, &poller, r.index, &mut waiting)?;
        }
        let now = monotonic_ns();
        if conns[0].socket.is_udp() && now > looked_ns + lost_ns / 3 {
            looked_ns = now;
            for (i, conn) in conns.iter_mut().enumerate() {
                if conn.busy && now > conn.sent_at_ns + lost_ns {
                    record.counts.lose();
                    again(load, conn, now, &mut out, &poller, i, &mut waiting)?;
                }
            }
        }
    }
    Ok(())
}

/// Starts the next request of a connection whose reply has come: at once, or when it is due.
fn again(
    load: &Load,
    conn: &mut Conn,
    now: u64,
    out: &mut [u8],
    poller: &Poller,
    index: usize,
    waiting: &mut BinaryHeap<Reverse<(u64, usize)>>,
) -> io::Result<()> {
    conn.busy = false;
    let from = conn.due.as_mut().map_or(now, Due::next);
    if from > now {
        waiting.push(Reverse((from, index)));
        return Ok(());
    }
    begin(load, conn, from, now, out, poller, index)
}

fn begin(
    load: &Load,
    conn: &mut Conn,
    from: u64,
    now: u64,
    out: &mut [u8],
    poller: &Poller,
    index: usize,
) -> io::Result<()> {
    conn.from_ns = from;
    conn.sent_at_ns = now;
    conn.sent = 0;
    conn.got = 0;
    conn.number = conn.number.wrapping_add(1);
    conn.busy = true;
    push(load, conn, out, poller, index)
}

/// Sends what is left of the request.
fn push(load: &Load, conn: &mut Conn, out: &mut [u8], poller: &Poller, index: usize) -> io::Result<()> {
    if conn.socket.is_udp() {
        stamp(&mut out[..load.request], conn.number);
    }
    while conn.sent < load.request {
        match conn.socket.send(&out[conn.sent..load.request]) {
            Ok(n) => conn.sent += n,
            Err(e) if is_pause(&e) => break,
            Err(e) => return Err(e),
        }
    }
    let waits = conn.sent < load.request;
    if waits != conn.waits_to_send {
        conn.waits_to_send = waits;
        poller.modify(&*conn.socket, index, true, waits)?;
    }
    Ok(())
}

/// Receives the bytes that have come; returns whether the reply is whole.
fn pull(load: &Load, conn: &mut Conn, buffer: &mut [u8]) -> io::Result<bool> {
    if conn.socket.is_udp() {
        return match conn.socket.recv(buffer) {
            Ok(n) => Ok(conn.busy && answers(&buffer[..n], load.request, conn.number)),
            Err(e) if is_pause(&e) => Ok(false),
            Err(e) => Err(e),
        };
    }
    let want = (load.response - conn.got).max(1);
    match conn.socket.recv(&mut buffer[..want]) {
        Ok(0) => Err(closed()),
        Ok(n) => {
            conn.got += n;
            Ok(conn.busy && conn.got == load.response)
        }
        Err(e) if is_pause(&e) => Ok(false),
        Err(e) => Err(e),
    }
}
