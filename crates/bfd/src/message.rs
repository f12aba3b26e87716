//! Control messages (RFC 5880 §4.1).

use std::fmt::{Display, Formatter, Result};

/// Bytes of a message without authentication.
pub const MESSAGE_LEN: usize = 24;
/// Version of RFC 5880.
pub(crate) const VERSION: u8 = 1;

/// State of a session, in the order of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum State {
    /// Disabled by the administrator.
    AdminDown = 0,
    /// No message was received.
    Down = 1,
    /// The peer was heard.
    Init = 2,
    /// Each end has heard the other.
    Up = 3,
}

/// Diagnostic: why the session's state last changed, or which part of the path is broken. Unknown numbers
/// are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Diag(pub u8);

impl Diag {
    /// No reason.
    pub const NONE: Self = Self(0);
    /// Too many messages were missing.
    pub const EXPIRED: Self = Self(1);
    /// The peer reported it.
    pub const REMOTE_DOWN: Self = Self(3);
    /// The path is known to be broken.
    pub const PATH_DOWN: Self = Self(5);
    /// The path behind this end is broken.
    pub const CONCATENATED_DOWN: Self = Self(6);
    /// The path behind this end is broken in the other direction.
    pub const REVERSE_CONCATENATED_DOWN: Self = Self(8);

    /// Whether packets to the peer would not arrive, whatever the session's state is.
    pub(crate) fn is_broken_path(self) -> bool {
        matches!(
            self,
            Self::PATH_DOWN | Self::CONCATENATED_DOWN | Self::REVERSE_CONCATENATED_DOWN
        )
    }
}

/// Flags of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// Multipoint; not in use.
    pub const MULTIPOINT: Self = Self(1);
    /// Demand mode.
    pub const DEMAND: Self = Self(1 << 1);
    /// Authentication follows.
    pub const AUTH: Self = Self(1 << 2);
    /// The sender forwards even if its control plane does not run.
    pub const CTL: Self = Self(1 << 3);
    /// A reply to a poll.
    pub const FINAL: Self = Self(1 << 4);
    /// A poll, to which the peer replies at once.
    pub const POLL: Self = Self(1 << 5);

    /// Mask of all flags.
    const ALL: u8 = 0x3f;

    /// Whether this flag is set.
    pub fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }
    pub(crate) fn set(&mut self, flag: Self, on: bool) {
        self.0 = self.0 & !flag.0 | if on { flag.0 } else { 0 };
    }
}

/// A message as it was read, not validated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Version of the protocol.
    pub version: u8,
    /// Why the sender's state last changed.
    pub diag: Diag,
    /// The sender's state.
    pub state: State,
    /// Flags.
    pub flags: Flags,
    /// `bfd.DetectMult` of the sender.
    pub mult: u8,
    /// Length of the message in its header, bytes.
    pub length: u8,
    /// The sender's number of this session.
    pub my_disc: u32,
    /// The receiver's number of this session, as the sender heard it; 0: not heard.
    pub your_disc: u32,
    /// Shortest interval of messages that the sender wants to send, us.
    pub min_tx_us: u32,
    /// Shortest interval of messages that the sender wants to receive, us.
    pub min_rx_us: u32,
    /// Shortest interval of echo packets that the sender wants to receive, us.
    pub min_rx_echo_us: u32,
}

impl Message {
    /// Reads the first bytes of `bytes`. `None`: there are too few.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (head, words) = bytes.get(..MESSAGE_LEN)?.split_first_chunk::<4>()?;
        let mut words = words.as_chunks::<4>().0.iter().map(|w| u32::from_be_bytes(*w));
        let [vers_diag, state_flags, mult, length] = *head;
        Some(Self {
            version: vers_diag >> 5,
            diag: Diag(vers_diag & 0x1f),
            state: match state_flags >> 6 {
                0 => State::AdminDown,
                1 => State::Down,
                2 => State::Init,
                _ => State::Up,
            },
            flags: Flags(state_flags & Flags::ALL),
            mult,
            length,
            my_disc: words.next()?,
            your_disc: words.next()?,
            min_tx_us: words.next()?,
            min_rx_us: words.next()?,
            min_rx_echo_us: words.next()?,
        })
    }

    /// The message's bytes.
    pub fn bytes(&self) -> [u8; MESSAGE_LEN] {
        let mut bytes = [0; MESSAGE_LEN];
        let (head, words) = bytes.split_at_mut(4);
        head.copy_from_slice(&[
            self.version << 5 | self.diag.0 & 0x1f,
            (self.state as u8) << 6 | self.flags.0 & Flags::ALL,
            self.mult,
            self.length,
        ]);
        let values = [
            self.my_disc,
            self.your_disc,
            self.min_tx_us,
            self.min_rx_us,
            self.min_rx_echo_us,
        ];
        for (word, value) in words.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *word = value.to_be_bytes();
        }
        bytes
    }
}

impl std::fmt::Display for Message {
    /// The log's lines about the message.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let interval = |us: u32| format!("{us}us ({}ms)", us / 1000);
        write!(
            f,
            "\n  vers:{} diag:\"{}\" state:{} mult:{} length:{}\n  flags: {}\n  my_disc:{} your_disc:{}\n  \
             min_tx:{}\n  min_rx:{}\n  min_rx_echo:{}",
            self.version,
            self.diag,
            self.state,
            self.mult,
            self.length,
            self.flags,
            disc(self.my_disc),
            disc(self.your_disc),
            interval(self.min_tx_us),
            interval(self.min_rx_us),
            interval(self.min_rx_echo_us),
        )
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::AdminDown => "admin_down",
            Self::Down => "down",
            Self::Init => "init",
            Self::Up => "up",
        })
    }
}

impl Display for Diag {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self.0 {
            0 => "No Diagnostic",
            1 => "Control Detection Time Expired",
            2 => "Echo Function Failed",
            3 => "Neighbor Signaled Session Down",
            4 => "Forwarding Plane Reset",
            5 => "Path Down",
            6 => "Concatenated Path Down",
            7 => "Administratively Down",
            8 => "Reverse Concatenated Path Down",
            _ => "Invalid Diagnostic",
        })
    }
}

impl Display for Flags {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let names = [
            (Self::MULTIPOINT, "multipoint"),
            (Self::DEMAND, "demand"),
            (Self::AUTH, "auth"),
            (Self::CTL, "ctl"),
            (Self::FINAL, "final"),
            (Self::POLL, "poll"),
        ];
        let set: Vec<&str> = names
            .iter()
            .filter(|(flag, _)| self.has(*flag))
            .map(|(_, n)| *n)
            .collect();
        f.write_str(
            if set.is_empty() {
                "none".to_owned()
            } else {
                set.join(" ")
            }
            .as_str(),
        )
    }
}

/// A discriminator.
pub(crate) fn disc(number: u32) -> String {
    format!("0x{number:x}")
}
