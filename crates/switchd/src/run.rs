//! The daemon's work, from accepting commands to its end.

use std::sync::Arc;

use anyhow::Context as _;

use crate::context::Context;
use crate::metrics::EndPoints;
use crate::switch::Switch;
use crate::{commands, reconcile};

/// Runs until the daemon's end is requested.
///
/// # Errors
/// A fatal error; the daemon then exits with a failure.
pub async fn run(ctx: Context) -> anyhow::Result<()> {
    if ctx.options.dummy.is_some() {
        heddle_openflow::enable_debug_actions();
    }
    reconcile::log_processors(ctx.options.dummy_numa.as_deref());
    let switch = Switch::start(ctx.options.clone())?;
    let metrics = Arc::new(EndPoints::new(&switch));
    if let Some(address) = &ctx.options.metrics {
        metrics
            .open(address)
            .map_err(|why| anyhow::anyhow!("--metrics: {why}"))?;
    }
    commands::register(&ctx, &switch);
    let result = reconcile::run(&ctx, switch.clone(), metrics.clone()).await;
    metrics.close();
    // Workers end and devices close on a thread that may wait for them.
    let cleanup = ctx.exit.get().is_some_and(|request| request.cleanup);
    let ended = tokio::task::spawn_blocking(move || switch.shutdown(cleanup)).await;
    ended.context("the switch did not end well")?;
    result
}
