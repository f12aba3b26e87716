//! Messages, the registry, and a server with several clients.

use std::path::Path;
use std::time::Duration;

use heddle_ovsdb::rpc::Framer;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::connection::{encode, parse};
use super::*;

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut framer = Framer::new(100);
        framer.push(&bytes);
        while let Ok(Some(message)) = framer.next() {
            let _ = parse(message);
        }
    }
}

#[test]
fn messages() {
    let request = parse(json!({"id": 0, "method": "a", "params": ["b"], "result": null})).expect("a request");
    assert_eq!(
        (request.method.as_str(), request.params, request.id),
        ("a", vec![json!("b")], json!(0))
    );
    let refusals = [
        (
            json!({"id": null, "method": "a", "params": []}),
            "received unexpected notification message",
        ),
        (
            json!({"id": 1, "result": "x", "error": null}),
            "received unexpected reply message",
        ),
        (
            json!({"id": 1, "result": null, "error": "x"}),
            "received unexpected error message",
        ),
        (
            json!({"id": 1, "method": 3, "params": []}),
            "received bad JSON-RPC message: members do not make a request",
        ),
        (
            json!({"id": 1, "method": "a", "params": [], "x": 1}),
            "received bad JSON-RPC message: unexpected member \"x\"",
        ),
    ];
    for (message, why) in refusals {
        assert_eq!(parse(message), Err(why.to_owned()));
    }
    assert_eq!(
        encode(Ok("a".into()), json!(3)),
        json!({"id": 3, "result": "a\n", "error": null})
    );
    assert_eq!(
        encode(Err("a\n".into()), json!(3)),
        json!({"id": 3, "result": null, "error": "a\n"})
    );
    assert_eq!(
        encode(Ok("".into()), json!(3)),
        json!({"id": 3, "result": "", "error": null})
    );
}

fn registry() -> Registry {
    let registry = Registry::new();
    registry.register("echo", "WORD...", 1, 2, |args| Ok(args.join("+")));
    registry.register("hidden", None, 0, 0, |_| Ok(String::new()));
    registry.register("panic", "", 0, 0, |_| panic!("on purpose"));
    registry.register("wait", "MS", 1, 1, |args| {
        let ms = args[0].parse().map_err(|_| "not a number".to_owned())?;
        std::thread::sleep(Duration::from_millis(ms));
        Ok(format!("waited {ms}"))
    });
    registry
}

#[tokio::test]
async fn commands() {
    let registry = registry();
    assert!(!registry.register("echo", "", 0, 0, |_| Ok("another".into())));
    let run = async |name: &str, args: &[&str]| {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        registry.run(name, args).await
    };
    assert_eq!(run("echo", &["a", "b"]).await, Ok("a+b".into()));
    assert_eq!(run("wait", &["1"]).await, Ok("waited 1".into()));
    assert_eq!(
        run("echo", &[]).await,
        Err("\"echo\" command requires at least 1 arguments".into())
    );
    assert_eq!(
        run("echo", &["", "", ""]).await,
        Err("\"echo\" command takes at most 2 arguments".into())
    );
    let unknown = "\"foo\" is not a valid command (use \"list-commands\" to see a list of valid commands)";
    assert_eq!(run("foo", &[]).await, Err(unknown.into()));
    assert_eq!(
        run("panic", &[]).await,
        Err("\"panic\" command failed: see the log".into())
    );
    let list = "The available commands are:\n  echo                    WORD...\n  list-commands           \n  \
                panic                   \n  set-options             [--format text|json]\n  \
                wait                    MS\n";
    assert_eq!(run("list-commands", &[]).await, Ok(list.into()));
}

#[tokio::test]
async fn long_replies_are_sent_in_pieces() {
    for unit in ["a", "\"", "\\", "é\n", "\u{1}🧵"] {
        for (length, end) in [(65_536, ""), (200_003, "\n"), (200_003, "\""), (65_537, "\\")] {
            let text = unit.repeat(length / unit.len() + 1) + end;
            let mut sent = Vec::new();
            let id = json!(["result", "\"result\":\"\""]);
            connection::send(&mut sent, Ok(text.clone().into()), id.clone())
                .await
                .unwrap();
            let got: Value = serde_json::from_slice(&sent).unwrap();
            assert_eq!(got, encode(Ok(text.into()), id));
        }
    }
}

async fn call(stream: &mut UnixStream, message: &Value) -> Option<Value> {
    stream.write_all(message.to_string().as_bytes()).await.ok()?;
    let mut buffer = Vec::new();
    loop {
        if let Ok(reply) = serde_json::from_slice(&buffer) {
            return Some(reply);
        }
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read_buf(&mut buffer)).await;
        if read.expect("an answer in time").ok()? == 0 {
            return None;
        }
    }
}

async fn connect(path: &Path) -> UnixStream {
    UnixStream::connect(path).await.expect("a server")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_requests_json_gets_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x.ctl");
    let registry = registry();
    assert!(registry.register_json("hidden", |_| Ok(json!([1]))));
    assert!(!registry.register_json("unknown", |_| Ok(json!([1]))));
    let server = Server::start(&path, registry).expect("started");
    let (mut client, mut other) = (connect(&path).await, connect(&path).await);
    let mut run = async |name: &str, args: &[&str]| {
        let reply = call(&mut client, &json!({"id": 1, "method": name, "params": args})).await;
        let reply = reply.expect("a reply");
        (reply["result"].clone(), reply["error"].clone())
    };
    let plain = |text: &str| (json!({"reply-format": "plain", "reply": text}), Value::Null);
    assert_eq!(run("echo", &["x"]).await, (json!("x\n"), Value::Null));
    for wrong in [
        &["--format"][..],
        &["--format", "xml"],
        &["--shape=json"],
        &["json"],
    ] {
        assert!(run("set-options", wrong).await.1.is_string(), "{wrong:?}");
    }
    assert_eq!(run("echo", &["x"]).await, (json!("x\n"), Value::Null));
    assert_eq!(run("set-options", &["--format", "json"]).await, plain(""));
    assert_eq!(run("echo", &["x"]).await, plain("x"));
    assert_eq!(run("wait", &["1"]).await, plain("waited 1"));
    assert_eq!(run("hidden", &[]).await, (json!([1]), Value::Null));
    let (list, _) = run("list-commands", &[]).await;
    assert_eq!((&list["wait"], &list["hidden"]), (&json!("MS"), &Value::Null));
    let unknown = "\"foo\" is not a valid command (use \"list-commands\" to see a list of valid commands)\n";
    assert_eq!(run("foo", &[]).await, (Value::Null, json!(unknown)));
    assert_eq!(
        run("set-options", &["--format=TEXT"]).await,
        (json!(""), Value::Null)
    );
    assert_eq!(run("echo", &["x"]).await, (json!("x\n"), Value::Null));
    let reply = call(&mut other, &json!({"id": 2, "method": "echo", "params": ["x"]})).await;
    assert_eq!(
        reply,
        Some(json!({"id": 2, "result": "x\n", "error": null})),
        "its own format"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_clients() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x.ctl");
    let server = Server::start(&path, registry()).expect("started");
    let (mut slow, mut quick, mut bad) = (connect(&path).await, connect(&path).await, connect(&path).await);

    let waiting = tokio::spawn(async move {
        let reply = call(&mut slow, &json!({"id": 1, "method": "wait", "params": ["700"]})).await;
        (slow, reply)
    });
    for id in 0..3 {
        let reply = call(&mut quick, &json!({"id": id, "method": "echo", "params": ["x"]})).await;
        assert_eq!(reply, Some(json!({"id": id, "result": "x\n", "error": null})));
    }
    assert!(!waiting.is_finished(), "one client must not wait for another");
    assert_eq!(
        call(&mut bad, &json!(["nonsense"])).await,
        None,
        "bad JSON-RPC ends the connection"
    );
    let reply = call(&mut quick, &json!({"id": 9, "method": "echo", "params": [1]})).await;
    let error = "\"echo\" command has non-string argument\n";
    assert_eq!(reply, Some(json!({"id": 9, "result": null, "error": error})));

    // Ending waits for the command in progress, and hangs up on idle clients.
    server.stop().await;
    let (_slow, reply) = waiting.await.expect("no panic");
    assert_eq!(
        reply,
        Some(json!({"id": 1, "result": "waited 700\n", "error": null}))
    );
    assert_eq!(
        call(&mut quick, &json!({"id": 10, "method": "echo", "params": ["x"]})).await,
        None
    );
}

/// Test suites run in deep directories; a socket address has room for 107 bytes only.
#[tokio::test]
async fn long_path_and_stale_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).expect("created");
    let path = deep.join("x.ctl");
    let first = Server::start(&path, Registry::new()).expect("started");
    first.stop().await;
    let second = Server::start(&path, Registry::new()).expect("the stale socket is replaced");
    assert_eq!(second.path(), path);
    second.stop().await;
    std::fs::remove_file(&path).expect("it exists");
    std::fs::write(&path, "precious").expect("written");
    assert!(Server::start(&path, Registry::new()).is_err());
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
}
