//! `learn` and `fin_timeout`: actions that change the tables.
//!
//! The bridge adds learned flows (`bridge::learn`). If it cannot get a lock at once, a control thread adds
//! the flow soon after, and the translation is not cached.
//!
//! Packets that hit the cached translation refresh what was learned, through its credits.

use super::ctx::{Ctx, of_port};
use super::report::{Kind, hex};
use crate::model::{Learned, Learner, Rule};
use heddle_datapath_api::Credit;
use heddle_flow::{FieldValue, FlowKey, Match};
use heddle_openflow::action::{Learn, LearnDst, LearnSpec, LearnSrc};
use heddle_openflow::message::{FlowMod, FlowModCommand, FlowModFlags};
use heddle_openflow::text::ActionsText;
use heddle_openflow::{Action, Instruction, InstructionSet, Port};
use std::sync::{Arc, Weak};

/// TCP flags that end a connection.
const FIN_OR_RST: u16 = 0x005;

/// Credit that refreshes the learned flow when packets hit the cached translation.
struct Refresh {
    bridge: Weak<dyn Learner>,
    flow: Arc<FlowMod>,
    limit: u32,
}

impl Credit for Refresh {
    fn credit(&self, packets: u64, _bytes: u64, used_ms: u64, _tcp_flags: u16) {
        if packets > 0
            && let Some(bridge) = self.bridge.upgrade()
        {
            bridge.learn_again(&self.flow, self.limit, used_ms);
        }
    }
}

/// Credit that shortens a rule's timeouts at the first FIN or RST.
struct Shorten {
    rule: Arc<Rule>,
    idle: u16,
    hard: u16,
}

impl Credit for Shorten {
    fn credit(&self, _packets: u64, _bytes: u64, _used_ms: u64, tcp_flags: u16) {
        if tcp_flags & FIN_OR_RST != 0 {
            self.rule.reduce_timeouts(self.idle, self.hard);
        }
    }
}

impl Ctx<'_> {
    pub(super) fn fin_timeout(&mut self, idle: u16, hard: u16) {
        self.out.mask.0.nw_proto = u8::MAX;
        if let Some(rule) = self.at.rule.cloned() {
            self.out.credits.push(Arc::new(Shorten { rule, idle, hard }));
        }
    }

    pub(super) fn learn(&mut self, learn: &Learn) {
        for spec in &learn.specs {
            if let LearnSrc::Field(src) = spec.src {
                src.pieces().for_each(|piece| piece.add_mask(&mut self.out.mask));
            }
        }
        if self.trace.is_on() && !self.input.has_packet() {
            self.trace
                .warn("suppressing side effects, so learn action ignored");
            return;
        }
        let flow = Arc::new(self.learned_flow(learn));
        self.trace.report(Kind::Detail, || text(&flow));
        let bridge = self.at.bridge.control.upgrade();
        let learned = match (&bridge, self.input.learn) {
            (Some(b), true) => b.learn(&flow, learn.limit),
            // Without learning, the result is whether the flow is there.
            (Some(b), false) if learn.limit != 0 => Learned::Yes(b.has_learned(&flow)),
            _ => Learned::Yes(true),
        };
        let success = match learned {
            Learned::Yes(success) => success,
            Learned::Later => {
                // The result is not known yet: the next packet learns again.
                self.out.uncacheable = true;
                true
            }
            Learned::No(error) => {
                let name = error.name();
                self.report_error(|| format!("LEARN action execution failed ({name})."));
                return;
            }
        };
        if let Some(dst) = learn.result_dst {
            self.write_number(dst, success.into());
        }
        if success {
            self.out.credits.push(Arc::new(Refresh {
                bridge: self.at.bridge.control.clone(),
                flow,
                limit: learn.limit,
            }));
        } else {
            self.trace.detail("Limit exceeded, learn failed");
            // The next packet may find room.
            self.out.uncacheable = true;
        }
    }

    /// The flow that this packet adds.
    fn learned_flow(&self, learn: &Learn) -> FlowMod {
        let mut match_ = Match::any();
        let mut actions = Vec::new();
        if learn.fin_idle_timeout != 0 || learn.fin_hard_timeout != 0 {
            actions.push(Action::FinTimeout {
                idle: learn.fin_idle_timeout,
                hard: learn.fin_hard_timeout,
            });
        }
        for spec in &learn.specs {
            learn_spec(&self.flow, spec, &mut match_, &mut actions);
        }
        let instructions = InstructionSet(vec![Instruction::Apply(actions)]);
        let mut flags = FlowModFlags::empty();
        flags.set(FlowModFlags::SEND_FLOW_REM, learn.send_flow_rem);
        FlowMod {
            table_id: learn.table,
            new_cookie: learn.cookie,
            modify_cookie: learn.cookie != u64::MAX,
            idle_timeout: learn.idle_timeout,
            hard_timeout: learn.hard_timeout,
            flags,
            ..FlowMod::new(FlowModCommand::ModifyStrict, match_, learn.priority, instructions)
        }
    }
}

/// Adds what one part of `learn` describes to the flow's match or actions.
fn learn_spec(flow: &FlowKey, spec: &LearnSpec, m: &mut Match, actions: &mut Vec<Action>) {
    let value = || match spec.src {
        LearnSrc::Field(src) => src.get(flow),
        LearnSrc::Value(v) => v,
    };
    match spec.dst {
        LearnDst::Match(dst) => {
            match spec.src {
                LearnSrc::Field(src) => src
                    .pieces()
                    .zip(dst.pieces())
                    .for_each(|(s, d)| d.set_match(m, s.get(flow))),
                LearnSrc::Value(v) => dst.set_match(m, v),
            }
            // A match on a header field needs the packet type Ethernet.
            if dst.field.info().prereq != heddle_flow::field::Prereq::None {
                m.mask.0.packet_type = u32::MAX;
            }
        }
        LearnDst::Load(dst) => actions.extend(match spec.src {
            LearnSrc::Field(src) => Action::copied(src, dst, flow),
            LearnSrc::Value(v) => Some(Action::set(dst, v)),
        }),
        LearnDst::Output => {
            if let Some(port) = output_port(value()) {
                actions.push(Action::Output { port, max_len: 0 });
            }
        }
    }
}

/// The port that a learned flow outputs to: an ordinary one, or one of the reserved ports that are allowed
/// here.
fn output_port(value: FieldValue) -> Option<Port> {
    let port = of_port(u16::try_from(value.as_u128()).ok()?.into());
    let named = matches!(port, Port::IN_PORT | Port::FLOOD | Port::LOCAL | Port::ALL);
    (port <= Port::MAX || named).then_some(port)
}

/// The flow as a trace shows it: defaults left out.
fn text(flow: &FlowMod) -> String {
    let matches = flow.match_.to_string();
    let mut s = format!("table={} {matches}", flow.table_id).trim_end().to_owned();
    s += &format!(" priority={}", flow.priority);
    if flow.new_cookie != 0 {
        s += &format!(" cookie={}", hex(flow.new_cookie.into()));
    }
    if flow.idle_timeout != 0 {
        s += &format!(" idle={}", flow.idle_timeout);
    }
    if flow.hard_timeout != 0 {
        s += &format!(" hard={}", flow.hard_timeout);
    }
    if flow.flags.contains(FlowModFlags::SEND_FLOW_REM) {
        s += " send_flow_rem";
    }
    let actions = match flow.instructions.0.as_slice() {
        [Instruction::Apply(actions)] => actions.as_slice(),
        _ => &[],
    };
    s + &format!(" actions={}", ActionsText { actions, names: None })
}
