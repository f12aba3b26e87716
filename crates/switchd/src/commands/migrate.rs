//! `heddle/migrate-*`: the requests of `heddle migrate`. Replies are JSON. A series of requests carries a
//! file, so that no message has more than a part of it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use heddle_conntrack::Conntrack;
use heddle_datapath_api::Engine as _;
use heddle_ovsdb::Db;
use serde_json::{Value, json};

use super::Commands;
use crate::migration::{self, ExtraZones, PortIdentity, Role, Selection, Session};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

const LIVE: &str = "--live";

pub(super) fn register(c: &Commands<'_>) {
    const ANY: usize = usize::MAX;
    let options = "port [--zone NAME[=NUMBER]]... [--address IP]...";
    c.add("heddle/migrate-prepare", options, (1, ANY), prepare);
    c.add(
        "heddle/migrate-export",
        &format!("{options} [{LIVE}]"),
        (1, ANY),
        begin_export,
    );
    c.add("heddle/migrate-export-next", "id record", (2, 2), export);
    let usage = format!("port zones [--zone NAME[=NUMBER]]... [--address IP]... [{LIVE}]");
    c.add("heddle/migrate-import", &usage, (2, ANY), begin_import);
    c.add("heddle/migrate-import-next", "id connections", (2, 2), import);
    c.add("heddle/migrate-finish", "port", (1, 1), |s, args| {
        end(s, args, migration::finish)
    });
    c.add("heddle/migrate-abort", "port", (1, 1), |s, args| {
        end(s, args, migration::abort)
    });
    c.add("heddle/migrate-status", "", (0, 0), status);
}

fn tracker(switch: &Switch) -> &Conntrack {
    switch.datapath.conntrack()
}

fn reply(value: &Value) -> Reply {
    Ok(format!("{value}\n"))
}

/// Reads options behind the fixed arguments.
fn options(args: &[&str]) -> Result<(ExtraZones, bool), String> {
    let (mut extra, mut live) = (ExtraZones::default(), false);
    let mut args = args.iter();
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option}: a value is missing"));
        match *option {
            LIVE => live = true,
            "--zone" => extra.zones.push((*value()?).to_owned()),
            "--address" => {
                let text = value()?;
                let address: IpAddr = text
                    .parse()
                    .map_err(|_| format!("--address {text}: expected an IP address"))?;
                extra.addresses.push(address);
            }
            other => return Err(format!("{other}: no such option")),
        }
    }
    Ok((extra, live))
}

fn database(switch: &Switch) -> Result<Arc<Db>, String> {
    let db = switch.database.get().map(|client| client.snapshot());
    db.filter(|db| db.is_loaded())
        .ok_or_else(|| "the database has not been read yet: try again".to_owned())
}

fn identity(switch: &Switch, name: &str) -> Result<PortIdentity, String> {
    let db = database(switch)?;
    PortIdentity::find(&db, name)
}

fn described(switch: &Switch, s: &Selection) -> Value {
    let tracker = tracker(switch);
    let zones: Vec<Value> = s
        .zones
        .iter()
        .map(|z| {
            let limit = tracker.zone_limit(z.zone);
            json!({"name": z.name, "zone": z.zone, "whole": z.whole, "limit": limit.limit, "count": limit.count})
        })
        .collect();
    json!({
        "port": s.port, "interface": s.interface, "bridge": s.bridge, "zones": zones, "notes": s.notes,
        "addresses": s.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>(),
    })
}

fn prepare(switch: &Switch, args: &[&str]) -> Reply {
    let [name, rest @ ..] = args else {
        return Err("a port is missing".into());
    };
    let (extra, _) = options(rest)?;
    let id = identity(switch, name)?;
    let mut out = described(switch, &Selection::new(&id, &extra)?);
    let item = switch.inventory.read().interfaces.get(&id.interface).cloned();
    out["ofport"] = item.map_or(Value::Null, |item| crate::inventory::port_text(item.no).into());
    out["format"] = heddle_migration::VERSION.into();
    out["connections"] = tracker(switch).n_conns().into();
    out["max_connections"] = tracker(switch).max_conns().into();
    out["other_zones"] = id.zones.keys().cloned().collect::<Vec<_>>().into();
    reply(&out)
}

fn begin_export(switch: &Switch, args: &[&str]) -> Reply {
    let [name, rest @ ..] = args else {
        return Err("a port is missing".into());
    };
    let (extra, live) = options(rest)?;
    let selection = Selection::new(&identity(switch, name)?, &extra)?;
    if selection.zones.is_empty() {
        return Err(format!(
            "port {}: nothing can move: {}",
            selection.port,
            selection.notes.join("; ")
        ));
    }
    let mut out = described(switch, &selection);
    let now_ms = switch.clock.now_ms();
    let session = switch
        .moves
        .begin(Role::Source, live, selection, Vec::new(), now_ms)?;
    out["id"] = session.id.into();
    reply(&out)
}

/// Whether the zones of a move have the numbers of its begin. Another port may have a number by now.
fn check_zones(switch: &Switch, session: &Session) -> Result<(), String> {
    let s = &session.selection;
    let db = database(switch)?;
    let zones = migration::zones_of(&db, &s.bridge);
    match s.differs(&zones) {
        Some(why) => Err(format!(
            "port {}: {why} since the move began: begin it again",
            s.port
        )),
        None => Ok(()),
    }
}

/// The session that a series of requests names, in this role.
fn session(switch: &Switch, id: &str, role: Role) -> Result<Arc<Session>, String> {
    let session = switch
        .moves
        .session(id.parse().map_err(|_| format!("{id}: no number"))?)?;
    if session.role != role {
        return Err(format!("{id} is the {} of a move", session.role.name()));
    }
    check_zones(switch, &session)?;
    Ok(session)
}

fn export(switch: &Switch, args: &[&str]) -> Reply {
    let [id, at] = args else {
        return Err("two numbers are missing".into());
    };
    let session = session(switch, id, Role::Source)?;
    let at = at.parse().map_err(|_| format!("{at}: no number"))?;
    let copied = migration::copy(tracker(switch), &session, switch.clock.now_ms(), at);
    reply(&json!({
        "next": copied.next, "connections": copied.connections, "left_out": copied.left_out,
        "content": BASE64.encode(&copied.content),
    }))
}

fn begin_import(switch: &Switch, args: &[&str]) -> Reply {
    let [name, zones, rest @ ..] = args else {
        return Err("a port and zones are missing".into());
    };
    let (extra, live) = options(rest)?;
    let names: Vec<String> = serde_json::from_str(zones).map_err(|e| format!("zones: {e}"))?;
    if names.len() > heddle_migration::MAX_ZONES {
        return Err("too many zones".into());
    }
    let id = identity(switch, name)?;
    let selection = Selection::new(&id, &extra)?;
    let mut out = described(switch, &selection);
    let mapping: Vec<_> = names.iter().map(|name| selection.map(name, &id)).collect();
    let now_ms = switch.clock.now_ms();
    let session = switch
        .moves
        .begin(Role::Target, live, selection, mapping, now_ms)?;
    out["id"] = session.id.into();
    reply(&out)
}

fn import(switch: &Switch, args: &[&str]) -> Reply {
    let [id, content] = args else {
        return Err("a number and connections are missing".into());
    };
    let session = session(switch, id, Role::Target)?;
    let content = BASE64.decode(content).map_err(|e| format!("connections: {e}"))?;
    let timeouts = switch.ofproto.pipeline().snapshot().ct_timeouts.clone();
    let policy = |zone: u16| timeouts.get(&zone).cloned();
    let done = migration::import(tracker(switch), &session, switch.clock.now_ms(), &content, policy)?;
    reply(&json!({"taken": done.taken, "refused": done.refused, "examples": done.examples}))
}

fn end(switch: &Switch, args: &[&str], work: fn(&Conntrack, &Session, u64) -> usize) -> Reply {
    let name = args.first().copied().unwrap_or_default();
    // The port may have gone with the guest.
    // An interface's name has precedence, as at the beginning.
    let found = identity(switch, name)
        .ok()
        .and_then(|id| switch.moves.of_port(&id.port));
    let Some(session) = found.or_else(|| switch.moves.of_port(name)) else {
        return reply(&json!({"role": null}));
    };
    if let Err(why) = check_zones(switch, &session) {
        switch.moves.end(&session);
        return Err(why);
    }
    let n = work(tracker(switch), &session, switch.clock.now_ms());
    switch.moves.end(&session);
    reply(&json!({"role": session.role.name(), "port": session.selection.port, "connections": n}))
}

fn status(switch: &Switch, _: &[&str]) -> Reply {
    let now_ms = switch.clock.now_ms();
    let all: Vec<Value> = switch
        .moves
        .all()
        .iter()
        .map(|s| {
            let counts: BTreeMap<String, u64> = s.counts.lock().clone();
            json!({
                "port": s.selection.port, "interface": s.selection.interface, "role": s.role.name(), "live": s.live,
                "seconds": now_ms.saturating_sub(s.began_ms) / 1000, "counts": counts,
            })
        })
        .collect();
    reply(&json!(all))
}
