//! State that the parts of the daemon share.

use std::sync::Arc;

use heddle_daemon::daemonize::Daemon;
use heddle_daemon::exit::Exit;
use heddle_daemon::memory;
use heddle_daemon::unixctl::Registry;

use crate::cli::Options;

/// The command line, and the handles by which the daemon is reached and ended.
#[derive(Debug, Clone)]
pub struct Context {
    /// The command line.
    pub options: Arc<Options>,
    /// Commands of the control socket; the socket is served already, new commands are known at once.
    pub commands: Registry,
    /// The request that the daemon end.
    pub exit: Exit,
    /// The connection to the process that started the daemon: call `ready()` after the first configuration.
    pub daemon: Arc<Daemon>,
    /// Reporters of memory use.
    pub memory: memory::Reporters,
}
