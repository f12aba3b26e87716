//! The order of an action set (OpenFlow 1.1 and later): of a packet, and of a group's buckets.

use heddle_openflow::Action;

/// Position of an action in the set's order.
enum Position {
    /// A position that has one action: the last one that was written. Lower positions run first.
    One(usize),
    /// After those: each action that was written, in the order of writing.
    Each,
    /// The action that ends the set: without one, the set does nothing. Higher ones win, later ones among
    /// equals.
    End(u8),
    /// A set must not hold the action (`heddle_openflow` refuses it).
    Refused,
}
const N_SINGLE: usize = 9;

fn position(action: &Action) -> Position {
    match action {
        Action::PopVlan | Action::StripVlan => Position::One(0),
        Action::PopMpls(_) => Position::One(1),
        Action::Decap(_) => Position::One(2),
        Action::Encap(_) => Position::One(3),
        Action::PushMpls(_) => Position::One(4),
        Action::PushVlan(_) => Position::One(5),
        Action::DecTtl(_) => Position::One(6),
        Action::DecMplsTtl => Position::One(7),
        Action::DecNshTtl => Position::One(8),
        Action::SetField { .. }
        | Action::SetTunMetadata(_)
        | Action::Load { .. }
        | Action::Move { .. }
        | Action::SetEthDst(_)
        | Action::SetEthSrc(_)
        | Action::SetIpDscp(_)
        | Action::SetIpEcn(_)
        | Action::SetIpTtl(_)
        | Action::SetIpv4Dst(_)
        | Action::SetIpv4Src(_)
        | Action::SetL4Dst(_)
        | Action::SetL4Src(_)
        | Action::SetMplsLabel(_)
        | Action::SetMplsTc(_)
        | Action::SetMplsTtl(_)
        | Action::SetQueue(_)
        | Action::SetTunnel(_)
        | Action::SetVlanPcp { .. }
        | Action::SetVlanVid { .. } => Position::Each,
        Action::Ct(_) => Position::End(0),
        Action::CtClear => Position::End(1),
        Action::Resubmit { .. } => Position::End(2),
        Action::Output { .. } => Position::End(3),
        Action::Group(_) => Position::End(4),
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
        | Action::DebugSlow => Position::Refused,
    }
}

/// The set as a list in the order of execution; empty if no action ends it.
pub(crate) fn as_list(set: &[Action]) -> Vec<Action> {
    let mut single: [Option<&Action>; N_SINGLE] = [None; N_SINGLE];
    let mut end: Option<(u8, &Action)> = None;
    for a in set {
        match position(a) {
            Position::One(at) => single[at] = Some(a),
            Position::End(rank) if end.is_none_or(|(best, _)| rank >= best) => end = Some((rank, a)),
            Position::End(_) | Position::Each | Position::Refused => {}
        }
    }
    let Some((_, end)) = end else { return Vec::new() };
    let each = set.iter().filter(|a| matches!(position(a), Position::Each));
    single
        .into_iter()
        .flatten()
        .chain(each)
        .chain([end])
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_openflow::Port;

    #[test]
    fn order_of_execution() {
        let out = |n| Action::Output {
            port: Port(n),
            max_len: 0,
        };
        let set = [
            out(1),
            Action::SetQueue(7),
            Action::PushVlan(0x8100),
            out(2),
            Action::PopVlan,
        ];
        assert_eq!(
            as_list(&set),
            [
                Action::PopVlan,
                Action::PushVlan(0x8100),
                Action::SetQueue(7),
                out(2)
            ]
        );
        assert_eq!(as_list(&set[1..3]), [], "nothing ends it");
        assert_eq!(as_list(&[Action::Group(5), out(1)]), [Action::Group(5)]);
    }
}
