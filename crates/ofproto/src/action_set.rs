//! The order of an action set (OpenFlow 1.1 and later): of a packet, and of a group's buckets.

use heddle_openflow::Action;

/// Position of an action in the set's order. Each position has one action: the last one that was written.
fn slot(action: &Action) -> Option<usize> {
    Some(match action {
        Action::PopVlan | Action::StripVlan => 0,
        Action::PopMpls(_) => 1,
        Action::Decap(_) => 2,
        Action::Encap(_) => 3,
        Action::PushMpls(_) => 4,
        Action::PushVlan(_) => 5,
        Action::DecTtl(_) => 6,
        Action::DecMplsTtl => 7,
        Action::DecNshTtl => 8,
        _ => return None,
    })
}
const N_SLOTS: usize = 9;

/// The action that ends the set: without one, the set does nothing. Higher ones win, later ones among equals.
fn finality(action: &Action) -> Option<u8> {
    match action {
        Action::Ct(_) => Some(0),
        Action::CtClear => Some(1),
        Action::Resubmit { .. } => Some(2),
        Action::Output { .. } => Some(3),
        Action::Group(_) => Some(4),
        _ => None,
    }
}

/// Whether the action runs each time that it was written, in the order of writing.
fn is_set_or_move(action: &Action) -> bool {
    matches!(
        action,
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
            | Action::SetVlanVid { .. }
    )
}

/// The set as a list in the order of execution; empty if no action ends it.
pub(crate) fn as_list(set: &[Action]) -> Vec<Action> {
    let mut slots: [Option<&Action>; N_SLOTS] = [None; N_SLOTS];
    let mut last: Option<(u8, &Action)> = None;
    for a in set {
        if let Some(s) = slot(a) {
            slots[s] = Some(a);
        } else if let Some(f) = finality(a)
            && last.is_none_or(|(best, _)| f >= best)
        {
            last = Some((f, a));
        }
    }
    let Some((_, last)) = last else { return Vec::new() };
    let sets = set.iter().filter(|a| is_set_or_move(a));
    slots
        .into_iter()
        .flatten()
        .chain(sets)
        .chain([last])
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
