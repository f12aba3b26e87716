//! Rates as workers and the control side use them.

use super::*;
use crate::qos::SFQ;
use std::time::{Duration, Instant};

fn details(pairs: &[(&str, &str)]) -> Details {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn qos(kind: &str, all: &[(&str, &str)], queues: &[(u32, &[(&str, &str)])]) -> QosConfig {
    QosConfig {
        kind: kind.into(),
        details: details(all),
        queues: queues.iter().map(|(id, d)| (*id, details(d))).collect(),
    }
}

fn sent(packets: &[&Packet]) -> TxCounts {
    TxCounts {
        sent: packets.len() as u64,
        bytes: packets.iter().map(|p| p.len() as u64).sum(),
        ..TxCounts::default()
    }
}

#[test]
fn rows_become_hierarchies() {
    let row = qos(
        HTB,
        &[("max-rate", "80000000")],
        &[(
            7,
            &[
                ("min-rate", "800000"),
                ("max-rate", "8000000"),
                ("priority", "2"),
                ("burst", "160000"),
                (CODEL_TARGET, "5000"),
            ],
        )],
    );
    let h = hierarchy(&row);
    assert_eq!(h.max, Some(10_000_000));
    assert_eq!(
        h.classes[&7],
        Class {
            min: 100_000,
            max: Some(1_000_000),
            burst: 20_000,
            priority: 2,
            codel: Some(codel::Settings {
                target: 5 * clock::MS,
                interval: 100 * clock::MS
            })
        }
    );
    assert_eq!((h.classes[&0].min, h.classes[&0].max), (FRAME_BYTES, None));
    let shown = shown(HTB, &h);
    assert_eq!(shown.details, details(&[("max-rate", "80000000")]));
    assert_eq!(
        shown.queues[&7],
        details(&[
            ("burst", "160000"),
            (CODEL_INTERVAL, "100000"),
            (CODEL_TARGET, "5000"),
            ("max-rate", "8000000"),
            ("min-rate", "800000"),
            ("priority", "2")
        ])
    );
    // Rates above the port's are the port's; without a rate there is no limit.
    let over = [("min-rate", "99999999999"), ("max-rate", "1")];
    assert_eq!(
        hierarchy(&qos(HFSC, &[("max-rate", "8000")], &[(0, &over)])).classes[&0].min,
        1000
    );
    assert_eq!(hierarchy(&qos(HTB, &[("max-rate", "10M")], &[])).max, None);
}

#[test]
fn types_are_refused_by_name() {
    let rates = Rates::default();
    assert!(!rates.is_on());
    rates
        .set_qos("p", Some(&qos(HTB, &[("max-rate", "1000000")], &[])))
        .unwrap();
    assert!(rates.is_on() && rates.shapes());
    let error = rates.set_qos("p", Some(&qos(SFQ, &[], &[]))).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("egress-policer, trtcm-policer, linux-htb"),
        "{error}"
    );
    assert!(!rates.is_on() && rates.shown().is_none());
    let error = rates
        .set_qos("p", Some(&qos(EGRESS_POLICER, &[("cir", "5")], &[])))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "could not set QoS of p: cir and cbs have to be numbers above 0"
    );
    rates.set_qos("p", Some(&qos(NOOP, &[], &[]))).unwrap();
    assert!(!rates.is_on());
}

#[test]
fn packets_above_a_policer_s_rate_are_dropped() {
    let rates = Rates::default();
    let row = qos(EGRESS_POLICER, &[("cir", "1000"), ("cbs", "10000")], &[]);
    rates.set_qos("p", Some(&row)).unwrap();
    assert_eq!(rates.shown().unwrap(), row);
    let (packet, mut pool) = (Packet::from_bytes(&[0; 1014]), Pool::new(4));
    let packets = vec![&packet; 100];
    let counts = rates.tx(&mut pool, &packets, &mut |_, p| sent(p));
    assert_eq!((counts.sent, counts.full, counts.waits), (10, 90, false));
    // The same row leaves the bucket as it is.
    rates.set_qos("p", Some(&row)).unwrap();
    assert_eq!(rates.tx(&mut pool, &packets, &mut |_, p| sent(p)).sent, 0);
}

#[test]
fn waiting_packets_leave_in_time_and_end_with_the_row() {
    let rates = Rates::default();
    let mut pool = Pool::new(4);
    let queue: &[(&str, &str)] = &[("max-rate", "80000000")];
    let row = qos(HTB, &[], &[(3, queue)]);
    rates.set_qos("p", Some(&row)).unwrap();
    let mut packet = Packet::from_bytes(&[0; 1000]);
    packet.set_queue(3);
    let packets = vec![&packet; 100];
    let begin = Instant::now();
    let none = &mut |_: &mut Pool, _: &[&Packet]| -> TxCounts { panic!("nothing is sent") };
    assert!(rates.tx(&mut pool, &packets, none).waits);
    // 100,000 bytes at 10 MB/s: 10 ms.
    let mut total = 0;
    let mut next = Some(0);
    while let Some(at) = next {
        while Tsc::now() < at {
            std::hint::spin_loop();
        }
        let released = rates.release(0, &mut pool, &mut |_, p| sent(p));
        total += released.counts.sent;
        next = released.next;
    }
    assert_eq!(total, 100);
    assert!(
        begin.elapsed() > Duration::from_millis(9),
        "{:?}",
        begin.elapsed()
    );
    let counts = rates.counts();
    assert_eq!(
        (counts[1].queue, counts[1].packets, counts[1].bytes),
        (3, 100, 100_000)
    );
    // The row goes, and the packets with it.
    assert!(rates.tx(&mut pool, &packets, none).waits);
    let first = rates.release(0, &mut pool, &mut |_, p| sent(p));
    rates.set_qos("p", None).unwrap();
    assert!(!rates.is_on() && rates.counts().is_empty());
    let last = rates.release(0, &mut pool, none);
    assert_eq!((first.counts.sent + last.counts.full, last.next), (100, None));
    // The worker that was to come back goes.
    rates.set_qos("p", Some(&row)).unwrap();
    let rates = Arc::new(rates);
    let share = Share::new(Arc::clone(&rates), 5);
    assert!(share.tx(&mut pool, &packets, none).waits);
    let first = share.release(5, &mut pool, &mut |_, p| sent(p));
    assert!(first.next.is_some());
    drop(share);
    let last = rates.release(1, &mut pool, none);
    assert_eq!((first.counts.sent + last.counts.full, last.next), (100, None));
}

/// A worker leaves packets while another thread has the shaper, or puts them into a queue, and ends before it
/// comes back. They are dropped and counted, and not sent by the next sender.
#[test]
fn packets_of_a_worker_that_goes_before_it_comes_back_are_dropped() {
    let rates = Arc::new(Rates::default());
    let mut pool = Pool::new(4);
    rates
        .set_qos("p", Some(&qos(HTB, &[("max-rate", "80000000")], &[])))
        .unwrap();
    let packet = Packet::from_bytes(&[0; 1000]);
    let none = &mut |_: &mut Pool, _: &[&Packet]| -> TxCounts { panic!("nothing is sent") };
    for in_use in [true, false] {
        let share = Share::new(Arc::clone(&rates), 5);
        let shaping = rates.shaping.get().unwrap();
        let guard = in_use.then(|| shaping.cell.try_take().unwrap());
        assert!(share.tx(&mut pool, &[&packet; 3], none).waits);
        drop(guard);
        assert_eq!(shaping.handed.len(), if in_use { 3 } else { 0 });
        drop(share);
        let last = rates.release(1, &mut pool, none);
        assert_eq!((last.counts.full, last.next), (3, None), "{in_use}");
    }
    assert_eq!(rates.dropped(), 6);
}

/// Four workers on one shaper: each packet comes out once, a worker's packets in their order.
#[test]
fn workers_share_a_shaper() {
    const EACH: u32 = 20_000;
    let rates = Arc::new(Rates::default());
    let row = qos(HTB, &[("max-rate", "80000000000")], &[(1, &[]), (2, &[])]);
    rates.set_qos("p", Some(&row)).unwrap();
    let out: Mutex<Vec<(u32, u32)>> = Mutex::default();
    let full = AtomicU64::new(0);
    let work = |worker: u32| {
        let mut pool = Pool::new(64);
        let mut send = |_: &mut Pool, packets: &[&Packet]| {
            let name = |p: &&Packet| {
                let words = p.head();
                let word = |at: usize| u32::from_be_bytes(*words[at..].first_chunk().unwrap());
                (word(0), word(4))
            };
            out.lock().extend(packets.iter().map(name));
            sent(packets)
        };
        let mut next = None;
        let mut number = 0;
        while number < EACH || next.is_some() {
            if number < EACH {
                let bytes = |n: u32| [worker.to_be_bytes(), n.to_be_bytes(), [0; 4]].concat().repeat(9);
                let burst: Vec<Packet> = (number..number + 20)
                    .map(|n| {
                        let mut packet = Packet::from_bytes(&bytes(n));
                        packet.set_queue(worker % 3);
                        packet
                    })
                    .collect();
                number += 20;
                let packets: Vec<&Packet> = burst.iter().collect();
                let counts = rates.tx(&mut pool, &packets, &mut send);
                full.fetch_add(counts.full, Relaxed);
                if counts.waits {
                    next = Some(0);
                }
            }
            if next.is_some_and(|at| Tsc::now() >= at) {
                let released = rates.release(worker as usize, &mut pool, &mut send);
                full.fetch_add(released.counts.full, Relaxed);
                next = released.next;
            }
        }
    };
    std::thread::scope(|s| (0..4).for_each(|w| _ = s.spawn(move || work(w))));
    let out = out.into_inner();
    assert_eq!(out.len() as u64 + full.load(Relaxed), u64::from(4 * EACH));
    for worker in 0..4 {
        let mine = out.iter().filter(|(w, _)| *w == worker).map(|(_, n)| *n);
        assert!(mine.is_sorted_by(|a, b| a < b), "worker {worker}");
    }
    assert!(!out.is_empty(), "how many depends on the machine");
}
