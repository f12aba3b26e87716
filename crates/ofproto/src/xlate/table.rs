//! Lookup of a packet in the tables.

use super::conjunction;
use super::ctx::{Ctx, of_port};
use super::emit::Output;
use super::limits::{MAX_ACTION_BYTES, MAX_DEPTH, MAX_RESUBMITS, XlateError};
use super::report::Kind;
use crate::model::{Fragments, N_TABLES, Rule, TableMiss, Unmatched, port_config};
use heddle_datapath_api::{Override, changes};
use heddle_flow::key::{FIRST_WORD, frag};
use heddle_flow::text::DEFAULT_PRIORITY;
use heddle_flow::{FlowKey, FlowMask, N_WORDS};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Last table that a miss continues to: the next one belongs to the switch itself.
const LAST_TABLE: usize = N_TABLES - 2;

/// Index of the key's word that has the input port.
const IN_PORT: usize = offset_of!(FlowKey, in_port) / 8;

/// Result of a lookup.
pub(super) enum LookupResult<'w> {
    /// A rule.
    Rule(&'w Arc<Rule>),
    /// No rule; a packet-in goes to the controllers.
    ToController,
    /// No rule.
    Nothing,
    /// The packet is a fragment that is dropped without a lookup.
    Fragment,
}

/// Handling of a lookup that matches no rule.
#[derive(Clone, Copy)]
pub(super) struct OnMiss {
    /// A packet-in may be sent.
    pub(super) may_packet_in: bool,
    /// The table's own setting counts. Otherwise the lookup ends (resubmit).
    pub(super) honor_config: bool,
}

impl OnMiss {
    /// For packets from ports, and for goto.
    pub(super) const FULL: Self = Self {
        may_packet_in: true,
        honor_config: true,
    };
    /// For resubmit.
    pub(super) const NONE: Self = Self {
        may_packet_in: false,
        honor_config: false,
    };
}

/// Calls `f` with the numbers of the words in which `b` differs from `a`. Bits in `left_out`, if there is
/// one, count as zero in `a`.
fn each_difference(a: &FlowKey, left_out: Option<&FlowMask>, b: &FlowKey, mut f: impl FnMut(usize)) {
    /// Number of words that are compared at once; mostly all of them are equal.
    const PIECE: usize = 10;
    const { assert!((N_WORDS - FIRST_WORD).is_multiple_of(PIECE)) };
    let (x, o, y) = (a.words(), left_out.map(FlowMask::words), b.words());
    let odd = |i: &usize| x[*i] & !o.map_or(0, |o| o[*i]) != y[*i];
    if a.first_used().min(b.first_used()) < FIRST_WORD {
        (0..FIRST_WORD).filter(odd).for_each(&mut f);
    }
    for first in (FIRST_WORD..N_WORDS).step_by(PIECE) {
        let all = first..first + PIECE;
        let equal = match o {
            None => x[all.clone()] == y[all.clone()],
            Some(o) => all.clone().fold(0, |any, i| any | (x[i] & !o[i] ^ y[i])) == 0,
        };
        if !equal {
            all.filter(odd).for_each(&mut f);
        }
    }
}

impl Output<'_> {
    /// Records the words in which this lookup, the last dependency so far, sees another key than the lookup
    /// before. The first lookup is compared with the packet. This decides later whether a changed rule is
    /// about such packets.
    #[inline]
    fn record_lookup(&mut self, orig: &FlowKey, now: &FlowKey) {
        let Ok(from) = u16::try_from(self.deps.len() - 1) else {
            self.uncacheable = true;
            return;
        };
        let constants = changes::constants();
        let overrides = &mut self.translation.overrides;
        let before = overrides.len();
        // Only the change of the packet's own bits is recorded, since their values differ between packets.
        // The other bits have the same values for all packets.
        let of_packet = |key: &FlowKey, at: usize| key.words()[at] & !constants.words()[at];
        let record = |overrides: &mut Vec<_>, at: usize| {
            overrides.push(Override {
                from,
                word: u8::try_from(at).unwrap_or(u8::MAX),
                changed: of_packet(now, at) != of_packet(orig, at),
                value: now.words()[at] & constants.words()[at],
            });
        };
        if !self.has_looked {
            self.has_looked = true;
            // The input port is always recorded.
            record(overrides, IN_PORT);
            each_difference(orig, Some(constants), now, |at| {
                if at != IN_PORT {
                    record(overrides, at);
                }
            });
            return;
        }
        let seen = self.seen.get_or_insert_with(|| {
            let mut first = *orig;
            changes::clear_constants(&mut first);
            for o in overrides.iter() {
                let at = usize::from(o.word);
                // The packet's bits of a changed word are unknown: they count as equal.
                first.words_mut()[at] = o.value | of_packet(if o.changed { now } else { orig }, at);
            }
            first
        });
        each_difference(seen, None, now, |at| record(overrides, at));
        for o in overrides.iter().skip(before) {
            let at = usize::from(o.word);
            seen.words_mut()[at] = now.words()[at];
        }
    }
}

impl<'w> Ctx<'w> {
    /// Looks the packet up from table `at.table` on, as if it had come in on `in_port`. Sets `at.table` to
    /// the last table that was searched.
    pub(super) fn lookup(&mut self, in_port: u32, on_miss: OnMiss) -> LookupResult<'w> {
        let no_ports = self.flow.nw_frag & frag::ANY != 0
            && match self.at.bridge.frags {
                Fragments::Match => false,
                // No fragment has ports, not even the first one.
                Fragments::Normal => true,
                Fragments::Drop => {
                    self.credit_unmatched(Unmatched::Fragment);
                    return LookupResult::Fragment;
                }
            };
        // The key is changed for the lookup and restored: a copy would cost more.
        let f = &mut self.flow;
        let own = (f.in_port, f.tp_src, f.tp_dst);
        f.in_port = in_port;
        if no_ports {
            (f.tp_src, f.tp_dst) = (0, 0);
        }
        let found = self.lookup_in_tables(on_miss);
        let f = &mut self.flow;
        (f.in_port, f.tp_src, f.tp_dst) = own;
        match found {
            Ok(rule) => LookupResult::Rule(rule),
            Err(miss) if on_miss.may_packet_in && self.miss_wants_packet_in(miss) => {
                self.credit_unmatched(Unmatched::ToController);
                LookupResult::ToController
            }
            Err(_) => {
                self.credit_unmatched(Unmatched::Nothing);
                LookupResult::Nothing
            }
        }
    }

    /// The rule, or the last table's setting for misses.
    fn lookup_in_tables(&mut self, on_miss: OnMiss) -> Result<&'w Arc<Rule>, TableMiss> {
        let bridge = self.at.bridge;
        let mut miss = TableMiss::Continue;
        for table in bridge.tables.iter().skip(usize::from(self.at.table)) {
            if usize::from(table.id) > LAST_TABLE && table.id != self.at.table {
                break;
            }
            if !self.step() {
                return Err(TableMiss::Drop);
            }
            self.at.table = table.id;
            self.out.depend(table.slot);
            self.out.record_lookup(self.input.key, &self.flow);
            // If rules changed between `enter` and the read of the generation, the rule found is old, but the
            // generation may be new.
            if bridge.version.load(Ordering::Acquire) != self.at.version {
                self.out.uncacheable = true;
            }
            self.trace.clauses.clear();
            let used = self.trace.is_on().then_some(&mut self.trace.clauses);
            let found = conjunction::lookup(
                table,
                self.input.reading,
                self.at.version,
                &self.flow,
                &mut self.out.mask,
                used,
            );
            self.out.credit(if found.is_some() {
                &table.matched
            } else {
                &table.missed
            });
            if let Some(rule) = found {
                return Ok(rule);
            }
            if on_miss.honor_config {
                miss = table.miss();
                if miss == TableMiss::Continue {
                    continue;
                }
            }
            break;
        }
        Err(miss)
    }

    fn miss_wants_packet_in(&mut self, miss: TableMiss) -> bool {
        match miss {
            TableMiss::Default => self.at.bridge.miss_to_controller,
            TableMiss::Continue | TableMiss::Controller => self
                .port(of_port(self.flow.in_port))
                .is_some_and(|p| p.config & port_config::NO_PACKET_IN == 0),
            TableMiss::Drop => false,
        }
    }

    /// Counts cached packets without a rule at the table that was searched last.
    fn credit_unmatched(&mut self, why: Unmatched) {
        if let Some(table) = self.at.bridge.tables.get(usize::from(self.at.table)) {
            let stats = table.unmatched[why as usize].counted();
            self.out.credit(&stats);
        }
    }

    /// Whether another lookup is within the limits; reports an error if not.
    pub(super) fn may_look_up(&mut self) -> bool {
        if self.budget.depth >= MAX_DEPTH {
            self.report_error(|| format!("over max translation depth {MAX_DEPTH}"));
            self.out.error = Some(XlateError::RecursionTooDeep);
        } else if self.budget.resubmits >= MAX_RESUBMITS {
            self.report_error(|| format!("over {MAX_RESUBMITS} resubmit actions"));
            self.out.error = Some(XlateError::TooManyResubmits);
        } else if !self.has_room("resubmits") {
            // `has_room` has reported it.
        } else if self.at.stack_is_full() {
            self.report_error(|| "resubmits yielded over 64 kB of stack".to_owned());
            self.out.error = Some(XlateError::StackTooDeep);
        } else {
            return true;
        }
        false
    }

    /// Whether more actions may be emitted. The actions so far are executed.
    pub(super) fn has_room(&mut self, who: &str) -> bool {
        let yes = self.out.bytes <= MAX_ACTION_BYTES;
        if !yes {
            self.report_error(|| format!("{who} yielded over 64 kB of actions"));
            self.rest.exit = true;
        }
        yes
    }

    /// Adds the result of the last lookup, in `table`, to the trace; the clauses of a conjunction are under
    /// it.
    pub(super) fn report_table(&mut self, found: &LookupResult<'_>, table: u8) -> Option<usize> {
        self.trace.report.as_ref()?;
        let bridge = self.at.bridge;
        let _scope = bridge.tlv_scope();
        let name = move |port: u32| bridge.ports.get(&of_port(port)).map(|p| p.name.clone());
        let name: Option<&dyn Fn(u32) -> Option<String>> = if self.trace.wants_names() {
            Some(&name)
        } else {
            None
        };
        let line = self.trace.report(Kind::Table, || match found {
            LookupResult::ToController => format!("{table:2}. No match, and a \"packet-in\" is called for."),
            LookupResult::Nothing => format!("{table:2}. No match."),
            LookupResult::Fragment => {
                format!("{table:2}. Packets are IP fragments and the fragment handling mode is \"drop\".")
            }
            LookupResult::Rule(rule) => {
                let matches = rule.wide_match().text(name, DEFAULT_PRIORITY).to_string();
                let comma = if matches.is_empty() { "" } else { ", " };
                let mut text = format!("{table:2}. {matches}{comma}priority {}", rule.priority);
                if rule.cookie != 0 {
                    text.push_str(&format!(", cookie {:#x}", rule.cookie));
                }
                text
            }
        });
        let parent = self.trace.under(line);
        for rule in std::mem::take(&mut self.trace.clauses) {
            let matches = rule.wide_match().text(name, rule.priority.into()).to_string();
            self.trace.detail(&format!("conj. {matches}"));
        }
        if let Some(parent) = parent {
            self.trace.under(Some(parent));
        }
        line
    }
}
