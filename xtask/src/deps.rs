//! The table "Who may import whom" of `docs/architecture.md` against the manifests.
//!
//! The table lists exactly the imports of the manifests: one that it lacks is a fault, and so is one that no
//! manifest has. Imports point to rows above. A manifest names only crates that its sources name. Imports of
//! tests are free. A crate with a star may hold `unsafe`, and allows it module by module: not for all of
//! itself. Modules of one crate import each other without cycles ([`crate::cycles`]).

use crate::cycles::Census;
use crate::modules::Modules;
use crate::sources;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: &str = "docs/architecture.md";
const HEADING: &str = "## Who may import whom";

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    krate: String,
    may_be_unsafe: bool,
    imports: BTreeSet<String>,
}

/// The rows of the table under [`HEADING`].
fn table(page: &str) -> Vec<Row> {
    let section = page.split_once(HEADING).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let row = |line: &str| {
        let cells: Vec<_> = line.trim().strip_prefix('|')?.split('|').map(str::trim).collect();
        let (krate, star) = cells.first()?.strip_prefix('`')?.split_once('`')?;
        let imports = cells.get(2)?.split(',').map(str::trim).filter(|i| *i != "–");
        Some(Row {
            krate: krate.to_owned(),
            may_be_unsafe: star == "*",
            imports: imports.map(str::to_owned).collect(),
        })
    };
    section.lines().filter_map(row).collect()
}

/// Differences between the table and the manifests, which map each crate to its imports.
fn differences(table: &[Row], manifests: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut faults = Vec::new();
    let rows: BTreeMap<_, _> = table
        .iter()
        .zip(0..)
        .map(|(r, n)| (r.krate.as_str(), (n, r)))
        .collect();
    for krate in rows.keys().filter(|k| !manifests.contains_key(**k)) {
        faults.push(format!(
            "{krate}: in the table of {PAGE}, but there is no such crate"
        ));
    }
    for (krate, imports) in manifests {
        let Some((at, row)) = rows.get(krate.as_str()) else {
            faults.push(format!("{krate}: not in the table of {PAGE}"));
            continue;
        };
        for import in imports.difference(&row.imports) {
            faults.push(format!("{krate} imports {import}, which {PAGE} does not list"));
        }
        for import in row.imports.difference(imports) {
            faults.push(format!("{krate} does not import {import}, which {PAGE} lists"));
        }
        for import in imports {
            if rows.get(import.as_str()).is_some_and(|(n, _)| n >= at) {
                faults.push(format!(
                    "{krate} imports {import}, which is not above it in {PAGE}"
                ));
            }
        }
    }
    faults
}

/// Whether a source turns the workspace's `unsafe_code` lint off.
fn allows_unsafe(text: &str) -> bool {
    text.lines().map(str::trim_start).any(|l| {
        l.starts_with('#') && (l.contains("allow(") || l.contains("expect(")) && l.contains("unsafe_code")
    })
}

/// The library and the program of a crate, by name, with their first files.
pub(crate) fn roots(krate: &str, src: &Path) -> Vec<(String, PathBuf)> {
    let library = (krate.to_owned(), src.join("lib.rs"));
    let program = (format!("{krate} (main.rs)"), src.join("main.rs"));
    [library, program]
        .into_iter()
        .filter(|(_, file)| file.exists())
        .collect()
}

/// The faults, and the text to print if there are none.
pub(crate) fn check(root: &Path) -> Result<(Vec<String>, String)> {
    let out = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    let meta: Value = serde_json::from_slice(&out.stdout).context("cargo metadata printed no JSON")?;
    let page = std::fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let table = table(&page);
    let mut manifests = BTreeMap::new();
    let mut faults = Vec::new();
    let mut census = Census::default();
    for package in meta["packages"].as_array().context("no packages")? {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(krate) = name.strip_prefix("heddle-") else {
            continue;
        };
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let mut code = String::new();
        for file in sources(&Path::new(manifest).with_file_name("src"))? {
            let text = std::fs::read_to_string(&file)?;
            let may = table.iter().any(|r| r.krate == krate && r.may_be_unsafe);
            let whole = file.ends_with("src/lib.rs") || file.ends_with("src/main.rs");
            if allows_unsafe(&text) && (whole || !may) {
                let how = if may {
                    "for the whole crate"
                } else {
                    "without a star"
                };
                faults.push(format!("{}: allows unsafe code {how}", file.display()));
            }
            code.push_str(&text);
        }
        let mut imports = BTreeSet::new();
        for dep in package["dependencies"].as_array().into_iter().flatten() {
            let name = dep["name"].as_str().and_then(|n| n.strip_prefix("heddle-"));
            let Some(import) = name.filter(|_| dep["kind"].as_str() != Some("dev")) else {
                continue;
            };
            if !code.contains(&format!("heddle_{}::", import.replace('-', "_"))) {
                faults.push(format!(
                    "{krate} names {import} in its manifest, and uses nothing of it"
                ));
            }
            imports.insert(import.to_owned());
        }
        manifests.insert(krate.to_owned(), imports);
        for (program, entry) in roots(krate, &Path::new(manifest).with_file_name("src")) {
            census.add(&program, &Modules::read(&entry)?, root);
        }
    }
    let (more, cycles) = census.check(root)?;
    faults.extend(more);
    faults.extend(differences(&table, &manifests));
    Ok((
        faults,
        format!("{cycles}{} crates import what {PAGE} lists", manifests.len()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A page\n\n## Who may import whom\n\n| crate | purpose | may import |\n| --- | --- | --- |\n\
        | `low`* | all else | – |\n| `mid-dle` | `x`, y | low |\n| `top` | z | mid-dle, low |\n\n\
        ## More\n\n| `none` | | top |\n";

    fn manifests(imports: &[(&str, &[&str])]) -> BTreeMap<String, BTreeSet<String>> {
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        imports
            .iter()
            .map(|(k, names)| ((*k).to_owned(), set(names)))
            .collect()
    }

    #[test]
    fn the_table_is_read() {
        let rows = table(TEXT);
        let names: Vec<_> = rows.iter().map(|r| (r.krate.as_str(), r.may_be_unsafe)).collect();
        assert_eq!(names, [("low", true), ("mid-dle", false), ("top", false)]);
        let imports: Vec<_> = rows[2].imports.iter().collect();
        assert_eq!(imports, ["low", "mid-dle"]);
        assert!(table("# A page without it").is_empty());
    }

    #[test]
    fn more_and_less_are_faults() {
        let rows = table(TEXT);
        let said = |imports: &[(&str, &[&str])]| differences(&rows, &manifests(imports));
        let fine: [(&str, &[&str]); 3] = [("low", &[]), ("mid-dle", &["low"]), ("top", &["low", "mid-dle"])];
        assert!(said(&fine).is_empty());
        let [low, mid, top] = fine;
        assert!(said(&[low, mid, ("top", &["low"])])[0].starts_with("top does not import mid-dle"));
        assert!(said(&[low, ("mid-dle", &["low", "top"]), top])[0].starts_with("mid-dle imports top"));
        assert!(said(&[low, ("mid-dle", &["low", "top"]), top])[1].contains("not above it"));
        assert!(said(&[low, mid])[0].starts_with("top: in the table"));
        assert!(said(&[low, mid, top, ("new", &[])])[0].starts_with("new: not in the table"));
    }

    #[test]
    fn unsafe_is_seen() {
        assert!(allows_unsafe("//! Text\n\n#![allow(unsafe_code)] // why\n"));
        assert!(allows_unsafe(
            "mod a {\n    #![expect(unsafe_code, reason = \"why\")]\n"
        ));
        assert!(!allows_unsafe(
            "// #![allow(unsafe_code)]\n#![deny(unsafe_code)]\n"
        ));
    }
}
