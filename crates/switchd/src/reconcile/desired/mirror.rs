//! One row of `Mirror`.

use std::collections::BTreeMap;

use heddle_ofproto::bridge::{MirrorConfig, MirrorTarget};
use heddle_ovsdb::{Db, Row, Uuid};

use super::bridge::vlans;
use super::{PortRow, text, value};

/// A mirror of a bridge with these ports; `None`, and a line in the log, if it has no output.
pub(super) fn read(
    db: &Db,
    row: &Row,
    bridge: &str,
    ports: &BTreeMap<String, PortRow>,
) -> Option<MirrorConfig> {
    let name = text(row, "name");
    let of_port = |uuid: Uuid| db.row("Port", uuid).map(|p| text(p, "name"));
    let vlan = value(row.opt_int("output_vlan")).and_then(|v| u16::try_from(v).ok());
    let target = match (value(row.opt_uuid("output_port")).map(of_port), vlan) {
        (Some(port), vlan) => {
            let Some(port) = port.filter(|p| ports.contains_key(p)) else {
                log::error!(target: "bridge", "bridge {bridge}: mirror {name} outputs to port not on bridge");
                return None;
            };
            if vlan.is_some() {
                log::error!(target: "bridge",
                    "bridge {bridge}: mirror {name} specifies both output port and output vlan; ignoring output vlan");
            }
            MirrorTarget::Port(port)
        }
        (None, Some(vlan)) => MirrorTarget::Vlan(vlan),
        (None, None) => {
            log::error!(target: "bridge", "bridge {bridge}: mirror {name} does not specify output; ignoring");
            return None;
        }
    };
    let selected = |column| -> Vec<String> {
        let names = value(row.uuids(column)).into_iter().filter_map(of_port);
        let (here, elsewhere): (Vec<_>, Vec<_>) = names.partition(|n| ports.contains_key(n));
        for port in elsewhere {
            log::warn!(target: "bridge", "bridge {bridge}: mirror {name} cannot match on nonexistent port {port}");
        }
        here
    };
    Some(MirrorConfig {
        id: row.uuid().to_string(),
        all: value(row.bool("select_all")),
        sources: selected("select_src_port"),
        destinations: selected("select_dst_port"),
        vlans: vlans(&value(row.ints("select_vlan"))),
        target,
        snaplen: value(row.opt_int("snaplen"))
            .and_then(|n| u16::try_from(n).ok())
            .unwrap_or(0),
    })
}
