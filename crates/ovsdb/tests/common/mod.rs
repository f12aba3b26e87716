//! A real ovsdb-server in a directory of its own, and its clients.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod script;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heddle_ovsdb::{Client, Db, MonitorSpec, Options, Status};

/// Debian's schema of the switch's database.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// No test waits longer than this for anything.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Storage of the database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One file: the server gives no transaction ids.
    Standalone,
    /// A cluster of one: the server can continue from a transaction.
    Clustered,
}

/// A running server; it ends with this value.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    child: Option<Child>,
}

/// A program's path, or `None` with a word about it: the test is then skipped.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = path
        .split(':')
        .map(|dir| Path::new(dir).join(program))
        .find(|p| p.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: {program} is not installed (Debian: openvswitch-common, openvswitch-switch)");
    }
    found
}

fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        out.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap().trim().to_string()
}

impl Server {
    /// Starts a server with an empty `Open_vSwitch` database, or prints why it cannot and returns `None`.
    pub(crate) fn start(kind: Kind) -> Option<Server> {
        let (tool, _, _) = (find("ovsdb-tool")?, find("ovsdb-server")?, find("ovs-vsctl")?);
        if !Path::new(SCHEMA).is_file() {
            eprintln!("SKIPPED: {SCHEMA} is not installed");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("conf.db");
        match kind {
            Kind::Standalone => run(Command::new(tool).arg("create").arg(&db).arg(SCHEMA)),
            Kind::Clustered => {
                let local = format!("unix:{}", dir.path().join("raft.sock").display());
                run(Command::new(tool)
                    .arg("create-cluster")
                    .arg(&db)
                    .arg(SCHEMA)
                    .arg(local))
            }
        };
        let mut server = Server { dir, child: None };
        server.up();
        if kind == Kind::Standalone {
            server.vsctl(&["init"]);
        } else {
            // The leader of a cluster of one is elected after a moment.
            let deadline = Instant::now() + TEST_TIMEOUT;
            while !server.try_vsctl(&["init"]) {
                assert!(Instant::now() < deadline, "the cluster of one got no leader");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Some(server)
    }

    /// Starts the process again after [`down`](Server::down).
    pub(crate) fn up(&mut self) {
        let dir = self.dir.path();
        let sock = dir.join("db.sock");
        let child = Command::new(find("ovsdb-server").unwrap())
            .arg("--no-chdir")
            .arg("-vconsole:off")
            .arg(format!("--remote=punix:{}", sock.display()))
            .arg(format!("--unixctl={}", dir.join("ctl.sock").display()))
            .arg(dir.join("conf.db"))
            .env("OVS_RUNDIR", dir)
            .env("OVS_DBDIR", dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let deadline = Instant::now() + TEST_TIMEOUT;
        while std::os::unix::net::UnixStream::connect(&sock).is_err() {
            assert!(Instant::now() < deadline, "ovsdb-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the process.
    pub(crate) fn down(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The remote for clients.
    pub(crate) fn remote(&self) -> String {
        format!("unix:{}", self.dir.path().join("db.sock").display())
    }

    fn vsctl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(find("ovs-vsctl").unwrap());
        command
            .arg(format!("--db={}", self.remote()))
            .args(["--no-wait", "--timeout=10"])
            .args(args);
        command
    }

    /// Output of `ovs-vsctl --no-wait ARGS`.
    pub(crate) fn vsctl(&self, args: &[&str]) -> String {
        run(&mut self.vsctl_command(args))
    }

    fn try_vsctl(&self, args: &[&str]) -> bool {
        self.vsctl_command(args).output().unwrap().status.success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.down();
    }
}

/// Settings with short waits.
pub(crate) fn quick() -> Options {
    Options {
        backoff_min: Duration::from_millis(20),
        backoff_max: Duration::from_millis(100),
        ..Options::default()
    }
}

/// A client of all tables.
pub(crate) fn client(server: &Server, options: Options) -> Client {
    Client::spawn(&server.remote(), "Open_vSwitch", MonitorSpec::all(), options).unwrap()
}

/// Waits for a state of a client, not for ever.
pub(crate) async fn until(client: &Client, what: &str, condition: impl FnMut(&Db, &Status) -> bool) {
    match tokio::time::timeout(TEST_TIMEOUT, client.wait_until(condition)).await {
        Ok(r) => r.unwrap(),
        Err(_) => panic!("{what}: not in {TEST_TIMEOUT:?}; status {:?}", client.status()),
    }
}
