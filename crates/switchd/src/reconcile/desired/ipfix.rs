//! Rows of `IPFIX` and `Flow_Sample_Collector_Set`.

use heddle_ofproto::sampling::{BridgeSampling, ExporterConfig, IpfixConfig};
use heddle_ovsdb::{Db, Row};

use super::{Smap, value};
use std::collections::BTreeMap;

/// Packets per sample if the database has no number.
const DEFAULT_SAMPLING: u32 = 400;

/// The packets that a bridge samples, and their collectors.
pub(super) fn read(db: &Db, bridge: &Row) -> IpfixConfig {
    let own = db.referenced(bridge, "ipfix", "IPFIX").into_iter().next();
    let own_sets = db.rows("Flow_Sample_Collector_Set").filter_map(|set| {
        let of_this = value(set.opt_uuid("bridge")) == Some(bridge.uuid());
        let id = u32::try_from(value(set.int("id"))).ok()?;
        of_this.then_some((id, set))
    });
    let (mut sets, mut local_groups) = (BTreeMap::new(), BTreeMap::new());
    for (id, set) in own_sets {
        let row = value(set.opt_uuid("ipfix")).and_then(|uuid| db.row("IPFIX", uuid));
        sets.extend(row.and_then(|row| exporter(row)).map(|e| (id, e)));
        // Schemas before Open vSwitch 3.4 have no such column; it reads as empty there.
        local_groups.extend(number(set, "local_group_id").map(|group| (id, group)));
    }
    IpfixConfig {
        bridge: own.and_then(|row| {
            let other_config = Smap(value(row.map_str("other_config")));
            Some(BridgeSampling {
                exporter: exporter(row)?,
                sampling: number(row, "sampling").unwrap_or(DEFAULT_SAMPLING),
                domain: number(row, "obs_domain_id").unwrap_or(0),
                point: number(row, "obs_point_id").unwrap_or(0),
                // `true` turns it off, as in Open vSwitch, whatever the keys are called.
                input: !other_config.bool("enable-input-sampling", false),
                output: !other_config.bool("enable-output-sampling", false),
            })
        }),
        sets,
        local_groups,
    }
}

/// Settings that all exporters have; `None`: the row names no collector.
fn exporter(row: &Row) -> Option<ExporterConfig> {
    let other_config = Smap(value(row.map_str("other_config")));
    let targets = value(row.strs("targets")).into_iter().map(str::to_owned);
    Some(ExporterConfig {
        targets: targets.collect(),
        active_timeout_s: number(row, "cache_active_timeout").unwrap_or(0),
        max_flows: number(row, "cache_max_flows").unwrap_or(0),
        tunnels: other_config.bool("enable-tunnel-sampling", true),
        virtual_obs_id: other_config.get("virtual_obs_id").map(str::to_owned),
    })
    .filter(|e| !e.targets.is_empty())
}

fn number(row: &Row, column: &str) -> Option<u32> {
    value(row.opt_int(column)).and_then(|n| u32::try_from(n).ok())
}
