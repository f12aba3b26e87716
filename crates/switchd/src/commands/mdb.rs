//! `mdb/*`: multicast groups that were learned.

use std::sync::Arc;

use heddle_ofproto::bridge::Bridge;
use heddle_ofproto::snooping::{Protocol, SnoopedListener, SnoopingTable};

use super::fdb::{NO_BRIDGE, port_name};
use super::{Commands, bridge_named};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// Schema of Open vSwitch 3.3, whose `mdb/show` prints the protocol. Scripts expect the columns of the
/// installed version, and the database has its schema.
const PROTOCOL_SINCE: (u32, u32) = (8, 5);

const NO_SNOOPING: &str = "multicast snooping is disabled";

pub(super) fn register(c: &Commands<'_>) {
    c.add("mdb/show", "bridge", (1, 1), show);
    c.add("mdb/flush", "[bridge]", (0, 1), flush);
}

fn named(switch: &Switch, args: &[&str]) -> Result<Arc<Bridge>, String> {
    bridge_named(switch, args.first().copied().unwrap_or_default(), NO_BRIDGE)
}

fn show(switch: &Switch, args: &[&str]) -> Reply {
    let entries = named(switch, args)?.snooped().ok_or(NO_SNOOPING)?;
    let schema = switch.inventory.read().schema_version;
    let with_protocol = schema.is_none_or(|version| version >= PROTOCOL_SINCE);
    let protocol = if with_protocol { "protocol  " } else { "" };
    let mut out = format!(" port  VLAN  {protocol}GROUP                Age\n");
    out.extend(entries.iter().map(|e| line(e, with_protocol)));
    Ok(out)
}

/// A line in the columns of Open vSwitch. Addresses are not padded.
fn line(e: &SnoopedListener, with_protocol: bool) -> String {
    let (port, vlan, age) = (port_name(e.listener.port), e.key.vlan, e.age_s);
    let protocol = match with_protocol {
        true => format!("{:<8}  ", e.protocol.map_or("UNKNOWN", Protocol::name)),
        false => String::new(),
    };
    match e.protocol {
        Some(_) => {
            let group = e.key.group.to_canonical();
            format!("{port:>5}  {vlan:4}  {protocol}{group}         {age:3}\n")
        }
        None => format!("{port:>5}  {vlan:4}  {protocol}querier             {age:3}\n"),
    }
}

fn flush(switch: &Switch, args: &[&str]) -> Reply {
    let tables: Vec<Arc<SnoopingTable>> = match args {
        [] => switch
            .ofproto
            .bridges()
            .iter()
            .filter_map(|b| b.snooping_table())
            .collect(),
        _ => vec![named(switch, args)?.snooping_table().ok_or(NO_SNOOPING)?],
    };
    tables.iter().for_each(|t| t.flush());
    Ok("table successfully flushed".into())
}
