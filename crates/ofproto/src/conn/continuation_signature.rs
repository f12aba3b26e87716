//! Signatures of continuations, so that a controller resumes only packets that it was sent.
//!
//! **Problem.** A continuation determines in which bridge a packet continues and which actions run there. A
//! controller keeps it, and a controller of one bridge must not resume packets in another one.
//!
//! **How.** The first property of a continuation holds 16 bytes, as Open vSwitch's does. The first 8 of them
//! are a keyed hash (SipHash) of all other bytes, of the bridge and of the connection. The key is random and
//! of this process: continuations do not outlive it, nor the connection.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// Type and length of the first property, then the signature.
const HEADER: [u8; 4] = [0x80, 0, 0, 20];
const SIGNATURE: std::ops::Range<usize> = 4..12;

/// The parties of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parties {
    pub(super) bridge: u64,
    pub(super) connection: u64,
}

impl Parties {
    fn signature(self, continuation: &[u8]) -> Option<[u8; 8]> {
        static KEY: OnceLock<RandomState> = OnceLock::new();
        let mut hasher = KEY.get_or_init(RandomState::new).build_hasher();
        hasher.write_u64(self.bridge);
        hasher.write_u64(self.connection);
        if !continuation.starts_with(&HEADER) {
            return None;
        }
        hasher.write(continuation.get(SIGNATURE.end..)?);
        Some(hasher.finish().to_ne_bytes())
    }

    /// Signs an encoded continuation.
    pub(super) fn sign(self, continuation: &mut [u8]) {
        if let (Some(signature), Some(place)) =
            (self.signature(continuation), continuation.get_mut(SIGNATURE))
        {
            place.copy_from_slice(&signature);
        }
    }

    /// Whether these parties were given this continuation.
    pub(super) fn is_own(self, continuation: &[u8]) -> bool {
        let Some(signature) = self.signature(continuation) else {
            return false;
        };
        let given = continuation.get(SIGNATURE).unwrap_or_default();
        // All bytes are compared, so that the time does not reveal the first one that differs.
        given.len() == signature.len() && given.iter().zip(signature).fold(0, |d, (a, b)| d | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_openflow::message::Continuation;
    use heddle_openflow::{Version, encode_continuation};

    #[test]
    fn only_what_was_sent_to_this_connection_is_taken_back() {
        let parties = Parties {
            bridge: 1,
            connection: 4,
        };
        let c = Continuation {
            bridge: [7; 16],
            mirrors: 3,
            conntracked: true,
            ..Continuation::default()
        };
        for version in Version::ALL {
            let mut bytes = encode_continuation(version, &c).unwrap();
            assert!(!parties.is_own(&bytes));
            parties.sign(&mut bytes);
            assert!(parties.is_own(&bytes));
            for other in [
                Parties { bridge: 2, ..parties },
                Parties {
                    connection: 5,
                    ..parties
                },
            ] {
                assert!(!other.is_own(&bytes));
            }
            for at in 0..bytes.len() {
                let mut forged = bytes.clone();
                forged[at] ^= 1;
                assert!(!parties.is_own(&forged), "byte {at}");
                assert!(!parties.is_own(&bytes[..at]));
            }
        }
        assert!(!parties.is_own(&[]));
    }
}
