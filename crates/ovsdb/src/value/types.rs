//! Types of columns (`<type>` and `<base-type>`, RFC 7047 section 3.2) and the checks on values that they
//! imply.

use super::{Atom, AtomType, Datum, ValueError};

/// The type of a key, or of a map's value, with its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseType {
    /// The atomic type.
    pub atom: AtomType,
    /// The only values allowed, where the schema lists them.
    pub allowed: Option<Vec<Atom>>,
    /// Limits of integers: `minInteger` and `maxInteger`.
    pub integer_range: (i64, i64),
    /// `minReal` and `maxReal`.
    pub real_range: (f64, f64),
    /// `minLength` and `maxLength`, in characters.
    pub length_range: (usize, usize),
    /// The table that a UUID refers to, and whether the reference is a strong one.
    pub reference: Option<Reference>,
}

/// A column of references to rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The table of the rows.
    pub table: String,
    /// A strong reference keeps the row alive; a weak one disappears with it.
    pub strong: bool,
}

impl BaseType {
    /// The type without limits.
    pub fn plain(atom: AtomType) -> BaseType {
        BaseType {
            atom,
            allowed: None,
            integer_range: (i64::MIN, i64::MAX),
            real_range: (f64::MIN, f64::MAX),
            length_range: (0, usize::MAX),
            reference: None,
        }
    }

    /// The atom in this type: an integer becomes a real where a real is wanted.
    ///
    /// # Errors
    /// [`ValueError`] where the type does not hold it or the server would refuse it.
    pub(crate) fn conform(&self, atom: &Atom) -> Result<Atom, ValueError> {
        let atom = match (self.atom, atom) {
            #[expect(
                clippy::cast_precision_loss,
                reason = "the column is a real: nearest double is meant"
            )]
            (AtomType::Real, Atom::Integer(i)) => Atom::Real(*i as f64),
            (want, a) if a.atom_type() == want => a.clone(),
            (want, a) => {
                return Err(ValueError::WrongType {
                    expected: want.name(),
                    found: crate::value::excerpt(&a.to_json()),
                });
            }
        };
        atom.check_sendable()?;
        let within = match &atom {
            Atom::Integer(i) => (self.integer_range.0..=self.integer_range.1).contains(i),
            Atom::Real(x) => (self.real_range.0..=self.real_range.1).contains(x),
            // Counting characters is the rare case; most columns have no length limit.
            Atom::String(s) if self.length_range != (0, usize::MAX) => {
                (self.length_range.0..=self.length_range.1).contains(&s.chars().count())
            }
            _ => true,
        };
        let listed = self.allowed.as_ref().is_none_or(|list| list.contains(&atom));
        if within && listed {
            Ok(atom)
        } else {
            Err(ValueError::NotAllowed(crate::value::excerpt(&atom.to_json())))
        }
    }
}

/// The type of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnType {
    /// Type of the elements, or of a map's keys.
    pub key: BaseType,
    /// Type of a map's values; `None` makes it a set.
    pub value: Option<BaseType>,
    /// Minimum number of elements.
    pub min: usize,
    /// Maximum number of elements; `usize::MAX` for `"unlimited"`.
    pub max: usize,
}

impl ColumnType {
    /// Any number of atoms.
    pub fn set(atom: AtomType) -> ColumnType {
        ColumnType {
            key: BaseType::plain(atom),
            value: None,
            min: 0,
            max: usize::MAX,
        }
    }

    /// Any number of pairs.
    pub fn map(key: AtomType, value: AtomType) -> ColumnType {
        ColumnType {
            key: BaseType::plain(key),
            value: Some(BaseType::plain(value)),
            min: 0,
            max: usize::MAX,
        }
    }

    /// An optional atom.
    pub fn optional(atom: AtomType) -> ColumnType {
        ColumnType {
            key: BaseType::plain(atom),
            value: None,
            min: 0,
            max: 1,
        }
    }

    /// The default value of the column (RFC 7047 section 5.2.1); `insert` and `initial` updates leave it out.
    pub fn default_datum(&self) -> Datum {
        match (&self.value, self.min) {
            (None, 0) => Datum::empty(),
            (None, _) => Datum::from(self.key.atom.default_atom()),
            (Some(_), 0) => Datum::map::<Atom, Atom>([]),
            (Some(value), _) => Datum::map([(self.key.atom.default_atom(), value.atom.default_atom())]),
        }
    }
}
