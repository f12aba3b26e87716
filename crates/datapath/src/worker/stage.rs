//! Stages: packets that are looked up together.
//!
//! A stage is a received burst, or packets of it that are recirculated under one id. Packets get into a
//! stage by [`Stage::push`], with the change since their last lookup.

use super::ids::Ids;
use super::keys::{Added, ChangedContext, Context, Keys};
use super::parse::{MIN_FRAME, ReadAs};
use super::resources::ProgramResources;
use super::{Choice, Group};
use crate::exec::{LiveId, Meta};
use arrayvec::ArrayVec;
use heddle_conntrack::ConnSummary;
use heddle_flow::packet_type;
use heddle_flow_cache::{CompactKey, KeyForm, LookupKeys, RunProgram};
use heddle_packet::{BURST, Packet};
use heddle_tunnel::TunnelPop;
use heddle_tunnel::outer_cache::OuterHeaderCache;
use std::ops::Range;
use std::sync::Arc;

/// The change of packets since their last lookup. A key in here has the origin of the next lookup.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    /// The headers are those of the key; only the context may differ.
    Nothing(&'a CompactKey, ChangedContext<'a>),
    /// The headers are those of the key. The packet was tracked: with its program, if that is known, and with
    /// its connection as context, unless the program needs none.
    Tracked(&'a CompactKey, RunProgram, Context<'a>),
    /// The headers may have changed: the packet is read again. With the origin of the next lookup.
    Headers(ReadAs, u32, Context<'a>),
}

/// The origin of packets in the stage before, and here.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextOrigin {
    pub(super) before: u32,
    pub(super) here: u32,
}

impl NextOrigin {
    const UNKNOWN: Self = Self {
        before: u32::MAX,
        here: 0,
    };
}

/// The outer headers of a packet that came out of a tunnel.
#[derive(Debug)]
pub(super) struct LastOuter {
    pub(super) headers: OuterHeaderCache,
    pub(super) tunnel: Arc<TunnelPop>,
    /// The slot of the packet's context.
    pub(super) context: u8,
}

/// A packet of a group.
#[derive(Clone, Copy)]
pub(super) struct GroupPacket {
    /// The number in the group.
    pub(super) i: usize,
    /// The number of the run.
    pub(super) r: usize,
    pub(super) id: LiveId,
}

/// Packets that are looked up together.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) ids: Ids,
    pub(super) keys: Keys,
    pub(super) groups: Vec<Group>,
    /// The program that recirculated all packets of this stage; `None` if several did, or none.
    pub(super) from: Option<Choice>,
    /// No packet of this stage or of a stage before it is a copy, and no program waits for it. So copies may
    /// be freed between two packets.
    pub(super) may_free_copies: bool,
    /// Runs to be looked up, with the connections to link to the entries that match (`Cache::link`).
    pub(super) to_link: ArrayVec<(usize, ConnSummary), BURST>,
    /// Cache of `Worker::origin`.
    pub(super) origin: NextOrigin,
    /// The outer headers of the last packet that came out of a tunnel.
    pub(super) outer: Option<LastOuter>,
}

impl Stage {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            ids: Ids::default(),
            keys: Keys::new(BURST),
            groups: Vec::with_capacity(BURST),
            from: None,
            to_link: ArrayVec::new(),
            may_free_copies: true,
            origin: NextOrigin::UNKNOWN,
            outer: None,
        })
    }
    /// Removes all packets; the next ones are looked up under this recirculation id.
    pub(super) fn begin(&mut self, recirc_id: u32) {
        self.ids.hold_first(0);
        self.keys.begin(recirc_id);
        self.groups.clear();
        self.to_link.clear();
        (self.from, self.may_free_copies, self.origin) = (None, true, NextOrigin::UNKNOWN);
        self.outer = None;
    }

    /// Adds one packet, or with [`Change::Nothing`] neighbours of one run. A runt is dropped; then the result
    /// is `false`.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        resources: &mut ProgramResources,
        ids: Range<LiveId>,
        change: Change<'_>,
    ) -> bool {
        let (first, place) = (ids.start, self.ids.len());
        let live = &mut resources.live;
        match change {
            Change::Nothing(key, changed) => {
                let (mut bytes, mut longest) = (0, 0);
                for id in ids.clone() {
                    let n = live.get(id).len();
                    (bytes, longest) = (bytes + n as u64, longest.max(n));
                }
                let packets = Added {
                    places: place..place + (ids.end - first),
                    bytes,
                    longest,
                };
                match changed.before {
                    Some(before) if changed.full => self.keys.add_changed(&packets, key, before, &changed),
                    _ => {
                        _ = self
                            .keys
                            .add(&packets, key, RunProgram::UNKNOWN, &changed.context())
                    }
                }
            }
            Change::Tracked(key, program, context) => {
                let packet = Added::one(place, live.get(first).len());
                self.keys.add(&packet, key, program, &context);
            }
            Change::Headers(how, origin, context) => {
                let p = live.get_mut(first);
                if is_runt(p, how) {
                    resources.drop_runt(first);
                    return false;
                }
                self.keys.read(place, p, how, origin, &context);
            }
        }
        self.ids.push(ids);
        true
    }

    /// The context of the packets of run `r` after a program that left them with `meta`.
    #[inline]
    pub(super) fn changed_context(&self, r: usize, meta: Meta) -> ChangedContext<'_> {
        ChangedContext {
            before: self.keys.context(r),
            full: matches!(self.keys.runs[r].form, KeyForm::Full(_)),
            meta,
            ct: None,
        }
    }
    /// The packets of a group.
    #[inline]
    pub(super) fn packets(&self, group: &Group) -> impl Iterator<Item = GroupPacket> {
        let mut r = usize::from(group.run);
        let first = group.first;
        (first..group.end).map(move |place| {
            r += usize::from(self.keys.runs[r].end <= place);
            GroupPacket {
                i: usize::from(place - first),
                r,
                id: self.ids.at(place),
            }
        })
    }
}

/// Whether a packet is an Ethernet frame that is shorter than its header.
#[inline]
pub(super) fn is_runt(p: &Packet, how: ReadAs) -> bool {
    p.len() < MIN_FRAME && how.packet_type == packet_type::ETHERNET
}
