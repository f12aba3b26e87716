//! A private `ovsdb-server` and one daemon with pretended devices, ended when the value is dropped.

mod database;

use std::cell::RefCell;
use std::process::{Child, Command, Stdio};

use database::{Database, listens, wait_until};

pub(crate) struct Lab {
    dir: tempfile::TempDir,
    database: Database,
    daemon: RefCell<Child>,
}

/// A program with its result, or the reason why the test fails.
fn output(command: &mut Command) -> (bool, String) {
    let out = command.output().expect("started");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        return (false, text + &String::from_utf8_lossy(&out.stderr));
    }
    (true, text)
}

impl Lab {
    /// `None` where Open vSwitch's programs are not installed.
    pub(crate) fn new(test: &str) -> Option<Lab> {
        let database = Database::start(test)?;
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = RefCell::new(start(&database, dir.path()));
        Some(Lab {
            dir,
            database,
            daemon,
        })
    }

    fn run(&self, program: &str, args: &str) -> (bool, String) {
        let mut command = Command::new(program);
        let target = match program {
            "ovs-vsctl" => format!("--db={}", self.database.remote()),
            "ovs-appctl" => format!("--target={}", self.dir.path().join("ctl").display()),
            _ => "-vconsole:warn".to_owned(),
        };
        command
            .env("OVS_RUNDIR", self.dir.path())
            .arg(target)
            // On a machine that stands still these modules would log in the middle of the command's output.
            .args([
                "--timeout=50",
                "-vtimeval:off",
                "-vcoverage:off",
                "-vpoll_loop:off",
            ])
            .args(args.split_whitespace());
        output(&mut command)
    }

    fn succeeds(&self, program: &str, args: &str) -> String {
        let (ok, text) = self.run(program, args);
        assert!(ok, "{program} {args}: {text}");
        text
    }

    pub(crate) fn vsctl(&self, args: &str) {
        let (ok, text) = self.run("ovs-vsctl", args);
        assert!(ok && !text.contains("Error"), "ovs-vsctl {args}: {text}");
    }

    /// Writes a configuration that contains an error.
    pub(crate) fn vsctl_fails(&self, args: &str) {
        let text = self.run("ovs-vsctl", args).1;
        assert!(!text.contains("Alarm"), "ovs-vsctl {args}: {text}");
    }

    pub(crate) fn appctl(&self, args: &str) -> String {
        self.succeeds("ovs-appctl", args)
    }

    pub(crate) fn ofctl(&self, args: &str) -> String {
        self.succeeds("ovs-ofctl", args)
    }

    pub(crate) fn get(&self, table: &str, record: &str, column: &str) -> String {
        self.succeeds("ovs-vsctl", &format!("get {table} {record} {column}"))
            .trim()
            .to_owned()
    }

    /// All rows of a table, for people.
    pub(crate) fn list(&self, table: &str) -> String {
        self.succeeds("ovs-vsctl", &format!("list {table}"))
    }

    /// Whether a process listens at a socket in the run directory.
    pub(crate) fn listens(&self, socket: &str) -> bool {
        listens(&self.dir.path().join(socket))
    }

    /// The daemon's log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("the log")
    }

    /// Waits until the daemon has logged this: its log is written by a thread of its own.
    pub(crate) fn wait_log(&self, text: &str) {
        wait_until(&format!("{text:?} in the log"), || self.log().contains(text));
    }

    pub(crate) fn wait(&self, table: &str, record: &str, column: &str, value: &str) {
        wait_until(&format!("{record} {column}={value}"), || {
            self.get(table, record, column) == value
        });
    }

    /// Ends the daemon and starts another, which has the configuration when this returns.
    pub(crate) fn restart(&self) {
        self.appctl("exit");
        let mut daemon = self.daemon.borrow_mut();
        wait_until("the end of the daemon", || {
            daemon.try_wait().is_ok_and(|s| s.is_some())
        });
        *daemon = start(&self.database, self.dir.path());
        // ovs-vsctl waits until its change is applied.
        let id = daemon.id();
        self.vsctl(&format!("set open_vswitch . external_ids:daemon={id}"));
    }
}

fn start(database: &Database, dir: &std::path::Path) -> Child {
    let daemon = Command::new(env!("CARGO_BIN_EXE_heddled"))
        .arg(database.remote())
        .arg(format!("--unixctl={}", dir.join("ctl").display()))
        .arg(format!("--log-file={}", dir.join("log").display()))
        .args(["--enable-dummy=override", "--disable-system", "-vconsole:off"])
        .env("OVS_RUNDIR", dir)
        .env("OVS_LOGDIR", dir)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    wait_until("the control socket", || listens(&dir.join("ctl")));
    daemon
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut daemon = self.daemon.borrow_mut();
        let _ = daemon.kill();
        let _ = daemon.wait();
    }
}
