//! Differences of values as `update2` and `update3` carry them (ovsdb-server(7), section 4.1.14).
//!
//! A column that holds at most one element is replaced. In a set, the difference is the elements that are on
//! one side only: applying it toggles each. In a map, a pair of the difference with a new key is added. A
//! pair that is equal to the present one removes it, and a pair with another value replaces it.
//!
//! Both directions are linear merges of sorted lists; a test compares them with a plain twin on ordered sets
//! and maps.

use std::cmp::Ordering;

use super::Atom;
use super::datum::{Datum, Repr};
use crate::value::ColumnType;

impl Datum {
    /// The value after `diff`. A diff of the other kind (set against map) replaces the value. It does not
    /// come from the wire, because both are read against one type.
    pub fn apply_diff(&self, diff: &Datum, ty: &ColumnType) -> Datum {
        if ty.max <= 1 {
            return diff.clone();
        }
        match (&self.0, &diff.0) {
            (Repr::Set(old), Repr::Set(diff)) => Datum(Repr::Set(symmetric_difference(old, diff))),
            (Repr::Map(old), Repr::Map(diff)) => Datum(Repr::Map(toggle_pairs(old, diff))),
            _ => diff.clone(),
        }
    }

    /// The difference that turns `self` into `new`; the inverse of [`apply_diff`](Datum::apply_diff).
    #[cfg(test)]
    pub(crate) fn diff_to(&self, new: &Datum, ty: &ColumnType) -> Datum {
        if ty.max <= 1 {
            return new.clone();
        }
        match (&self.0, &new.0) {
            (Repr::Set(old), Repr::Set(new)) => Datum(Repr::Set(symmetric_difference(old, new))),
            // A pair on both sides cancels, else the new side's pair is kept, else the old one's: the same
            // walk toggles.
            (Repr::Map(old), Repr::Map(new)) => Datum(Repr::Map(toggle_pairs(old, new))),
            _ => new.clone(),
        }
    }
}

fn symmetric_difference(a: &[Atom], b: &[Atom]) -> Vec<Atom> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    merge(a, b, Atom::cmp, |left, right| match (left, right) {
        (Some(_), Some(_)) => {}
        (Some(x), None) | (None, Some(x)) => out.push(x.clone()),
        (None, None) => {}
    });
    out
}

fn toggle_pairs(old: &[(Atom, Atom)], diff: &[(Atom, Atom)]) -> Vec<(Atom, Atom)> {
    let mut out = Vec::with_capacity(old.len() + diff.len());
    merge(
        old,
        diff,
        |a, b| a.0.cmp(&b.0),
        |left, right| match (left, right) {
            (Some(l), Some(r)) if l.1 == r.1 => {}
            (_, Some(r)) => out.push(r.clone()),
            (Some(l), None) => out.push(l.clone()),
            (None, None) => {}
        },
    );
    out
}

/// Walks two ascending lists together; `visit` sees each key once, with the side or sides that have it.
fn merge<T>(
    a: &[T],
    b: &[T],
    cmp: impl Fn(&T, &T) -> Ordering,
    mut visit: impl FnMut(Option<&T>, Option<&T>),
) {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        match (a.peek(), b.peek()) {
            (Some(x), Some(y)) => match cmp(x, y) {
                Ordering::Less => visit(a.next(), None),
                Ordering::Greater => visit(None, b.next()),
                Ordering::Equal => visit(a.next(), b.next()),
            },
            (Some(_), None) => visit(a.next(), None),
            (None, Some(_)) => visit(None, b.next()),
            (None, None) => return,
        }
    }
}
