//! The client against servers that do not speak OVSDB, or speak it wrongly.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use common::script::{NIL, ROW, Script, TXN1, TXN2, loading, n_of, patiently, row, spawn, until_n};
use common::{quick, until};
use heddle_ovsdb::Options;
use heddle_ovsdb::rpc::request;
use serde_json::json;
use tokio::io::AsyncWriteExt;

/// Each of these ends its connection, and the client comes back for more.
#[tokio::test]
async fn garbage() {
    let script = Script::listen();
    let client = spawn(
        &script,
        Options {
            max_message: 10_000,
            ..quick()
        },
    );
    let deep = format!("{{\"a\":{}", "[".repeat(5000));
    let long = format!("{{\"a\":\"{}", "x".repeat(20_000));
    let at_once: Vec<(&str, Vec<u8>)> = vec![
        ("text", b"220 mail.example.org ESMTP\r\n".to_vec()),
        ("bytes", (0..=255).collect()),
        ("array", b"[1,2,3]".to_vec()),
        ("no message", b"{}".to_vec()),
        ("bad JSON", b"{\"id\" 0}".to_vec()),
        ("bad UTF-8", b"{\"id\": \"\xff\"}".to_vec()),
        ("deep", deep.into_bytes()),
        ("long", long.into_bytes()),
        (
            "update without a monitor",
            br#"{"method":"update3","params":["heddle","x",{}],"id":null}"#.to_vec(),
        ),
        (
            "no schema",
            br#"{"id":0,"result":{"name":3},"error":null}"#.to_vec(),
        ),
        (
            "no database",
            br#"{"id":0,"result":null,"error":"unknown database"}"#.to_vec(),
        ),
    ];
    for (name, bytes) in at_once {
        let mut peer = script.accept().await;
        // The client may close before it has read all.
        let _ = peer.stream.write_all(&bytes).await;
        patiently(name, peer.closed()).await;
    }
    assert!(!client.snapshot().is_loaded());

    for contents in [
        json!(null),
        json!([]),
        json!([true, TXN1, {}]),
        json!([false, TXN1, {"T": 3}]),
    ] {
        let mut peer = loading(&script).await;
        peer.reply("monitor_cond_since", contents.clone()).await;
        patiently(&contents.to_string(), peer.closed()).await;
    }
    assert!(!client.snapshot().is_loaded());

    for (n, update) in [
        json!({"T": {NIL: {"modify": {"n": 1}}}}),
        json!({"T": {ROW: {"vanish": {}}}}),
        json!({"T": {"not a uuid": {"delete": null}}}),
        json!([]),
    ]
    .into_iter()
    .enumerate()
    {
        let n = i64::try_from(n).unwrap();
        let mut peer = loading(&script).await;
        let params = peer
            .reply("monitor_cond_since", json!([false, TXN1, row("initial", n)]))
            .await;
        assert_eq!(params[3], NIL, "after an inconsistency nothing is continued");
        until_n(&client, n).await;
        peer.notify("update3", json!([params[1], TXN2, update])).await;
        patiently(&update.to_string(), peer.closed()).await;
        assert_eq!(n_of(&client), Some(n));
    }

    // Odd messages do not end the connection: unknown notifications, tables, columns and locks.
    let mut peer = loading(&script).await;
    let params = peer
        .reply("monitor_cond_since", json!([false, NIL, row("initial", 10)]))
        .await;
    until_n(&client, 10).await;
    for (method, params) in [
        ("locked", json!(["not ours"])),
        ("locked", json!([])),
        ("sunrise", json!([1, 2, 3])),
        (
            "update3",
            json!([params[1], TXN1, {"V": {"odd": 1}, "T": {ROW: {"modify": {"n": "text", "v": 2}}}}]),
        ),
        (
            "update3",
            json!([params[1], 5, {"T": {ROW: {"modify": {"s": ["set", [3]]}}}}]),
        ),
    ] {
        peer.notify(method, params).await;
    }
    until(&client, "set", |db, _| {
        db.first("T").unwrap().ints("s").is_ok_and(|s| s == [3])
    })
    .await;
    assert!(client.snapshot().first("T").unwrap().int("n").is_err());
    assert!(client.status().is_connected() && !client.has_lock());
    peer.notify("monitor_canceled", json!([params[1]])).await;
    peer.closed().await;
}

/// A server that sends requests and does not read the replies must not fill memory.
#[tokio::test]
async fn a_server_that_does_not_read() {
    let script = Script::listen();
    let client = spawn(&script, quick());
    let mut peer = script.accept().await;
    let ask = request("echo", json!(["x".repeat(1 << 20)]), 1).to_string();
    let flooding = async {
        for _ in 0..200 {
            if peer.stream.write_all(ask.as_bytes()).await.is_err() {
                return true;
            }
        }
        false
    };
    assert!(
        patiently("end of the flood", flooding).await,
        "the client took 200 MB of questions"
    );
    until(&client, "reason told", |_, s| {
        s.last_error.as_deref().is_some_and(|e| e.contains("read"))
    })
    .await;
}
