//! `ovs/route/*`: routes of the host and by hand.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

use heddle_tunnel::Routes;
use heddle_tunnel::routes::{DEFAULT, Hop, Kind, LOCAL, MAIN, Prefix, Query, RouteEntry, UserRoute};
use serde_json::{Value, json};

use super::Commands;
use crate::switch::Switch;
use heddle_daemon::unixctl::{JsonReply, Reply};

pub(super) fn register(c: &Commands<'_>) {
    let usage = "ip/plen dev [gw] [pkt_mark=mark] [src=src_ip] [table=id]";
    c.add("ovs/route/add", usage, (2, 6), |s, args| add(routes(s), args));
    c.add("ovs/route/show", "[table=all|id]", (0, 1), |s, args| {
        show(routes(s), args)
    });
    c.add_json("ovs/route/show", |s, args| show_json(routes(s), args));
    c.add(
        "ovs/route/del",
        "ip/plen [pkt_mark=mark] [table=id]",
        (1, 3),
        |s, args| del(routes(s), args),
    );
    let usage = "ip_addr [pkt_mark=mark] [src=src_ip]";
    c.add("ovs/route/lookup", usage, (1, 3), |s, args| {
        lookup(routes(s), args)
    });
}

pub(super) fn routes(switch: &Switch) -> &Routes {
    &switch.ofproto.pipeline().underlay().routes
}

/// `address/length`, or an address alone.
pub(super) fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (addr, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let addr: IpAddr = addr.parse().ok()?;
    let all = Prefix::host(addr).len();
    let len = len.map_or(Some(all), |l| l.parse().ok().filter(|l| *l <= all))?;
    Some((addr, len))
}

/// The value of `key=value`.
pub(super) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.strip_prefix(key)?.strip_prefix('=')
}

/// An address of the same family as `like`.
fn address(text: &str, like: IpAddr) -> Option<IpAddr> {
    text.parse()
        .ok()
        .filter(|a: &IpAddr| a.is_ipv4() == like.is_ipv4())
}

fn add(routes: &Routes, args: &[&str]) -> Reply {
    let [to, device, more @ ..] = args else {
        return Err("Invalid 'ip/plen' parameter".into());
    };
    let (addr, len) = network(to).ok_or("Invalid 'ip/plen' parameter")?;
    let mut route = UserRoute {
        table: MAIN,
        addr,
        len,
        mark: 0,
        device: (*device).into(),
        gateway: None,
        source: None,
    };
    for arg in more {
        if let Some(mark) = value(arg, "pkt_mark").and_then(|v| v.parse().ok()) {
            route.mark = mark;
        } else if let Some(source) = value(arg, "src").and_then(|v| address(v, addr)) {
            route.source = Some(source);
        } else if let Some(gateway) = address(arg, addr) {
            route.gateway = Some(gateway).filter(|g| !g.is_unspecified());
        } else if let Some(table) = value(arg, "table") {
            route.table = table.parse().map_err(|_| "Invalid table format")?;
        } else {
            return Err("Invalid pkt_mark, IP gateway or src_ip".into());
        }
    }
    if routes.add_user(&route) {
        Ok("OK".into())
    } else {
        Err("Error while inserting route.".into())
    }
}

fn del(routes: &Routes, args: &[&str]) -> Reply {
    let (to, more) = args.split_first().ok_or("Invalid parameters")?;
    let prefix = network(to).and_then(|(addr, len)| Prefix::new(addr, len));
    let prefix = prefix.ok_or("Invalid parameters")?;
    let (mut mark, mut table) = (0, MAIN);
    for arg in more {
        if let Some(m) = value(arg, "pkt_mark").and_then(|v| v.parse().ok()) {
            mark = m;
        } else if let Some(t) = value(arg, "table") {
            table = t.parse().map_err(|_| "Invalid table format")?;
            if !routes.tables().contains(&table) {
                return Err(format!("Table {arg} not found"));
            }
        } else {
            return Err("Invalid pkt_mark or table".into());
        }
    }
    if routes.del_user(table, prefix, mark) {
        Ok("OK".into())
    } else {
        Err("Not found".into())
    }
}

fn lookup(routes: &Routes, args: &[&str]) -> Reply {
    let (to, more) = args.split_first().ok_or("Invalid 'ip/plen' parameter")?;
    let dst = network(to).filter(|(addr, len)| *len == Prefix::host(*addr).len());
    let (dst, _) = dst.ok_or("Invalid 'ip/plen' parameter")?;
    let mut query = Query::to(dst);
    for arg in more {
        if let Some(mark) = value(arg, "pkt_mark").and_then(|v| v.parse().ok()) {
            query.mark = mark;
        } else if let Some(src) = value(arg, "src").and_then(|v| address(v, dst)) {
            query.src = Some(src);
        } else {
            return Err("Invalid pkt_mark or src".into());
        }
    }
    let route = routes.lookup(&query).ok_or("Not found")?;
    let gateway = route.gateway.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    let mut out = format!("src {}\ngateway {gateway}\ndev {}\n", route.source, route.device);
    if let Some(mtu) = route.path_mtu_bytes {
        _ = writeln!(out, "path_mtu {mtu}");
    }
    Ok(out)
}

const STANDARD: [u32; 3] = [LOCAL, MAIN, DEFAULT];

/// Numbers of the tables that a lookup may reach, and of those with routes by hand. The switch never uses a
/// kernel's table that no rule names.
fn known_tables(routes: &Routes) -> Vec<u32> {
    let rules = routes.rules();
    let named = |table: &u32| rules.iter().any(|r| !r.elsewhere && r.table() == Some(*table));
    let by_hand = |table: &u32| routes.entries(*table).iter().any(|e| e.user);
    let mut tables = routes.tables();
    tables.retain(|t| STANDARD.contains(t) || named(t) || by_hand(t));
    tables
}

/// Numbers of the tables that `ovs/route/show` lists.
fn shown_tables(routes: &Routes, args: &[&str]) -> Result<Vec<u32>, String> {
    match args.first() {
        None => Ok(STANDARD.to_vec()),
        Some(&"table=all") => Ok(known_tables(routes)),
        Some(arg) => {
            let table = value(arg, "table").and_then(|t| t.parse().ok());
            let table = table.ok_or("Invalid table format")?;
            match known_tables(routes).contains(&table) {
                true => Ok(vec![table]),
                false => Err(format!("Table '{arg}' not found")),
            }
        }
    }
}

fn show(routes: &Routes, args: &[&str]) -> Reply {
    let tables = shown_tables(routes, args)?;
    let all = args == ["table=all"];
    let mut out = match tables.as_slice() {
        _ if all => String::new(),
        [table] if !STANDARD.contains(table) => format!("Route Table #{table}:\n"),
        _ => "Route Table:\n".to_owned(),
    };
    for table in tables {
        list(routes, table, all && !STANDARD.contains(&table), &mut out);
    }
    Ok(out)
}

fn show_json(routes: &Routes, args: &[&str]) -> JsonReply {
    let mut all = Vec::new();
    for table in shown_tables(routes, args)? {
        let mut entries = routes.entries(table);
        entries.sort_by_key(|e| (Reverse(e.prefix.mapped_len()), e.user));
        all.extend(entries.iter().map(|entry| route_json(table, entry)));
    }
    Ok(all.into())
}

fn route_json(table: u32, entry: &RouteEntry) -> Value {
    let hop = |hop: &Hop| match hop.gateway {
        Some(gateway) => json!({"dev": &*hop.device, "gateway": gateway.to_string()}),
        None => json!({"dev": &*hop.device}),
    };
    let mut shown = json!({
        "table": table,
        "user": entry.user,
        "local": entry.kind == Kind::Local,
        "dst": entry.prefix.addr().to_string(),
        "prefix": entry.prefix.len(),
        "nexthops": entry.hops.iter().map(hop).collect::<Value>(),
    });
    if let Some(first) = entry.hops.first() {
        shown["prefsrc"] = first.source.to_string().into();
    }
    if entry.mark != 0 {
        shown["mark"] = entry.mark.into();
    }
    shown
}

/// A line for each next hop of each route.
fn list(routes: &Routes, table: u32, with_table: bool, out: &mut String) {
    for entry in routes.entries(table) {
        for hop in &entry.hops {
            let who = if entry.user { "User" } else { "Cached" };
            let _ = write!(out, "{who}: {}", entry.prefix);
            if entry.mark != 0 {
                let _ = write!(out, " MARK {}", entry.mark);
            }
            let _ = write!(out, " dev {}", hop.device);
            if let Some(gateway) = hop.gateway {
                let _ = write!(out, " GW {gateway}");
            }
            let _ = write!(out, " SRC {}", hop.source);
            if entry.kind == Kind::Local {
                out.push_str(" local");
            }
            if with_table {
                let _ = write!(out, " table {table}");
            }
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_tunnel::routes::{Rule, System, SystemHop, SystemRoute};

    #[test]
    fn a_table_that_no_rule_names_is_not_shown() {
        let routes = Routes::new(Box::new(|_| {}));
        let in_table = |table| SystemRoute {
            table,
            prefix: Prefix::new([10, 0, 0, 0].into(), 24).expect("a prefix"),
            kind: Kind::Unicast,
            metric: 0,
            prefsrc: Some([10, 0, 0, 1].into()),
            scope: 0,
            mtu_bytes: None,
            hops: vec![SystemHop {
                device: "p1".into(),
                device_mtu_bytes: None,
                gateway: None,
                weight: 1,
            }],
        };
        routes.set_system(&System {
            addresses: Vec::new(),
            rules: Rule::standard()
                .into_iter()
                .chain([Rule::any(false, 100, 42)])
                .collect(),
            routes: [MAIN, 42, 43].map(in_table).to_vec(),
        });
        assert_eq!(shown_tables(&routes, &["table=all"]), Ok(vec![42, MAIN]));
        assert_eq!(
            show(&routes, &["table=42"]),
            Ok("Route Table #42:\nCached: 10.0.0.0/24 dev p1 SRC 10.0.0.1\n".into())
        );
        assert_eq!(
            show(&routes, &["table=43"]),
            Err("Table 'table=43' not found".into())
        );
        let json = show_json(&routes, &["table=42"]).expect("an array");
        assert_eq!(
            json,
            json!([{"table": 42, "user": false, "local": false, "dst": "10.0.0.0", "prefix": 24,
                    "prefsrc": "10.0.0.1", "nexthops": [{"dev": "p1"}]}])
        );
    }
}
