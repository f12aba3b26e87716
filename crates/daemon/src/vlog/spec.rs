//! The words of `-v` and of `vlog/set`: `[module][:destination][:level]`, `PATTERN:destination:pattern` and
//! `FACILITY:facility`.
//!
//! Words are separated by any run of blanks, commas and colons, in any order and any case; `any` is accepted
//! and means nothing. A specification is checked as a whole before any of it is applied.

use super::level::{Destination, Level};

/// One parsed specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spec {
    /// Set thresholds; `None` is a wildcard.
    Levels {
        module: Option<String>,
        dest: Option<Destination>,
        level: Level,
    },
    /// Set the line format of one destination, or of all.
    Pattern {
        dest: Option<Destination>,
        pattern: String,
    },
    /// Set the syslog facility to this code (already shifted left by 3).
    Facility(u32),
}

const SEPARATORS: [char; 4] = [' ', ',', ':', '\t'];

/// Facility names with their numerical codes (RFC 5424 section 6.2.1).
const FACILITIES: [(&str, u32); 23] = [
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("clock", 9),
    ("ftp", 11),
    ("ntp", 12),
    ("audit", 13),
    ("alert", 14),
    ("clock2", 15),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// Splits off the first word. The rest starts right after the one separator that ends it, so that a pattern
/// may itself begin with a separator.
fn next_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(SEPARATORS);
    if text.is_empty() {
        return None;
    }
    Some(text.split_once(SEPARATORS).unwrap_or((text, "")))
}

/// Parses one specification. `known` decides whether a word names a module.
///
/// # Errors
/// The text that an operator sees, in the words that `ovs-appctl vlog/set` uses.
pub(super) fn parse(text: &str, known: impl Fn(&str) -> bool) -> Result<Spec, String> {
    let first = next_word(text);
    if let Some((word, rest)) = first {
        if word.eq_ignore_ascii_case("PATTERN") {
            let (word, pattern) = next_word(rest).ok_or("missing destination")?;
            let dest = if word.eq_ignore_ascii_case("ANY") {
                None
            } else {
                Some(Destination::from_name(word).ok_or_else(|| format!("unknown destination \"{word}\""))?)
            };
            return Ok(Spec::Pattern {
                dest,
                pattern: pattern.to_owned(),
            });
        }
        if word.eq_ignore_ascii_case("FACILITY") {
            let found = FACILITIES
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(rest));
            return found
                .map(|(_, code)| Spec::Facility(code << 3))
                .ok_or_else(|| "invalid facility".to_owned());
        }
    }

    let (mut module, mut dest, mut level) = (None, None, None);
    let mut rest = text;
    while let Some((word, tail)) = next_word(rest) {
        rest = tail;
        if word.eq_ignore_ascii_case("ANY") {
            continue;
        } else if let Some(found) = Destination::from_name(word) {
            set_once(&mut dest, found, "destinations")?;
        } else if let Some(found) = Level::from_name(word) {
            set_once(&mut level, found, "levels")?;
        } else if known(word) {
            set_once(&mut module, word.to_owned(), "modules")?;
        } else {
            return Err(format!("no destination, level, or module \"{word}\""));
        }
    }
    Ok(Spec::Levels {
        module,
        dest,
        level: level.unwrap_or(Level::Dbg),
    })
}

fn set_once<T>(slot: &mut Option<T>, value: T, what: &str) -> Result<(), String> {
    if slot.replace(value).is_some() {
        return Err(format!("cannot specify multiple {what}"));
    }
    Ok(())
}
