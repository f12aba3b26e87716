//! Fragments at a `ct` action.
//!
//! The program copies the fragment, which waits ([`Ipf`]), and ends. The fragment that completes its datagram
//! has the datagram tracked.
//!
//! If the program looks the packet up again next, the whole packet takes the place of that fragment, as in
//! Linux. An output cuts it into fragments as long as the longest one that came ([`GsoKind::Fragments`]).
//! Refused fragments are dropped. Otherwise copies of all fragments continue with that connection state
//! behind `ct` in the completing fragment's program. Each has its own headers, in order of their offsets.
//! While one of them is executed, those behind it wait in [`Exec::resumed`].
//!
//! Programs take fragments one by one. Their keys are odd, so groups of several runs contain no fragments.

use super::ct::known_of;
use super::{Exec, InFlight, Meta};
use heddle_conntrack::ipf::{Datagram, FragmentContext, Frame, Offered, Refusal};
use heddle_conntrack::{CtAction, CtPacket, CtState, Event, Events, Invalid, ReadGuard, Verdict, state};
use heddle_datapath_api::DropKind;
use heddle_flow::FlowKey;
use heddle_flow::extract::NO_OFFSET;
use heddle_flow::key::frag;
use heddle_flow_cache::HashKey;
use heddle_packet::{BURST, Csum, Gso, GsoKind, Offload, Wraps};
use heddle_wire::eth::Ethernet;

/// The input port and the offsets of a waiting fragment.
#[derive(Debug)]
pub struct WaitingFragment {
    in_port: u32,
    meta: Meta,
}

/// Result of tracking a fragment.
pub(super) enum Gathered {
    /// The packet continues with this connection state: the fragment by itself, or the whole packet in its
    /// place.
    Continues(CtState),
    /// The whole packet is dropped.
    Dropped(DropKind),
    /// The fragment waits.
    Waits,
    /// All fragments of the datagram continue ([`Exec::resumed`]).
    Resumed,
}

/// A keyed hash of the tunnel and the VLAN tags: the same addresses elsewhere may be other hosts. `l2`: the
/// Ethernet header with its tags.
#[allow(clippy::cast_possible_truncation)] // the halves of an address
fn source(key: HashKey, context: Option<&FlowKey>, l2: &[u8]) -> u64 {
    let tags = l2
        .get(Ethernet::LEN - 2..l2.len().saturating_sub(2))
        .unwrap_or_default();
    let tags = tags.iter().fold(0, |n: u64, b| n << 8 | u64::from(*b));
    let Some(k) = context else { return tags };
    let [src, dst] = [k.tun_ipv6_src, k.tun_ipv6_dst].map(u128::from_ne_bytes);
    let ipv4 = u64::from(k.tun_src) << 32 | u64::from(k.tun_dst);
    let h = key.mix(key.start(), src as u64, (src >> 64) as u64);
    let h = key.mix(h, dst as u64, (dst >> 64) as u64);
    let h = key.mix(h, k.tun_id, ipv4);
    key.finish(key.mix(h, tags, 0))
}

impl Exec<'_> {
    /// Whether the packet at hand is a fragment.
    pub(super) fn is_fragment(&self, meta: &Meta) -> bool {
        meta.later_fragment || self.context.is_some_and(|k| k.nw_frag & frag::ANY != 0)
    }

    /// Tracks a fragment. `in_flight` is at the step behind the action. If `joins`, the whole packet
    /// continues in the place of its fragments. Otherwise the saved states of `in_flight` are taken, to be
    /// resumed after the fragments.
    pub(super) fn track_fragment(
        &mut self,
        action: &CtAction,
        joins: bool,
        in_flight: &mut InFlight,
    ) -> Gathered {
        let (id, meta) = (in_flight.id, in_flight.meta);
        let p = self.live.get(id);
        let l3 = usize::from(meta.l3);
        let ipv6 = match p.head().get(l3).map(|b| b >> 4) {
            Some(4) => Some(false),
            Some(6) => Some(true),
            _ => None,
        };
        // A packet that a device has to segment or checksum is not a fragment made by IP.
        let plain = matches!(p.offload.csum, Csum::Unknown | Csum::Valid);
        let Some(ipv6) = ipv6.filter(|_| plain && p.offload.gso.is_none()) else {
            let mut known = CtState::default();
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
            joins,
        };
        let place = FragmentContext {
            port: p.in_port,
            source: source(
                HashKey::of_process(),
                self.context,
                p.head().get(..l3).unwrap_or_default(),
            ),
            recirc_id: self.context.map_or(0, |k| k.recirc_id),
            zone: action.zone,
        };
        let in_port = p.in_port;
        let copy = || (p.to_vec().into_boxed_slice(), WaitingFragment { in_port, meta });
        match self.fragments.offer(self.now_ms, frame, place, copy) {
            Offered::Waits => Gathered::Waits,
            Offered::Refused(why) if joins && why != Refusal::Disabled => {
                self.ct.counts.add(Event::from(why).into());
                Gathered::Dropped(DropKind::FragmentRefused)
            }
            Offered::Refused(why) => {
                let mut known = CtState::default();
                let events = self.ct.tracker.refused(action.zone, why, &mut known);
                self.alone(known, events)
            }
            Offered::Whole(datagram) if joins => match self.track_joined(action, &datagram, in_flight) {
                Ok(known) => Gathered::Continues(known),
                Err(kind) => Gathered::Dropped(kind),
            },
            Offered::Whole(datagram) => {
                self.track_all_fragments(action, datagram, in_flight);
                Gathered::Resumed
            }
        }
    }

    fn alone(&self, known: CtState, events: Events) -> Gathered {
        self.ct.counts.add(events);
        Gathered::Continues(known)
    }

    /// Tracks the whole packet, and puts it in the place of the fragment that completed it.
    fn track_joined(
        &mut self,
        action: &CtAction,
        datagram: &Datagram<WaitingFragment>,
        in_flight: &mut InFlight,
    ) -> Result<CtState, DropKind> {
        let whole = datagram.whole().ok_or(DropKind::FragmentRefused)?;
        let in_port = self.live.get(in_flight.id).in_port;
        in_flight.id = self.new_packet(&whole.frame, in_port).ok_or(DropKind::Copies)?;
        let offset = |n: usize| u16::try_from(n).unwrap_or(NO_OFFSET);
        in_flight.meta = Meta {
            l3: offset(whole.l3),
            l4: offset(whole.l4),
            l4_end: whole.frame.len(),
            proto: whole.proto,
            later_fragment: false,
            ..in_flight.meta
        };
        let known = in_flight.ct.unwrap_or_else(|| known_of(self.context));
        let (id, meta) = (in_flight.id, in_flight.meta);
        self.live.get_mut(id).set_mark(meta.mark);
        // The key at hand is that of a fragment.
        let known = self.track_in(action, id, &meta, None, known)?;
        let valid = known.state & state::INV == 0;
        self.live.get_mut(id).offload = Offload {
            csum: if valid { Csum::Valid } else { Csum::Unknown },
            gso: Some(Gso {
                kind: GsoKind::Fragments,
                ecn: false,
                size: whole.fragment_payload,
                hdr_len: meta.l4,
                wraps: Wraps::default(),
            }),
        };
        Ok(known)
    }

    fn track_all_fragments(
        &mut self,
        action: &CtAction,
        mut datagram: Datagram<WaitingFragment>,
        in_flight: &mut InFlight,
    ) {
        let mut known = in_flight.ct.unwrap_or_else(|| known_of(self.context));
        let verify = || datagram.sum_is_right();
        let tracker = self.ct.tracker;
        let mut verdict = Verdict::default();
        match datagram.packet(&verify).read() {
            Ok(subject) => {
                let hash = tracker.hash(&subject.tuple, action.zone);
                let packet = CtPacket {
                    now_ms: self.now_ms,
                    subject: &subject,
                    hash,
                    action,
                    known: &mut known,
                    verdict: &mut verdict,
                };
                tracker.track(&ReadGuard::begin(), tracker.guess(hash), packet);
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
            self.resumed.push(InFlight {
                at: saved.last().map_or(usize::MAX, |s| s.end),
                saved,
                ..InFlight::new(in_flight.id, in_flight.meta)
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
            self.live.get_mut(id).set_mark(f.context.meta.mark);
            self.resumed.push(InFlight {
                ct: Some(known),
                at: in_flight.at,
                ..InFlight::new(id, f.context.meta)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender cannot compute the hash, so it cannot make up tunnels with equal hashes.
    #[test]
    fn tunnels_are_hashed_with_a_key() {
        let tunnel = |tun_id, tun_src, last| {
            let mut key = FlowKey {
                tun_id,
                tun_src,
                ..FlowKey::default()
            };
            key.tun_ipv6_dst[15] = last;
            key
        };
        let all = [tunnel(1, 0, 0), tunnel(0, 1, 0), tunnel(0, 0, 1), tunnel(0, 0, 2)];
        let keys = [HashKey::random(), HashKey::random()];
        for tunnel in &all {
            let [a, b] = keys.map(|key| source(key, Some(tunnel), &[]));
            assert_ne!(a, b);
            let same = all.iter().filter(|t| source(keys[0], Some(t), &[]) == a);
            assert_eq!(same.count(), 1);
        }
    }

    /// Frames of one port in different VLANs are of different datagrams.
    #[test]
    fn tags_separate_senders() {
        let key = HashKey::of_process();
        let tagged = |tci: u8| [&[0; 12][..], &[0x81, 0, 0, tci, 8, 0]].concat();
        let untagged = [&[0; 12][..], &[8, 0]].concat();
        for context in [None, Some(FlowKey::default())] {
            let of = |l2: &[u8]| source(key, context.as_ref(), l2);
            assert_eq!(of(&tagged(7)), of(&tagged(7)));
            assert_ne!(of(&tagged(7)), of(&tagged(8)));
            assert_ne!(of(&tagged(7)), of(&untagged));
        }
    }
}
