//! `heddle offload`: what of the flow cache is forwarded elsewhere, and why the rest is not.

use crate::ask::Target;
use anyhow::Result;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Show for each cached flow that this takes (as in filter= of dpctl/dump-flows) where it is, or why not
    #[arg(long, value_name = "FLOW")]
    explain: Option<String>,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let params: Vec<&str> = self.explain.as_deref().into_iter().collect();
        crate::say::out(&self.target.ask("heddle/offload", &params)?)
    }
}
