//! Settings that the database can ask for and that nothing here carries out yet: said in the log, so that
//! nobody relies on them in silence. A bridge that is believed to run a spanning tree, and does not, is a
//! loop.

use heddle_ovsdb::{Db, Row};

use super::{text, value};

/// Warns of what a bridge, its ports and interfaces ask for in vain. Rate-limited: rows are read at every
/// change.
pub(super) fn warn(db: &Db, bridge: &Row) {
    let name = text(bridge, "name");
    for column in ["stp_enable", "rstp_enable", "mcast_snooping_enable"] {
        if value(bridge.bool(column)) {
            say("bridge", &name, column);
        }
    }
    for column in ["netflow", "sflow"] {
        if !value(bridge.uuids(column)).is_empty() {
            say("bridge", &name, column);
        }
    }
    for port in db.referenced(bridge, "ports", "Port") {
        let name = text(port, "name");
        let interfaces = db.referenced(port, "interfaces", "Interface");
        if interfaces.len() > 1 {
            log::warn!(target: "bridge", per_min = 1, burst = 10;
                "port {name}: bonds are not supported yet, all its packets leave by one interface");
        }
        for i in interfaces {
            let name = text(i, "name");
            if value(i.opt_int("cfm_mpid")).is_some() {
                say("interface", &name, "cfm_mpid");
            }
            if value(i.map_str("lldp"))
                .get("enable")
                .is_some_and(|v| v == "true")
            {
                say("interface", &name, "lldp");
            }
        }
    }
}

fn say(what: &str, name: &str, column: &str) {
    log::warn!(target: "bridge", per_min = 1, burst = 10;
        "{what} {name}: {column} is not supported yet and changes nothing");
}
