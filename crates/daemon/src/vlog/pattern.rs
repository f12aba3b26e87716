//! Line formats: text with `%` conversions, as ovs-appctl(8) lists them under `vlog/set PATTERN`.
//!
//! A pattern is parsed once when it is set and formatted by the thread that writes, not by the one that logs.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Local, TimeZone, Utc};

use super::level::Level;

/// A parsed line format.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    source: String,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
enum Piece {
    Text(String),
    Field {
        what: Field,
        left: bool,
        zero: bool,
        width: usize,
    },
}

#[derive(Debug, Clone)]
enum Field {
    Program,
    Priority,
    Module,
    LocalTime(String),
    UtcTime(String),
    Host,
    Message,
    Sequence,
    Newline,
    Level,
    Pid,
    SinceStart,
    Thread,
    ThreadInParens,
    /// An unknown conversion stands for its own letter.
    Literal(char),
}

/// The parts of a line.
pub(super) struct Line<'a> {
    pub(super) when: SystemTime,
    pub(super) since_start: Duration,
    pub(super) level: Level,
    pub(super) module: &'a str,
    /// Empty for the main thread.
    pub(super) thread: &'a str,
    pub(super) sequence: u32,
    pub(super) text: &'a str,
    pub(super) program: &'a str,
    /// The facility set by an operator, 0 if none (shifted left by 3).
    pub(super) facility: u32,
}

const LOCAL0: u32 = 16 << 3;
const DEFAULT_TIME: &str = "%Y-%m-%d %H:%M:%S.###";

impl Pattern {
    /// Parses `source`. Nothing is refused: an unknown conversion prints its letter, as in Open vSwitch.
    pub(super) fn new(source: &str) -> Pattern {
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut chars = source.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            let left = chars.next_if_eq(&'-').is_some();
            let zero = chars.next_if_eq(&'0').is_some();
            let mut width = 0usize;
            while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
                // A width beyond any terminal is a typing error; cap it so that it cannot eat memory.
                width = (width * 10 + digit as usize).min(4096);
                chars.next();
            }
            let Some(letter) = chars.next() else { break };
            let mut braces = |default: &str| {
                if chars.next_if_eq(&'{').is_none() {
                    return default.to_owned();
                }
                chars.by_ref().take_while(|c| *c != '}').collect()
            };
            let what = match letter {
                'A' => Field::Program,
                'B' => Field::Priority,
                'c' => {
                    braces("");
                    Field::Module
                }
                'd' => Field::LocalTime(braces(DEFAULT_TIME)),
                'D' => Field::UtcTime(braces(DEFAULT_TIME)),
                'E' => Field::Host,
                'm' => Field::Message,
                'N' => Field::Sequence,
                'n' => Field::Newline,
                'p' => Field::Level,
                'P' => Field::Pid,
                'r' => Field::SinceStart,
                't' => Field::Thread,
                'T' => Field::ThreadInParens,
                other => Field::Literal(other),
            };
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(Piece::Field {
                what,
                left,
                zero,
                width,
            });
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        Pattern {
            source: source.to_owned(),
            pieces,
        }
    }

    /// The text that the pattern was made from.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Appends the formatted line, without a newline at its end.
    pub(super) fn format(&self, line: &Line<'_>, out: &mut String) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Field {
                    what,
                    left,
                    zero,
                    width,
                } => {
                    let start = out.len();
                    put_field(what, line, out);
                    let missing = width.saturating_sub(out.len() - start);
                    if missing > 0 {
                        let pad = if *zero { "0" } else { " " }.repeat(missing);
                        out.insert_str(if *left { out.len() } else { start }, &pad);
                    }
                }
            }
        }
    }
}

fn put_field(what: &Field, line: &Line<'_>, out: &mut String) {
    // Writing into a String cannot fail.
    let _ = match what {
        Field::Program => out.write_str(line.program),
        Field::Priority => {
            let facility = if line.facility == 0 { LOCAL0 } else { line.facility };
            write!(out, "{}", facility + line.level.syslog_severity())
        }
        Field::Module => out.write_str(line.module),
        Field::LocalTime(format) => {
            put_time(&DateTime::<Local>::from(line.when), format, out);
            Ok(())
        }
        Field::UtcTime(format) => {
            put_time(&DateTime::<Utc>::from(line.when), format, out);
            Ok(())
        }
        Field::Host => out.write_str(&host_name()),
        Field::Message => out.write_str(line.text.trim_end_matches('\n')),
        Field::Sequence => write!(out, "{}", line.sequence),
        Field::Newline => out.write_str("\n"),
        Field::Level => out.write_str(line.level.name()),
        Field::Pid => write!(out, "{}", std::process::id()),
        Field::SinceStart => write!(out, "{}", line.since_start.as_millis()),
        Field::Thread => out.write_str(if line.thread.is_empty() {
            "main"
        } else {
            line.thread
        }),
        Field::ThreadInParens if line.thread.is_empty() => Ok(()),
        Field::ThreadInParens => write!(out, "({})", line.thread),
        Field::Literal(c) => out.write_char(*c),
    };
}

/// Appends a time in strftime(3) form, where each run of `#` stands for decimals of the second (milliseconds,
/// then zeros). A format with an unknown conversion is printed unchanged.
fn put_time<Tz: TimeZone>(time: &DateTime<Tz>, format: &str, out: &mut String)
where
    Tz::Offset: std::fmt::Display,
{
    let items: Vec<Item<'_>> = StrftimeItems::new(format).collect();
    if items.contains(&Item::Error) {
        out.push_str(format);
        return;
    }
    let text = time.format_with_items(items.iter()).to_string();
    let millis = format!("{:03}", time.timestamp_subsec_millis());
    let mut decimals = millis.chars();
    for c in text.chars() {
        if c == '#' {
            out.push(decimals.next().unwrap_or('0'));
        } else {
            decimals = millis.chars();
            out.push(c);
        }
    }
}

/// The host's name, read each time since it may change and lines that show it are rare.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}
