//! Ports and their queues.

use crate::action::Port;

bitflags::bitflags! {
    /// `OFPPC_*`, all versions together (1.0's spanning tree bits do not exist later).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PortConfig: u32 {
        /// Administratively down.
        const PORT_DOWN = 1 << 0;
        /// No spanning tree (1.0).
        const NO_STP = 1 << 1;
        /// The port drops the packets that it receives.
        const NO_RECV = 1 << 2;
        /// Drops received spanning tree packets (1.0).
        const NO_RECV_STP = 1 << 3;
        /// Left out of floods (1.0).
        const NO_FLOOD = 1 << 4;
        /// The port drops the packets that are sent to it.
        const NO_FWD = 1 << 5;
        /// No packet-ins for it.
        const NO_PACKET_IN = 1 << 6;
    }

    /// `OFPPS_*`, all versions together.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PortState: u32 {
        /// No physical link.
        const LINK_DOWN = 1 << 0;
        /// Blocked (1.1 and later).
        const BLOCKED = 1 << 1;
        /// Live for fast failover (1.1 and later).
        const LIVE = 1 << 2;
        /// 1.0 spanning tree state, low bit (0 is listening).
        const STP_LEARN = 1 << 8;
        /// 1.0 spanning tree state, high bit; both bits are blocking.
        const STP_FORWARD = 2 << 8;
    }

    /// `OFPPF_*` with the bits of 1.1 and later.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PortFeatures: u32 {
        /// 10 Mb/s half duplex.
        const HD_10M = 1 << 0;
        /// 10 Mb/s full duplex.
        const FD_10M = 1 << 1;
        /// 100 Mb/s half duplex.
        const HD_100M = 1 << 2;
        /// 100 Mb/s full duplex.
        const FD_100M = 1 << 3;
        /// 1 Gb/s half duplex.
        const HD_1G = 1 << 4;
        /// 1 Gb/s full duplex.
        const FD_1G = 1 << 5;
        /// 10 Gb/s full duplex.
        const FD_10G = 1 << 6;
        /// 40 Gb/s full duplex (1.1 and later).
        const FD_40G = 1 << 7;
        /// 100 Gb/s full duplex (1.1 and later).
        const FD_100G = 1 << 8;
        /// 1 Tb/s full duplex (1.1 and later).
        const FD_1T = 1 << 9;
        /// Another rate (1.1 and later).
        const OTHER = 1 << 10;
        /// Copper.
        const COPPER = 1 << 11;
        /// Fibre.
        const FIBER = 1 << 12;
        /// Negotiates.
        const AUTONEG = 1 << 13;
        /// Pause.
        const PAUSE = 1 << 14;
        /// Asymmetric pause.
        const PAUSE_ASYM = 1 << 15;
    }
}

/// One port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortDesc {
    /// Port number.
    pub port: Port,
    /// MAC address.
    pub hw_addr: [u8; 6],
    /// Port name; the wire has room for 15 bytes.
    pub name: String,
    /// Administrative settings.
    pub config: PortConfig,
    /// Operational state.
    pub state: PortState,
    /// Current features.
    pub curr: PortFeatures,
    /// Features that it advertises.
    pub advertised: PortFeatures,
    /// Features that it supports.
    pub supported: PortFeatures,
    /// Features that its peer advertises.
    pub peer: PortFeatures,
    /// Current bit rate in kb/s (1.1 and later).
    pub curr_speed: u32,
    /// Largest bit rate in kb/s (1.1 and later).
    pub max_speed: u32,
}

/// Reason of a port status message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PortReason {
    /// The port is new.
    Add = 0,
    /// The port is gone.
    Delete = 1,
    /// The port's description changed.
    Modify = 2,
}

/// `OFPT_PORT_STATUS`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortStatus {
    /// Event.
    pub reason: PortReason,
    /// The port as it is now (as it was, if deleted).
    pub desc: PortDesc,
}

/// `OFPT_PORT_MOD`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortMod {
    /// Port number.
    pub port: Port,
    /// MAC address, as a check; it cannot be changed. Zero: not given.
    pub hw_addr: [u8; 6],
    /// New bits.
    pub config: PortConfig,
    /// Bits of `config` that are changed.
    pub mask: PortConfig,
    /// Features to advertise; empty changes nothing.
    pub advertise: PortFeatures,
}

/// Requests one port's queues, or (`Port::NONE`) the queues of all ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueGetConfig {
    /// Port number.
    pub port: Port,
    /// Queue id; `None` for all. Only 1.4 and later can name one.
    pub queue: Option<u32>,
}

/// Queues of one port. Each has an id, a minimum and a maximum rate in tenths of a percent (`None`: not
/// limited).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueConfig {
    /// Port number.
    pub port: Port,
    /// Queues: id, minimum rate, maximum rate.
    pub queues: Vec<(u32, Option<u16>, Option<u16>)>,
}
