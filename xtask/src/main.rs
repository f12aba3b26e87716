//! Chores of the workspace.
//!
//! * `cargo xtask deps`: imports between crates, import cycles between modules, and where `unsafe` may stand.
//! * `cargo xtask comments`: how wide comments are.
//! * `cargo xtask unused`: names that only their definition and tests mention.

mod comments;
mod cycles;
mod deps;
mod modules;
mod rust;
mod unused;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    let (faults, fine) = match std::env::args().nth(1).as_deref() {
        Some("deps") => deps::check(root)?,
        Some("comments") => comments::check(root)?,
        Some("unused") => unused::check(root)?,
        _ => bail!("usage: cargo xtask deps | comments | unused"),
    };
    if faults.is_empty() {
        println!("{fine}");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{}", faults.join("\n"));
    Ok(ExitCode::FAILURE)
}

/// The Rust files below a directory, without those that were built.
fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(sources(&path)?);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
