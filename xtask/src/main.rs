//! Chores of the workspace.
//!
//! * `cargo xtask deps`: imports between crates, import cycles in crates, and holders of `unsafe`.
//! * `cargo xtask words`: how comments, names, messages and pages are written, and how wide they are.
//! * `cargo xtask unused`: names that only their definition and tests mention.

mod cycles;
mod deps;
mod modules;
mod rust;
mod unused;
mod words;

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no workspace")?;
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (faults, fine) = match args.first().map(String::as_str) {
        Some("deps") => deps::check(root)?,
        Some("words") => words::check(root, &args[1..])?,
        Some("unused") => unused::check(root)?,
        _ => bail!("usage: cargo xtask deps | unused | words [--lower | --list GROUP [KIND]]"),
    };
    if faults.is_empty() {
        // A reader like `head` may close the pipe.
        let _ = writeln!(std::io::stdout(), "{fine}");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{}", faults.join("\n"));
    Ok(ExitCode::FAILURE)
}

/// The Rust files below a directory, without those that were built.
fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    files(dir, &|name| name.ends_with(".rs"))
}

/// The files below a directory whose names are `wanted`, without those that were built.
fn files(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, wanted)?);
        } else if path.is_file() && wanted(&name) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
