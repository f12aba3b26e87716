//! How many connections a zone may have.
//!
//! Connections are counted only where a limit is set: one line per zone is written when a connection comes or
//! goes, and none by packets. All zones without a limit of their own share the default one and its count.
//! What was there before a limit was set is not counted (both as Open vSwitch's own tracker does it). Zero is
//! no limit.

use crate::events::Event;
use heddle_sys::Zeroed;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use zerocopy::FromZeros;

/// Bits of an admission, which a record keeps: the number of the limit that it counts under. They lie in the
/// upper half of its word.
const NUMBER: u32 = 32;
const NUMBERS: u64 = 0xff_ffff;
/// It counts under the default limit.
const DEFAULT: u64 = 1 << 56;

#[derive(Debug, FromZeros)]
#[repr(C)]
struct Limit {
    /// Number of this setting (upper half; 0: there is none), the limit.
    setting: AtomicU64,
    count: AtomicU32,
}

impl Limit {
    fn setting(&self) -> Option<(u64, u32)> {
        let s = self.setting.load(Relaxed);
        (s >> 32 != 0).then_some((s >> 32, (s & 0xffff_ffff) as u32))
    }
    fn admit(&self) -> Option<Result<u64, Event>> {
        let (number, limit) = self.setting()?;
        // One more, and one less again where there are too many: two that come at once may both be refused
        // for one place, and none is admitted above the limit.
        if self.count.fetch_add(1, Relaxed) >= limit && limit != 0 {
            self.count.fetch_sub(1, Relaxed);
            return Some(Err(Event::ZoneLimit));
        }
        Some(Ok(number << NUMBER))
    }
}

/// What a zone may have and has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneLimit {
    /// Zone.
    pub zone: u16,
    /// Connections it may have; 0: any number.
    pub limit: u32,
    /// Connections counted.
    pub count: u32,
}

#[derive(Debug)]
pub(crate) struct Zones {
    zones: Zeroed<Limit>,
    default: Limit,
    settings: Mutex<u32>,
}

impl Zones {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            zones: Zeroed::new(1 << 16, false)?,
            default: Limit::new_zeroed(),
            settings: Mutex::new(0),
        })
    }
    fn limit(&self, zone: u16) -> Option<&Limit> {
        self.zones.get(usize::from(zone))
    }
    /// Counts one more; gives what a record keeps for that.
    pub(crate) fn admit(&self, zone: u16) -> Result<u64, Event> {
        if let Some(r) = self.limit(zone).and_then(Limit::admit) {
            return r;
        }
        self.default.admit().map_or(Ok(0), |r| r.map(|a| a | DEFAULT))
    }
    /// Counts one less.
    pub(crate) fn leave(&self, zone: u16, admission: u64) {
        let number = admission >> NUMBER & NUMBERS;
        let limit = if admission & DEFAULT == 0 {
            self.limit(zone)
        } else {
            Some(&self.default)
        };
        if let Some(l) = limit
            && number != 0
            && l.setting().is_some_and(|(n, _)| n == number)
        {
            l.count.fetch_sub(1, Relaxed);
        }
    }
    fn set_limit(&self, limit: &Limit, most: Option<u32>) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match (limit.setting(), most) {
            (_, None) => 0,
            (Some((number, _)), Some(most)) => number << 32 | u64::from(most),
            (None, Some(most)) => {
                // Numbers come back after 16 million settings; a connection of the first would then count
                // under the last.
                *settings = (*settings).wrapping_add(1) & 0xff_ffff;
                *settings = (*settings).max(1);
                limit.count.store(0, Relaxed);
                u64::from(*settings) << 32 | u64::from(most)
            }
        };
        limit.setting.store(next, Relaxed);
    }
    /// Sets or removes the limit of a zone, or of all that have none of their own.
    pub(crate) fn set(&self, zone: Option<u16>, most: Option<u32>) {
        let limit = zone.map_or(Some(&self.default), |z| self.limit(z));
        if let Some(l) = limit {
            self.set_limit(l, most);
        }
    }
    /// The default limit; 0: none.
    pub(crate) fn default(&self) -> u32 {
        self.default.setting().map_or(0, |(_, limit)| limit)
    }
    /// What holds for one zone.
    pub(crate) fn get(&self, zone: u16) -> ZoneLimit {
        let own = self
            .limit(zone)
            .and_then(|l| Some((l.setting()?.1, l.count.load(Relaxed))));
        let (limit, count) = own.unwrap_or_else(|| (self.default(), self.default.count.load(Relaxed)));
        ZoneLimit { zone, limit, count }
    }
    /// Zones with limits of their own.
    pub(crate) fn all(&self) -> Vec<ZoneLimit> {
        let zones = (0..=u16::MAX).zip(self.zones.iter());
        zones
            .filter(|(_, l)| l.setting().is_some())
            .map(|(z, _)| self.get(z))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_counted_under_their_limit() {
        let z = Zones::new().unwrap();
        assert_eq!(z.admit(1), Ok(0), "no limit, nothing counted");
        z.set(Some(1), Some(2));
        let (a, b) = (z.admit(1).unwrap(), z.admit(1).unwrap());
        assert_eq!((z.admit(1), z.get(1).count), (Err(Event::ZoneLimit), 2));
        z.leave(1, 0);
        assert_eq!(z.get(1).count, 2, "from before the limit");
        z.leave(1, a);
        assert!(z.admit(1).is_ok());
        z.set(Some(1), Some(3));
        assert!(z.admit(1).is_ok(), "the same limit, changed");
        z.set(Some(1), None);
        z.set(Some(1), Some(1));
        z.leave(1, b);
        assert_eq!(z.get(1).count, 0, "of another limit");
        z.set(None, Some(1));
        let d = z.admit(2).unwrap();
        assert_eq!(z.admit(3), Err(Event::ZoneLimit), "all others share it");
        assert_eq!(
            z.get(3),
            ZoneLimit {
                zone: 3,
                limit: 1,
                count: 1
            }
        );
        z.leave(2, d);
        assert!(z.admit(3).is_ok());
        assert_eq!(
            z.all(),
            [ZoneLimit {
                zone: 1,
                limit: 1,
                count: 0
            }]
        );
        z.set(Some(1), Some(0));
        assert!((0..9).all(|_| z.admit(1).is_ok()));
    }
}
