//! The style of comments, names, messages and pages: openings, words of the field, lengths, widths.
//!
//! Each fault belongs to a group (a crate, the pages, the tests) and a [`Kind`]. `xtask/words.txt` holds the
//! number of faults of each, and these numbers may only fall. More faults fail the check. Fewer fail it until
//! `--lower` has written the smaller numbers. Code in backticks and quotations are not judged: they are names
//! and texts that users know.

mod code;
mod ledger;
mod lex;
mod prose;
mod read;
mod rules;
mod script;

use anyhow::{Context, Result, bail};
use ledger::{Ledger, PATH};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Findings that a failed check prints for one number.
const MAX_PRINTED: usize = 20;

/// The kind of a finding: a column of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// First words of sentences and of comments.
    Openings,
    /// Words of ours for which the field has another, in comments and pages.
    Words,
    /// The same in names of types, functions, fields, variants and modules.
    Names,
    /// Constants without `MAX_` or `MIN_`.
    Constants,
    /// Types with names that fit any type.
    Types,
    /// Sentences of too many words or with several colons.
    Long,
    /// Words and openings of log lines and error texts.
    Messages,
    /// Comments and lines of pages that are too wide.
    Width,
    /// Cells of tables with several sentences.
    Cells,
}

impl Kind {
    const ALL: [(Self, &'static str); 9] = [
        (Self::Openings, "openings"),
        (Self::Words, "words"),
        (Self::Names, "names"),
        (Self::Constants, "constants"),
        (Self::Types, "types"),
        (Self::Long, "long"),
        (Self::Messages, "messages"),
        (Self::Width, "width"),
        (Self::Cells, "cells"),
    ];
}

/// One fault of one file.
#[derive(Debug)]
pub(crate) struct Finding {
    kind: Kind,
    line: usize,
    rule: String,
    text: String,
}

/// A file's group, name below the root, time of its last change, and findings.
struct Read {
    group: String,
    name: String,
    changed: SystemTime,
    findings: Vec<Finding>,
}

/// The group of a file, or none if it is not judged.
fn group(name: &str) -> Option<&str> {
    let page = name.ends_with(".md");
    match name.split('/').collect::<Vec<_>>()[..] {
        ["README.md" | "CONTRIBUTING.md"] => Some("pages"),
        ["docs", _] if page => Some("pages"),
        _ if page => None,
        ["crates", krate, ..] => Some(krate),
        ["xtask", ..] => Some("xtask"),
        ["tests" | "scripts" | "bench", ..] => Some("tests"),
        _ => None,
    }
}

/// Every file of the tree that is judged.
fn read_all(root: &Path) -> Result<Vec<Read>> {
    let mut all = Vec::new();
    for file in crate::files(root, &|_| true)? {
        let name = file
            .strip_prefix(root)
            .unwrap_or(&file)
            .to_string_lossy()
            .into_owned();
        let Some(group) = group(&name) else {
            continue;
        };
        let form = read::Form::of_name(&name);
        if form.is_none() && file.extension().is_some() {
            continue;
        }
        // Programs without an extension and data: text, or not judged.
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let Some(form) = form.or_else(|| read::Form::of_text(&text)) else {
            continue;
        };
        let changed = file
            .metadata()
            .and_then(|m| m.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let group = group.to_owned();
        let findings = read::findings(form, &group, &text);
        all.push(Read {
            group,
            name,
            changed,
            findings,
        });
    }
    Ok(all)
}

/// The findings of a group and kind, in files that were changed last first, one line each.
fn lines(all: &[Read], group: &str, kind: Option<Kind>) -> Vec<String> {
    let mut files: Vec<_> = all
        .iter()
        .filter(|r| group == "all" || r.group == group)
        .collect();
    files.sort_by(|a, b| b.changed.cmp(&a.changed).then_with(|| a.name.cmp(&b.name)));
    let findings = files.iter().flat_map(|r| r.findings.iter().map(|f| (&r.name, f)));
    findings
        .filter(|(_, f)| kind.is_none_or(|k| k == f.kind))
        .map(|(name, f)| format!("{name}:{}: {}: {}", f.line, f.rule, f.text))
        .collect()
}

/// The numbers of faults as they are.
fn count(all: &[Read]) -> Ledger {
    let mut now = Ledger::default();
    for read in all {
        let numbers = now.numbers(&read.group);
        for finding in &read.findings {
            numbers[finding.kind as usize] += 1;
        }
    }
    now
}

/// The faults, and the text to print if there are none. `--lower` writes the ledger, `--list` prints faults.
pub(crate) fn check(root: &Path, args: &[String]) -> Result<(Vec<String>, String)> {
    let all = read_all(root)?;
    let now = count(&all);
    let path: PathBuf = root.join(PATH);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--list", group, ref kind @ ..] if kind.len() <= 1 => {
            let kind = match kind.first() {
                Some(name) => Some(Kind::ALL.iter().find(|k| k.1 == *name).with_context(|| {
                    let names: Vec<_> = Kind::ALL.iter().map(|k| k.1).collect();
                    format!("no kind {name}: expected one of {}", names.join(", "))
                })?),
                None => None,
            };
            if group != "all" && !all.iter().any(|r| r.group == group) {
                bail!("no group {group}: expected a crate, xtask, pages, tests or all");
            }
            return Ok((Vec::new(), lines(&all, group, kind.map(|k| k.0)).join("\n")));
        }
        [] | ["--lower"] => {}
        _ => bail!("usage: cargo xtask words [--lower | --list GROUP [KIND]]"),
    }
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {PATH}"))?;
    let held = Ledger::parse(&text)?;
    let raised = held.raised(&now);
    let mut faults = Vec::new();
    for (group, kind, before, after) in &raised {
        let kind = Kind::ALL[*kind];
        let found = lines(&all, group, Some(kind.0));
        faults.extend(found.iter().take(MAX_PRINTED).cloned());
        faults.push(format!(
            "{group}: {after} {}, {PATH} allows {before} (all: cargo xtask words --list {group} {})",
            kind.1, kind.1
        ));
    }
    if raised.is_empty() && held != now {
        if args == ["--lower"] {
            fs::write(&path, now.to_string()).with_context(|| format!("cannot write {PATH}"))?;
        } else {
            faults.push(format!(
                "fewer faults than {PATH} allows: write the smaller numbers with `cargo xtask words --lower`"
            ));
        }
    }
    Ok((
        faults,
        format!("{} known faults of wording, the number in {PATH}", now.sum()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_groups() {
        assert_eq!(group("crates/datapath/src/lib.rs"), Some("datapath"));
        assert_eq!(group("crates/datapath/README.md"), None);
        assert_eq!(group("docs/ovn.md"), Some("pages"));
        assert_eq!(group("README.md"), Some("pages"));
        assert_eq!(group("CHANGELOG.md"), None);
        assert_eq!(group("tests/system/test_ports.py"), Some("tests"));
        assert_eq!(group("demo/run"), None);
    }

    #[test]
    fn columns_are_in_the_order_of_kinds() {
        for (n, (kind, _)) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, n);
        }
    }
}
