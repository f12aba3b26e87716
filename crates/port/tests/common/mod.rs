//! Network namespaces for tests: unique names, removed when the value goes. Needs root and ip(8); where one
//! is missing the test prints `SKIP` and why.

#![allow(dead_code, unreachable_pub)] // each test file uses a part of this module

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest that a test waits for anything.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A number that no other test of this machine uses now.
pub fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{:x}{:x}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Runs `ip` with the words of `args`; its words on failure.
pub fn try_ip(args: &str) -> Result<(), String> {
    let out = Command::new("ip")
        .args(args.split_whitespace())
        .output()
        .map_err(|e| format!("ip: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!(
        "ip {args}: {}",
        String::from_utf8_lossy(&out.stderr).trim()
    ))
}

/// [`try_ip`] for commands that must work.
pub fn ip(args: &str) {
    try_ip(args).expect("ip");
}

/// A network namespace.
pub struct Netns(pub String);

impl Netns {
    /// Makes one, or prints why the test is skipped.
    pub fn new(test: &str) -> Option<Self> {
        let name = format!("hp{}", unique());
        match try_ip(&format!("netns add {name}")) {
            Ok(()) => {
                let ns = Self(name);
                ns.ip("link set lo up");
                Some(ns)
            }
            Err(why) => {
                // Past the harness, which hides a passing test's output.
                let _ = writeln!(std::io::stderr(), "SKIP {test}: {why}");
                None
            }
        }
    }
    /// Runs `ip` inside.
    pub fn ip(&self, args: &str) {
        ip(&format!("-n {} {args}", self.0));
    }
    /// A command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut c = Command::new("ip");
        c.args(["netns", "exec", &self.0, program]).stdin(Stdio::null());
        c
    }
    /// Starts this test program inside, in the role `role` (see `peer` in the test file).
    pub fn peer(&self, role: &str) -> Peer {
        let exe = std::env::current_exe().expect("own path");
        let mut c = self.command(exe.to_str().expect("path in UTF-8"));
        c.args(["--exact", "peer", "--nocapture", "--test-threads=1"])
            .env("HEDDLE_PEER", role);
        c.stdout(Stdio::piped()).stderr(Stdio::null());
        Peer(c.spawn().expect("peer starts"))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = try_ip(&format!("netns del {}", self.0));
    }
}

/// A running peer, killed with the value.
pub struct Peer(Child);

impl Peer {
    /// Waits until it ends by itself; returns its output.
    pub fn finish(mut self) -> String {
        let until = Instant::now() + 2 * LIMIT;
        while self.0.try_wait().expect("wait").is_none() {
            assert!(Instant::now() < until, "the peer does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut text = String::new();
        let mut out = self.0.stdout.take().expect("piped");
        std::io::Read::read_to_string(&mut out, &mut text).expect("text");
        text
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls until `done`.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}
