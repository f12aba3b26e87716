//! Severity levels and destinations, by the names that the command line and `vlog/set` use.

/// The severity of a message. A destination set to a level takes that level and all more serious ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Only a threshold, never the level of a message: logs nothing.
    Off = 0,
    /// The daemon is about to die.
    Emer = 1,
    /// A failure that needs an operator.
    Err = 2,
    /// A failure after which the daemon continues.
    Warn = 3,
    /// Ordinary news.
    Info = 4,
    /// Detail for debugging.
    Dbg = 5,
}

impl Level {
    /// All levels, least verbose first; the index is the discriminant.
    pub const ALL: [Level; 6] = [
        Level::Off,
        Level::Emer,
        Level::Err,
        Level::Warn,
        Level::Info,
        Level::Dbg,
    ];

    /// The name that logs and `vlog/list` show.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Off => "OFF",
            Level::Emer => "EMER",
            Level::Err => "ERR",
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Dbg => "DBG",
        }
    }

    /// Finds a level by name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL
            .into_iter()
            .find(|level| level.name().eq_ignore_ascii_case(name))
    }

    /// The severity of RFC 5424 section 6.2.1 that this level maps to.
    #[must_use]
    pub fn syslog_severity(self) -> u32 {
        match self {
            Level::Off | Level::Emer => 1,
            Level::Err => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Dbg => 7,
        }
    }

    pub(super) fn from_u8(raw: u8) -> Level {
        Level::ALL.get(usize::from(raw)).copied().unwrap_or(Level::Dbg)
    }

    pub(super) fn filter(self) -> log::LevelFilter {
        match self {
            // EMER does not pass through the `log` macros, so a threshold of EMER lets none of them through.
            Level::Off | Level::Emer => log::LevelFilter::Off,
            Level::Err => log::LevelFilter::Error,
            Level::Warn => log::LevelFilter::Warn,
            Level::Info => log::LevelFilter::Info,
            // `Trace` counts as DBG: the line format has no finer level.
            Level::Dbg => log::LevelFilter::Trace,
        }
    }
}

impl From<log::Level> for Level {
    fn from(level: log::Level) -> Level {
        match level {
            log::Level::Error => Level::Err,
            log::Level::Warn => Level::Warn,
            log::Level::Info => Level::Info,
            log::Level::Debug | log::Level::Trace => Level::Dbg,
        }
    }
}

/// A destination of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Destination {
    /// The system log.
    Syslog = 0,
    /// Standard error.
    Console = 1,
    /// The log file.
    File = 2,
}

impl Destination {
    /// All destinations, in the order of `vlog/list-pattern`; the index is the discriminant.
    pub const ALL: [Destination; 3] = [Destination::Syslog, Destination::Console, Destination::File];

    /// The name that `vlog/list-pattern` shows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Destination::Syslog => "SYSLOG",
            Destination::Console => "CONSOLE",
            Destination::File => "FILE",
        }
    }

    /// Finds a destination by name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Destination> {
        Destination::ALL
            .into_iter()
            .find(|dest| dest.name().eq_ignore_ascii_case(name))
    }

    pub(super) fn index(self) -> usize {
        usize::from(self as u8)
    }

    pub(super) fn bit(self) -> u8 {
        1 << (self as u8)
    }
}
