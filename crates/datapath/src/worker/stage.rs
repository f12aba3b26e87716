//! Stages: packets that are looked up together.
//!
//! A stage is a received burst, or packets of it that are recirculated under one id. Packets get into a
//! stage by [`Stage::push`], with the change since their last lookup.

use super::Group;
use super::ids::Ids;
use super::keys::{Added, Carried, Context, Keys};
use super::parse::{MIN_FRAME, ReadAs};
use super::peers::peer_of;
use crate::exec::program::Merges;
use crate::exec::{Live, LiveId, Meta};
use arrayvec::ArrayVec;
use heddle_conntrack::{Brief, Known};
use heddle_flow::packet_type;
use heddle_flow_cache::{CompactKey, KeyForm, RunProgram};
use heddle_packet::{BURST, Packet};
use heddle_tunnel::TunnelPop;
use heddle_tunnel::outer_cache::OuterHeaderCache;
use std::ops::Range;
use std::sync::Arc;

/// The change of packets since their last lookup. A key in here has the origin of the next lookup.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    /// The headers are those of the key; only the context may differ.
    Nothing(&'a CompactKey, Carried<'a>),
    /// The headers are those of the key. The packet had no context, and has that of its connection now.
    Tracked(&'a CompactKey, RunProgram, &'a Known),
    /// Like `Tracked`, but without context: the connection's program, which is given, does not look at it.
    TrackedTo(&'a CompactKey, (u32, Merges)),
    /// The headers may have changed. With the origin of the next lookup.
    Rewritten(ReadAs, u32, Carried<'a>),
    /// The packet came out of a tunnel. With the origin of the next lookup.
    Decapsulated(ReadAs, u32, Context<'a>),
}

/// Packets that are looked up together.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) ids: Ids,
    pub(super) keys: Keys,
    pub(super) groups: Vec<Group>,
    /// A bit for the hash of each flow in the stage before, from the first group with packets here up to
    /// `next_group`.
    flows: u64,
    pub(super) next_group: usize,
    /// No packet of this stage or of a stage before it is a copy, and no program waits for it. So copies may
    /// be freed between two packets.
    pub(super) top: bool,
    /// Runs to be looked up, with the connections to link to the result.
    pub(super) learners: ArrayVec<(usize, Brief), BURST>,
    /// Cache of `Worker::origin`: an origin of the stage before, and the same packets' origin here.
    pub(super) origin: (u32, u32),
    /// The outer headers of the last packet that came out of a tunnel, the tunnel, and the slot of its
    /// context.
    pub(super) outer: Option<(OuterHeaderCache, Arc<TunnelPop>, u8)>,
}

impl Stage {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            ids: Ids::default(),
            keys: Keys::new(BURST),
            groups: Vec::with_capacity(BURST),
            learners: ArrayVec::new(),
            flows: 0,
            next_group: 0,
            top: true,
            origin: (u32::MAX, 0),
            outer: None,
        })
    }
    /// Removes all packets; the next ones are looked up under this recirculation id.
    pub(super) fn begin(&mut self, recirc_id: u32) {
        self.ids.clear();
        self.keys.begin(recirc_id);
        self.groups.clear();
        self.learners.clear();
        (self.flows, self.next_group, self.top, self.origin) = (0, 0, true, (u32::MAX, 0));
        self.outer = None;
    }

    /// Adds one packet, or with [`Change::Nothing`] neighbours of one run. `false`: the packet is shorter
    /// than its first header, and not in the stage.
    #[inline(always)]
    #[must_use]
    pub(super) fn push(&mut self, live: &mut Live<'_>, ids: Range<LiveId>, change: Change<'_>) -> bool {
        let (first, place) = (ids.start, self.ids.len());
        match change {
            Change::Nothing(key, carried) => {
                let (mut bytes, mut longest) = (0, 0);
                for id in ids.clone() {
                    let n = live.get(id).len();
                    (bytes, longest) = (bytes + n as u64, longest.max(n));
                }
                self.ids.push_all(ids);
                let packets = Added {
                    places: place..self.ids.len(),
                    bytes,
                    longest,
                };
                match carried.before {
                    Some(before) if carried.full => self.keys.add_changed(&packets, key, before, &carried),
                    _ => {
                        let context = if carried.is_nothing() {
                            Context::None
                        } else {
                            Context::Changed(carried)
                        };
                        self.keys.add(&packets, key, RunProgram::UNKNOWN, &context);
                    }
                }
                return true;
            }
            Change::Tracked(key, program, known) => {
                let packet = Added::one(place, live.get(first).len());
                self.keys.add(&packet, key, program, &Context::Connection(known));
            }
            Change::TrackedTo(key, program) => {
                self.keys.add_known(place, live.get(first).len(), key, program);
            }
            Change::Rewritten(how, origin, carried) => {
                let p = live.get_mut(first);
                if is_runt(p, how) {
                    return false;
                }
                if carried.is_nothing() && how.packet_type == packet_type::ETHERNET {
                    self.keys.read(place, p, how, origin);
                } else {
                    self.keys
                        .read_in(place, p, how, origin, &Context::Changed(carried));
                }
            }
            Change::Decapsulated(how, origin, context) => {
                let p = live.get_mut(first);
                if is_runt(p, how) {
                    return false;
                }
                self.keys.read_in(place, p, how, origin, &context);
            }
        }
        debug_assert_eq!(ids.len(), 1);
        self.ids.push(first);
        true
    }

    /// The context of the packets of run `r` after a program that left them with `meta`.
    #[inline]
    pub(super) fn carried(&self, r: usize, meta: Meta) -> Carried<'_> {
        Carried {
            before: self.keys.context_of(r),
            full: matches!(self.keys.runs[r].form, KeyForm::Full(_)),
            meta,
            ct: None,
        }
    }
    /// The account of the sender of run `r`'s packets.
    pub(super) fn peer(&self, r: usize) -> u8 {
        peer_of(self.keys.context_of(r))
    }
    /// The packets of a group: number in the group, run, id.
    #[inline]
    pub(super) fn packets(&self, group: &Group) -> impl Iterator<Item = (usize, usize, LiveId)> {
        let mut r = usize::from(group.run);
        (0..).zip(group.first..group.end).map(move |(i, place)| {
            r += usize::from(self.keys.runs[r].end <= place);
            (i, r, self.ids.at(place))
        })
    }
    /// Whether group `g` of this stage may have packets of a flow that also has packets in stage `next`.
    pub(super) fn overtakes(&self, g: usize, next: &mut Stage) -> bool {
        for before in next.next_group..g {
            next.flows |= self.flows_of(before);
        }
        next.next_group = g;
        self.flows_of(g) & next.flows != 0
    }
    /// A bit for each flow of a group.
    fn flows_of(&self, g: usize) -> u64 {
        let group = &self.groups[g];
        let runs = self.keys.runs.iter().zip(&self.keys.compact);
        runs.skip(group.run.into())
            .take_while(|(run, _)| run.first < group.end)
            .fold(0, |bits, (run, key)| {
                bits | if run.program.is_of_many_flows() {
                    u64::MAX
                } else {
                    flow_bit(key)
                }
            })
    }
}

/// Whether a packet is an Ethernet frame that is shorter than its header.
#[inline]
pub(super) fn is_runt(p: &Packet, how: ReadAs) -> bool {
    p.len() < MIN_FRAME && how.packet_type == packet_type::ETHERNET
}

/// The bit of a packet's flow, by addresses and ports.
fn flow_bit(key: &CompactKey) -> u64 {
    let w = key.words();
    let mixed = (w[3] ^ w[4] ^ w[5] ^ w[6] ^ w[7]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 << (mixed >> 58)
}
