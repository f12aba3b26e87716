//! Emitting datapath actions, and their size for a kernel datapath, which bounds a translation's output.

use super::ctx::Ctx;
use heddle_conntrack::{CtAction, NatHow, NatRange};
use heddle_datapath_api::Action;
use std::net::IpAddr;

/// Size of a netlink attribute with `payload` bytes, in bytes.
const fn attr(payload: usize) -> usize {
    4 + payload.next_multiple_of(4)
}

/// Size of an action as a list of netlink attributes, in bytes; masked sets have value and mask.
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
        Action::SetNdExt { .. } => attr(attr(2 * 8)),
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
        Action::CtClear => attr(0),
        Action::Ct(ct) => attr(ct_size(ct)),
        Action::Clone(list) => attr(list.iter().map(size).sum()),
        #[allow(unreachable_patterns)] // actions that the datapath has learned since
        _ => attr(64),
    }
}

/// Size of the attributes of an action `ct`, in bytes.
fn ct_size(ct: &CtAction) -> usize {
    let CtAction {
        commit,
        force: _,
        zone: _,
        mark,
        label,
        helper,
        timeout,
        nat,
    } = ct;
    let text = |len: usize| attr(len + 1);
    attr(2)
        + if *commit { attr(0) } else { 0 }
        + mark.map_or(0, |_| attr(8))
        + label.map_or(0, |_| attr(32))
        + helper.map_or(0, |h| text(h.name().len()))
        + timeout.as_ref().map_or(0, |t| text(t.len()))
        + nat.map_or(0, |n| attr(n.new.map_or(0, |r| nat_size(&r))))
}

fn nat_size(range: &NatRange) -> usize {
    let NatRange {
        end: _,
        addresses,
        ports,
        how,
        persistent,
    } = range;
    let address = |a: IpAddr| attr(if a.is_ipv4() { 4 } else { 16 });
    attr(0)
        + addresses.map_or(0, |(a, b)| address(a) + if a == b { 0 } else { address(b) })
        + ports.map_or(0, |(a, b)| attr(2) + if a == b { 0 } else { attr(2) })
        + if *how == NatHow::Any { 0 } else { attr(0) }
        + if *persistent { attr(0) } else { 0 }
}

impl Ctx<'_> {
    /// Adds an action to the translation.
    pub(super) fn emit(&mut self, action: Action) {
        self.out_bytes += size(&action);
        self.out.actions.push(action);
    }
}
