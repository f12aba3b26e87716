//! Packets one by one, there and back, with every byte checked: for tests.
//!
//! Each packet has its own length, flow and content, so that a mixed up, cut or changed packet is noticed.

use crate::error::RunError;
use crate::flows::{Order, Sequence, Tuple};
use crate::frame::{HDR, STAMP, Shape, Stamp, Template};
use crate::report::Latency;
use crate::run::Port;
use core::time::Duration;
use hdrhistogram::Histogram;
use heddle_sys::Tsc;
use heddle_vhost_user::frontend::NicQueue;
use heddle_virtio::Features;
use heddle_virtio::driver::DriverError;
use serde::Serialize;

/// The packets to exchange.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Packets in each direction.
    pub count: u32,
    /// Shortest and longest frame; lengths between them are random.
    pub sizes: (usize, usize),
    /// Flows.
    pub flows: u32,
    /// Timeout of a packet.
    pub timeout: Duration,
    /// Longest pause before each packet. Pauses are random, so that some packets meet a switch that is just
    /// going to sleep.
    pub pause: Duration,
}

/// Numbers of packets by their fate.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Exchanged {
    /// Packets sent, both directions.
    pub sent: u64,
    /// Packets that arrived unchanged.
    pub received: u64,
    /// Packets that did not arrive in time.
    pub lost: u64,
    /// Packets that arrived changed.
    pub corrupt: u64,
    /// Other packets that arrived: late ones, neighbour discovery.
    pub foreign: u64,
    /// Latency there and back.
    pub round_trip: Option<Latency>,
}

impl Exchanged {
    /// Whether all arrived as they were sent.
    pub fn is_perfect(&self) -> bool {
        self.sent == self.received && self.sent > 0
    }
}

/// Sends packets from `ports[0]` to `ports[1]`, and a reply to each back.
pub fn exchange(ports: &mut [Port], plan: &Plan) -> Result<Exchanged, RunError> {
    let [a, b] = ports else {
        return Err(RunError::Impossible(format!("two ports, not {}", ports.len())));
    };
    let (min, max) = plan.sizes;
    if min < Shape::Udp(min).min() || max > Shape::MAX || min > max {
        return Err(RunError::Impossible(format!("frames of {min} to {max} bytes")));
    }
    let mut out = Exchanged::default();
    let mut trips = Histogram::<u64>::new_with_bounds(1, 1 << 36, 3).expect("bounds that the library allows");
    let span = u32::try_from(max - min + 1).unwrap_or(u32::MAX);
    let mut sizes = Sequence::new(Order::Random, span, 7);
    let mut flows = Sequence::new(Order::Random, plan.flows, 11);
    let mut bytes = Sequence::new(Order::Random, 256, 13);
    let longest = u32::try_from(Tsc::from_us(micros(plan.pause))).unwrap_or(u32::MAX);
    let mut pauses = Sequence::new(Order::Random, longest.max(1), 17);
    let mut pause = || {
        let end = Tsc::now() + u64::from(pauses.number());
        while Tsc::now() < end {
            core::hint::spin_loop();
        }
    };
    for seq in 0..plan.count {
        let size = min + sizes.number() as usize;
        let flow = flows.number();
        let there = frame(size, 0, 1, flow, seq, &mut bytes);
        let back = frame(size, 1, 0, flow, seq, &mut bytes);
        pause();
        let start = Tsc::now();
        if !carry(a, b, 0, &there, plan.timeout, &mut out)? {
            continue;
        }
        let half = Tsc::now() - start;
        pause();
        let start = Tsc::now();
        if carry(b, a, 1, &back, plan.timeout, &mut out)? {
            trips.saturating_record((half + Tsc::now() - start).max(1));
        }
    }
    out.round_trip = (!trips.is_empty()).then(|| Latency::of(&trips, Tsc::hz()));
    Ok(out)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX >> 20)
}

/// A frame with its header: flow, number, and bytes that no other packet has.
fn frame(size: usize, src: u8, dst: u8, flow: u32, seq: u32, bytes: &mut Sequence) -> Vec<u8> {
    let shape = Shape::Udp(size);
    let mut t = Template::new(shape, src, dst, src);
    t.give(Tuple::of(src, flow));
    let at = HDR + shape.payload_at();
    let stamp = Stamp {
        sender: src,
        seq,
        tsc: 0,
    };
    t.bytes[at..at + STAMP].copy_from_slice(&stamp.bytes());
    for b in &mut t.bytes[at + STAMP..] {
        *b = bytes.number().to_le_bytes()[0];
    }
    t.bytes
}

/// Sends `packet` and waits for it; returns whether it arrived unchanged.
fn carry(
    from: &mut Port,
    to: &mut Port,
    number: usize,
    packet: &[u8],
    timeout: Duration,
    out: &mut Exchanged,
) -> Result<bool, RunError> {
    let ring = |port| move |error| RunError::Ring { port, error };
    let mergeable = to.nic.features().contains(Features::MRG_RXBUF);
    let end = Tsc::now() + Tsc::from_us(micros(timeout));
    let count = from.nic.tx.len();
    let queue = &mut from.nic.tx[usize::try_from(out.sent).unwrap_or(0) % count];
    queue.stream.take(usize::MAX, |_, _| ()).map_err(ring(number))?;
    if queue.stream.free() == 0 {
        return Err(RunError::Silent(format!(
            "the switch takes nothing from port {number}"
        )));
    }
    let buffer = queue.stream.upcoming(0);
    queue.stream.write(buffer, 0, packet);
    queue
        .stream
        .set_len(buffer, u32::try_from(packet.len()).unwrap_or(u32::MAX));
    queue.post(1);
    out.sent += 1;
    while Tsc::now() < end {
        for queue in &mut to.nic.rx {
            for got in packets(queue, mergeable).map_err(ring(1 - number))? {
                // The virtio-net header is the device's; the bytes from the addresses on are this program's.
                if got == packet[HDR..] {
                    out.received += 1;
                    return Ok(true);
                }
                let ours = got.get(42..42 + 8) == packet.get(HDR + 42..HDR + 42 + 8);
                if ours {
                    out.corrupt += 1;
                    return Ok(false);
                }
                out.foreign += 1;
            }
        }
        core::hint::spin_loop();
    }
    out.lost += 1;
    Ok(false)
}

/// All frames that have come on a receive queue, whose buffers are posted again.
fn packets(queue: &mut NicQueue, mergeable: bool) -> Result<Vec<Vec<u8>>, DriverError> {
    let mut buffers = Vec::new();
    queue
        .stream
        .take(usize::MAX, |buffer, len| buffers.push((buffer, len as usize)))?;
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut missing = 0;
    for (buffer, len) in buffers {
        let mut bytes = vec![0; len];
        queue.stream.read(buffer, 0, &mut bytes);
        if missing > 0 {
            missing -= 1;
            if let Some(last) = frames.last_mut() {
                last.extend(bytes);
            }
            continue;
        }
        if mergeable && let Some(&[lo, hi]) = bytes.get(HDR - 2..HDR) {
            missing = u16::from_le_bytes([lo, hi]).saturating_sub(1);
        }
        frames.push(bytes.split_off(HDR.min(len)));
    }
    let free = queue.stream.free();
    queue.post(free);
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::{Floor, Kind};
    use crate::load::{Load, Setup};
    use heddle_vhost_user::frontend::HugePages;

    #[test]
    fn every_byte_arrives_and_a_dead_loop_is_noticed() {
        for (packed, mergeable) in [(false, true), (true, true), (false, false)] {
            let setup = Setup {
                packed,
                mergeable,
                huge: HugePages::Never,
                ..Setup::default()
            };
            let load = Load {
                shape: Shape::Udp(9000),
                ..Load::default()
            };
            let core = *heddle_sys::cpu::allowed().unwrap().last().unwrap();
            let (floor, mut engine) = Floor::start(Kind::Rings, 2, core, &setup, &[load]).unwrap();
            let mut plan = Plan {
                count: 50,
                sizes: (60, 9000),
                flows: 10,
                timeout: Duration::from_secs(20),
                pause: Duration::from_micros(20),
            };
            let out = exchange(engine.ports_mut(), &plan).unwrap();
            assert!(out.is_perfect(), "{out:?}");
            assert_eq!(out.round_trip.unwrap().count, 50);
            floor.stop().unwrap();
            plan.count = 2;
            plan.timeout = Duration::from_millis(5);
            let out = exchange(engine.ports_mut(), &plan).unwrap();
            assert_eq!((out.lost, out.received, out.corrupt), (2, 0, 0));
            assert!(!out.is_perfect());
        }
    }
}
