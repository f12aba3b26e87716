//! A map of strings (`other_config`, `options`), and how its values are read as other types.

use std::collections::BTreeMap;

/// Keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::reconcile) struct Smap(pub(in crate::reconcile) BTreeMap<String, String>);

impl Smap {
    /// The text under `key`.
    pub(in crate::reconcile) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// `true` or `false`; anything else counts as `default`.
    pub(in crate::reconcile) fn bool(&self, key: &str, default: bool) -> bool {
        match self.get(key) {
            Some(v) if v.eq_ignore_ascii_case("true") => true,
            Some(v) if v.eq_ignore_ascii_case("false") => false,
            _ => default,
        }
    }

    /// A number not below zero; `default` for anything else.
    pub(in crate::reconcile) fn number(&self, key: &str, default: u64) -> u64 {
        self.get(key)
            .and_then(|v| v.trim().parse().ok())
            .unwrap_or(default)
    }
}
