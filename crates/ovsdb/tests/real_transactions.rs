//! Transactions and the lock against the unmodified ovsdb-server. Skipped where it is not installed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Kind, Server, client, quick, until};
use heddle_ovsdb::{
    Atom, CallError, Columns, Condition, Datum, LockState, Mutation, Mutator, Options, Txn, TxnError,
    WaitUntil,
};

#[tokio::test]
async fn what_we_write_vsctl_gets() {
    let Some(server) = Server::start(Kind::Standalone) else {
        return;
    };
    let client = client(&server, quick());
    until(&client, "loaded", |db, s| db.is_loaded() && s.is_connected()).await;
    let top = client.snapshot().first("Open_vSwitch").unwrap().clone();

    let mut txn = Txn::new();
    let iface = txn.insert(
        "Interface",
        Columns::new().with("name", "p1").with("type", "dummy"),
    );
    let port = txn.insert(
        "Port",
        Columns::new()
            .with("name", "p1")
            .with("interfaces", iface.reference()),
    );
    let bridge = txn.insert(
        "Bridge",
        Columns::new().with("name", "br1").with("ports", port.reference()),
    );
    txn.mutate(
        "Open_vSwitch",
        &top,
        [Mutation::new("bridges", Mutator::Insert, bridge.reference())],
    );
    txn.comment("made by the test");
    let results = client.transact(txn).await.unwrap();
    assert_eq!(results.len(), 5);
    assert_eq!(results[3].count, Some(1));
    let uuid = iface.uuid(&results).unwrap();
    // The reply comes after the update: the replica has the effects.
    let db = client.snapshot();
    let row = db.row("Interface", uuid).unwrap();
    assert_eq!(row.str("name").unwrap(), "p1");
    assert_eq!(server.vsctl(&["list-ports", "br1"]), "p1");

    let statistics = [("rx_packets", 17_i64), ("tx_packets", 4)];
    let desired = Columns::new()
        .with("ofport", 3_i64)
        .with("link_state", "up")
        .with("mac_in_use", "02:00:00:00:00:01")
        .with("statistics", Datum::map(statistics))
        .with("error", Datum::empty())
        .with("admin_state", "sideways");
    let mut txn = Txn::new();
    let refused = txn.update_changed(row, &desired);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0].column, "admin_state");
    client.transact(txn).await.unwrap();
    assert_eq!(server.vsctl(&["get", "interface", "p1", "ofport"]), "3");
    assert_eq!(
        server.vsctl(&["get", "interface", "p1", "statistics"]),
        "{rx_packets=17, tx_packets=4}"
    );
    assert_eq!(server.vsctl(&["get", "interface", "p1", "link_state"]), "up");

    // Now nothing differs.
    let db = client.snapshot();
    let mut again = Txn::new();
    again.update_changed(db.row("Interface", uuid).unwrap(), &desired);
    assert!(again.is_empty());

    let mut txn = Txn::new();
    txn.select(
        "Interface",
        Condition::equals("name", "p1"),
        Some(&["_uuid", "ofport", "statistics"]),
    );
    let results = client.transact(txn).await.unwrap();
    let schema = db.schema().unwrap();
    assert_eq!(
        results[0]
            .value(schema, "Interface", 0, "_uuid")
            .unwrap()
            .unwrap(),
        Datum::from(uuid)
    );
    assert_eq!(
        results[0]
            .value(schema, "Interface", 0, "statistics")
            .unwrap()
            .unwrap(),
        Datum::map(statistics)
    );

    let mut txn = Txn::new();
    txn.update(
        "Open_vSwitch",
        &top,
        Columns::new().with("bridges", Datum::empty()),
    );
    txn.delete("Bridge", Condition::equals("name", "br1"));
    client.transact(txn).await.unwrap();
    assert_eq!(server.vsctl(&["list-br"]), "");
    assert!(client.snapshot().table("Interface").unwrap().is_empty());
}

#[tokio::test]
async fn failing_transactions_give_reasons() {
    let Some(server) = Server::start(Kind::Standalone) else {
        return;
    };
    let client = client(&server, quick());
    assert_eq!(client.transact(Txn::new()).await, Err(TxnError::NotConnected));
    until(&client, "loaded", |db, s| db.is_loaded() && s.is_connected()).await;
    let top = client.snapshot().first("Open_vSwitch").unwrap().clone();

    let mut txn = Txn::new();
    txn.comment("first");
    txn.update("Open_vSwitch", &top, Columns::new().with("no_such_column", 1_i64));
    match client.transact(txn).await {
        Err(e @ TxnError::Refused { index: Some(1), .. }) => assert!(!e.is_retriable(), "{e}"),
        other => panic!("{other:?}"),
    }

    // The commit fails, not an operation: a reference to a row that is not there.
    let mut txn = Txn::new();
    let nowhere = heddle_ovsdb::Uuid::from_u128(7);
    txn.update("Open_vSwitch", &top, Columns::new().with("bridges", nowhere));
    match client.transact(txn).await {
        Err(TxnError::Refused {
            index: None, error, ..
        }) => assert_eq!(error, "referential integrity violation"),
        other => panic!("{other:?}"),
    }

    let mut txn = Txn::new();
    txn.wait(
        "Open_vSwitch",
        &top,
        WaitUntil::Equal,
        &[Columns::new().with("next_cfg", 99_i64)],
        Duration::ZERO,
    );
    let e = client.transact(txn).await.unwrap_err();
    assert_eq!(e, TxnError::TimedOut);
    assert!(e.is_retriable());

    let mut txn = Txn::new();
    txn.update("Open_vSwitch", &top, Columns::new().with("next_cfg", 5_i64));
    txn.abort();
    assert_eq!(client.transact(txn).await, Err(TxnError::Aborted));
    assert_eq!(server.vsctl(&["get", "open_vswitch", ".", "next_cfg"]), "0");

    // A NUL would make the server drop the connection; it is not sent.
    let mut txn = Txn::new();
    txn.update("Open_vSwitch", &top, Columns::new().with("ovs_version", "a\0b"));
    assert!(matches!(client.transact(txn).await, Err(TxnError::Invalid(_))));
    let mut txn = Txn::new();
    txn.assert_lock();
    assert!(
        matches!(client.transact(txn).await, Err(TxnError::Invalid(_))),
        "there is no lock to assert"
    );

    assert_eq!(client.status().connections, 1, "none of it cost the connection");
    let list = client.call("list_dbs", serde_json::json!([])).await.unwrap();
    assert!(list.as_array().unwrap().contains(&"Open_vSwitch".into()));
    let unknown = client.call("no_such_method", serde_json::json!([])).await;
    assert!(matches!(unknown, Err(CallError::Server(_))), "{unknown:?}");
}

#[tokio::test]
async fn lock_contended_stolen_and_regained() {
    let Some(server) = Server::start(Kind::Standalone) else {
        return;
    };
    let options = || Options {
        lock: Some("ovs_vswitchd".into()),
        ..quick()
    };
    let first = client(&server, options());
    until(&first, "lock of the first", |_, s| s.has_lock()).await;
    let second = client(&server, options());
    until(&second, "contention of the second", |_, s| {
        s.lock == LockState::Contended
    })
    .await;
    assert!(!second.has_lock());

    let write = |n: i64, db: Arc<heddle_ovsdb::Db>| {
        let mut txn = Txn::new();
        txn.assert_lock();
        txn.update(
            "Open_vSwitch",
            db.first("Open_vSwitch").unwrap(),
            Columns::new().with("cur_cfg", n),
        );
        txn
    };
    let refused = second.transact(write(1, second.snapshot())).await.unwrap_err();
    assert_eq!(refused, TxnError::NotLocked);
    let results = first.transact(write(2, first.snapshot())).await.unwrap();
    assert_eq!(
        results.len(),
        1,
        "the assertion is not among the caller's results"
    );
    assert_eq!(server.vsctl(&["get", "open_vswitch", ".", "cur_cfg"]), "2");

    // A third client steals it, then gives it back.
    let thief = client(&server, quick());
    until(&thief, "loaded", |db, s| db.is_loaded() && s.is_connected()).await;
    thief
        .call("steal", serde_json::json!(["ovs_vswitchd"]))
        .await
        .unwrap();
    until(&first, "theft told", |_, s| s.lock == LockState::Contended).await;
    assert_eq!(
        first.transact(write(3, first.snapshot())).await,
        Err(TxnError::NotLocked)
    );
    thief
        .call("unlock", serde_json::json!(["ovs_vswitchd"]))
        .await
        .unwrap();
    until(&first, "lock regained", |_, s| s.has_lock()).await;
    drop(first);
    until(&second, "lock inherited", |_, s| s.has_lock()).await;
    second.transact(write(4, second.snapshot())).await.unwrap();
}

#[tokio::test]
async fn many_tasks_at_once() {
    let Some(server) = Server::start(Kind::Standalone) else {
        return;
    };
    let client = client(
        &server,
        Options {
            max_in_flight: 4,
            ..quick()
        },
    );
    until(&client, "loaded", |db, s| db.is_loaded() && s.is_connected()).await;
    let top = client.snapshot().first("Open_vSwitch").unwrap().uuid();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    let mut txn = Txn::new();
                    txn.mutate(
                        "Open_vSwitch",
                        top,
                        [Mutation::new("next_cfg", Mutator::Add, 1_i64)],
                    );
                    client.transact(txn).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(
        client.snapshot().first("Open_vSwitch").unwrap().int("next_cfg"),
        Ok(200)
    );

    // Texts that need escaping arrive as they were.
    let odd = "a \"b\" \\ {}[] \u{1f9f5} \n\t";
    let mut txn = Txn::new();
    txn.update(
        "Open_vSwitch",
        top,
        Columns::new().with("external_ids", Datum::map([(odd, Atom::from(odd))])),
    );
    client.transact(txn).await.unwrap();
    let db = client.snapshot();
    assert_eq!(
        db.first("Open_vSwitch").unwrap().map_get("external_ids", odd),
        Ok(Some(odd))
    );
}
