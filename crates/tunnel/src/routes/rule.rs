//! Policy rules: the tables that a lookup uses, and their order (ip-rule(8)).

use super::Query;
use super::entry::{DEFAULT, LOCAL, MAIN};
use super::prefix::Prefix;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The action of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Look the destination up in a table.
    Table {
        /// Table number.
        table: u32,
        /// Routes with a prefix of at most this length are ignored.
        suppress_len: Option<u8>,
    },
    /// Continue with the rules from this priority on.
    Goto(u32),
    /// Continue with the next rule.
    Nop,
    /// No route: packets are not sent.
    Refuse,
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The rule with the lowest priority comes first.
    pub priority: u32,
    /// For IPv6, otherwise for IPv4.
    pub v6: bool,
    /// The rule holds for packets that do not match, in place of those that do.
    pub invert: bool,
    /// Set by hand, not by the system.
    pub user: bool,
    /// Prefix of the source.
    pub from: Option<Prefix>,
    /// Prefix of the destination.
    pub to: Option<Prefix>,
    /// The mark, under `mark_mask`.
    pub mark: u32,
    /// Bits of the mark that count.
    pub mark_mask: u32,
    /// Has a condition that no tunnel's packet meets: forwarded by the kernel, of some user, ...
    pub elsewhere: bool,
    /// Action for packets for which the rule holds.
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
    /// The rules of a system without rules of its own.
    pub fn standard() -> Vec<Rule> {
        vec![
            Rule::any(false, 0, LOCAL),
            Rule::any(false, 32766, MAIN),
            Rule::any(false, 32767, DEFAULT),
            Rule::any(true, 0, LOCAL),
            Rule::any(true, 32766, MAIN),
        ]
    }
    /// Whether the rule holds for such packets.
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
