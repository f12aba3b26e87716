//! The database's configuration as plain values: bridges, their ports, their interfaces, their controllers.
//!
//! Reading never fails. A row that makes no sense as a whole (a bridge whose name is a path, a duplicate
//! name) is left out with a warning. A value that makes no sense gets its default, with a warning where Open
//! vSwitch gives one.

mod bad_values;
mod bond;
mod bridge;
mod controller;
mod datapath;
mod ipfix;
mod mirror;
mod port;
mod smap;
mod ssl;
mod without_effect;

pub(super) use bad_values::log_bad_values;
pub(super) use bridge::BridgeRow;
pub(super) use controller::{ControllerRow, Remote};
pub(super) use datapath::{DatapathRow, ZoneRow};
pub(super) use port::{GuestIds, InterfaceRow, PortRow, STATUS_ACTIVE, STATUS_STANDBY};
pub(super) use smap::Smap;
pub(super) use without_effect::log_without_effect;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use heddle_ovsdb::{ColumnError, Db, Row};
use heddle_stream::Settings;

use crate::inventory::WithoutEffect;

/// The row of `Open_vSwitch` and everything that it refers to.
#[derive(Clone, Debug, Default)]
pub(super) struct Desired {
    /// `Open_vSwitch.next_cfg`; `None` without that row.
    pub(super) next_cfg: Option<i64>,
    /// `Open_vSwitch.other_config`.
    pub(super) other_config: Smap,
    /// The keys that the database names, in place of those of the command line.
    pub(super) ssl: Option<Settings>,
    /// Datapaths by type.
    pub(super) datapaths: BTreeMap<String, DatapathRow>,
    /// Settings without effect.
    pub(super) without_effect: Vec<WithoutEffect>,
    /// Lines about values that make no sense.
    pub(super) bad_values: Vec<String>,
    /// Bridges by name.
    pub(super) bridges: BTreeMap<String, BridgeRow>,
}

impl Desired {
    /// Reads the whole configuration.
    pub(super) fn read(db: &Db) -> Desired {
        let Some(top) = db.first("Open_vSwitch") else {
            return Desired::default();
        };
        let mut desired = Desired {
            next_cfg: Some(value(top.int("next_cfg"))),
            other_config: Smap(value(top.map_str("other_config"))),
            ssl: ssl::read(db, top),
            datapaths: DatapathRow::read_all(db, top),
            without_effect: without_effect::list(db, top),
            bad_values: bad_values::list(db, top),
            bridges: BTreeMap::new(),
        };
        for row in db.referenced(top, "bridges", "Bridge") {
            let name = text(row, "name");
            if name.contains(['/', '\\']) || name.is_empty() {
                // A name is part of a socket's path: it must not lead anywhere else.
                log::warn!(target: "bridge", "ignoring bridge with invalid name \"{name}\"");
                continue;
            }
            match desired.bridges.entry(name) {
                Entry::Occupied(twice) => {
                    log::warn!(target: "bridge", "bridge {} specified twice", twice.key());
                }
                Entry::Vacant(free) => {
                    free.insert(BridgeRow::read(db, row));
                }
            }
        }
        desired
    }
}

/// The column's value, or the type's default. A schema without the column is older or newer, which is no
/// error.
fn value<T: Default>(column: Result<T, ColumnError>) -> T {
    column.unwrap_or_else(|error| {
        if !matches!(error, ColumnError::Absent { .. }) {
            log::warn!(target: "bridge", "{error}");
        }
        T::default()
    })
}

fn text(row: &Row, column: &str) -> String {
    value(row.str(column)).to_owned()
}

fn opt_text(row: &Row, column: &str) -> Option<String> {
    value(row.opt_str(column)).map(str::to_owned)
}
