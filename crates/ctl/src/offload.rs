//! `heddle offload`: the cached flows that hardware or the kernel forwards, and why not the others.

use crate::request::Target;
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
        crate::console::out(&self.target.request("heddle/offload", &params)?)
    }
}
