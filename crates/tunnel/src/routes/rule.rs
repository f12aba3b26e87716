//! Which tables a lookup asks, and in which order (ip-rule(8)).

use super::Query;
use super::entry::{DEFAULT, LOCAL, MAIN};
use super::prefix::Prefix;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a rule says to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask a table.
    Table {
        /// Which.
        table: u32,
        /// Its answer counts only if the prefix is longer than that.
        suppress_len: Option<u8>,
    },
    /// Go on with the rules from this priority on.
    Goto(u32),
    /// Nothing.
    Nop,
    /// No packets are sent.
    Refuse,
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The least is looked at first.
    pub priority: u32,
    /// For IPv6.
    pub v6: bool,
    /// It holds for the packets that it would not hold for without this.
    pub invert: bool,
    /// Given by hand, not by the system.
    pub user: bool,
    /// The source begins so.
    pub from: Option<Prefix>,
    /// The destination begins so.
    pub to: Option<Prefix>,
    /// The mark, in the bits of `mark_mask`, is this.
    pub mark: u32,
    /// See `mark`.
    pub mark_mask: u32,
    /// It asks for something that no packet of the switch is: forwarded by the system, of some user, ...
    pub elsewhere: bool,
    /// What to do.
    pub action: Action,
}

impl Rule {
    /// A rule that holds for all packets of a family.
    pub fn any(v6: bool, priority: u32, table: u32) -> Rule {
        Rule {
            priority,
            v6,
            invert: false,
            user: false,
            from: None,
            to: None,
            mark: 0,
            mark_mask: 0,
            elsewhere: false,
            action: Action::Table {
                table,
                suppress_len: None,
            },
        }
    }
    /// The rules of a system that has made none of its own.
    pub fn standard() -> Vec<Rule> {
        vec![
            Rule::any(false, 0, LOCAL),
            Rule::any(false, 32766, MAIN),
            Rule::any(false, 32767, DEFAULT),
            Rule::any(true, 0, LOCAL),
            Rule::any(true, 32766, MAIN),
        ]
    }
    /// Whether it holds for such packets.
    pub(super) fn holds(&self, q: &Query) -> bool {
        let unspecified = || match q.dst {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let src = q.src.unwrap_or_else(unspecified);
        let holds = !self.elsewhere
            && self.from.is_none_or(|p| p.contains(src))
            && self.to.is_none_or(|p| p.contains(q.dst))
            && (q.mark ^ self.mark) & self.mark_mask == 0;
        self.v6 == q.dst.is_ipv6() && holds != self.invert
    }
}
