//! Kinds of disciplines and classes, and the bytes of their options.

use super::htb::{self, HtbClass};
use super::{TCA_OPTIONS, TICK_NS, nested, plain};
use netlink_packet_route::tc::TcAttribute;

/// The names of all kinds.
pub(super) const ALL: &[&str] = &["htb", "hfsc", "sfq", "codel", "fq_codel", "netem"];

const TCA_HFSC_RSC: u16 = 1;
const TCA_HFSC_FSC: u16 = 2;
const TCA_HFSC_USC: u16 = 3;
// `TCA_CODEL_*`, and the same of `TCA_FQ_CODEL_*`.
const TARGET: u16 = 1;
const LIMIT: u16 = 2;
const INTERVAL: u16 = 3;
const TCA_FQ_CODEL_FLOWS: u16 = 5;
const TCA_FQ_CODEL_QUANTUM: u16 = 6;

/// A discipline at a device's root. Times are in microseconds, if no other unit is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Qdisc {
    /// Token buckets in a hierarchy (tc-htb(8)); queue 0 is the default.
    Htb,
    /// Fair service curves in a hierarchy (tc-hfsc(8)); queue 0 is the default.
    Hfsc,
    /// Stochastic fairness queueing (tc-sfq(8)).
    Sfq {
        /// Bytes of a flow's turn.
        quantum: u32,
        /// Seconds after which flows are hashed anew.
        perturb_s: u32,
    },
    /// One queue with controlled delay (RFC 8289).
    Codel {
        /// Delay that is accepted.
        target: u32,
        /// Packets that it holds.
        limit: u32,
        /// Time in which the delay has to fall below the target.
        interval: u32,
    },
    /// A queue with controlled delay for each flow (RFC 8290).
    FqCodel {
        /// Delay that is accepted.
        target: u32,
        /// Packets that all queues hold.
        limit: u32,
        /// Time in which the delay has to fall below the target.
        interval: u32,
        /// Number of queues that flows are hashed into.
        flows: u32,
        /// Bytes of a flow's turn.
        quantum: u32,
    },
    /// A network that delays and loses packets (tc-netem(8)).
    Netem {
        /// Delay of each packet.
        latency: u32,
        /// Packets that it holds.
        limit: u32,
        /// Lost packets, percent.
        loss: u32,
        /// Variation of the delay.
        jitter: u32,
    },
}

/// The rates of an HFSC class. Both are linear curves, and the real-time curve is the link-sharing one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HfscClass {
    /// Bytes per second that it has in any case.
    pub min: u32,
    /// Bytes per second that it has at most.
    pub max: u32,
}

/// A class of one of the disciplines that have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrafficClass {
    /// A class of [`Qdisc::Htb`].
    Htb(HtbClass),
    /// A class of [`Qdisc::Hfsc`].
    Hfsc(HfscClass),
}

/// Microseconds in ticks of the kernel.
fn ticks(us: u32) -> u32 {
    u32::try_from(u64::from(us) * 1000 / TICK_NS).unwrap_or(u32::MAX)
}

/// Plain numbers one behind the other.
fn numbers(all: &[u32]) -> TcAttribute {
    plain(all.iter().flat_map(|n| n.to_ne_bytes()).collect())
}

/// Numbers as attributes.
fn attributes(all: &[(u16, u32)]) -> TcAttribute {
    let inner: Vec<_> = all
        .iter()
        .map(|(kind, n)| (*kind, n.to_ne_bytes().to_vec()))
        .collect();
    nested(TCA_OPTIONS, &inner)
}

impl Qdisc {
    /// The kernel's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Htb => "htb",
            Self::Hfsc => "hfsc",
            Self::Sfq { .. } => "sfq",
            Self::Codel { .. } => "codel",
            Self::FqCodel { .. } => "fq_codel",
            Self::Netem { .. } => "netem",
        }
    }

    /// `TCA_OPTIONS`.
    pub(super) fn options(&self) -> TcAttribute {
        match *self {
            Self::Htb => htb::root(),
            // `struct tc_hfsc_qopt`: the default class.
            Self::Hfsc => plain(1_u16.to_ne_bytes().to_vec()),
            // `struct tc_sfq_qopt`: the kernel chooses the limit, the divisor and the flows.
            Self::Sfq { quantum, perturb_s } => numbers(&[quantum, perturb_s, 0, 0, 0]),
            Self::Codel {
                target,
                limit,
                interval,
            } => attributes(&[(TARGET, target), (LIMIT, limit), (INTERVAL, interval)]),
            Self::FqCodel {
                target,
                limit,
                interval,
                flows,
                quantum,
            } => attributes(&[
                (TARGET, target),
                (LIMIT, limit),
                (INTERVAL, interval),
                (TCA_FQ_CODEL_FLOWS, flows),
                (TCA_FQ_CODEL_QUANTUM, quantum),
            ]),
            // `struct tc_netem_qopt`: no gap, no duplicates.
            Self::Netem {
                latency,
                limit,
                loss,
                jitter,
            } => {
                let loss = u64::from(u32::MAX) * u64::from(loss.min(100)) / 100;
                let loss = u32::try_from(loss).unwrap_or(u32::MAX);
                numbers(&[ticks(latency), limit, loss, 0, 0, ticks(jitter)])
            }
        }
    }
}

impl TrafficClass {
    /// The kernel's name of its discipline.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Htb(_) => Qdisc::Htb.kind(),
            Self::Hfsc(_) => Qdisc::Hfsc.kind(),
        }
    }

    /// `TCA_OPTIONS`.
    pub(super) fn options(&self, mtu: u32) -> TcAttribute {
        match self {
            Self::Htb(class) => htb::class(class, mtu),
            Self::Hfsc(class) => {
                // `struct tc_service_curve`: the first slope and its length are 0, the second is the rate.
                let curve = |rate: u32| [0, 0, rate].map(u32::to_ne_bytes).concat();
                let (min, max) = (curve(class.min), curve(class.max));
                let curves = [
                    (TCA_HFSC_RSC, min.clone()),
                    (TCA_HFSC_FSC, min),
                    (TCA_HFSC_USC, max),
                ];
                nested(TCA_OPTIONS, &curves)
            }
        }
    }
}
