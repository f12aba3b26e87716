//! Actions compiled for execution.
//!
//! The compiler takes decisions that would otherwise be due per packet:
//!
//! * a packet that an output took must be copied before it changes ([`Op::Copy`]);
//! * a truncation belongs to a certain output;
//! * some clones need no saved state (the last action of a list).
//!
//! **Invariant.** A packet that an [`Op::Output`] took is not written any more. An [`Op::Copy`] is between
//! each output and the next write of the same packet. One copy too many is the safe error.

use crate::exec::encap;
use heddle_conntrack::CtAction;
use heddle_datapath_api::{Action, DropKind, DropReason, LbOutput, Meter, Upcall, Wait};
use heddle_flow_cache::{Merges, ProgramId, RunProgram};
use heddle_tunnel::TunnelPop;
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
    /// Send by the port of the packet's bucket, cut to this length.
    Balance(Arc<LbOutput>, u32),
    /// Hand a copy to the control plane, cut to this length.
    Userspace(Arc<Upcall>, u32),
    /// Continue with a private copy.
    Copy,
    /// Remember the packet as it is now. If a later step ends the packet, execution continues at the matching
    /// [`Op::Restore`], which is this step.
    Save(usize),
    /// Go back to what the matching [`Op::Save`] remembered.
    Restore,
    /// Cut the packet to this many bytes.
    Cut(u32),
    /// Rewrite headers or metadata.
    Apply(Action),
    /// End, unless the meter admits the packet.
    Meter(Arc<Meter>),
    /// Recirculate the packet, or a copy of it if later steps need it as it is.
    Recirc {
        /// Under this id.
        id: u32,
        /// A copy is recirculated.
        copy: bool,
    },
    /// Track the packet's connection.
    Ct(Arc<CtAction>),
    /// Forget the packet's connection.
    CtClear,
    /// Take a tunnel's headers off the packet and look it up as received on the tunnel's port. If later steps
    /// need the packet as it is, this is done with a copy.
    Pop {
        /// The tunnel.
        pop: Arc<TunnelPop>,
        /// A copy is decapsulated.
        copy: bool,
    },
    /// Have a copy wait.
    Wait(Wait),
    /// Unless the packet is longer than `len`, jump to `at`.
    Shorter {
        /// Bytes.
        len: u16,
        /// Index of the next step.
        at: usize,
    },
    /// Jump to `at`, except for a random sample of the packets.
    Unless {
        /// Sampling probability, as a fraction of 2³²−1.
        probability: u32,
        /// Index of the next step.
        at: usize,
    },
    /// Continue at this step.
    Jump(usize),
    /// End, counting a drop.
    Drop(DropKind),
}

/// Class of a whole program: simple ones have shorter executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One output of the unchanged packet.
    Output(u32),
    /// Rewrites and outputs of the same packet, and at the end perhaps a recirculation: run over all packets
    /// of a group at once.
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
    /// Hands packets back to a lookup.
    pub(crate) recirculates: bool,
    /// The recirculation at the end of a [`Shape::Line`].
    pub(crate) tail: Option<Tail>,
    /// Tracks connections.
    pub(crate) tracks: bool,
    /// Packets of a burst that may be executed together.
    pub(crate) merges: Merges,
}

/// The next lookup of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// Under this recirculation id.
    Recirc(u32),
    /// The packet was received from a tunnel, which the step with this index names.
    Pop(u16),
    /// The packet waits for a change, and is looked up after it.
    Later(Wait),
}

impl NextHop {
    /// The recirculation id.
    #[inline]
    pub(crate) fn id(self) -> u32 {
        match self {
            Self::Recirc(id) => id,
            Self::Pop(_) => 0,
            Self::Later(wait) => wait.recirc,
        }
    }
    /// A [`NextHop::Pop`] of this step.
    pub(crate) fn pop_at(step: usize) -> Self {
        // Programs are bounded by the size of their actions. A step beyond the last one drops the packet.
        Self::Pop(u16::try_from(step).unwrap_or(u16::MAX))
    }
}

/// The recirculation at the end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) hop: NextHop,
    /// A copy is recirculated: the packet itself was sent before.
    pub(crate) copy: bool,
    /// The line has written headers before: they must be parsed again.
    pub(crate) rewritten: bool,
    /// The recirculation is the only step.
    pub(crate) alone: bool,
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
        drop_wasted_clears(&mut c.ops);
        let (shape, tail) = shape_of(&c.ops);
        let mut program = Self {
            shape,
            tail,
            merges: Merges::No,
            needs_key: c.ops.iter().any(|op| matches!(op, Op::Userspace(..))),
            recirculates: c
                .ops
                .iter()
                .any(|op| matches!(op, Op::Recirc { .. } | Op::Pop { .. } | Op::Wait(_))),
            tracks: c.ops.iter().any(|op| matches!(op, Op::Ct(_) | Op::CtClear)),
            ops: c.ops.into(),
        };
        program.merges = program.merging();
        program
    }
    /// The tunnel of a [`NextHop::Pop`].
    #[inline]
    pub(crate) fn pop_of(&self, step: u16) -> Option<&Arc<TunnelPop>> {
        match self.ops.get(usize::from(step)) {
            Some(Op::Pop { pop, .. }) => Some(pop),
            _ => None,
        }
    }
    fn merging(&self) -> Merges {
        if matches!(self.shape, Shape::Output(_))
            || self.tail.is_some_and(|t| t.alone)
            || self.only_tracks().is_some()
        {
            Merges::All
        } else if self.shape == Shape::Line {
            Merges::Alike
        } else {
            Merges::No
        }
    }
    /// The `ct` action, if the program only tracks packets and recirculates them.
    #[inline]
    pub(crate) fn only_tracks(&self) -> Option<&CtAction> {
        match &*self.ops {
            [Op::Ct(action), Op::Recirc { copy: false, .. }] => Some(action),
            _ => None,
        }
    }
    /// This program, number `number`, as that of packets that `zone` has tracked, if it is independent of the
    /// state that `zone` has of their connections.
    #[inline]
    pub(crate) fn after_tracking(&self, number: ProgramId, zone: u16) -> Option<RunProgram> {
        if self.shape != Shape::Any && self.tail.is_none() && !self.tracks && !self.needs_key {
            let merges = self.merges;
            return Some(RunProgram { number, merges });
        }
        let [before @ .., Op::Ct(action), Op::Recirc { copy: false, .. }] = &*self.ops else {
            return None;
        };
        let (forgets, writes) = match before {
            [Op::CtClear, writes @ ..] => (true, writes),
            writes => (false, writes),
        };
        let independent = forgets || action.zone != zone && !action.force;
        (independent && writes.iter().all(writes_in_place)).then_some(RunProgram {
            number,
            merges: Merges::No,
        })
    }
}

/// Removes steps that clear connection state which no later step reads.
fn drop_wasted_clears(ops: &mut Vec<Op>) {
    let sends = |op: &Op| {
        matches!(
            op,
            Op::Output(_) | Op::Balance(..) | Op::Apply(_) | Op::Copy | Op::CtClear
        )
    };
    let jumps = |op: &Op| {
        matches!(
            op,
            Op::Save(_) | Op::Restore | Op::Shorter { .. } | Op::Unless { .. } | Op::Jump(_)
        )
    };
    if ops.iter().any(jumps) {
        return; // steps have to stay where they are
    }
    let asked = ops.iter().rposition(|op| !sends(op)).map_or(0, |last| last + 1);
    let mut end = ops.split_off(asked);
    if end.iter().any(|op| *op != Op::CtClear) {
        end.retain(|op| *op != Op::CtClear);
    }
    ops.append(&mut end);
}

/// Whether a step writes header fields without adding or removing a header.
fn writes_in_place(op: &Op) -> bool {
    matches!(
        op,
        Op::Apply(
            Action::SetEth { .. } | Action::SetIpv4 { .. } | Action::SetIpv6 { .. } | Action::SetL4 { .. }
        )
    )
}

/// The class of a program of these steps, and the recirculation at its end.
fn shape_of(ops: &[Op]) -> (Shape, Option<Tail>) {
    let steps = |ops: &[Op]| {
        ops.iter().all(|op| match op {
            Op::Output(_) | Op::Apply(_) | Op::Ct(_) | Op::CtClear => true,
            Op::Balance(_, cut) => *cut == u32::MAX,
            _ => false,
        })
    };
    let (before, hop, copy) = match ops {
        [Op::Output(port)] => return (Shape::Output(*port), None),
        [before @ .., Op::Recirc { id, copy }] => (before, NextHop::Recirc(*id), *copy),
        [before @ .., Op::Pop { copy, .. }] => (before, NextHop::pop_at(before.len()), *copy),
        ops if steps(ops) => return (Shape::Line, None),
        _ => return (Shape::Any, None),
    };
    if !steps(before) {
        return (Shape::Any, None);
    }
    let tail = Tail {
        hop,
        copy,
        rewritten: before.iter().any(writes_headers),
        alone: !copy && before.is_empty() && matches!(hop, NextHop::Recirc(_)),
    };
    (Shape::Line, Some(tail))
}

fn writes_headers(op: &Op) -> bool {
    match op {
        Op::Apply(action) => !matches!(
            action,
            Action::SetPriority(_) | Action::SetMark(_) | Action::Hash { .. }
        ),
        _ => false,
    }
}

struct Compiler {
    ops: Vec<Op>,
    depth: usize,
}

impl Compiler {
    /// Compiles a list. `shared`: an output may hold the packet. `tail`: no step runs after the list. `cut`:
    /// the truncation for the next output (it is kept across rewrites). `None`: the nesting is too deep.
    fn list(&mut self, actions: &[Action], shared: &mut bool, tail: bool, mut cut: u32) -> Option<()> {
        for (i, action) in actions.iter().enumerate() {
            if cut != u32::MAX && !matches!(action, Action::TunnelPush(_)) {
                cut = cut.saturating_add_signed(growth(action));
            }
            match action {
                Action::Output(port) if cut == u32::MAX => {
                    self.ops.push(Op::Output(port.0));
                    *shared = true;
                }
                Action::Output(port) => {
                    // If the packet is not longer than the cut, the packet itself is sent, not a copy.
                    self.ops
                        .push(Op::OutputTrunc(port.0, std::mem::replace(&mut cut, u32::MAX)));
                    *shared = true;
                }
                Action::LbOutput(table) => {
                    let cut = std::mem::replace(&mut cut, u32::MAX);
                    self.ops.push(Op::Balance(Arc::clone(table), cut));
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
                    let save = self.save();
                    // Later actions need the packet as it is, so the clone copies before its first write.
                    self.nested(inner, &mut true, false, cut)?;
                    self.restore(save);
                    *shared |= has_output(inner);
                }
                Action::Sample { probability, actions } => {
                    let save = self.save();
                    let chance = (*probability != u32::MAX).then(|| {
                        self.ops.push(Op::Jump(0));
                        self.ops.len() - 1
                    });
                    self.nested(actions, &mut true, false, cut)?;
                    if let Some(at) = chance {
                        self.ops[at] = Op::Unless {
                            probability: *probability,
                            at: self.ops.len(),
                        };
                    }
                    self.restore(save);
                    *shared |= has_output(actions);
                }
                Action::CheckPktLen {
                    len,
                    greater,
                    less_equal,
                } => {
                    let tail = tail && i + 1 == actions.len();
                    self.check_len(*len, [greater, less_equal], shared, tail, cut)?;
                }
                Action::Meter(meter) => {
                    // The meter may rewrite the DSCP of packets that it admits.
                    self.unshare(shared);
                    self.ops.push(Op::Meter(Arc::clone(meter)));
                }
                Action::Recirc(id) => {
                    let copy = *shared || !tail || i + 1 != actions.len();
                    self.ops.push(Op::Recirc { id: *id, copy });
                }
                Action::Ct(ct) => {
                    // Address translation writes the packet.
                    if ct.nat.is_some() {
                        self.unshare(shared);
                    }
                    self.ops.push(Op::Ct(Arc::clone(ct)));
                }
                Action::CtClear => self.ops.push(Op::CtClear),
                Action::TunnelPop(pop) => {
                    let copy = *shared || !tail || i + 1 != actions.len();
                    let pop = Arc::clone(pop);
                    self.ops.push(Op::Pop { pop, copy });
                }
                Action::Wait(wait) => self.ops.push(Op::Wait(*wait)),
                // Used by outputs to a tunnel's port. In the engine this port has no device: it counts such
                // packets as dropped.
                Action::SetTunnel(_) => {}
                Action::TunnelPush(_) => {
                    self.unshare(shared);
                    if cut != u32::MAX {
                        // The outer headers contain the length, so the packet is cut before they are added.
                        self.ops.push(Op::Cut(std::mem::replace(&mut cut, u32::MAX)));
                    }
                    self.ops.push(Op::Apply(action.clone()));
                }
                Action::TooBig { .. } => {
                    self.unshare(shared);
                    self.ops.push(Op::Apply(action.clone()));
                }
                Action::Drop(reason) => {
                    self.ops.push(Op::Drop((*reason).into()));
                    return Some(());
                }
                Action::Hash { .. } => {
                    self.ops.push(Op::Apply(action.clone()));
                }
                // The first two write too: the packet stores its queue and its mark.
                Action::SetPriority(_)
                | Action::SetMark(_)
                | Action::SetEth { .. }
                | Action::SetIpv4 { .. }
                | Action::SetIpv6 { .. }
                | Action::SetL4 { .. }
                | Action::SetIcmp { .. }
                | Action::SetArp { .. }
                | Action::SetNd { .. }
                | Action::SetNdExt { .. }
                | Action::PushVlan { .. }
                | Action::PopVlan
                | Action::PushMpls { .. }
                | Action::PopMpls { .. }
                | Action::SetMpls(_)
                | Action::AddMpls { .. }
                | Action::PushEth { .. }
                | Action::PopEth
                | Action::PushNsh(_)
                | Action::PopNsh
                | Action::SetNsh(_) => {
                    self.unshare(shared);
                    self.ops.push(Op::Apply(action.clone()));
                }
            }
        }
        Some(())
    }
    /// Called before a step that writes the packet: copies it if an output took it.
    fn unshare(&mut self, shared: &mut bool) {
        if std::mem::take(shared) {
            self.ops.push(Op::Copy);
        }
    }
    fn save(&mut self) -> usize {
        self.ops.push(Op::Save(usize::MAX));
        self.ops.len() - 1
    }
    fn restore(&mut self, save: usize) {
        let at = self.ops.len();
        self.ops.push(Op::Restore);
        self.ops[save] = Op::Save(at);
    }
    /// Compiles two lists, one of which runs. It runs on the packet itself if nothing follows.
    fn check_len(
        &mut self,
        len: u16,
        [greater, less_equal]: [&[Action]; 2],
        shared: &mut bool,
        tail: bool,
        cut: u32,
    ) -> Option<()> {
        let save = (!tail).then(|| self.save());
        let (mut a, mut b) = if tail { (*shared, *shared) } else { (true, true) };
        let branch = self.ops.len();
        self.ops.push(Op::Shorter { len, at: 0 });
        self.branch(greater, &mut a, tail, cut)?;
        let jump = self.ops.len();
        self.ops.push(Op::Jump(0));
        self.ops[branch] = Op::Shorter { len, at: jump + 1 };
        self.branch(less_equal, &mut b, tail, cut)?;
        self.ops[jump] = Op::Jump(self.ops.len());
        if let Some(save) = save {
            self.restore(save);
        }
        *shared |= has_output(greater) || has_output(less_equal);
        Some(())
    }
    /// A list that drops the packet if it is empty.
    fn branch(&mut self, list: &[Action], shared: &mut bool, tail: bool, cut: u32) -> Option<()> {
        if list.is_empty() && tail {
            self.ops.push(Op::Drop(DropReason::Policy.into()));
        }
        self.nested(list, shared, tail, cut)
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

/// Bytes by which an action makes the packet longer. A truncation removes a number of bytes from the packet
/// as it was then, so headers that are pushed later are not cut.
pub(crate) fn growth(action: &Action) -> i32 {
    match action {
        Action::PushVlan { .. } | Action::PushMpls { .. } | Action::AddMpls { .. } => 4,
        Action::PopVlan | Action::PopMpls { .. } => -4,
        Action::PushEth { .. } => encap::ETHERNET.into(),
        Action::PopEth => (-encap::ETHERNET).into(),
        Action::PushNsh(header) => i32::try_from(encap::nsh_len(header)).unwrap_or(0),
        Action::TunnelPush(push) => i32::try_from(push.header.len()).unwrap_or(0),
        _ => 0,
    }
}

fn has_output(actions: &[Action]) -> bool {
    actions.iter().any(|a| match a {
        Action::Output(_) | Action::LbOutput(_) => true,
        Action::Clone(inner) | Action::Sample { actions: inner, .. } => has_output(inner),
        Action::CheckPktLen {
            greater, less_equal, ..
        } => has_output(greater) || has_output(less_equal),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_datapath_api::PortNo;

    /// A truncation applies to the output after a rewrite, less the bytes that were popped meanwhile. A
    /// packet shorter than the cut is shared with that output, so a later rewrite copies it first.
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
            Op::Save(5),
            Op::Copy,
            Op::Apply(Action::PopVlan),
            Op::Output(2),
            Op::Restore,
            Op::Output(3),
        ];
        assert_eq!(*p.ops, want);
    }

    /// An output into a tunnel without a device does not affect the outputs after it.
    #[test]
    fn outputs_after_one_into_a_tunnel_are_done() {
        let out = |n| Action::Output(PortNo(n));
        let tunnel = Action::SetTunnel(Arc::default());
        let p = Program::compile(&[out(1), tunnel, out(5), out(2)]);
        assert_eq!(*p.ops, [Op::Output(1), Op::Output(5), Op::Output(2)]);
    }

    /// Tracked packets may be translated, so a packet that was sent is copied first. A program that tracks
    /// and recirculates is a line.
    #[test]
    fn tracking_copies_only_where_it_may_rewrite() {
        let ct = |nat: bool| {
            let nat = nat.then(heddle_conntrack::CtNat::default);
            Action::Ct(Arc::new(CtAction {
                nat,
                ..CtAction::default()
            }))
        };
        let p = Program::compile(&[Action::Output(PortNo(1)), ct(false), Action::Output(PortNo(2))]);
        assert!(!p.ops.contains(&Op::Copy) && p.tracks && p.shape == Shape::Line);
        let p = Program::compile(&[Action::Output(PortNo(1)), ct(true), Action::Output(PortNo(2))]);
        assert!(p.ops.contains(&Op::Copy));
        let p = Program::compile(&[ct(true), Action::Recirc(3)]);
        let tail = p.tail.unwrap();
        assert!(p.merges == Merges::All && !tail.alone && !tail.rewritten && p.recirculates);
    }

    /// Both branches end at the same step. Steps behind a branch get the packet as it was before.
    #[test]
    fn branches_by_length() {
        let check = Action::CheckPktLen {
            len: 100,
            greater: vec![Action::PopVlan, Action::Output(PortNo(1))],
            less_equal: vec![],
        };
        let p = Program::compile(std::slice::from_ref(&check));
        let want = [
            Op::Shorter { len: 100, at: 4 },
            Op::Apply(Action::PopVlan),
            Op::Output(1),
            Op::Jump(5),
            Op::Drop(DropKind::Policy),
        ];
        assert_eq!(*p.ops, want);
        let p = Program::compile(&[check, Action::PopVlan, Action::Recirc(7)]);
        let want = [
            Op::Save(6),
            Op::Shorter { len: 100, at: 6 },
            Op::Copy,
            Op::Apply(Action::PopVlan),
            Op::Output(1),
            Op::Jump(6),
            Op::Restore,
            Op::Copy,
            Op::Apply(Action::PopVlan),
            Op::Recirc { id: 7, copy: false },
        ];
        assert_eq!(*p.ops, want);
    }

    #[test]
    fn clears_are_left_out_if_no_later_step_reads() {
        let out = || Action::Output(PortNo(1));
        assert_eq!(
            Program::compile(&[Action::CtClear, out()]).shape,
            Shape::Output(1)
        );
        let ct = || Action::Ct(Arc::default());
        let then_tracked = Program::compile(&[Action::CtClear, ct(), Action::Recirc(1)]);
        assert!(matches!(
            *then_tracked.ops,
            [Op::CtClear, Op::Ct(_), Op::Recirc { .. }]
        ));
        let program = then_tracked.after_tracking(ProgramId(7), 0).unwrap();
        assert_eq!(
            program,
            RunProgram {
                number: ProgramId(7),
                merges: Merges::No
            }
        );
        assert!(then_tracked.only_tracks().is_none());
        let tracked = Program::compile(&[ct(), Action::CtClear, out()]);
        assert_eq!(*tracked.ops, [Op::Ct(Arc::default()), Op::Output(1)]);
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
