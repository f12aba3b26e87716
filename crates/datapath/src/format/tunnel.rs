//! Actions that put packets into tunnels and take them out.

use super::PortNames;
use crate::action::Action;
use std::fmt::Write;

pub(super) fn action(s: &mut String, a: &Action, _names: PortNames<'_>) {
    match a {
        Action::TunnelPop(port) => _ = write!(s, "tnl_pop({})", port.0),
        Action::TunnelPush(_) => s.push_str("tnl_push"),
        _ => s.push_str("set(tunnel)"),
    }
}
