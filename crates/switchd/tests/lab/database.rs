//! A private `ovsdb-server`.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// The limit of every wait, for machines that stand still for seconds. Only a failure takes that long.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `done` returns true.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TEST_TIMEOUT, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process listens at a socket, whose file appears a moment before.
pub(crate) fn listens(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// A server with an empty database; it ends with the value.
pub(crate) struct Database {
    dir: tempfile::TempDir,
    server: Child,
}

impl Database {
    /// `None`, with a note, if Open vSwitch's programs are not installed.
    pub(crate) fn start(test: &str) -> Option<Database> {
        let missing = [
            "ovsdb-server",
            "ovsdb-tool",
            "ovs-vsctl",
            "ovs-ofctl",
            "ovs-appctl",
        ]
        .into_iter()
        .find(|p| Command::new(p).arg("--version").output().is_err());
        if missing.is_some() || !Path::new(SCHEMA).exists() {
            println!(
                "SKIP {test}: needs openvswitch-switch ({})",
                missing.unwrap_or(SCHEMA)
            );
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let conf = dir.path().join("conf.db");
        let made = Command::new("ovsdb-tool")
            .arg("create")
            .arg(&conf)
            .arg(SCHEMA)
            .status();
        assert!(made.expect("started").success());
        let socket = dir.path().join("db.sock");
        let server = Command::new("ovsdb-server")
            .arg(&conf)
            .arg(format!("--remote=punix:{}", socket.display()))
            .arg(format!("--unixctl={}", dir.path().join("db.ctl").display()))
            .args(["-vconsole:off", "-vsyslog:off"])
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let database = Database { dir, server };
        wait_until("ovsdb-server listens", || listens(&socket));
        let init = Command::new("ovs-vsctl")
            .arg(format!("--db={}", database.remote()))
            .args(["--timeout=50", "--no-wait", "init"])
            .status();
        assert!(init.expect("started").success());
        Some(database)
    }

    /// The server's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("db.sock")
    }

    /// The server's socket as clients name it.
    pub(crate) fn remote(&self) -> String {
        format!("unix:{}", self.socket().display())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
