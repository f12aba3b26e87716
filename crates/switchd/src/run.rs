//! The daemon's work, from accepting commands to its end.

use std::sync::Arc;

use anyhow::Context as _;

use crate::cli::Options;
use crate::metrics::EndPoints;
use crate::switch::Switch;
use crate::{commands, reconcile};
use heddle_daemon::daemonize::Daemon;
use heddle_daemon::exit::Exit;
use heddle_daemon::memory;
use heddle_daemon::unixctl::Registry;

/// State that the parts of the daemon share.
#[derive(Debug, Clone)]
pub struct Context {
    /// The command line.
    pub options: Arc<Options>,
    /// Commands of the control socket; the socket is served already, new commands are known at once.
    pub commands: Registry,
    /// The wish that the daemon end.
    pub exit: Exit,
    /// The connection to the process that started the daemon: call `ready()` after the first configuration.
    pub daemon: Arc<Daemon>,
    /// Reporters of memory use.
    pub memory: memory::Reporters,
}

/// Runs until the daemon's end is requested.
///
/// # Errors
/// A fatal error; the daemon then exits with a failure.
pub async fn run(ctx: Context) -> anyhow::Result<()> {
    if ctx.options.dummy.is_some() {
        heddle_openflow::enable_debug_actions();
    }
    let switch = Switch::start(ctx.options.clone())?;
    let metrics = EndPoints::new(&switch);
    if let Some(place) = &ctx.options.metrics {
        metrics
            .open(place)
            .map_err(|why| anyhow::anyhow!("--metrics: {why}"))?;
    }
    // This is the only call, so it cannot fail.
    let _ = switch.metrics.set(metrics);
    commands::register(&ctx, &switch);
    let result = reconcile::run(&ctx, switch.clone()).await;
    // Workers end and devices close on a thread that may wait for them.
    let cleanup = ctx.exit.get().is_some_and(|request| request.cleanup);
    let ended = tokio::task::spawn_blocking(move || switch.shutdown(cleanup)).await;
    ended.context("the switch did not end well")?;
    result
}
