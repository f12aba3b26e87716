//! Tests of messages about rules that timed out: they count all packets, also those that only caches had
//! counted.

use super::super::*;
use super::concurrent::{bridge, rule};
use heddle_datapath::{Config, Datapath};
use heddle_datapath_api::PortNo;
use heddle_openflow::message::FlowModFlags;
use heddle_packet::Packet;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// More rules than are removed in one piece.
const RULES: u32 = 9;

/// A UDP datagram for address `dst`.
fn udp(dst: u32) -> Packet {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    bytes.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1]);
    bytes.extend(dst.to_be_bytes());
    bytes.extend([4, 0, 4, 1, 0, 26, 0, 0]);
    bytes.extend([0; 18]);
    Packet::from_bytes(&bytes)
}

/// Sends a packet to each address whenever a rule goes, as steady traffic would.
struct Traffic {
    datapath: OnceLock<Arc<Datapath>>,
    /// Packets that were sent, by address.
    sent: [AtomicU64; RULES as usize],
    reported: Mutex<Vec<(u32, u64, u64)>>,
}

impl Traffic {
    /// Sends a packet to each address, and counts it.
    fn send(&self) {
        let datapath = self.datapath.get().expect("it is there");
        for (dst, sent) in (0..).zip(&self.sent) {
            datapath
                .inject_translate(udp(dst), PortNo(1))
                .expect("a worker takes it");
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl EventSink for Traffic {
    fn events(&self, events: &[Event]) {
        for e in events {
            let Event::FlowRemoved(m) = e else { continue };
            let dst = m.match_.key.nw_dst;
            let sent = self.sent[dst as usize].load(Ordering::Relaxed);
            self.reported.lock().push((dst, m.packet_count, sent));
        }
        if !events.is_empty() {
            self.send();
        }
    }
}

#[test]
fn removal_messages_count_all_packets_of_rules() {
    for idle in [false, true] {
        let (of, bridge) = bridge();
        of.clock().stop();
        let config = Config {
            clock: of.clock().clone(),
            ..Config::default()
        };
        let datapath = Datapath::new(config, of.pipeline().clone()).expect("the system grants a thread");
        of.attach(datapath.clone());
        let traffic = Arc::new(Traffic {
            datapath: OnceLock::from(datapath),
            sent: Default::default(),
            reported: Mutex::default(),
        });
        for dst in 0..RULES {
            let mut fm = rule(Some(dst), 5, 2);
            fm.flags = FlowModFlags::SEND_FLOW_REM;
            (fm.idle_timeout, fm.hard_timeout) = if idle { (1, 0) } else { (0, 1) };
            bridge.flow_mod(Version::V13, &fm).expect("a rule");
        }
        traffic.send();
        traffic.send();
        let sink: Arc<dyn EventSink> = traffic.clone();
        bridge.subscribe(&sink);
        of.clock().warp(1001);
        while bridge.tick() > 0 {
            of.clock().warp(1001);
        }
        let reported = traffic.reported.lock();
        assert_eq!(reported.len(), RULES as usize);
        assert!(
            reported.iter().all(|(_, counted, sent)| counted == sent),
            "{reported:?}"
        );
        assert!(
            idle || reported.iter().any(|(_, counted, _)| *counted > 2),
            "{reported:?}"
        );
    }
}
