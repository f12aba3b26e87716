//! The client against servers that are old, slow or silent.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::time::{Duration, Instant};

use common::script::{
    NIL, ROW, Script, TXN1, TXN2, a_moment, loading, n_of, patiently, row, schema, spawn, until_n,
};
use common::{quick, until};
use heddle_ovsdb::rpc::{Message, request};
use heddle_ovsdb::{Client, ConnState, MonitorSpec, Options, Txn, TxnError};
use serde_json::json;
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn continues_from_the_last_transaction() {
    let script = Script::listen();
    let mut client = spawn(&script, quick());
    let mut peer = loading(&script).await;
    let params = peer
        .reply("monitor_cond_since", json!([false, TXN1, row("initial", 1)]))
        .await;
    assert_eq!(params[0], "D");
    assert_eq!(params[2], json!({"T": [{"columns": ["m", "n", "s"]}]}));
    assert_eq!(params[3], NIL);
    until_n(&client, 1).await;
    peer.notify(
        "update3",
        json!([params[1], TXN2, {"T": {ROW: {"modify": {"s": ["set", [1, 2]]}}}}]),
    )
    .await;
    until(&client, "set", |db, _| {
        db.first("T").unwrap().ints("s").unwrap() == [1, 2]
    })
    .await;
    client.poll();
    drop(peer);

    // The server knows the transaction: it sends only later changes, against the contents that we kept.
    let mut peer = loading(&script).await;
    let update = json!({"T": {ROW: {"modify": {"s": ["set", [2, 3]]}}}});
    let params = peer
        .reply("monitor_cond_since", json!([true, TXN2, update]))
        .await;
    assert_eq!(params[3], TXN2);
    until(&client, "second connection", |_, s| s.connections == 2).await;
    let batch = client.poll();
    assert_eq!(batch.db.first("T").unwrap().ints("s").unwrap(), [1, 3]);
    assert_eq!(batch.db.first("T").unwrap().int("n"), Ok(1));
    assert_eq!(batch.changes.len(), 1);
    drop(peer);

    // The server does not know the transaction id any more: all contents come, and replace ours.
    let mut peer = loading(&script).await;
    let params = peer
        .reply("monitor_cond_since", json!([false, NIL, row("initial", 4)]))
        .await;
    assert_eq!(params[3], TXN2);
    until_n(&client, 4).await;
    assert!(
        client
            .snapshot()
            .first("T")
            .unwrap()
            .ints("s")
            .unwrap()
            .is_empty()
    );
    drop(peer);

    // The server gave no id: there is nothing to continue from. Then the schema changes, and there is nothing
    // either.
    let mut peer = loading(&script).await;
    assert_eq!(
        peer.reply("monitor_cond_since", json!([false, TXN1, row("initial", 5)]))
            .await[3],
        NIL
    );
    until_n(&client, 5).await;
    drop(peer);
    let mut peer = script.accept().await;
    let mut other = schema();
    other["tables"]["T"]["columns"]["x"] = json!({"type": "integer"});
    peer.reply("get_schema", other).await;
    assert_eq!(
        peer.reply("monitor_cond_since", json!([false, NIL, row("initial", 6)]))
            .await[3],
        NIL
    );
    until_n(&client, 6).await;
    let snapshot = client.snapshot();
    assert!(snapshot.schema().unwrap().column("T", "x").is_some());
}

#[tokio::test]
async fn older_servers() {
    let script = Script::listen();
    let client = spawn(&script, quick());
    let mut peer = loading(&script).await;
    peer.refuse("monitor_cond_since").await;
    let params = peer.reply("monitor_cond", row("initial", 1)).await;
    until_n(&client, 1).await;
    peer.notify("update2", json!([params[1], row("modify", 2)])).await;
    until_n(&client, 2).await;
    drop(peer);

    let mut peer = loading(&script).await;
    peer.refuse("monitor_cond_since").await;
    peer.refuse("monitor_cond").await;
    let params = peer
        .reply(
            "monitor",
            json!({"T": {ROW: {"new": {"n": 2, "s": ["set", [1]]}}}}),
        )
        .await;
    until(&client, "second connection", |_, s| s.connections == 2).await;
    let update = json!({"T": {ROW: {"old": {"n": 2}, "new": {"n": 3, "s": ["set", [1]]}}}});
    peer.notify("update", json!([params[1], update])).await;
    until_n(&client, 3).await;
    assert_eq!(client.snapshot().first("T").unwrap().ints("s").unwrap(), [1]);
    peer.notify("update", json!([params[1], {"T": {ROW: {"old": {"n": 3}}}}]))
        .await;
    until(&client, "deletion", |db, _| db.rows("T").count() == 0).await;

    drop(peer);
    let mut peer = loading(&script).await;
    for method in ["monitor_cond_since", "monitor_cond", "monitor"] {
        peer.refuse(method).await;
    }
    peer.closed().await;
    until(&client, "refusal told", |_, s| {
        s.last_error.as_deref().is_some_and(|e| e.contains("monitor"))
    })
    .await;
}

#[tokio::test]
async fn echo_both_ways() {
    let script = Script::listen();
    let probe = Duration::from_millis(100);
    let client = spawn(
        &script,
        Options {
            probe_interval: Some(probe),
            probe_local: true,
            ..quick()
        },
    );
    let mut peer = loading(&script).await;
    peer.reply("monitor_cond_since", json!([false, NIL, row("initial", 1)]))
        .await;
    until_n(&client, 1).await;
    // The server sends a request.
    peer.send(&request("echo", json!(["are", "you"]), 77)).await;
    assert_eq!(
        peer.next().await,
        Some(Message::Reply {
            id: json!(77),
            outcome: Ok(json!(["are", "you"]))
        })
    );
    peer.send(&request("dance", json!([]), 78)).await;
    assert_eq!(
        peer.next().await,
        Some(Message::Reply {
            id: json!(78),
            outcome: Err(json!("unknown method"))
        })
    );
    // The client probes whenever it has heard nothing, as long as replies come.
    for _ in 0..3 {
        peer.reply("echo", json!([])).await;
    }
    assert!(client.status().is_connected());
    // Without a reply, the client gives up after as much time again.
    let asked = Instant::now();
    peer.expect("echo").await;
    peer.closed().await;
    // The client's clock began when it sent the probe, which was a little before this one.
    assert!(asked.elapsed() >= probe / 2);
    until(&client, "loss told", |_, s| {
        s.last_error.as_deref().is_some_and(|e| e.contains("probe"))
    })
    .await;
    assert_eq!(n_of(&client), Some(1), "contents stay");
    // The client connects again.
    let mut peer = loading(&script).await;
    peer.reply("monitor_cond_since", json!([false, NIL, row("initial", 2)]))
        .await;
    until_n(&client, 2).await;
}

#[tokio::test]
async fn without_probes_silence_is_fine() {
    let script = Script::listen();
    let client = spawn(
        &script,
        Options {
            probe_interval: None,
            ..quick()
        },
    );
    let mut peer = loading(&script).await;
    peer.reply("monitor_cond_since", json!([false, NIL, row("initial", 1)]))
        .await;
    until_n(&client, 1).await;
    a_moment().await;
    assert!(client.status().is_connected());
}

#[tokio::test]
async fn requests_fail_with_their_connection() {
    let script = Script::listen();
    let client = spawn(&script, quick());
    let mut peer = loading(&script).await;
    let early = client.submit(Txn::new()).unwrap();
    let refused = patiently("refusal while loading", early);
    assert_eq!(refused.await, Err(TxnError::NotConnected));
    peer.reply("monitor_cond_since", json!([false, NIL, row("initial", 1)]))
        .await;
    until_n(&client, 1).await;
    let mut txn = Txn::new();
    txn.comment("lost");
    let pending = client.submit(txn.clone()).unwrap();
    let (params, _) = peer.expect("transact").await;
    assert_eq!(params, [json!("D"), json!({"op": "comment", "comment": "lost"})]);
    drop(peer);
    let e = patiently("result", pending).await.unwrap_err();
    assert_eq!(e, TxnError::Disconnected);
    assert!(e.is_retriable());

    // A server that does not reply holds back only transactions beyond the bound.
    let mut peer = loading(&script).await;
    peer.reply("monitor_cond_since", json!([false, NIL, row("initial", 1)]))
        .await;
    until(&client, "second connection", |_, s| s.connections == 2).await;
    let pending = client.submit(txn).unwrap();
    let (_, id) = peer.expect("transact").await;
    peer.send(&json!({"id": 999_999, "result": "for nobody", "error": null}))
        .await;
    peer.send(&json!({"id": id, "result": "nonsense", "error": null}))
        .await;
    assert!(matches!(
        patiently("result", pending).await,
        Err(TxnError::BadReply(_))
    ));
    assert!(client.status().is_connected());
}

#[tokio::test]
async fn requests_in_flight_are_bounded() {
    let script = Script::listen();
    let client = spawn(
        &script,
        Options {
            max_in_flight: 2,
            ..quick()
        },
    );
    let mut peer = loading(&script).await;
    peer.reply("monitor_cond_since", json!([false, NIL, row("initial", 1)]))
        .await;
    until_n(&client, 1).await;
    let pending: Vec<_> = (0..5).map(|_| client.submit(Txn::new()).unwrap()).collect();
    let first = peer.expect("transact").await.1;
    peer.expect("transact").await;
    let third = tokio::time::timeout(Duration::from_millis(150), peer.next()).await;
    assert!(third.is_err(), "{third:?}");
    peer.send(&json!({"id": first, "result": [], "error": null}))
        .await;
    peer.expect("transact").await;
    // A full queue is reported, not waited for.
    let mut filled = None;
    let mut waiting = Vec::new();
    for _ in 0..10_000 {
        match client.submit(Txn::new()) {
            Ok(p) => waiting.push(p),
            Err(e) => {
                filled = Some(e);
                break;
            }
        }
    }
    assert!(matches!(filled, Some(TxnError::Busy(_))), "{filled:?}");
    drop(pending);
}

#[tokio::test]
async fn attempts_and_states() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = format!("unix:{}", dir.path().join("nobody").display());
    let mut client = Client::spawn(&nowhere, "D", MonitorSpec::all(), quick()).unwrap();
    patiently("news at the start", client.changed()).await.unwrap();
    until(&client, "failure", |_, s| {
        s.conn == ConnState::Backoff && s.last_error.is_some()
    })
    .await;
    assert_eq!(client.transact(Txn::new()).await, Err(TxnError::NotConnected));
    // The client keeps trying: a server that starts late is found.
    let late = tokio::net::UnixListener::bind(dir.path().join("nobody")).unwrap();
    let late_peer = patiently("connection to the late server", late.accept())
        .await
        .unwrap();
    until(&client, "loading", |_, s| s.conn == ConnState::Loading).await;
    drop((late_peer, late));
    std::fs::remove_file(dir.path().join("nobody")).unwrap();

    // Among several remotes the client finds the one that works.
    let script = Script::listen();
    let both = format!("{nowhere},{}", script.remote);
    let client = Client::spawn(&both, "D", MonitorSpec::all(), quick()).unwrap();
    let mut peer = loading(&script).await;
    peer.reply("monitor_cond_since", json!([false, NIL, row("initial", 1)]))
        .await;
    until_n(&client, 1).await;

    // The task ends with the last handle, and closes the connection.
    let other = client.clone();
    drop(client);
    assert!(other.status().is_connected());
    drop(other);
    peer.closed().await;

    assert!(Client::spawn("db.sock", "D", MonitorSpec::all(), quick()).is_err());
}

#[test]
fn no_runtime_is_an_error() {
    let client = Client::spawn("unix:/nowhere", "D", MonitorSpec::all(), quick());
    assert_eq!(client.err(), Some(heddle_ovsdb::SpawnError::NoRuntime));
}

#[tokio::test]
async fn over_tcp() {
    let listener = tokio::net::TcpListener::bind("[::1]:0").await;
    let listener = match listener {
        Ok(listener) => listener,
        Err(_) => tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(),
    };
    let remote = format!("tcp:{}", listener.local_addr().unwrap());
    let client = Client::spawn(&remote, "D", MonitorSpec::all(), quick()).unwrap();
    let (mut stream, _) = patiently("connection", listener.accept()).await.unwrap();
    for answer in [
        json!({"id": 0, "result": schema(), "error": null}),
        json!({"id": 1, "result": [false, NIL, row("initial", 3)], "error": null}),
    ] {
        stream.write_all(answer.to_string().as_bytes()).await.unwrap();
    }
    until_n(&client, 3).await;
}
