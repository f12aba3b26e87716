//! The plain twin: a list that is searched from one end to the other. For tests.

use crate::mini::MiniMatch;
use heddle_flow::FlowKey;

/// A rule of the plain twin.
#[derive(Clone, Debug)]
pub struct Rule<T> {
    /// The match.
    pub matches: MiniMatch,
    /// The rule of higher priority wins.
    pub priority: i32,
    /// The first version that sees it.
    pub added: u64,
    /// The first version that does not see it any more.
    pub removed: u64,
    /// The caller's rule.
    pub data: T,
}

/// Finds the visible rule of highest priority by looking at all of them.
pub fn lookup<'a, T>(rules: &'a [Rule<T>], version: u64, key: &FlowKey) -> Option<&'a Rule<T>> {
    let visible = rules.iter().filter(|r| r.added <= version && version < r.removed);
    visible
        .filter(|r| r.matches.matches(key))
        .max_by_key(|r| r.priority)
}
