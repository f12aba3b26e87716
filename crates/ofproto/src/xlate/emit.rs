//! Emitting datapath actions, and how large they would be for a kernel (which bounds a translation's output).

use super::ctx::Ctx;
use heddle_datapath::action::Action;

/// Bytes of a netlink attribute with `payload` bytes.
const fn attr(payload: usize) -> usize {
    4 + payload.next_multiple_of(4)
}

/// Bytes of an action as a list of netlink attributes, masked sets with value and mask.
fn size(action: &Action) -> usize {
    match action {
        Action::Output(_) => attr(4),
        Action::Userspace(_) => attr(attr(4) + attr(72)),
        Action::SetEth { .. } => attr(attr(2 * 12)),
        Action::SetIpv4 { .. } => attr(attr(2 * 12)),
        Action::SetIpv6 { .. } => attr(attr(2 * 40)),
        Action::SetL4 { .. } => attr(attr(2 * 4)),
        Action::SetIcmp { .. } => attr(attr(2 * 2)),
        Action::SetArp { .. } => attr(attr(2 * 24)),
        Action::SetNd { .. } => attr(attr(2 * 28)),
        Action::SetPriority(_) | Action::SetMark(_) => attr(attr(2 * 4)),
        Action::SetMpls(_) => attr(attr(4)),
        Action::PushVlan { .. } => attr(4),
        Action::PopVlan => attr(0),
        Action::PushMpls { .. } => attr(8),
        Action::PopMpls { .. } => attr(2),
        Action::AddMpls { .. } => attr(12),
        Action::PushEth { .. } => attr(12),
        Action::PopEth | Action::PopNsh => attr(0),
        Action::PushNsh(header) => attr(attr(attr(8) + attr(header.options.len().max(16)))),
        Action::SetNsh(_) => attr(attr(attr(2 * 8) + attr(2 * 16))),
        Action::Trunc(_) | Action::Drop(_) => attr(4),
        Action::Clone(list) => attr(list.iter().map(size).sum()),
        #[allow(unreachable_patterns)] // actions that the datapath has learned since
        _ => attr(64),
    }
}

impl Ctx<'_> {
    /// Adds an action to the answer.
    pub(super) fn emit(&mut self, action: Action) {
        self.out_bytes += size(&action);
        self.out.actions.push(action);
    }
}
