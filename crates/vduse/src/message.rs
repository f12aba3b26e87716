//! Messages of the kernel and their replies (linux/vduse.h, `vduse_dev_request` and `vduse_dev_response`).

use heddle_sys::vduse::MESSAGE_LEN;
use heddle_virtio::ring::Position;

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number that the reply has to carry.
    pub id: u32,
    /// The kind of request.
    pub kind: RequestKind,
}

/// A kind of request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// The position of a ring.
    QueueState(u32),
    /// The driver sets the device status (virtio 1.2 §2.1). Zero is a reset.
    Status(u8),
    /// The mapping of these addresses, the last included, has changed.
    Update {
        /// First address.
        start: u64,
        /// Last address.
        last: u64,
    },
    /// A kind of a later version of the kernel's interface.
    Unknown(u32),
}

/// Offset of the part that depends on the kind.
const BODY: usize = 24;

fn u32_at<const AT: usize>(m: &[u8; MESSAGE_LEN]) -> u32 {
    const { assert!(AT + 4 <= MESSAGE_LEN) };
    m.get(AT..)
        .and_then(|b| b.first_chunk())
        .map_or(0, |b| u32::from_ne_bytes(*b))
}
fn u64_at<const AT: usize>(m: &[u8; MESSAGE_LEN]) -> u64 {
    const { assert!(AT + 8 <= MESSAGE_LEN) };
    m.get(AT..)
        .and_then(|b| b.first_chunk())
        .map_or(0, |b| u64::from_ne_bytes(*b))
}

impl Request {
    /// Reads a message.
    pub fn decode(m: &[u8; MESSAGE_LEN]) -> Self {
        let kind = match u32_at::<0>(m) {
            0 => RequestKind::QueueState(u32_at::<BODY>(m)),
            1 => RequestKind::Status(m[BODY]),
            2 => RequestKind::Update {
                start: u64_at::<BODY>(m),
                last: u64_at::<{ BODY + 8 }>(m),
            },
            other => RequestKind::Unknown(other),
        };
        Self {
            id: u32_at::<4>(m),
            kind,
        }
    }
}

/// The reply to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done,
    Failed,
    /// The position of a ring.
    State {
        index: u32,
        at: Position,
        packed: bool,
    },
}

impl Reply {
    pub(crate) fn encode(self, id: u32) -> [u8; MESSAGE_LEN] {
        let mut m = [0; MESSAGE_LEN];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = m.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(0, &id.to_ne_bytes());
        put(4, &u32::from(self == Self::Failed).to_ne_bytes());
        if let Self::State { index, at, packed } = self {
            put(BODY, &index.to_ne_bytes());
            if packed {
                // Available and used: a stopped queue has nothing in between.
                for half in [BODY + 4, BODY + 8] {
                    put(half, &u16::from(at.wrap).to_ne_bytes());
                    put(half + 2, &at.index.to_ne_bytes());
                }
            } else {
                put(BODY + 4, &at.index.to_ne_bytes());
            }
        }
        m
    }
}
