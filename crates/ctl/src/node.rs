//! `heddle node`: the functions of the crate `heddle-node`, as commands.

use clap::Subcommand;
use heddle_node::{DEFAULT_FILE, DEFAULT_STATE, Node};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Files {
    /// The machine's description
    #[arg(default_value = DEFAULT_FILE)]
    file: PathBuf,
    /// File of the values before the first change
    #[arg(long, default_value = DEFAULT_STATE)]
    state: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show what apply would change
    Plan(Files),
    /// Make the machine as the file describes it; undo that if the check address does not reply afterwards
    Apply(Files),
    /// Show each setting, and whether it is as in the file (status 1 if not)
    Status(Files),
    /// Make everything as it was before the first apply
    Undo(Files),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let open = |at: &Files| Node::open(&at.file, &at.state);
        match self {
            Self::Plan(at) => open(&at)?.plan(),
            Self::Apply(at) => open(&at)?.apply(),
            Self::Status(at) => open(&at)?.status(),
            Self::Undo(at) => Node::undo(&at.file, &at.state),
        }
    }
}
