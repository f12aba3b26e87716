//! One question to the daemon: JSON-RPC over its control socket.

use anyhow::{Context as _, Result, bail};
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer.
const MOST_BYTES: u64 = 64 << 20;

/// The control socket: the one that is named, or that of the daemon whose pidfile lies where they do.
pub(super) fn socket(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let dir =
        std::env::var_os("OVS_RUNDIR").map_or_else(|| PathBuf::from("/var/run/openvswitch"), PathBuf::from);
    let pidfile = dir.join("ovs-vswitchd.pid");
    let pid = std::fs::read_to_string(&pidfile).with_context(|| format!("{}", pidfile.display()))?;
    Ok(dir.join(format!("ovs-vswitchd.{}.ctl", pid.trim())))
}

/// The answer to `heddle/stats`.
pub(super) fn stats(socket: &Path) -> Result<String> {
    let mut stream = UnixStream::connect(socket).with_context(|| format!("{}", socket.display()))?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let question = json!({"method": "heddle/stats", "params": [], "id": 0});
    stream.write_all(question.to_string().as_bytes())?;
    // An answer ends with its last brace, the connection goes on.
    let mut reader = serde_json::Deserializer::from_reader(BufReader::new(stream.take(MOST_BYTES)));
    text(&Value::deserialize(&mut reader).context("no whole answer")?)
}

fn text(answer: &Value) -> Result<String> {
    match (&answer["result"], &answer["error"]) {
        (Value::String(text), _) => Ok(text.clone()),
        (_, Value::String(why)) => bail!("this daemon is not Heddle's: {}", why.trim()),
        _ => bail!("an answer that is none: {answer}"),
    }
}
