//! From packets' bytes to runs of equal keys, and to the offsets that actions need.
//!
//! Ordinary packets get their compact key straight from their bytes; a full key is made for the others, and later for
//! those that no exact-match entry answers. Neighbours with equal keys are one [`Run`] from here on: looked up, counted and acted on once. Where a run
//! has two packets, the next one is first compared with them as it is ([`Again`]), which is cheaper than to make its key.
//! What actions need to know of an ordinary packet follows from its key, so it is the same for a whole run.

use crate::compact::{Again, CompactKey, Frame, VIEW};
use crate::exec::Meta;
use heddle_flow::extract::{Hint, NO_OFFSET, Oddity, extract};
use heddle_flow::key::frag;
use heddle_flow::{FlowKey, packet_type};
use heddle_packet::{HEAD_SPACE, Packet};
use heddle_wire::ip::{Ipv6, Ipv6Ext, proto};
use heddle_wire::split;

/// Shortest frame that is looked at: an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// Which of its keys a run has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The compact one.
    Ordinary,
    /// The full one, in this place.
    Wide(u8),
    /// None: shorter than a frame's header.
    Runt,
}

/// Neighbours in a burst with equal keys: packets `first..end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) first: u16,
    pub(crate) end: u16,
    pub(crate) kind: Kind,
    /// Where an ordinary run's full key is, once it was needed; [`NO_KEY`] until then.
    pub(crate) full: u8,
    /// Length of all together, and of the longest.
    pub(crate) bytes: u64,
    pub(crate) longest: u32,
}

impl Run {
    /// How many packets it has.
    #[inline]
    pub(crate) fn packets(&self) -> u64 {
        u64::from(self.end - self.first)
    }
    /// Packet `i`, the next one, of `total` bytes, is one of it.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // packets are shorter than 4 GiB
    fn extend(&mut self, i: u16, total: usize) {
        self.end = i + 1;
        self.bytes += total as u64;
        self.longest = self.longest.max(total as u32);
    }
}

/// No place.
const NO_KEY: u8 = u8::MAX;

/// The keys and runs of one burst.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) runs: Vec<Run>,
    /// Of each run that is ordinary, in its place.
    pub(crate) compact: Vec<CompactKey>,
    /// Full keys and what goes with them, of the runs that refer to them.
    pub(crate) wide: Vec<(FlowKey, Meta)>,
    /// The last packet, if the last run has several.
    again: Option<Again>,
}

impl Parsed {
    /// For bursts of up to `burst` packets.
    pub(crate) fn new(burst: usize) -> Self {
        Self {
            runs: Vec::with_capacity(burst),
            compact: vec![CompactKey::default(); burst],
            wide: Vec::with_capacity(burst),
            again: None,
        }
    }
    /// One packet of each key.
    #[cfg(test)]
    pub(crate) fn of_keys(keys: &[FlowKey], compact: impl Fn(&FlowKey) -> Option<CompactKey>) -> Self {
        let mut p = Self::new(keys.len());
        for (i, key) in (0..).zip(keys) {
            let kind = match compact(key) {
                Some(c) => {
                    p.compact[usize::from(i)] = c;
                    Kind::Ordinary
                }
                None => {
                    p.wide.push((*key, Meta::default()));
                    Kind::Wide(u8::try_from(p.wide.len() - 1).unwrap())
                }
            };
            p.start(i, kind, 60);
        }
        p
    }
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.wide.clear();
        self.again = None;
    }
    /// Reads packet `i`, which is the next in the burst.
    #[inline(always)]
    pub(crate) fn push(&mut self, i: u16, p: &mut Packet, vlan_limit: u8) {
        let total = p.len();
        let frame = Frame {
            head: p.head_len(),
            total,
            in_port: p.in_port,
            vlan: vlan_limit > 0,
        };
        let Some(bytes) = p.window::<VIEW>() else {
            return self.odd(i, p, vlan_limit);
        };
        if let Some(again) = &self.again {
            if again.is(bytes, frame)
                && let Some(run) = self.runs.last_mut()
            {
                return run.extend(i, total);
            }
            self.again = None;
        }
        match CompactKey::read(bytes, frame) {
            Some(key) => self.ordinary(i, key, bytes, frame),
            None => self.odd(i, p, vlan_limit),
        }
    }
    #[inline(always)]
    fn ordinary(&mut self, i: u16, key: CompactKey, bytes: &[u8; VIEW], frame: Frame) {
        let n = self.runs.len();
        if let Some(run) = self.runs.last_mut()
            && run.kind == Kind::Ordinary
            && self.compact[n - 1] == key
        {
            run.extend(i, frame.total);
            // Where there are two, there may be more.
            self.again = Again::of(bytes, frame);
        } else {
            self.compact[n] = key;
            self.start(i, Kind::Ordinary, frame.total);
        }
    }
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // packets are shorter than 4 GiB
    fn start(&mut self, i: u16, kind: Kind, total: usize) {
        self.runs.push(Run {
            first: i,
            end: i + 1,
            kind,
            full: NO_KEY,
            bytes: total as u64,
            longest: total as u32,
        });
    }
    #[cold]
    fn odd(&mut self, i: u16, p: &mut Packet, vlan_limit: u8) {
        if p.len() < MIN_FRAME {
            self.again = None;
            return self.start(i, Kind::Runt, p.len());
        }
        self.push_wide(i, p, packet_type::ETHERNET, vlan_limit);
    }
    /// As [`Self::push`] a packet of any type, by its full key.
    pub(crate) fn push_wide(&mut self, i: u16, p: &mut Packet, packet_type: u32, vlan_limit: u8) {
        let total = p.len();
        // The last run is no ordinary one from now on.
        self.again = None;
        let at = self.wide.len();
        self.wide.push(parse(p, packet_type, vlan_limit));
        if let (Some(run), Some((before, [new]))) = (self.runs.last_mut(), self.wide.split_last_chunk::<1>())
            && run.kind == Kind::Wide(u8::try_from(at.wrapping_sub(1)).unwrap_or(u8::MAX))
            && before.last() == Some(new)
        {
            self.wide.pop();
            return run.extend(i, total);
        }
        self.start(
            i,
            Kind::Wide(u8::try_from(at).expect("a burst has fewer packets")),
            total,
        );
    }
    /// The compact key of run `r`, if it is ordinary.
    #[inline]
    pub(crate) fn key(&self, r: usize) -> Option<&CompactKey> {
        (self.runs[r].kind == Kind::Ordinary).then(|| &self.compact[r])
    }
    /// The full key of run `r`, made of its compact one unless there is one already; `p` is one of its packets, as it was received.
    pub(crate) fn full(&mut self, r: usize, p: &mut Packet) -> &FlowKey {
        let at = match self.runs[r] {
            Run {
                kind: Kind::Wide(at), ..
            } => at,
            Run { full: NO_KEY, .. } => {
                let at = u8::try_from(self.wide.len()).expect("a burst has fewer packets");
                self.wide.push(match self.runs[r].kind {
                    Kind::Runt => parse(p, packet_type::ETHERNET, 0),
                    _ => (self.compact[r].whole(), Meta::default()),
                });
                self.runs[r].full = at;
                at
            }
            Run { full, .. } => full,
        };
        &self.wide[usize::from(at)].0
    }
    /// The full key of run `r`, if it was made.
    pub(crate) fn known(&self, r: usize) -> Option<&FlowKey> {
        let run = self.runs.get(r)?;
        let at = match run.kind {
            Kind::Wide(at) => at,
            _ => run.full,
        };
        self.wide.get(usize::from(at)).map(|(key, _)| key)
    }
    /// The TCP flags of run `r`.
    #[inline]
    pub(crate) fn tcp_flags(&self, r: usize) -> u16 {
        match self.runs[r].kind {
            Kind::Ordinary => self.compact[r].tcp_flags(),
            Kind::Wide(at) => self.wide[usize::from(at)].0.tcp_flags,
            Kind::Runt => 0,
        }
    }
    /// What actions need to know of the packets of run `r`.
    pub(crate) fn meta(&self, r: usize) -> Meta {
        match self.runs[r].kind {
            Kind::Wide(at) => self.wide[usize::from(at)].1,
            Kind::Ordinary => {
                let key = &self.compact[r];
                Meta {
                    l2_5: NO_OFFSET,
                    l3: key.l3(),
                    l4: key.l4(),
                    // The protocols that need the true end are extraordinary.
                    l4_end: usize::MAX,
                    proto: key.proto(),
                    ..Meta::default()
                }
            }
            Kind::Runt => Meta::default(),
        }
    }
}

/// Makes the full key of `p`, which is of this type (`in_port` from the packet), and says where its layers are. A packet whose
/// headers go on in its foreign tail gets a longer head, or is made private, for that.
pub(crate) fn parse(p: &mut Packet, packet_type: u32, vlan_limit: u8) -> (FlowKey, Meta) {
    let mut key = FlowKey::default();
    let hint = Hint {
        total_len: p.len(),
        packet_type,
        vlan_limit,
    };
    let mut layers = extract(p.head(), &hint, &mut key);
    if layers.oddity == Some(Oddity::BeyondView) && p.pull_tail(HEAD_SPACE) {
        layers = extract(p.head(), &hint, &mut key);
    }
    if layers.oddity == Some(Oddity::BeyondView) && !p.segs().is_empty() {
        p.make_private();
        layers = extract(p.head(), &hint, &mut key);
    }
    key.in_port = p.in_port;
    let mut meta = Meta {
        l2_5: layers.l2_5,
        l3: layers.l3,
        l4: layers.l4,
        l4_end: p.len().saturating_sub(layers.l2_pad.into()),
        proto: key.nw_proto,
        later_fragment: key.nw_frag & frag::LATER != 0,
        packet_type,
        ..Meta::default()
    };
    if key.dl_type == 0x86dd && layers.l3 != NO_OFFSET {
        meta.routing_header = has_routing_header(p.head(), layers.l3.into(), layers.l4.into());
    }
    (key, meta)
}

/// Whether a routing header with segments left stands between the IPv6 header and L4 (RFC 8200, 8.1: then the pseudo header
/// has the final destination, not the one in the header).
fn has_routing_header(head: &[u8], l3: usize, l4: usize) -> bool {
    let Some((ip, _)) = head.get(l3..).and_then(split::<Ipv6>) else {
        return false;
    };
    let (mut next, mut at) = (ip.next, l3 + 40);
    while at < l4.min(head.len()) {
        let Some((ext, _)) = head.get(at..).and_then(split::<Ipv6Ext>) else {
            return false;
        };
        if next == proto::ROUTING && ext.data[1] != 0 {
            return true;
        }
        at += match next {
            proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS => (usize::from(ext.len) + 1) * 8,
            proto::FRAGMENT => 8,
            proto::AH => (usize::from(ext.len) + 2) * 4,
            _ => return false,
        };
        next = ext.next;
    }
    false
}
