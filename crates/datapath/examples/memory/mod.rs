//! A port of memory: it receives copies of a frame as fast as it is polled, and discards sent packets.

use heddle_packet::{Burst, Csum, Packet, Pool};
use heddle_port::{Port, PortError, PortStatus, RxQueue, TxCounts, TxQueue, WakeFd};
use heddle_wire::checksum::{Sum, checksum};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Received traffic: `flows` flows in random order, with `run` packets of one flow in a row. The flows are of
/// `masks` kinds, which differ in the destination port (one kind: 5001).
#[derive(Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) flows: u32,
    pub(crate) run: u32,
    pub(crate) masks: u16,
    /// Each flow is received once, one after the other.
    pub(crate) once: bool,
    /// The flows are connections.
    pub(crate) connections: Option<Connections>,
}

/// The packets of a flow go both ways at random, and have right checksums.
#[derive(Clone, Copy)]
pub(crate) struct Connections {
    /// TCP rather than UDP.
    pub(crate) tcp: bool,
    /// The port's report about their checksums.
    pub(crate) csum: Csum,
    /// Replies come from the address that the server's address was translated to.
    pub(crate) dnat: bool,
}

/// A port that receives while it is switched on.
pub(crate) struct Memory {
    pub(crate) traffic: Traffic,
    pub(crate) on: Arc<AtomicBool>,
}

struct MemoryRx {
    traffic: Traffic,
    on: Arc<AtomicBool>,
    frame: Vec<u8>,
    random: u64,
    left: u32,
    done: u32,
    /// Packets of connections.
    tracked: u32,
}

impl MemoryRx {
    /// Makes the frame that of the next packet; `false`: there is none.
    fn next(&mut self) -> bool {
        if self.left == 0 {
            let flow = if self.traffic.once {
                self.done += 1;
                if self.done > self.traffic.flows {
                    self.done = self.traffic.flows;
                    return false;
                }
                self.done
            } else {
                // xorshift64*; which flow, without a division.
                self.random ^= self.random >> 12;
                self.random ^= self.random << 25;
                self.random ^= self.random >> 27;
                let r = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
                u32::try_from((r * u64::from(self.traffic.flows)) >> 32).unwrap_or(0)
            };
            let client = (0x0a00_0000 + flow).to_be_bytes();
            self.frame[26..30].copy_from_slice(&client);
            if let Some(c) = self.traffic.connections {
                // The client sends the first packet of a connection.
                self.tracked = self.tracked.saturating_add(1);
                let begun = u64::from(self.tracked) > 16 * u64::from(self.traffic.flows);
                let answers = begun && self.random >> 20 & 1 != 0;
                connection(&mut self.frame, client, c, answers);
            }
            if self.traffic.masks > 1 {
                let kind = u16::try_from(flow % u32::from(self.traffic.masks)).unwrap_or(0);
                self.frame[36..38].copy_from_slice(&kind.to_be_bytes());
            }
            self.left = self.traffic.run;
        }
        self.left -= 1;
        true
    }
}

struct Sink;

impl RxQueue for MemoryRx {
    fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        if !self.on.load(Relaxed) {
            return 0;
        }
        let before = burst.len();
        while !burst.is_full() && self.next() {
            let mut p = pool.get();
            p.set_bytes(&self.frame);
            if let Some(c) = self.traffic.connections {
                p.offload.csum = c.csum;
            }
            burst.push(p);
        }
        burst.len() - before
    }
    fn wake_fd(&self) -> Option<WakeFd> {
        None
    }
}

impl TxQueue for Sink {
    fn tx(&mut self, _: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let bytes = packets.iter().map(|p| p.len() as u64).sum();
        TxCounts {
            sent: packets.len() as u64,
            bytes,
            ..TxCounts::default()
        }
    }
}

impl Port for Memory {
    fn name(&self) -> &str {
        "memory"
    }
    fn kind(&self) -> &'static str {
        "bench"
    }
    fn open_rx(&self, _: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        // A queue that never has packets would only shorten the turns of other queues.
        if self.traffic.flows == 0 {
            return Ok(Vec::new());
        }
        Ok(vec![Box::new(MemoryRx {
            traffic: self.traffic,
            on: Arc::clone(&self.on),
            frame: frame(),
            random: 0x9e37_79b9_7f4a_7c15,
            left: 0,
            done: 0,
            tracked: 0,
        })])
    }
    fn open_tx(&self, _: usize, _: usize) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(Sink))
    }
    fn status(&self) -> PortStatus {
        PortStatus::default()
    }
    fn set_mtu(&self, _: u32) -> Result<(), PortError> {
        Ok(())
    }
    fn set_mac(&self, _: [u8; 6]) -> Result<(), PortError> {
        Ok(())
    }
    fn set_admin(&self, _: bool) -> Result<(), PortError> {
        Ok(())
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// A 60-byte UDP frame (64 with the checksum that a wire adds).
fn frame() -> Vec<u8> {
    let mut p = vec![0; 60];
    p[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    p[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    p[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 1, 0, 1]);
    let c = heddle_wire::checksum::checksum(&p[14..34]);
    p[24..26].copy_from_slice(&c.to_be_bytes());
    p[34..40].copy_from_slice(&[0, 7, 0x13, 0x89, 0, 26]);
    p
}

/// The address of the server whose public one is translated.
pub(crate) const SERVER: [u8; 4] = [10, 2, 0, 1];

/// Makes the frame one of a connection, from its client to its server or back.
fn connection(f: &mut [u8], client: [u8; 4], c: Connections, answers: bool) {
    let ports = [[0x9c, 0x40], [0x13, 0x89]];
    let server = if c.dnat && answers { SERVER } else { [10, 1, 0, 1] };
    let tcp = c.tcp;
    let at = |answers: bool| if answers { (30, 36) } else { (26, 34) };
    for (addr, port, (l3, l4)) in [(client, ports[0], at(answers)), (server, ports[1], at(!answers))] {
        f[l3..l3 + 4].copy_from_slice(&addr);
        f[l4..l4 + 2].copy_from_slice(&port);
    }
    // TCP: sequence number, acknowledgement, a header of 20 bytes, ACK, a window.
    let segment = [0, 0, 0, 1, 0, 0, 0, 7, 0x50, 0x10, 0xff, 0xff];
    let (proto, sum) = if tcp { (6, 50) } else { (17, 40) };
    if tcp {
        f[38..50].copy_from_slice(&segment);
    }
    f[23] = proto;
    f[24..26].fill(0);
    let c = checksum(&f[14..34]);
    f[24..26].copy_from_slice(&c.to_be_bytes());
    f[sum..sum + 2].fill(0);
    let pseudo = Sum::ZERO.bytes(&f[26..34]).word(proto.into()).word(26);
    let c = pseudo.bytes(&f[34..60]).checksum_nonzero();
    f[sum..sum + 2].copy_from_slice(&c.to_be_bytes());
}
