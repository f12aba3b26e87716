//! Filters by nftables, where a classifier cannot be had. The switch has a table of the family `netdev`. The
//! table has a chain per device at its ingress hook, which is right behind the classifiers.
//!
//! The program `nft` is run only for the devices that need it. So a note in the run directory records whether
//! there is anything to look for after a restart.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NOTE: &str = "heddled.nft";

#[derive(Debug)]
pub(super) struct Nft {
    table: String,
    note: PathBuf,
}

fn run(arguments: &[&str], script: &str) -> Result<String, String> {
    let failed = |e: io::Error| format!("the program nft cannot be run: {}", heddle_sys::errno_text(&e));
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If `nft` does not read the script, its status and output below show it.
        let _ = stdin.write_all(script.as_bytes());
    }
    let out = child.wait_with_output().map_err(failed)?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    Err(text.lines().next().unwrap_or("nft failed").trim().to_owned())
}

impl Nft {
    pub(super) fn new(owner: u64, rundir: &Path) -> Self {
        Self {
            table: format!("heddle_{owner:016x}"),
            note: rundir.join(NOTE),
        }
    }

    /// Adds the chain of a device, or replaces its rules.
    pub(super) fn hold(&self, device: &str, ifindex: u32) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        if device.is_empty() || !device.chars().all(plain) {
            return Err(format!("nft cannot name a device {device:?}"));
        }
        let chain = format!("netdev {} port_{ifindex}", self.table);
        let script = format!(
            "add table netdev {}\n\
             add chain {chain} {{ type filter hook ingress device \"{device}\" priority -500; policy accept; }}\n\
             flush chain {chain}\n\
             add rule {chain} ether type 8021ad accept\n\
             add rule {chain} vlan id != 0 accept\n\
             add rule {chain} drop\n",
            self.table
        );
        run(&["-f", "-"], &script)?;
        let noted = OpenOptions::new().write(true).create_new(true).open(&self.note);
        match noted {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                let why = heddle_sys::errno_text(&e);
                log::warn!(target: "netdev_linux",
                    "cannot write {NOTE}: after a restart the chains of nft will not be found ({why})");
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the chain of a device away, and the table with the last one.
    pub(super) fn release(&self, ifindex: u32) {
        let chain = format!("netdev {} port_{ifindex}", self.table);
        if let Err(why) = run(
            &["-f", "-"],
            &format!("flush chain {chain}\ndelete chain {chain}\n"),
        ) {
            log::warn!(target: "netdev_linux", "cannot remove chain {chain} of nft: {why}");
        }
        if self.held().is_empty()
            && run(&["-f", "-"], &format!("delete table netdev {}\n", self.table)).is_ok()
        {
            let _ = std::fs::remove_file(&self.note);
        }
    }

    /// The devices that have chains.
    pub(super) fn held(&self) -> Vec<u32> {
        if !self.note.exists() {
            return Vec::new();
        }
        let listed = run(&["list", "table", "netdev", &self.table], "").unwrap_or_default();
        let chains = listed
            .lines()
            .filter_map(|line| line.trim().strip_prefix("chain port_"));
        chains
            .filter_map(|rest| rest.split(' ').next()?.parse().ok())
            .collect()
    }
}
