//! The settings that a peer has negotiated or requested.

use super::session::Kind;
use heddle_openflow::message::{
    AsyncConfig, AsyncType, ConfigFlags, PacketInFormat, PacketInReason, Role, SwitchConfig,
};
use heddle_openflow::{DecodeContext, Version};

/// `miss_send_len` of a controller that has set none (OpenFlow 1.0 §5.3.2).
const DEFAULT_MISS_SEND_LEN: u16 = 128;
/// Packets with an invalid TTL, in a mask of packet-in reasons.
pub(super) const INVALID_TTL: u32 = 1 << PacketInReason::InvalidTtl as u32;

/// The settings of one connection.
pub(super) struct PeerSettings {
    pub(super) version: Option<Version>,
    pub(super) role: Role,
    pub(super) wanted: AsyncConfig,
    pub(super) format: PacketInFormat,
    pub(super) miss_send_len: u16,
    pub(super) controller_id: u16,
    pub(super) decode: DecodeContext,
}

impl PeerSettings {
    /// The settings of a new connection.
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            version: None,
            role: Role::Equal,
            wanted: AsyncConfig::default(),
            format: PacketInFormat::Standard,
            // A service connection gets events only after it has requested them by setting a length.
            miss_send_len: if kind == Kind::Service {
                0
            } else {
                DEFAULT_MISS_SEND_LEN
            },
            controller_id: 0,
            decode: DecodeContext::default(),
        }
    }

    /// Before 1.3 a flag requests packets with an invalid TTL; later `SetAsync` does.
    pub(super) fn configure(&mut self, version: Version, c: &SwitchConfig) {
        self.miss_send_len = c.miss_send_len;
        if version < Version::V13 {
            let reasons = &mut self.wanted.primary[AsyncType::PacketIn as usize];
            let on = c.flags.contains(ConfigFlags::INVALID_TTL_TO_CONTROLLER);
            *reasons = if on {
                *reasons | INVALID_TTL
            } else {
                *reasons & !INVALID_TTL
            };
        }
    }

    /// Sets the events that are wanted. A service connection then gets them, as if it had set a length.
    pub(super) fn set_async(&mut self, kind: Kind, update: &AsyncConfig) {
        self.wanted.apply(update);
        if kind == Kind::Service && self.miss_send_len == 0 {
            self.miss_send_len = DEFAULT_MISS_SEND_LEN;
        }
    }

    /// Whether an event of this kind and reason is for this connection.
    pub(super) fn wants(&self, kind: Kind, ty: AsyncType, reason: u8) -> bool {
        let silent = kind == Kind::Service && self.miss_send_len == 0;
        self.version.is_some() && !silent && self.wanted.wants(self.role == Role::Secondary, ty, reason)
    }
}
