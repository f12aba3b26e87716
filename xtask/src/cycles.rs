//! Import cycles between the modules of a crate.
//!
//! The goal for the top-level modules of a crate is no cycle. A cycle inside a folder may have [`MAX_FOLDER`]
//! modules. `xtask/cycles.toml` has the numbers that are above the goal. They may only fall: the check also
//! fails when the file allows more than the code has.

use crate::modules::{Graph, Location, Modules};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

const FILE: &str = "xtask/cycles.toml";

/// Modules of a folder that may import each other in a cycle.
const MAX_FOLDER: usize = 5;

/// Edges that are printed of one cycle.
const MAX_EDGES: usize = 12;

/// Modules that reach each other.
type Cycle = BTreeSet<String>;

/// The cycles of a graph, the largest first.
fn cycles(graph: &Graph) -> Vec<Cycle> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in graph.keys() {
        reached.entry(from).or_default().insert(to);
    }
    loop {
        let mut grown = false;
        for name in reached.keys().copied().collect::<Vec<_>>() {
            let more: BTreeSet<&str> = reached[name]
                .iter()
                .filter_map(|next| reached.get(next))
                .flatten()
                .copied()
                .collect();
            let known = reached.entry(name).or_default();
            let before = known.len();
            known.extend(more);
            grown |= known.len() > before;
        }
        if !grown {
            break;
        }
    }
    let mut found: BTreeSet<Cycle> = BTreeSet::new();
    for (name, all) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|r| r.contains(name));
        let cycle: Cycle = all.iter().filter(back).map(|n| (*n).to_owned()).collect();
        if cycle.len() > 1 {
            found.insert(cycle);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|c| std::cmp::Reverse(c.len()));
    found
}

/// Edges whose removal leaves no cycle, those with the fewest places first. The choice is greedy, so a
/// smaller set may exist.
fn edges_to_remove(graph: &Graph, cycle: &Cycle) -> Vec<((String, String), BTreeSet<Location>)> {
    let inside = |(a, b): &(String, String)| cycle.contains(a) && cycle.contains(b);
    let mut edges: Vec<_> = graph
        .iter()
        .filter(|(e, _)| inside(e))
        .map(|(e, p)| (e.clone(), p.clone()))
        .collect();
    edges.sort_by_key(|(_, places)| std::cmp::Reverse(places.len()));
    let (mut kept, mut removed) = (Graph::new(), Vec::new());
    for (edge, places) in edges {
        kept.insert(edge.clone(), places.clone());
        if !cycles(&kept).is_empty() {
            kept.remove(&edge);
            removed.push((edge, places));
        }
    }
    removed.reverse();
    removed
}

/// The contents of `xtask/cycles.toml`.
#[derive(Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    /// Top-level modules in import cycles, by crate.
    #[serde(default)]
    crates: BTreeMap<String, usize>,
    /// Modules of a folder's largest cycle, by folder (`crate::module`), if above [`MAX_FOLDER`].
    #[serde(default)]
    folders: BTreeMap<String, usize>,
}

/// The cycles of all crates: their numbers, and a text that names them.
#[derive(Default)]
pub(crate) struct Census {
    today: Limits,
    /// Texts by crate or folder.
    texts: BTreeMap<String, String>,
}

impl Census {
    /// Counts the cycles of one library or program.
    pub(crate) fn add(&mut self, krate: &str, modules: &Modules, root: &Path) {
        for (folder, graph) in modules.graphs() {
            let found = cycles(&graph);
            let name = [&[krate.to_owned()], folder.as_slice()].concat().join("::");
            let size = if folder.is_empty() {
                found.iter().map(Cycle::len).sum()
            } else {
                found.first().map_or(0, Cycle::len)
            };
            if size == 0 || (!folder.is_empty() && size <= MAX_FOLDER) {
                continue;
            }
            let limits = if folder.is_empty() {
                &mut self.today.crates
            } else {
                &mut self.today.folders
            };
            limits.insert(name.clone(), size);
            let text = found
                .iter()
                .map(|cycle| describe(&name, &graph, cycle, root))
                .collect();
            self.texts.insert(name, text);
        }
    }

    /// Differences from the file, and the description of today's cycles.
    pub(crate) fn check(&self, root: &Path) -> Result<(Vec<String>, String)> {
        let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
        let limits: Limits = toml::from_str(&text).with_context(|| format!("cannot read {FILE}"))?;
        let mut faults = self.compare("crates", &self.today.crates, &limits.crates);
        faults.extend(self.compare("folders", &self.today.folders, &limits.folders));
        Ok((faults, self.texts.values().map(String::as_str).collect()))
    }

    fn compare(
        &self,
        table: &str,
        today: &BTreeMap<String, usize>,
        limits: &BTreeMap<String, usize>,
    ) -> Vec<String> {
        let names: BTreeSet<_> = today.keys().chain(limits.keys()).collect();
        let mut faults = Vec::new();
        for name in names {
            let (now, limit) = (today.get(name).copied(), limits.get(name).copied());
            match (now.unwrap_or(0), limit.unwrap_or(0)) {
                (now, limit) if now > limit => faults.push(format!(
                    "{name}: {now} modules in import cycles, {limit} allowed: remove an import\n{}",
                    self.texts.get(name).map_or("", |t| t.trim_end())
                )),
                (now, limit) if now < limit => faults.push(format!(
                    "{name}: {now} modules in import cycles, {FILE} still allows {limit} in [{table}]: lower it"
                )),
                _ => {}
            }
        }
        faults
    }
}

/// One cycle: its modules, and the edges to remove.
fn describe(name: &str, graph: &Graph, cycle: &Cycle, root: &Path) -> String {
    let members: Vec<_> = cycle.iter().map(String::as_str).collect();
    let mut text = format!(
        "{name}: {} modules in an import cycle: {}\n",
        cycle.len(),
        members.join(", ")
    );
    let edges = edges_to_remove(graph, cycle);
    for ((from, to), places) in edges.iter().take(MAX_EDGES) {
        let Some(first) = places.first() else {
            continue;
        };
        let file = first.file.strip_prefix(root).unwrap_or(&first.file).display();
        let more = match places.len() - 1 {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        _ = writeln!(text, "  without {from} -> {to}: {file}:{}{more}", first.line);
    }
    if edges.len() > MAX_EDGES {
        _ = writeln!(text, "  and {} more edges", edges.len() - MAX_EDGES);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::tests::krate;

    fn census(files: &[(&str, &str)]) -> Census {
        let mut census = Census::default();
        census.add("k", &krate(files), Path::new("src"));
        census
    }

    fn numbers(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
        pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
    }

    #[test]
    fn a_planted_cycle_is_found() {
        let fine = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", ""),
        ];
        assert!(census(&fine).today.crates.is_empty());
        let mut planted = fine;
        planted[3].1 = "\nuse crate::a;";
        let census = census(&planted);
        assert_eq!(census.today.crates, numbers(&[("k", 3)]));
        assert!(census.texts["k"].contains("a, b, c"));
        assert!(
            census.texts["k"].contains("c -> a: c.rs:2"),
            "{}",
            census.texts["k"]
        );
    }

    #[test]
    fn the_edge_with_the_fewest_places_is_named() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "use crate::b::X;\nuse crate::b::Y;\nfn f(_: crate::b::Z) {}",
            ),
            ("b.rs", "use crate::a;"),
        ];
        let text = &census(&files).texts["k"];
        assert!(text.contains("without b -> a: b.rs:1\n"), "{text}");
        assert!(!text.contains("a -> b"), "{text}");
    }

    #[test]
    fn a_folder_may_have_small_cycles() {
        let ring = |n: usize| {
            let names: Vec<_> = (0..n).map(|i| format!("m{i}")).collect();
            let mut files = vec![("lib.rs".to_owned(), "mod f;".to_owned())];
            files.push((
                "f.rs".to_owned(),
                names.iter().map(|m| format!("mod {m};")).collect(),
            ));
            for (i, name) in names.iter().enumerate() {
                files.push((format!("f/{name}.rs"), format!("use super::m{};", (i + 1) % n)));
            }
            let files: Vec<_> = files
                .iter()
                .map(|(name, text)| (name.as_str(), text.as_str()))
                .collect();
            census(&files).today
        };
        assert_eq!(ring(MAX_FOLDER), Limits::default());
        assert_eq!(ring(MAX_FOLDER + 1).folders, numbers(&[("k::f", MAX_FOLDER + 1)]));
    }

    #[test]
    fn the_numbers_may_only_fall() {
        let census = Census::default();
        let compare = |now, limit| census.compare("crates", &numbers(now), &numbers(limit));
        assert!(compare(&[("k", 3)], &[("k", 3)]).is_empty());
        assert!(compare(&[("k", 4)], &[("k", 3)])[0].contains("4 modules in import cycles, 3 allowed"));
        assert!(compare(&[("k", 2)], &[])[0].contains("0 allowed"));
        assert!(compare(&[("k", 2)], &[("k", 3)])[0].contains("lower it"));
        assert!(compare(&[], &[("k", 3)])[0].contains("lower it"));
    }
}
