//! Pending credits of translated packets. Mostly the same counters are credited for many packets in a row, so
//! their sums are paid together, before the burst is sent. A transmit batch that fills up while programs run
//! is sent earlier.

use heddle_datapath_api::Credit;
use heddle_flow_cache::same_credits;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct PendingCredits {
    credits: Vec<Arc<dyn Credit>>,
    packets: u64,
    bytes: u64,
    tcp_flags: u16,
}

impl PendingCredits {
    /// Adds one packet for these credits.
    pub(super) fn add(&mut self, credits: &[Arc<dyn Credit>], bytes: u64, tcp_flags: u16, now_ms: u64) {
        if !same_credits(&self.credits, credits) {
            self.pay(now_ms);
            self.credits.extend_from_slice(credits);
        }
        self.packets += 1;
        self.bytes += bytes;
        self.tcp_flags |= tcp_flags;
    }
    /// Pays the credits and releases them.
    pub(super) fn pay(&mut self, now_ms: u64) {
        if self.packets > 0 {
            for c in self.credits.drain(..) {
                c.credit(self.packets, self.bytes, now_ms, self.tcp_flags);
            }
            (self.packets, self.bytes, self.tcp_flags) = (0, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Tally;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering::Relaxed;

    proptest! {
        /// Each tally has the counts that it would have if it were credited at once.
        #[test]
        fn all_is_paid(packets in prop::collection::vec((0_usize..4, 1_u64..100, any::<bool>()), 0..40)) {
            let (now, later): (Vec<_>, Vec<_>) = (0..4).map(|_| <(Arc<Tally>, Arc<Tally>)>::default()).unzip();
            let of = |all: &[Arc<Tally>], which: usize| -> Vec<Arc<dyn Credit>> {
                // No credit, one, two, others.
                let some = [&all[..0], &all[..1], &all[..2], &all[2..]][which];
                some.iter().map(|t| Arc::clone(t) as _).collect()
            };
            let mut pending = PendingCredits::default();
            for (which, bytes, pays) in packets {
                of(&now, which).iter().for_each(|c| c.credit(1, bytes, 0, 0));
                pending.add(&of(&later, which), bytes, 0, 0);
                if pays {
                    pending.pay(0);
                    prop_assert!(later.iter().all(|t| Arc::strong_count(t) == 1));
                }
            }
            pending.pay(0);
            let counts = |all: &[Arc<Tally>]| -> Vec<_> {
                all.iter().map(|t| (t.packets.load(Relaxed), t.bytes.load(Relaxed))).collect()
            };
            prop_assert_eq!(counts(&now), counts(&later));
        }
    }
}
