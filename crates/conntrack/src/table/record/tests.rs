use super::*;

#[test]
fn labels_are_read_whole() {
    let r = Record::new_zeroed();
    r.publish(false, 0);
    std::thread::scope(|s| {
        for n in 1..3 {
            let r = &r;
            s.spawn(move || {
                for i in 0..5000u64 {
                    let v = i * 2 + n;
                    r.set_label(u128::from(v) << 64 | u128::from(v), u128::MAX);
                }
            });
        }
        for _ in 0..20_000 {
            let l = r.label();
            assert_eq!(l >> 64, l & u128::from(u64::MAX));
        }
    });
    assert_eq!(r.set_label(0xff, 0xf), Some((r.label() >> 4 << 4) | 0xf));
}

/// If the system has preempted a writer, readers do not wait, and another writer waits for a bounded time.
#[test]
fn a_writer_put_aside_stops_no_reader() {
    let r = Record::new_zeroed();
    r.publish(false, 0);
    for n in 1..4u128 {
        assert_eq!(r.set_label(n << 64 | n, u128::MAX), Some(n << 64 | n));
        // The preempted writer has the lock, and has written half of its label.
        r.state.fetch_or(LABEL_LOCK, Relaxed);
        let other = r.label_slot(u64::try_from(n + 1).unwrap());
        other.words()[0].store(99, Relaxed);
        assert_eq!(
            (r.label(), r.label_count()),
            (n << 64 | n, u32::try_from(n).unwrap())
        );
        assert_eq!(r.set_label(77, u128::MAX), None);
        assert_eq!(r.label(), n << 64 | n);
        r.state.fetch_and(!LABEL_LOCK, Relaxed);
    }
    // The odd label of an announced connection is an address of its parent.
    let announced = Record::new_zeroed();
    announced.head.store(Head::new(0, 0, RELATED).0, Relaxed);
    announced.publish(false, 0);
    assert_eq!(announced.set_label(1, 1), None);
    assert_eq!(announced.overlay.odd_label().value(), 0);
}

/// The words of a record are all of its memory, in their order.
#[test]
fn words_cover_the_record() {
    let r = Record::new_zeroed();
    let start = std::ptr::from_ref(&r).addr();
    for (i, word) in r.words().into_iter().enumerate() {
        assert_eq!(std::ptr::from_ref(word).addr() - start, i * size_of::<u64>());
    }
    assert_eq!(size_of_val(&r), r.words().len() * size_of::<u64>());
}
