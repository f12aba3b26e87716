//! Meters, as controllers know them and as translation finds them.

use heddle_datapath_api::{Generations, Meter, MeterAction, MeterBand};
use heddle_openflow::message::{Band, BandKind, MeterConfig, MeterFlags};
use parking_lot::Mutex;
use std::sync::Arc;

/// A meter, as controllers know it.
#[derive(Debug)]
pub(crate) struct OfMeter {
    pub(crate) dp: Arc<Meter>,
    pub(crate) created_ms: u64,
    pub(crate) config: Mutex<MeterConfig>,
}

#[cfg(test)]
impl OfMeter {
    /// A meter without bands, with the same number in the datapath.
    pub(crate) fn of_id(id: u32) -> Self {
        let config = MeterConfig {
            meter_id: id,
            flags: MeterFlags::PKTPS,
            bands: Vec::new(),
        };
        Self {
            dp: Meter::new(id, &for_datapath(&config), 0),
            created_ms: 0,
            config: Mutex::new(config),
        }
    }
}

/// The generation slot of meter `id` of a bridge.
pub(crate) fn slot(bridge: u64, id: u32) -> u16 {
    Generations::slot_of(bridge << 32 | u64::from(id) | 1 << 62)
}

/// The configuration in the datapath's form.
pub(crate) fn for_datapath(c: &MeterConfig) -> heddle_datapath_api::MeterConfig {
    let band = |b: &Band| MeterBand {
        action: match b.kind {
            BandKind::Drop => MeterAction::Drop,
            BandKind::DscpRemark(steps) => MeterAction::Remark(steps),
        },
        rate: b.rate,
        burst: b.burst_size,
    };
    heddle_datapath_api::MeterConfig {
        packets: c.flags.contains(MeterFlags::PKTPS),
        bands: c.bands.iter().map(band).collect(),
    }
}
