//! The usual packets of the usual connections: read and tracked in a short way.
//!
//! **Problem.** Nearly all packets are UDP or TCP over IPv4, in the midst of a connection, and nothing of it
//! changes but its time and its windows. The general way reads every kind of
//! packet into one shape of a hundred bytes, and says all that is known of the connection in another. Here
//! is what such a packet needs, and [`Brief`] says which connection it was found to be of, and what of that
//! may be another with the next packet.
//!
//! **Invariant.** What is not refused here is read, and moves its connection, as the general way would have
//! it, and [`Conntrack::known`] is what that would say. Property tests compare both
//! (`short_packets_are_read_alike`, `tests/random.rs`).

use crate::action::CtAction;
use crate::conntrack::{Conntrack, Guess};
use crate::events::Events;
use crate::hash::Hash;
use crate::packet::{Segment, Subject, is_right};
use crate::record::{CONTROL, DNAT, Key, RELATED, SNAT};
use crate::rewrite::Ends4;
use crate::track::{Found, Known, Moved, Moving, Verdict, state, translated};
use crate::tuple::{Endpoint, Tuple};
use heddle_sync::ReadGuard;
use heddle_wire::ip::{Ipv4, proto};
use heddle_wire::l4::{Tcp, Udp};

/// Bytes from the IP header on that [`Short::read`] looks at.
pub const SHORT: usize = 40;

/// A packet of UDP or TCP over IPv4: no options but for those of TCP, no fragment, no SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Short {
    /// Address (high half) and port of each end.
    pub(crate) src: u64,
    pub(crate) dst: u64,
    pub(crate) proto: u8,
    pub(crate) tcp: Option<Segment>,
}

/// What a packet's connection says of it, in short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Brief {
    /// The connection's number, which another one gets when it is gone.
    pub number: u32,
    /// Tells the connections apart that have had the number.
    pub generation: u32,
    /// The packet goes the way of answers.
    pub reply: bool,
    /// Bits of [`state`].
    pub state: u8,
    /// Mark.
    pub mark: u32,
    /// Counts the labels that the connection has had.
    pub label: u32,
}

impl Short {
    /// Reads a packet, as [`crate::Packet::read`] would, over what is there. `h` begins at the IP header; so
    /// many bytes are there from there on; `train`: many segments behind one header; `good`: the checksum of
    /// UDP or TCP is right. `false`: another kind, or not valid; then nothing can be said of what is there.
    #[inline]
    pub fn read(&mut self, h: &[u8; SHORT], there: usize, train: bool, good: bool) -> bool {
        let word = |i: usize| u16::from_be_bytes([h[i], h[i + 1]]);
        let long = |i: usize| u32::from_be_bytes([h[i], h[i + 1], h[i + 2], h[i + 3]]);
        let said = usize::from(word(2));
        let size = if train { there } else { said };
        let (src, dst) = (word(20), word(22));
        // "More fragments" and the offset.
        let whole = h[0] == 0x45 && word(6) & 0x3fff == 0 && size <= there;
        if !whole || src == 0 || dst == 0 {
            return false;
        }
        let (ip, _) = h.split_first_chunk().expect("a longer array");
        if !is_right(ip) {
            return false;
        }
        match h[9] {
            proto::UDP if size >= Ipv4::LEN + Udp::LEN => {
                let len = usize::from(word(24));
                if !(Udp::LEN..=size - Ipv4::LEN).contains(&len) || !good && word(26) != 0 {
                    return false;
                }
                self.tcp = None;
            }
            proto::TCP if good => {
                let (flags, header) = (word(32) & 0xfff, usize::from(h[32] >> 4) * 4);
                let headers = Ipv4::LEN + header;
                if flags & crate::tcp::SYN != 0 || header < Tcp::LEN || headers > size {
                    return false;
                }
                self.tcp = Some(Segment {
                    flags,
                    seq: long(24),
                    ack: long(28),
                    window: word(34),
                    #[allow(clippy::cast_possible_truncation)] // a packet is shorter than 4 GiB
                    len: (size - headers) as u32,
                    scale: None,
                });
            }
            _ => return false,
        }
        self.src = u64::from(long(12)) << 32 | u64::from(src);
        self.dst = u64::from(long(16)) << 32 | u64::from(dst);
        self.proto = h[9];
        true
    }
    /// How many bytes from the IP header on are looked at of a packet that begins like this.
    #[inline]
    pub fn read_bytes(h: &[u8; SHORT]) -> usize {
        if h[9] == proto::UDP {
            Ipv4::LEN + Udp::LEN
        } else {
            SHORT
        }
    }
    /// Whether another packet of the same ends says nothing that this one has not said: it is UDP.
    #[inline]
    pub fn says_all(&self) -> bool {
        self.tcp.is_none()
    }
    /// As the general way has it.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // halves
    pub fn subject(&self) -> Subject {
        let end = |e: u64| Endpoint {
            addr: (e >> 32).into(),
            l4: e as u32,
        };
        Subject {
            tuple: Tuple {
                src: end(self.src),
                dst: end(self.dst),
                proto: self.proto,
                ipv6: false,
            },
            related: false,
            tcp: self.tcp,
        }
    }
}

impl CtAction {
    /// Whether it asks for nothing more than the state, and the translation, where a connection is there.
    #[inline]
    pub fn only_looks(&self) -> bool {
        !self.force && self.mark.is_none() && self.label.is_none()
    }
}

impl Conntrack {
    /// As [`Conntrack::hash`].
    #[inline]
    pub fn hash_short(&self, s: &Short, zone: u16) -> Hash {
        self.keys.hash4(s.src, s.dst, s.proto, zone)
    }
    /// Tracks a packet of which nothing is known yet by an action that [`CtAction::only_looks`], if the guess
    /// is right and its connection is a usual one; `nat`: the action translates. Gives what the packet's ends
    /// become, if they do not stay, and what is worth counting. `None`: nothing was done,
    /// [`Conntrack::track`] is to do it.
    #[inline]
    pub fn track_short(
        &self,
        now_ms: u64,
        _reading: &ReadGuard,
        s: &Short,
        guess: Guess,
        (zone, nat): (u16, bool),
    ) -> Option<(Brief, Option<Ends4>, Events)> {
        let entry = guess.0?;
        let key = Key::short(s.src, s.dst, s.proto, zone);
        let hit = self.is_meant(now_ms, entry, &key, false)?;
        let r = hit.record;
        let label = r.label_count()?;
        let flags = r.flags();
        if flags & (RELATED | CONTROL) != 0 {
            return None;
        }
        let (mut known, mut verdict) = (0, Verdict::default());
        let moving = Moving {
            tcp: s.tcp.as_ref(),
            icmp: false,
            related: false,
        };
        let moved = self.advance(now_ms, hit, hit.reply, moving, &mut known, &mut verdict);
        // Only a SYN begins another connection.
        debug_assert!(matches!(moved, Moved::Stays));
        let ends = (flags & (SNAT | DNAT) != 0 && nat).then(|| {
            known |= translated(flags, hit.reply);
            r.translated4(hit.reply)
        });
        let brief = Brief {
            number: hit.number,
            generation: r.generation(),
            reply: hit.reply,
            state: known | state::TRK,
            mark: r.mark(),
            label,
        };
        Some((brief, ends, verdict.events))
    }
    /// All that is known of a packet of which [`Conntrack::track_short`] has said so much under this action.
    pub fn known(&self, b: &Brief, action: &CtAction) -> Known {
        let Some(r) = self.slots.get(b.number) else {
            return Known::default();
        };
        let found = Found::of(b);
        Known {
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
    use crate::packet::{Checked, Packet};
    use heddle_wire::checksum::checksum;
    use proptest::prelude::*;

    proptest! {
        /// What is read the short way is what the long way says.
        #[test]
        fn short_packets_are_read_alike(
            mut h in any::<[u8; SHORT]>(),
            there in 20_usize..80,
            said in 20_u16..80,
            udp_len in 0_u16..60,
            (tcp, whole, good, train, right) in any::<(bool, bool, bool, bool, bool)>(),
        ) {
            h[0] = 0x45;
            h[2..4].copy_from_slice(&said.to_be_bytes());
            h[9] = if tcp { proto::TCP } else { proto::UDP };
            if whole {
                h[6..8].fill(0);
            }
            if tcp {
                h[32] = h[32] & 0x8f | 0x50;
            } else {
                h[24..26].copy_from_slice(&udp_len.to_be_bytes());
            }
            if right {
                h[10..12].fill(0);
                let c = checksum(&h[..20]);
                h[10..12].copy_from_slice(&c.to_be_bytes());
            }
            let mut short = Short::default();
            if short.read(&h, there, train, good) {
                let mut bytes = h.to_vec();
                bytes.resize(there.max(SHORT), 0);
                let long = Packet {
                    head: &bytes,
                    l3: 0,
                    l4: 20,
                    end: if train { there } else { there.min(said.into()) },
                    ipv6: false,
                    proto: h[9],
                    fragment: false,
                    l3_sum: Checked::Unknown,
                    l4_sum: if good { Checked::Good } else { Checked::Unknown },
                    verify: &|| false,
                };
                prop_assert_eq!(long.read(), Ok(short.subject()));
            }
        }
    }
}
