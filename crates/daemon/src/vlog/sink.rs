//! The destinations themselves: formats events and writes them to standard error, the system log and the log
//! file.
//!
//! One mutex protects them. The writer thread holds it for one event at a time; commands hold it to change a
//! pattern or swap the file. Nothing in here logs. Write errors are ignored: there is no place to report
//! them.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::level::{Destination, Level};
use super::module::Module;
use super::pattern::{Line, Pattern};
use super::syslog::{Method, Sender};

/// A message on its way to the destinations in `dests` (a set of [`Destination::bit`]).
#[derive(Debug)]
pub(super) struct Event {
    pub(super) when: SystemTime,
    pub(super) at: Instant,
    pub(super) level: Level,
    pub(super) module: Arc<Module>,
    pub(super) thread: Arc<str>,
    pub(super) sequence: u32,
    pub(super) text: String,
    pub(super) dests: u8,
}

#[derive(Debug)]
pub(super) struct Sinks {
    pub(super) program: String,
    started: Instant,
    /// Shifted left by 3; 0 when not set.
    pub(super) facility: u32,
    patterns: [Pattern; 3],
    method: Option<Method>,
    syslog: Option<Sender>,
    syslog_target: Option<Sender>,
    /// Kept while the file is closed by `vlog/close`, so that `vlog/reopen` finds it.
    pub(super) file_name: Option<PathBuf>,
    file: Option<File>,
}

/// The layout of a message for `--syslog-target` (RFC 5424 section 6: the text is UTF-8 with a byte order
/// mark).
const RFC5424: &str = "<%B>1 %D{%Y-%m-%dT%H:%M:%S.###Z} %E %A %P %c - \u{feff}%m";
const DAEMON: u32 = 3 << 3;

impl Sinks {
    pub(super) fn new() -> Sinks {
        Sinks {
            program: String::from("heddled"),
            started: Instant::now(),
            facility: 0,
            patterns: [
                Pattern::new("ovs|%05N|%c%T|%p|%m"),
                Pattern::new("%D{%Y-%m-%dT%H:%M:%SZ}|%05N|%c%T|%p|%m"),
                Pattern::new("%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m"),
            ],
            method: None,
            syslog: None,
            syslog_target: None,
            file_name: None,
            file: None,
        }
    }

    pub(super) fn set_pattern(&mut self, dest: Destination, pattern: &str) {
        self.patterns[dest.index()] = Pattern::new(pattern);
    }

    /// The pattern of `dest` and the prefix that its method adds, for `vlog/list-pattern`.
    pub(super) fn pattern(&self, dest: Destination) -> (&'static str, &str) {
        let prefix = match (dest, &self.method) {
            (Destination::Syslog, Some(method)) => method.prefix(),
            _ => "none",
        };
        (prefix, self.patterns[dest.index()].source())
    }

    /// Only the first method that is set counts.
    pub(super) fn set_syslog_method(&mut self, method: Method) {
        if self.method.is_none() {
            self.syslog = Some(Sender::new(&method));
            self.method = Some(method);
        }
    }

    pub(super) fn set_syslog_target(&mut self, method: &Method) {
        self.syslog_target = Some(Sender::new(method));
    }

    pub(super) fn is_file_open(&self) -> bool {
        self.file.is_some()
    }

    /// Whether `other` is the file that is open now.
    pub(super) fn is_same_file(&self, other: Option<&File>) -> bool {
        let identity = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
        match (&self.file, other) {
            (None, None) => true,
            (Some(a), Some(b)) => identity(a).is_some_and(|id| identity(b) == Some(id)),
            _ => false,
        }
    }

    pub(super) fn set_file(&mut self, file: Option<File>) {
        self.file = file;
    }

    pub(super) fn write(&mut self, event: &Event) {
        let Sinks {
            program,
            started,
            facility,
            patterns,
            method,
            syslog,
            syslog_target,
            file,
            ..
        } = self;
        let line = Line {
            when: event.when,
            since_start: event.at.saturating_duration_since(*started),
            level: event.level,
            module: &event.module.name,
            thread: &event.thread,
            sequence: event.sequence,
            text: &event.text,
            program,
            facility: *facility,
        };
        let mut out = String::with_capacity(128 + event.text.len());
        let wants = |dest: Destination| event.dests & dest.bit() != 0;
        if wants(Destination::Console) {
            patterns[Destination::Console.index()].format(&line, &mut out);
            out.push('\n');
            let _ = io::stderr().write_all(out.as_bytes());
        }
        if wants(Destination::File)
            && let Some(file) = file
        {
            out.clear();
            patterns[Destination::File.index()].format(&line, &mut out);
            out.push('\n');
            let _ = file.write_all(out.as_bytes());
        }
        if wants(Destination::Syslog) {
            if let Some(sender) = syslog {
                out.clear();
                patterns[Destination::Syslog.index()].format(&line, &mut out);
                let facility = if *facility == 0 { DAEMON } else { *facility };
                let mut head = format!("<{}>", facility + event.level.syslog_severity());
                if *method == Some(Method::Libc) {
                    // The stamp that syslog(3) of the C library puts in front.
                    Pattern::new("%d{%h %e %T} %A: ").format(&line, &mut head);
                }
                for text in out.split('\n').filter(|text| !text.is_empty()) {
                    sender.send(format!("{head}{text}").as_bytes());
                }
            }
            if let Some(sender) = syslog_target {
                out.clear();
                Pattern::new(RFC5424).format(&line, &mut out);
                sender.send(out.as_bytes());
            }
        }
    }
}

/// Opens a log file for appending, creating it for its owner and group only.
pub(super) fn open_log_file(path: &Path) -> io::Result<File> {
    heddle_sys::files::append(path, 0o660)
}
