//! What the daemon does between being ready to take commands and its end.

use std::sync::Arc;

use crate::cli::Options;
use crate::daemonize::Daemon;
use crate::exit::Exit;
use crate::memory;
use crate::unixctl::Registry;

/// What the parts of the daemon share.
#[derive(Debug, Clone)]
pub struct Context {
    /// The command line.
    pub options: Arc<Options>,
    /// Commands of the control socket; the socket is served already, new commands are known at once.
    pub commands: Registry,
    /// The wish that the daemon end.
    pub exit: Exit,
    /// The tie to the process that started the daemon: call `ready()` after the first configuration.
    pub daemon: Arc<Daemon>,
    /// Who tells what memory goes to.
    pub memory: memory::Reporters,
}

/// Runs until the daemon is asked to end.
///
/// # Errors
/// What makes it impossible to go on; the daemon then exits with a failure.
pub async fn run(ctx: Context) -> anyhow::Result<()> {
    ctx.daemon.ready();
    ctx.exit.requested().await;
    Ok(())
}
