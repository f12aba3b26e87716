//! One client of the control socket: reads requests, runs them one after the other, writes replies.
//!
//! Messages are JSON-RPC 1.0 as RFC 7047 section 4 uses it. The reply to
//! `{"id":0,"method":"version","params":[]}` is `{"id":0,"result":"...","error":null}`. Any other message
//! ends this connection and no other.

use std::io;

use heddle_ovsdb::rpc::Framer;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::{Format, JsonReply, Registry};
use crate::coverage::coverage;

/// The longest message taken. The largest real ones are `dpctl/add-flow` with a long flow: some kilobytes.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// A request that can be run.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) params: Vec<Value>,
    pub(super) id: Value,
}

/// Serves one client until it hangs up, sends nonsense, or `stop` becomes true while no command is in
/// progress.
pub(super) async fn serve(
    name: String,
    mut stream: UnixStream,
    registry: Registry,
    mut stop: watch::Receiver<bool>,
) {
    let mut framer = Framer::new(MAX_MESSAGE_BYTES);
    let mut chunk = [0u8; 4096];
    let mut format = Format::default();
    loop {
        match framer.next() {
            Err(error) => return warn_bad(&name, &error.to_string()),
            Ok(Some(message)) => match parse(message) {
                Err(error) => return warn_bad(&name, &error),
                Ok(request) => {
                    let id = request.id.clone();
                    let reply = run(&registry, request, &mut format).await;
                    if let Err(error) = send(&mut stream, reply, id).await {
                        log::debug!(target: "unixctl", "{name}: send failed: {error}");
                        return;
                    }
                }
            },
            Ok(None) => {
                let read = tokio::select! {
                    read = stream.read(&mut chunk) => read,
                    _ = stop.wait_for(|stop| *stop) => return,
                };
                match read {
                    Ok(0) => return,
                    Ok(n) => framer.push(chunk.get(..n).unwrap_or_default()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        log::debug!(target: "unixctl", "{name}: receive failed: {error}");
                        return;
                    }
                }
            }
        }
    }
}

fn warn_bad(name: &str, why: &str) {
    log::warn!(target: "jsonrpc", per_min = 5, burst = 5; "{name}: {why}");
}

/// Checks that a message is a request; the error names the kind of message that it is instead.
pub(super) fn parse(message: Value) -> Result<Request, String> {
    let Value::Object(mut object) = message else {
        return Err("message is not a JSON object".into());
    };
    let mut take = |key| object.remove(key).filter(|value| !value.is_null());
    let (method, params, id) = (take("method"), take("params"), take("id"));
    let (result, error) = (take("result"), take("error"));
    let refuse = |kind: &str| Err(format!("received unexpected {kind} message"));
    if let Some(key) = object
        .keys()
        .find(|key| !matches!(key.as_str(), "method" | "params" | "id" | "result" | "error"))
    {
        return Err(format!(
            "received bad JSON-RPC message: unexpected member \"{key}\""
        ));
    }
    match (method, params, id, result, error) {
        (Some(Value::String(method)), Some(Value::Array(params)), Some(id), None, None) => {
            Ok(Request { method, params, id })
        }
        (Some(Value::String(_)), Some(Value::Array(_)), None, None, None) => refuse("notification"),
        (None, None, Some(_), Some(_), None) => refuse("reply"),
        (None, None, Some(_), None, Some(_)) => refuse("error"),
        _ => Err("received bad JSON-RPC message: members do not make a request".into()),
    }
}

/// Runs a request; a text reply is a JSON string.
async fn run(registry: &Registry, request: Request, format: &mut Format) -> JsonReply {
    coverage!("unixctl_received");
    let Request { method, params, id } = request;
    log::debug!(target: "unixctl", "received request {method}{}, id={id}", Value::from(params.clone()));
    let reply = match registry.find(&method, params.len()) {
        Err(error) => Err(error),
        Ok(_) => match strings(params) {
            None => Err(format!("\"{method}\" command has non-string argument")),
            Some(args) => {
                if let ("set-options", Ok(wanted)) = (method.as_str(), Format::from_options(&args)) {
                    *format = wanted;
                }
                match format {
                    Format::Text => registry.run(&method, args).await.map(Value::from),
                    Format::Json => registry.run_json(&method, args).await,
                }
            }
        },
    };
    match &reply {
        Ok(Value::String(text)) => {
            log::debug!(target: "unixctl", "replying with success, id={id}: \"{text}\"");
        }
        Ok(body) => log::debug!(target: "unixctl", "replying with success, id={id}: {body}"),
        Err(body) => log::debug!(target: "unixctl", "replying with error, id={id}: \"{body}\""),
    }
    coverage!("unixctl_replied");
    // A script that reads the log after the reply must find what the command logged.
    let _ = tokio::task::spawn_blocking(crate::vlog::flush).await;
    reply
}

/// A longer reply is sent in pieces of this size, so that dumps of a million flows need no second copy in
/// JSON.
const PIECE_BYTES: usize = 1 << 16;

/// Sends a reply.
pub(super) async fn send(to: &mut (impl AsyncWrite + Unpin), reply: JsonReply, id: Value) -> io::Result<()> {
    let text = match reply {
        Ok(Value::String(text)) if text.len() > PIECE_BYTES => text,
        short => return to.write_all(encode(short, id).to_string().as_bytes()).await,
    };
    let start = format!("{{\"error\":null,\"id\":{id},\"result\":\"");
    to.write_all(start.as_bytes()).await?;
    let mut left = text.as_str();
    while !left.is_empty() {
        let most = PIECE_BYTES.min(left.len());
        let end = (0..=most).rev().find(|at| left.is_char_boundary(*at));
        let (piece, more) = left.split_at(end.unwrap_or(left.len()));
        let quoted = Value::from(piece).to_string();
        let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        to.write_all(inner.as_bytes()).await?;
        left = more;
    }
    let end = if text.ends_with('\n') { "\"}" } else { "\\n\"}" };
    to.write_all(end.as_bytes()).await
}

fn strings(params: Vec<Value>) -> Option<Vec<String>> {
    params
        .into_iter()
        .map(|param| {
            if let Value::String(text) = param {
                Some(text)
            } else {
                None
            }
        })
        .collect()
}

/// The reply's JSON; a text that does not end its last line gets an end.
pub(super) fn encode(reply: JsonReply, id: Value) -> Value {
    let terminated = |mut text: String| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Value::String(text)
    };
    let (result, error) = match reply {
        Ok(Value::String(text)) => (terminated(text), Value::Null),
        Ok(json) => (json, Value::Null),
        Err(text) => (Value::Null, terminated(text)),
    };
    let mut object = Map::new();
    object.insert("id".into(), id);
    object.insert("result".into(), result);
    object.insert("error".into(), error);
    json!(object)
}
