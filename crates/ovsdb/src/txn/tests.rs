//! Transactions as JSON, and replies to them.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::value::Datum;
use crate::value::tests::any_json;

#[test]
fn operations_as_rfc_7047_writes_them() {
    let row = Uuid::from_u128(1);
    let id = json!(["uuid", row.to_string()]);
    let mut txn = Txn::new();
    txn.assert_lock();
    let port = txn.insert("Port", Columns::new().with("name", "p"));
    txn.update("Bridge", row, Columns::new().with("ports", port.reference()));
    txn.update("Bridge", row, Columns::new());
    txn.mutate(
        "Bridge",
        row,
        [Mutation::new(
            "flood_vlans",
            Mutator::Delete,
            Datum::set([1_i64, 2]),
        )],
    );
    txn.mutate("Bridge", row, []);
    txn.delete("Port", Condition::all().and("tag", ">", 4_i64));
    txn.wait(
        "Bridge",
        row,
        WaitUntil::NotEqual,
        &[Columns::new().with("name", "b")],
        std::time::Duration::from_millis(7),
    );
    txn.comment("n\0te");
    txn.abort();
    txn.select("Bridge", Condition::all(), None);
    let (params, before) = txn.into_params("D", Some("l")).unwrap();
    assert_eq!(before, 1);
    let expected = json!(["D",
        {"op": "assert", "lock": "l"},
        {"op": "insert", "table": "Port", "row": {"name": "p"}, "uuid-name": "row0"},
        {"op": "update", "table": "Bridge", "where": [["_uuid", "==", id]], "row": {"ports": ["named-uuid", "row0"]}},
        {"op": "mutate", "table": "Bridge", "where": [["_uuid", "==", id]],
            "mutations": [["flood_vlans", "delete", ["set", [1, 2]]]]},
        {"op": "delete", "table": "Port", "where": [["tag", ">", 4]]},
        {"op": "wait", "table": "Bridge", "where": [["_uuid", "==", id]], "columns": ["name"], "until": "!=",
            "rows": [{"name": "b"}], "timeout": 7},
        {"op": "comment", "comment": "nte"},
        {"op": "abort"},
        {"op": "select", "table": "Bridge", "where": []},
    ]);
    assert_eq!(params, expected);
}

#[test]
fn what_cannot_be_sent_is_not() {
    let params = |txn: Txn, lock| txn.into_params("D", lock);
    let mut txn = Txn::new();
    txn.insert("T", Columns::new().with("c", f64::INFINITY));
    txn.insert("T", Columns::new().with("d", "\0"));
    match params(txn, None) {
        Err(TxnError::Invalid(why)) => assert!(why.starts_with("T.c"), "the first is told: {why}"),
        other => panic!("{other:?}"),
    }
    let mut txn = Txn::new();
    txn.delete("T", Condition::equals("c", "\0"));
    assert!(params(txn, None).is_err());
    let mut txn = Txn::new();
    txn.assert_lock();
    assert!(params(txn.clone(), None).is_err());
    assert!(params(txn, Some("l")).is_ok());
}

#[test]
fn replies() {
    let uuid = Uuid::from_u128(5);
    // One operation of ours before three of the caller's.
    let reply = |json: Value| parse_reply(Ok(json), 1, 3);
    let results =
        reply(json!([{}, {"uuid": ["uuid", uuid.to_string()]}, {"count": 2}, {"rows": [{"a": 1}, 3]}]))
            .unwrap();
    assert_eq!(results.len(), 3);
    assert_eq!(
        (results[0].uuid, results[1].count, results[2].rows.len()),
        (Some(uuid), Some(2), 1)
    );
    let error = |name: &str| json!({"error": name, "details": "because"});
    assert_eq!(
        reply(json!([error("not owner"), null, null, null])),
        Err(TxnError::NotLocked)
    );
    assert_eq!(
        reply(json!([{}, {}, error("timed out"), null])),
        Err(TxnError::TimedOut)
    );
    assert_eq!(
        reply(json!([{}, {}, {}, error("aborted")])),
        Err(TxnError::Aborted)
    );
    for (json, index) in [
        (json!([{}, {}, error("constraint violation"), null]), Some(1)),
        (json!([{}, {}, {}, {}, error("constraint violation")]), None),
    ] {
        let e = reply(json).unwrap_err();
        assert!(!e.is_retriable() && e.to_string().contains("because"), "{e}");
        assert!(
            matches!(e, TxnError::Refused { index: i, .. } if i == index),
            "{e:?}"
        );
    }
    assert!(
        matches!(reply(json!([{}])), Err(TxnError::BadReply(_))),
        "too few results"
    );
    assert!(matches!(reply(json!("ok")), Err(TxnError::BadReply(_))));
    assert!(
        parse_reply(Err(json!("canceled")), 0, 1)
            .unwrap_err()
            .is_retriable()
    );
    assert!(
        parse_reply(Err(error("unknown database")), 0, 1)
            .unwrap_err()
            .is_retriable()
    );
    assert!(matches!(
        parse_reply(Err(json!("syntax error")), 0, 1),
        Err(TxnError::Refused { index: None, .. })
    ));
}

proptest! {
    #[test]
    fn any_reply_is_read_or_refused(json in any_json(), list in vec(any_json(), 0..4), before in 0..2_usize) {
        for outcome in [Ok(json.clone()), Err(json), Ok(Value::from(list))] {
            if let Ok(results) = parse_reply(outcome, before, 2) {
                prop_assert_eq!(results.len(), 2);
            }
        }
    }
}
