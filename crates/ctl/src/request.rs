//! One request to the daemon: JSON-RPC over its control socket.

use anyhow::{Context as _, Result, bail};
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a reply.
const MAX_BYTES: u64 = 64 << 20;

/// The option that names a command's switch.
#[derive(Clone, clap::Args)]
pub(crate) struct Target {
    /// The daemon's control socket [default: that of the daemon whose pidfile is in OVS_RUNDIR]
    #[arg(short, long, value_name = "SOCKET")]
    target: Option<PathBuf>,
}

impl Target {
    /// The control socket: that of --target, or that of the daemon whose pidfile is in the run directory.
    pub(crate) fn socket(&self) -> Result<PathBuf> {
        match &self.target {
            Some(path) => Ok(path.clone()),
            None => {
                let set = std::env::var_os("OVS_RUNDIR").filter(|dir| !dir.is_empty());
                in_rundir(set.as_deref().map(Path::new))
            }
        }
    }

    /// Sends a command to the switch; returns its reply.
    pub(crate) fn request(&self, command: &str, params: &[&str]) -> Result<String> {
        request(&self.socket()?, command, params)
    }
}

fn in_rundir(set: Option<&Path>) -> Result<PathBuf> {
    let dir = set.unwrap_or(Path::new("/var/run/openvswitch"));
    let pidfile = dir.join("ovs-vswitchd.pid");
    let pid = std::fs::read_to_string(&pidfile).with_context(|| {
        let how = match set {
            None => "set OVS_RUNDIR to its run directory",
            Some(_) => "OVS_RUNDIR names that directory",
        };
        format!(
            "no switch is found: {} cannot be read ({how}, or give --target SOCKET)",
            pidfile.display()
        )
    })?;
    Ok(dir.join(format!("ovs-vswitchd.{}.ctl", pid.trim())))
}

/// Sends a command to the daemon behind a control socket; returns its reply.
pub(crate) fn request(socket: &Path, command: &str, params: &[&str]) -> Result<String> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("no switch listens at {}", socket.display()))?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    let question = json!({"method": command, "params": params, "id": 0});
    stream.write_all(question.to_string().as_bytes())?;
    // A reply ends with its last brace; the connection stays open.
    let mut reader = serde_json::Deserializer::from_reader(BufReader::new(stream.take(MAX_BYTES)));
    text(&Value::deserialize(&mut reader).context("no complete reply")?)
}

fn text(answer: &Value) -> Result<String> {
    match (&answer["result"], &answer["error"]) {
        (Value::String(text), _) => Ok(text.clone()),
        (_, Value::String(why)) if why.contains("is not a valid command") => {
            bail!("this daemon is not Heddle's, or an older one: {}", why.trim())
        }
        (_, Value::String(why)) => bail!("{}", why.trim()),
        _ => bail!("the reply is not valid: {answer}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_switch_the_error_names_the_run_directory() {
        let none = Path::new("/no/such/directory");
        let e = crate::console::error(&in_rundir(Some(none)).unwrap_err());
        assert!(
            e.contains("/no/such/directory/ovs-vswitchd.pid") && e.contains("OVS_RUNDIR names"),
            "{e}"
        );
        let e = request(&none.join("x.ctl"), "version", &[])
            .unwrap_err()
            .to_string();
        assert_eq!(e, "no switch listens at /no/such/directory/x.ctl");
    }
}
