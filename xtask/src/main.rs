//! Chores of the workspace.
//!
//! `cargo xtask deps` holds the import table of `docs/architecture.md` (below, as data) against `cargo
//! metadata`, and checks that only the crates that may hold `unsafe` allow it.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Who may import whom: imports point down only.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("flow", &["wire"]),
    ("sync", &[]),
    ("simd", &[]),
    ("sys", &[]),
    ("packet", &["sync", "sys"]),
    ("virtio", &["packet", "sys", "sync"]),
    ("vhost-user", &["virtio", "sys"]),
    (
        "port",
        &["packet", "virtio", "vhost-user", "sys", "sync", "wire", "flow"],
    ),
    ("classifier", &["flow", "sync"]),
    (
        "datapath",
        &[
            "wire",
            "flow",
            "sync",
            "simd",
            "sys",
            "packet",
            "virtio",
            "vhost-user",
            "port",
            "classifier",
        ],
    ),
    ("openflow", &["flow", "wire"]),
    (
        "ofproto",
        &[
            "openflow",
            "stream",
            "classifier",
            "datapath",
            "flow",
            "wire",
            "sync",
            "packet",
        ],
    ),
    ("stream", &["sys"]),
    ("ovsdb", &["stream"]),
    ("fuzz", &[]),
    ("bench", &["wire", "packet", "virtio", "vhost-user", "sys"]),
    ("ctl", &["bench", "vhost-user", "virtio", "sys"]),
    (
        "switchd",
        &[
            "wire",
            "flow",
            "sync",
            "sys",
            "packet",
            "virtio",
            "vhost-user",
            "port",
            "classifier",
            "datapath",
            "openflow",
            "ofproto",
            "stream",
            "ovsdb",
        ],
    ),
];

/// Crates that may hold `unsafe`.
const MAY_BE_UNSAFE: &[&str] = &["sync", "simd", "sys", "packet", "virtio"];

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("deps") => deps(),
        _ => bail!("usage: cargo xtask deps"),
    }
}

fn deps() -> Result<()> {
    let out = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    let meta: Value = serde_json::from_slice(&out.stdout).context("cargo metadata printed no JSON")?;
    let table: BTreeMap<&str, BTreeSet<&str>> = MAY_IMPORT
        .iter()
        .map(|(c, may)| (*c, may.iter().copied().collect()))
        .collect();
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for package in meta["packages"].as_array().context("no packages")? {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(krate) = name.strip_prefix("heddle-") else {
            continue;
        };
        seen.insert(krate.to_owned());
        let Some(may) = table.get(krate) else {
            faults.push(format!("{krate}: not in the import table"));
            continue;
        };
        for dep in package["dependencies"].as_array().into_iter().flatten() {
            let dev = dep["kind"].as_str() == Some("dev");
            let target = dep["name"].as_str().and_then(|n| n.strip_prefix("heddle-"));
            if let Some(t) = target.filter(|t| !dev && !may.contains(t)) {
                faults.push(format!("{krate} imports {t}, which the table does not allow"));
            }
        }
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let src = Path::new(manifest).with_file_name("src");
        if !MAY_BE_UNSAFE.contains(&krate) {
            for file in allows_unsafe(&src)? {
                faults.push(format!("{krate} allows unsafe code in {file}"));
            }
        }
    }
    for krate in table.keys().filter(|k| !seen.contains(**k)) {
        faults.push(format!(
            "{krate}: in the import table, but there is no such crate"
        ));
    }
    if faults.is_empty() {
        println!("{} crates import as the table says", seen.len());
        return Ok(());
    }
    bail!("{}", faults.join("\n"))
}

/// Files below `dir` that turn the workspace's `unsafe_code` lint off.
fn allows_unsafe(dir: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(allows_unsafe(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let lax = text.lines().any(|l| {
                let l = l.trim_start();
                l.starts_with("#") && l.contains("allow(") && l.contains("unsafe_code")
            });
            if lax {
                found.push(path.display().to_string());
            }
        }
    }
    Ok(found)
}
