//! `xtask/words.txt`: a row a group, a column a kind.

use super::Kind;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt;

/// The ledger's file below the root of the workspace.
pub(super) const PATH: &str = "xtask/words.txt";

const KINDS: usize = Kind::ALL.len();

const HEADER: &str = "\
# Faults of wording that are known, by group and kind. A number may only fall: `cargo xtask words` fails if there
# are more, and if there are fewer until `cargo xtask words --lower` has been run. `--list GROUP [KIND]` prints them.
# In a merge conflict keep the larger numbers, then run `cargo xtask words --lower`.
";

/// Numbers of faults, by group and kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger(BTreeMap<String, [usize; KINDS]>);

impl Ledger {
    /// The numbers of a group, zero at first.
    pub(super) fn numbers(&mut self, group: &str) -> &mut [usize; KINDS] {
        self.0.entry(group.to_owned()).or_default()
    }

    /// All faults.
    pub(super) fn sum(&self) -> usize {
        self.0.values().flatten().sum()
    }

    /// The ledger that [`fmt::Display`] wrote.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut rows = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let head: Vec<_> = rows
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .collect();
        let kinds = Kind::ALL.map(|k| k.1);
        ensure!(head == kinds, "{PATH}: expected the columns {}", kinds.join(" "));
        let mut all = BTreeMap::new();
        for row in rows {
            let mut cells = row.split_whitespace();
            let group = cells.next().unwrap_or_default().to_owned();
            let numbers: Vec<_> = cells
                .map(str::parse)
                .collect::<Result<_, _>>()
                .with_context(|| format!("{PATH}: no numbers in '{row}'"))?;
            let numbers: [usize; KINDS] = numbers
                .try_into()
                .ok()
                .with_context(|| format!("{PATH}: expected {KINDS} numbers in '{row}'"))?;
            ensure!(
                all.insert(group, numbers).is_none(),
                "{PATH}: two rows for '{row}'"
            );
        }
        Ok(Self(all))
    }

    /// Groups and kinds of which `now` has more than this ledger: number held, number now.
    ///
    /// A group without a row may have faults of others: code that moves to a new crate keeps them.
    /// The sum of all groups must not rise.
    pub(super) fn raised(&self, now: &Self) -> Vec<(String, usize, usize, usize)> {
        let total = |of: &Self, kind: usize| of.0.values().map(|n| n[kind]).sum::<usize>();
        let mut raised = Vec::new();
        for (group, numbers) in &now.0 {
            let held = self.0.get(group);
            for (kind, &number) in numbers.iter().enumerate() {
                let moved = held.is_none() && total(now, kind) <= total(self, kind);
                let allowed = held.map_or(0, |h| h[kind]);
                if number > allowed && !moved {
                    raised.push((group.clone(), kind, allowed, number));
                }
            }
        }
        raised
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEADER}{:<12}", "group")?;
        for (_, kind) in Kind::ALL {
            write!(f, " {kind:>9}")?;
        }
        for (group, numbers) in &self.0 {
            write!(f, "\n{group:<12}")?;
            for number in numbers {
                write!(f, " {number:>9}")?;
            }
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(rows: &[(&str, usize)]) -> Ledger {
        let mut all = Ledger::default();
        for (group, openings) in rows {
            all.numbers(group)[0] = *openings;
        }
        all
    }

    #[test]
    fn text_is_read_back() {
        let held = ledger(&[("flow", 3), ("flow-cache", 0)]);
        assert_eq!(Ledger::parse(&held.to_string()).expect("readable"), held);
        assert_eq!(held.sum(), 3);
    }

    #[test]
    fn broken_text_is_refused() {
        let good = ledger(&[("flow", 3)]).to_string();
        assert!(Ledger::parse("").is_err());
        assert!(Ledger::parse(&good.replace('3', "x")).is_err());
        assert!(Ledger::parse(&format!("{good}flow 1\n")).is_err());
        assert!(Ledger::parse(&format!("{good}flow 1 0 0 0 0 0 0 0 0\n")).is_err());
        assert!(Ledger::parse(&format!("{good}<<<<<<< HEAD\n")).is_err());
    }

    #[test]
    fn numbers_may_only_fall() {
        let held = ledger(&[("a", 3), ("b", 2)]);
        assert_eq!(
            held.raised(&ledger(&[("a", 4), ("b", 0)])),
            [("a".to_owned(), 0, 3, 4)]
        );
        assert!(held.raised(&ledger(&[("a", 3), ("b", 1)])).is_empty());
        // A crate that is split keeps its faults, and gets no more of them.
        assert!(held.raised(&ledger(&[("a", 1), ("b", 2), ("c", 2)])).is_empty());
        assert_eq!(
            held.raised(&ledger(&[("a", 1), ("b", 2), ("c", 3)])),
            [("c".to_owned(), 0, 0, 3)]
        );
    }
}
