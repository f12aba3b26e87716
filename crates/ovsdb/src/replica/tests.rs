//! The replica against a plain twin, and tests of single accessors and logs.

mod accessors;
mod log;
mod twin;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::schema::Schema;

fn schema() -> Schema {
    Schema::from_json(&json!({"name": "D", "tables": {
        "T": {"columns": {
            "scalar": {"type": "integer"},
            "maybe": {"type": {"key": "string", "min": 0}},
            "set": {"type": {"key": "integer", "min": 0, "max": "unlimited"}},
            "map": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
        }},
        "U": {"columns": {
            "flag": {"type": "boolean"}, "real": {"type": "real"},
            "refs": {"type": {"key": "uuid", "min": 0, "max": "unlimited"}},
            "keyed": {"type": {"key": "integer", "value": "uuid", "min": 0, "max": "unlimited"}},
            "named": {"type": {"key": "string", "value": "uuid", "min": 0, "max": "unlimited"}},
            "counts": {"type": {"key": "string", "value": "integer", "min": 0, "max": "unlimited"}},
        }},
    }}))
    .unwrap()
}

fn all_layouts() -> BTreeMap<Arc<str>, Arc<Layout>> {
    layouts(&schema(), &MonitorSpec::all())
}

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// A replica with these initial contents, as `<table-updates2>`.
fn loaded(contents: &Value) -> Db {
    let mut db = Db::default();
    let layouts = all_layouts();
    db.replace(
        Arc::new(schema()),
        &layouts,
        parse_updates2(contents, &layouts).unwrap(),
    )
    .unwrap();
    db
}

fn apply2(db: &mut Db, updates: &Value) -> Result<Vec<Change>, Inconsistent> {
    db.apply(parse_updates2(updates, &all_layouts())?)
}
