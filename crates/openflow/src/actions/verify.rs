//! Rules about whole lists of actions and instructions that need no match.

use crate::action::{Action, Instruction, InstructionSet};
use crate::error::ErrorKind;
use crate::version::Version;

/// A kind of list of actions, by where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListKind {
    /// A flow's or packet-out's own list.
    Top,
    /// In `clone`.
    Nested,
    /// In `ct(...)`.
    Ct,
    /// In the action set.
    Set,
}

/// Checks a list of actions.
pub(crate) fn verify_actions(actions: &[Action], version: Version, kind: ListKind) -> Result<(), ErrorKind> {
    if kind == ListKind::Set {
        return if actions.iter().all(allowed_in_set) {
            Ok(())
        } else {
            Err(ErrorKind::BadActionBadType)
        };
    }
    if actions.iter().any(|a| matches!(a, Action::Conjunction(_))) {
        let fine = |a: &Action| matches!(a, Action::Note(_) | Action::Conjunction(_));
        return if actions.iter().all(fine) {
            Ok(())
        } else {
            Err(ErrorKind::BadActionBadConjunction)
        };
    }
    for a in actions {
        let is_nat = matches!(a, Action::Nat(_));
        match kind {
            ListKind::Ct if !is_nat && !writes_ct(a) => return Err(ErrorKind::BadActionBadArgument),
            ListKind::Ct => {}
            _ if is_nat || writes_ct(a) => return Err(ErrorKind::BadActionBadSetArgument),
            _ => {}
        }
        // A meter is an instruction of its own until 1.5.
        if matches!(a, Action::Meter(_)) && version < Version::V15 {
            return Err(ErrorKind::BadInstructionUnsupInst);
        }
    }
    Ok(())
}

/// Whether an action changes ct_mark or ct_label, which `ct(exec(...))` alone may do.
fn writes_ct(a: &Action) -> bool {
    use crate::action::FieldId::{CtLabel, CtMark};
    let field = match a {
        Action::SetField { field, .. } => *field,
        Action::Load { dst, .. } | Action::Move { dst, .. } | Action::StackPop(dst) => dst.field,
        _ => return false,
    };
    matches!(field, CtMark | CtLabel)
}

/// Whether the action set may hold an action (OpenFlow 1.3 §5.10, and Nicira's that have a slot).
fn allowed_in_set(a: &Action) -> bool {
    match a {
        Action::Output { .. }
        | Action::Resubmit { .. }
        | Action::Group(_)
        | Action::SetQueue(_)
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
        | Action::SetField { .. }
        | Action::SetTunMetadata(_)
        | Action::Load { .. }
        | Action::Move { .. }
        | Action::DecTtl(_)
        | Action::SetMplsLabel(_)
        | Action::SetMplsTc(_)
        | Action::SetMplsTtl(_)
        | Action::DecMplsTtl
        | Action::PushMpls(_)
        | Action::PopMpls(_)
        | Action::SetTunnel(_) => true,
        Action::OutputTrunc { .. }
        | Action::OutputReg { .. }
        | Action::Controller(_)
        | Action::Enqueue { .. }
        | Action::PopQueue
        | Action::StackPush(_)
        | Action::StackPop(_)
        | Action::Meter(_)
        | Action::Clone(_)
        | Action::Note(_)
        | Action::Exit
        | Action::Learn(_)
        | Action::Conjunction(_)
        | Action::Multipath(_)
        | Action::Bundle(_)
        | Action::FinTimeout { .. }
        | Action::Sample(_)
        | Action::CheckPktLarger(_)
        | Action::DeleteField(_)
        | Action::Nat(_)
        | Action::DebugRecirc
        | Action::DebugSlow => false,
        Action::Ct(_) | Action::CtClear | Action::Encap(_) | Action::Decap(_) | Action::DecNshTtl => true,
    }
}

/// Checks that instructions come in the order in which they run, each at most once.
pub(crate) fn verify_order(set: &InstructionSet) -> Result<(), ErrorKind> {
    let rank = |i: &Instruction| match i {
        Instruction::Meter(_) => 0,
        Instruction::Apply(_) => 1,
        Instruction::Clear => 2,
        Instruction::Write(_) => 3,
        Instruction::WriteMetadata { .. } => 4,
        Instruction::Goto(_) => 5,
    };
    let in_order = set.0.windows(2).all(|w| matches!(w, [a, b] if rank(a) < rank(b)));
    if in_order {
        Ok(())
    } else {
        Err(ErrorKind::BadActionUnsupportedOrder)
    }
}
