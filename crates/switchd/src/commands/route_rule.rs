//! `ovs/route/rule/*`: rules that choose the routing table by the source address.
//!
//! Rules of the system are shown and cannot be changed here.

use std::fmt::Write as _;
use std::net::IpAddr;

use heddle_tunnel::Routes;
use heddle_tunnel::routes::{Action, DEFAULT, LOCAL, MAIN, Prefix, Rule};
use serde_json::{Value, json};

use super::Commands;
use super::route::{network, routes, value};
use heddle_daemon::unixctl::Reply;

/// Tables that have names.
const NAMES: [(u32, &str); 3] = [(LOCAL, "local"), (MAIN, "main"), (DEFAULT, "default")];

pub(super) fn register(c: &Commands<'_>) {
    let usage = "[-6] [not] from=all|ip/plen [prio=num] table=local|main|default|num";
    c.add("ovs/route/rule/add", usage, (2, 5), |s, args| {
        add(routes(s), args)
    });
    c.add("ovs/route/rule/del", usage, (2, 5), |s, args| {
        del(routes(s), args)
    });
    c.add("ovs/route/rule/show", "[-6]", (0, 1), |s, args| {
        Ok(of_family(routes(s), args).iter().map(line).collect())
    });
    c.add_json("ovs/route/rule/show", |s, args| {
        Ok(of_family(routes(s), args).iter().map(rule_json).collect())
    });
}

/// The rule that a command names, and its `prio`.
#[derive(PartialEq, Debug)]
struct Wanted(Rule, Option<u32>);

impl Wanted {
    fn parse(args: &[&str]) -> Result<Wanted, &'static str> {
        const TOO_FEW: &str = "Not enough arguments";
        let mut args = args.iter().copied().peekable();
        let v6 = args.next_if_eq(&"-6").is_some();
        let invert = args.next_if_eq(&"not").is_some();
        let from = args.next().and_then(|arg| value(arg, "from"));
        let from = match from.ok_or("Invalid 'from' parameter")? {
            "all" => None,
            text => {
                let (addr, len) = network(text).ok_or("Invalid from=ip/plen")?;
                Some((addr, Prefix::new(addr, len).ok_or("Invalid from=ip/plen")?))
            }
        };
        let prio = args
            .next_if(|arg| arg.starts_with("prio="))
            .and_then(|arg| value(arg, "prio"));
        let prio = match prio {
            None => None,
            // 0 means no priority, as in Open vSwitch.
            Some(text) => Some(text.parse().map_err(|_| "Invalid 'prio' format")?).filter(|n| *n != 0),
        };
        let table = value(args.next().ok_or(TOO_FEW)?, "table").and_then(table_number);
        let table = table.ok_or("Invalid 'table' format")?;
        if args.next().is_some() {
            return Err("Too many arguments");
        }
        let v6 = from.map_or(v6, |(addr, _): (IpAddr, _)| addr.is_ipv6());
        let rule = Rule {
            invert,
            user: true,
            // A prefix of length 0 means all addresses.
            from: from.map(|(_, prefix)| prefix).filter(|p| p.len() > 0),
            ..Rule::any(v6, 0, table)
        };
        Ok(Wanted(rule, prio))
    }
}

fn table_number(text: &str) -> Option<u32> {
    let named = NAMES.iter().find(|(_, name)| *name == text);
    named.map_or_else(|| text.parse().ok(), |(number, _)| Some(*number))
}

fn add(routes: &Routes, args: &[&str]) -> Reply {
    let Wanted(rule, priority) = Wanted::parse(args)?;
    if routes.rules().iter().filter(|r| r.user).count() >= MAX_RULES {
        return Err(format!(
            "{MAX_RULES} rules are the maximum: remove some (ovs/route/rule/del)"
        ));
    }
    routes.add_rule(rule, priority);
    Ok("OK".into())
}

/// Maximum number of rules by hand: each change copies and sorts all rules.
const MAX_RULES: usize = 32_768;

fn del(routes: &Routes, args: &[&str]) -> Reply {
    let Wanted(rule, priority) = Wanted::parse(args)?;
    match routes.del_rule(&rule, priority) {
        true => Ok("OK".into()),
        false => Err("Failed to delete router rule: 2 (No such file or directory)".into()),
    }
}

fn of_family(routes: &Routes, args: &[&str]) -> Vec<Rule> {
    let v6 = args.contains(&"-6");
    routes.rules().into_iter().filter(|r| r.v6 == v6).collect()
}

fn from_text(rule: &Rule) -> String {
    match rule.from {
        None => "all".to_owned(),
        Some(p) if p == Prefix::host(p.addr()) => p.addr().to_string(),
        Some(p) => p.to_string(),
    }
}

/// A rule in the words of ip-rule(8).
fn line(rule: &Rule) -> String {
    let origin = if rule.user { "User" } else { "Cached" };
    let not = if rule.invert { "not " } else { "" };
    let mut out = format!("{origin}: {}: {not}from {}", rule.priority, from_text(rule));
    // Writing to a string cannot fail.
    if let Some(to) = rule.to {
        let _ = write!(out, " to {to}");
    }
    if rule.mark_mask != 0 {
        let _ = write!(out, " fwmark {:#x}/{:#x}", rule.mark, rule.mark_mask);
    }
    if rule.elsewhere {
        out.push_str(" (not for tunnels)");
    }
    let _ = match rule.action {
        Action::Table { table, suppress_len } => {
            let name = NAMES.iter().find(|(number, _)| *number == table);
            let _ = match name {
                Some((_, name)) => write!(out, " lookup {name}"),
                None => write!(out, " lookup {table}"),
            };
            match suppress_len {
                Some(len) => write!(out, " suppress_prefixlength {len}"),
                None => Ok(()),
            }
        }
        Action::Goto(priority) => write!(out, " goto {priority}"),
        Action::Nop => write!(out, " nop"),
        Action::Refuse => write!(out, " unreachable"),
    };
    out.push('\n');
    out
}

fn rule_json(rule: &Rule) -> Value {
    let from = rule
        .from
        .map_or_else(|| "all".to_owned(), |p| p.addr().to_string());
    let mut shown = json!({
        "priority": rule.priority,
        "user": rule.user,
        "invert": rule.invert,
        "ipv4": !rule.v6,
        "src-prefix": rule.from.map_or(0, |p| p.len()),
        "from": from,
    });
    if let Some(table) = rule.table() {
        shown["lookup"] = table.into();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_shown() {
        let routes = Routes::new(Box::new(|_| {}));
        let run = |f: fn(&Routes, &[&str]) -> Reply, text: &str| {
            f(&routes, &text.split_whitespace().collect::<Vec<_>>())
        };
        let shown = |family: &[&str]| of_family(&routes, family).iter().map(line).collect::<String>();
        for rule in [
            "from=192.0.2.10/32 table=11",
            "not from=10.0.0.0/8 table=main",
            "-6 from=all prio=7 table=12",
            "from=2001:db8::/32 prio=8 table=4294967295",
        ] {
            assert_eq!(run(add, rule), Ok("OK".into()), "{rule}");
        }
        assert_eq!(
            shown(&[]),
            "Cached: 0: from all lookup local\nUser: 32764: not from 10.0.0.0/8 lookup main\n\
             User: 32765: from 192.0.2.10 lookup 11\nCached: 32766: from all lookup main\n\
             Cached: 32767: from all lookup default\n"
        );
        assert_eq!(
            shown(&["-6"]),
            "Cached: 0: from all lookup local\nUser: 7: from all lookup 12\n\
             User: 8: from 2001:db8::/32 lookup 4294967295\nCached: 32766: from all lookup main\n"
        );
        for (wrong, why) in [
            ("table=1 from=all", "Invalid 'from' parameter"),
            ("from=10.0.0.0/33 table=1", "Invalid from=ip/plen"),
            ("from=all prio=1", "Not enough arguments"),
            ("from=all prio=x table=1", "Invalid 'prio' format"),
            ("from=all table=x", "Invalid 'table' format"),
            ("from=all table=1 table=2", "Too many arguments"),
        ] {
            assert_eq!(run(add, wrong), Err(why.into()), "{wrong}");
        }
        assert!(run(del, "from=all table=main").is_err(), "a rule of the system");
        assert!(
            run(del, "from=192.0.2.10 prio=1 table=11").is_err(),
            "another priority"
        );
        assert_eq!(run(del, "from=192.0.2.10 table=11"), Ok("OK".into()));
        assert!(!shown(&[]).contains("192.0.2.10"));
        let six = of_family(&routes, &["-6"]);
        assert_eq!(
            rule_json(&six[2]),
            json!({"priority": 8, "user": true, "invert": false, "ipv4": false, "src-prefix": 32,
                   "from": "2001:db8::", "lookup": 4_294_967_295_u32})
        );
    }
}
