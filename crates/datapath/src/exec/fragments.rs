//! Fragments at a `ct` action.
//!
//! The program copies the fragment, which waits ([`Ipf`]), and ends. The fragment that completes its datagram
//! has the datagram tracked. Then copies of all fragments continue with that connection state behind `ct` in
//! the completing fragment's program. Each has its own headers, in order of their offsets. While one of them
//! is executed, those behind it wait in [`Exec::resumed`].
//!
//! Programs take fragments one by one. Their keys are odd, so groups of several runs contain no fragments.

use super::ct::known_of;
use super::{Exec, InFlight, LiveId, Meta, Saved};
use crate::exec::program::MAX_NESTING;
use arrayvec::ArrayVec;
use heddle_conntrack::ipf::{Datagram, Frame, Offered, Place};
use heddle_conntrack::{CtAction, Event, Events, Invalid, Known, ReadGuard, Verdict};
use heddle_datapath_api::DropKind;
use heddle_flow::FlowKey;
use heddle_flow::key::frag;
use heddle_packet::BURST;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Facts of the datapath about a waiting fragment.
#[derive(Debug)]
pub struct Waiting {
    in_port: u32,
    meta: Meta,
}

/// A packet whose execution continues in the midst of a program.
#[derive(Debug)]
pub(crate) struct Resumed {
    id: LiveId,
    meta: Meta,
    ct: Option<Known>,
    at: usize,
    saved: Option<Box<ArrayVec<Saved, MAX_NESTING>>>,
}

impl Resumed {
    /// Continues the packet's program.
    pub(crate) fn in_flight(self) -> InFlight {
        InFlight {
            id: self.id,
            meta: self.meta,
            ct: self.ct,
            at: self.at,
            saved: self.saved.map_or_else(ArrayVec::new, |s| *s),
        }
    }
}

/// Result of tracking a fragment.
pub(super) enum Gathered {
    /// The fragment continues by itself, with this connection state.
    Alone(Known),
    /// The fragment waits.
    Waits,
    /// All fragments of the datagram continue ([`Exec::resumed`]).
    Whole,
}

/// A hash of the tunnel: the same addresses in another tunnel may be other hosts.
fn source(carried: Option<&FlowKey>) -> u64 {
    let mut h = DefaultHasher::new();
    if let Some(k) = carried {
        (k.tun_id, k.tun_src, k.tun_ipv6_src, k.tun_dst, k.tun_ipv6_dst).hash(&mut h);
    }
    h.finish()
}

impl Exec<'_> {
    /// Whether the packet at hand is a fragment.
    pub(super) fn is_fragment(&self, meta: &Meta) -> bool {
        meta.later_fragment || self.carried.is_some_and(|k| k.nw_frag & frag::ANY != 0)
    }

    /// Tracks a fragment. `going` is at the step behind the action; its saved states are taken, to be resumed
    /// after the fragments.
    pub(super) fn track_fragment(&mut self, action: &CtAction, in_flight: &mut InFlight) -> Gathered {
        let (id, meta) = (in_flight.id, in_flight.meta);
        let p = self.live.get(id);
        let l3 = usize::from(meta.l3);
        let ipv6 = match p.head().get(l3).map(|b| b >> 4) {
            Some(4) => Some(false),
            Some(6) => Some(true),
            _ => None,
        };
        // A packet that a device has to segment or checksum is not a fragment made by IP.
        let plain = matches!(
            p.offload.csum,
            heddle_packet::Csum::Unknown | heddle_packet::Csum::Valid
        );
        let Some(ipv6) = ipv6.filter(|_| plain && p.offload.gso.is_none()) else {
            let mut known = Known::default();
            let events = self
                .ct
                .tracker
                .invalid(action.zone, Invalid::Malformed, &mut known);
            return self.alone(known, events);
        };
        let frame = Frame {
            head: p.head(),
            l3,
            len: p.len(),
            ipv6,
        };
        let place = Place {
            port: p.in_port,
            source: source(self.carried),
            recirc_id: self.carried.map_or(0, |k| k.recirc_id),
            zone: action.zone,
        };
        let in_port = p.in_port;
        let copy = || (p.to_vec().into_boxed_slice(), Waiting { in_port, meta });
        match self.fragments.offer(self.now_ms, frame, place, copy) {
            Offered::Waits => Gathered::Waits,
            Offered::Refused(why) => {
                let mut known = Known::default();
                let events = self.ct.tracker.refused(action.zone, why, &mut known);
                self.alone(known, events)
            }
            Offered::Whole(datagram) => {
                self.track_whole(action, datagram, in_flight);
                Gathered::Whole
            }
        }
    }

    fn alone(&self, known: Known, events: Events) -> Gathered {
        self.ct.counts.add(events);
        Gathered::Alone(known)
    }

    fn track_whole(&mut self, action: &CtAction, mut datagram: Datagram<Waiting>, in_flight: &mut InFlight) {
        let mut known = in_flight.ct.unwrap_or_else(|| known_of(self.carried));
        let verify = || datagram.sum_is_right();
        let tracker = self.ct.tracker;
        let mut verdict = Verdict::default();
        match datagram.packet(&verify).read() {
            Ok(subject) => {
                let hash = tracker.hash(&subject.tuple, action.zone);
                let (reading, place) = (ReadGuard::begin(), (hash, tracker.guess(hash)));
                let said = (&mut known, &mut verdict);
                tracker.track(self.now_ms, &reading, &subject, place, said, action);
            }
            Err(why) => verdict.events = tracker.invalid(action.zone, why, &mut known),
        }
        if !verdict.events.is_empty() {
            self.ct.counts.add(verdict.events);
        }
        if let Some(rewrite) = &verdict.rewrite {
            datagram.rewrite(rewrite);
        }
        // The last one pushed is resumed first.
        if !in_flight.saved.is_empty() {
            let saved = std::mem::take(&mut in_flight.saved);
            self.resumed.push(Resumed {
                id: in_flight.id,
                meta: in_flight.meta,
                ct: None,
                at: saved.last().map_or(usize::MAX, |(.., end)| *end),
                saved: Some(Box::new(saved)),
            });
        }
        let fragments = datagram.into_fragments();
        if fragments.len() > BURST {
            self.ct.counts.add(Event::BurstGrown.into());
        }
        for f in fragments.into_iter().rev() {
            if verdict.untranslated {
                self.drops.add(DropKind::Untranslated, 1);
                continue;
            }
            let Some(id) = self.new_packet(f.bytes(), f.context.in_port) else {
                self.drops.add(DropKind::Copies, 1);
                continue;
            };
            self.resumed.push(Resumed {
                id,
                meta: f.context.meta,
                ct: Some(known),
                at: in_flight.at,
                saved: None,
            });
        }
    }
}
