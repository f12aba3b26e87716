//! Meters: changes, counters and descriptions (OpenFlow 1.5 §5.11, §7.3.4.5).

/// `OFPM_MAX`: largest number of an ordinary meter.
pub const METER_MAX: u32 = 0xffff_0000;
/// `OFPM_SLOWPATH`: packets that the datapath cannot treat alone.
pub const METER_SLOWPATH: u32 = 0xffff_fffd;
/// `OFPM_CONTROLLER`: packets for controllers.
pub const METER_CONTROLLER: u32 = 0xffff_fffe;
/// `OFPM_ALL`: all meters, in deletions and statistics requests.
pub const METER_ALL: u32 = 0xffff_ffff;

bitflags::bitflags! {
    /// `OFPMF_*`. Bits that are not known are kept.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MeterFlags: u16 {
        /// Rates are kilobits per second.
        const KBPS = 1 << 0;
        /// Rates are packets per second.
        const PKTPS = 1 << 1;
        /// Burst sizes count.
        const BURST = 1 << 2;
        /// Statistics are wanted.
        const STATS = 1 << 3;
        const _ = !0;
    }
}

/// Effect of a band on packets above its rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BandKind {
    /// Drops them.
    Drop,
    /// Raises the drop precedence in their DSCP by this much (RFC 2597).
    DscpRemark(u8),
}

/// One band.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Band {
    /// Effect of the band.
    pub kind: BandKind,
    /// Kilobits or packets per second.
    pub rate: u32,
    /// Kilobits or packets that may come at once.
    pub burst_size: u32,
}

/// A meter's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterConfig {
    /// Meter id.
    pub meter_id: u32,
    /// Units and the like.
    pub flags: MeterFlags,
    /// Bands.
    pub bands: Vec<Band>,
}

/// `OFPMC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum MeterCommand {
    /// New meter.
    Add = 0,
    /// Replaces a meter's configuration.
    Modify = 1,
    /// Deletes a meter, or all.
    Delete = 2,
}

/// Changes meters (1.3 and later).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterMod {
    /// Command.
    pub command: MeterCommand,
    /// Meter id and new configuration. A deletion has no flags and no bands.
    pub config: MeterConfig,
}

/// Counters of a meter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeterStats {
    /// Meter id.
    pub meter_id: u32,
    /// Flows that use it.
    pub flow_count: u32,
    /// Packets metered.
    pub packet_in_count: u64,
    /// Bytes metered.
    pub byte_in_count: u64,
    /// Age: seconds.
    pub duration_sec: u32,
    /// ... and nanoseconds.
    pub duration_nsec: u32,
    /// Packets and bytes that each band acted on.
    pub bands: Vec<(u64, u64)>,
}
