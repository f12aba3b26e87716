//! Running other plug-ins: address plug-ins, and one that this one wraps.

use crate::args::Args;
use crate::conf::{Conf, kind_of};
use crate::error::{Code, Failure, fail};
use crate::names;
use serde_json::Value;
use std::io::{Error, ErrorKind, Read, Result as IoResult, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Variable with the number of heddle-cni processes above this one.
const DEPTH_VARIABLE: &str = "HEDDLE_CNI_DEPTH";
/// Maximum value of [`DEPTH_VARIABLE`] with which another plug-in is still run.
const MAX_DEPTH: u32 = 2;
/// Maximum length of a plug-in's reply.
const MAX_REPLY_BYTES: u64 = 4 << 20;

/// The newest version, whose new commands older plug-ins do not know, and the version before. Results are the
/// same in both.
const WITH_GC: &str = "1.1.0";
const BEFORE_GC: &str = "1.0.0";

/// Runs plug-in `kind`. One that does not support the configuration's version is run again with the version
/// before. A plug-in that does not know GC or STATUS has nothing to do for them. See [`once`].
pub(crate) fn run(
    args: &Args,
    own: &Conf,
    kind: &str,
    command: &str,
    conf: &Value,
) -> Result<Value, Failure> {
    let optional = matches!(command, "GC" | "STATUS");
    match once(args, own, kind, command, conf) {
        Err(e) if e.code == Code::Version as u64 && conf["cniVersion"] == WITH_GC => {
            if optional {
                return Ok(Value::Null);
            }
            let mut older = conf.clone();
            older["cniVersion"] = BEFORE_GC.into();
            once(args, own, kind, command, &older)
        }
        Err(e) if optional && e.code == Code::Environment as u64 => Ok(Value::Null),
        done => done,
    }
}

/// Runs plug-in `kind` as this one was run, with another command and configuration. Returns its reply, `Null`
/// if it is empty. A failure of the plug-in is passed on with its own number.
fn once(args: &Args, own: &Conf, kind: &str, command: &str, conf: &Value) -> Result<Value, Failure> {
    let depth = child_depth(std::env::var(DEPTH_VARIABLE).ok().as_deref())?;
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
        .env(DEPTH_VARIABLE, depth.to_string())
        .envs(about.into_iter().filter(|(_, value)| !value.is_empty()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(cannot)?;
    let done = talk(&mut child, conf.to_string(), own.timeout());
    if done.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let (status, answer) = match done {
        Err(e) if e.kind() == ErrorKind::TimedOut => {
            let limit_s = own.timeout().as_secs();
            return fail(
                Code::Delegate,
                format!("plug-in {kind} did not end within {limit_s} s (timeoutSeconds) and was killed"),
            );
        }
        done => done.map_err(cannot)?,
    };
    let said: Value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
    if status.success() {
        return match said {
            Value::Null if !answer.trim_ascii().is_empty() => fail(
                Code::Delegate,
                format!("plug-in {kind} returns no JSON for {command}"),
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
            format!("plug-in {kind} failed with {} and gave no reason", status),
        ),
    }
}

/// Writes a plug-in's input and reads its reply, until the plug-in has ended or the time is over.
fn talk(child: &mut Child, input: String, limit: Duration) -> IoResult<(ExitStatus, Vec<u8>)> {
    let end = Instant::now() + limit;
    let over = || Error::from(ErrorKind::TimedOut);
    // Plug-ins read all of their input before they reply. One that does not read ends with a broken pipe
    // here, and its reply has the reason. One that neither reads nor ends must not hold up this thread.
    if let Some(mut stdin) = child.stdin.take() {
        thread::Builder::new().spawn(move || stdin.write_all(input.as_bytes()))?;
    }
    let (sender, answers) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::Builder::new().spawn(move || {
            let mut answer = Vec::new();
            let read = stdout.take(MAX_REPLY_BYTES).read_to_end(&mut answer);
            // The receiver is gone if the time was over.
            let _ = sender.send(read.map(|_| answer));
        })?;
    }
    let answer = answers.recv_timeout(limit).map_err(|_| over())??;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok((status, answer)),
            None if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
            None => return Err(over()),
        }
    }
}

/// The depth of a child of the process whose own depth is `own`; fails if it would be too great.
fn child_depth(own: Option<&str>) -> Result<u32, Failure> {
    // A value that is no number did not come from this program.
    match own.map_or(0, |text| text.parse().unwrap_or(u32::MAX)) {
        depth if depth <= MAX_DEPTH => Ok(depth + 1),
        _ => fail(
            Code::Conf,
            format!("plug-ins run each other more than {MAX_DEPTH} levels deep ({DEPTH_VARIABLE})"),
        ),
    }
}

/// Refuses a configuration that names this program, also by another name, as a plug-in to be run.
pub(crate) fn refuse_itself(args: &Args, conf: &Conf) -> Result<(), Failure> {
    let inner = conf.raw.get("delegate").and_then(Value::as_object);
    let named = [
        ("ipam.type", conf.ipam()?),
        ("delegate.type", inner.and_then(kind_of)),
    ];
    for (key, kind) in named {
        if let Some(kind) = kind
            && let Ok(path) = find(args, kind)
            && is_same_file(&path, Path::new("/proc/self/exe"))
        {
            return names::itself(key, kind);
        }
    }
    Ok(())
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|m| (m.dev(), m.ino()));
    matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    }

    #[test]
    fn a_child_has_a_time_limit() {
        let long = || "x".repeat(1 << 20);
        let (status, answer) = talk(&mut sh("wc -c"), long(), Duration::from_secs(60)).unwrap();
        assert!(status.success() && answer.trim_ascii() == b"1048576");
        // One plug-in hangs with its output open, one with its output closed.
        for script in ["exec sleep 60", "exec sleep 60 >&-"] {
            let mut child = sh(script);
            let e = talk(&mut child, long(), Duration::from_millis(100)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::TimedOut, "{script}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn detours_end() {
        assert_eq!(child_depth(None).unwrap(), 1);
        assert_eq!(child_depth(Some("2")).unwrap(), 3);
        for bad in ["3", "4294967295", "", "x"] {
            assert_eq!(child_depth(Some(bad)).unwrap_err().code, 7, "{bad}");
        }
        let exe = std::env::current_exe().unwrap();
        assert!(is_same_file(&exe, Path::new("/proc/self/exe")));
        assert!(!is_same_file(Path::new("/bin/sh"), Path::new("/proc/self/exe")));
    }
}
