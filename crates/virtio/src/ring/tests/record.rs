//! A device is killed at any store: the next one continues at its position.

use super::*;
use crate::ring::record::{LAST, Noted};
use core::sync::atomic::Ordering::Relaxed;
use proptest::prelude::*;

const SIZE: u16 = 16;

fn record(size: u16, layout: RecordLayout) -> Record {
    let map = Arc::new(Mapping::anonymous(4096).unwrap());
    Record::new(&map, 64, size, layout).unwrap()
}
fn tracked(rig: &Rig, record: &Record) -> DeviceRx {
    let tracking = Tracking {
        record: Some(record.clone()),
        ..Tracking::default()
    };
    DeviceRx::tracked(rig.cfg, Arc::clone(&rig.shared), tracking).unwrap()
}
fn ring_bytes(rig: &Rig) -> Vec<u8> {
    let mut ring = vec![0; 16 * usize::from(rig.cfg.size)];
    rig.shared.get().read(rig.cfg.desc, &mut ring).unwrap();
    ring
}

proptest! {
    /// Chains of several descriptors, at any position. The device is killed after it gave back any number of
    /// descriptors, and the driver continues meanwhile where it can. The ring ends as if nothing had
    /// happened.
    #[test]
    fn a_batch_is_finished_by_the_next_device(
        chains in proptest::collection::vec(1_usize..4, 1..60),
        in_order: bool,
        dense: bool,
        cut in 0_usize..20,
        noted: bool,
    ) {
        let order = if in_order { Features::IN_ORDER } else { Features::empty() };
        let mut rig = Rig::new(Features::RING_PACKED | order, SIZE);
        let layout = if dense { RecordLayout::Dense } else { RecordLayout::Inflight };
        let record = record(SIZE, layout);
        record.start(rig.cfg.start);
        let mut dev = tracked(&rig, &record);
        let (mut token, mut sent) = (0_u32, 0);
        let mut left = chains.as_slice();
        while !left.is_empty() {
            // All chains that fit.
            let mut took = 0;
            for &n in left {
                let bufs: Vec<Buf> = (0..n).map(|i| rig.buf(&vec![0; if i == 0 { 60 } else { 10 }])).collect();
                if rig.add(&bufs, &[], ChainLocation::Direct, token).is_err() {
                    break;
                }
                token += 1;
                took += 1;
            }
            rig.driver.publish();
            left = &left[took..];
            let before = ring_bytes(&rig);
            let old = record.noted().new;
            let last = record.area.load32(LAST, Relaxed);
            prop_assert_eq!(receive(&mut dev).len(), took);
            dev.complete();
            let after = ring_bytes(&rig);
            let new = record.noted().new;

            // The end came when `cut` of the slots that change were written; the first one's flags are the
            // last store.
            let mut ring = before.clone();
            let changed: Vec<usize> = (0..usize::from(SIZE)).filter(|s| before[16 * s..16 * s + 16] != after[16 * s..16 * s + 16]).collect();
            let first = usize::from(old.index);
            let cut = cut % (changed.len() + 2);
            for &s in changed.iter().take(cut) {
                let to = if s == first { 14 } else { 16 };
                ring[16 * s..16 * s + to].copy_from_slice(&after[16 * s..16 * s + to]);
            }
            let published = cut > changed.len();
            if published {
                ring.copy_from_slice(&after);
            }
            // No write comes before its note.
            if noted || cut > 0 {
                record.note(Noted { new, old });
            } else {
                record.note(Noted { new: old, old });
            }
            rig.write(rig.cfg.desc, &ring);
            record.area.store32(LAST, last, Relaxed);

            let start = record.recover(&rig.cfg, &rig.shared.get()).unwrap();
            prop_assert_eq!(start, Recovery::At(old));
            rig.cfg.start = old;
            dev = tracked(&rig, &record);
            if record.noted().new == old {
                prop_assert_eq!(receive(&mut dev).len(), took); // not given back: taken again
                dev.complete();
            }
            prop_assert_eq!(ring_bytes(&rig), after);
            prop_assert_eq!(record.noted(), Noted { new, old: new });
            // The record of a finished batch is recognised, too.
            prop_assert_eq!(record.recover(&rig.cfg, &rig.shared.get()).unwrap(), Recovery::At(new));
            let done = rig.done();
            prop_assert_eq!(done.len(), took);
            sent += took;
        }
        prop_assert_eq!(sent, chains.len());
    }

    /// A guest that was reset has a new ring in the same place: however far it has filled it, the old
    /// position is not taken.
    #[test]
    fn a_record_of_another_ring_is_not_believed(used in 1_u16..200, filled in 0_u16..=SIZE) {
        let mut rig = Rig::new(Features::RING_PACKED, SIZE);
        let record = record(SIZE, RecordLayout::Dense);
        record.start(rig.cfg.start);
        let mut dev = tracked(&rig, &record);
        for token in 0..used {
            rig.send(&[7; 60], u32::from(token));
            prop_assert_eq!(receive(&mut dev).len(), 1);
            dev.complete();
            rig.done();
        }
        let at = dev.stop();
        rig.write(rig.cfg.desc, &[0; 16 * SIZE as usize]);
        rig.driver = Driver::new(&rig.cfg, &rig.shared.get()).unwrap();
        for token in 0..filled {
            rig.send(&[7; 60], u32::from(token));
        }
        let found = record.recover(&rig.cfg, &rig.shared.get()).unwrap();
        if at == Position::default() {
            return Ok(()); // the same position, whichever ring it is
        }
        prop_assert_eq!(found, Recovery::Contradicted, "position {:?}", at);
    }

    /// A record that holds anything: a result or none, no panic, and a queue that stays inside its ring.
    #[test]
    fn a_hostile_record_does_no_harm(words in proptest::collection::vec(any::<u64>(), 4 + SIZE as usize), sane: bool) {
        let rig = Rig::new(Features::RING_PACKED, SIZE);
        let map = Arc::new(Mapping::anonymous(4096).unwrap());
        let area = crate::mem::HostRange::of(Arc::clone(&map), 0, 4096, 8).unwrap();
        for (i, w) in words.iter().enumerate() {
            area.store64(8 * i, *w);
        }
        if sane {
            area.store64(16, words[2] & 0x0001_0001_000f_000f);
        }
        let record = Record::new(&map, 0, SIZE, RecordLayout::Dense).unwrap();
        let _ = record.recover(&rig.cfg, &rig.shared.get()).unwrap();
        let mut dev = tracked(&rig, &record);
        prop_assert_eq!(receive(&mut dev).len(), 0);
    }
}

#[test]
fn a_record_lies_inside_its_mapping() {
    let map = Arc::new(Mapping::anonymous(4096).unwrap());
    assert!(Record::new(&map, 0, 127, RecordLayout::Inflight).is_ok());
    for (offset, size) in [(0, 128), (8, 127), (u64::MAX - 7, 16), (4, 16)] {
        assert!(
            Record::new(&map, offset, size, RecordLayout::Inflight).is_err(),
            "{offset} {size}"
        );
    }
}
