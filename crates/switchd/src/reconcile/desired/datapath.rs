//! Rows of `Datapath`, which clients such as ovn-controller and `ovs-vsctl add-zone-tp` make: the settings of
//! connection tracking zones.

use std::collections::BTreeMap;

use heddle_ovsdb::{Db, Row, Uuid};

use super::value;

/// One row of `Datapath`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reconcile) struct DatapathRow {
    pub(in crate::reconcile) uuid: Uuid,
    /// Maximum number of connections of a zone without a limit of its own. (Schemas before 8.5 lack it.)
    pub(in crate::reconcile) default_limit: Option<u32>,
    pub(in crate::reconcile) zones: BTreeMap<u16, ZoneRow>,
}

/// One row of `CT_Zone`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::reconcile) struct ZoneRow {
    /// Seconds by name of the setting; empty if there is no policy.
    pub(in crate::reconcile) timeouts: BTreeMap<String, u32>,
    /// Maximum number of connections of the zone. (Schemas before 8.5 lack it.)
    pub(in crate::reconcile) limit: Option<u32>,
}

impl DatapathRow {
    /// Reads the rows of `Open_vSwitch.datapaths`, by the datapath's type.
    pub(super) fn read_all(db: &Db, top: &Row) -> BTreeMap<String, DatapathRow> {
        let all = value(top.map_str_uuid("datapaths")).into_iter();
        all.filter_map(|(name, uuid)| Some((name, Self::read(db, db.row("Datapath", uuid)?))))
            .collect()
    }

    fn read(db: &Db, row: &Row) -> DatapathRow {
        let zones = value(row.map_int_uuid("ct_zones")).into_iter();
        let zones = zones.filter_map(|(zone, uuid)| {
            let zone = u16::try_from(zone).ok()?;
            Some((zone, ZoneRow::read(db, db.row("CT_Zone", uuid)?)))
        });
        DatapathRow {
            uuid: row.uuid(),
            default_limit: optional(row, "ct_zone_default_limit"),
            zones: zones.collect(),
        }
    }
}

impl ZoneRow {
    fn read(db: &Db, row: &Row) -> ZoneRow {
        let policy = value(row.opt_uuid("timeout_policy"));
        let policy = policy.and_then(|uuid| db.row("CT_Timeout_Policy", uuid));
        let timeouts = policy.map_or_else(BTreeMap::new, |p| value(p.map_int("timeouts")));
        ZoneRow {
            timeouts: timeouts
                .into_iter()
                .filter_map(|(name, seconds)| Some((name, number(Some(seconds))?)))
                .collect(),
            limit: optional(row, "limit"),
        }
    }
}

/// A number in a column that not all schemas have.
fn optional(row: &Row, column: &str) -> Option<u32> {
    number(row.has(column).then(|| value(row.opt_int(column))).flatten())
}

/// The schema allows 32 bits.
fn number(n: Option<i64>) -> Option<u32> {
    n.and_then(|n| u32::try_from(n).ok())
}
