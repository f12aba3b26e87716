//! Values of bonds, LACP and multicast snooping that make no sense: one table. The switch uses Open vSwitch's
//! value in place of each, and the log names both, once. Open vSwitch is silent about them.

use heddle_ovsdb::{Db, Row};

use super::{Smap, text, value};

/// The values that make sense, and the value in place of others.
#[derive(Clone, Copy)]
enum Expected {
    /// A whole number of this range, or 0; others are the default.
    Number(i64, i64, &'static str),
    /// The same, but numbers out of the range become its nearest end.
    Clamped(i64, i64, &'static str),
    /// `true` or `false`; others are `false`.
    Switch,
    /// One of these words; others are the first one.
    Word(&'static [&'static str]),
}

use Expected::{Clamped, Number, Switch, Word};

/// The end of a range without one.
const NO_END: i64 = i64::MAX;

/// Table, key of `other_config`, expected values.
#[rustfmt::skip]
const KEYS: &[(&str, &str, Expected)] = &[
    ("Bridge", "mcast-snooping-aging-time", Clamped(15, 3600, "300")),
    ("Bridge", "mcast-snooping-table-size", Clamped(10, 1_000_000, "2048")),
    ("Bridge", "mcast-snooping-disable-flood-unregistered", Switch),
    ("Port", "mcast-snooping-flood", Switch),
    ("Port", "mcast-snooping-flood-reports", Switch),
    ("Port", "bond-rebalance-interval", Clamped(1000, NO_END, "10000")),
    ("Port", "bond-hash-basis", Number(i32::MIN as i64, i32::MAX as i64, "0")),
    ("Port", "lacp-system-priority", Number(1, 65535, "the default")),
    ("Port", "lacp-time", Word(&["slow", "fast"])),
    ("Port", "lacp-fallback-ab", Switch),
    ("Port", "all-members-active", Switch),
    ("Port", "lb-output-action", Switch),
    ("Interface", "lacp-port-id", Number(1, 65535, "the default")),
    ("Interface", "lacp-port-priority", Number(1, 65535, "65535")),
    ("Interface", "lacp-aggregation-key", Number(1, 65535, "the default")),
];
/// Columns of `Port` that are times, ms.
const DELAYS: [&str; 2] = ["bond_updelay", "bond_downdelay"];

impl Expected {
    /// The expected values and the value in use, if `text` makes no sense.
    fn objection(self, text: &str) -> Option<(String, String)> {
        let number = text.trim().parse::<i64>();
        match self {
            Number(from, to, _) | Clamped(from, to, _)
                if number.as_ref().is_ok_and(|n| *n == 0 || (from..=to).contains(n)) =>
            {
                None
            }
            Number(from, to, default) => Some((range(from, to), default.to_owned())),
            Clamped(from, to, default) => {
                let used = number.map_or(default.to_owned(), |n| match n {
                    // Sizes and times below zero are not in the switch's reach.
                    n if n < 0 && to != NO_END => default.to_owned(),
                    n => n.clamp(from, to).to_string(),
                });
                Some((range(from, to), used))
            }
            Switch => {
                let fits = ["true", "false"].iter().any(|w| text.eq_ignore_ascii_case(w));
                (!fits).then(|| ("true or false".to_owned(), "false".to_owned()))
            }
            Word(words) => {
                let fits = words.iter().any(|w| text.eq_ignore_ascii_case(w));
                let default = words.first().copied().unwrap_or_default();
                (!fits).then(|| (words.join(" or "), default.to_owned()))
            }
        }
    }
}

fn range(from: i64, to: i64) -> String {
    match to {
        NO_END => format!("a number of at least {from}, or 0"),
        to => format!("a number from {from} to {to}"),
    }
}

/// A line for each value of the configuration that makes no sense.
pub(super) fn list(db: &Db, top: &Row) -> Vec<String> {
    let mut lines = Vec::new();
    for bridge in db.referenced(top, "bridges", "Bridge") {
        of_row("Bridge", bridge, &mut lines);
        for port in db.referenced(bridge, "ports", "Port") {
            of_row("Port", port, &mut lines);
            for column in DELAYS {
                let delay_ms = value(port.int(column));
                if delay_ms < 0 {
                    let name = text(port, "name");
                    lines.push(format!("port {name}: {column}={delay_ms} is below 0: 0 is used"));
                }
            }
            for interface in db.referenced(port, "interfaces", "Interface") {
                of_row("Interface", interface, &mut lines);
            }
        }
    }
    lines
}

fn of_row(table: &str, row: &Row, lines: &mut Vec<String>) {
    let config = Smap(value(row.map_str("other_config")));
    for (_, key, expected) in KEYS.iter().filter(|(t, ..)| *t == table) {
        let Some(text_of_key) = config.get(key) else {
            continue;
        };
        if let Some((expected, used)) = expected.objection(text_of_key) {
            let (table, name) = (table.to_ascii_lowercase(), text(row, "name"));
            lines.push(format!(
                "{table} {name}: other_config:{key}={text_of_key} is not {expected}: {used} is used"
            ));
        }
    }
}

/// Logs each line that is not among `before`.
pub(in crate::reconcile) fn log_bad_values(before: &[String], now: &[String]) {
    for line in now.iter().filter(|line| !before.contains(line)) {
        log::warn!(target: "bridge", "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(expected: Expected, text: &str) -> Option<String> {
        expected.objection(text).map(|(_, used)| used)
    }

    #[test]
    fn values_that_make_sense_are_not_named() {
        for (expected, text) in [
            (Clamped(15, 3600, "300"), "15"),
            (Clamped(15, 3600, "300"), "0"),
            (Clamped(1000, NO_END, "10000"), "999999999999"),
            (Number(-5, 5, "0"), " -5"),
            (Switch, "TRUE"),
            (Word(&["slow", "fast"]), "Fast"),
        ] {
            assert_eq!(used(expected, text), None, "{text}");
        }
    }

    #[test]
    fn other_values_are_named_with_the_value_in_use() {
        for (expected, text, wanted) in [
            (Clamped(15, 3600, "300"), "soon", "300"),
            (Clamped(15, 3600, "300"), "14", "15"),
            (Clamped(15, 3600, "300"), "9999", "3600"),
            (Clamped(15, 3600, "300"), "-7", "300"),
            (Clamped(1000, NO_END, "10000"), "-5", "1000"),
            (Number(1, 65535, "the default"), "65536", "the default"),
            (Switch, "maybe", "false"),
            (Word(&["slow", "fast"]), "later", "slow"),
        ] {
            assert_eq!(used(expected, text).as_deref(), Some(wanted), "{text}");
        }
        let (expected, _) = Clamped(1000, NO_END, "10000").objection("5").expect("too small");
        assert_eq!(expected, "a number of at least 1000, or 0");
    }
}
