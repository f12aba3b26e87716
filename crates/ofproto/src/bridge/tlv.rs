//! The bridge's map of tunnel options (`NXT_TLV_TABLE_MOD`): which are fields of its rules.
//!
//! **Invariants.** The map changes with the bridge's state locked. A field that a rule uses, in its match or
//! its actions, stays mapped as it is: [`Refs`](super::refs::Refs) counts users. A flow mod that was read
//! with an older map is refused.

use super::Bridge;
use super::change::Change;
use super::refs::for_each_action;
use heddle_classifier::MiniMatch;
use heddle_flow::FieldId;
use heddle_flow::field::tlv::{self, N_TLV, Scope, TlvError, TlvMap};
use heddle_flow::key::TLV_SPACE;
use heddle_openflow::action::{CtZone, LearnDst, LearnSrc, ObservationId};
use heddle_openflow::message::{TlvCommand, TlvTable, TlvTableMod};
use heddle_openflow::{Action, ErrorKind, Instruction, InstructionSet};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The map; most bridges never have one.
#[derive(Default)]
pub(super) struct Options {
    map: Mutex<Arc<TlvMap>>,
    /// There is something in it.
    any: AtomicBool,
}

impl Options {
    fn current(&self) -> Option<Arc<TlvMap>> {
        // A reader during a change of the map gets either one; a flow mod's map is compared again.
        self.any.load(Relaxed).then(|| self.map.lock().clone())
    }
}

impl Bridge {
    /// The bridge's tunnel options; `None` where nothing is mapped.
    pub fn tlv_map(&self) -> Option<Arc<TlvMap>> {
        self.options.current()
    }
    /// Makes the bridge's map that of the thread, for reading, writing and printing what names fields.
    pub fn tlv_scope(&self) -> Scope {
        Scope::enter(self.tlv_map())
    }

    pub(super) fn tlv_table(&self) -> TlvTable {
        TlvTable {
            max_option_space: u32::try_from(TLV_SPACE).unwrap_or(u32::MAX),
            max_fields: u16::try_from(N_TLV).unwrap_or(u16::MAX),
            mappings: self.options.map.lock().mappings().collect(),
        }
    }

    /// Changes the map: as a whole, or not at all.
    pub(super) fn tlv_table_mod(&self, m: &TlvTableMod) -> Result<(), ErrorKind> {
        let state = self.state.lock();
        let used = |index: u8| state.refs.count_option(index) != 0;
        let mut map = TlvMap::clone(&self.options.map.lock());
        match m.command {
            TlvCommand::Add => m
                .mappings
                .iter()
                .try_for_each(|one| map.add(*one, used))
                .map_err(|e| match e {
                    TlvError::TableFull => ErrorKind::TlvTableModFailedTableFull,
                    TlvError::AlreadyMapped => ErrorKind::TlvTableModFailedAlreadyMapped,
                    TlvError::DupEntry => ErrorKind::TlvTableModFailedDupEntry,
                })?,
            TlvCommand::Delete if m.mappings.iter().any(|one| used(one.index)) => {
                return Err(ErrorKind::TlvTableModFailedInvalidTlvDel);
            }
            TlvCommand::Delete => m.mappings.iter().for_each(|one| map.remove(one.index)),
            TlvCommand::Clear if map.mappings().any(|one| used(one.index)) => {
                return Err(ErrorKind::TlvTableModFailedInvalidTlvDel);
            }
            TlvCommand::Clear => map = TlvMap::default(),
        }
        self.options.any.store(!map.is_empty(), Relaxed);
        *self.options.map.lock() = Arc::new(map);
        drop(state);
        self.republish();
        Ok(())
    }
}

impl Change<'_> {
    /// Refuses a flow mod that names options and was read with another map than the current one.
    pub(super) fn check_options(&self, matches: &MiniMatch, set: &InstructionSet) -> Result<(), ErrorKind> {
        if options_of(matches, set) == 0
            || self
                .bridge
                .options
                .current()
                .is_some_and(|now| tlv::is_current(&now))
        {
            Ok(())
        } else {
            Err(ErrorKind::FlowModFailedInvalidTlvField)
        }
    }
}

/// The fields for tunnel options that a rule uses, a bit each.
pub(super) fn options_of(matches: &MiniMatch, set: &InstructionSet) -> u64 {
    /// Word of a key that has a bit for each option that is there.
    const PRESENT: usize = std::mem::offset_of!(heddle_flow::FlowKey, tun_present) / 8;
    let words = matches.mask.words().iter();
    let mut found = words
        .filter(|(i, _)| usize::from(*i) == PRESENT)
        .fold(0, |all, (_, bits)| all | bits);
    for i in &set.0 {
        if let Instruction::Apply(actions) | Instruction::Write(actions) = i {
            for_each_action(actions, &mut |a| {
                fields_of(a, |f| {
                    if let FieldId::TunMetadata(t) = f {
                        found |= 1 << t.index();
                    }
                });
            });
        }
    }
    found
}

/// The fields that an action names to read or write. [`for_each_action`] visits the actions inside it.
fn fields_of(a: &Action, mut f: impl FnMut(FieldId)) {
    match a {
        Action::SetField { field, .. } | Action::DeleteField(field) => f(*field),
        Action::SetTunMetadata(set) => f(FieldId::TunMetadata(set.field)),
        Action::Load { dst, .. } => f(dst.field),
        Action::Move { src, dst } => {
            f(src.field);
            f(dst.field);
        }
        Action::StackPush(s) | Action::StackPop(s) => f(s.field),
        Action::OutputReg { src, .. } => f(src.field),
        Action::Sample(s) => {
            for id in [s.obs_domain_id, s.obs_point_id] {
                if let ObservationId::Field(src) = id {
                    f(src.field);
                }
            }
        }
        Action::Multipath(m) => f(m.dst.field),
        Action::Bundle(b) => b.dst.into_iter().for_each(|d| f(d.field)),
        Action::CheckPktLarger(c) => f(c.dst.field),
        Action::Ct(ct) => {
            if let CtZone::Field(s) = ct.zone {
                f(s.field);
            }
        }
        Action::Learn(l) => {
            l.result_dst.into_iter().for_each(|d| f(d.field));
            for spec in &l.specs {
                if let LearnSrc::Field(s) = spec.src {
                    f(s.field);
                }
                if let LearnDst::Match(d) | LearnDst::Load(d) = spec.dst {
                    f(d.field);
                }
            }
        }
        // The fields that these write have no tunnel options among them.
        Action::Output { .. }
        | Action::OutputTrunc { .. }
        | Action::Controller(_)
        | Action::Enqueue { .. }
        | Action::SetQueue(_)
        | Action::PopQueue
        | Action::SetVlanVid { .. }
        | Action::SetVlanPcp { .. }
        | Action::PopVlan
        | Action::StripVlan
        | Action::PushVlan(_)
        | Action::SetEthSrc(_)
        | Action::SetEthDst(_)
        | Action::SetIpv4Src(_)
        | Action::SetIpv4Dst(_)
        | Action::SetIpDscp(_)
        | Action::SetIpEcn(_)
        | Action::SetIpTtl(_)
        | Action::SetL4Src(_)
        | Action::SetL4Dst(_)
        | Action::DecTtl(_)
        | Action::SetMplsLabel(_)
        | Action::SetMplsTc(_)
        | Action::SetMplsTtl(_)
        | Action::DecMplsTtl
        | Action::PushMpls(_)
        | Action::PopMpls(_)
        | Action::SetTunnel(_)
        | Action::Resubmit { .. }
        | Action::Group(_)
        | Action::Meter(_)
        | Action::Clone(_)
        | Action::Note(_)
        | Action::Exit
        | Action::Conjunction(_)
        | Action::FinTimeout { .. }
        | Action::Encap(_)
        | Action::Decap(_)
        | Action::DecNshTtl
        | Action::CtClear
        | Action::Nat(_)
        | Action::DebugRecirc
        | Action::DebugSlow => {}
    }
}
