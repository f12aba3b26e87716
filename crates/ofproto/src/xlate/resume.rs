//! Frozen pipelines as continuations, which controllers keep, and back.

use super::Pipeline;
use super::freeze::metadata_of;
use super::input::Start;
use super::recirc::{Frozen, Left};
use super::run::{Outcome, PacketOut};
use heddle_datapath_api::Translation;
use heddle_flow::FlowKey;
use heddle_openflow::message::{Continuation, ContinuationStep};
use heddle_packet::Packet;

/// A frozen pipeline as a controller keeps it, without the input port.
pub(crate) fn continuation_of(frozen: &Frozen) -> Continuation {
    let mut bridge = [0; 16];
    // The connection signs it in the first half.
    bridge[8..].copy_from_slice(&frozen.bridge.to_be_bytes());
    let mut steps: Vec<ContinuationStep> = Vec::new();
    let mut here = (0, 0);
    let mut fresh = true;
    for left in &frozen.steps {
        match left {
            Left::Unroll { table, cookie } => {
                here = (*table, *cookie);
                fresh = true;
            }
            Left::Instruction(i) => {
                steps.push(ContinuationStep::Instruction(i.clone()));
                fresh = true;
            }
            Left::Action(a) => match steps.last_mut() {
                Some(ContinuationStep::Actions { actions, .. }) if !fresh => actions.push(a.clone()),
                _ => {
                    steps.push(ContinuationStep::Actions {
                        table: here.0,
                        cookie: here.1,
                        actions: vec![a.clone()],
                    });
                    fresh = false;
                }
            },
        }
    }
    Continuation {
        bridge,
        stack: frozen.stack.clone(),
        steps,
        action_set: frozen.action_set.clone(),
        mirrors: frozen.mirrored,
        conntracked: frozen.conntracked,
        odp_port: 0,
    }
}

/// The pipeline of a continuation; `key` has the pipeline's fields.
pub(crate) fn frozen_of(c: Continuation, key: &FlowKey) -> Option<Frozen> {
    let (_, id) = c.bridge.split_at(8);
    let mut left = Vec::new();
    for step in c.steps {
        match step {
            ContinuationStep::Actions {
                table,
                cookie,
                actions,
            } => {
                left.push(Left::Unroll { table, cookie });
                left.extend(actions.into_iter().map(Left::Action));
            }
            ContinuationStep::Instruction(i) => left.push(Left::Instruction(i)),
        }
    }
    Some(Frozen {
        bridge: u64::from_be_bytes(id.try_into().ok()?),
        table: 0,
        metadata: metadata_of(key),
        own_tunnel: false,
        stack: c.stack,
        was_mpls: false,
        conntracked: c.conntracked,
        mirrored: c.mirrors,
        hash: None,
        steps: left,
        action_set: c.action_set,
        userdata: Vec::new(),
    })
}

impl Pipeline {
    /// Continues a frozen pipeline, with a packet that a controller hands back. `None`: its bridge is gone.
    pub(crate) fn resume(
        &self,
        frozen: &Frozen,
        key: &FlowKey,
        packet: &Packet,
        now_ms: u64,
        out: &mut Translation,
    ) -> Option<Outcome> {
        let packet = PacketOut {
            bridge: frozen.bridge,
            key,
            actions: &[],
            packet,
            now_ms,
            version: None,
        };
        let resumed = true;
        self.inject(&packet, Start::Thaw { frozen, resumed }, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_flow::{FieldId, Subfield};
    use heddle_openflow::action::ControllerAction;
    use heddle_openflow::message::StackValue;
    use heddle_openflow::{Action, Instruction, Port, Version, decode_continuation, encode_continuation};

    fn output(port: u32) -> Left {
        Left::Action(Action::Output {
            port: Port(port),
            max_len: 0,
        })
    }

    #[test]
    fn what_a_controller_hands_back_is_what_it_got() {
        let frozen = Frozen {
            bridge: 7,
            table: 0,
            metadata: FlowKey::default(),
            own_tunnel: false,
            stack: vec![
                StackValue::from_bytes(&[0xab, 0xcd]),
                StackValue::from_bytes(&[5; 124]),
            ],
            was_mpls: false,
            conntracked: true,
            mirrored: 5,
            hash: None,
            steps: vec![
                Left::Unroll { table: 3, cookie: 9 },
                output(2),
                Left::Instruction(Instruction::Clear),
                Left::Unroll { table: 3, cookie: 9 },
                output(4),
                Left::Unroll { table: 4, cookie: 0 },
                Left::Action(Action::Controller(ControllerAction {
                    pause: true,
                    ..ControllerAction::default()
                })),
                Left::Action(Action::StackPop(Subfield {
                    field: FieldId::Reg0,
                    ofs: 0,
                    n_bits: 32,
                })),
            ],
            action_set: vec![Action::Output {
                port: Port(5),
                max_len: 0,
            }],
            userdata: Vec::new(),
        };
        for version in [Version::V10, Version::V13, Version::V15] {
            let bytes = encode_continuation(version, &continuation_of(&frozen)).unwrap();
            let back = decode_continuation(version, &bytes).unwrap();
            let back = frozen_of(back, &FlowKey::default()).unwrap();
            assert_eq!(back, frozen, "{version:?}");
        }
    }
}
