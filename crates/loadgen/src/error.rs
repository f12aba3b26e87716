//! Errors of measurements.

use heddle_vhost_user::frontend::FrontendError;
use heddle_virtio::driver::DriverError;

/// Why a measurement cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port's session.
    #[error("port {port}: {error}")]
    Session {
        /// The port's number.
        port: usize,
        /// The session's error.
        #[source]
        error: FrontendError,
    },
    /// A port's ring.
    #[error("port {port}: {error}")]
    Ring {
        /// The port's number.
        port: usize,
        /// The ring's error.
        #[source]
        error: DriverError,
    },
    /// The requested measurement is impossible.
    #[error("{0}")]
    Impossible(String),
    /// An error of the system.
    #[error("{what}: {error}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        #[source]
        error: std::io::Error,
    },
    /// No packets arrive although they should.
    #[error("{0}")]
    Silent(String),
}
