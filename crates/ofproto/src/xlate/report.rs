//! The lines of a translation that `ofproto/trace` shows, as a tree.

use super::recirc::Recirculation;
use crate::model::Rule;
use heddle_flow::FlowKey;
use heddle_openflow::action::Nat;
use std::sync::Arc;

/// Kind of a line, which decides its form in print.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A bridge is entered.
    Bridge,
    /// A table's rule, or its absence.
    Table,
    /// A bucket of a group.
    Bucket,
    /// A frozen pipeline continues.
    Thaw,
    /// An action.
    Action,
    /// Result of an action.
    Detail,
    /// A warning.
    Warn,
    /// An error.
    Error,
}

/// Formats a number like C's `%#x`: zero has no prefix.
pub(crate) fn hex(v: u128) -> String {
    if v == 0 { "0".to_owned() } else { format!("{v:#x}") }
}

struct Node {
    kind: Kind,
    text: String,
    subs: Vec<usize>,
}

/// A copy of the packet that a connection tracker hands back, to be traced after the packet itself.
pub(crate) struct Fork {
    /// The packet as the pipeline had made it, with the id that it comes back under.
    pub(crate) key: FlowKey,
    /// NAT of its addresses on the way.
    pub(crate) nat: Option<Nat>,
    /// The pipeline that it continues in.
    pub(crate) held: Arc<Recirculation>,
}

/// The lines of one translation. Line 0 is the root, which is not printed.
pub(crate) struct Report {
    nodes: Vec<Node>,
    parent: usize,
    /// Copies that are yet to be traced.
    pub(crate) forks: Vec<Fork>,
    /// Rules and actions are printed with names of ports.
    pub(crate) names: bool,
}

impl Default for Report {
    fn default() -> Self {
        let root = Node {
            kind: Kind::Bridge,
            text: String::new(),
            subs: Vec::new(),
        };
        Self {
            nodes: vec![root],
            parent: 0,
            forks: Vec::new(),
            names: false,
        }
    }
}

/// The trace of one translation, if there is one.
pub(super) struct Trace<'w> {
    pub(super) report: Option<&'w mut Report>,
    /// The clauses of the conjunction that the last lookup found.
    pub(super) clauses: Vec<&'w Rule>,
}

impl Trace<'_> {
    pub(super) fn is_on(&self) -> bool {
        self.report.is_some()
    }
    /// Whether the trace is to have names of ports.
    pub(super) fn wants_names(&self) -> bool {
        self.report.as_ref().is_some_and(|r| r.names)
    }
    /// Adds a line to the trace, if there is one. Returns its number, to put other lines under it.
    pub(super) fn report(&mut self, kind: Kind, text: impl FnOnce() -> String) -> Option<usize> {
        self.report.as_mut().map(|r| r.add(kind, text()))
    }
    /// Puts the following lines under a line of the trace. Returns their parent before.
    pub(super) fn under(&mut self, line: Option<usize>) -> Option<usize> {
        self.report.as_mut().map(|r| r.set_parent(line.unwrap_or(0)))
    }
    /// A detail (` -> `).
    pub(super) fn detail(&mut self, text: &str) {
        self.report(Kind::Detail, || text.to_owned());
    }
    /// A warning (` >> `).
    pub(super) fn warn(&mut self, text: &str) {
        self.report(Kind::Warn, || text.to_owned());
    }
}

impl Report {
    /// Adds a line under the current parent.
    pub(crate) fn add(&mut self, kind: Kind, text: String) -> usize {
        let id = self.nodes.len();
        self.nodes.push(Node {
            kind,
            text,
            subs: Vec::new(),
        });
        self.nodes[self.parent].subs.push(id);
        id
    }
    /// Changes the parent, returns the old one.
    pub(crate) fn set_parent(&mut self, parent: usize) -> usize {
        std::mem::replace(&mut self.parent, parent)
    }

    /// The lines as text.
    ///
    /// A line is one step right of its list's level if another line follows in the list, or if its kind has
    /// no sub-lines. Lines under it are twice as far right.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // (line, its level, the level of lines under it); not recursive: pipelines nest deeper than a
        // machine's stack may.
        let mut todo: Vec<(usize, usize, usize)> = Vec::new();
        self.push_subs(0, 0, &mut todo);
        while let Some((id, level, below)) = todo.pop() {
            let node = &self.nodes[id];
            let (indent, text) = (" ".repeat(level * 4), &node.text);
            match node.kind {
                Kind::Bridge => {
                    let line = "-".repeat(text.len());
                    out.push_str(&format!("\n{indent}{text}\n{indent}{line}\n"));
                }
                Kind::Table | Kind::Bucket | Kind::Thaw | Kind::Action => {
                    out.push_str(&format!("{indent}{text}\n"))
                }
                Kind::Detail => out.push_str(&format!("{indent} -> {text}\n")),
                Kind::Warn => out.push_str(&format!("{indent} >> {text}\n")),
                Kind::Error => out.push_str(&format!("{indent} >>>> {text} <<<<\n")),
            }
            self.push_subs(id, below, &mut todo);
        }
        out
    }

    fn push_subs(&self, id: usize, level: usize, todo: &mut Vec<(usize, usize, usize)>) {
        let subs = &self.nodes[id].subs;
        for (i, sub) in subs.iter().enumerate().rev() {
            let leaf = !matches!(self.nodes[*sub].kind, Kind::Bridge | Kind::Table | Kind::Thaw);
            let step = usize::from(i + 1 < subs.len() || leaf);
            todo.push((*sub, level + step, level + 2 * step));
        }
    }
}
