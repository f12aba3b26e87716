//! Values of one column of one row: a set or a map of atoms (`<value>`, RFC 7047 section 5.1).
//!
//! A scalar is a set of one, an optional scalar a set of none or one. The elements are kept sorted and
//! without duplicates. So equality is element-wise, look-up is a binary search, and a value of one element
//! costs one element.

use serde_json::{Value, json};

use super::{Atom, AtomType, ValueError, excerpt};
use crate::value::ColumnType;

/// A column's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datum(pub(super) Repr);

/// Invariant: `Set` strictly ascending; `Map` strictly ascending by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repr {
    Set(Vec<Atom>),
    Map(Vec<(Atom, Atom)>),
}

impl Datum {
    /// A set; duplicates fall away.
    pub fn set<A: Into<Atom>>(atoms: impl IntoIterator<Item = A>) -> Datum {
        let mut atoms: Vec<Atom> = atoms.into_iter().map(Into::into).collect();
        atoms.sort_unstable();
        atoms.dedup();
        Datum(Repr::Set(atoms))
    }

    /// A map; of equal keys the last one given stays.
    pub fn map<K: Into<Atom>, V: Into<Atom>>(pairs: impl IntoIterator<Item = (K, V)>) -> Datum {
        let mut pairs: Vec<(Atom, Atom)> = pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        // Stable sort of the reversed list: the last given comes first among equals, and dedup keeps the
        // first.
        pairs.reverse();
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|later, first| later.0 == first.0);
        Datum(Repr::Map(pairs))
    }

    /// The set without elements; also an absent optional scalar.
    pub fn empty() -> Datum {
        Datum(Repr::Set(Vec::new()))
    }

    /// An optional scalar.
    pub fn optional<A: Into<Atom>>(atom: Option<A>) -> Datum {
        Datum::set(atom)
    }

    /// The elements, ascending, if this is a set.
    pub fn as_set(&self) -> Option<&[Atom]> {
        match &self.0 {
            Repr::Set(s) => Some(s),
            Repr::Map(_) => None,
        }
    }

    /// The pairs, ascending by key, if this is a map.
    pub fn as_map(&self) -> Option<&[(Atom, Atom)]> {
        match &self.0 {
            Repr::Map(m) => Some(m),
            Repr::Set(_) => None,
        }
    }

    /// Number of elements or pairs.
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Set(s) => s.len(),
            Repr::Map(m) => m.len(),
        }
    }

    /// No element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads `<value>` as a value of `ty`. The number of elements is not checked: a diff may have any number.
    /// The accessor checks the number in a row.
    ///
    /// # Errors
    /// [`ValueError`] for JSON of another shape or type.
    pub fn from_json(json: &Value, ty: &ColumnType) -> Result<Datum, ValueError> {
        match &ty.value {
            Some(value) => map_from_json(json, ty.key.atom, value.atom),
            None => set_from_json(json, ty.key.atom),
        }
    }

    /// Writes `<value>`: a set of one as the bare atom, as the reference does.
    pub fn to_json(&self) -> Value {
        match &self.0 {
            Repr::Set(atoms) => match atoms.as_slice() {
                [one] => one.to_json(),
                all => json!(["set", all.iter().map(Atom::to_json).collect::<Vec<_>>()]),
            },
            Repr::Map(pairs) => {
                let pairs: Vec<Value> = pairs
                    .iter()
                    .map(|(k, v)| json!([k.to_json(), v.to_json()]))
                    .collect();
                json!(["map", pairs])
            }
        }
    }

    /// The same value in the shape of `ty`, checked against all limits of the type. An empty set becomes an
    /// empty map if a map is wanted, an integer becomes a real if a real is wanted.
    ///
    /// # Errors
    /// [`ValueError`] where the column cannot hold the value; nothing has been sent then.
    pub fn conform(&self, ty: &ColumnType) -> Result<Datum, ValueError> {
        let out = match (&self.0, &ty.value) {
            (Repr::Set(s), Some(_)) if s.is_empty() => Datum(Repr::Map(Vec::new())),
            (Repr::Map(m), None) if m.is_empty() => Datum::empty(),
            (Repr::Set(s), None) => {
                let atoms = s
                    .iter()
                    .map(|a| ty.key.conform(a))
                    .collect::<Result<Vec<_>, _>>()?;
                Datum::set(atoms)
            }
            (Repr::Map(m), Some(value)) => {
                let pairs = m
                    .iter()
                    .map(|(k, v)| Ok((ty.key.conform(k)?, value.conform(v)?)))
                    .collect::<Result<Vec<_>, ValueError>>()?;
                Datum::map(pairs)
            }
            (_, Some(_)) => {
                return Err(ValueError::WrongType {
                    expected: "map",
                    found: excerpt(&self.to_json()),
                });
            }
            (_, None) => {
                return Err(ValueError::WrongType {
                    expected: "set",
                    found: excerpt(&self.to_json()),
                });
            }
        };
        if out.len() < ty.min || out.len() > ty.max {
            return Err(ValueError::Size {
                found: out.len(),
                min: ty.min,
                max: ty.max,
            });
        }
        Ok(out)
    }

    /// Whether a server will take every atom; see [`Atom::check_sendable`].
    ///
    /// # Errors
    /// The first atom's error.
    pub fn check_sendable(&self) -> Result<(), ValueError> {
        match &self.0 {
            Repr::Set(s) => s.iter().try_for_each(Atom::check_sendable),
            Repr::Map(m) => m
                .iter()
                .try_for_each(|(k, v)| k.check_sendable().and_then(|()| v.check_sendable())),
        }
    }
}

/// The inside of `["set", [...]]` or `["map", [...]]`, or `None`.
fn tagged<'a>(json: &'a Value, tag: &str) -> Option<&'a [Value]> {
    match json.as_array()?.as_slice() {
        [Value::String(t), Value::Array(inner)] if t == tag => Some(inner),
        _ => None,
    }
}

fn set_from_json(json: &Value, ty: AtomType) -> Result<Datum, ValueError> {
    match tagged(json, "set") {
        Some(inner) => {
            let atoms = inner
                .iter()
                .map(|a| Atom::from_json(a, ty))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Datum::set(atoms))
        }
        None => Ok(Datum(Repr::Set(vec![Atom::from_json(json, ty)?]))),
    }
}

fn map_from_json(json: &Value, key: AtomType, value: AtomType) -> Result<Datum, ValueError> {
    let Some(inner) = tagged(json, "map") else {
        return Err(ValueError::WrongType {
            expected: "map",
            found: excerpt(json),
        });
    };
    let mut pairs = Vec::with_capacity(inner.len());
    for pair in inner {
        match pair.as_array().map(Vec::as_slice) {
            Some([k, v]) => pairs.push((Atom::from_json(k, key)?, Atom::from_json(v, value)?)),
            _ => {
                return Err(ValueError::WrongType {
                    expected: "pair",
                    found: excerpt(pair),
                });
            }
        }
    }
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some(twin) = pairs
        .windows(2)
        .find(|w| matches!(w, [a, b] if a.0 == b.0))
        .and_then(<[_]>::first)
    {
        return Err(ValueError::DuplicateKey(excerpt(&twin.0.to_json())));
    }
    Ok(Datum(Repr::Map(pairs)))
}

impl<A: Into<Atom>> From<A> for Datum {
    fn from(atom: A) -> Datum {
        Datum(Repr::Set(vec![atom.into()]))
    }
}
