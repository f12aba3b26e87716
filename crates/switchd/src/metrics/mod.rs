//! Metrics for Prometheus and its like: OpenMetrics text over HTTP (`--metrics`,
//! `other_config:heddle-metrics`).
//!
//! **Costs.** A scrape reads counters that workers keep anyway, on a thread that may wait; it costs workers
//! nothing. Scrapes come one after the other, so that many at once cost no more than one.
//!
//! **Bounds.** At most [`MAX_CALLERS`] are served at a time, each with a request of at most
//! [`REQUEST_BYTES`] within [`CALLER_TIMEOUT`]. One more caller replaces the earliest one, so that slow
//! callers do not block new ones. Labels are names from the configuration and of the program, no addresses of
//! packets. At most [`collect::MAX_LINES`] of a kind are shown.

mod collect;
mod serve;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::cli::MetricsAddress;
use crate::switch::Switch;
use heddle_daemon::vlog::errno_text;

/// Callers that are served at a time.
const MAX_CALLERS: usize = 16;
/// Longest head of a request.
const REQUEST_BYTES: usize = 8 << 10;
/// The longest time that a caller may take for its request, and for reading the reply.
const CALLER_TIMEOUT: Duration = Duration::from_secs(5);

/// The endpoints: one of the command line, one of the database.
pub(crate) struct EndPoints {
    source: Arc<serve::Source>,
    /// From the database: the configured text, and the open endpoint.
    configured: Mutex<(String, Option<Serving>)>,
    /// From the command line.
    given: Mutex<Option<Serving>>,
}

/// An open endpoint. It closes when the value is dropped.
struct Serving {
    task: JoinHandle<()>,
    file: Option<PathBuf>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl EndPoints {
    /// No endpoint is open yet.
    pub(crate) fn new(switch: &Arc<Switch>) -> EndPoints {
        EndPoints {
            source: Arc::new(serve::Source::new(switch)),
            configured: Mutex::default(),
            given: Mutex::default(),
        }
    }

    /// Opens the endpoint of the command line. To be called within the runtime, as are the other functions.
    ///
    /// # Errors
    /// The endpoint cannot be opened; the text has the reason.
    pub(crate) fn open(&self, address: &MetricsAddress) -> Result<(), String> {
        *self.given.lock() = Some(self.serve(address)?);
        Ok(())
    }

    /// Opens the endpoint that the database configures; closes it if the text is empty. Faults are logged.
    pub(crate) fn configure(&self, text: &str) {
        let mut configured = self.configured.lock();
        if configured.0 == text {
            return;
        }
        // The old endpoint closes first: the new one may have the same address.
        *configured = (text.to_owned(), None);
        if text.is_empty() {
            return;
        }
        match MetricsAddress::parse(text).and_then(|address| self.serve(&address)) {
            Ok(serving) => configured.1 = Some(serving),
            Err(why) => log::warn!(target: "metrics", "other_config:heddle-metrics: {why}"),
        }
    }

    fn serve(&self, address: &MetricsAddress) -> Result<Serving, String> {
        let failed = |e: &std::io::Error| format!("{address}: cannot listen ({})", errno_text(e));
        let listening = serve::Listening::open(address).map_err(|e| failed(&e))?;
        log::info!(target: "metrics", "metrics are at {address}");
        let file = match address {
            MetricsAddress::Unix(path) => Some(path.clone()),
            MetricsAddress::Tcp(_) => None,
        };
        let task = tokio::spawn(serve::serve(listening, self.source.clone()));
        Ok(Serving { task, file })
    }

    /// Closes both endpoints.
    pub(crate) fn close(&self) {
        self.given.lock().take();
        self.configured.lock().1.take();
    }
}
