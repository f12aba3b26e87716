//! Meter mods, and requests about meters (OpenFlow 1.5 §6.11, §7.3.4.5).
//!
//! A meter's buckets are the datapath's ([`Meter`]); this module has what controllers see of it. Meters are
//! not part of the versions of rules: a change takes effect at once, as in Open vSwitch.

use super::change::Change;
use super::{Bridge, Origin, stats};
use crate::meter::{OfMeter, for_datapath, slot};
use crate::versioned::LATEST;
use heddle_datapath_api::Meter;
use heddle_openflow::ErrorKind;
use heddle_openflow::message::{
    FlowRemovedReason, METER_ALL, METER_CONTROLLER, METER_MAX, METER_SLOWPATH, MeterCommand, MeterConfig,
    MeterFeatures, MeterFlags, MeterMod, MeterStats,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Maximum number of bands of a meter.
const MAX_BANDS: u8 = 8;
/// Bits of the band types: drop, DSCP remark.
const BAND_TYPES: u32 = 1 << 1 | 1 << 2;

/// Refuses what the datapath cannot do.
fn check(c: &MeterConfig) -> Result<(), ErrorKind> {
    let known = MeterFlags::KBPS | MeterFlags::PKTPS | MeterFlags::BURST | MeterFlags::STATS;
    if !c.flags.intersects(MeterFlags::KBPS | MeterFlags::PKTPS) {
        Err(ErrorKind::MeterModFailedBadFlags)
    } else if c.bands.is_empty() || c.bands.len() > MAX_BANDS.into() {
        Err(ErrorKind::MeterModFailedOutOfBands)
    } else if c.bands.iter().any(|b| b.rate == 0) {
        Err(ErrorKind::MeterModFailedBadRate)
    } else if !(c.flags - known).is_empty() {
        Err(ErrorKind::MeterModFailedBadFlags)
    } else {
        Ok(())
    }
}

impl Bridge {
    /// Carries out one meter mod for a connection.
    pub(super) fn meter_mod_by(&self, mm: &MeterMod, origin: Option<Origin>) -> Result<(), ErrorKind> {
        let id = mm.config.meter_id;
        if mm.command != MeterCommand::Delete {
            if id == 0 || id > METER_MAX && id != METER_SLOWPATH && id != METER_CONTROLLER {
                return Err(ErrorKind::MeterModFailedInvalidMeter);
            }
            if mm.config.bands.len() > MAX_BANDS.into() {
                return Err(ErrorKind::MeterModFailedOutOfBands);
            }
        }
        self.change(origin, |b| match mm.command {
            MeterCommand::Add => b.add_meter(&mm.config),
            MeterCommand::Modify => b.modify_meter(&mm.config),
            MeterCommand::Delete => {
                b.delete_meters(id);
                Ok(())
            }
        })
    }

    /// Counters of meters.
    pub(super) fn meter_stats(&self, id: u32) -> Result<Vec<MeterStats>, ErrorKind> {
        let now = self.now_ms();
        let state = self.state.lock();
        let one = |(id, m): (u32, Arc<OfMeter>)| {
            let counts = m.dp.counts();
            let (duration_sec, duration_nsec) = stats::age(now, m.created_ms);
            MeterStats {
                meter_id: id,
                flow_count: u32::try_from(state.refs.count_meter(id)).unwrap_or(u32::MAX),
                packet_in_count: counts.total.0,
                byte_in_count: counts.total.1,
                duration_sec,
                duration_nsec,
                bands: counts.bands,
            }
        };
        Ok(self.some_meters(id)?.into_iter().map(one).collect())
    }

    /// Configurations of meters.
    pub(super) fn meter_configs(&self, id: u32) -> Result<Vec<MeterConfig>, ErrorKind> {
        let some = self.some_meters(id)?;
        Ok(some.iter().map(|(_, m)| m.config.lock().clone()).collect())
    }

    fn some_meters(&self, id: u32) -> Result<Vec<(u32, Arc<OfMeter>)>, ErrorKind> {
        if id == METER_ALL {
            let all = self.meters.all(LATEST);
            return Ok(all.into_iter().map(|(id, m)| (id, m.data.clone())).collect());
        }
        let found = self.meters.get(id, LATEST);
        let m = found.ok_or(ErrorKind::MeterModFailedUnknownMeter)?;
        Ok(vec![(id, m.data.clone())])
    }

    /// Capabilities of meters.
    pub(super) fn meter_features() -> MeterFeatures {
        MeterFeatures {
            max_meters: super::bridges::MAX_METERS,
            band_types: BAND_TYPES,
            capabilities: 0xf,
            max_bands: MAX_BANDS,
            max_color: 0,
        }
    }
}

impl Change<'_> {
    fn add_meter(&mut self, c: &MeterConfig) -> Result<(), ErrorKind> {
        let id = c.meter_id;
        if self.bridge.meters.get(id, LATEST).is_some() {
            return Err(ErrorKind::MeterModFailedMeterExists);
        }
        check(c)?;
        let now = self.bridge.now_ms();
        let number = self.bridge.of.upgrade().and_then(|of| of.take_meter_number());
        let number = number.ok_or(ErrorKind::MeterModFailedOutOfMeters)?;
        let meter = OfMeter {
            dp: Meter::new(number, &for_datapath(c), now),
            created_ms: now,
            config: Mutex::new(c.clone()),
        };
        self.bridge.meters.insert(id, 0, Arc::new(meter));
        self.touch(slot(self.bridge.id, id));
        Ok(())
    }

    fn modify_meter(&mut self, c: &MeterConfig) -> Result<(), ErrorKind> {
        let found = self.bridge.meters.get(c.meter_id, LATEST);
        let m = found.ok_or(ErrorKind::MeterModFailedUnknownMeter)?;
        check(c)?;
        m.data.dp.configure(&for_datapath(c), self.bridge.now_ms());
        *m.data.config.lock() = c.clone();
        Ok(())
    }

    pub(super) fn delete_meters(&mut self, id: u32) {
        let gone = if id == METER_ALL {
            self.bridge.meters.all(LATEST)
        } else {
            let found = self.bridge.meters.get(id, LATEST);
            found.map(|m| (id, m)).into_iter().collect()
        };
        for (id, meter) in gone {
            for rule in self.state.refs.of_meter(id) {
                self.remove(&rule, FlowRemovedReason::MeterDelete);
            }
            self.bridge.meters.unlink(id, &meter);
            self.touch(slot(self.bridge.id, id));
            if let Some(of) = self.bridge.of.upgrade() {
                of.give_meter_number(meter.data.dp.id);
            }
        }
    }
}
