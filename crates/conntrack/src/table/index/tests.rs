use super::*;

/// Threads find the entries that stay, while other entries come, move and go.
#[test]
fn what_is_there_is_found_while_buckets_are_split() {
    const KEPT: u32 = 2000;
    let index = Index::new(1 << 20).unwrap();
    // Numbers in a row, spread.
    let hash = |n: u32| {
        Hash(
            n.wrapping_mul(0x9e37_79b1)
                .rotate_left(15)
                .wrapping_mul(0x85eb_ca6b),
        )
    };
    let entry = |n: u32| RecordRef {
        number: n,
        generation: n * 3,
    };
    let put = |n| index.insert(entry(n), [hash(n); 2], |_, _| Judgement::Other, || ());
    let find = |n: u32| index.find(hash(n), |e| (e.number == n && e.is_of(n * 3)).then_some(()));
    (0..KEPT).for_each(|n| put(n).unwrap());
    let end = AtomicBool::new(false);
    std::thread::scope(|s| {
        let reader = || {
            while !end.load(Relaxed) {
                (0..KEPT).for_each(|n| assert!(find(n).is_some(), "{n}"));
            }
        };
        let readers = [s.spawn(reader), s.spawn(reader)];
        let writer = |t: u32| {
            let mine = t * 1_000_000..t * 1_000_000 + 60_000;
            for n in mine.clone() {
                while put(n) == Err(NotInserted::Busy) {}
            }
            for n in mine {
                assert!(find(n).is_some());
                while !index.remove(entry(n), hash(n)) {}
                assert!(find(n).is_none());
            }
        };
        let writers = [s.spawn(move || writer(1)), s.spawn(move || writer(2))];
        let done = writers.map(|w| w.join());
        end.store(true, Relaxed);
        readers.into_iter().for_each(|r| r.join().unwrap());
        done.into_iter().for_each(|d| d.unwrap());
    });
    assert!(index.len() > 10_000);
    (0..KEPT).for_each(|n| assert!(find(n).is_some()));
}

/// All entries have one hash. The chain grows to its bound; more entries are refused.
#[test]
fn a_chain_is_bounded() {
    let index = Index::new(1 << 12).unwrap();
    let entry = |number| RecordRef {
        number,
        generation: 0,
    };
    let put = |n| index.insert(entry(n), [Hash(5), Hash(5)], |_, _| Judgement::Other, || ());
    let refused = (0..1000).find(|n| put(*n) == Err(NotInserted::Full)).unwrap();
    assert!(refused as usize >= (MAX_CHAIN - 2) * WAYS, "{refused}");
    for n in 0..refused {
        assert!(index.remove(entry(n), Hash(5)));
    }
    assert!(index.find(Hash(5), Some).is_none());
    assert!(put(1).is_ok());
    // The linked buckets were given back.
    let used = index.free_over.used() as usize;
    assert_eq!(
        std::iter::from_fn(|| index.free_over.take()).take(used).count(),
        used
    );
}

#[test]
fn both_entries_or_none() {
    let index = Index::new(1 << 12).unwrap();
    let entry = |number| RecordRef {
        number,
        generation: 1,
    };
    let taken = |_, first: bool| if first { Judgement::Other } else { Judgement::Taken };
    index
        .insert(entry(1), [Hash(1), Hash(2)], |_, _| Judgement::Other, || ())
        .unwrap();
    let refused = index.insert(entry(2), [Hash(3), Hash(2)], taken, || panic!("refused"));
    assert_eq!(refused, Err(NotInserted::Taken(false)));
    assert!(index.find(Hash(3), Some).is_none());
    index
        .insert(entry(2), [Hash(3), Hash(2)], |_, _| Judgement::Dead, || ())
        .unwrap();
    assert_eq!(index.find(Hash(2), Some), Some(entry(2)));
}

/// A lookup with an old number of buckets goes to the present home of the hash. Bucket 0 was split twice.
/// The bucket that the first split made was not split, so its second half does not exist yet.
#[test]
fn an_old_number_of_buckets_leads_to_the_same_place() {
    let index = Index::new(1 << 12).unwrap();
    while index.len() < 130 {
        index.grow();
    }
    for h in (0..1000).map(Hash) {
        let now = Index::place(h, index.len()).0;
        for n in 1 << START_BITS..=index.len() {
            assert_eq!(index.home_from(h, n), Some(now), "{h:?} {n}");
        }
    }
}
