//! Waits and the queue of bytes; whole connections are tested against servers in `tests/`.

use std::time::Duration;

use serde_json::json;

use super::backoff::{Backoff, WaitChange};
use super::outbox::Outbox;

#[test]
fn waits_double_and_start_anew() {
    let seconds = Duration::from_secs;
    let mut backoff = Backoff::new(seconds(1), seconds(8));
    let waits: Vec<_> = (0..6).map(|_| backoff.next_wait(false)).collect();
    let expected = [
        (1, WaitChange::Nothing),
        (2, WaitChange::Doubled),
        (4, WaitChange::Doubled),
        (8, WaitChange::Longest),
        (8, WaitChange::Nothing),
        (8, WaitChange::Nothing),
    ];
    assert_eq!(waits, expected.map(|(s, change)| (seconds(s), change)));
    assert!(backoff.is_quiet());
    assert_eq!(backoff.next_wait(true), (seconds(1), WaitChange::Nothing));
    assert!(!backoff.is_quiet());
    // A largest wait below the least one is a mistake that costs nothing.
    let mut odd = Backoff::new(seconds(2), seconds(1));
    assert_eq!(
        (odd.next_wait(false).0, odd.next_wait(false).0),
        (seconds(2), seconds(2))
    );
}

#[test]
fn bytes_leave_in_order_however_they_are_taken() {
    let mut outbox = Outbox::default();
    let (mut sent, mut expected) = (Vec::new(), String::new());
    for n in 0..200_usize {
        let message = json!({"n": n, "text": "x".repeat(n)});
        outbox.push(&message);
        expected += &message.to_string();
        let take = outbox.unsent().len().min(n * 7 % 150);
        sent.extend_from_slice(&outbox.unsent()[..take]);
        outbox.advance(take);
    }
    let rest = outbox.unsent().len();
    sent.extend_from_slice(outbox.unsent());
    outbox.advance(rest);
    assert!(outbox.is_empty() && outbox.has_room() && !outbox.is_stuck());
    assert_eq!(String::from_utf8(sent).unwrap(), expected);
}
