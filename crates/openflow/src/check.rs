//! Checks of actions against the match of their flow; see [`CheckContext`].

pub use crate::actions::{CheckContext, check_actions, check_instructions};
use crate::{Action, ErrorKind, InstructionSet, Port, Version};
use heddle_flow::Match;

/// Checks a list of actions of a packet or flow that matches `m`, in a switch with `n_tables` tables.
///
/// # Errors
/// The error to reply with.
pub fn actions(version: Version, actions: &[Action], m: &Match, n_tables: usize) -> Result<(), ErrorKind> {
    check_actions(actions, m, &context(version, 0xff, n_tables))
}

/// Checks the instructions of a flow of table `table_id`; goto must name a later one.
///
/// # Errors
/// The error to reply with.
pub fn instructions(
    version: Version,
    set: &InstructionSet,
    m: &Match,
    table_id: u8,
    n_tables: usize,
) -> Result<(), ErrorKind> {
    check_instructions(set, m, &context(version, table_id, n_tables))
}

fn context(version: Version, table_id: u8, n_tables: usize) -> CheckContext {
    CheckContext {
        version,
        max_port: Port::MAX,
        table_id,
        n_tables: u8::try_from(n_tables).unwrap_or(0xff),
    }
}
