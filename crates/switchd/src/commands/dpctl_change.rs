//! `dpctl/*` that change a datapath without the database, or read the arguments of such commands.
//!
//! The database alone decides which datapaths and ports there are, and the tables decide the cached flows.
//! The next pass of the revalidator would remove an entry that another program wrote. These commands check
//! their arguments, as Open vSwitch's do, and then reply that they are not supported.

use heddle_datapath_api::{Action, PortNo, format_actions, format_whole};
use heddle_flow::odp;

use super::dpctl::{self, EINVAL, ENODEV, ENOENT, failed};
use super::{Commands, flows};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

const EBUSY: &str = "Device or resource busy";
const EOPNOTSUPP: &str = "Operation not supported";

pub(super) fn register(c: &Commands<'_>) {
    const ANY: usize = usize::MAX;
    c.add("dpctl/add-dp", "dp [iface...]", (1, ANY), |s, args| {
        let why = dpctl::named(s, first(args)).map_or(EOPNOTSUPP, |_| EBUSY);
        Err(failed(s, "add_dp", Some(why)))
    });
    c.add("dpctl/del-dp", "dp", (1, 1), |s, args| {
        open(s, args)?;
        Err(failed(s, "del_dp", Some(EOPNOTSUPP)))
    });
    c.add("dpctl/add-if", "dp iface...", (2, ANY), |s, args| {
        open(s, args)?;
        refuse_each(s, args, |name, dp| format!("adding {name} to {dp} failed"))
    });
    c.add("dpctl/set-if", "dp iface...", (2, ANY), |s, args| {
        open(s, args)?;
        refuse_each(s, args, |name, _| format!("{name}: Error updating configuration"))
    });
    c.add("dpctl/del-if", "dp iface...", (2, ANY), |s, args| {
        open(s, args)?;
        refuse_each(s, args, |name, dp| {
            format!("deleting port {name} from {dp} failed")
        })
    });
    c.add("dpctl/cache-get-size", "[dp]", (0, 1), |s, args| {
        match args.first() {
            // The caches have no sizes that can be chosen, as in Open vSwitch's userspace datapath.
            None => Ok(dpctl::types(s)
                .iter()
                .map(|t| crate::inventory::datapath_name(t) + ":\n")
                .collect()),
            Some(name) => match dpctl::named(s, name) {
                Some(t) => Ok(crate::inventory::datapath_name(&t) + ":\n"),
                None => Err(failed(
                    s,
                    &format!("Opening datapath {name} failed"),
                    Some(ENODEV),
                )),
            },
        }
    });
    c.add("dpctl/cache-set-size", "dp cache <size>", (3, 3), |s, args| {
        let name = first(args);
        match dpctl::named(s, name) {
            Some(_) => Err(failed(s, "Setting cache size failed", Some(EOPNOTSUPP))),
            None => Err(failed(
                s,
                &format!("Opening datapath {name} failed"),
                Some(ENODEV),
            )),
        }
    });
    for name in ["dpctl/add-flow", "dpctl/mod-flow"] {
        c.add(name, "[dp] flow actions", (2, 3), |s, args| {
            let (_, rest) = dpctl::one(s, args, 3)?;
            let [flow, actions] = rest else {
                return Err(failed(s, "a flow and actions are needed", Some(EINVAL)));
            };
            parse_flow(s, flow, "parsing flow key")?;
            parse_actions(s, actions).ok_or_else(|| failed(s, "parsing actions", Some(EINVAL)))?;
            Err(failed(s, "updating flow table", Some(EOPNOTSUPP)))
        });
    }
    c.add("dpctl/del-flow", "[dp] flow", (1, 2), |s, args| {
        let (_, rest) = dpctl::one(s, args, 2)?;
        parse_flow(s, first(rest), "parsing flow key")?;
        Err(failed(s, "deleting flow", Some(EOPNOTSUPP)))
    });
    for name in ["dpctl/add-flows", "dpctl/mod-flows"] {
        c.add(name, "[dp] file", (1, 2), |s, args| {
            let (_, rest) = dpctl::one(s, args, 2)?;
            let file = first(rest);
            match std::fs::metadata(file) {
                Err(_) => Ok(failed(
                    s,
                    &format!("Opening file \"{file}\" failed"),
                    Some(ENOENT),
                )),
                Ok(_) => Err(failed(s, "updating flow table", Some(EOPNOTSUPP))),
            }
        });
    }
    c.add("dpctl/parse-actions", "actions", (1, ANY), |s, args| {
        let mut out = String::new();
        for text in args {
            let actions = parse_actions(s, text).ok_or_else(|| failed(s, UNREADABLE, Some(EINVAL)))?;
            out += &format_actions(&actions, None);
            out.push('\n');
        }
        Ok(out)
    });
    c.add("dpctl/normalize-actions", "actions", (2, 3), |s, args| {
        let [flow, text] = args else {
            return Err(failed(s, "a flow and actions are needed", Some(EINVAL)));
        };
        let key = parse_flow(s, flow, "odp_flow_key_from_string")?;
        let head = format!("input flow: {}\n", as_given(&format_whole(&key), flow));
        let Some(actions) = parse_actions(s, text) else {
            return Err(head + &failed(s, UNREADABLE, Some(EINVAL)));
        };
        Ok(format!(
            "{head}no vlan: no mpls: {}\n",
            format_actions(&actions, None)
        ))
    });
    let registry = c.registry.clone();
    c.add("dpctl/list-commands", "", (0, 0), move |_, _| {
        Ok(list(&registry.list()))
    });
}

/// Open vSwitch's own order.
const ORDER: &[&str] = &[
    "add-dp",
    "del-dp",
    "add-if",
    "del-if",
    "set-if",
    "dump-dps",
    "show",
    "dump-flows",
    "add-flow",
    "mod-flow",
    "get-flow",
    "del-flow",
    "add-flows",
    "mod-flows",
    "del-flows",
    "offload-stats-show",
    "dump-conntrack",
    "flush-conntrack",
    "cache-get-size",
    "cache-set-size",
    "ct-stats-show",
    "ct-bkts",
    "ct-set-maxconns",
    "ct-get-maxconns",
    "ct-get-nconns",
    "ct-enable-tcp-seq-chk",
    "ct-disable-tcp-seq-chk",
    "ct-get-tcp-seq-chk",
    "ct-set-limits",
    "ct-del-limits",
    "ct-get-limits",
    "ipf-set-enabled",
    "ipf-set-disabled",
    "ipf-set-min-frag",
    "ipf-set-max-nfrags",
    "ipf-get-status",
    "list-commands",
    "parse-actions",
    "normalize-actions",
];

/// Usage lines of the `dpctl` commands: first those in [`ORDER`], then the rest, in Open vSwitch's columns.
fn list(all: &str) -> String {
    let mut lines = all.lines();
    let mut out = format!("{}\n", lines.next().unwrap_or_default());
    let mut own: Vec<(&str, &str)> = lines
        .filter_map(|l| l.strip_prefix("  dpctl/"))
        .map(|l| l.split_once(' ').unwrap_or((l, "")))
        .collect();
    own.sort_by_key(|(name, _)| ORDER.iter().position(|o| o == name).unwrap_or(ORDER.len()));
    for (name, usage) in own {
        out += &format!("  dpctl/{name:<23} {}\n", usage.trim_start());
    }
    out
}

const UNREADABLE: &str = "odp_actions_from_string";

fn first<'a>(args: &[&'a str]) -> &'a str {
    args.first().copied().unwrap_or_default()
}

/// The datapath that the first argument names.
fn open(switch: &Switch, args: &[&str]) -> Result<String, String> {
    dpctl::named(switch, first(args)).ok_or_else(|| failed(switch, "opening datapath", Some(ENODEV)))
}

fn refuse_each(switch: &Switch, args: &[&str], text: impl Fn(&str, &str) -> String) -> Reply {
    let (dp, ports) = args.split_first().ok_or("no datapath")?;
    let lines = ports.iter().map(|port| {
        let name = port.split(',').next().unwrap_or_default();
        failed(switch, &text(name, dp), Some(EOPNOTSUPP))
    });
    Err(lines.collect())
}

fn parse_flow(switch: &Switch, text: &str, what: &str) -> Result<heddle_flow::FlowKey, String> {
    let ports = flows::port_names(switch);
    let number = |name: &str| ports.iter().find(|(_, n)| *n == name).map(|(no, _)| *no);
    odp::parse_key(text, Some(&number))
        .map_err(|why| failed(switch, &format!("{what} ({why})"), Some(EINVAL)))
}

/// Actions of a datapath, from text. Sets, tunnels and connections are not read.
fn parse_actions(switch: &Switch, text: &str) -> Option<Vec<Action>> {
    let ports = flows::port_names(switch);
    read_actions(text, &|name| {
        ports.iter().find(|(_, n)| *n == name).map(|(no, _)| *no)
    })
}

fn read_actions(text: &str, port: &dyn Fn(&str) -> Option<u32>) -> Option<Vec<Action>> {
    let mut all = Vec::new();
    let text = text.trim();
    if text.is_empty() || text == "drop" {
        return Some(all);
    }
    for part in items(text) {
        let (name, inside) = match part.split_once('(') {
            Some((name, rest)) => (name, rest.strip_suffix(')')?),
            None => (part, ""),
        };
        let value = |key: &str| {
            let pair = inside
                .split(',')
                .find_map(|p| p.split_once('=').filter(|(k, _)| *k == key));
            pair.and_then(|(_, v)| number(v))
        };
        all.push(match name {
            "push_vlan" => {
                let (vid, pcp) = (value("vid")? & 0xfff, value("pcp").unwrap_or(0) & 7);
                let tpid = u16::try_from(value("tpid").unwrap_or(0x8100)).ok()?;
                let tci = u16::try_from(vid | pcp << 13 | 0x1000).ok()?;
                Action::PushVlan { tpid, tci }
            }
            "pop_vlan" if inside.is_empty() => Action::PopVlan,
            "ct_clear" if inside.is_empty() => Action::CtClear,
            "recirc" => Action::Recirc(number(inside)?),
            "trunc" => Action::Trunc(number(inside)?),
            _ if inside.is_empty() => Action::Output(PortNo(number(name).or_else(|| port(name))?)),
            _ => return None,
        });
    }
    Some(all)
}

/// The parts of a list that commas outside of parentheses separate.
fn items(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .collect()
}

fn number(text: &str) -> Option<u32> {
    match text.trim().strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.trim().parse().ok(),
    }
}

/// Fields of a flow's whole text that the given text names too.
fn as_given(whole: &str, given: &str) -> String {
    let fields = whole.split_inclusive("),").map(|f| f.trim_end_matches(','));
    let named = fields.filter(|f| {
        f.split('(')
            .next()
            .is_some_and(|name| given.contains(&format!("{name}(")))
    });
    named.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read_as_they_are_printed() {
        let port = |name: &str| (name == "p9").then_some(9);
        for text in [
            "drop",
            "1,2",
            "push_vlan(vid=5,pcp=3),2,pop_vlan",
            "recirc(0x5)",
            "trunc(100),3",
            "ct_clear,1",
        ] {
            let actions = read_actions(text, &port).unwrap();
            assert_eq!(format_actions(&actions, None), text);
        }
        assert_eq!(format_actions(&read_actions("p9", &port).unwrap(), None), "9");
        for wrong in [
            "garbage",
            "1,garbage",
            "push_vlan(vid=5",
            "recirc()",
            "1,,2",
            "pop_vlan(3)",
            "set(eth())",
            ")(",
        ] {
            assert_eq!(read_actions(wrong, &port), None, "{wrong}");
        }
    }
}
