//! The file that carries the connections of one port to another node.
//!
//! **Problem.** The file crosses a network or is stored on a disk, so the switch that reads it treats it as
//! hostile input. No connection is used before the file is known to be whole, bounded, and of a known
//! version.
//!
//! **Format**, version 1. Numbers are in network byte order. A text is its length in 16 bits, and UTF-8.
//!
//! | bytes | content |
//! | --- | --- |
//! | 8 | [`MAGIC`] |
//! | 2 | version |
//! | 1 | seal: 0 SHA-256, 1 HMAC-SHA256 with the operator's key |
//! | 1 | 0 |
//! | sections | kind (1 byte), length (4 bytes), content; in this order: |
//! | – kind 1, once | [`Header`]: flags (1 byte; bit 0: the guest ran), time (8), port, writer, number of zones (2), their names |
//! | – kind 2, any number | number of connections (4), then each as in [`connection`] |
//! | – kind 3, once, at the end | number of all connections (8), seal of all bytes before it (32) |
//!
//! **Safe error.** A wrong file is refused as a whole. [`File::open`] compares the seal before it returns any
//! content. Values of connections are checked after that ([`connection::Connections`]), also in a file with
//! an HMAC: the owner of the key may be hostile, too.

pub mod connection;
mod file;
mod reader;

pub use file::{File, Key, Seal, Writer};

use std::fmt;

/// The first bytes of a file.
pub const MAGIC: [u8; 8] = *b"HDLMIGR\n";
/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// Maximum length of a file.
pub const MAX_FILE_BYTES: usize = 256 << 20;
/// Maximum length of a section.
pub const MAX_SECTION_BYTES: usize = 1 << 20;
/// Maximum number of zones in a file.
pub const MAX_ZONES: usize = 1024;
/// Maximum length of a name.
pub const MAX_NAME_BYTES: usize = 1024;
/// Length of a key, bytes.
pub const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

/// The first section: properties of the whole file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The guest could send packets while the connections were read.
    pub live: bool,
    /// Time of the export, seconds since 1970.
    pub made_s: u64,
    /// Name of the logical port.
    pub port: String,
    /// Program that wrote the file, and its version.
    pub writer: String,
    /// Names of zones; a connection has the index of its zone in this list.
    pub zones: Vec<String>,
}

/// The reason why a file is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The first bytes are not [`MAGIC`].
    NotAMigration,
    /// A version that this program does not read.
    Version(u16),
    /// The file ends within a section.
    Truncated,
    /// The content contradicts the format.
    Malformed(&'static str),
    /// A part exceeds a bound.
    TooLarge(&'static str),
    /// The seal is wrong: the file was changed, or the key is another one.
    Seal,
    /// The file has an HMAC, and no key was given.
    NeedsKey,
    /// A key was given, and the file was sealed without one.
    HasNoKey,
    /// A key of this length is not accepted.
    KeyLength(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAMigration => f.write_str("this is no file of 'heddle migrate export'"),
            Self::Version(v) => write!(
                f,
                "the file has format {v}, and this version reads {VERSION}: export it with the same version of Heddle"
            ),
            Self::Truncated => f.write_str("the file is not complete: export it again"),
            Self::Malformed(what) => write!(f, "the file is not valid: {what}"),
            Self::TooLarge(what) => write!(f, "the file exceeds a bound: {what}"),
            Self::Seal => f.write_str("the file was changed, or the key is another one"),
            Self::NeedsKey => f.write_str("the file was written with a key: give --key-file"),
            Self::HasNoKey => f.write_str(
                "the file was written without a key: export it with --key-file, or import it without",
            ),
            Self::KeyLength(n) => write!(
                f,
                "a key has {} to {} bytes, not {n}",
                KEY_BYTES.start(),
                KEY_BYTES.end()
            ),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests;
