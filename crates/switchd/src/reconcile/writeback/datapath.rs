//! `Datapath.capabilities`, for clients that read them before they use a feature (ovn-controller).

use heddle_ovsdb::{Columns, Datum, Txn};

use super::{Report, report};

impl Report<'_> {
    /// Fills in the row, which clients create empty, while there is a bridge of that type. Keys of other
    /// writers stay.
    pub(super) fn describe_datapaths(&self, txn: &mut Txn) {
        let Some(top) = self.db.first("Open_vSwitch") else {
            return;
        };
        for (name, uuid) in top.map_str_uuid("datapaths").unwrap_or_default() {
            let mut of_type = self.bridges.values().filter(|b| b.row.datapath_type == name);
            let (Some(bridge), Some(row)) = (of_type.next(), self.db.row("Datapath", uuid)) else {
                continue;
            };
            let mut all = row.map_str("capabilities").unwrap_or_default();
            let own = bridge.bridge.used_features().capabilities();
            all.extend(own.into_iter().map(|(key, value)| (key.to_owned(), value)));
            let columns = Columns::new().with("capabilities", Datum::map(all));
            report(txn.update_changed(row, &columns));
        }
    }
}
