//! Replies to `bond/show`, `bond/list`, `lacp/show` and their like.

use super::entry::BondEntry;
use super::{Bonds, Mode, NO_BOND, NO_LACP};
use heddle_datapath_api::PortNo;

impl Bonds {
    /// The text of `bond/show`, of one bond or of all.
    ///
    /// # Errors
    /// Open vSwitch's text for an unknown bond.
    pub fn show(&self, name: Option<&str>) -> Result<String, &'static str> {
        let now_ms = self.dataplane.now_ms();
        let details = |e: &BondEntry| Some(e.bond.as_ref()?.details(e.shared.table.id, now_ms));
        self.texts(name, details, NO_BOND)
    }
    /// The text of `bond/list`.
    pub fn list(&self) -> String {
        let line = |e: &BondEntry| Some(e.bond.as_ref()?.line(e.shared.table.id));
        let lines = self.texts(None, line, NO_BOND).unwrap_or_default();
        format!("bond\ttype\trecircID\tmembers\n{lines}")
    }
    /// The text of `dpif-netdev/bond-show`: the buckets of bonds with `lb-output-action`.
    pub fn show_buckets(&self) -> String {
        let of = |e: &BondEntry| {
            let settings = &e.bond.as_ref()?.settings;
            let hashes = e.shared.view.load().sends == Some(Mode::BalanceTcp);
            let table = Some(&e.shared.table).filter(|_| hashes && settings.lb_output)?;
            let bucket = |n: u8| {
                format!(
                    "\t\tbucket {n} - member {}\n",
                    table.port(n).unwrap_or(PortNo::NONE.0)
                )
            };
            let buckets: String = (0..=u8::MAX).map(bucket).collect();
            Some(format!("\tbond-id {}:\n{buckets}", table.id))
        };
        match self.texts(None, of, NO_BOND) {
            Ok(text) if !text.is_empty() => format!("Bonds:\n{text}"),
            _ => String::new(),
        }
    }
    /// The text of `lacp/show`, of one port or of all.
    ///
    /// # Errors
    /// Open vSwitch's text for an unknown port.
    pub fn show_lacp(&self, name: Option<&str>) -> Result<String, &'static str> {
        self.texts(name, |e| Some(e.lacp.as_ref()?.details()), NO_LACP)
    }
    /// The text of `lacp/show-stats`, of one port or of all.
    ///
    /// # Errors
    /// Open vSwitch's text for an unknown port.
    pub fn show_lacp_stats(&self, name: Option<&str>) -> Result<String, &'static str> {
        self.texts(name, |e| Some(e.lacp.as_ref()?.statistics()), NO_LACP)
    }

    fn texts(
        &self,
        name: Option<&str>,
        of: impl Fn(&BondEntry) -> Option<String>,
        unknown: &'static str,
    ) -> Result<String, &'static str> {
        let all = self.all.lock();
        match name {
            Some(name) => {
                let entry = all.by_name.get(name).and_then(|id| all.by_id.get(id));
                entry.and_then(of).ok_or(unknown)
            }
            None => {
                let entries = all.by_name.values().filter_map(|id| all.by_id.get(id));
                Ok(entries.filter_map(of).collect())
            }
        }
    }
}
