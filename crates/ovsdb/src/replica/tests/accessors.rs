//! Rows: typed accessors, and wrong values of the server.

use super::*;
use crate::value::Datum;

fn row_of_u() -> Arc<Row> {
    let db = loaded(&json!({"U": {id(1).to_string(): {"initial": {
        "flag": true, "real": 2,
        "refs": ["set", [["uuid", id(8).to_string()], ["uuid", id(7).to_string()]]],
        "keyed": ["map", [[5, ["uuid", id(9).to_string()]]]],
        "named": ["map", [["n", ["uuid", id(9).to_string()]]]],
        "counts": ["map", [["rx", 3]]],
    }}}}));
    db.row("U", id(1)).unwrap().clone()
}

#[test]
fn each_type() {
    let row = row_of_u();
    assert_eq!(row.bool("flag"), Ok(true));
    assert_eq!(row.opt_bool("flag"), Ok(Some(true)));
    assert_eq!(row.real("real"), Ok(2.0));
    assert_eq!(row.uuids("refs"), Ok(vec![id(7), id(8)]));
    assert_eq!(row.map_int_uuid("keyed").unwrap()[&5], id(9));
    assert_eq!(row.map_str_uuid("named").unwrap()["n"], id(9));
    assert_eq!(row.map_int("counts").unwrap()["rx"], 3);
    assert_eq!(row.table().as_ref(), "U");
    assert!(row.has("flag") && !row.has("Flag"));
}

#[test]
fn the_wrong_accessor_is_an_error() {
    let row = row_of_u();
    assert!(matches!(row.str("flag"), Err(ColumnError::Type { .. })));
    assert!(
        matches!(row.uuid_of("refs"), Err(ColumnError::Type { .. })),
        "two are not one"
    );
    assert!(matches!(row.map_str("flag"), Err(ColumnError::Type { .. })));
    assert!(matches!(row.map_str("counts"), Err(ColumnError::Type { .. })));
    assert!(matches!(row.ints("counts"), Err(ColumnError::Type { .. })));
    assert!(matches!(
        row.map_get("counts", "rx"),
        Err(ColumnError::Type { .. })
    ));
    assert_eq!(row.map_get("counts", "tx"), Ok(None));
    assert!(matches!(
        row.bool("nothing"),
        Err(ColumnError::NotMonitored { .. })
    ));
}

#[test]
fn a_bad_value_spoils_its_column_only() {
    let uuid = id(1).to_string();
    let mut db = loaded(&json!({"T": {uuid.clone(): {"initial": {
        "scalar": "seven", "maybe": "here", "set": ["set", [1, "two"]], "map": ["map", [["a"]]],
    }}}}));
    let row = db.row("T", id(1)).unwrap();
    assert_eq!(row.opt_str("maybe"), Ok(Some("here")));
    for column in ["scalar", "set", "map"] {
        assert!(
            matches!(row.datum(column), Err(ColumnError::Bad { .. })),
            "{column}"
        );
    }
    // A difference that replaces a whole value heals it; a difference to an unknown set or map is unknown.
    let update = json!({"T": {uuid: {"modify": {"scalar": 7, "set": 3, "unknown_column": 1}}}});
    let changes = apply2(&mut db, &update).unwrap();
    let row = db.row("T", id(1)).unwrap();
    assert_eq!(row.int("scalar"), Ok(7));
    assert!(row.ints("set").is_err());
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].columns, [Arc::from("scalar")]);
}

#[test]
fn an_inconsistent_update_changes_nothing() {
    let mut db = loaded(&json!({"T": {id(1).to_string(): {"initial": {"scalar": 1}}}}));
    let before = db.clone();
    for (why, update) in [
        (
            "unknown row",
            json!({"T": {id(1).to_string(): {"modify": {"scalar": 2}}, id(2).to_string(): {"modify": {}}}}),
        ),
        (
            "row id",
            json!({"T": {id(1).to_string(): {"modify": {"scalar": 2}}, "x": {"delete": null}}}),
        ),
        ("operation", json!({"T": {id(1).to_string(): {"replace": {}}}})),
        ("row", json!({"T": {id(1).to_string(): {"insert": 5}}})),
        ("tables", json!([])),
        ("rows", json!({"T": null})),
    ] {
        assert!(apply2(&mut db, &update).is_err(), "{why}");
        assert_eq!(db.seqno(), before.seqno());
        assert_eq!(db.row("T", id(1)).unwrap().int("scalar"), Ok(1), "{why}");
    }
    let unknown = json!({"V": {"x": 1}, "T": {id(9).to_string(): {"delete": null}}});
    assert_eq!(
        apply2(&mut db, &unknown),
        Ok(vec![]),
        "passed over: not monitored, or not there anyway"
    );
}

#[test]
fn queries_of_a_state() {
    let db = loaded(&json!({"U": {id(1).to_string(): {"initial": {
        "refs": ["set", [["uuid", id(2).to_string()], ["uuid", id(3).to_string()], ["uuid", id(4).to_string()]]],
    }}}, "T": {id(2).to_string(): {"initial": {"maybe": "b"}}, id(4).to_string(): {"initial": {}}}}));
    let row = db.first("U").unwrap();
    let found: Vec<Uuid> = db.referenced(row, "refs", "T").iter().map(|r| r.uuid()).collect();
    assert_eq!(found, [id(2), id(4)], "a dangling reference is passed over");
    assert!(db.referenced(row, "flag", "T").is_empty());
    assert_eq!(db.find("T", "maybe", "b").unwrap().uuid(), id(2));
    assert!(db.find("T", "maybe", "c").is_none() && db.find("V", "maybe", "c").is_none());
    assert_eq!(db.rows("T").count(), 2);
    assert_eq!(db.rows("V").count(), 0);
    assert_eq!(
        *db.row("T", id(4)).unwrap().datum("scalar").unwrap(),
        Datum::from(0_i64)
    );
}
