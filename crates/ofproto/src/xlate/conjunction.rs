//! Conjunctive matches: rules that are clauses, and the rule of a conjunction all of whose clauses match.
//!
//! **Problem.** The action `conjunction(id,k/n)` makes its rule clause `k` of `n`. The packet matches
//! conjunction `id` if it matches at least one rule of every clause. Then the rules are looked up once more,
//! with `conj_id` set to `id`.
//!
//! **Order.** As in Open vSwitch, clauses count together only within one priority, the highest first. They
//! count only if their priority is higher than that of the best ordinary rule. The rule that the second
//! lookup finds is the result, whatever its priority is. If there is none, the next conjunction is tried.
//!
//! **Costs.** Tables without clauses cost one look at the first action of each rule that matches.

use crate::model::{Rule, Table};
use heddle_flow::{FlowKey, FlowMask};
use heddle_openflow::action::Conjunction;
use heddle_openflow::{Action, Instruction};
use heddle_sync::ReadGuard;
use std::collections::HashMap;
use std::sync::Arc;

/// The clauses of a rule; none for an ordinary rule. A rule with clauses has only notes beside them.
fn clauses(rule: &Rule) -> impl Iterator<Item = &Conjunction> {
    let actions = match rule.instructions.0.first() {
        Some(Instruction::Apply(list))
            if matches!(list.first(), Some(Action::Conjunction(_) | Action::Note(_))) =>
        {
            list.as_slice()
        }
        _ => &[],
    };
    actions.iter().filter_map(|a| match a {
        Action::Conjunction(c) => Some(c),
        _ => None,
    })
}

/// The rule of highest priority that matches, conjunctions included. Adds the bits that it depends on to
/// `wc`, and the rules that are clauses of the conjunction found to `used`.
pub(super) fn lookup<'r>(
    table: &'r Table,
    reading: &'r ReadGuard,
    version: u64,
    key: &FlowKey,
    wc: &mut FlowMask,
    used: Option<&mut Vec<&'r Rule>>,
) -> Option<&'r Arc<Rule>> {
    let mut soft: Vec<(i32, &Rule)> = Vec::new();
    let hard = table.rules.lookup_where(reading, version, key, wc, |e| {
        let is_clause = clauses(&e.data).next().is_some();
        if is_clause {
            soft.push((e.priority, &e.data));
        }
        !is_clause
    });
    if soft.is_empty() {
        return hard.map(|hit| &hit.data);
    }
    let floor = hard.map_or(i32::MIN, |hit| hit.priority);
    soft.retain(|(priority, _)| *priority > floor);
    // Stable: of several conjunctions of one priority, the one whose last clause was found first.
    soft.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    for level in soft.chunk_by(|a, b| a.0 == b.0) {
        for id in complete(level.iter().map(|(_, rule)| *rule)) {
            let again = FlowKey { conj_id: id, ..*key };
            let found = table.rules.lookup_where(reading, version, &again, wc, |e| {
                clauses(&e.data).next().is_none()
            });
            if let Some(hit) = found {
                if let Some(used) = used {
                    let level = level.iter().map(|(_, rule)| *rule);
                    used.extend(level.filter(|rule| clauses(rule).any(|c| c.id == id)));
                }
                return Some(&hit.data);
            }
        }
    }
    hard.map(|hit| &hit.data)
}

/// Conjunctions that have every clause among these rules, in the order in which they are completed.
fn complete<'r>(rules: impl Iterator<Item = &'r Rule>) -> Vec<u32> {
    // The clauses seen, by id and number of clauses. A rule may be a clause of thousands.
    let mut seen: HashMap<(u32, u8), u64> = HashMap::new();
    let mut complete = Vec::new();
    for c in rules.flat_map(clauses) {
        let all = u64::MAX >> (64 - u32::from(c.n_clauses.clamp(1, 64)));
        let clauses = seen.entry((c.id, c.n_clauses)).or_default();
        let had = *clauses;
        *clauses |= 1 << (c.clause & 63);
        if had != all && *clauses == all {
            complete.push(c.id);
        }
    }
    complete
}

#[cfg(test)]
mod tests {
    use crate::xlate::tests::lab::{Lab, out};
    use heddle_flow::Match;
    use heddle_openflow::action::Conjunction;
    use heddle_openflow::{Action, Instruction, InstructionSet};

    fn add(lab: &Lab, priority: u16, m: &str, actions: Vec<Action>) {
        let m = Match::parse_text(m, None).unwrap();
        lab.add(
            (0, 0),
            priority,
            &m,
            InstructionSet(vec![Instruction::Apply(actions)]),
        );
    }
    fn clause(id: u32, clause: u8, n_clauses: u8) -> Action {
        Action::Conjunction(Conjunction {
            id,
            clause,
            n_clauses,
        })
    }
    fn actions(lab: &Lab, flow: &str) -> String {
        let text = lab.trace(&["br0", flow]).unwrap().text;
        let last = text.lines().find_map(|l| l.strip_prefix("Datapath actions: "));
        last.unwrap().to_owned()
    }

    #[test]
    fn all_clauses_of_one_priority_must_match() {
        let lab = Lab::new(&[5]);
        add(&lab, 1, "conj_id=7", vec![out(2)]);
        add(&lab, 5, "ip,nw_src=10.0.0.1", vec![clause(7, 0, 2)]);
        add(&lab, 5, "ip,nw_dst=10.0.0.2", vec![clause(7, 1, 2)]);
        add(&lab, 4, "ip,nw_dst=10.0.0.3", vec![clause(7, 1, 2)]);
        add(&lab, 3, "ip", vec![out(3)]);
        let at = |dst: &str| actions(&lab, &format!("in_port=1,ip,nw_src=10.0.0.1,nw_dst={dst}"));
        // The second lookup finds the highest of all ordinary rules, as in Open vSwitch.
        assert_eq!(
            (at("10.0.0.2"), at("10.0.0.3"), at("10.0.0.4")),
            ("3".into(), "3".into(), "3".into())
        );
        add(&lab, 9, "conj_id=7", vec![out(4)]);
        assert_eq!((at("10.0.0.2"), at("10.0.0.3")), ("4".into(), "3".into()));
        // A better ordinary rule wins over clauses.
        add(&lab, 6, "ip,nw_dst=10.0.0.2", vec![out(5)]);
        assert_eq!(at("10.0.0.2"), "5");
    }

    #[test]
    fn lower_priorities_have_their_turn() {
        let lab = Lab::new(&[4]);
        add(&lab, 100, "conj_id=1", vec![out(2)]);
        add(&lab, 100, "conj_id=2", vec![out(3)]);
        // The same match twice, at two priorities: the higher is half a conjunction only.
        add(&lab, 9, "ip,nw_src=10.0.0.1", vec![clause(1, 0, 2)]);
        add(&lab, 8, "ip,nw_src=10.0.0.1", vec![clause(2, 0, 2)]);
        add(&lab, 8, "ip,nw_dst=10.0.0.2", vec![clause(2, 1, 2)]);
        assert_eq!(actions(&lab, "in_port=1,ip,nw_src=10.0.0.1,nw_dst=10.0.0.2"), "3");
        assert_eq!(
            actions(&lab, "in_port=1,ip,nw_src=10.0.0.1,nw_dst=10.0.0.9"),
            "drop"
        );
    }
}
