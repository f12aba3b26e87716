//! Values: JSON there and back, differences against a plain twin, foreign JSON.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::value::{BaseType, ColumnType};

/// The type of exactly one atom.
fn scalar(atom: AtomType) -> ColumnType {
    ColumnType {
        key: BaseType::plain(atom),
        value: None,
        min: 1,
        max: 1,
    }
}

/// Any JSON, with the tags of OVSDB's notation made likely.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(set|map|uuid|named-uuid|initial|insert|modify|delete|new|old|error|columns|type|key)"
            .prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        any::<u128>().prop_map(|u| json!(["uuid", Uuid::from_u128(u).to_string()])),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec(inner.clone(), 0..4).prop_map(|v| json!(["set", v])),
            vec((inner.clone(), inner.clone()), 0..4).prop_map(|v| json!(["map", v])),
            btree_map(
                "(T|U|name|set|map|new|old|modify|insert|type|columns|tables|.{0,3})",
                inner,
                0..5
            )
            .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn atom_type() -> impl Strategy<Value = AtomType> {
    prop_oneof![
        Just(AtomType::Integer),
        Just(AtomType::Real),
        Just(AtomType::Boolean),
        Just(AtomType::String),
        Just(AtomType::Uuid),
    ]
}

/// Atoms of a type, from few values so that elements meet, and from all.
fn atom(ty: AtomType) -> BoxedStrategy<Atom> {
    match ty {
        AtomType::Integer => prop_oneof![(-3..3_i64), any::<i64>()]
            .prop_map(Atom::from)
            .boxed(),
        AtomType::Real => prop_oneof![
            (-3..3_i32).prop_map(f64::from),
            any::<f64>().prop_filter("finite", |x| x.is_finite())
        ]
        .prop_map(Atom::from)
        .boxed(),
        AtomType::Boolean => any::<bool>().prop_map(Atom::from).boxed(),
        AtomType::String => prop_oneof!["[abc]", ".{0,8}"].prop_map(Atom::from).boxed(),
        AtomType::Uuid => prop_oneof![0..4_u128, any::<u128>()]
            .prop_map(|u| Atom::from(Uuid::from_u128(u)))
            .boxed(),
    }
}

fn column_type() -> impl Strategy<Value = ColumnType> {
    (
        atom_type(),
        proptest::option::of(atom_type()),
        prop_oneof![Just(1), Just(usize::MAX)],
    )
        .prop_map(|(k, v, max)| ColumnType {
            key: BaseType::plain(k),
            value: v.map(BaseType::plain),
            min: 0,
            max,
        })
}

fn datum(ty: &ColumnType) -> BoxedStrategy<Datum> {
    let size = 0..=ty.max.min(8);
    match &ty.value {
        None => vec(atom(ty.key.atom), size).prop_map(Datum::set).boxed(),
        Some(value) => vec((atom(ty.key.atom), atom(value.atom)), size)
            .prop_map(Datum::map)
            .boxed(),
    }
}

fn typed_datum() -> impl Strategy<Value = (ColumnType, Datum)> {
    column_type().prop_flat_map(|ty| (Just(ty.clone()), datum(&ty)))
}

fn two_of_a_type() -> impl Strategy<Value = (ColumnType, Datum, Datum)> {
    column_type().prop_flat_map(|ty| (Just(ty.clone()), datum(&ty), datum(&ty)))
}

/// The rules of ovsdb-server(7) section 4.1.14, element by element on ordered containers.
fn plain_apply(old: &Datum, diff: &Datum, ty: &ColumnType) -> Datum {
    if ty.max == 1 {
        return diff.clone();
    }
    if let (Some(old), Some(diff)) = (old.as_set(), diff.as_set()) {
        let mut out: BTreeSet<Atom> = old.iter().cloned().collect();
        for atom in diff {
            if !out.remove(atom) {
                out.insert(atom.clone());
            }
        }
        return Datum::set(out);
    }
    let mut out: BTreeMap<Atom, Atom> = old.as_map().unwrap().iter().cloned().collect();
    for (key, value) in diff.as_map().unwrap() {
        if out.get(key) == Some(value) {
            out.remove(key);
        } else {
            out.insert(key.clone(), value.clone());
        }
    }
    Datum::map(out)
}

proptest! {
    #[test]
    fn json_there_and_back((ty, datum) in typed_datum()) {
        let text = datum.to_json().to_string();
        let back = Datum::from_json(&serde_json::from_str(&text).unwrap(), &ty).unwrap();
        prop_assert_eq!(back, datum);
    }

    #[test]
    fn foreign_json_is_read_or_refused(json in any_json(), ty in column_type()) {
        if let Ok(datum) = Datum::from_json(&json, &ty) {
            let again = Datum::from_json(&datum.to_json(), &ty).unwrap();
            prop_assert_eq!(again, datum);
        }
    }

    #[test]
    fn differences_apply_as_the_plain_twin_does((ty, old, diff) in two_of_a_type()) {
        prop_assert_eq!(old.apply_diff(&diff, &ty), plain_apply(&old, &diff, &ty));
    }

    #[test]
    fn a_difference_leads_from_old_to_new((ty, old, new) in two_of_a_type()) {
        prop_assert_eq!(old.apply_diff(&old.diff_to(&new, &ty), &ty), new);
    }

    #[test]
    fn values_of_a_type_conform_to_it((ty, datum) in typed_datum()) {
        prop_assume!(datum.check_sendable().is_ok());
        prop_assert_eq!(datum.conform(&ty).unwrap(), datum);
    }

    #[test]
    fn order_of_atoms_is_total(ty in atom_type().prop_flat_map(|t| (atom(t), atom(t), atom(t)))) {
        let (a, b, c) = ty;
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        if a <= b && b <= c {
            prop_assert!(a <= c);
        }
    }
}

#[test]
fn notation_of_rfc_7047() {
    let strings = ColumnType::set(AtomType::String);
    assert_eq!(Datum::from_json(&json!("one"), &strings), Ok(Datum::from("one")));
    assert_eq!(
        Datum::from_json(&json!(["set", ["b", "a", "b"]]), &strings),
        Ok(Datum::set(["a", "b"]))
    );
    assert_eq!(Datum::set(["x"]).to_json(), json!("x"));
    assert_eq!(Datum::empty().to_json(), json!(["set", []]));
    let map = ColumnType::map(AtomType::String, AtomType::Integer);
    assert_eq!(
        Datum::from_json(&json!(["map", [["k", 1]]]), &map),
        Ok(Datum::map([("k", 1_i64)]))
    );
    assert_eq!(Datum::map([("k", 1_i64), ("k", 2)]), Datum::map([("k", 2_i64)]));
    let twice = Datum::from_json(&json!(["map", [["k", 1], ["k", 2]]]), &map);
    assert!(matches!(twice, Err(ValueError::DuplicateKey(_))));
    let uuid = scalar(AtomType::Uuid);
    let text = "36bef046-7da7-43a5-905a-c17899216fcb";
    assert_eq!(
        Datum::from_json(&json!(["uuid", text]), &uuid).unwrap().to_json(),
        json!(["uuid", text])
    );
    let named = Datum::from_json(&json!(["named-uuid", "row1"]), &uuid).unwrap();
    assert_eq!(named.to_json(), json!(["named-uuid", "row1"]));
    // Other spellings of a UUID that the uuid crate reads are not OVSDB's.
    for bad in [
        "36bef0467da743a5905ac17899216fcb",
        "{36bef046-7da7-43a5-905a-c17899216fcb}",
        "",
    ] {
        assert!(Datum::from_json(&json!(["uuid", bad]), &uuid).is_err(), "{bad}");
    }
}

#[test]
fn numbers() {
    let integer = |text: &str| Atom::from_json(&serde_json::from_str(text).unwrap(), AtomType::Integer);
    assert_eq!(integer("9223372036854775807"), Ok(Atom::Integer(i64::MAX)));
    assert_eq!(integer("-9223372036854775808"), Ok(Atom::Integer(i64::MIN)));
    assert_eq!(integer("2.0"), Ok(Atom::Integer(2)));
    assert!(matches!(
        integer("9223372036854775808"),
        Err(ValueError::Range(_))
    ));
    assert!(matches!(integer("1e300"), Err(ValueError::Range(_))));
    assert!(matches!(integer("1.5"), Err(ValueError::Range(_))));
    assert_eq!(Atom::from_json(&json!(1), AtomType::Real), Ok(Atom::Real(1.0)));
    assert_eq!(Atom::Real(0.0), Atom::Real(-0.0));
    // A fast float parser reads this one a digit off.
    let close = Datum::from(3.559416909536273e165).to_json().to_string();
    let real = scalar(AtomType::Real);
    let back = Datum::from_json(&serde_json::from_str(&close).unwrap(), &real);
    assert_eq!(back, Ok(Datum::from(3.559416909536273e165)));
}

#[test]
fn what_a_column_cannot_hold() {
    let mut ty = ColumnType::optional(AtomType::String);
    ty.key.allowed = Some(vec![Atom::from("up"), Atom::from("down")]);
    assert_eq!(Datum::from("up").conform(&ty), Ok(Datum::from("up")));
    assert_eq!(Datum::map::<Atom, Atom>([]).conform(&ty), Ok(Datum::empty()));
    assert!(matches!(
        Datum::from("left").conform(&ty),
        Err(ValueError::NotAllowed(_))
    ));
    assert!(matches!(
        Datum::set(["up", "down"]).conform(&ty),
        Err(ValueError::Size { found: 2, .. })
    ));
    assert!(matches!(
        Datum::from(1_i64).conform(&ty),
        Err(ValueError::WrongType { .. })
    ));
    assert!(matches!(
        Datum::empty().conform(&scalar(AtomType::String)),
        Err(ValueError::Size { .. })
    ));
    let map = ColumnType::map(AtomType::String, AtomType::String);
    assert_eq!(Datum::empty().conform(&map), Ok(Datum::map::<Atom, Atom>([])));
    assert!(matches!(
        Datum::map([("a", "b\0")]).conform(&map),
        Err(ValueError::Nul)
    ));
    let real = scalar(AtomType::Real);
    assert_eq!(Datum::from(3_i64).conform(&real), Ok(Datum::from(3.0)));
    assert!(matches!(
        Datum::from(f64::NAN).conform(&real),
        Err(ValueError::Range(_))
    ));
    let mut port = scalar(AtomType::Integer);
    port.key.integer_range = (1, 65535);
    assert!(Datum::from(0_i64).conform(&port).is_err() && Datum::from(65535_i64).conform(&port).is_ok());
}

#[test]
fn excerpts_are_short() {
    assert_eq!(excerpt(&json!([1, 2])), "[1,2]");
    assert_eq!(excerpt(&json!(vec![0; 1000])), "array of 1000 elements");
    assert!(excerpt(&json!("\u{1f9f5}".repeat(1000))).chars().count() <= 83);
}
