//! A random history of a database, sent in each of the three forms of updates, against the database itself.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::value::ColumnType;
use crate::value::tests::any_json;
use crate::value::{Atom, Datum};

/// A row of the twin: values by column.
type PlainRow = BTreeMap<&'static str, Datum>;
type PlainTable = BTreeMap<Uuid, PlainRow>;

fn plain_row() -> impl Strategy<Value = PlainRow> {
    (
        0..3_i64,
        proptest::option::of("[ab]"),
        btree_set(0..5_i64, 0..5),
        btree_map("[abc]", "[xy]", 0..4),
    )
        .prop_map(|(scalar, maybe, set, map)| {
            BTreeMap::from([
                ("scalar", Datum::from(scalar)),
                ("maybe", Datum::optional(maybe)),
                ("set", Datum::set(set)),
                ("map", Datum::map(map)),
            ])
        })
}

/// States of the table one after another; few row ids, so that rows come, change and go.
fn history() -> impl Strategy<Value = Vec<PlainTable>> {
    vec(btree_map((0..5_u128).prop_map(id), plain_row(), 0..5), 1..8)
}

fn column_type(name: &str) -> ColumnType {
    schema().column("T", name).unwrap().ty.clone()
}

/// The `update2` that a server sends for the step from `old` to `new`.
fn update2(old: &PlainTable, new: &PlainTable) -> Value {
    let mut rows = serde_json::Map::new();
    for (uuid, row) in new {
        let update = match old.get(uuid) {
            None => json!({"insert": full(row, true)}),
            Some(before) if before == row => continue,
            Some(before) => {
                let diff: serde_json::Map<String, Value> = row
                    .iter()
                    .filter(|(name, value)| before[*name] != **value)
                    .map(|(name, value)| {
                        (
                            name.to_string(),
                            before[name].diff_to(value, &column_type(name)).to_json(),
                        )
                    })
                    .collect();
                json!({ "modify": diff })
            }
        };
        rows.insert(uuid.to_string(), update);
    }
    for uuid in old.keys().filter(|u| !new.contains_key(u)) {
        rows.insert(uuid.to_string(), json!({"delete": null}));
    }
    json!({ "T": rows })
}

/// The same in the `update` of RFC 7047 section 4.1.6.
fn update1(old: &PlainTable, new: &PlainTable) -> Value {
    let mut rows = serde_json::Map::new();
    for (uuid, row) in new {
        let update = match old.get(uuid) {
            None => json!({"new": full(row, false)}),
            Some(before) if before == row => continue,
            Some(before) => json!({"old": full(before, false), "new": full(row, false)}),
        };
        rows.insert(uuid.to_string(), update);
    }
    for (uuid, row) in old.iter().filter(|(u, _)| !new.contains_key(u)) {
        rows.insert(uuid.to_string(), json!({"old": full(row, false)}));
    }
    json!({ "T": rows })
}

fn full(row: &PlainRow, omit_defaults: bool) -> Value {
    row.iter()
        .filter(|(name, value)| !omit_defaults || **value != column_type(name).default_datum())
        .map(|(name, value)| (name.to_string(), value.to_json()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn contents(db: &Db) -> PlainTable {
    let names = ["scalar", "maybe", "set", "map"];
    let read = |row: &Row| {
        names
            .iter()
            .map(|n| (*n, row.datum(n).unwrap().clone()))
            .collect()
    };
    db.rows("T").map(|row| (row.uuid(), read(row))).collect()
}

/// Changes between two states, from the states themselves.
fn expected_changes(old: &PlainTable, new: &PlainTable) -> BTreeMap<Uuid, (ChangeKind, Vec<String>)> {
    let mut out = BTreeMap::new();
    for (uuid, row) in new {
        match old.get(uuid) {
            None => drop(out.insert(*uuid, (ChangeKind::Insert, vec![]))),
            Some(before) => {
                let differing: Vec<String> = row
                    .iter()
                    .filter(|(n, v)| before[*n] != **v)
                    .map(|(n, _)| n.to_string())
                    .collect();
                if !differing.is_empty() {
                    out.insert(*uuid, (ChangeKind::Modify, differing));
                }
            }
        }
    }
    for uuid in old.keys().filter(|u| !new.contains_key(u)) {
        out.insert(*uuid, (ChangeKind::Delete, vec![]));
    }
    out
}

fn by_row(changes: Vec<Change>) -> BTreeMap<Uuid, (ChangeKind, Vec<String>)> {
    let count = changes.len();
    let out: BTreeMap<_, _> = changes
        .into_iter()
        .map(|c| {
            let mut columns: Vec<String> = c.columns.iter().map(|c| c.to_string()).collect();
            columns.sort();
            (c.uuid, (c.kind, columns))
        })
        .collect();
    assert_eq!(out.len(), count, "each row once");
    out
}

proptest! {
    #[test]
    fn every_form_of_update_leads_to_the_same(history in history()) {
        let (mut one, mut two, mut three) = (loaded(&json!({})), loaded(&json!({})), Db::default());
        let layouts = all_layouts();
        let mut old = PlainTable::new();
        for new in history {
            let held = two.clone();
            let expected = expected_changes(&old, &new);
            let first = one.apply(parse_updates(&update1(&old, &new), &layouts).unwrap()).unwrap();
            let second = apply2(&mut two, &update2(&old, &new)).unwrap();
            // The whole, as after a reconnection.
            let whole = parse_updates2(&update2(&PlainTable::new(), &new), &layouts).unwrap();
            let third = three.replace(Arc::new(schema()), &layouts, whole).unwrap();
            for (db, changes) in [(&one, first), (&two, second), (&three, third)] {
                prop_assert_eq!(&contents(db), &new);
                prop_assert_eq!(&by_row(changes), &expected);
            }
            prop_assert_eq!(two.seqno() > held.seqno(), !expected.is_empty());
            prop_assert_eq!(contents(&held), old, "a state that is held does not change");
            old = new;
        }
    }

    #[test]
    fn foreign_updates_are_applied_or_refused(update in any_json(), row in any_json(), cell in any_json()) {
        let known = id(1).to_string();
        let start = json!({"T": {known.clone(): {"initial": {"map": ["map", [["a", "b"]]]}}}});
        let layouts = all_layouts();
        for json in [
            update,
            json!({"T": row.clone()}),
            json!({"T": {known.clone(): row}}),
            json!({"T": {known.clone(): {"modify": {"map": cell.clone(), "scalar": cell.clone()}}}}),
            json!({"T": {known: {"new": {"map": cell.clone(), "set": cell}}}}),
        ] {
            for parse in [parse_updates, parse_updates2] {
                let mut db = loaded(&start);
                if let Ok(updates) = parse(&json, &layouts) {
                    let _ = db.apply(updates.clone());
                    let _ = db.replace(Arc::new(schema()), &layouts, updates);
                }
                for row in db.rows("T") {
                    let _ = (row.map_str("map"), row.int("scalar"), row.ints("set"));
                }
            }
        }
    }
}

#[test]
fn rows_that_did_not_change_are_kept_over_a_reload() {
    let whole =
        json!({"T": {id(1).to_string(): {"initial": {"scalar": 1}}, id(2).to_string(): {"initial": {}}}});
    let mut db = loaded(&whole);
    let (held, layouts) = (db.clone(), all_layouts());
    let changed = json!({"T": {id(1).to_string(): {"initial": {"scalar": 1}}, id(2).to_string(): {"initial": {"set": 4}}}});
    let changes = db
        .replace(
            Arc::new(schema()),
            &layouts,
            parse_updates2(&changed, &layouts).unwrap(),
        )
        .unwrap();
    assert_eq!(changes.len(), 1);
    assert!(Arc::ptr_eq(
        held.row("T", id(1)).unwrap(),
        db.row("T", id(1)).unwrap()
    ));
    assert!(!Arc::ptr_eq(
        held.row("T", id(2)).unwrap(),
        db.row("T", id(2)).unwrap()
    ));
}

#[test]
fn another_schema_after_a_reload() {
    let mut db = loaded(
        &json!({"T": {id(1).to_string(): {"initial": {"scalar": 1, "maybe": "x"}}}, "U": {
        id(2).to_string(): {"initial": {}}}}),
    );
    let newer = Schema::from_json(&json!({"name": "D", "tables": {"T": {"columns": {
        "scalar": {"type": "integer"}, "fresh": {"type": "integer"},
    }}}}))
    .unwrap();
    let layouts = layouts(&newer, &MonitorSpec::all());
    let whole = json!({"T": {id(1).to_string(): {"initial": {"scalar": 1, "fresh": 3}}}});
    let changes = db
        .replace(
            Arc::new(newer),
            &layouts,
            parse_updates2(&whole, &layouts).unwrap(),
        )
        .unwrap();
    let changed = by_row(changes);
    assert_eq!(changed[&id(1)].0, ChangeKind::Modify);
    assert_eq!(changed[&id(1)].1, ["fresh", "map", "maybe", "set"]);
    assert_eq!(changed[&id(2)].0, ChangeKind::Delete);
    assert!(db.table("U").is_none() && db.schema().unwrap().column("T", "fresh").is_some());
    assert_eq!(
        db.row("T", id(1)).unwrap().datum("fresh"),
        Ok(&Datum::from(Atom::Integer(3)))
    );
}
