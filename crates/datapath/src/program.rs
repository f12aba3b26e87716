//! Actions compiled for execution.
//!
//! The compiler decides what the executor would otherwise have to ask per packet: where a packet that was already handed to an
//! output must be copied before it changes ([`Op::Copy`]), which output a truncation belongs to, and which clones
//! need no saved state (the last action of a list).
//!
//! **Invariant.** A packet that an [`Op::Output`] took is not written any more: every write is preceded by an [`Op::Copy`]
//! since the last output of the same packet. One copy too many is the safe error.

use crate::action::{Action, DropReason, Upcall};
use crate::drops::DropKind;
use std::sync::Arc;

/// Deepest nesting of clones that keep state.
pub(crate) const MAX_NESTING: usize = 16;

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    /// Send on a port.
    Output(u32),
    /// Send the first bytes on a port.
    OutputTrunc(u32, u32),
    /// Hand a copy to the control plane, cut to this length.
    Userspace(Arc<Upcall>, u32),
    /// Go on with a private copy.
    Copy,
    /// Remember the packet as it is now.
    Save,
    /// Go back to what the matching [`Op::Save`] remembered.
    Restore,
    /// Rewrite headers or metadata.
    Apply(Action),
    /// Stop, counting a drop.
    Drop(DropKind),
}

/// What a program as a whole amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One output of the packet as it is.
    Output(u32),
    /// Rewrites and outputs of the same packet, no more.
    Line,
    /// Anything else.
    Any,
}

/// A compiled list of actions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program {
    pub(crate) ops: Box<[Op]>,
    pub(crate) shape: Shape,
    /// Hands packets to the control plane, which wants the key.
    pub(crate) needs_key: bool,
}

impl Program {
    pub(crate) fn compile(actions: &[Action]) -> Self {
        let mut c = Compiler {
            ops: Vec::with_capacity(actions.len() + 1),
            depth: 0,
        };
        let mut shared = false;
        if c.list(actions, &mut shared, true, u32::MAX).is_none() {
            c.ops.clear();
            c.ops.push(Op::Drop(DropKind::Nesting));
        } else if c.ops.is_empty() {
            c.ops.push(Op::Drop(DropReason::Policy.into()));
        }
        let shape = match &c.ops[..] {
            [Op::Output(port)] => Shape::Output(*port),
            ops if ops.iter().all(|op| matches!(op, Op::Output(_) | Op::Apply(_))) => Shape::Line,
            _ => Shape::Any,
        };
        Self {
            shape,
            needs_key: c.ops.iter().any(|op| matches!(op, Op::Userspace(..))),
            ops: c.ops.into(),
        }
    }
}

struct Compiler {
    ops: Vec<Op>,
    depth: usize,
}

impl Compiler {
    /// Compiles a list. `shared`: an output may hold the packet. `tail`: nothing runs after the list. `cut`: the
    /// truncation that waits for an output (it outlives rewrites in between). `None`: too deep.
    fn list(&mut self, actions: &[Action], shared: &mut bool, tail: bool, mut cut: u32) -> Option<()> {
        for (i, action) in actions.iter().enumerate() {
            if cut != u32::MAX {
                cut = cut.saturating_add_signed(growth(action));
            }
            match action {
                Action::Output(port) if cut == u32::MAX => {
                    self.ops.push(Op::Output(port.0));
                    *shared = true;
                }
                Action::Output(port) => {
                    // A packet that is not longer than the cut leaves itself, not as a copy.
                    self.ops
                        .push(Op::OutputTrunc(port.0, std::mem::replace(&mut cut, u32::MAX)));
                    *shared = true;
                }
                Action::Userspace(up) => {
                    let cut = std::mem::replace(&mut cut, u32::MAX);
                    self.ops.push(Op::Userspace(Arc::clone(up), cut));
                }
                Action::Trunc(n) => cut = *n,
                Action::Clone(inner) if tail && i + 1 == actions.len() => {
                    self.nested(inner, shared, true, cut)?;
                }
                Action::Clone(inner) => {
                    self.ops.push(Op::Save);
                    // What follows needs the packet as it is, so the clone copies before its first write.
                    let mut inner_shared = true;
                    self.nested(inner, &mut inner_shared, false, cut)?;
                    self.ops.push(Op::Restore);
                    *shared |= has_output(inner);
                }
                Action::Drop(reason) => {
                    self.ops.push(Op::Drop((*reason).into()));
                    return Some(());
                }
                Action::SetPriority(_) | Action::SetMark(_) => self.ops.push(Op::Apply(action.clone())),
                Action::SetEth { .. }
                | Action::SetIpv4 { .. }
                | Action::SetIpv6 { .. }
                | Action::SetL4 { .. }
                | Action::SetIcmp { .. }
                | Action::SetArp { .. }
                | Action::SetNd { .. }
                | Action::PushVlan { .. }
                | Action::PopVlan
                | Action::PushMpls { .. }
                | Action::PopMpls { .. }
                | Action::SetMpls(_) => {
                    if std::mem::take(shared) {
                        self.ops.push(Op::Copy);
                    }
                    self.ops.push(Op::Apply(action.clone()));
                }
            }
        }
        Some(())
    }
    fn nested(&mut self, inner: &[Action], shared: &mut bool, tail: bool, cut: u32) -> Option<()> {
        if self.depth == MAX_NESTING {
            return None;
        }
        self.depth += 1;
        let done = self.list(inner, shared, tail, cut);
        self.depth -= 1;
        done
    }
}

/// Bytes by which an action makes the packet longer. A truncation says how much is cut off the packet as it was
/// then, so what is pushed afterwards comes on top.
pub(crate) fn growth(action: &Action) -> i32 {
    match action {
        Action::PushVlan { .. } | Action::PushMpls { .. } => 4,
        Action::PopVlan | Action::PopMpls { .. } => -4,
        _ => 0,
    }
}

fn has_output(actions: &[Action]) -> bool {
    actions.iter().any(|a| match a {
        Action::Output(_) => true,
        Action::Clone(inner) => has_output(inner),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::PortNo;

    /// A truncation waits for the output behind a rewrite, less what was popped meanwhile; and a packet that was shorter than the cut is shared with
    /// that output, so that a later rewrite copies it first.
    #[test]
    fn truncation_outlives_rewrites_and_shares_what_is_short() {
        let p = Program::compile(&[
            Action::Trunc(40),
            Action::PopVlan,
            Action::Output(PortNo(1)),
            Action::PopVlan,
            Action::Output(PortNo(2)),
        ]);
        let pop = || Op::Apply(Action::PopVlan);
        assert_eq!(
            *p.ops,
            [pop(), Op::OutputTrunc(1, 36), Op::Copy, pop(), Op::Output(2)]
        );
    }

    #[test]
    fn copies_only_between_output_and_write() {
        let p = Program::compile(&[
            Action::PopVlan,
            Action::Output(PortNo(1)),
            Action::Output(PortNo(2)),
            Action::PopVlan,
            Action::PopVlan,
            Action::Output(PortNo(3)),
        ]);
        let pop = || Op::Apply(Action::PopVlan);
        assert_eq!(
            *p.ops,
            [
                pop(),
                Op::Output(1),
                Op::Output(2),
                Op::Copy,
                pop(),
                pop(),
                Op::Output(3)
            ]
        );
    }

    #[test]
    fn clone_at_the_end_is_inline_and_truncation_binds_to_the_next_output() {
        let out = |n| Action::Output(PortNo(n));
        let p = Program::compile(&[
            Action::Trunc(64),
            out(1),
            Action::Clone(vec![Action::PopVlan, out(2)]),
            Action::Clone(vec![out(3)]),
        ]);
        let want = [
            Op::OutputTrunc(1, 64),
            Op::Save,
            Op::Copy,
            Op::Apply(Action::PopVlan),
            Op::Output(2),
            Op::Restore,
            Op::Output(3),
        ];
        assert_eq!(*p.ops, want);
    }

    #[test]
    fn nothing_is_a_policy_drop_and_depth_is_bounded() {
        assert_eq!(*Program::compile(&[]).ops, [Op::Drop(DropKind::Policy)]);
        let mut list = vec![Action::Output(PortNo(1))];
        for _ in 0..40 {
            list = vec![Action::Clone(list), Action::Output(PortNo(2))];
        }
        assert_eq!(*Program::compile(&list).ops, [Op::Drop(DropKind::Nesting)]);
    }
}
