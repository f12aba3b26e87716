//! A server that sends messages as a test scripts them.

use std::future::Future;
use std::time::Duration;

use heddle_ovsdb::rpc::{Framer, Message, error_reply, reply};
use heddle_ovsdb::{Client, MonitorSpec, Options};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::until;

/// One table `T` with an integer `n`, a set `s` and a map `m`.
pub(crate) fn schema() -> Value {
    json!({"name": "D", "version": "1.0.0", "tables": {"T": {"columns": {
        "n": {"type": "integer"},
        "s": {"type": {"key": "integer", "min": 0, "max": "unlimited"}},
        "m": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
    }}}})
}

pub(crate) const ROW: &str = "00000000-0000-0000-0000-000000000001";
pub(crate) const NIL: &str = "00000000-0000-0000-0000-000000000000";
pub(crate) const TXN1: &str = "11111111-1111-1111-1111-111111111111";
pub(crate) const TXN2: &str = "22222222-2222-2222-2222-222222222222";

pub(crate) fn spawn(script: &Script, options: Options) -> Client {
    Client::spawn(&script.remote, "D", MonitorSpec::all(), options).unwrap()
}

/// A row of `T` with this `n`, as an operation of `update2`.
pub(crate) fn row(operation: &str, n: i64) -> Value {
    json!({"T": {ROW: {operation: {"n": n}}}})
}

pub(crate) fn n_of(client: &Client) -> Option<i64> {
    client.snapshot().first("T").map(|row| row.int("n").unwrap())
}

pub(crate) async fn until_n(client: &Client, n: i64) {
    until(client, &format!("n = {n}"), |db, _| {
        db.first("T").is_some_and(|row| row.int("n") == Ok(n))
    })
    .await;
}

pub(crate) async fn loading(script: &Script) -> Peer {
    let mut peer = script.accept().await;
    peer.reply("get_schema", schema()).await;
    peer
}

/// A socket that clients find.
pub(crate) struct Script {
    _dir: tempfile::TempDir,
    listener: UnixListener,
    pub(crate) remote: String,
}

impl Script {
    pub(crate) fn listen() -> Script {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sock");
        let listener = UnixListener::bind(&path).unwrap();
        Script {
            remote: format!("unix:{}", path.display()),
            _dir: dir,
            listener,
        }
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> Peer {
        let stream = patiently("a connection", self.listener.accept()).await.unwrap().0;
        Peer {
            stream,
            framer: Framer::new(1 << 20),
        }
    }
}

/// Waits, but not for ever.
pub(crate) async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(super::TEST_TIMEOUT, future).await {
        Ok(out) => out,
        Err(_) => panic!("no {what} in {:?}", super::TEST_TIMEOUT),
    }
}

/// The server's end of one connection.
pub(crate) struct Peer {
    pub(crate) stream: UnixStream,
    framer: Framer,
}

impl Peer {
    /// The next message; `None` when the client closed.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(json) = self.framer.next().unwrap() {
                return Some(Message::from_json(json).unwrap());
            }
            let mut chunk = [0; 4096];
            match patiently("message", self.stream.read(&mut chunk)).await {
                Ok(n) if n > 0 => self.framer.push(&chunk[..n]),
                _ => return None,
            }
        }
    }

    /// The next request, which must be `method`: its parameters and id.
    pub(crate) async fn expect(&mut self, method: &str) -> (Vec<Value>, Value) {
        match self.next().await {
            Some(Message::Request {
                method: m,
                params,
                id,
            }) if m == method => (params, id),
            other => panic!("expected {method}, got {other:?}"),
        }
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.stream
            .write_all(message.to_string().as_bytes())
            .await
            .unwrap();
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"method": method, "params": params, "id": null}))
            .await;
    }

    /// Replies to the next request, which must be `method`.
    pub(crate) async fn reply(&mut self, method: &str, result: Value) -> Vec<Value> {
        let (params, id) = self.expect(method).await;
        self.send(&reply(id, result)).await;
        params
    }

    /// Refuses the next request, which must be `method`, as a server that does not know it.
    pub(crate) async fn refuse(&mut self, method: &str) {
        let (_, id) = self.expect(method).await;
        self.send(&error_reply(id, "unknown method".into())).await;
    }

    /// Waits for the client to close.
    pub(crate) async fn closed(&mut self) {
        while self.next().await.is_some() {}
    }
}

/// Waits long enough for a forbidden event to happen.
pub(crate) async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(150)).await;
}
