//! Options of a client.

use std::sync::Arc;
use std::time::Duration;

use heddle_stream::Tls;

/// Settings of a client; the defaults are those of Open vSwitch's daemons where they have one.
#[derive(Clone, Debug)]
pub struct Options {
    /// The lock to request at every connection (RFC 7047 section 4.1.8).
    pub lock: Option<String>,
    /// After this time without a byte from the server an echo is sent; after as much again the connection is
    /// dropped. `None` never probes.
    pub probe_interval: Option<Duration>,
    /// Also probes a server on a Unix socket. The kernel reports the end of such a server, and connecting
    /// again does not help with a busy one. So Open vSwitch's daemons probe only over the network.
    pub probe_local: bool,
    /// Keys for servers that are reached by TLS.
    pub tls: Arc<Tls>,
    /// Wait before the second attempt to connect; the first is immediate.
    pub backoff_min: Duration,
    /// Longest wait between attempts; the wait doubles up to it.
    pub backoff_max: Duration,
    /// Time limit of one attempt to connect.
    pub connect_timeout: Duration,
    /// Longest message accepted from the server, in bytes. The initial contents come in one message. Parsing
    /// takes a multiple of the message's length for as long as the parsing lasts.
    pub max_message: usize,
    /// Number of changed rows that are remembered for handles that poll. A handle that falls further behind
    /// is notified to look at everything.
    pub change_log: usize,
    /// Requests sent without a reply yet; further ones wait in line.
    pub max_in_flight: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lock: None,
            probe_interval: Some(Duration::from_secs(5)),
            probe_local: false,
            tls: Arc::default(),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(8),
            connect_timeout: Duration::from_secs(8),
            max_message: 64 << 20,
            change_log: 1 << 16,
            max_in_flight: 256,
        }
    }
}
