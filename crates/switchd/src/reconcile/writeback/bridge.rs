//! `Bridge` and `Controller`.

use heddle_ovsdb::{Columns, Datum, Txn};

use super::{Report, report};
use crate::reconcile::bridge::BridgeReconciler;
use crate::reconcile::mac::mac_text;

/// `Bridge.status`: a program in the kernel forwards flows of the bridge's `system` ports. `heddle-cni` reads
/// it. No controller writes this column.
const EBPF_KEY: &str = "heddle_ebpf";

impl Report<'_> {
    pub(super) fn describe_bridge(&self, bridge: &BridgeReconciler, txn: &mut Txn) {
        let Some(row) = self.db.row("Bridge", bridge.row.uuid) else {
            return;
        };
        let id = bridge.datapath_id.map(|id| format!("{id:016x}"));
        let kind = &bridge.row.datapath_type;
        let offloaded = self
            .diverter
            .filter(|d| d.is_ebpf() && d.takes(kind))
            .map(|_| (EBPF_KEY.to_owned(), "true".to_owned()));
        let columns = Columns::new()
            .with("datapath_id", Datum::optional(id))
            .with("datapath_version", "<built-in>")
            .with("status", Datum::map(offloaded));
        report(txn.update_changed(row, &columns));
        for port in bridge.row.ports.values() {
            let row = port.uuid.and_then(|uuid| self.db.row("Port", uuid));
            if let Some(row) = row
                && let Some(mac) = self.switch.ofproto.bonds().active_mac(&port.name)
            {
                let columns = Columns::new().with("bond_active_slave", mac_text(mac));
                report(txn.update_changed(row, &columns));
            }
        }
    }

    /// Writes a controller's state when it changes, and the ages in it only if `ages`.
    pub(super) fn describe_controllers(&self, bridge: &BridgeReconciler, ages: bool, txn: &mut Txn) {
        let all = bridge.controllers.status();
        for controller in &bridge.row.controllers {
            let Some(row) = self.db.row("Controller", controller.uuid) else {
                continue;
            };
            // The target has an absolute path if the row has a relative one: it is found by its end.
            let found = all.get(&controller.target).or_else(|| {
                let path = controller.target.strip_prefix("unix:")?;
                all.iter()
                    .find(|(t, _)| t.starts_with("unix:") && t.ends_with(path))
                    .map(|(_, s)| s)
            });
            let Some(status) = found else {
                let none = Columns::new()
                    .with("is_connected", false)
                    .with("role", Datum::empty())
                    .with("status", Datum::empty());
                report(txn.update_changed(row, &none));
                continue;
            };
            let same = row.bool("is_connected").is_ok_and(|c| c == status.connected)
                && row.opt_str("role").is_ok_and(|r| r == status.role)
                && row
                    .map_get("status", "state")
                    .is_ok_and(|s| s == Some(status.state))
                && row
                    .map_get("status", "last_error")
                    .is_ok_and(|e| e == status.last_error.as_deref());
            if same && !ages {
                continue;
            }
            let mut pairs = vec![("state".to_owned(), status.state.to_owned())];
            let secs = |s: Option<u64>| s.map(|s| s.to_string());
            let more = [
                ("last_error", status.last_error.clone()),
                ("sec_since_connect", secs(status.sec_since_connect)),
                ("sec_since_disconnect", secs(status.sec_since_disconnect)),
            ];
            pairs.extend(more.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?))));
            let columns = Columns::new()
                .with("is_connected", status.connected)
                .with("role", Datum::optional(status.role))
                .with("status", Datum::map(pairs));
            report(txn.update_changed(row, &columns));
        }
    }
}
