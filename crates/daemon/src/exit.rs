//! The daemon's end: requests for it, files to remove, and the exit status that the parent sees.
//!
//! The fatal signals (TERM, INT, HUP, ALRM, unless the parent had them ignored) are blocked in every thread.
//! One thread takes them with sigwait(3), so no code runs in signal context. It requests an orderly end. If
//! that takes too long, or a second signal comes, it ends the process itself. Either way the files are
//! removed. The process then dies of the same signal by its default action, so that its parent sees the true
//! cause.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io, thread};

use heddle_sys::signal::{self, Signal, Signals};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::vlog;

/// The longest orderly end after a signal.
const ORDERLY_LIMIT: Duration = Duration::from_secs(10);

/// Why and how to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// `exit --cleanup`: release also what would outlive the daemon, such as internal ports.
    pub cleanup: bool,
    /// The signal that caused the request, if one did.
    pub signal: Option<Signal>,
}

/// The request that the daemon end. Cloning gives another handle to the same request.
#[derive(Debug, Clone)]
pub struct Exit {
    state: Arc<watch::Sender<Option<Request>>>,
}

impl Default for Exit {
    fn default() -> Exit {
        Exit {
            state: Arc::new(watch::Sender::new(None)),
        }
    }
}

impl Exit {
    /// Requests the daemon's end. The first request counts.
    pub fn request(&self, request: Request) {
        self.state.send_if_modified(|state| {
            let first = state.is_none();
            state.get_or_insert(request);
            first
        });
    }

    /// The request, if there has been one.
    #[must_use]
    pub fn get(&self) -> Option<Request> {
        *self.state.borrow()
    }

    /// Waits for a request.
    pub async fn requested(&self) -> Request {
        let mut state = self.state.subscribe();
        match state.wait_for(Option::is_some).await.map(|state| *state) {
            Ok(Some(request)) => request,
            // The sender lives as long as `self`.
            _ => std::future::pending().await,
        }
    }
}

static FILES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Has a file removed when the daemon ends, unless it crashes.
pub fn remove_at_exit(path: &Path) {
    FILES.lock().insert(path.to_owned());
}

/// Removes the files now. A file that cannot be removed is reported, unless it is gone already.
pub fn remove_files() {
    for path in std::mem::take(&mut *FILES.lock()) {
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            let why = vlog::errno_text(&error);
            log::warn!(target: "fatal_signal", "could not unlink \"{}\" ({why})", path.display());
        }
    }
}

/// The fatal signals of this process: those that its parent did not have it ignore (as nohup(1) does with
/// HUP).
fn fatal_signals() -> Vec<Signal> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::ALARM]
        .into_iter()
        .filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0)
        .collect()
}

/// Blocks the fatal signals in this thread and those it starts, and starts the thread that takes them.
///
/// # Errors
/// When the mask cannot be set or the thread cannot be started.
pub fn watch_signals(exit: &Exit) -> io::Result<()> {
    let signals = Signals::hold(&fatal_signals())?;
    let exit = exit.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        vlog::set_thread_name("");
        let mut first = true;
        while let Ok(signal) = signals.next() {
            if !first {
                die_of(signal);
            }
            first = false;
            let text = signal::text(signal);
            log::warn!(target: "fatal_signal", "terminating with signal {} ({text})", signal.as_raw());
            exit.request(Request {
                cleanup: false,
                signal: Some(signal),
            });
            let limit = thread::Builder::new().name("exit-limit".into()).spawn(move || {
                thread::sleep(ORDERLY_LIMIT);
                log::warn!(target: "fatal_signal", "the orderly end takes too long, ending now");
                die_of(signal);
            });
            if limit.is_err() {
                die_of(signal);
            }
        }
    })?;
    Ok(())
}

/// Removes the files, finishes the log and dies of `signal`.
pub fn die_of(signal: Signal) -> ! {
    remove_files();
    vlog::flush();
    let _ = signal::raise(signal);
    // Unreachable with a fatal signal, since no code here changes its disposition; otherwise the shell's
    // convention.
    std::process::exit(128 + signal.as_raw())
}
