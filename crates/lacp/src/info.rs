//! Messages (IEEE 802.1AX-2020 §6.4.2).

/// Bytes of an [`Info`] in a message.
pub const INFO_LEN: usize = 15;
/// Bytes of a message.
pub(crate) const PDU_LEN: usize = 110;

/// Subtypes of the slow protocols (IEEE 802.3 annex 57A).
const SUBTYPE_LACP: u8 = 1;
const SUBTYPE_MARKER: u8 = 2;
const VERSION: u8 = 1;
/// Type and length of each part of a message.
const ACTOR: [u8; 2] = [1, 20];
const PARTNER: [u8; 2] = [2, 20];
const COLLECTOR: [u8; 2] = [3, 16];
/// Offsets of the parts.
const ACTOR_AT: usize = 2;
const PARTNER_AT: usize = 22;
const COLLECTOR_AT: usize = 42;

/// State of a system's end of a link (§6.4.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The system sends messages whether it hears any or not.
    pub const ACTIVITY: Self = Self(1);
    /// The system wants messages every second.
    pub const TIMEOUT: Self = Self(1 << 1);
    /// The link may be aggregated with others.
    pub const AGGREGATION: Self = Self(1 << 2);
    /// The link is in the right aggregation.
    pub const SYNCHRONIZED: Self = Self(1 << 3);
    /// Packets are taken from the link.
    pub const COLLECTING: Self = Self(1 << 4);
    /// Packets are sent on the link.
    pub const DISTRIBUTING: Self = Self(1 << 5);
    /// The partner is not known.
    pub const DEFAULTED: Self = Self(1 << 6);
    /// The partner was not heard in time.
    pub const EXPIRED: Self = Self(1 << 7);

    /// Whether one of these flags is set.
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }
    pub(crate) fn set(&mut self, flags: Self, on: bool) {
        self.0 = self.0 & !flags.0 | if on { flags.0 } else { 0 };
    }
}

/// A system's end of a link, as messages describe it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Info {
    /// Priority of the system; the lower number decides.
    pub sys_priority: u16,
    /// The system.
    pub sys_id: [u8; 6],
    /// Links of one system with the same key may be aggregated.
    pub key: u16,
    /// Priority of the port.
    pub port_priority: u16,
    /// Number of the port.
    pub port_id: u16,
    /// State of the port.
    pub state: Flags,
}

impl Info {
    fn read(bytes: &[u8; INFO_LEN]) -> Self {
        let [p0, p1, s0, s1, s2, s3, s4, s5, k0, k1, q0, q1, n0, n1, state] = *bytes;
        Self {
            sys_priority: u16::from_be_bytes([p0, p1]),
            sys_id: [s0, s1, s2, s3, s4, s5],
            key: u16::from_be_bytes([k0, k1]),
            port_priority: u16::from_be_bytes([q0, q1]),
            port_id: u16::from_be_bytes([n0, n1]),
            state: Flags(state),
        }
    }

    fn bytes(&self) -> [u8; INFO_LEN] {
        let mut bytes = [0; INFO_LEN];
        bytes[..2].copy_from_slice(&self.sys_priority.to_be_bytes());
        bytes[2..8].copy_from_slice(&self.sys_id);
        bytes[8..10].copy_from_slice(&self.key.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.port_priority.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.port_id.to_be_bytes());
        bytes[14] = self.state.0;
        bytes
    }

    /// Whether a partner that has this view of a port has to hear of `now` (§6.4.16, `NTT`).
    pub(crate) fn is_outdated(&self, now: &Self) -> bool {
        let told = Flags::ACTIVITY.0 | Flags::TIMEOUT.0 | Flags::SYNCHRONIZED.0 | Flags::AGGREGATION.0;
        let seen = |info: &Self| Self {
            state: Flags(info.state.0 & told),
            ..*info
        };
        seen(self) != seen(now)
    }

    /// Order of links: the lower one is preferred. Key and state are of no account.
    pub(crate) fn priority(&self) -> (u16, [u8; 6], u16, u16) {
        (self.sys_priority, self.sys_id, self.port_priority, self.port_id)
    }
}

/// A message: the sender's end of the link, and the other end as the sender last heard of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pdu {
    /// The sender's end.
    pub actor: Info,
    /// The receiver's end.
    pub partner: Info,
}

/// Why a packet of the slow protocols is no [`Pdu`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PduError {
    /// A marker message (§6.5).
    Marker,
    /// Too short, of another subtype, or with wrong parts.
    Malformed,
}

impl Pdu {
    /// Reads the payload of an Ethernet frame. Bytes after the message are ignored. Any version is read
    /// (§6.4.2.3).
    ///
    /// # Errors
    /// See [`PduError`].
    pub fn read(payload: &[u8]) -> Result<Self, PduError> {
        let pdu = payload.first_chunk::<PDU_LEN>().ok_or(PduError::Malformed)?;
        match pdu.first() {
            Some(&SUBTYPE_LACP) => {}
            Some(&SUBTYPE_MARKER) => return Err(PduError::Marker),
            _ => return Err(PduError::Malformed),
        }
        let part = |at: usize, header: [u8; 2]| {
            let (found, rest) = pdu.get(at..)?.split_first_chunk::<2>()?;
            Some(Info::read(rest.first_chunk()?)).filter(|_| *found == header)
        };
        let actor = part(ACTOR_AT, ACTOR).ok_or(PduError::Malformed)?;
        let partner = part(PARTNER_AT, PARTNER).ok_or(PduError::Malformed)?;
        Ok(Self { actor, partner })
    }

    /// The message's bytes.
    pub fn bytes(&self) -> [u8; PDU_LEN] {
        let mut pdu = [0; PDU_LEN];
        pdu[..2].copy_from_slice(&[SUBTYPE_LACP, VERSION]);
        for (at, header, info) in [
            (ACTOR_AT, ACTOR, &self.actor),
            (PARTNER_AT, PARTNER, &self.partner),
        ] {
            pdu[at..at + 2].copy_from_slice(&header);
            pdu[at + 2..at + 2 + INFO_LEN].copy_from_slice(&info.bytes());
        }
        // The delay of the collector, which follows, is 0.
        pdu[COLLECTOR_AT..COLLECTOR_AT + 2].copy_from_slice(&COLLECTOR);
        pdu
    }
}
