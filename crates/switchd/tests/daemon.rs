//! The program as scripts see it: processes, files, exit codes. Each test has its own run directory.

#[path = "lab/database.rs"]
mod database;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use database::{Database, TEST_TIMEOUT, listens, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A run directory whose daemon, if one is left, is killed when the test ends.
struct Lab {
    dir: tempfile::TempDir,
    database: Option<Database>,
}

impl Lab {
    fn new() -> Lab {
        Lab {
            dir: tempfile::tempdir().expect("a directory"),
            database: None,
        }
    }

    /// Starts a database elsewhere: a daemon that detaches is ready only when it has its configuration.
    /// `None` if there is no server program.
    fn with_database(test: &str) -> Option<Lab> {
        let database = Some(Database::start(test)?);
        let mut lab = Lab::new();
        lab.database = database;
        Some(lab)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program, called `argv0`.
    fn program(&self, argv0: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heddled"));
        command
            .arg0(argv0)
            .args(args)
            .stdin(Stdio::null())
            .current_dir(self.dir.path());
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.dir.path());
        }
        command.env("OVS_SYSLOG_METHOD", "null");
        if let Some(database) = &self.database {
            command.arg(database.remote());
        }
        command
    }

    fn output(&self, argv0: &str, args: &[&str]) -> Output {
        self.program(argv0, args).output().expect("started")
    }

    fn start(&self, args: &[&str]) -> Child {
        self.program("ovs-vswitchd", args).spawn().expect("started")
    }

    fn pid(&self) -> i32 {
        let text = fs::read_to_string(self.path("ovs-vswitchd.pid")).expect("a pid file");
        text.trim().parse().expect("a number")
    }

    fn socket(&self) -> PathBuf {
        self.path(&format!("ovs-vswitchd.{}.ctl", self.pid()))
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).expect("readable");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let text = fs::read_to_string(self.path("ovs-vswitchd.pid")).unwrap_or_default();
        let Ok(pid) = text.trim().parse::<i32>() else {
            return;
        };
        // A test may have written any number there: kill nothing but the program under test.
        if fs::read_link(format!("/proc/{pid}/exe"))
            .is_ok_and(|exe| exe == Path::new(env!("CARGO_BIN_EXE_heddled")))
        {
            let _ = kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL);
        }
    }
}

fn wait_end(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until("the end of the daemon", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    status.expect("set above")
}

/// Sends one command: `Ok` for a result, `Err` for an error.
fn call(socket: &Path, method: &str, params: &[&str]) -> Result<String, String> {
    let mut stream = UnixStream::connect(socket).expect("a control socket");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("supported");
    let request = json!({"id": 0, "method": method, "params": params}).to_string();
    stream.write_all(request.as_bytes()).expect("sent");
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        if let Ok(reply) = serde_json::from_slice::<Value>(&bytes) {
            let text = |key: &str| reply[key].as_str().map(str::to_owned);
            return text("result").ok_or_else(|| text("error").expect("result or error"));
        }
        let n = stream.read(&mut chunk).expect("an answer");
        assert!(n > 0, "hung up");
        bytes.extend_from_slice(&chunk[..n]);
    }
}

#[test]
fn detach_talk_exit() {
    let Some(lab) = Lab::with_database("detach_talk_exit") else {
        return;
    };
    let out = lab.output(
        "heddled",
        &[
            "--pidfile",
            "--detach",
            "--log-file",
            "-vunixctl",
            "--enable-dummy",
        ],
    );
    assert!(out.status.success());
    assert_eq!(
        String::from_utf8_lossy(&out.stderr),
        "",
        "a clean start says nothing"
    );
    let pid = lab.pid();
    let names = [
        "heddle-samples.sock".into(),
        format!("heddled.{pid}.ctl"),
        "heddled.pid".into(),
        // The list of the daemon's sockets, for the next one.
        "heddled.sockets".into(),
        format!("ovs-vswitchd.{pid}.ctl"),
        "ovs-vswitchd.log".into(),
        "ovs-vswitchd.pid".into(),
    ];
    assert_eq!(
        lab.files(),
        names,
        "once the parent has returned, all is in place"
    );

    let socket = lab.path(&format!("heddled.{pid}.ctl"));
    let version = call(&socket, "version", &[]).expect("a version");
    assert!(version.starts_with("heddled (Open vSwitch) 3.1.0\n"), "{version}");
    let commands = call(&socket, "list-commands", &[]).expect("a list");
    for command in [
        "coverage/show",
        "exit                    [--cleanup]",
        "memory/show",
        "vlog/set",
    ] {
        assert!(commands.contains(command), "{commands}");
    }
    assert!(
        call(&socket, "vlog/list", &[])
            .expect("a list")
            .contains("\nunixctl            OFF        DBG        DBG\n")
    );
    assert_eq!(
        call(&socket, "vlog/set", &["bridge:file:warn"]),
        Ok(String::new())
    );
    assert!(
        call(&socket, "vlog/list", &[])
            .expect("a list")
            .contains("\nbridge             OFF       INFO       WARN\n")
    );
    assert_eq!(
        call(&socket, "vlog/set", &["nope"]),
        Err("no destination, level, or module \"nope\"\n".into())
    );
    let log = fs::read_to_string(lab.path("ovs-vswitchd.log")).expect("a log");
    assert!(
        log.contains("|unixctl|DBG|received request vlog/set[\"nope\"], id=0\n"),
        "{log}"
    );

    let again = lab.output("ovs-vswitchd", &["--pidfile", "--detach"]);
    assert_eq!(again.status.code(), Some(1));
    let pidfile = lab.path("ovs-vswitchd.pid");
    let message = format!(
        "ovs-vswitchd: {}: already running as pid {pid}, aborting\n",
        pidfile.display()
    );
    assert_eq!(String::from_utf8_lossy(&again.stderr), message);

    assert_eq!(call(&socket, "exit", &[]), Ok(String::new()));
    wait_until("files are removed", || lab.files() == ["ovs-vswitchd.log"]);
}

#[test]
fn signals_end_it_cleanly() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let lab = Lab::new();
        let mut child = lab.start(&["--pidfile", "--log-file", "-vconsole:off"]);
        let pid = i32::try_from(child.id()).expect("a pid");
        wait_until("it serves", || {
            listens(&lab.path(&format!("ovs-vswitchd.{pid}.ctl")))
        });
        assert_eq!(lab.pid(), pid);
        kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("alive");
        assert_eq!(
            wait_end(&mut child).signal(),
            Some(signal.as_raw()),
            "the parent sees the true cause"
        );
        assert_eq!(lab.files(), ["ovs-vswitchd.log"]);
        let log = fs::read_to_string(lab.path("ovs-vswitchd.log")).expect("a log");
        assert!(
            log.contains(&format!(
                "|fatal_signal|WARN|terminating with signal {} (",
                signal.as_raw()
            )),
            "{log}"
        );
    }
}

#[test]
fn a_stale_pidfile_is_replaced_and_overwriting_is_possible() {
    let lab = Lab::new();
    fs::write(lab.path("ovs-vswitchd.pid"), "99999999\n").expect("written");
    let mut first = lab.start(&["--pidfile", "-vconsole:off"]);
    let pid = i32::try_from(first.id()).expect("a pid");
    wait_until("it serves", || {
        listens(&lab.path(&format!("ovs-vswitchd.{pid}.ctl")))
    });
    assert_eq!(lab.pid(), pid);
    let first_socket = lab.socket();
    let mut second = lab.start(&["--pidfile", "--overwrite-pidfile", "-vconsole:off"]);
    let its_pid = i32::try_from(second.id()).expect("a pid");
    wait_until("it serves", || {
        listens(&lab.path(&format!("ovs-vswitchd.{its_pid}.ctl")))
    });
    assert_eq!(lab.pid(), its_pid);
    let second_socket = lab.socket();
    assert_eq!(call(&second_socket, "exit", &["--cleanup"]), Ok(String::new()));
    assert_eq!(call(&first_socket, "exit", &[]), Ok(String::new()));
    assert_eq!(wait_end(&mut first).code(), Some(0));
    assert_eq!(wait_end(&mut second).code(), Some(0));
}

#[test]
fn the_monitor_restarts_after_a_crash_only() {
    let Some(lab) = Lab::with_database("the_monitor_restarts_after_a_crash_only") else {
        return;
    };
    let out = lab.output(
        "ovs-vswitchd",
        &["--pidfile", "--detach", "--monitor", "--log-file"],
    );
    assert!(out.status.success());
    let first = lab.pid();
    kill_process(Pid::from_raw(first).expect("a process"), Signal::SEGV).expect("alive");
    wait_until("a new daemon", || {
        fs::read_to_string(lab.path("ovs-vswitchd.pid")).is_ok_and(|text| text.trim() != first.to_string())
    });
    wait_until("it serves", || listens(&lab.socket()));
    assert_eq!(call(&lab.socket(), "exit", &[]), Ok(String::new()));
    let log = || fs::read_to_string(lab.path("ovs-vswitchd.log")).expect("a log");
    wait_until("the monitor ends", || {
        log().contains("|daemon_unix(monitor)|INFO|pid ")
    });
    let crash = format!("|ERR|1 crashes: pid {first} died, killed (Segmentation fault)");
    assert!(log().contains(&crash), "{}", log());
    assert!(log().contains("died, exit status 0, exiting\n"), "{}", log());
}

#[test]
fn failures_reach_the_parent() {
    let lab = Lab::new();
    let out = lab.output("ovs-vswitchd", &["--detach", "--unixctl=no/such/dir.ctl"]);
    assert_eq!(out.status.code(), Some(1));
    let socket = lab.path("no/such/dir.ctl");
    let why = "could not initialize control socket (No such file or directory)";
    assert_eq!(
        String::from_utf8_lossy(&out.stderr),
        format!("ovs-vswitchd: {}: {why}\n", socket.display())
    );

    let out = lab.output("ovs-vswitchd", &["-vnope:dbg"]);
    assert_eq!(out.status.code(), Some(1));
    let message = "ovs-vswitchd: processing \"nope:dbg\": no destination, level, or module \"nope\"\n";
    assert_eq!(String::from_utf8_lossy(&out.stderr), message);
}

/// The real client, where it is installed.
#[test]
fn ovs_appctl_works_with_both_names() {
    let appctl = |lab: &Lab, args: &[&str]| {
        let out = Command::new("ovs-appctl")
            .args(args)
            .env("OVS_RUNDIR", lab.dir.path())
            .output();
        out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let Some(lab) = Lab::with_database("ovs_appctl_works_with_both_names") else {
        return;
    };
    assert!(lab.output("heddled", &["--pidfile", "--detach"]).status.success());
    let Ok(plain) = appctl(&lab, &["version"]) else {
        eprintln!("ovs-appctl is not installed: skipped");
        return;
    };
    assert!(plain.starts_with("heddled (Open vSwitch) 3.1.0"), "{plain}");
    assert_eq!(
        appctl(&lab, &["-t", "heddled", "version"]).expect("installed"),
        plain
    );
    assert_eq!(appctl(&lab, &["exit"]).expect("installed"), "");
    wait_until("files are removed", || lab.files().is_empty());
}
