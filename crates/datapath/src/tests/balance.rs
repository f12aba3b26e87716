//! Outputs to a bond whose buckets move while packets are forwarded.

use super::flows::setup;
use super::{ToyRule, udp};
use heddle_datapath_api::{Action, LbOutput, PortNo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of flows, and of packets of each.
const FLOWS: u16 = 16;
const PACKETS: u32 = 5_000;
/// Offset of a packet's number within its flow.
const NUMBER_AT: usize = 44;

/// All buckets move from port to port all the time, also within bursts. Each flow's packets are sent in
/// order.
#[test]
fn a_moved_bucket_keeps_the_order_of_flows() {
    let table = LbOutput::new(1);
    let s = setup(vec![ToyRule::any(vec![Action::LbOutput(Arc::clone(&table))])]);
    let other = s.b.twin("c");
    assert_eq!(s.dp.add_port(other as _, Some(PortNo(3))).unwrap(), PortNo(3));
    s.dp.set_workers(Some(&[0])).unwrap();
    let ending = Arc::new(AtomicBool::new(false));
    let mover = {
        let (table, ending) = (Arc::clone(&table), Arc::clone(&ending));
        std::thread::spawn(move || {
            for port in [2, 3].into_iter().cycle() {
                (0..=u8::MAX).for_each(|bucket| table.set_port(bucket, Some(port)));
                if ending.load(Relaxed) {
                    break;
                }
            }
        })
    };
    while table.port(u8::MAX).is_none() {
        std::thread::yield_now();
    }
    let packet = |i: u32| {
        let flow = u16::try_from(i % u32::from(FLOWS)).unwrap();
        let mut packet = udp(1, 2, flow, 80);
        packet[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&(i / u32::from(FLOWS)).to_be_bytes());
        packet
    };
    let total = u32::from(FLOWS) * PACKETS;
    s.a.send((0..total).map(packet));
    let sent = s.b.wait(total as usize);
    ending.store(true, Relaxed);
    mover.join().unwrap();
    let mut next = [0; FLOWS as usize];
    for packet in sent {
        let flow = usize::from(u16::from_be_bytes([packet[34], packet[35]]));
        let number = u32::from_be_bytes(packet[NUMBER_AT..NUMBER_AT + 4].try_into().unwrap());
        assert_eq!(number, next[flow], "of flow {flow}");
        next[flow] += 1;
    }
    assert_eq!(next, [PACKETS; FLOWS as usize]);
}
