//! Filters by nftables, where a classifier cannot be had. The switch has a table of the family `netdev`. The
//! table has a chain per device at its ingress hook, which is right behind the classifiers.
//!
//! The program `nft` is run only for the devices that need it. So a note in the run directory records whether
//! there is anything to look for after a restart.

use heddle_sys::{OuterFilter, OuterGroup};
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::IpAddr;
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

/// The conditions of a filter's rules.
fn conditions(filter: &OuterFilter) -> Vec<String> {
    let set = |all: &[IpAddr], v6: bool| {
        let mut all: Vec<String> = all
            .iter()
            .filter(|ip| ip.is_ipv6() == v6)
            .map(IpAddr::to_string)
            .collect();
        all.sort_unstable();
        all.dedup();
        (!all.is_empty()).then(|| format!("{{ {} }}", all.join(", ")))
    };
    let one = |g: &OuterGroup| {
        let (ip, protocol) = match g.v6 {
            false => ("ip", "protocol"),
            true => ("ip6", "nexthdr"),
        };
        let to = match g.local {
            Some(local) => local.to_string(),
            None => set(&filter.locals, g.v6)?,
        };
        let from = match &g.remotes {
            Some(remotes) => format!("{ip} saddr {} ", set(remotes, g.v6)?),
            None => String::new(),
        };
        let what = match (g.protocol, g.port) {
            (17, port) if port != 0 => format!("udp dport {port}"),
            (6, port) if port != 0 => format!("tcp dport {port}"),
            (other, _) => format!("{ip} {protocol} {other}"),
        };
        Some(format!("meta pkttype host {ip} daddr {to} {from}{what}"))
    };
    filter.groups.iter().filter_map(one).collect()
}

impl Nft {
    pub(super) fn new(owner: u64, rundir: &Path) -> Self {
        Self {
            table: format!("heddle_{owner:016x}"),
            note: rundir.join(NOTE),
        }
    }

    /// Adds the chain of a device, or replaces its rules. With `outer` they drop packets of tunnels only.
    pub(super) fn hold(&self, device: &str, ifindex: u32, outer: Option<&OuterFilter>) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        if device.is_empty() || !device.chars().all(plain) {
            return Err(format!("nft cannot name a device {device:?}"));
        }
        let chain = format!("netdev {} port_{ifindex}", self.table);
        let conditions = outer.map_or_else(|| vec![String::new()], conditions);
        let drops: String = conditions
            .iter()
            .map(|condition| format!("add rule {chain} {condition} drop\n"))
            .collect();
        let script = format!(
            "add table netdev {}\n\
             add chain {chain} {{ type filter hook ingress device \"{device}\" priority -500; policy accept; }}\n\
             flush chain {chain}\n\
             add rule {chain} ether type 8021ad accept\n\
             add rule {chain} vlan id != 0 accept\n\
             {drops}",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_drop_the_packets_of_a_filter() {
        let group = |v6, protocol, port, local: Option<IpAddr>, remotes: Option<Vec<IpAddr>>| OuterGroup {
            v6,
            protocol,
            port,
            local,
            remotes,
        };
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let filter = OuterFilter {
            groups: vec![
                group(false, 17, 6081, None, Some(vec![ip("10.0.0.2"), ip("10.0.0.3")])),
                group(false, 47, 0, Some(ip("10.0.0.1")), None),
                group(true, 6, 7471, None, Some(vec![ip("fd00::2")])),
                // Without a remote address there is nothing to drop.
                group(false, 17, 4789, None, Some(Vec::new())),
            ],
            locals: vec![ip("10.0.0.1"), ip("fd00::1")],
        };
        assert_eq!(
            conditions(&filter),
            [
                "meta pkttype host ip daddr { 10.0.0.1 } ip saddr { 10.0.0.2, 10.0.0.3 } udp dport 6081",
                "meta pkttype host ip daddr 10.0.0.1 ip protocol 47",
                "meta pkttype host ip6 daddr { fd00::1 } ip6 saddr { fd00::2 } tcp dport 7471",
            ]
        );
    }
}
