//! Running a list of actions, one after the other.

use super::ctx::{Ctx, key_port, of_port};
use super::mpls::lse;
use super::report::{Kind, hex};
use super::resubmit::{Lookup, Run};
use super::table::OnMiss;
use crate::features::Feature;
use crate::versioned::LATEST;
use heddle_flow::Vlan;
use heddle_flow::text::PortNames;
use heddle_openflow::action::Nat;
use heddle_openflow::message::PacketInReason;
use heddle_openflow::text::{ActionsText, InstructionsText};
use heddle_openflow::{Action, Instruction, InstructionSet, Port};
use smallvec::SmallVec;

/// One step of a rule: an action, or an instruction that is not `Apply`.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    Action(&'a Action),
    Instruction(&'a Instruction),
    /// The next steps belong to this table and rule.
    Unroll {
        table: u8,
        cookie: u64,
    },
}

/// The steps of some instructions: the actions of `Apply` one by one, the others as they are.
pub(super) fn steps_of(instructions: &[Instruction]) -> SmallVec<[Step<'_>; 8]> {
    let mut steps = SmallVec::new();
    for i in instructions {
        match i {
            Instruction::Apply(actions) => steps.extend(actions.iter().map(Step::Action)),
            other => steps.push(Step::Instruction(other)),
        }
    }
    steps
}

/// Effect of a step on the rest of its list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListStep {
    Next,
    Stop,
    /// The rest is frozen: the list continues with this step when the packet comes back.
    FreezeBefore,
    /// The rest is frozen: the list continues with the next step when the packet comes back.
    FreezeAfter,
}

impl ListStep {
    fn next_if(next: bool) -> Self {
        if next { ListStep::Next } else { ListStep::Stop }
    }
}

impl Ctx<'_> {
    /// Runs steps. `last`: no action follows them, so that an output need not keep the packet as it is.
    pub(super) fn run_list(&mut self, steps: &[Step<'_>], last: bool) {
        self.nested(|c| c.run_list_here(steps, last));
    }

    fn run_list_here(&mut self, steps: &[Step<'_>], last: bool) {
        if steps.is_empty() {
            self.trace.report(Kind::Action, || "drop".to_owned());
            return;
        }
        for (i, step) in steps.iter().enumerate() {
            if self.out.error.is_some() || !self.step() {
                break;
            }
            if self.flow.was_mpls && !self.rest.exit && !is_safe_behind_mpls(step) {
                self.rest.freeze();
            }
            if self.rest.exit {
                if self.rest.freezing {
                    self.rest.leave(&self.at, &steps[i..]);
                }
                break;
            }
            let last = last && i + 1 == steps.len() && self.at.action_set.is_empty();
            self.report_step(step);
            let effect = match step {
                Step::Action(Action::CheckPktLarger(c))
                    if self.at.bridge.features.has(Feature::CheckPktLen) =>
                {
                    // Runs the rest of the list, twice.
                    self.check_pkt_larger(c, &steps[i + 1..]);
                    break;
                }
                Step::Action(a) => self.action(a, last),
                Step::Instruction(i) => self.instruction(i, last),
                Step::Unroll { table, cookie } => self.unroll(*table, *cookie),
            };
            let first_frozen = match effect {
                // If a nested list is frozen, the head of the loop freezes the rest of this one.
                ListStep::Next => continue,
                ListStep::Stop => break,
                ListStep::FreezeBefore => i,
                ListStep::FreezeAfter => i + 1,
            };
            if self.out.error.is_none() && self.rest.freezing {
                self.rest.leave(&self.at, &steps[first_frozen..]);
            }
            break;
        }
    }

    fn unroll(&mut self, table: u8, cookie: u64) -> ListStep {
        (self.at.table, self.at.cookie) = (table, cookie);
        self.trace.report(Kind::Thaw, || {
            format!("restored state: table={table}, cookie={}", hex(cookie.into()))
        });
        ListStep::Next
    }

    fn report_step(&mut self, step: &Step<'_>) {
        let Some(report) = &mut self.trace.report else {
            return;
        };
        let bridge = self.at.bridge;
        let _scope = bridge.tlv_scope();
        let name = |port: u32| bridge.ports.get(&of_port(port)).map(|p| p.name.clone());
        let names: Option<PortNames<'_>> = if report.names { Some(&name) } else { None };
        let text = match step {
            Step::Action(a) => ActionsText {
                actions: std::slice::from_ref(a),
                names,
            }
            .to_string(),
            Step::Instruction(i) => {
                let set = InstructionSet(vec![Instruction::clone(i)]);
                InstructionsText { set: &set, names }.to_string()
            }
            Step::Unroll { table, cookie } => format!("unroll_xlate(table={table}, cookie={cookie})"),
        };
        report.add(Kind::Action, text);
    }

    fn instruction(&mut self, i: &Instruction, last: bool) -> ListStep {
        match i {
            Instruction::Meter(id) => self.meter(*id),
            // `steps_of` has replaced it by its actions.
            Instruction::Apply(_) => {}
            Instruction::Clear => self.clear_actions(),
            Instruction::Write(actions) => self.write_actions(actions),
            Instruction::WriteMetadata { value, mask } => {
                self.flow.metadata = self.flow.metadata & !mask | value & mask;
            }
            Instruction::Goto(table) => {
                self.table_action(Lookup {
                    in_port: self.flow.in_port,
                    table: *table,
                    on_miss: OnMiss::FULL,
                    ct_orig: false,
                    last,
                    run: Run::Here,
                });
            }
        }
        ListStep::Next
    }

    fn action(&mut self, action: &Action, last: bool) -> ListStep {
        match action {
            Action::Output { port, max_len } => self.output(*port, *max_len, true, last),
            Action::OutputTrunc { port, max_len } => self.output_trunc(*port, *max_len, last),
            Action::OutputReg { src, max_len } => self.output_reg(*src, *max_len, last),
            Action::Controller(c) if c.pause => {
                self.rest.pause = Some(c.clone());
                self.rest.freeze();
                return ListStep::FreezeAfter;
            }
            Action::Controller(c) => self.controller(c, reason_of(c.reason)),
            Action::Enqueue { port, queue } => self.enqueue(*port, *queue, last),
            Action::SetQueue(queue) => {
                self.out.mask.0.skb_priority = u32::MAX;
                self.flow.skb_priority = *queue;
            }
            Action::PopQueue => self.pop_queue(),
            Action::SetVlanVid { vid, push_if_missing } => {
                self.flow
                    .set_vlan_bits(&mut self.out.mask, *vid, Vlan::VID_MASK, *push_if_missing);
            }
            Action::SetVlanPcp { pcp, push_if_missing } => {
                self.flow.set_vlan_bits(
                    &mut self.out.mask,
                    u16::from(*pcp) << 13,
                    Vlan::PCP_MASK,
                    *push_if_missing,
                );
            }
            Action::PopVlan | Action::StripVlan => self.flow.pop_vlan(&mut self.out.mask),
            Action::PushVlan(tpid) => self.flow.push_vlan(&mut self.out.mask, *tpid),
            Action::SetEthSrc(_)
            | Action::SetEthDst(_)
            | Action::SetIpv4Src(_)
            | Action::SetIpv4Dst(_)
            | Action::SetIpDscp(_)
            | Action::SetIpEcn(_)
            | Action::SetIpTtl(_)
            | Action::SetL4Src(_)
            | Action::SetL4Dst(_) => self.flow.set_header(&mut self.out.mask, action),
            Action::SetField { field, value, mask } => self.set_field(*field, *value, *mask),
            Action::SetTunMetadata(set) => self.set_tun_metadata(set),
            Action::Load { dst, value } => self.load(*dst, *value),
            Action::Move { src, dst } => self.move_field(*src, *dst),
            Action::StackPush(src) => self.stack_push(*src),
            Action::StackPop(dst) => self.stack_pop(*dst),
            Action::DecTtl(controllers) => return ListStep::next_if(self.dec_ttl(controllers)),
            Action::SetMplsLabel(label) => {
                self.flow
                    .set_mpls_bits(&mut self.out.mask, label << 12, lse::LABEL)
            }
            Action::SetMplsTc(tc) => {
                self.flow
                    .set_mpls_bits(&mut self.out.mask, u32::from(*tc) << 9, lse::TC)
            }
            Action::SetMplsTtl(ttl) => self
                .flow
                .set_mpls_bits(&mut self.out.mask, u32::from(*ttl), lse::TTL),
            Action::DecMplsTtl => return ListStep::next_if(self.dec_mpls_ttl()),
            Action::PushMpls(ethertype) => self.push_mpls(*ethertype),
            Action::PopMpls(ethertype) => self.pop_mpls(*ethertype),
            Action::SetTunnel(id) => self.flow.tun_id = *id,
            Action::Resubmit {
                port,
                table,
                with_ct_orig,
            } => self.resubmit(*port, *table, *with_ct_orig, last),
            Action::Group(id) => {
                if !self.group(*id, last) {
                    return ListStep::Stop;
                }
                if self.rest.freezing {
                    return ListStep::FreezeBefore;
                }
            }
            Action::Meter(id) => self.meter(*id),
            Action::Clone(actions) => {
                let steps: SmallVec<[Step<'_>; 8]> = actions.iter().map(Step::Action).collect();
                self.run_on_copy(&steps, last);
            }
            Action::Note(_) => {}
            Action::Exit => self.rest.exit = true,
            Action::Learn(l) => self.learn(l),
            Action::Conjunction(_) => self.report_error(|| "executing no-op conjunction action".to_owned()),
            Action::Multipath(m) => self.multipath(m),
            Action::Bundle(b) => self.bundle(b, last),
            Action::FinTimeout { idle, hard } => self.fin_timeout(*idle, *hard),
            Action::Sample(s) => self.sample(s),
            // Otherwise `run_list_here` handles it.
            Action::CheckPktLarger(c) => self.check_this_packet(c),
            Action::DeleteField(field) => self.delete_field(*field),
            Action::Encap(e) => self.encap(e),
            Action::Decap(ty) => {
                if self.decap(*ty) {
                    // The headers behind it must be parsed.
                    self.rest.freeze();
                    return ListStep::FreezeAfter;
                }
            }
            Action::DecNshTtl => return ListStep::next_if(self.dec_nsh_ttl()),
            Action::Ct(ct) => self.ct(ct, last),
            Action::CtClear => self.ct_clear(),
            // Within `ct`, which emits the address translation.
            Action::Nat(nat) => self.at.ct_nat = Some(Nat::clone(nat)),
            Action::DebugRecirc => {
                self.rest.freeze();
                return ListStep::FreezeAfter;
            }
            Action::DebugSlow => self.out.slow(),
        }
        ListStep::Next
    }

    fn meter(&mut self, id: u32) {
        self.out.depend(crate::meter::slot(self.at.bridge.id, id));
        if let Some(meter) = self.at.bridge.meters.get(id, LATEST) {
            self.out
                .emit(heddle_datapath_api::Action::Meter(meter.data.dp.clone()));
        }
    }

    fn resubmit(&mut self, port: Port, table: Option<u8>, ct_orig: bool, last: bool) {
        self.table_action(Lookup {
            in_port: if port == Port::IN_PORT {
                self.flow.in_port
            } else {
                key_port(port)
            },
            table: table.unwrap_or(self.at.table),
            on_miss: OnMiss::NONE,
            ct_orig,
            last,
            run: Run::Here,
        });
    }

    fn pop_queue(&mut self) {
        self.out.mask.0.skb_priority = u32::MAX;
        if self.flow.skb_priority != self.input.key.skb_priority {
            self.flow.skb_priority = self.input.key.skb_priority;
            let queue = self.flow.skb_priority;
            self.trace
                .report(Kind::Detail, || format!("queue = {}", hex(queue.into())));
        }
    }
}

impl Step<'_> {
    /// Whether setting fields back undoes the changes that the step makes to the packet. It does not undo a
    /// truncation that found no output.
    pub(super) fn is_reversible(&self) -> bool {
        !matches!(
            self,
            Step::Action(
                Action::Ct(_)
                    | Action::Meter(_)
                    | Action::Nat(_)
                    | Action::OutputTrunc { .. }
                    | Action::Encap(_)
                    | Action::Decap(_)
                    | Action::DecNshTtl
            ) | Step::Instruction(Instruction::Meter(_))
        )
    }
}

/// Whether the step needs no headers behind a label that was just popped.
fn is_safe_behind_mpls(step: &Step<'_>) -> bool {
    let Step::Action(action) = step else { return false };
    match action {
        Action::Output { .. }
        | Action::OutputTrunc { .. }
        | Action::Enqueue { .. }
        | Action::OutputReg { .. }
        | Action::SetVlanVid { .. }
        | Action::SetVlanPcp { .. }
        | Action::SetEthSrc(_)
        | Action::SetEthDst(_)
        | Action::SetTunnel(_)
        | Action::SetQueue(_)
        // Actions of a group's buckets are checked when they run.
        | Action::Group(_) => true,
        Action::SetField { field, .. } => *field < heddle_flow::FieldId::Ipv4Src,
        Action::Load { dst, .. } => dst.field < heddle_flow::FieldId::Ipv4Src,
        _ => false,
    }
}

pub(super) fn reason_of(number: u8) -> PacketInReason {
    use PacketInReason::*;
    let all = [
        NoMatch,
        Action,
        InvalidTtl,
        ActionSet,
        Group,
        PacketOut,
        ExplicitMiss,
        ImplicitMiss,
    ];
    all.get(usize::from(number)).copied().unwrap_or(Action)
}
