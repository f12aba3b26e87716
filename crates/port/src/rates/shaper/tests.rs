//! The scheduler beside a fluid model, and beside a list of packets.

use super::*;
use proptest::prelude::*;

const LEN: usize = 1000;
/// The time in which rates are measured.
const SECONDS: u64 = 2;

fn packet(queue: u32, len: usize, number: u32) -> Packet {
    let mut bytes = vec![0; len];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    let mut packet = Packet::from_bytes(&bytes);
    packet.set_queue(queue);
    packet
}

fn class(min: u64, max: Option<u64>, priority: u32) -> Class {
    Class {
        min,
        max,
        burst: 1518,
        priority,
        codel: None,
    }
}

fn hierarchy(max: Option<u64>, classes: &[Class]) -> Hierarchy {
    Hierarchy {
        max,
        burst: 1518,
        classes: (0..).zip(classes.iter().copied()).collect(),
    }
}

/// Bytes of a queue's turn.
fn quantum(c: &Class) -> u64 {
    (c.min / RATE_TO_QUANTUM).clamp(MIN_QUANTUM, MAX_QUANTUM)
}

/// The rates of queues that have packets at all times. They get their minimum, then the rest by priority.
/// Within a priority they get it in proportion to their turns, up to their maximum.
fn fluid(h: &Hierarchy, busy: &[u32]) -> Vec<f64> {
    let whole = h.max.expect("a rate") as f64;
    let weight = |c: &Class| quantum(c) as f64;
    let class = |q: &u32| h.classes[q];
    let mut rates: Vec<f64> = busy.iter().map(|q| class(q).min as f64).collect();
    let mut rest = whole - rates.iter().sum::<f64>();
    let mut priorities: Vec<u32> = busy.iter().map(|q| class(q).priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    for priority in priorities {
        let mut open: Vec<usize> = (0..busy.len())
            .filter(|i| class(&busy[*i]).priority == priority)
            .collect();
        while rest > 1.0 && !open.is_empty() {
            let weights: f64 = open.iter().map(|i| weight(&class(&busy[*i]))).sum();
            let share = rest / weights;
            let mut given = 0.0;
            let mut still_open = Vec::new();
            for i in open {
                let c = class(&busy[i]);
                let (wish, most) = (
                    share * weight(&c),
                    c.max.map_or(f64::MAX, |m| m as f64) - rates[i],
                );
                rates[i] += wish.min(most);
                given += wish.min(most);
                if wish < most {
                    still_open.push(i);
                }
            }
            rest -= given;
            open = still_open;
        }
    }
    rates
}

/// Bytes per second that each of `busy` gets in `seconds`, with a worker that looks every `step`.
fn measure(h: &Hierarchy, busy: &[u32], step: u64, seconds: u64, len: usize) -> Vec<f64> {
    let (mut now, mut pool) = (1000 * SECOND, Pool::new(64));
    let mut shaper = Shaper::new(h, now);
    let end = now + seconds * SECOND;
    let mut sent = vec![0_u64; busy.len()];
    while now < end {
        for q in busy {
            let packet = packet(*q, len, *q);
            while shaper.queues[*q as usize].fifo.bytes() < 40_000 {
                assert!(shaper.push(&packet, now));
            }
        }
        while let Some(packet) = shaper.pop(&mut pool, now) {
            let number = u32::from_be_bytes(*packet.head().first_chunk().unwrap());
            let at = busy.iter().position(|q| *q == number).unwrap();
            sent[at] += packet.len() as u64;
            pool.put(packet);
            let q = busy[at];
            if shaper.queues[q as usize].fifo.bytes() < 20_000 {
                let packet = self::packet(q, len, q);
                while shaper.queues[q as usize].fifo.bytes() < 40_000 {
                    assert!(shaper.push(&packet, now));
                }
            }
        }
        now += step;
    }
    sent.iter().map(|n| *n as f64 / seconds as f64).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Rates within 2 % of the whole rate, four frames and one turn, for workers that are fast and late. The
    /// frames are the bursts of queue and port, and those that begin and end the interval. The interval may
    /// also end within a turn, which the fluid model does not have.
    #[test]
    fn queues_get_the_rates_of_the_fluid_model(
        kbytes in 125_u64..20_000,
        queues in prop::collection::vec((0_u64..100, 1_u64..200, 0_u32..3, any::<bool>()), 1..8),
        step_us in 20_u64..2000,
    ) {
        let whole = kbytes * 1000;
        let n = queues.len() as u64;
        let classes: Vec<Class> = queues.iter().map(|(min, max, priority, _)| {
            let min = (whole * min / 100 / n).max(1518);
            class(min, (*max < 100).then(|| (whole * max / 100).max(min)), *priority)
        }).collect();
        let h = hierarchy(Some(whole), &classes);
        let busy: Vec<u32> = (0..).zip(&queues).filter(|(_, q)| q.3).map(|(i, _)| i).collect();
        let got = measure(&h, &busy, step_us * MS / 1000, SECONDS, LEN);
        let want = fluid(&h, &busy);
        let turn = busy.iter().map(|q| quantum(&h.classes[q])).max().unwrap_or(0);
        for (got, want) in got.iter().zip(&want) {
            let bound = whole as f64 * 0.02 + (4.0 * 1518.0 + turn as f64) / SECONDS as f64;
            prop_assert!((got - want).abs() < bound, "{got:.0} of {want:.0} at {whole}: {got:?} {want:?} {h:?} {busy:?}");
        }
    }

    /// Each packet comes out once or is counted as dropped, and those of a queue in their order.
    #[test]
    fn nothing_is_lost_nor_twice(
        steps in prop::collection::vec((0_u32..5, 60_usize..9000, 0_u64..3000, 0_usize..4), 1..600),
    ) {
        let classes = [class(1518, None, 0), class(50_000, Some(60_000), 1), class(1518, Some(2000), 0)];
        let mut h = hierarchy(Some(1_000_000), &classes);
        let (mut now, mut pool) = (1000 * SECOND, Pool::new(64));
        let mut shaper = Shaper::new(&h, now);
        let (mut pushed, mut popped, mut full, mut number) = (0_u64, 0_u64, 0_u64, 0_u32);
        let (mut gone, mut late) = (0_u64, 0_u64);
        let mut last: BTreeMap<u32, u32> = BTreeMap::new();
        let check = |packet: &Packet, last: &mut BTreeMap<u32, u32>| {
            let (head, queue) = (packet.head(), u32::from(packet.head()[4]));
            let number = u32::from_be_bytes(*head.first_chunk().unwrap());
            last.insert(queue, number).is_none_or(|before| before < number)
        };
        for (queue, len, us, pops) in steps {
            // Packets of queues that do not exist are queue 0's.
            let mut packet = packet(queue, len, number);
            let own = if h.classes.contains_key(&queue) { queue } else { 0 };
            packet.head_mut()[4] = own.to_le_bytes()[0];
            number += 1;
            if shaper.push(&packet, now) { pushed += 1 } else { full += 1 }
            now += us * MS / 1000;
            for _ in 0..pops {
                let Some(packet) = shaper.pop(&mut pool, now) else {
                    prop_assert!(shaper.next_at().is_none_or(|at| at > now));
                    break;
                };
                prop_assert!(check(&packet, &mut last));
                popped += 1;
            }
            if number % 97 == 0 {
                // Another rate, and queue 2 comes and goes.
                h.max = Some(500_000 + u64::from(number) * 1000);
                if h.classes.remove(&2).is_none() {
                    h.classes.insert(2, class(1518, Some(2000), 0));
                }
                let mut new = Shaper::new(&h, now);
                late += shaper.late;
                gone += new.take_over(shaper, now);
                shaper = new;
            }
        }
        while let Some(at) = shaper.next_at() {
            now = now.max(at);
            while let Some(packet) = shaper.pop(&mut pool, now) {
                prop_assert!(check(&packet, &mut last));
                popped += 1;
            }
        }
        prop_assert_eq!(shaper.waiting(), 0);
        prop_assert_eq!(shaper.bytes, 0);
        prop_assert_eq!(pushed, popped + gone + late + shaper.late);
        prop_assert_eq!(u64::from(number), pushed + full);
    }
}

#[test]
fn a_thousand_queues_share_and_keep_their_minimum() {
    let mut classes = vec![class(10_000, None, 1); 1000];
    classes[7] = class(5_000_000, None, 1);
    let h = hierarchy(Some(125_000_000), &classes);
    let busy: Vec<u32> = (0..1000).collect();
    let got = measure(&h, &busy, MS, 2, 1500);
    let want = fluid(&h, &busy);
    assert!((got[7] / want[7] - 1.0).abs() < 0.02, "{} {}", got[7], want[7]);
    let (sum, wanted) = (got.iter().sum::<f64>(), 125_000_000.0);
    assert!((sum / wanted - 1.0).abs() < 0.005, "{sum}");
    let (least, most) = got
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != 7)
        .fold((f64::MAX, 0_f64), |(l, m), (_, x)| (l.min(*x), m.max(*x)));
    assert!(most / least < 1.1, "{least} {most}");
}

#[test]
fn the_lowest_priority_waits_but_gets_its_minimum() {
    let h = hierarchy(
        Some(1_000_000),
        &[class(1518, None, 2), class(50_000, None, 5), class(1518, None, 0)],
    );
    let got = measure(&h, &[0, 1, 2], MS / 10, 10, LEN);
    assert!(
        (got[1] / 50_000.0 - 1.0).abs() < 0.03 && got[0] < 3000.0,
        "{got:?}"
    );
    assert!(got[2] > 940_000.0, "{got:?}");
}

#[test]
fn a_gso_packet_longer_than_the_burst_leaves_and_owes() {
    let h = hierarchy(Some(125_000), &[class(1518, Some(125_000), 0)]);
    let (mut now, mut pool) = (1000 * SECOND, Pool::new(4));
    let mut shaper = Shaper::new(&h, now);
    let gso = packet(0, 60_000, 1);
    assert!(shaper.push(&gso, now) && shaper.push(&gso, now) && !shaper.push(&gso, now));
    assert!(shaper.pop(&mut pool, now).is_some() && shaper.pop(&mut pool, now).is_none());
    // The second one leaves when the first one is paid for.
    let due = shaper.next_at().unwrap();
    assert!(
        (due - now).abs_diff((60_000 - 1518) * 8 * MS / 1000) < MS,
        "{}",
        due - now
    );
    assert!(shaper.pop(&mut pool, due - MS).is_none() && shaper.pop(&mut pool, due).is_some());
    // A packet that has waited for too long is dropped.
    assert!(shaper.push(&gso, now) && shaper.next_at().is_some());
    now += MAX_WAIT + MS;
    assert!(shaper.pop(&mut pool, now).is_none());
    assert_eq!((shaper.late, shaper.waiting(), shaper.next_at()), (1, 0, None));
}

#[test]
fn an_unused_queue_gains_its_burst_only() {
    let mut h = hierarchy(None, &[class(1518, Some(1_000_000), 0)]);
    h.classes.get_mut(&0).unwrap().burst = 10_000;
    let (now, mut pool) = (1000 * SECOND, Pool::new(4));
    let mut shaper = Shaper::new(&h, now - SECOND);
    (0..50).for_each(|i| assert!(shaper.push(&packet(0, LEN, i), now)));
    let n = std::iter::from_fn(|| shaper.pop(&mut pool, now)).count();
    assert!((10..=11).contains(&n), "{n}");
}

/// A sender that slows down at each loss, as TCP does, gets the rate with a short delay. Without control, its
/// packets wait in a full queue.
#[test]
fn control_of_the_delay_keeps_a_queue_short() {
    let delays = |control: Option<codel::Settings>| {
        let limited = Class {
            codel: control,
            ..class(1_000_000, Some(1_000_000), 0)
        };
        let (mut now, mut pool) = (1000 * SECOND, Pool::new(64));
        let mut shaper = Shaper::new(&hierarchy(None, &[limited]), now);
        // Packets a millisecond, times 1,000: one more each 20 ms, and half of it after a loss.
        let (mut per_ms, mut due) = (500_u64, 0);
        let (mut sent, mut waited, mut lost) = (0_u64, 0, 0);
        for ms in 0..10_000_u64 {
            now += MS;
            per_ms += 5;
            due += per_ms;
            while due >= 1000 {
                due -= 1000;
                lost += u64::from(!shaper.push(&packet(0, LEN, 0), now));
            }
            while shaper.pop(&mut pool, now).is_some() {
                sent += 1;
            }
            lost += std::mem::take(&mut shaper.late);
            if lost > 0 && ms % 20 == 0 {
                (per_ms, lost) = (per_ms / 2, 0);
            }
            if ms >= 2000 {
                let first = shaper.queues[0].fifo.first();
                waited += first.map_or(0, |f| now - f.since) / MS;
            }
        }
        (sent, waited / 8000)
    };
    let (sent, long) = delays(None);
    assert!(sent > 8_000 && long > 40, "{sent} packets, {long} ms");
    let (sent, short) = delays(Some(codel::Settings {
        target: 5 * MS,
        interval: 50 * MS,
    }));
    assert!(sent > 7_500 && short < 20, "{sent} packets, {short} ms");
}
