//! The limits of the memory that all front ends together may have mapped.
//!
//! **Problem.** Addresses and guards against cut files ([`heddle_sys::sigbus`]) are resources of the process.
//! A few front ends must not take them all, on purpose or by accident.
//!
//! **Rule.** A session may take at most half of what is left, so that something is always left for others. In
//! a flood of greedy sessions a late one gets less. An ordinary session (a few regions, some GiB) always gets
//! enough.
//!
//! **Thread-safety.** Atomic counters; sessions take from one thread, mappings are given back from any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes for all sessions: half of the addresses of a process.
const BYTES: u64 = 64 << 40;
/// Mapped regions for all sessions. The guards that are left over are for logs and areas of requests in
/// flight.
const REGIONS: u64 = 12 << 10;

/// The ledger.
#[derive(Debug, Default)]
pub(super) struct Quota {
    bytes: AtomicU64,
    regions: AtomicU64,
}

/// A mapping's part of it, given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    quota: Arc<Quota>,
    bytes: u64,
}

impl Quota {
    /// Takes a region of `bytes` for a session that has `regions` regions of `held` bytes already.
    ///
    /// # Errors
    /// A text.
    pub(super) fn take(self: &Arc<Self>, bytes: u64, held: u64, regions: u64) -> Result<Share, String> {
        let left = |all: u64, taken: &AtomicU64, own: u64| {
            all.saturating_sub(taken.load(Relaxed).saturating_sub(own))
        };
        let most = left(BYTES, &self.bytes, held) / 2;
        if held.saturating_add(bytes) > most {
            return Err(format!(
                "{:#x} bytes of memory; what others have mapped leaves {most:#x} for one",
                held.saturating_add(bytes)
            ));
        }
        let most = left(REGIONS, &self.regions, regions) / 2;
        if regions + 1 > most {
            return Err(format!(
                "{} regions; what others have mapped leaves {most} for one",
                regions + 1
            ));
        }
        self.bytes.fetch_add(bytes, Relaxed);
        self.regions.fetch_add(1, Relaxed);
        Ok(Share {
            quota: Arc::clone(self),
            bytes,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.quota.bytes.fetch_sub(self.bytes, Relaxed);
        self.quota.regions.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that takes regions of `bytes` until it gets no more.
    fn greedy(quota: &Arc<Quota>, bytes: u64, most: u64) -> Vec<Share> {
        let mut all: Vec<Share> = Vec::new();
        while (all.len() as u64) < most {
            match quota.take(bytes, bytes * all.len() as u64, all.len() as u64) {
                Ok(share) => all.push(share),
                Err(_) => break,
            }
        }
        all
    }

    #[test]
    fn greedy_front_ends_leave_something_for_others() {
        let quota = Arc::new(Quota::default());
        let regions: Vec<_> = (0..17).map(|_| greedy(&quota, 4096, 512)).collect();
        let bytes: Vec<_> = (0..12).map(|_| greedy(&quota, 1 << 40, 16)).collect();
        assert!(regions[..15].iter().all(|r| r.len() == 512));
        assert!(bytes[..2].iter().all(|r| r.len() == 16));
        // An ordinary guest after all of them.
        assert_eq!(greedy(&quota, 4 << 30, 8).len(), 8);
        drop((regions, bytes));
        assert_eq!((quota.bytes.load(Relaxed), quota.regions.load(Relaxed)), (0, 0));
    }
}
