//! Counters that translations credit and statistics report.

use heddle_datapath_api::Credit;
use heddle_sync::OnceArc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

/// Counters of one rule, table or port: the packets that were credited to it.
#[derive(Debug, Default)]
pub struct Stats {
    /// Packets.
    pub packets: AtomicU64,
    /// Bytes.
    pub bytes: AtomicU64,
    /// Coarse clock of the last packet, ms (0: never).
    pub used_ms: AtomicU64,
    /// Union of the TCP flags seen.
    pub tcp_flags: AtomicU16,
}

impl Stats {
    /// Adds packets. Counters are independent, so relaxed is enough.
    pub fn add(&self, packets: u64, bytes: u64, used_ms: u64, tcp_flags: u16) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        // Usually the value stays the same, and a load costs less than a read-modify-write.
        if self.used_ms.load(Relaxed) < used_ms {
            self.used_ms.fetch_max(used_ms, Relaxed);
        }
        if tcp_flags & !self.tcp_flags.load(Relaxed) != 0 {
            self.tcp_flags.fetch_or(tcp_flags, Relaxed);
        }
    }
}

/// Counters that are allocated at the first use: of a million rules, most never match a packet.
#[derive(Debug, Default)]
pub struct LazyStats(OnceArc<Stats>);

impl LazyStats {
    /// Wraps counters that exist already.
    pub fn of(stats: Arc<Stats>) -> Self {
        let place = OnceArc::empty();
        let filled = place.set(stats).is_ok();
        debug_assert!(filled, "it was empty");
        Self(place)
    }
    /// The counters, to add to or to share. Allocates them if there are none yet.
    pub fn counted(&self) -> Arc<Stats> {
        loop {
            if let Some(stats) = self.0.arc() {
                return stats;
            }
            // If two threads allocate counters, the second one uses the first one's.
            let _ = self.0.set(Arc::default());
        }
    }
    /// The values counted so far, zeros before the counters are allocated.
    pub fn seen(&self) -> &Stats {
        static NOTHING: Stats = Stats {
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            used_ms: AtomicU64::new(0),
            tcp_flags: AtomicU16::new(0),
        };
        self.0.get().unwrap_or(&NOTHING)
    }
}

impl Credit for Stats {
    fn credit(&self, packets: u64, bytes: u64, used_ms: u64, tcp_flags: u16) {
        self.add(packets, bytes, used_ms, tcp_flags);
    }
}
