//! Byte streams of the control plane, in Open vSwitch's notation (ovsdb(7), "Connection Methods").
//!
//! **Problem.** The database and the controllers are reached in the same three ways (Unix socket, TCP, TLS),
//! by calling ([`Active`]) or by being called ([`Passive`]). The protocols above the streams are in other
//! crates.
//!
//! **Keys** belong to the process ([`Tls`]): one private key, one certificate, one authority that vouches for
//! all peers. They come from the command line or from the database's `SSL` table and are read again when a
//! file has changed.
//!
//! **Invariants.** Without keys no TLS connection is made or taken. A peer without a certificate of the
//! configured authority is refused in both directions, unless the operator wrote `none` for the authority.
//! Names in certificates are not compared: addresses are configured, and the authority is the operator's own,
//! as in Open vSwitch. A slow handshake delays only its own connection.

mod active;
mod address;
mod connect;
mod limit;
mod passive;
mod tls;

#[cfg(test)]
mod tests;

pub use active::Active;
pub use limit::{Pace, Slot, Slots, descriptor_part};
pub use passive::{Acceptor, Incoming, Passive, bind_unix};
pub use tls::{Settings, Tls};

pub use heddle_sys::errno_text;
use tokio::io::{AsyncRead, AsyncWrite};

/// The port that IANA gave to OVSDB.
pub const OVSDB_PORT: u16 = 6640;
/// The port that IANA gave to OpenFlow.
pub const OPENFLOW_PORT: u16 = 6653;

/// A connected byte stream of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The text is no connection method that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {why}")]
pub struct MethodError {
    /// The text that was given.
    pub text: String,
    /// The expected form.
    pub why: &'static str,
}

impl MethodError {
    fn new(text: &str, why: &'static str) -> MethodError {
        MethodError {
            text: text.to_owned(),
            why,
        }
    }
}
