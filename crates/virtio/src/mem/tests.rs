//! Tables of memory: translation against a plain search, replacement, the dirty log.

use super::*;
use heddle_sys::Mapping;
use proptest::prelude::*;
use std::sync::Arc;

fn region(base: u64, len: usize) -> Region {
    Region::new(
        base,
        base + 0x7000_0000,
        Arc::new(Mapping::anonymous(len).unwrap()),
    )
    .unwrap()
}

#[test]
fn tables_that_make_no_sense_are_refused() {
    let over = GuestMemory::new(vec![region(0x2000, 4096), region(0x1000, 4097)]);
    assert_eq!(over.unwrap_err(), MemError::Overlap { base: 0x2000 });
    let map = Arc::new(Mapping::anonymous(4096).unwrap());
    let wraps = Region::new(u64::MAX - 4094, 0, Arc::clone(&map));
    assert!(matches!(wraps, Err(MemError::Wraps { .. })));
    assert!(matches!(
        Region::part(0, 0, 0, Arc::clone(&map), 0),
        Err(MemError::Wraps { .. })
    ));
    for (len, offset) in [
        (4097, 0),
        (1, 4096),
        (4096, 1),
        (u64::MAX / 2, 0),
        (1, usize::MAX),
    ] {
        let r = Region::part(0, len, 0, Arc::clone(&map), offset);
        assert_eq!(r.unwrap_err(), MemError::BeyondMapping { base: 0 });
    }
    let many = (0..=MAX_ENTRIES as u64).map(|i| Region::new(i * 4096, 0, Arc::clone(&map)).unwrap());
    assert_eq!(GuestMemory::new(many.collect()).unwrap_err(), MemError::TooMany);
}

#[test]
fn regions_have_user_addresses() {
    let two = GuestMemory::new(vec![region(0x10000, 4096), region(0x20000, 8192)]).unwrap();
    assert_eq!(two.regions().len(), 2);
    let overlapping = [two.regions(), &[region(0x21000, 4096)]].concat();
    assert!(GuestMemory::new(overlapping).is_err());
    assert_eq!(two.addr_of_user(0x7002_1000, 4096), Ok(0x21000));
    assert!(two.addr_of_user(0x7002_1000, 4097).is_err());
    assert!(two.addr_of_user(0x1, 1).is_err());
}

/// An IOMMU's permissions hold for buffers.
#[test]
fn restricted_regions_are_as_good_as_none() {
    let mem = GuestMemory::new(vec![region(0, 4096), region(4096, 4096).restricted(Access::READ)]).unwrap();
    let try_access = |addr, len, access| mem.pieces(&mut 0, addr, len, access, |_| {});
    assert!(try_access(4000, 200, Access::READ).is_ok());
    let missing = MemError::Unmapped { addr: 4096, len: 104 };
    assert_eq!(try_access(4000, 200, Access::WRITE), Err(missing));
    assert!(try_access(4000, 96, Access::WRITE).is_ok());
    assert!(try_access(4096, 1, Access::all()).is_err());
    assert!(
        mem.with_log(None)
            .pieces(&mut 0, 4096, 1, Access::WRITE, |_| {})
            .is_err()
    );
}

/// CVE-2018-1059's kind: a range that starts inside a region is not therefore inside.
#[test]
fn ranges_that_cross_regions_are_split_or_refused() {
    // Adjacent for the guest, apart here; then a hole.
    let mem = GuestMemory::new(vec![region(0, 4096), region(4096, 4096), region(12288, 4096)]).unwrap();
    let bytes: Vec<u8> = (0..200).collect();
    mem.write(4000, &bytes).unwrap();
    let mut back = vec![0; 200];
    mem.read(4000, &mut back).unwrap();
    assert_eq!(back, bytes);
    let hole = MemError::Unmapped { addr: 8192, len: 1 };
    assert_eq!(mem.read(8000, &mut [0; 193]).unwrap_err(), hole);
    assert!(mem.read(12288 + 4095, &mut [0; 2]).is_err());
    assert!(mem.read(u64::MAX, &mut [0; 2]).is_err());
    // A ring is one piece.
    assert!(matches!(mem.range(4000, 97, 1), Err(MemError::Crosses { .. })));
    assert!(mem.range(4000, 96, 1).is_ok());
    assert!(matches!(mem.range(9000, 1, 1), Err(MemError::Unmapped { .. })));
    assert!(matches!(mem.range(8, 16, 16), Err(MemError::Misaligned { .. })));
}

#[test]
fn the_dirty_log_marks_what_was_written() {
    let log = DirtyLog::new(Mapping::anonymous(4).unwrap()).unwrap();
    log.mark(0x1fff, 2);
    log.mark(0x5000, 0);
    log.mark(31 * 4096, u64::MAX); // beyond the bitmap: ignored
    let marked: Vec<u64> = (0..40).filter(|p| log.is_marked(p * 4096)).collect();
    assert_eq!(marked, [1, 2, 31]);
}

#[test]
fn a_replaced_table_lives_until_its_last_user() {
    let shared = SharedMemory::new(GuestMemory::new(vec![region(0, 4096)]).unwrap());
    let (worker, g) = (shared.get(), shared.generation());
    let old = shared.replace(GuestMemory::default());
    assert_ne!(shared.generation(), g);
    assert_eq!(Arc::strong_count(&old), 2);
    worker.write(0, b"still mapped").unwrap();
    drop(worker);
    assert_eq!(Arc::strong_count(&old), 1);
    assert!(shared.get().regions().is_empty());
}

proptest! {
    /// Any range over any table: the same bytes, or the same refusal, as a walk over single addresses.
    #[test]
    fn translation_matches_a_plain_search(
        places in proptest::collection::btree_set(0_u64..12, 1..8),
        asks in proptest::collection::vec((0_u64..14 * 4096, 0_u32..9000), 1..20),
    ) {
        let mem = GuestMemory::new(places.iter().map(|&p| region(p * 4096, 4096)).collect()).unwrap();
        for &p in &places {
            let page: Vec<u8> = (0..4096_u64).map(|i| (p * 31 + i * 7) as u8).collect();
            mem.write(p * 4096, &page).unwrap();
        }
        let mut hint = 0;
        for (addr, len) in asks {
            let mut got = Vec::new();
            let whole = mem.pieces(&mut hint, addr, len, Access::all(), |p| {
                let mut part = vec![0; p.len()];
                p.read(0, &mut part);
                got.extend(part);
            });
            let want: Option<Vec<u8>> = (addr..addr + u64::from(len))
                .map(|a| places.contains(&(a / 4096)).then(|| ((a / 4096) * 31 + (a % 4096) * 7) as u8))
                .collect();
            prop_assert_eq!(whole.is_ok(), want.is_some());
            if let Some(want) = want {
                prop_assert_eq!(got, want);
            }
        }
    }
}
