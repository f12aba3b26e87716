//! Limits of the number of connections in a zone.
//!
//! Connections are counted only in zones with a limit. One cache line per zone is written when a connection
//! begins or ends, and none by packets. The default limit applies to each zone without a limit of its own,
//! and each such zone has its own count. Connections from before the limit are not counted, as in Open
//! vSwitch. Zero is no limit.

use crate::events::Event;
use heddle_sys::Zeroed;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use zerocopy::FromZeros;

/// Bits of an admission: the number of the limit under which the connection is counted. A record stores an
/// admission in the upper half of a word.
const NUMBER: u32 = 32;
const NUMBERS: u64 = 0xff_ffff;
/// Bit of an admission: the default limit counts the connection.
const DEFAULT: u64 = 1 << 56;

#[derive(Debug, FromZeros)]
#[repr(C)]
struct Limit {
    /// Number of this setting (upper half; 0: no limit), the limit.
    setting: AtomicU64,
    count: AtomicU32,
    /// Connections under the default limit: the number of its setting (upper half), the count. A count of
    /// another setting is worth 0.
    by_default: AtomicU64,
}

const COUNT: u64 = 0xffff_ffff;

impl Limit {
    fn setting(&self) -> Option<(u64, u32)> {
        let s = self.setting.load(Relaxed);
        (s >> 32 != 0).then_some((s >> 32, (s & 0xffff_ffff) as u32))
    }
    fn admit(&self) -> Option<Result<u64, Event>> {
        let (number, limit) = self.setting()?;
        // Add one, and subtract it again above the limit. Two threads at the same time may both be refused
        // for one place. No connection is admitted above the limit.
        if self.count.fetch_add(1, Relaxed) >= limit && limit != 0 {
            self.count.fetch_sub(1, Relaxed);
            return Some(Err(Event::ZoneLimit));
        }
        Some(Ok(number << NUMBER))
    }
    /// The same as [`Limit::admit`], under the default limit, which is the argument.
    fn admit_by_default(&self, (number, limit): (u64, u32)) -> Result<u64, Event> {
        let one_more = |word: u64| {
            let count = count_of(word, number);
            let is_full = limit != 0 && count >= u64::from(limit) || count == COUNT;
            (!is_full).then_some(number << NUMBER | (count + 1))
        };
        match self.by_default.fetch_update(Relaxed, Relaxed, one_more) {
            Ok(_) => Ok(number << NUMBER | DEFAULT),
            Err(_) => Err(Event::ZoneLimit),
        }
    }
    fn leave_by_default(&self, number: u64) {
        let one_less = |word: u64| (count_of(word, number) > 0).then(|| word - 1);
        // Otherwise the connection was counted under an earlier setting.
        let _ = self.by_default.fetch_update(Relaxed, Relaxed, one_less);
    }
}

/// The count in a word of [`Limit::by_default`], under the setting of this number.
fn count_of(word: u64, number: u64) -> u64 {
    if word >> NUMBER == number { word & COUNT } else { 0 }
}

/// The limit and the number of connections of one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneLimit {
    /// Zone.
    pub zone: u16,
    /// Maximum number of connections; 0: no limit.
    pub limit: u32,
    /// Number of connections that are counted.
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
    /// Counts one more connection; returns the admission for its record.
    pub(crate) fn admit(&self, zone: u16) -> Result<u64, Event> {
        let Some(own) = self.limit(zone) else { return Ok(0) };
        if let Some(r) = own.admit() {
            return r;
        }
        match self.default.setting() {
            Some(default) => own.admit_by_default(default),
            None => Ok(0),
        }
    }
    /// Counts one connection less.
    pub(crate) fn leave(&self, zone: u16, admission: u64) {
        let number = admission >> NUMBER & NUMBERS;
        let Some(l) = self.limit(zone).filter(|_| number != 0) else {
            return;
        };
        if admission & DEFAULT != 0 {
            l.leave_by_default(number);
        } else if l.setting().is_some_and(|(n, _)| n == number) {
            l.count.fetch_sub(1, Relaxed);
        }
    }
    fn set_limit(&self, limit: &Limit, most: Option<u32>) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match (limit.setting(), most) {
            (_, None) => 0,
            (Some((number, _)), Some(most)) => number << 32 | u64::from(most),
            (None, Some(most)) => {
                // Numbers repeat after 16 million settings. Then a connection of the first setting would be
                // counted under the last one.
                *settings = (*settings).wrapping_add(1) & 0xff_ffff;
                *settings = (*settings).max(1);
                limit.count.store(0, Relaxed);
                u64::from(*settings) << 32 | u64::from(most)
            }
        };
        limit.setting.store(next, Relaxed);
    }
    /// Sets or removes the limit of a zone, or the default limit.
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
    /// The limit and the count of one zone.
    pub(crate) fn get(&self, zone: u16) -> ZoneLimit {
        let own = self.limit(zone);
        let (limit, count) = match (own.and_then(Limit::setting), self.default.setting()) {
            (Some((_, limit)), _) => (limit, own.map_or(0, |l| l.count.load(Relaxed))),
            (None, Some((number, limit))) => {
                let count = own.map_or(0, |l| count_of(l.by_default.load(Relaxed), number));
                (limit, u32::try_from(count).unwrap_or(u32::MAX))
            }
            (None, None) => (0, 0),
        };
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
        assert_eq!(z.admit(2), Err(Event::ZoneLimit));
        assert!(z.admit(3).is_ok(), "of each zone");
        assert_eq!((z.get(2).count, z.get(3).count, z.get(4).count), (1, 1, 0));
        z.leave(2, d);
        assert_eq!((z.get(2).count, z.get(3).count), (0, 1));
        assert!(z.admit(2).is_ok());
        z.set(None, Some(2));
        assert!(
            z.admit(2).is_ok() && z.admit(2).is_err(),
            "the same limit, changed"
        );
        z.set(None, None);
        z.set(None, Some(1));
        assert_eq!(z.get(2).count, 0, "another limit");
        z.leave(2, d);
        assert_eq!(z.get(2).count, 0, "of the limit before");
        assert!(z.admit(2).is_ok());
        z.set(None, Some(0));
        assert!((0..9).all(|_| z.admit(2).is_ok()), "zero is no limit");
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
