//! Writes the switch's results to the database: the result, the state and the counters of each row.
//!
//! Every value is computed anew, and only differences from the replica are sent, in one transaction. A row
//! that has gone in the meantime is skipped.

mod bridge;
mod datapath;
mod interface;
mod machine;

use heddle_ovsdb::{Columns, Datum, Db, Txn};

use super::bridge::BridgeReconciler;
use super::globals::Globals;
use super::offload_choice::Diverter;
use super::{Bridges, kinds};
use crate::cli::COMPATIBLE_VERSION;
use crate::switch::Switch;

/// Columns that this process writes, or that mean nothing to it: their changes are no change of the
/// configuration.
pub(super) const NOT_CONFIG: &[(&str, &[&str])] = &[
    (
        "Open_vSwitch",
        &[
            "cur_cfg",
            "statistics",
            "datapath_types",
            "iface_types",
            "ovs_version",
            "db_version",
            "system_type",
            "system_version",
            "dpdk_version",
            "dpdk_initialized",
            "external_ids",
            "manager_options",
        ],
    ),
    (
        "Bridge",
        &[
            "datapath_id",
            "datapath_version",
            "status",
            "rstp_status",
            "external_ids",
        ],
    ),
    (
        "Port",
        &[
            "status",
            "statistics",
            "rstp_status",
            "rstp_statistics",
            "bond_active_slave",
            "external_ids",
        ],
    ),
    ("Interface", interface::OWN),
    ("Controller", &["is_connected", "role", "status", "external_ids"]),
    ("Flow_Table", &["external_ids"]),
    ("Mirror", &["statistics", "external_ids"]),
    ("QoS", &["external_ids"]),
    ("Queue", &["external_ids"]),
    ("SSL", &["external_ids"]),
    ("Datapath", &["datapath_version", "capabilities", "external_ids"]),
    ("CT_Zone", &["external_ids"]),
    ("CT_Timeout_Policy", &["external_ids"]),
];

/// The columns of `table` that are not configuration.
pub(super) fn not_config(table: &str) -> &'static [&'static str] {
    NOT_CONFIG
        .iter()
        .find(|(t, _)| *t == table)
        .map_or(&[], |(_, columns)| columns)
}

/// The state to write, and the replica that it is compared with.
pub(super) struct Report<'a> {
    pub(super) db: &'a Db,
    pub(super) switch: &'a Switch,
    pub(super) globals: &'a Globals,
    /// The back end that diverts devices, if flows are offloaded.
    pub(super) diverter: Option<&'a Diverter>,
    pub(super) bridges: &'a Bridges,
    /// `next_cfg` of the configuration that is in force.
    pub(super) applied: Option<i64>,
}

impl Report<'_> {
    /// The transaction to write. `counters`: also the counters of all interfaces, not just of new ones.
    pub(super) fn transaction(&self, counters: bool) -> Txn {
        let mut txn = Txn::new();
        self.describe_switch(counters, &mut txn);
        self.describe_datapaths(&mut txn);
        for bridge in self.bridges.values() {
            self.describe_bridge(bridge, &mut txn);
            describe_mirrors(self.db, bridge, &mut txn);
            self.describe_controllers(bridge, counters, &mut txn);
            for iface in bridge.ifaces.values() {
                self.describe_interface(bridge, iface, counters, &mut txn);
            }
            for failure in bridge.failures.values() {
                interface::describe_failure(self.db, failure, &mut txn);
            }
        }
        if !txn.is_empty() {
            txn.assert_lock();
        }
        txn
    }

    fn describe_switch(&self, counters: bool, txn: &mut Txn) {
        let Some(top) = self.db.first("Open_vSwitch") else {
            return;
        };
        let options = &self.switch.options;
        let mut columns = Columns::new()
            .with("datapath_types", Datum::set(kinds::datapath_types(options)))
            .with("iface_types", Datum::set(kinds::interface_types(options)))
            .with("dpdk_initialized", self.globals.dpdk_init)
            .with("dpdk_version", "none")
            .with("ovs_version", COMPATIBLE_VERSION);
        if let Some(schema) = self.db.schema() {
            columns.set("db_version", schema.version.as_str());
        }
        if let Some(cfg) = self.applied {
            columns.set("cur_cfg", cfg);
        }
        if !self.globals.statistics {
            columns.set("statistics", Datum::empty());
        } else if counters {
            columns.set(
                "statistics",
                Datum::map(machine::statistics(&options.names.service)),
            );
        }
        report(txn.update_changed(top, &columns));
    }
}

/// Writes each mirror's counters; a mirror without an output copies nothing and has none.
fn describe_mirrors(db: &Db, bridge: &BridgeReconciler, txn: &mut Txn) {
    let Some(row) = db.row("Bridge", bridge.row.uuid) else {
        return;
    };
    // This does not wait for a thread that changes the bridge's rules: the next reading is soon.
    if bridge.bridge.mirrored_packets().is_none() {
        return;
    }
    for row in db.referenced(row, "mirrors", "Mirror") {
        let counted = bridge.bridge.mirror_statistics(&row.uuid().to_string());
        let pairs = counted.into_iter().flat_map(|(packets, bytes)| {
            let number = |n| i64::try_from(n).unwrap_or(i64::MAX);
            [("tx_packets", number(packets)), ("tx_bytes", number(bytes))]
        });
        let columns = Columns::new().with("statistics", Datum::map(pairs));
        report(txn.update_changed(row, &columns));
    }
}

/// A value that its column cannot hold is a mistake in this program, or the schema is much older or newer.
fn report(refused: Vec<heddle_ovsdb::Refused>) {
    for r in refused {
        log::debug!(target: "bridge", "column {} not written: {:?}", r.column, r.why);
    }
}
