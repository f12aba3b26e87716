//! A rule behind other rules: match, steps, and the steps that restore a packet which finds no filter next.
//!
//! **Problem.** A flow that tracks, or recirculates, is a chain of rules, and a packet may find no filter in
//! the middle of it. A worker begins with the packet's first stage. So it must get the packet as it came in.
//!
//! **Paths.** Each filter that continues in another chain has a chain of its own. The chain's [`PathState`]
//! knows the filters before it: the fields that they match and write, and the steps that restore what they
//! rewrote. The rules of a stage have one filter in each chain of their recirculation id, unless no packet of
//! that chain can match them.
//!
//! **Connections.** Behind `ct`, filters match packets of established connections only. The kernel has those
//! that the switch has installed ([`super::conns`]). A packet of another connection is as it was before, so
//! the chain's last filter hands it over. A translated packet is restored by a second lookup: each translated
//! connection has an entry in a second zone, which translates it back.

use super::ENDS_HERE;
use super::ct::ConnMatch;
use super::fields::KnownHeaders;
use crate::more::TCP_UP;
use crate::rule::VLAN_PRESENT;
use crate::{Ct, Headers, Op, Rule, Why};
use heddle_conntrack::state::{DNAT, EST, INV, NEW, REL, RPL, SNAT, TRK};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Maximum number of chains of one packet. A path that is longer may be a loop.
const MAX_DEPTH: usize = 6;

const OTHER_PROTOCOL: Why = Why::Action("ct of another protocol than TCP and UDP (through tc)");
const TWICE: Why = Why::Action("ct in a zone that may have translated before (through tc)");
const NO_TABLE: Why = Why::Action("ct without a table (through tc)");
const AFTER_OUTPUT: Why = Why::Action("recirc after an output (through tc)");
const NOT_MATCHED: Why = Why::Action("recirc after a rewrite of a field that is not matched (through tc)");

/// Connection state of packets in a chain: those of an established connection in this zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tracked {
    zone: u16,
    /// Translated connections are translated.
    nat: bool,
    /// Mark that the connection must have (value, mask).
    mark: (u32, u32),
}

/// A change of packets that is undone, for a packet that finds no filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Undo {
    /// Steps, of packets with these headers.
    Rewrites(Box<KnownHeaders>, Box<[Op]>),
    /// Translation in this zone.
    Nat(u16),
}

/// The packets of a chain.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct PathState {
    known: KnownHeaders,
    tracked: Option<Tracked>,
    /// Zones in which packets may have been translated.
    translated: Vec<u16>,
    /// TCP packets with SYN, FIN or RST do not come here.
    no_edges: bool,
    /// First to last.
    pub(super) undo: Vec<Undo>,
    depth: usize,
}

impl PathState {
    /// The zone whose translation is the first to be undone, and which only packets of established
    /// connections have passed.
    pub(super) fn last_translation(&self) -> Option<u16> {
        match (self.tracked, self.undo.first()) {
            (Some(t), Some(Undo::Nat(zone))) if t.nat && t.zone == *zone => Some(*zone),
            _ => None,
        }
    }
}

/// Steps without `ct` between them, or a `ct`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Steps, of packets with these headers.
    Ops(Box<KnownHeaders>, Vec<Op>),
    /// Lookup in this zone of the switch.
    Track { zone: u16, nat: bool },
}

/// A rule at a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// The rule that the filter's keys are of; its steps do not count.
    pub(super) matched: Rule,
    pub(super) conn: Option<ConnMatch>,
    pub(super) steps: Vec<Step>,
    /// The chain that the packet continues in, with its recirculation id.
    pub(super) next: Option<(u32, PathState)>,
}

impl Plan {
    /// Whether it neither tracks nor continues in another chain.
    pub(super) fn is_plain(&self) -> bool {
        let tracks = |step: &Step| matches!(step, Step::Track { .. });
        self.next.is_none() && !self.steps.iter().any(tracks)
    }
}

/// The fields that a rule matches on, without connections.
fn match_of(rule: &Rule) -> KnownHeaders {
    KnownHeaders {
        key: rule.key,
        mask: rule.mask,
    }
}

/// The union of two conditions on some bits. `None`: they contradict each other.
fn both(a: (u32, u32), b: (u32, u32)) -> Option<(u32, u32)> {
    ((a.0 ^ b.0) & a.1 & b.1 == 0).then_some((a.0 & a.1 | b.0 & b.1, a.1 | b.1))
}

/// Whether a rule can have packets of established connections, or untracked ones.
///
/// # Errors
/// The rule has neither.
pub(super) fn can_be_established(rule: &Rule) -> Result<(), Why> {
    let (k, m) = (rule.key.ct_state, rule.mask.ct_state);
    let tracked = k & m & TRK != 0;
    match tracked && (k ^ EST) & m & (EST | NEW | REL | INV) != 0 {
        true => Err(Why::NotEstablished),
        false => Ok(()),
    }
}

/// Conditions on the connection at a place. `None`: no packet of the place meets them.
fn conn_of(rule: &Rule, place: &PathState) -> Result<Option<Option<ConnMatch>>, Why> {
    let (k, m) = (&rule.key, &rule.mask);
    let Some(t) = place.tracked else {
        let words = k.ct_state & m.ct_state != 0 || k.ct_mark & m.ct_mark != 0 || k.ct_zone & m.ct_zone != 0;
        let label = k.ct_label.iter().zip(m.ct_label).any(|(k, m)| k & m != 0);
        return Ok((!words && !label).then_some(None));
    };
    let translated = SNAT | DNAT;
    if t.nat && m.ct_state & translated != 0 {
        return Err(Why::Connection);
    }
    let bits = TRK | EST | NEW | REL | INV | translated;
    let other_state = (k.ct_state ^ (TRK | EST)) & m.ct_state & bits != 0;
    if other_state || (k.ct_zone ^ t.zone) & m.ct_zone != 0 {
        return Ok(None);
    }
    let mark = both((k.ct_mark, m.ct_mark), t.mark);
    Ok(mark.map(|mark| {
        Some(ConnMatch {
            reply: (m.ct_state & RPL != 0).then_some(k.ct_state & RPL != 0),
            mark,
            label: (k.ct_label, m.ct_label),
        })
    }))
}

/// Whether the filter of a rule matches no TCP packet with SYN, FIN or RST.
fn has_no_edges(matched: &Rule) -> bool {
    let compared = matched.more.as_ref().map_or(0, |more| more.mask.tcp_flags);
    !matched.all_flags && (compared == 0 || compared & TCP_UP == TCP_UP)
}

/// A walk through the steps of a rule.
struct Walk {
    now: KnownHeaders,
    tracked: Option<Tracked>,
    translated: Vec<u16>,
    ops: Vec<Op>,
    before: KnownHeaders,
    steps: Vec<Step>,
    /// Steps that restore what `ops` rewrite, last first. `None`: some value is not known.
    restore: Option<Vec<Op>>,
    /// Last change first; `None`: not all can be undone.
    undo: Option<Vec<Undo>>,
    has_output: bool,
}

impl Walk {
    fn add(&mut self, op: Op) {
        if let Op::Output(_) = op {
            self.has_output = true;
        } else if op != Op::Encap {
            let restoring = self.now.restoring(&op);
            self.restore = self.restore.take().and_then(|mut all| {
                all.insert(0, restoring?);
                Some(all)
            });
        }
        self.now.apply(&op);
        self.ops.push(op);
    }
    fn flush(&mut self) {
        let ops = std::mem::take(&mut self.ops);
        let restore = self.restore.replace(Vec::new());
        let before = std::mem::replace(&mut self.before, self.now);
        if ops.is_empty() {
            return;
        }
        self.steps.push(Step::Ops(Box::new(before), ops));
        let now = self.now;
        self.undo = self.undo.take().and_then(|mut all| {
            let restore = restore?;
            if !restore.is_empty() {
                all.insert(0, Undo::Rewrites(Box::new(now), restore.into()));
            }
            Some(all)
        });
    }
    fn track(&mut self, ct: &Ct) {
        self.flush();
        self.steps.push(Step::Track {
            zone: ct.zone,
            nat: ct.nat,
        });
        if ct.nat {
            self.translated.push(ct.zone);
            self.now.forget_ends();
            self.before = self.now;
            if let Some(all) = &mut self.undo {
                all.insert(0, Undo::Nat(ct.zone));
            }
        }
    }
}

/// The rules that have a filter each for a rule at a place. A rule that tracks without a match on the
/// protocol has one for TCP and one for UDP. Packets with SYN, FIN or RST, and packets of other protocols,
/// are left to workers.
pub(super) fn variants(rule: &Rule, place: &PathState) -> Vec<Rule> {
    let tracks = rule.ops.iter().any(|op| matches!(op, Op::Ct(_)));
    if !tracks || (rule.mask.nw_proto | place.known.mask.nw_proto) != 0 {
        return vec![rule.clone()];
    }
    let of = |proto| {
        let mut one = rule.clone();
        (one.key.nw_proto, one.mask.nw_proto) = (proto, u8::MAX);
        one
    };
    vec![of(TCP), of(UDP)]
}

/// The plan of a rule for packets of a place. `None`: no packet of the place matches it.
///
/// # Errors
/// The reason why tc cannot do the rule's steps there.
pub(super) fn plan(rule: &Rule, place: &PathState) -> Result<Option<Plan>, Why> {
    let own = match_of(rule);
    if !own.agrees(&place.known) {
        return Ok(None);
    }
    let Some(mut conn) = conn_of(rule, place)? else {
        return Ok(None);
    };
    let mut known = place.known.union(&own);
    let tracks = rule.ops.iter().any(|op| matches!(op, Op::Ct(_)));
    let in_stages = tracks || rule.key.recirc != 0 || rule.ops.iter().any(|op| matches!(op, Op::Recirc(_)));
    if let Some(why) = rule.only_tc().filter(|_| in_stages) {
        return Err(why);
    }
    let mut matched = Rule {
        ops: Box::default(),
        ..rule.clone()
    };
    // The kernel compares the outermost EtherType with the filter's protocol.
    (matched.key.dl_type, matched.mask.dl_type) = (known.key.dl_type, known.mask.dl_type);
    (matched.key.nw_proto, matched.mask.nw_proto) = (known.key.nw_proto, known.mask.nw_proto);
    (matched.key.vlan, matched.mask.vlan) = (known.key.vlan, known.mask.vlan);
    if tracks {
        if known.mask.nw_proto != u8::MAX || !matches!(known.key.nw_proto, TCP | UDP) {
            return Err(OTHER_PROTOCOL);
        }
        matched.all_flags = false;
        // A filter that tracks matches none of the flags that the flow may match on.
        if let Some(more) = &mut matched.more {
            (more.key.tcp_flags, more.mask.tcp_flags) = (0, 0);
        }
    }
    if place.no_edges {
        matched.all_flags = true;
    }
    if known.mask.vlan & VLAN_PRESENT == 0 {
        // The filter matches packets without a tag ([`super::keys`]).
        (known.key.vlan, known.mask.vlan) = (0, u16::MAX);
    }
    let mut walk = Walk {
        now: known,
        tracked: place.tracked,
        translated: place.translated.clone(),
        ops: Vec::new(),
        before: known,
        steps: Vec::new(),
        restore: Some(Vec::new()),
        undo: Some(place.undo.clone()),
        has_output: false,
    };
    let mut next = None;
    let mut ops = rule.ops.iter().peekable();
    while let Some(op) = ops.next() {
        match op {
            Op::CtClear => walk.tracked = None,
            Op::Ct(ct) => {
                if walk.translated.contains(&ct.zone) {
                    return Err(TWICE);
                }
                match walk.tracked.filter(|t| t.zone == ct.zone) {
                    // The packet is tracked already: only the mark counts, and the translation.
                    Some(t) => {
                        let mark = both(t.mark, ct.mark.unwrap_or_default());
                        let of_rule = conn.map_or((0, 0), |c| c.mark);
                        let Some(both_marks) = mark.and_then(|mark| both(of_rule, mark)) else {
                            return Ok(None);
                        };
                        if let Some(c) = &mut conn {
                            c.mark = both_marks;
                        }
                        if ct.nat {
                            walk.track(ct);
                        }
                        walk.tracked = Some(Tracked {
                            nat: t.nat || ct.nat,
                            ..t
                        });
                    }
                    None => {
                        if !matches!(ops.peek(), Some(Op::Recirc(_))) {
                            return Err(NO_TABLE);
                        }
                        walk.track(ct);
                        walk.tracked = Some(Tracked {
                            zone: ct.zone,
                            nat: ct.nat,
                            mark: ct.mark.unwrap_or_default(),
                        });
                    }
                }
            }
            Op::Recirc(id) => {
                if walk.has_output {
                    return Err(AFTER_OUTPUT);
                }
                walk.flush();
                let undo = walk.undo.take().ok_or(NOT_MATCHED)?;
                if place.depth >= MAX_DEPTH {
                    return Err(Why::TooManyActions);
                }
                next = Some((
                    *id,
                    PathState {
                        known: walk.now,
                        tracked: walk.tracked,
                        translated: walk.translated.clone(),
                        no_edges: place.no_edges || has_no_edges(&matched),
                        undo,
                        depth: place.depth + 1,
                    },
                ));
                break;
            }
            Op::Decap(_) => return Err(ENDS_HERE),
            other => walk.add(*other),
        }
    }
    walk.flush();
    Ok(Some(Plan {
        matched,
        conn,
        steps: walk.steps,
        next,
    }))
}

/// A rule with these steps, of packets with these headers.
pub(super) fn rule_of(of: &Rule, known: &KnownHeaders, ops: &[Op]) -> Rule {
    let bare = |h: Headers| Headers {
        recirc: 0,
        ct_mark: 0,
        ct_label: [0; 16],
        ct_zone: 0,
        ct_state: 0,
        ..h
    };
    Rule {
        key: bare(known.key),
        mask: bare(known.mask),
        ops: ops.into(),
        ..of.clone()
    }
}
