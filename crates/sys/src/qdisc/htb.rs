//! The bytes of HTB (tc-htb(8)): a hierarchy of token buckets.

use super::{TCA_OPTIONS, TICK_NS, nested};
use netlink_packet_route::tc::TcAttribute;

const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// `struct tc_htb_glob`'s version.
const VERSION: u32 = 3;
/// A class's turn is its rate over this, bytes.
const RATE_TO_QUANTUM: u64 = 10;
/// `TC_LINKLAYER_ETHERNET`: the kernel computes the time that a packet takes by itself.
const LINKLAYER_ETHERNET: u8 = 1;
/// Shortest frame.
const MIN_FRAME: u16 = 64;

/// The rates of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HtbClass {
    /// Bytes per second that it has in any case.
    pub rate: u64,
    /// Bytes per second that it may borrow up to.
    pub ceil: u64,
    /// Bytes that it may send at once.
    pub burst: u64,
    /// The class with the lowest number borrows first.
    pub prio: u32,
}

/// Bytes per second as a class's time for `bytes`, in ticks.
fn ticks(rate: u64, bytes: u64) -> u32 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    u32::try_from(ns / u128::from(TICK_NS)).unwrap_or(u32::MAX)
}

/// `struct tc_ratespec`.
fn ratespec(rate: u64, out: &mut Vec<u8>) {
    out.extend([0, LINKLAYER_ETHERNET]);
    // No overhead, no alignment of cells.
    out.extend([0; 4]);
    out.extend(MIN_FRAME.to_ne_bytes());
    out.extend(u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
}

/// Options of the discipline.
pub(super) fn root() -> TcAttribute {
    // Version, rate to quantum, default class, debugging, packets sent without a class.
    let rate_to_quantum = u32::try_from(RATE_TO_QUANTUM).unwrap_or(0);
    let glob = [VERSION, rate_to_quantum, 1, 0, 0].map(u32::to_ne_bytes).concat();
    nested(TCA_OPTIONS, &[(TCA_HTB_INIT, glob)])
}

/// Options of a class.
pub(super) fn class(c: &HtbClass, mtu: u32) -> TcAttribute {
    let mtu_bytes = u64::from(mtu);
    // A turn is a frame at least.
    let quantum = if c.rate / RATE_TO_QUANTUM < mtu_bytes {
        mtu
    } else {
        0
    };
    let burst = c.burst.max(mtu_bytes);
    let mut opt = Vec::with_capacity(44);
    ratespec(c.rate, &mut opt);
    ratespec(c.ceil, &mut opt);
    // Both bursts, the quantum, the level (the kernel's), the priority of borrowing.
    for n in [ticks(c.rate, burst), ticks(c.ceil, burst), quantum, 0, c.prio] {
        opt.extend(n.to_ne_bytes());
    }
    let mut options = vec![(TCA_HTB_PARMS, opt)];
    for (kind, rate) in [(TCA_HTB_RATE64, c.rate), (TCA_HTB_CEIL64, c.ceil)] {
        if u32::try_from(rate).is_err() {
            options.push((kind, rate.to_ne_bytes().to_vec()));
        }
    }
    nested(TCA_OPTIONS, &options)
}
