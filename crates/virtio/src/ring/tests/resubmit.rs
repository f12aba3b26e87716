//! A split ring after another back end, which gave chains back in any order, died: chains in flight come
//! once, in order.

use super::*;
use crate::mem::HostRange;
use core::sync::atomic::Ordering::Relaxed;
use proptest::prelude::*;

const SIZE: u16 = 16;

/// The back end before this one, as the specification writes it ("Inflight I/O tracking", split virtqueue).
struct Other {
    map: Arc<Mapping>,
    area: HostRange,
    taken: Vec<u16>,
    next_avail: u16,
    counter: u64,
}

/// The point at which it dies while it gives back its last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Death {
    Linked,
    Published,
    Cleared,
    Whole,
}

impl Other {
    fn new() -> Self {
        let map = Arc::new(Mapping::anonymous(4096).unwrap());
        let area = HostRange::of(Arc::clone(&map), 0, SplitRecord::len(SIZE), 8).unwrap();
        area.store16(8, 1, Relaxed);
        area.store16(10, SIZE, Relaxed);
        Self {
            map,
            area,
            taken: Vec::new(),
            next_avail: 0,
            counter: 1000,
        }
    }
    fn read16(rig: &Rig, at: u64) -> u16 {
        let mut b = [0; 2];
        rig.shared.get().read(at, &mut b).unwrap();
        u16::from_le_bytes(b)
    }
    fn take(&mut self, rig: &Rig) {
        if self.next_avail == Self::read16(rig, rig.cfg.driver + 2) {
            return;
        }
        let entry = rig.cfg.driver + 4 + 2 * u64::from(self.next_avail % SIZE);
        let head = Self::read16(rig, entry);
        let state = 16 + 16 * usize::from(head);
        self.area.store64(state + 8, self.counter);
        self.area.store16(state, 1, Relaxed);
        self.counter += 3;
        self.next_avail = self.next_avail.wrapping_add(1);
        self.taken.push(head);
    }
    /// Gives some of the taken chains back; returns the chains that the driver has then.
    fn give(&mut self, rig: &Rig, picks: &[u8], death: Death) -> Vec<u16> {
        let mut batch = Vec::new();
        for &pick in picks {
            if !self.taken.is_empty() {
                batch.push(self.taken.remove(usize::from(pick) % self.taken.len()));
            }
        }
        for &head in &batch {
            let last = self.area.load16(12, Relaxed);
            self.area.store16(16 + 16 * usize::from(head) + 6, last, Relaxed);
            self.area.store16(12, head, Relaxed);
        }
        let mut used = Self::read16(rig, rig.cfg.device + 2);
        if death < Death::Published {
            self.taken.extend(&batch);
            return Vec::new();
        }
        for &head in &batch {
            let e = u64::from(head).to_le_bytes();
            rig.write(rig.cfg.device + 4 + 8 * u64::from(used % SIZE), &e);
            used = used.wrapping_add(1);
        }
        rig.write(rig.cfg.device + 2, &used.to_le_bytes());
        if death < Death::Cleared {
            return batch;
        }
        for &head in &batch {
            self.area.store16(16 + 16 * usize::from(head), 0, Relaxed);
        }
        if death == Death::Whole {
            self.area.store16(14, used, Relaxed);
        }
        batch
    }
    fn record(&self) -> SplitRecord {
        SplitRecord::new(&self.map, 0, SIZE).unwrap()
    }
    fn in_flight(&self) -> usize {
        (0..usize::from(SIZE))
            .filter(|head| self.area.load16(16 + 16 * head, Relaxed) != 0)
            .count()
    }
}

/// A new device of this back end, at the position of ring and area.
fn start(rig: &Rig, other: &Other) -> DeviceRx {
    let mem = rig.shared.get();
    let tracking = Tracking {
        resubmit: other.record().recover(&rig.cfg, &mem).unwrap(),
        ..Tracking::default()
    };
    let cfg = QueueConfig {
        start: Position {
            index: rig.cfg.used_index(&mem).unwrap(),
            ..Position::default()
        },
        ..rig.cfg
    };
    DeviceRx::tracked(cfg, Arc::clone(&rig.shared), tracking).unwrap()
}

fn deaths() -> impl Strategy<Value = Death> {
    prop_oneof![
        Just(Death::Linked),
        Just(Death::Published),
        Just(Death::Cleared),
        Just(Death::Whole)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn what_another_back_end_had_in_flight_is_taken_again_once_and_in_order(
        turns in proptest::collection::vec((0_u8..6, 0_u8..8, proptest::collection::vec(any::<u8>(), 0..4)), 1..30),
        last in proptest::collection::vec(any::<u8>(), 0..5),
        death in deaths(),
        killed: bool,
        swapped: bool,
    ) {
        let mut rig = Rig::new(Features::empty(), SIZE);
        let mut other = Other::new();
        // The frame shows its token; the heads are the driver's choice.
        let mut sent = 0_u32;
        let mut seen = Vec::new();
        for (post, take, give) in &turns {
            for _ in 0..*post {
                if rig.driver.free() > 0 {
                    rig.send(&pattern(60, sent as usize), sent);
                    sent += 1;
                }
            }
            for _ in 0..*take {
                other.take(&rig);
            }
            other.give(&rig, give, Death::Whole);
            seen.extend(rig.done().into_iter().map(|d| d.token));
        }
        other.give(&rig, &last, death);
        seen.extend(rig.done().into_iter().map(|d| d.token));
        // Chains in flight, oldest first, then chains that were never taken: by token, as the driver numbers
        // its chains in order.
        let rest: Vec<u32> = (0..sent).filter(|t| !seen.contains(t)).collect();
        let mut rx = start(&rig, &other);
        if killed && !rest.is_empty() {
            // The device dies with its chains taken, and writes nothing.
            let (mut pool, mut burst) = (Pool::new(0), Burst::new());
            rx.rx(&mut pool, &mut burst);
            core::mem::forget(burst);
            core::mem::forget(rx);
            rx = start(&rig, &other);
        }
        if swapped {
            rig.shared.replace(rig.shared.get().with_log(None));
        }
        let mut got = Vec::new();
        loop {
            let frames = receive(&mut rx);
            rx.complete();
            if frames.is_empty() {
                break;
            }
            got.extend(frames);
        }
        prop_assert_eq!(rx.error(), None);
        let want: Vec<Vec<u8>> = rest.iter().map(|&t| pattern(60, t as usize)).collect();
        prop_assert_eq!(got, want);
        let back: Vec<u32> = rig.done().into_iter().map(|d| d.token).collect();
        prop_assert_eq!(back, rest);
        prop_assert_eq!(other.in_flight(), 0, "nothing is in flight by number any more");
        // The ring continues.
        rig.send(&pattern(60, 7), 77);
        prop_assert_eq!(receive(&mut rx).len(), 1);
        rx.complete();
        prop_assert_eq!(rig.done().len(), 1);
    }

    #[test]
    fn any_area_breaks_nothing(bytes in proptest::collection::vec(any::<u8>(), SplitRecord::len(SIZE) as usize), posted in 0_usize..16, sane: bool) {
        let mut rig = Rig::new(Features::empty(), SIZE);
        let other = Other::new();
        for (i, b) in bytes.chunks_exact(8).enumerate() {
            other.area.store64(8 * i, u64::from_le_bytes(b.try_into().unwrap()));
        }
        if sane {
            other.area.store16(8, 1, Relaxed);
            other.area.store16(10, SIZE, Relaxed);
        }
        for i in 0..posted {
            rig.send(&pattern(60, i), i as u32);
        }
        let mut rx = start(&rig, &other);
        let got = receive(&mut rx).len();
        rx.complete();
        prop_assert!(got <= posted);
    }
}
