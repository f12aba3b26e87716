//! The output of one translation: the [`Translation`], and what else is known at the end.
//!
//! The size of the actions is counted as a kernel datapath would take them, because Open vSwitch's limit is
//! one of that size.

use super::limits::{MAX_ACTION_BYTES, XlateError};
use crate::mac::{MacCredit, MacKey, MacTable};
use crate::model::Rule;
use crate::parts::Part;
use crate::sampling::SampleMeta;
use crate::stats::Stats;
use heddle_conntrack::{CtAction, NatHow, NatRange};
use heddle_datapath_api::{Action, DropReason, Generations, Translation};
use heddle_flow::{FlowKey, FlowMask};
use smallvec::SmallVec;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A source address that a translation has learned.
struct Source<'w> {
    table: &'w Arc<MacTable>,
    key: MacKey,
    /// Index of the credit for it.
    credit: usize,
}

/// The translation to fill, which it dereferences to, and the results besides. Until the end, the mask has
/// the bits that mattered as Open vSwitch keeps them, because a trace shows these.
pub(super) struct Output<'w> {
    pub(super) translation: &'w mut Translation,
    generations: &'w Generations,
    /// Bits that mattered and that Open vSwitch leaves out: they are in the cached mask only.
    pub(super) extra: Option<FlowMask>,
    /// Size of the emitted actions, see [`MAX_ACTION_BYTES`].
    pub(super) bytes: usize,
    /// Number of pushed and popped headers that were emitted.
    pub(super) restacked: u32,
    pub(super) error: Option<XlateError>,
    /// Drop reason to use if the translation outputs nothing.
    pub(super) drop_hint: Option<DropReason>,
    /// Rules of a version that was read may have been unlinked before their lookup.
    pub(super) torn: bool,
    /// The actions hold for this packet alone: in Open vSwitch, its slow path would run them.
    is_slow: bool,
    /// The packet is a message for a BFD session of this switch.
    pub(super) is_bfd: bool,
    /// The packet is a message for the LACP of this switch.
    pub(super) is_lacp: bool,
    /// Whether there was a lookup in a table.
    pub(super) has_looked: bool,
    /// The packet as the last lookup in a table saw it; from the second lookup on.
    pub(super) seen: Option<FlowKey>,
    /// Sources that NORMAL has learned.
    sources: SmallVec<[Source<'w>; 2]>,
    /// Samples that were emitted.
    pub(super) samples: Vec<Arc<SampleMeta>>,
}

/// Size of a netlink attribute with `payload` bytes, in bytes.
const fn attr(payload: usize) -> usize {
    4 + payload.next_multiple_of(4)
}

/// Size of an action as a list of netlink attributes, in bytes; masked sets have value and mask.
fn size(action: &Action) -> usize {
    match action {
        Action::Output(_) | Action::LbOutput(_) => attr(4),
        Action::Userspace(_) => attr(attr(4) + attr(72)),
        Action::SetEth { .. } => attr(attr(2 * 12)),
        Action::SetIpv4 { .. } => attr(attr(2 * 12)),
        Action::SetIpv6 { .. } => attr(attr(2 * 40)),
        Action::SetL4 { .. } => attr(attr(2 * 4)),
        Action::SetIcmp { .. } => attr(attr(2 * 2)),
        Action::SetArp { .. } => attr(attr(2 * 24)),
        Action::SetNd { .. } => attr(attr(2 * 28)),
        Action::SetNdExt { .. } => attr(attr(2 * 8)),
        Action::SetPriority(_) | Action::SetMark(_) => attr(attr(2 * 4)),
        Action::SetMpls(_) => attr(attr(4)),
        Action::PushVlan { .. } => attr(4),
        Action::PopVlan => attr(0),
        Action::PushMpls { .. } => attr(8),
        Action::PopMpls { .. } => attr(2),
        Action::AddMpls { .. } => attr(12),
        Action::PushEth { .. } => attr(12),
        Action::PopEth | Action::PopNsh => attr(0),
        Action::PushNsh(header) => attr(attr(attr(8) + attr(header.options.len().max(16)))),
        Action::SetNsh(_) => attr(attr(attr(2 * 8) + attr(2 * 16))),
        Action::Trunc(_) | Action::Drop(_) => attr(4),
        Action::CtClear => attr(0),
        Action::Ct(ct) => attr(ct_size(ct)),
        Action::Clone(list) => attr(list.iter().map(size).sum()),
        // A common guess: Open vSwitch has no such action, or one whose size is of no account.
        Action::Sample { .. }
        | Action::Meter(_)
        | Action::Hash { .. }
        | Action::Recirc(_)
        | Action::CheckPktLen { .. }
        | Action::TunnelPush(_)
        | Action::TunnelPop(_)
        | Action::SetTunnel(_)
        | Action::Wait(_)
        | Action::TooBig { .. } => attr(64),
    }
}

/// Size of the attributes of an action `ct`, in bytes.
fn ct_size(ct: &CtAction) -> usize {
    let CtAction {
        commit,
        force: _,
        zone: _,
        mark,
        label,
        helper,
        timeout,
        nat,
    } = ct;
    let text = |len: usize| attr(len + 1);
    attr(2)
        + if *commit { attr(0) } else { 0 }
        + mark.map_or(0, |_| attr(8))
        + label.map_or(0, |_| attr(32))
        + helper.map_or(0, |h| text(h.name().len()))
        + timeout.as_ref().map_or(0, |t| text(t.len()))
        + nat.map_or(0, |n| attr(n.new.map_or(0, |r| nat_size(&r))))
}

fn nat_size(range: &NatRange) -> usize {
    let NatRange {
        end: _,
        addresses,
        ports,
        how,
        persistent,
    } = range;
    let address = |a: IpAddr| attr(if a.is_ipv4() { 4 } else { 16 });
    attr(0)
        + addresses.map_or(0, |(a, b)| address(a) + if a == b { 0 } else { address(b) })
        + ports.map_or(0, |(a, b)| attr(2) + if a == b { 0 } else { attr(2) })
        + if *how == NatHow::Any { 0 } else { attr(0) }
        + if *persistent { attr(0) } else { 0 }
}

impl<'w> Output<'w> {
    #[inline]
    pub(super) fn new(translation: &'w mut Translation, generations: &'w Generations) -> Self {
        Self {
            translation,
            generations,
            extra: None,
            bytes: 0,
            restacked: 0,
            error: None,
            drop_hint: None,
            torn: false,
            is_slow: false,
            is_bfd: false,
            is_lacp: false,
            has_looked: false,
            seen: None,
            sources: SmallVec::new(),
            samples: Vec::new(),
        }
    }

    /// Adds an action to the translation.
    pub(super) fn emit(&mut self, action: Action) {
        self.bytes += size(&action);
        self.actions.push(action);
    }

    /// Makes the translation one for this packet alone: in Open vSwitch, its slow path would handle it.
    pub(super) fn slow(&mut self) {
        self.uncacheable = true;
        self.is_slow = true;
    }
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow || self.bytes > MAX_ACTION_BYTES
    }

    /// See the field.
    pub(super) fn extra(&mut self) -> &mut FlowMask {
        self.extra.get_or_insert_default()
    }
    /// The bytes to which the next output truncates the packet.
    pub(super) fn truncation(&self) -> Option<u32> {
        let emitted = self.actions.iter().rev().take_while(|a| a.only_rewrites());
        emitted.into_iter().find_map(|a| match a {
            Action::Trunc(n) => Some(*n),
            _ => None,
        })
    }
    /// The mask, and the one of bits that Open vSwitch leaves out.
    pub(super) fn masks(&mut self) -> (&mut FlowMask, &mut FlowMask) {
        (&mut self.translation.mask, self.extra.get_or_insert_default())
    }
    /// Makes the translation depend on a generation slot. Call it before the state that the slot guards is
    /// read.
    pub(super) fn depend(&mut self, slot: u16) {
        let dep = self.generations.read(slot);
        self.deps.push(dep);
    }
    /// Makes the translation depend on a slot, once. It is for state that is read once, or was read before.
    pub(super) fn depend_once(&mut self, slot: u16) {
        if !self.deps.iter().any(|d| d.slot == slot) {
            self.depend(slot);
        }
    }
    /// Makes the translation depend on a part of the configuration. The configuration was read before: see
    /// [`super::Pipeline::publish`].
    pub(super) fn depend_on(&mut self, part: Part) {
        self.depend_once(part.slot());
    }

    /// Credits cached packets to `stats`.
    pub(super) fn credit(&mut self, stats: &Arc<Stats>) {
        self.credits.push_shared(&**stats, || stats.clone());
    }
    /// Credits cached packets to the rule.
    pub(super) fn credit_rule(&mut self, rule: &Rule) {
        self.credits
            .push_shared(rule.stats.seen(), || rule.stats.counted());
    }
    /// Credits the learned source. A packet that comes back over a patch port is learned at each port: cached
    /// packets must leave the address at the last of them.
    pub(super) fn credit_source(&mut self, table: &'w Arc<MacTable>, key: MacKey, credit: Arc<MacCredit>) {
        let mut sources = self.sources.iter();
        let before = sources.find(|s| s.key == key && Arc::ptr_eq(s.table, table));
        if let Some(at) = before.map(|s| s.credit) {
            return self.credits.put(at, credit);
        }
        let source = Source {
            table,
            key,
            credit: self.credits.len(),
        };
        self.sources.push(source);
        self.credits.push(credit);
    }
}

impl Deref for Output<'_> {
    type Target = Translation;
    #[inline]
    fn deref(&self) -> &Translation {
        self.translation
    }
}

impl DerefMut for Output<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Translation {
        self.translation
    }
}
