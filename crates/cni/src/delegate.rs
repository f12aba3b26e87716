//! Running other plug-ins: those that hand out addresses, and one that this one wraps.

use crate::args::Args;
use crate::error::{Code, Failure, fail};
use crate::names;
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The newest version with commands that older plug-ins do not know, and the one before it. Their results
/// hold the same.
const WITH_GC: &str = "1.1.0";
const BEFORE_GC: &str = "1.0.0";

/// Runs plug-in `kind`, also one that does not speak the configuration's version: it is asked again in the
/// version before. A plug-in that does not know GC or STATUS has nothing to do for them. See [`once`].
pub(crate) fn run(args: &Args, kind: &str, command: &str, conf: &Value) -> Result<Value, Failure> {
    let optional = matches!(command, "GC" | "STATUS");
    match once(args, kind, command, conf) {
        Err(e) if e.code == Code::Version as u64 && conf["cniVersion"] == WITH_GC => {
            if optional {
                return Ok(Value::Null);
            }
            let mut older = conf.clone();
            older["cniVersion"] = BEFORE_GC.into();
            once(args, kind, command, &older)
        }
        Err(e) if optional && e.code == Code::Environment as u64 => Ok(Value::Null),
        done => done,
    }
}

/// Runs plug-in `kind` as this one was run, with another command and configuration; its answer, `Null` if
/// it says nothing. A failure of it is passed on with its own number.
fn once(args: &Args, kind: &str, command: &str, conf: &Value) -> Result<Value, Failure> {
    let cannot = |e: std::io::Error| {
        let why = heddle_sys::errno_text(&e);
        Failure::new(Code::Delegate, format!("plug-in {kind} cannot be run: {why}"))
    };
    let about = [
        ("CNI_CONTAINERID", &args.container),
        ("CNI_IFNAME", &args.ifname),
        ("CNI_NETNS", &args.netns),
    ];
    let mut child = Command::new(find(args, kind)?)
        .env("CNI_COMMAND", command)
        .envs(about.into_iter().filter(|(_, value)| !value.is_empty()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(cannot)?;
    // Plug-ins read all of their input before they answer. One that does not read ends with a broken pipe
    // here, and its answer says why.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(conf.to_string().as_bytes());
    }
    let out = child.wait_with_output().map_err(cannot)?;
    let said: Value = serde_json::from_slice(&out.stdout).unwrap_or(Value::Null);
    if out.status.success() {
        return match said {
            Value::Null if !out.stdout.trim_ascii().is_empty() => fail(
                Code::Delegate,
                format!("plug-in {kind} answers no JSON to {command}"),
            ),
            said => Ok(said),
        };
    }
    let text = |key: &str| {
        said.get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    match said.get("code").and_then(Value::as_u64) {
        Some(code) => Err(Failure {
            code,
            msg: format!("{kind}: {}", text("msg")),
            details: text("details"),
        }),
        None => fail(
            Code::Delegate,
            format!("plug-in {kind} failed with {} and said no reason", out.status),
        ),
    }
}

fn find(args: &Args, kind: &str) -> Result<PathBuf, Failure> {
    names::program("plug-in", kind)?;
    let dirs = std::env::split_paths(&args.path).filter(|dir| dir.is_absolute());
    match dirs.map(|dir| dir.join(kind)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => fail(
            Code::Delegate,
            format!("plug-in {kind} is not in CNI_PATH ({})", args.path),
        ),
    }
}
