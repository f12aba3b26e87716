//! `heddle offload`: the cached flows that hardware or the kernel forwards, and why not the others.

use crate::ask::Target;
use anyhow::Result;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Show each cached flow that matches (as in filter= of dpctl/dump-flows): the place where it is, or the
    /// reason why it is not offloaded
    #[arg(long, value_name = "FLOW")]
    explain: Option<String>,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let params: Vec<&str> = self.explain.as_deref().into_iter().collect();
        crate::say::out(&self.target.ask("heddle/offload", &params)?)
    }
}
