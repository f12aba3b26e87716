//! The log of changes.

use super::*;

fn change(n: u128, kind: ChangeKind, columns: &[&str]) -> Change {
    Change {
        table: Arc::from("T"),
        uuid: id(n),
        kind,
        columns: columns.iter().map(|c| Arc::from(*c)).collect(),
    }
}

#[test]
fn changes_of_a_row_become_one() {
    use ChangeKind::{Delete, Insert, Modify};
    let mut log = ChangeLog::new(100);
    log.push(1, vec![change(1, Insert, &[]), change(2, Insert, &[])]);
    log.push(
        2,
        vec![
            change(1, Modify, &["a"]),
            change(3, Modify, &["a"]),
            change(4, Delete, &[]),
        ],
    );
    log.push(
        3,
        vec![
            change(2, Delete, &[]),
            change(3, Modify, &["a", "b"]),
            change(4, Insert, &[]),
        ],
    );
    log.push(4, vec![change(5, Modify, &["a"])]);
    log.push(5, vec![change(5, Delete, &[])]);
    let expected = vec![
        change(1, Insert, &[]),
        change(3, Modify, &["a", "b"]),
        change(4, Insert, &[]),
        change(5, Delete, &[]),
    ];
    assert_eq!(log.since(0), Some(expected));
    assert_eq!(log.since(3), Some(vec![change(5, Delete, &[])]));
    assert_eq!(log.since(4), Some(vec![change(5, Delete, &[])]));
    assert_eq!(log.since(5), Some(vec![]));
}

#[test]
fn a_reader_too_far_behind_is_notified() {
    let mut log = ChangeLog::new(3);
    log.push(1, vec![change(1, ChangeKind::Insert, &[])]);
    log.push(
        2,
        vec![
            change(2, ChangeKind::Insert, &[]),
            change(3, ChangeKind::Insert, &[]),
        ],
    );
    assert_eq!(log.since(0).map(|c| c.len()), Some(3));
    // One entry too many: the first update goes out.
    log.push(3, vec![change(4, ChangeKind::Insert, &[])]);
    assert_eq!(log.since(0), None);
    assert_eq!(log.since(1).map(|c| c.len()), Some(3));
    // The next one pushes out half of an update, and so the whole of it.
    log.push(4, vec![change(5, ChangeKind::Insert, &[])]);
    assert_eq!(log.since(1), None);
    assert_eq!(log.since(2).map(|c| c.len()), Some(2));
    // More at once than the log holds.
    log.push(5, (0..9).map(|n| change(n, ChangeKind::Delete, &[])).collect());
    assert_eq!(log.since(4), None);
    assert_eq!(log.since(5), Some(vec![]));
}

#[test]
fn own_columns_can_be_passed_over() {
    let own = ["statistics", "status"];
    assert!(!change(1, ChangeKind::Modify, &["status"]).touches_other_than(&own));
    assert!(change(1, ChangeKind::Modify, &["status", "options"]).touches_other_than(&own));
    assert!(change(1, ChangeKind::Insert, &[]).touches_other_than(&own));
    assert!(change(1, ChangeKind::Delete, &[]).touches_other_than(&own));
}
