//! The limit of a port's messages of IGMP and MLD ([`ReportBudget`](crate::snooping::ReportBudget)).
//!
//! NORMAL charges ports for the messages that it snoops. When a port has used up its budget, its messages are
//! dropped before any rule sees them, by one cached flow. So a storm costs no translations. NORMAL itself
//! drops messages that come in by a patch port, or after a recirculation.

use super::{Pipeline, drop_for};
use crate::model::{BridgeView, PortBundle};
use crate::snooping::{RECORDS_PER_SECOND, SnoopingTable};
use heddle_datapath_api::{DropReason, Purpose, Request, Translation};
use heddle_flow::FlowKey;
use heddle_openflow::Port;
use heddle_wire::eth::ethertype as eth;
use heddle_wire::ip::proto;
use heddle_wire::membership::{is_mld_report, mld};

/// Whether it may be a message that snooping charges for.
fn is_message(key: &FlowKey) -> bool {
    let ty = u8::try_from(key.tp_src).unwrap_or(0);
    let is_v6 = || key.nw_proto == proto::ICMPV6 && (ty == mld::QUERY || is_mld_report(ty));
    match key.dl_type {
        eth::IP => key.nw_proto == proto::IGMP,
        eth::IPV6 => is_v6(),
        _ => false,
    }
}

/// Whether a port has used up its budget. The caller has the translation depend on
/// [`SnoopingTable::limit_slot`] before.
pub(super) fn is_over(
    table: &SnoopingTable,
    bridge: &BridgeView,
    bundle: &PortBundle,
    now_ms: u64,
    logs: bool,
) -> bool {
    if bundle.reports.has_room(now_ms) {
        return false;
    }
    table.set_limited();
    if logs && bundle.reports.take_unreported() {
        log::warn!(target: "mcast_snooping",
            "bridge {}: port {} sends more than {RECORDS_PER_SECOND} group records of IGMP and MLD a second: \
             further messages are dropped (drop_action_mcast_report_limit)",
            bridge.name, bundle.name);
    }
    true
}

impl Pipeline {
    /// Makes a drop for all messages of a port that has used up its budget.
    pub(super) fn limit_reports(
        &self,
        bridge: &BridgeView,
        no: Port,
        request: &Request<'_>,
        out: &mut Translation,
    ) -> bool {
        let key = request.key;
        let is_first = key.recirc_id == 0 && key.dl_dst[0] & 1 != 0;
        let Some(snooping) = bridge.snooping.as_ref().filter(|_| is_first && is_message(key)) else {
            return false;
        };
        let bundle = bridge.ports.get(&no).and_then(|p| bridge.bundles.get(&p.bundle));
        let Some(bundle) = bundle else { return false };
        let dep = self.generations.read(snooping.table.limit_slot());
        let logs = request.purpose == Purpose::Miss;
        if !is_over(&snooping.table, bridge, bundle, request.now_ms, logs) {
            return false;
        }
        drop_for(DropReason::ReportLimit, out);
        out.deps.push(dep);
        let mask = &mut out.mask.0;
        (mask.dl_type, mask.nw_proto) = (u16::MAX, u8::MAX);
        mask.dl_dst[0] = 1;
        if key.dl_type == eth::IPV6 {
            mask.tp_src = u16::MAX;
        }
        true
    }
}
