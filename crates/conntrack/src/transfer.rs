//! Connections that move to the tracker of another node, with the state that the other tracker needs.
//!
//! **Problem.** A guest moves to another node while its TCP connections pass through stateful rules and
//! address translation. The other tracker has to know them before the first packet, with the same translation
//! and the same windows.
//!
//! **Use.** The source node scans its connections ([`Conntrack::scan`]) and copies those of the guest
//! ([`Seen::copy`]). The target node adds them one by one ([`Conntrack::import`]). Both steps may be
//! repeated with later copies. At the end the target calls [`Seen::settle`] for each, and the source ends its
//! own connections ([`Conntrack::end_where`]).
//!
//! **Windows.** A copy may be older than the guest's last segment. Then the importer sets `learn`, and the
//! tracker takes the windows from the next segment, as after an offload ([`crate::offloaded`]). This lasts
//! until that segment, or until `settle`. The source does not know the windows of an offloaded connection
//! ([`ConnCopy::loose`]).
//!
//! **Trust.** A copy may come from a hostile file: [`ConnCopy::check`] refuses values that no tracker makes.
//! The caller decides which zones and addresses it accepts.

mod import;

pub use import::{Imported, Refusal};

use crate::action::{CtHelper, NatEnd};
use crate::protocol::tcp::{MAX_SCALE, Peer, Scale};
use crate::scan::Seen;
use crate::table::record::{DNAT, HAD, IMPORTED, LOOSE, OFFLOADED, Phase, RELATED, RELEARN, SNAT, UNTRIED};
use crate::track::Conntrack;
use crate::track::helper::{self, Parent};
use crate::tuple::Tuple;
use heddle_wire::ip::proto;
use std::fmt;

/// Maximum number of expected connections in a copy.
pub const MAX_EXPECTED: usize = 8;

/// A copy of one connection, for the tracker of another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnCopy {
    /// Tuple of the original direction.
    pub orig: Tuple,
    /// Tuple of the reply direction.
    pub reply: Tuple,
    /// The endpoint of the original direction that is translated.
    pub nat: Option<NatEnd>,
    /// Original tuple of the parent, for a related connection.
    pub parent: Option<Tuple>,
    /// The helper of the connection's commit.
    pub helper: Option<CtHelper>,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// Milliseconds until the connection expires without packets.
    pub left_ms: u64,
    /// Windows and states of both TCP endpoints, original source first; `None`: not TCP.
    pub tcp: Option<[Peer; 2]>,
    /// The TCP windows are unknown, since an offload back end forwards the segments.
    pub loose: bool,
    /// Packets seen, if the protocol has no states.
    pub phase: Phase,
    /// Offsets of sequence numbers after a helper's rewrites, original direction first; zero: none.
    pub skews: [u64; 2],
    /// Connections that the helper expects, and that have not begun.
    pub expected: Vec<Expected>,
}

/// A connection that a helper expects (Linux: expectation).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The announcing packet went in the reply direction.
    pub reply: bool,
    /// Port of the endpoint that sent the packet.
    pub port: u16,
    /// The port that this endpoint itself uses, if it may be another one.
    pub own_port: Option<u16>,
}

/// The first contradiction in a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// Whether a packet can have this tuple.
fn is_tuple(t: &Tuple) -> bool {
    let fits = |addr: u128| t.ipv6 || addr <= u32::MAX.into();
    let ends = if t.is_icmp() {
        let part = |shift: u32| (t.src.l4 >> shift & 0xff) as u8;
        let id = (t.src.l4 >> 16) as u16;
        t.with_icmp(id, part(8), part(0)) == Some(*t)
    } else {
        t.src.l4 <= u16::MAX.into() && t.dst.l4 <= u16::MAX.into()
    };
    fits(t.src.addr) && fits(t.dst.addr) && ends
}

impl ConnCopy {
    /// A connection without translation, helper and TCP states. Packets of both directions were seen.
    pub fn new(orig: Tuple, left_ms: u64) -> Self {
        Self {
            orig,
            reply: orig.reversed(),
            nat: None,
            parent: None,
            helper: None,
            mark: 0,
            label: 0,
            left_ms,
            tcp: None,
            loose: false,
            phase: Phase::Both,
            skews: [0; 2],
            expected: Vec::new(),
        }
    }
    /// Refuses values that no tracker makes.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), Malformed> {
        let Self {
            orig, reply, parent, ..
        } = self;
        let is = |fine: bool, why| if fine { Ok(()) } else { Err(Malformed(why)) };
        let same_kind = |t: &Tuple| t.proto == orig.proto && t.ipv6 == orig.ipv6;
        is(
            is_tuple(orig) && is_tuple(reply),
            "an address or a port that no packet has",
        )?;
        is(same_kind(reply), "different protocols in both directions")?;
        let unchanged = |a: crate::Endpoint, b: crate::Endpoint| {
            a.addr == b.addr && (orig.is_icmp() || self.nat == Some(NatEnd::Dst) || a.l4 == b.l4)
        };
        let translation = match self.nat {
            None => *reply == orig.reversed(),
            Some(NatEnd::Src) => unchanged(reply.src, orig.dst),
            Some(NatEnd::Dst) => unchanged(reply.dst, orig.src),
        };
        is(translation, "tuples that do not fit the translation")?;
        let parent = parent.is_none_or(|p| same_kind(&p) && !p.is_icmp() && is_tuple(&p));
        is(parent, "a parent of another kind")?;
        let is_tcp = self.tcp.is_some() == (orig.proto == proto::TCP);
        is(is_tcp, "TCP states of another protocol, or none")?;
        let scale = |p: &Peer| !matches!(p.scale, Scale::Known(s) if s > MAX_SCALE);
        is(self.tcp.iter().flatten().all(scale), "a window scale above 14")?;
        is(!self.loose || self.tcp.is_some(), "unknown windows without TCP")?;
        is(
            self.expected.len() <= MAX_EXPECTED,
            "too many expected connections",
        )?;
        let control = self.flags() & crate::table::record::CONTROL != 0;
        let controls = self.skews != [0; 2] || !self.expected.is_empty();
        is(!controls || control, "changes of a helper without a helper")
    }
    /// Flags of the record that the copy becomes.
    fn flags(&self) -> u64 {
        let nat = match self.nat {
            None => 0,
            Some(NatEnd::Src) => SNAT,
            Some(NatEnd::Dst) => DNAT,
        };
        let related = self.parent.is_some();
        let flags = helper::flags(self.helper, &self.orig, &self.reply, related);
        nat | flags | if related { RELATED } else { 0 }
    }
    /// Whether one of its two ends has this address. Addresses that only a translation has do not count.
    pub fn has_address(&self, ipv6: bool, addr: u128) -> bool {
        has_address(&self.orig, &self.reply, ipv6, addr)
    }
}

fn has_address(orig: &Tuple, reply: &Tuple, ipv6: bool, addr: u128) -> bool {
    let ends = [orig.src, reply.src];
    orig.ipv6 == ipv6 && ends.iter().any(|end| end.addr == addr)
}

impl Seen<'_> {
    /// Whether one of its two ends has this address. Addresses that only a translation has do not count.
    pub fn has_address(&self, ipv6: bool, addr: u128) -> bool {
        let orig = self.record.orig();
        has_address(&orig, &self.reply(orig), ipv6, addr)
    }
    fn reply(&self, orig: Tuple) -> Tuple {
        if self.is_translated() {
            self.record.reply()
        } else {
            orig.reversed()
        }
    }
    /// Whether the connection was imported, and its move is not finished.
    pub fn is_imported(&self) -> bool {
        self.record.state() & IMPORTED != 0
    }
    /// Whether the tracker had the connection before it was imported.
    pub fn was_here(&self) -> bool {
        self.record.state() & HAD != 0
    }
    /// Finishes the move of an imported connection: from now on its TCP windows are checked as usual. If the
    /// tracker had it before, and no segment has come since, the copy's windows are too old: the next segment
    /// shows them.
    pub fn settle(&self) {
        let state = self.record.state();
        if state & HAD != 0 && state & UNTRIED != 0 && state & RELEARN != 0 {
            self.record.set_state(LOOSE);
        }
        self.record.clear_state(IMPORTED | UNTRIED | RELEARN | HAD);
    }
    /// Copies the connection for another tracker.
    pub fn copy(&self) -> ConnCopy {
        let (r, flags) = (self.record, self.record.flags());
        let orig = r.orig();
        let is_tcp = orig.proto == proto::TCP;
        // Under the lock all words are of one time. If the lock stays busy, they may differ in time.
        let peers = || r.with_peers(|peers| *peers).unwrap_or_else(|| r.peers());
        let state = r.state();
        ConnCopy {
            orig,
            reply: self.reply(orig),
            nat: match flags & (SNAT | DNAT) {
                0 => None,
                SNAT => Some(NatEnd::Src),
                _ => Some(NatEnd::Dst),
            },
            parent: r.parent(),
            helper: helper::of_flags(flags),
            mark: r.mark(),
            label: r.label(),
            left_ms: r.expires_ms().saturating_sub(self.now_ms),
            tcp: is_tcp.then(peers),
            loose: is_tcp && state & (OFFLOADED | LOOSE | RELEARN) != 0,
            phase: r.phase(),
            skews: [false, true].map(|reply| r.skew(reply).0),
            expected: self.expected(orig),
        }
    }
    fn expected(&self, orig: Tuple) -> Vec<Expected> {
        if self.record.flags() & crate::table::record::CONTROL == 0 {
            return Vec::new();
        }
        let id = self.id();
        let parent = Parent {
            number: id.number,
            generation: id.generation,
        };
        let all = self.tracker.announced(parent);
        let port = |l4: u32| u16::try_from(l4).ok();
        all.into_iter()
            .filter_map(|(key, e)| {
                Some(Expected {
                    reply: (key.src, key.dst) == (orig.src.addr, orig.dst.addr),
                    port: port(key.port)?,
                    own_port: e.port.and_then(port),
                })
            })
            .collect()
    }
}

impl Conntrack {
    /// Ends and frees the connections for which `wanted` is true, among `budget` records from `at` on.
    /// Returns their number and the next `at`, like [`Conntrack::flush`].
    pub fn end_where(
        &self,
        now_ms: u64,
        at: u32,
        budget: u32,
        mut wanted: impl FnMut(&Seen<'_>) -> bool,
    ) -> (usize, Option<u32>) {
        let mut n = 0;
        let next = self.scan(now_ms, at, budget, |seen| {
            if wanted(seen) {
                n += usize::from(self.kill(seen.id().number, seen.record));
            }
        });
        if n > 0 {
            self.sweep_from(now_ms, (at, at.saturating_add(budget)), budget);
        }
        (n, next)
    }
}
