//! One scalar of OVSDB (`<atom>`, RFC 7047 section 5.1) and its JSON form.
//!
//! Atoms are ordered (by type, then by value) so that sets and maps have one canonical form and compare
//! element by element. Strings are shared: cloning a row's value never copies text.

use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::{Number, Value, json};
use uuid::Uuid;

use super::{ValueError, excerpt};

/// The five atomic types (`<atomic-type>`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomType {
    /// 64-bit signed integer.
    Integer,
    /// IEEE double, finite.
    Real,
    /// Truth value.
    Boolean,
    /// UTF-8 text without NUL.
    String,
    /// Row identifier.
    Uuid,
}

impl AtomType {
    /// The name in a schema.
    pub fn name(self) -> &'static str {
        match self {
            AtomType::Integer => "integer",
            AtomType::Real => "real",
            AtomType::Boolean => "boolean",
            AtomType::String => "string",
            AtomType::Uuid => "uuid",
        }
    }

    /// The type of that name in a schema, or `None`.
    pub fn from_name(name: &str) -> Option<AtomType> {
        Some(match name {
            "integer" => AtomType::Integer,
            "real" => AtomType::Real,
            "boolean" => AtomType::Boolean,
            "string" => AtomType::String,
            "uuid" => AtomType::Uuid,
            _ => return None,
        })
    }

    /// The default value of the type (RFC 7047 section 5.2.1): zero, false, empty or the nil UUID.
    pub fn default_atom(self) -> Atom {
        match self {
            AtomType::Integer => Atom::Integer(0),
            AtomType::Real => Atom::Real(0.0),
            AtomType::Boolean => Atom::Boolean(false),
            AtomType::String => Atom::String(Arc::from("")),
            AtomType::Uuid => Atom::Uuid(Uuid::nil()),
        }
    }
}

/// One scalar value.
#[derive(Clone, Debug)]
pub enum Atom {
    /// 64-bit signed integer.
    Integer(i64),
    /// Double; only finite values can be sent.
    Real(f64),
    /// Truth value.
    Boolean(bool),
    /// Text.
    String(Arc<str>),
    /// Identifier of a row that exists.
    Uuid(Uuid),
    /// A row that the same transaction inserts, by the name it was given there (`<named-uuid>`).
    NamedUuid(Arc<str>),
}

impl Atom {
    /// The type in a schema that holds this atom.
    pub fn atom_type(&self) -> AtomType {
        match self {
            Atom::Integer(_) => AtomType::Integer,
            Atom::Real(_) => AtomType::Real,
            Atom::Boolean(_) => AtomType::Boolean,
            Atom::String(_) => AtomType::String,
            Atom::Uuid(_) | Atom::NamedUuid(_) => AtomType::Uuid,
        }
    }

    /// Reads `<atom>` as a value of `ty`.
    ///
    /// # Errors
    /// [`ValueError::WrongType`] or [`ValueError::Range`]; the JSON is foreign and anything may be in it.
    pub fn from_json(json: &Value, ty: AtomType) -> Result<Atom, ValueError> {
        let wrong = || ValueError::WrongType {
            expected: ty.name(),
            found: excerpt(json),
        };
        match (ty, json) {
            (AtomType::Integer, Value::Number(n)) => integer(n).map(Atom::Integer),
            (AtomType::Real, Value::Number(n)) => match n.as_f64() {
                Some(x) if x.is_finite() => Ok(Atom::Real(x)),
                _ => Err(ValueError::Range(n.to_string())),
            },
            (AtomType::Boolean, Value::Bool(b)) => Ok(Atom::Boolean(*b)),
            (AtomType::String, Value::String(s)) => Ok(Atom::String(Arc::from(s.as_str()))),
            (AtomType::Uuid, Value::Array(pair)) => match pair.as_slice() {
                [Value::String(tag), Value::String(id)] if tag == "uuid" => {
                    parse_uuid(id).map(Atom::Uuid).ok_or_else(wrong)
                }
                [Value::String(tag), Value::String(id)] if tag == "named-uuid" => {
                    Ok(Atom::NamedUuid(Arc::from(id.as_str())))
                }
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    /// Writes `<atom>`. A real that is not finite has no JSON form and becomes `null`, which servers refuse;
    /// [`check_sendable`](Atom::check_sendable) detects it beforehand.
    pub fn to_json(&self) -> Value {
        match self {
            Atom::Integer(i) => Value::from(*i),
            Atom::Real(x) => Number::from_f64(*x).map_or(Value::Null, Value::Number),
            Atom::Boolean(b) => Value::Bool(*b),
            Atom::String(s) => Value::String(s.to_string()),
            Atom::Uuid(u) => json!(["uuid", u.to_string()]),
            Atom::NamedUuid(n) => json!(["named-uuid", &**n]),
        }
    }

    /// Whether a server will take this atom at all.
    ///
    /// # Errors
    /// [`ValueError::Range`] for a real that is not finite, [`ValueError::Nul`] for a string with a NUL. The
    /// reference server takes `\u0000` for a syntax error and closes the connection.
    pub fn check_sendable(&self) -> Result<(), ValueError> {
        match self {
            Atom::Real(x) if !x.is_finite() => Err(ValueError::Range(x.to_string())),
            Atom::String(s) if s.contains('\0') => Err(ValueError::Nul),
            _ => Ok(()),
        }
    }
}

/// An integer in JSON; `2.0` and `2e0` are the integer 2, as the reference parser has it.
fn integer(n: &Number) -> Result<i64, ValueError> {
    if let Some(i) = n.as_i64() {
        return Ok(i);
    }
    match n.as_f64() {
        // 2^53: above it a double no longer names one integer.
        Some(x) if x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0 => {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "whole and below 2^53, checked above"
            )]
            let i = x as i64;
            Ok(i)
        }
        _ => Err(ValueError::Range(n.to_string())),
    }
}

/// The 36-character form only (RFC 7047 section 3.1 `<uuid>`); other spellings that `uuid` knows are refused.
pub(crate) fn parse_uuid(text: &str) -> Option<Uuid> {
    if text.len() == 36 {
        Uuid::try_parse(text).ok()
    } else {
        None
    }
}

impl Ord for Atom {
    fn cmp(&self, other: &Atom) -> Ordering {
        fn rank(a: &Atom) -> u8 {
            match a {
                Atom::Integer(_) => 0,
                Atom::Real(_) => 1,
                Atom::Boolean(_) => 2,
                Atom::String(_) => 3,
                Atom::Uuid(_) => 4,
                Atom::NamedUuid(_) => 5,
            }
        }
        match (self, other) {
            (Atom::Integer(a), Atom::Integer(b)) => a.cmp(b),
            // Adding zero makes -0.0 equal to 0.0, which total_cmp alone would tell apart.
            (Atom::Real(a), Atom::Real(b)) => (a + 0.0).total_cmp(&(b + 0.0)),
            (Atom::Boolean(a), Atom::Boolean(b)) => a.cmp(b),
            (Atom::String(a), Atom::String(b)) | (Atom::NamedUuid(a), Atom::NamedUuid(b)) => a.cmp(b),
            (Atom::Uuid(a), Atom::Uuid(b)) => a.cmp(b),
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Atom) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Atom {
    fn eq(&self, other: &Atom) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Atom {}

macro_rules! atom_from {
    ($($from:ty => |$v:ident| $make:expr;)*) => {
        $(impl From<$from> for Atom {
            fn from($v: $from) -> Atom {
                $make
            }
        })*
    };
}

atom_from! {
    i64 => |v| Atom::Integer(v);
    i32 => |v| Atom::Integer(i64::from(v));
    u32 => |v| Atom::Integer(i64::from(v));
    u16 => |v| Atom::Integer(i64::from(v));
    u8 => |v| Atom::Integer(i64::from(v));
    f64 => |v| Atom::Real(v);
    bool => |v| Atom::Boolean(v);
    &str => |v| Atom::String(Arc::from(v));
    &String => |v| Atom::String(Arc::from(v.as_str()));
    String => |v| Atom::String(Arc::from(v));
    Arc<str> => |v| Atom::String(v);
    Uuid => |v| Atom::Uuid(v);
}
