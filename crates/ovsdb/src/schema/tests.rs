//! Schemas: a usual one, damaged ones, any JSON.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::value::tests::any_json;
use crate::value::{Atom, AtomType, Datum};

#[test]
fn a_usual_schema() {
    let schema = Schema::from_json(&json!({"name": "Open_vSwitch", "version": "8.3.1", "tables": {
        "Port": {"isRoot": true, "columns": {
            "name": {"type": "string", "mutable": false},
            "tag": {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 4095}, "min": 0, "max": 1}},
            "lacp": {"type": {"key": {"type": "string", "enum": ["set", ["active", "off"]]}, "min": 0}},
            "interfaces": {"type": {"key": {"type": "uuid", "refTable": "Interface"}, "max": "unlimited"}},
            "statistics": {"ephemeral": true,
                "type": {"key": "string", "value": "integer", "min": 0, "max": "unlimited"}},
        }},
    }}))
    .unwrap();
    assert_eq!(schema.version, "8.3.1");
    assert_eq!(schema.major_minor(), Some((8, 3)));
    assert!(schema.tables.contains_key("Port") && !schema.tables.contains_key("Bridge"));
    assert!(schema.column("Port", "tag").is_some() && schema.column("Port", "no").is_none());
    assert!(schema.tables["Port"].is_root);
    let column = |name: &str| schema.column("Port", name).unwrap();
    assert!(!column("name").mutable && column("tag").mutable);
    assert!(column("statistics").ephemeral);
    assert_eq!((column("tag").ty.min, column("tag").ty.max), (0, 1));
    assert_eq!(column("tag").ty.key.integer_range, (0, 4095));
    assert_eq!(
        column("lacp").ty.key.allowed,
        Some(vec![Atom::from("active"), Atom::from("off")])
    );
    assert_eq!(column("interfaces").ty.max, usize::MAX);
    let reference = column("interfaces").ty.key.reference.clone().unwrap();
    assert!(reference.strong && reference.table == "Interface");
    assert_eq!(column("name").ty.default_datum(), Datum::from(""));
    assert_eq!(column("tag").ty.default_datum(), Datum::empty());
    assert_eq!(
        column("statistics").ty.default_datum(),
        Datum::map::<Atom, Atom>([])
    );
    assert_eq!(
        column("statistics").ty,
        ColumnType::map(AtomType::String, AtomType::Integer)
    );
}

#[test]
fn a_damaged_column_is_left_out() {
    let schema = Schema::from_json(&json!({"name": "D", "tables": {"T": {"columns": {
        "good": {"type": "integer"},
        "no_type": {},
        "odd_name": {"type": "complex"},
        "odd_min": {"type": {"key": "integer", "min": 2, "max": 3}},
        "odd_max": {"type": {"key": "integer", "max": -1}},
        "odd_enum": {"type": {"key": {"type": "integer", "enum": "x"}}},
        "no_object": 3,
    }}, "U": 7}}))
    .unwrap();
    assert_eq!(schema.tables.len(), 1);
    let names: Vec<&str> = schema.tables["T"].columns.keys().map(|k| &**k).collect();
    assert_eq!(names, ["good"]);
    for bad in [
        json!(null),
        json!({}),
        json!({"name": "x"}),
        json!({"name": 1, "tables": {}}),
    ] {
        assert!(Schema::from_json(&bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn any_json_is_read_or_refused(json in any_json(), column in any_json()) {
        let _ = Schema::from_json(&json);
        let _ = Schema::from_json(&json!({"name": "D", "tables": {"T": {"columns": {"c": {"type": column}}}}}));
    }
}
