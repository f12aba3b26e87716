//! `dpctl/*` about tracked connections. All bridges share one tracker, so the named datapath has no effect.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use heddle_conntrack::Conntrack;
use heddle_conntrack::dump::Conn;
use heddle_conntrack::format;
use heddle_datapath_api::Engine;
use heddle_ofproto::bridge::connections;
use heddle_openflow::message::{CtFlush, CtTuple};

use super::Commands;
use super::args;
use super::dpctl::{EINVAL, ENOENT, EPERM, failed, named, one};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// Records that are read before the thread checks for other work.
const BATCH: u32 = 4096;

pub(super) fn register(c: &Commands<'_>) {
    const ANY: usize = usize::MAX;
    c.add("dpctl/dump-conntrack", "[-m] [-s] [dp] [zone=N]", (0, 4), dump);
    let usage = "[dp] [zone=N] [mark=X[/M]] [labels=Y[/N]] [ct-orig-tuple] [ct-reply-tuple]";
    c.add("dpctl/flush-conntrack", usage, (0, 6), flush);
    c.add("dpctl/ct-stats-show", "[dp] [zone=N]", (0, 5), stats);
    c.add("dpctl/ct-bkts", "[dp] [gt=N]", (0, 2), buckets);
    c.add("dpctl/ct-set-maxconns", "[dp] maxconns", (1, 2), |s, args| {
        let (_, args) = one(s, args, 2)?;
        let n = args.last().and_then(|n| n.parse().ok());
        let n = n.ok_or_else(|| failed(s, "maxconns missing or malformed", Some(EINVAL)))?;
        tracker(s).set_max_conns(n);
        Ok("setting maxconns successful".to_owned())
    });
    c.add("dpctl/ct-get-maxconns", "[dp]", (0, 1), |s, args| {
        one(s, args, 1)?;
        Ok(format!("{}\n", tracker(s).max_conns()))
    });
    c.add("dpctl/ct-get-nconns", "[dp]", (0, 1), |s, args| {
        one(s, args, 1)?;
        Ok(format!("{}\n", tracker(s).n_conns()))
    });
    for (command, on, text) in [
        ("dpctl/ct-enable-tcp-seq-chk", true, "enabling"),
        ("dpctl/ct-disable-tcp-seq-chk", false, "disabling"),
    ] {
        c.add(command, "[dp]", (0, 1), move |s, args| {
            one(s, args, 2)?;
            tracker(s).set_tcp_seq_chk(on);
            Ok(format!("{text} TCP sequence checking successful"))
        });
    }
    c.add("dpctl/ct-get-tcp-seq-chk", "[dp]", (0, 1), |s, args| {
        one(s, args, 1)?;
        let state = if tracker(s).tcp_seq_chk() {
            "enabled"
        } else {
            "disabled"
        };
        Ok(format!("TCP sequence checking: {state}\n"))
    });
    let usage = "[dp] [default=L] [zone=N,limit=L]...";
    c.add("dpctl/ct-set-limits", usage, (1, ANY), set_limits);
    let usage = "[dp] [default] [zone=N1[,N2]...]";
    c.add("dpctl/ct-del-limits", usage, (1, 3), del_limits);
    c.add(
        "dpctl/ct-get-limits",
        "[dp] [zone=N1[,N2]...]",
        (0, 2),
        get_limits,
    );
}

fn tracker(switch: &Switch) -> &Conntrack {
    switch.datapath.conntrack()
}

/// All connections of a zone, or all.
fn each(switch: &Switch, zone: Option<u16>, mut show: impl FnMut(&Conn)) {
    let now_ms = switch.clock.now_ms();
    let mut at = Some(0);
    while let Some(from) = at {
        at = tracker(switch).dump(now_ms, from, BATCH, |c| {
            if zone.is_none_or(|zone| zone == c.zone) {
                show(&c);
            }
        });
    }
}

/// Takes `zone=N` off the end.
fn zone_last<'a, 'b>(args: &'a [&'b str]) -> (Option<u16>, &'a [&'b str]) {
    if let [rest @ .., last] = args
        && let Some(zone) = last.strip_prefix("zone=").and_then(|n| n.parse().ok())
    {
        return (Some(zone), rest);
    }
    (None, args)
}

fn dump(switch: &Switch, args: &[&str]) -> Reply {
    let (options, args) = args::split(args)?;
    let (zone, args) = zone_last(args);
    one(switch, args, 1)?;
    let mut out = String::new();
    each(switch, zone, |c| {
        out += &format::conn(c, options.verbosity > 0, options.statistics);
        out.push('\n');
    });
    Ok(out)
}

fn stats(switch: &Switch, args: &[&str]) -> Reply {
    let (options, mut args) = args::split(args)?;
    let mut zone = None;
    let mut verbose = options.verbosity > 0;
    loop {
        let (found, rest) = zone_last(args);
        zone = zone.or(found);
        let [rest @ .., "verbose"] = rest else {
            if found.is_none() {
                break;
            }
            args = rest;
            continue;
        };
        verbose = true;
        args = rest;
    }
    one(switch, args, 1)?;
    let mut counted = format::Stats::default();
    each(switch, zone, |c| counted.add(c));
    Ok(counted.text(verbose))
}

/// Open vSwitch shows all buckets, eight in a row. There are millions here: rows without connections are left
/// out.
fn buckets(switch: &Switch, args: &[&str]) -> Reply {
    const ROW: u32 = 8;
    let (_, mut args) = args::split(args)?;
    let mut above = 0_u32;
    if let [rest @ .., last] = args
        && let Some(n) = last.strip_prefix("gt=").and_then(|n| n.parse().ok())
    {
        (above, args) = (n, rest);
    }
    one(switch, args, 1)?;
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    let mut total = 0;
    each(switch, None, |c| {
        total += 1;
        *counts.entry(c.bucket).or_default() += 1;
    });
    let mut out = format!(
        "Total Buckets: {}\nCurrent Connections: {total}\n\n",
        tracker(switch).buckets()
    );
    if total == 0 {
        return Ok(out);
    }
    let line = "+-----------+-----------------------------------------+";
    let _ = write!(
        out,
        "{line}\n|  Buckets  |         Connections per Buckets         |\n{line}"
    );
    let mut last_row = None;
    for bucket in counts.keys() {
        let row = bucket / ROW;
        if last_row.replace(row) == Some(row) {
            continue;
        }
        let (first, last) = (row * ROW, row * ROW + ROW - 1);
        let _ = write!(out, "\n {first:3}..{last:3}   | ");
        for at in first..=last {
            match counts.get(&at).filter(|n| **n > above) {
                Some(n) => _ = write!(out, "{n:5}"),
                None => out.push_str("    ."),
            }
        }
    }
    Ok(out + "\n\n")
}

fn flush(switch: &Switch, args: &[&str]) -> Reply {
    let (_, args) = args::split(args)?;
    let bad = |why: String| failed(switch, &why, Some(EINVAL));
    let args = match args {
        [first, rest @ ..] if named(switch, first).is_some() => rest,
        _ => {
            one(switch, &[], 1)?;
            args
        }
    };
    let mut wanted = CtFlush::default();
    let mut args = args;
    if let [first, rest @ ..] = args
        && let Some(zone) = first.strip_prefix("zone=")
    {
        let zone = zone.parse().map_err(|_| bad("failed to parse zone".to_owned()))?;
        (wanted.zone, args) = (Some(zone), rest);
    }
    if let [first, rest @ ..] = args
        && let Some(text) = first.strip_prefix("mark=")
    {
        let mark = masked(text, u32::MAX.into()).ok_or_else(|| bad("failed to parse mark".to_owned()))?;
        let narrow = |n: u128| u32::try_from(n).unwrap_or(u32::MAX);
        (wanted.mark, args) = (Some((narrow(mark.0), narrow(mark.1))), rest);
    }
    if let [first, rest @ ..] = args
        && let Some(text) = first.strip_prefix("labels=")
    {
        let label = masked(text, u128::MAX).ok_or_else(|| bad("failed to parse labels".to_owned()))?;
        (wanted.label, args) = (Some(label), rest);
    }
    if args.len() > 2 {
        return Err(bad("invalid arguments".to_owned()));
    }
    for (i, text) in args.iter().enumerate() {
        let (mut proto, mut t) = (wanted.ip_proto, if i == 0 { wanted.orig } else { wanted.reply });
        read_tuple(text, &mut t, &mut proto, wanted.orig.src.or(wanted.orig.dst)).map_err(bad)?;
        wanted.ip_proto = proto;
        *(if i == 0 {
            &mut wanted.orig
        } else {
            &mut wanted.reply
        }) = t;
    }
    if connections::flush(tracker(switch), switch.clock.now_ms(), &wanted) {
        return Ok(String::new());
    }
    Err(failed(switch, "failed to flush conntrack", Some(ENOENT)))
}

/// Reads a value and its mask, decimal or hexadecimal, up to `most`; without a mask all bits count.
fn masked(text: &str, most: u128) -> Option<(u128, u128)> {
    let number = |text: &str| {
        let n = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
            Some(digits) if !digits.starts_with('+') => u128::from_str_radix(digits, 16).ok(),
            _ => text.parse().ok(),
        };
        n.filter(|n| *n <= most)
    };
    match text.split_once('/') {
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
        None => Some((number(text)?, most)),
    }
}

/// Reads `ct_nw_src=10.0.0.1,ct_nw_proto=6,...`; `other`: an address whose kind it must have.
fn read_tuple(text: &str, t: &mut CtTuple, proto: &mut u8, other: Option<IpAddr>) -> Result<(), String> {
    for part in text.split([',', ' ']).filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        if value.is_empty() {
            return Err(format!("field {key} missing value"));
        }
        let unread = || format!("failed to parse field {key}");
        match key {
            "ct_nw_src" | "ct_nw_dst" | "ct_ipv6_src" | "ct_ipv6_dst" => {
                let v6 = key.starts_with("ct_ipv6");
                if other.or(t.src).or(t.dst).is_some_and(|a| a.is_ipv6() != v6) {
                    return Err(format!("the L3 protocol does not match {value}"));
                }
                let place = if key.ends_with("src") {
                    &mut t.src
                } else {
                    &mut t.dst
                };
                if place.is_some() {
                    return Err(format!("{key} is set multiple times"));
                }
                let address: IpAddr = value.parse().map_err(|_| unread())?;
                *place = Some(address).filter(|a| a.is_ipv6() == v6);
                place.ok_or_else(unread)?;
            }
            "ct_nw_proto" if *proto != 0 => return Err(format!("{key} is set multiple times")),
            "ct_nw_proto" => *proto = value.parse().map_err(|_| unread())?,
            "ct_tp_src" => t.src_port = value.parse().map(Some).map_err(|_| unread())?,
            "ct_tp_dst" => t.dst_port = value.parse().map(Some).map_err(|_| unread())?,
            "icmp_type" | "icmp_code" | "icmp_id" if !matches!(*proto, 1 | 58) => {
                return Err("invalid L4 fields".to_owned());
            }
            "icmp_type" => t.icmp_type = value.parse().map(Some).map_err(|_| unread())?,
            "icmp_code" => t.icmp_code = value.parse().map(Some).map_err(|_| unread())?,
            "icmp_id" => t.icmp_id = value.parse().map(Some).map_err(|_| unread())?,
            _ => return Err(format!("invalid conntrack tuple field: {key}")),
        }
    }
    if *proto == 0 && (t.src_port.is_some() || t.dst_port.is_some()) {
        return Err("port is set without protocol".to_owned());
    }
    Ok(())
}

fn set_limits(switch: &Switch, args: &[&str]) -> Reply {
    let bad = |why: String| failed(switch, &why, Some(EINVAL));
    let (_, mut rest) = one(switch, args, usize::MAX)?;
    let mut default = None;
    if let [first, others @ ..] = rest
        && let Some(n) = first.strip_prefix("default=")
    {
        let n: u32 = n.parse().map_err(|_| bad("invalid default limit".to_owned()))?;
        (default, rest) = (Some(n), others);
    }
    let zones: Result<Vec<_>, String> = rest.iter().map(|text| zone_limit(text)).collect();
    let zones = zones.map_err(bad)?;
    may_set_limits(switch, "set-zone-limit")?;
    if default.is_some() {
        tracker(switch).set_default_limit(default);
    }
    for (zone, limit) in zones {
        tracker(switch).set_zone_limit(zone, Some(limit));
    }
    Ok(String::new())
}

/// Limits in the database can only be changed there.
fn may_set_limits(switch: &Switch, instead: &str) -> Result<(), String> {
    match switch.inventory.read().zone_limits {
        true => {
            let why =
                format!("the zone limits are set via database, use 'ovs-vsctl {instead} <...>' instead.");
            Err(failed(switch, &why, Some(EPERM)))
        }
        false => Ok(()),
    }
}

/// `zone=N,limit=L`.
fn zone_limit(text: &str) -> Result<(u16, u32), String> {
    let (mut zone, mut limit) = (None, None);
    for part in text.split([',', ' ']).filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let unread = || format!("failed to parse field {key}");
        match key {
            _ if value.is_empty() => return Err(format!("field {key} missing value")),
            "zone" => zone = Some(value.parse().map_err(|_| unread())?),
            "limit" => limit = Some(value.parse().map_err(|_| unread())?),
            _ => return Err(format!("invalid zone limit field: {key}")),
        }
    }
    zone.zip(limit)
        .ok_or_else(|| "failed to parse zone limit".to_owned())
}

/// `zone=N1,N2`.
fn zones(text: &str) -> Result<Vec<u16>, String> {
    let list = text
        .strip_prefix("zone=")
        .ok_or_else(|| format!("invalid argument {text}"))?;
    let all = list
        .split(',')
        .map(|n| n.parse().map_err(|_| "invalid zone".to_owned()));
    all.collect()
}

fn del_limits(switch: &Switch, args: &[&str]) -> Reply {
    let max = 2 + usize::from(args.contains(&"default"));
    let (_, mut args) = one(switch, args, max)?;
    let default = args.first() == Some(&"default");
    if default {
        args = &args[1..];
    }
    let zones = args.first().map_or(Ok(Vec::new()), |text| zones(text));
    let zones = zones.map_err(|why| failed(switch, &why, Some(EINVAL)))?;
    may_set_limits(switch, "del-zone-limit")?;
    if default {
        tracker(switch).set_default_limit(None);
    }
    for zone in zones {
        tracker(switch).set_zone_limit(zone, None);
    }
    Ok(String::new())
}

fn get_limits(switch: &Switch, args: &[&str]) -> Reply {
    let (_, args) = one(switch, args, 2)?;
    let ct = tracker(switch);
    let limits = match args.first() {
        None => ct.zone_limits(),
        Some(text) => {
            let wanted = zones(text).map_err(|why| failed(switch, &why, Some(EINVAL)))?;
            wanted.into_iter().map(|zone| ct.zone_limit(zone)).collect()
        }
    };
    let mut out = format!("default limit={}", ct.default_limit());
    for l in limits {
        let _ = write!(out, "\nzone={},limit={},count={}", l.zone, l.limit, l.count);
    }
    Ok(out + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuples_and_what_is_wrong_with_them() {
        let read = |text| {
            let (mut t, mut proto) = (CtTuple::default(), 0);
            read_tuple(text, &mut t, &mut proto, None).map(|()| (t, proto))
        };
        let (t, proto) = read("ct_nw_src=10.1.1.1,ct_nw_proto=17,ct_tp_dst=53").unwrap();
        assert_eq!(
            (t.src, t.dst_port, proto),
            (Some([10, 1, 1, 1].into()), Some(53), 17)
        );
        for (text, why) in [
            ("ct_nw_src=1,ct_nw_dst=2", "failed to parse field ct_nw_src"),
            ("ct_nw_src", "field ct_nw_src missing value"),
            ("ct_tp_src=1", "port is set without protocol"),
            ("icmp_id=1", "invalid L4 fields"),
            (
                "ct_nw_src=1.1.1.1,ct_ipv6_dst=::1",
                "the L3 protocol does not match ::1",
            ),
            ("x=1", "invalid conntrack tuple field: x"),
        ] {
            assert_eq!(read(text).unwrap_err(), why);
        }
    }

    #[test]
    fn marks_and_labels() {
        assert_eq!(masked("7", 9), Some((7, 9)));
        assert_eq!(masked("0x1f/0xF", 0xff), Some((0x1f, 0xf)));
        assert_eq!(masked("0x1/0", u128::MAX), Some((1, 0)));
        for text in ["", "0x", "x", "1/", "/1", "1/2/3", "256", "0x+1", "-1"] {
            assert_eq!(masked(text, 255), None, "{text}");
        }
    }

    #[test]
    fn limits_of_zones() {
        assert_eq!(zone_limit("zone=3,limit=9"), Ok((3, 9)));
        assert_eq!(zone_limit("zone=3").unwrap_err(), "failed to parse zone limit");
        assert_eq!(
            zone_limit("zone=70000,limit=1").unwrap_err(),
            "failed to parse field zone"
        );
        assert_eq!(zones("zone=1,2"), Ok(vec![1, 2]));
        assert_eq!(zones("zon=1").unwrap_err(), "invalid argument zon=1");
        assert_eq!(zones("zone=").unwrap_err(), "invalid zone");
    }
}
