//! A fast path of the tracker for ordinary packets of ordinary connections.
//!
//! **Problem.** Nearly all packets are UDP or TCP of an established connection. They change only its expiry
//! time and its windows. The general path reads every kind of packet into one large structure, and returns
//! the connection in another. This module reads only the fields that ordinary packets need. [`ConnSummary`]
//! identifies the connection, with the fields that may differ for the next packet.
//!
//! **Invariant.** A packet that this module accepts is read as the general path reads it. It moves its
//! connection in the same way, and [`Conntrack::known`] returns the same result. Property tests compare both
//! (`short_packets_are_read_alike`, `tests/random.rs`).

use crate::action::CtAction;
use crate::events::Events;
use crate::protocol::packet::{Segment, Subject, is_right};
use crate::protocol::timeouts::Class;
use crate::table::hash::Hash;
use crate::table::index::RecordRef;
use crate::table::key::{Key, TranslatedEnds4};
use crate::table::record::{CONTROL, DNAT, RELATED, SNAT};
use crate::track::general::{ConnRef, CtState, Moved, Moving, Verdict, state, translated};
use crate::track::{Conntrack, Guess};
use heddle_sync::ReadGuard;
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::{Tcp, Udp};

/// Bytes from the IP header on that [`FastPacket::read`] looks at.
pub const SHORT: usize = Ipv6::LEN + Tcp::LEN;

/// The tuple and TCP fields of a simple packet: UDP or TCP without IP options or extension headers. It is
/// neither a fragment nor a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FastPacket {
    /// Tuple, without a zone.
    pub(crate) key: Key,
    pub(crate) tcp: Option<Segment>,
}

/// Summary of a packet's connection, as the fast path found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnSummary {
    /// Number of the connection, which another connection gets after it.
    pub number: u32,
    /// Differs between connections with the same number.
    pub generation: u32,
    /// The packet is in the reply direction.
    pub reply: bool,
    /// Bits of [`state`].
    pub state: u8,
    /// Mark.
    pub mark: u32,
    /// Number of labels that were written to the connection.
    pub label_version: u32,
}

/// Properties of a packet beside its headers.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the packet from the IP header on.
    pub there: usize,
    /// The packet is a GSO packet: many segments behind one header. Its header's length is not used.
    pub is_gso: bool,
    /// The checksum of UDP or TCP is right.
    pub good: bool,
}

#[inline(always)]
fn word(h: &[u8; SHORT], i: usize) -> u16 {
    u16::from_be_bytes([h[i], h[i + 1]])
}

#[inline(always)]
fn long(h: &[u8; SHORT], i: usize) -> u32 {
    u32::from_be_bytes([h[i], h[i + 1], h[i + 2], h[i + 3]])
}

#[inline(always)]
fn double(h: &[u8; SHORT], i: usize) -> u64 {
    u64::from(long(h, i)) << 32 | u64::from(long(h, i + 4))
}

impl FastPacket {
    /// Overwrites `self` with a packet, as [`crate::Packet::read`] would read it. `h` begins at the IP
    /// header. `false`: the packet is of another kind or invalid; then the fields of `self` have no meaning.
    #[inline]
    pub fn read(&mut self, h: &[u8; SHORT], of: Shape) -> bool {
        match h[0] {
            0x45 => self.read4(h, of),
            0x60..=0x6f => self.read6(h, of),
            _ => false,
        }
    }
    #[inline]
    fn read4(&mut self, h: &[u8; SHORT], of: Shape) -> bool {
        const L4: usize = Ipv4::LEN;
        let size = if of.is_gso { of.there } else { word(h, 2).into() };
        let (ip, _) = h.split_first_chunk().expect("a longer array");
        // "More fragments" and the offset.
        let whole = word(h, 6) & 0x3fff == 0 && size <= of.there;
        if !whole || !is_right(ip) || !self.read_l4::<L4>(h, h[9], size, of.good, false) {
            return false;
        }
        self.key = Key::of4(h[9], double(h, 12), word(h, L4), word(h, L4 + 2));
        true
    }
    #[inline]
    fn read6(&mut self, h: &[u8; SHORT], of: Shape) -> bool {
        const L4: usize = Ipv6::LEN;
        let said = L4 + usize::from(word(h, 4));
        let size = if of.is_gso { of.there } else { said };
        if size > of.there || !self.read_l4::<L4>(h, h[6], size, of.good, true) {
            return false;
        }
        let addrs = [8, 16, 24, 32].map(|i| double(h, i));
        self.key = Key::of6(h[6], addrs, word(h, L4), word(h, L4 + 2));
        true
    }
    /// Reads the transport header of an IP packet of `size` bytes.
    #[inline(always)]
    fn read_l4<const L4: usize>(
        &mut self,
        h: &[u8; SHORT],
        proto: u8,
        size: usize,
        good: bool,
        ipv6: bool,
    ) -> bool {
        if word(h, L4) == 0 || word(h, L4 + 2) == 0 {
            return false;
        }
        match proto {
            proto::UDP if size >= L4 + Udp::LEN => {
                let len = usize::from(word(h, L4 + 4));
                self.tcp = None;
                (Udp::LEN..=size - L4).contains(&len) && (good || word(h, L4 + 6) == 0 && !ipv6)
            }
            proto::TCP if good => {
                let (flags, header) = (word(h, L4 + 12) & 0xfff, usize::from(h[L4 + 12] >> 4) * 4);
                let headers = L4 + header;
                if flags & crate::protocol::tcp::SYN != 0 || header < Tcp::LEN || headers > size {
                    return false;
                }
                self.tcp = Some(Segment {
                    flags,
                    seq: long(h, L4 + 4),
                    ack: long(h, L4 + 8),
                    window: word(h, L4 + 14),
                    #[allow(clippy::cast_possible_truncation)] // a packet is shorter than 4 GiB
                    len: (size - headers) as u32,
                    scale: None,
                });
                true
            }
            _ => false,
        }
    }
    /// Returns the number of bytes, from the IP header on, that [`Self::read`] needs of this packet.
    #[inline]
    pub fn read_bytes(h: &[u8; SHORT]) -> usize {
        let (l4, proto) = if h[0] >> 4 == 6 {
            (Ipv6::LEN, h[6])
        } else {
            (Ipv4::LEN, h[9])
        };
        l4 + if proto == proto::UDP { Udp::LEN } else { Tcp::LEN }
    }
    /// Whether the next packet with the same tuple has nothing new for the tracker. This is true for UDP.
    #[inline]
    pub fn needs_no_update(&self) -> bool {
        self.tcp.is_none()
    }
    /// UDP over IPv4, which needs fewer fields of a record than other packets.
    #[inline]
    pub(crate) fn is_udp4(&self) -> bool {
        self.tcp.is_none() && !self.key.is_v6()
    }
    /// The packet in the form that the general path uses.
    #[inline]
    pub fn subject(&self) -> Subject {
        Subject {
            tuple: self.key.tuple(),
            related: false,
            tcp: self.tcp,
        }
    }
}

impl TranslatedEnds4 {
    /// Writes these endpoints into a packet that was read as `old`. `h` begins at its IP header. The flag
    /// `partial` is [`crate::At::partial`].
    #[inline]
    pub fn apply(self, h: &mut [u8], old: &FastPacket, partial: bool) {
        self.write(h, &old.key, partial);
    }
}

impl CtAction {
    /// Whether the action, on an existing connection, only reads the state and translates.
    #[inline]
    pub fn only_looks(&self) -> bool {
        !self.force && self.mark.is_none() && self.label.is_none()
    }
}

impl Conntrack {
    /// Returns the hash that [`Conntrack::hash`] returns for this packet's tuple.
    #[inline]
    pub fn hash_short(&self, s: &FastPacket, zone: u16) -> Hash {
        s.key.hash(&self.keys, zone)
    }
    /// Tracks a packet that no `ct` has tracked, by an action that [`CtAction::only_looks`]. The guess must
    /// be right, and the connection an ordinary one. `nat`: the action translates. Returns the connection,
    /// the new endpoints if it is translated, and the events to count. `None`: nothing was done; call
    /// [`Conntrack::track`].
    #[inline]
    pub fn track_short(
        &self,
        now_ms: u64,
        _reading: &ReadGuard,
        s: &FastPacket,
        guess: Guess,
        zone: u16,
        nat: bool,
    ) -> Option<(ConnSummary, Option<TranslatedEnds4>, Events)> {
        let entry = guess.0?;
        if s.tcp.is_none()
            && let Some((brief, ends)) = self.track_udp4(now_ms, &s.key, entry, zone, nat)
        {
            return Some((brief, ends, Events::default()));
        }
        let key = s.key.in_zone(zone);
        let hit = self.is_meant(now_ms, entry, &key, false)?;
        let r = hit.record;
        let label = r.label_count();
        let flags = r.flags();
        let translates = nat && flags & (SNAT | DNAT) != 0;
        if flags & (RELATED | CONTROL) != 0 || translates && key.is_v6() {
            return None;
        }
        let (mut known, mut verdict) = (0, Verdict::default());
        let moving = Moving {
            tcp: s.tcp.as_ref(),
            icmp: false,
            related: false,
        };
        let moved = self.advance(now_ms, hit, moving, &mut known, &mut verdict);
        // Only a SYN begins another connection.
        debug_assert!(matches!(moved, Moved::Stays));
        let ends = translates.then(|| {
            known |= translated(flags, hit.reply);
            r.translated4(hit.reply)
        });
        let brief = ConnSummary {
            number: hit.number,
            generation: r.generation(),
            reply: hit.reply,
            state: known | state::TRK,
            mark: r.mark(),
            label_version: label,
        };
        Some((brief, ends, verdict.events))
    }
    /// Tracks UDP over IPv4, like [`Conntrack::track_short`], if the connection has seen packets in both
    /// directions. Each word of the record is read once, and only the expiry time may change. `None`: the
    /// packet or the connection is of another kind.
    #[inline]
    fn track_udp4(
        &self,
        now_ms: u64,
        key: &Key,
        entry: RecordRef,
        zone: u16,
        nat: bool,
    ) -> Option<(ConnSummary, Option<TranslatedEnds4>)> {
        let r = self.slots.get(entry.number)?;
        let u = r.usual(key, zone)?;
        if !entry.is_of(u.generation) || now_ms >= u.expires_ms {
            return None;
        }
        let until_ms = now_ms + self.timeouts.ms(u.policy, Class::UdpMultiple);
        if u.expires_ms.abs_diff(until_ms) >= 1000 {
            self.touch(entry.number, r, until_ms);
        }
        let rpl = if u.reply { state::RPL } else { 0 };
        let mut state = state::TRK | state::EST | rpl;
        let ends = (nat && u.flags & (SNAT | DNAT) != 0).then(|| {
            state |= translated(u.flags, u.reply);
            r.translated4(u.reply)
        });
        let brief = ConnSummary {
            number: entry.number,
            generation: u.generation,
            reply: u.reply,
            state,
            mark: u.mark,
            label_version: u.label,
        };
        Some((brief, ends))
    }
    /// Returns the full result of `ct` for a packet that [`Conntrack::track_short`] tracked by this action.
    pub fn known(&self, b: &ConnSummary, action: &CtAction) -> CtState {
        let Some(r) = self.slots.get(b.number) else {
            return CtState::default();
        };
        let found = ConnRef::of(b);
        CtState {
            state: b.state,
            zone: action.zone,
            mark: b.mark,
            label: r.label(),
            orig: Some(r.orig()),
            found: action.nat.is_none().then_some(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::packet::{Checked, Packet};
    use crate::table::hash::Keys;
    use heddle_wire::checksum::checksum;
    use proptest::prelude::*;

    proptest! {
        /// The fast path reads a packet as the general path does.
        #[test]
        fn short_packets_are_read_alike(
            mut h in any::<[u8; SHORT]>(),
            there in 20_usize..100,
            said in 0_u16..100,
            udp_len in 0_u16..60,
            (v6, tcp, whole, good, is_gso, right) in any::<(bool, bool, bool, bool, bool, bool)>(),
        ) {
            let (l4, at) = if v6 { (40, 6) } else { (20, 9) };
            h[at] = if tcp { proto::TCP } else { proto::UDP };
            if v6 {
                h[0] = 0x60 | h[0] & 0xf;
                h[4..6].copy_from_slice(&said.to_be_bytes());
            } else {
                h[0] = 0x45;
                h[2..4].copy_from_slice(&said.to_be_bytes());
                if whole {
                    h[6..8].fill(0);
                }
            }
            if tcp {
                h[l4 + 12] = h[l4 + 12] & 0x8f | 0x50;
            } else {
                h[l4 + 4..l4 + 6].copy_from_slice(&udp_len.to_be_bytes());
                if !whole {
                    h[l4 + 6..l4 + 8].fill(0);
                }
            }
            if right && !v6 {
                h[10..12].fill(0);
                let c = checksum(&h[..20]);
                h[10..12].copy_from_slice(&c.to_be_bytes());
            }
            let mut short = FastPacket::default();
            let shape = Shape { there, is_gso, good };
            if there >= FastPacket::read_bytes(&h) && short.read(&h, shape) {
                let mut bytes = h.to_vec();
                bytes.resize(there.max(SHORT), 0);
                let said = usize::from(said) + if v6 { 40 } else { 0 };
                let long = Packet {
                    head: &bytes,
                    l3: 0,
                    l4,
                    end: if is_gso { there } else { there.min(said) },
                    ipv6: v6,
                    proto: h[at],
                    fragment: false,
                    l3_sum: Checked::Unknown,
                    l4_sum: if good { Checked::Good } else { Checked::Unknown },
                    verify: &|| false,
                };
                prop_assert_eq!(long.read(), Ok(short.subject()));
                let keys = Keys::new(5);
                prop_assert_eq!(keys.hash(&short.subject().tuple, 3), short.key.hash(&keys, 3));
                prop_assert_eq!(short.key.in_zone(3), Key::new(&short.subject().tuple, 3));
            }
        }
    }
}
