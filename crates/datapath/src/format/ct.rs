//! Actions that track connections.

use crate::action::Action;

pub(super) fn action(s: &mut String, a: &Action) {
    match a {
        Action::CtClear => s.push_str("ct_clear"),
        _ => s.push_str("ct"),
    }
}
