//! From `<database-schema>` in JSON to [`Schema`] (RFC 7047 section 3.2).
//!
//! The server is not trusted to follow the RFC: every member is checked, nothing is indexed.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{BaseType, ColumnSchema, ColumnType, Schema, SchemaError, TableSchema};
use crate::value::Reference;
use crate::value::{AtomType, Datum, excerpt};

fn error(at: &str, why: impl Into<String>) -> SchemaError {
    SchemaError {
        at: at.to_string(),
        why: why.into(),
    }
}

pub(super) fn schema(json: &Value) -> Result<Schema, SchemaError> {
    let top = json.as_object().ok_or_else(|| error("schema", "not an object"))?;
    let name = top
        .get("name")
        .and_then(Value::as_str)
        .ok_or_else(|| error("name", "missing"))?;
    let version = top.get("version").and_then(Value::as_str).unwrap_or_default();
    let tables = top
        .get("tables")
        .and_then(Value::as_object)
        .ok_or_else(|| error("tables", "missing"))?;
    let mut out = BTreeMap::new();
    for (table, body) in tables {
        match body.get("columns").and_then(Value::as_object) {
            Some(columns) => {
                let is_root = body.get("isRoot").and_then(Value::as_bool).unwrap_or(false);
                out.insert(
                    Arc::from(table.as_str()),
                    TableSchema {
                        columns: read_columns(table, columns),
                        is_root,
                    },
                );
            }
            None => log::warn!("table {table} of schema {name} has no columns, left out"),
        }
    }
    Ok(Schema {
        name: name.to_string(),
        version: version.to_string(),
        tables: out,
    })
}

fn read_columns(table: &str, columns: &Map<String, Value>) -> BTreeMap<Arc<str>, ColumnSchema> {
    let mut out = BTreeMap::new();
    for (name, body) in columns {
        let flag = |key: &str, default: bool| body.get(key).and_then(Value::as_bool).unwrap_or(default);
        let at = format!("{table}.{name}");
        match body
            .get("type")
            .ok_or_else(|| error(&at, "no type"))
            .and_then(|t| column_type(&at, t))
        {
            Ok(ty) => {
                let column = ColumnSchema {
                    ty,
                    ephemeral: flag("ephemeral", false),
                    mutable: flag("mutable", true),
                };
                out.insert(Arc::from(name.as_str()), column);
            }
            Err(e) => log::warn!("{e}; column left out"),
        }
    }
    out
}

fn column_type(at: &str, json: &Value) -> Result<ColumnType, SchemaError> {
    let Some(body) = json.as_object() else {
        return Ok(ColumnType {
            key: base_type(at, json)?,
            value: None,
            min: 1,
            max: 1,
        });
    };
    let key = body.get("key").ok_or_else(|| error(at, "type without key"))?;
    let value = body.get("value").map(|v| base_type(at, v)).transpose()?;
    let count = |member: &str| match body.get(member) {
        None => Ok(1),
        Some(Value::String(s)) if s == "unlimited" => Ok(usize::MAX),
        Some(n) => n
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| error(at, format!("{member} is {}", excerpt(n)))),
    };
    let (min, max) = (count("min")?, count("max")?);
    if min > 1 || max < 1 {
        return Err(error(at, "min above 1 or max below 1"));
    }
    Ok(ColumnType {
        key: base_type(at, key)?,
        value,
        min,
        max,
    })
}

fn base_type(at: &str, json: &Value) -> Result<BaseType, SchemaError> {
    let unknown = || error(at, format!("unknown type {}", excerpt(json)));
    if let Value::String(name) = json {
        return AtomType::from_name(name).map(BaseType::plain).ok_or_else(unknown);
    }
    let name = json.get("type").and_then(Value::as_str).ok_or_else(unknown)?;
    let mut base = BaseType::plain(AtomType::from_name(name).ok_or_else(unknown)?);
    if let Some(list) = json.get("enum") {
        let ty = ColumnType {
            key: base.clone(),
            value: None,
            min: 0,
            max: usize::MAX,
        };
        let list = Datum::from_json(list, &ty).map_err(|e| error(at, format!("enum: {e}")))?;
        base.allowed = list.as_set().map(<[_]>::to_vec);
    }
    let int = |member: &str, default: i64| json.get(member).and_then(Value::as_i64).unwrap_or(default);
    base.integer_range = (int("minInteger", i64::MIN), int("maxInteger", i64::MAX));
    let real = |member: &str, default: f64| json.get(member).and_then(Value::as_f64).unwrap_or(default);
    base.real_range = (real("minReal", f64::MIN), real("maxReal", f64::MAX));
    let length = |member: &str, default: usize| {
        json.get(member)
            .and_then(Value::as_u64)
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default)
    };
    base.length_range = (length("minLength", 0), length("maxLength", usize::MAX));
    if let Some(table) = json.get("refTable").and_then(Value::as_str) {
        let strong = json.get("refType").and_then(Value::as_str) != Some("weak");
        base.reference = Some(Reference {
            table: table.to_string(),
            strong,
        });
    }
    Ok(base)
}
