//! The daemon's log: a back end of the `log` crate in Open vSwitch's line format.
//!
//! ```text
//! 2026-01-01T00:00:00.000Z|00001|module|INFO|text
//! 2026-01-01T00:00:00.000Z|00007|module(pmd-c01/id:8)|WARN|text
//! ```
//!
//! Any crate logs with `log::info!(target: "bridge", ...)`; the target is the module. `Trace` counts as DBG;
//! EMER is for dying daemons and has its own function, [`emer`]. Three destinations (console, syslog, file)
//! each have a threshold per module, set by `-v` and `vlog/set`. See [`limit`] for rate limits.
//!
//! Threads: the thread that logs decides, counts and formats the text, then hands it to a bounded queue. One
//! writer thread formats the line and writes it, so that a full disk or a slow terminal never holds up a
//! caller. When the queue is full the message is dropped and counted. Before [`start_writer`] (the daemon
//! forks after it has begun to log) messages are written in place. [`flush`] waits until all earlier messages
//! are written. The control socket flushes before each reply, so a script that reads the log after a command
//! finds what that command caused.
//!
//! Cost of a message that no destination wants: one relaxed load in the `log` macro. If some module is more
//! verbose than this one, it is a table look-up. It is not meant for per-packet use at an enabled level.

mod level;
pub mod limit;
mod module;
mod pattern;
mod rounds;
mod sink;
mod spec;
mod syslog;
mod thread;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;

pub use heddle_sys::errno_text;
pub use level::{Destination, Level};
pub use rounds::Rounds;
pub use syslog::Method as SyslogMethod;
pub use thread::set_thread_name;
pub use writer::{flush, start_writer};

use limit::{Admission, Limiter};
use module::{Module, Modules, module_name};
use sink::{Event, Sinks, open_log_file};
use spec::Spec;
use writer::Writer;

struct Vlog {
    modules: Modules,
    limiter: Limiter,
    sinks: Mutex<Sinks>,
    /// A copy of "the sinks have a file", read without their lock. A stale value loses or wastes one line.
    file_open: AtomicBool,
    writer: Writer,
}

static VLOG: LazyLock<Vlog> = LazyLock::new(|| Vlog {
    modules: Modules::new(),
    limiter: Limiter::default(),
    sinks: Mutex::new(Sinks::new()),
    file_open: AtomicBool::new(false),
    writer: Writer::default(),
});

/// Makes this the back end of the `log` crate, for a program of this name. Calling it again changes the name,
/// and adds modules. Levels can be set for these modules before they log.
pub fn init(program: &str, modules: &[&str]) {
    for module in modules {
        VLOG.modules.get_or_add(module);
    }
    program.clone_into(&mut VLOG.sinks.lock().program);
    thread::set_program(program);
    // The call fails if a logger is installed already: ours, or that of a test.
    let _ = log::set_logger(&*VLOG);
    VLOG.refresh_filter();
}

/// Applies one specification of `-v` or `vlog/set`.
///
/// # Errors
/// The text that explains what is wrong with it; nothing has changed then.
pub fn set_levels_from_string(text: &str) -> Result<(), String> {
    match spec::parse(text, |word| VLOG.modules.find(word).is_some())? {
        Spec::Levels { module, dest, level } => {
            let module = module.and_then(|name| VLOG.modules.find(&name));
            VLOG.modules.set(module.as_deref(), dest, level);
            VLOG.refresh_filter();
        }
        Spec::Pattern { dest, pattern } => {
            let mut sinks = VLOG.sinks.lock();
            for d in Destination::ALL
                .into_iter()
                .filter(|d| dest.is_none_or(|only| only == *d))
            {
                sinks.set_pattern(d, &pattern);
            }
        }
        Spec::Facility(code) => VLOG.sinks.lock().facility = code,
    }
    Ok(())
}

/// Sets all modules at one destination, or at all, to a level.
pub fn set_all_levels(dest: Option<Destination>, level: Level) {
    VLOG.modules.set(None, dest, level);
    VLOG.refresh_filter();
}

/// Makes rate limits apply to a module, or no longer; `None`: to all modules.
///
/// # Errors
/// There is no such module.
pub fn set_rate_limits(module: Option<&str>, honor: bool) -> Result<(), String> {
    let Some(name) = module else {
        VLOG.modules.set_honor_rate_limits(honor);
        return Ok(());
    };
    let module = VLOG.modules.find(name).ok_or("unknown module")?;
    module.honor_rate_limits.store(honor, Relaxed);
    Ok(())
}

/// Logs to this file from now on; `None` ends logging to a file.
///
/// # Errors
/// The file cannot be opened; the log stays as it was, and has a warning about it.
pub fn set_log_file(path: Option<&Path>) -> io::Result<()> {
    let file = match path.map(open_log_file).transpose() {
        Ok(file) => file,
        Err(error) => {
            let name = path.unwrap_or(Path::new("")).display();
            log::warn!(target: "vlog", "failed to open {name} for logging: {}", errno_text(&error));
            return Err(error);
        }
    };
    flush();
    let (same, was_open) = {
        let sinks = VLOG.sinks.lock();
        (sinks.is_same_file(file.as_ref()), sinks.is_file_open())
    };
    if same {
        return Ok(());
    }
    if was_open {
        log::info!(target: "vlog", "closing log file");
        flush();
    }
    {
        let mut sinks = VLOG.sinks.lock();
        sinks.file_name = path.map(Path::to_owned);
        sinks.set_file(file);
    }
    VLOG.refresh_filter();
    if let Some(path) = path {
        log::info!(target: "vlog", "opened log file {}", path.display());
    }
    Ok(())
}

/// The name of the log file, if one was set.
#[must_use]
pub fn log_file() -> Option<PathBuf> {
    VLOG.sinks.lock().file_name.clone()
}

/// Opens the log file again under its name, for use after a rotation.
///
/// # Errors
/// The text to show: no file is configured, or it cannot be opened.
pub fn reopen_log_file() -> Result<(), String> {
    let path = log_file().ok_or("Logging to file not configured")?;
    set_log_file(Some(&path)).map_err(|error| errno_text(&error))
}

/// Closes the log file until [`reopen_log_file`].
pub fn close_log_file() {
    flush();
    VLOG.sinks.lock().set_file(None);
    VLOG.refresh_filter();
}

/// Chooses how messages reach the system log. Only the first call counts.
pub fn set_syslog_method(method: SyslogMethod) {
    VLOG.sinks.lock().set_syslog_method(method);
}

/// Sends all messages for syslog to a UDP address too, in the form of RFC 5424.
///
/// # Errors
/// The text to show when `target` is not `IP:PORT`.
pub fn set_syslog_target(target: &str) -> Result<(), String> {
    let address = syslog::parse_address(target).ok_or_else(|| format!("{target}: bad syslog target"))?;
    VLOG.sinks.lock().set_syslog_target(&SyslogMethod::Udp(address));
    log::warn!(target: "vlog", "--syslog-target flag is deprecated, use --syslog-method instead");
    Ok(())
}

/// Logs at level EMER and returns when the line has been written. For a daemon that is about to die.
pub fn emer(module: &str, text: &str) {
    let module = VLOG.modules.get_or_add(module);
    VLOG.submit(
        &module,
        Level::Emer,
        VLOG.wanted(&module, Level::Emer),
        text.to_owned(),
    );
    flush();
}

/// Like [`emer`], but not to the console: for messages that the caller prints to standard error itself.
pub fn emer_quiet(module: &str, text: &str) {
    let module = VLOG.modules.get_or_add(module);
    let dests = VLOG.wanted(&module, Level::Emer) & !Destination::Console.bit();
    VLOG.submit(&module, Level::Emer, dests, text.to_owned());
    flush();
}

/// The thresholds of all modules, as `vlog/list` prints them.
#[must_use]
pub fn levels_text() -> String {
    let mut out = String::from(
        "                 console    syslog    file\n                 -------    ------    ------\n",
    );
    for module in VLOG.modules.all() {
        let [console, syslog, file] = [Destination::Console, Destination::Syslog, Destination::File]
            .map(|destination| module.level(destination).name());
        let _ = write!(
            out,
            "{:<16}  {console:>4}       {syslog:>4}       {file:>4}",
            module.name
        );
        if !module.honor_rate_limits.load(Relaxed) {
            out.push_str("    (rate limiting disabled)");
        }
        out.push('\n');
    }
    out
}

/// The line formats of all destinations, as `vlog/list-pattern` prints them.
#[must_use]
pub fn patterns_text() -> String {
    let mut out = String::from("         prefix                            format\n");
    out.push_str("         ------                            ------\n");
    let sinks = VLOG.sinks.lock();
    for dest in Destination::ALL {
        let (prefix, pattern) = sinks.pattern(dest);
        let _ = writeln!(out, "{:<7}  {prefix:<32}  {pattern}", dest.name());
    }
    out
}

impl Vlog {
    /// The destinations that want a message of this level; 0 if none.
    fn wanted(&self, module: &Module, level: Level) -> u8 {
        let file_open = self.file_open.load(Relaxed);
        Destination::ALL
            .into_iter()
            .filter(|dest| module.level(*dest) >= level && (file_open || *dest != Destination::File))
            .fold(0, |set, dest| set | dest.bit())
    }

    fn refresh_filter(&self) {
        let open = self.sinks.lock().is_file_open();
        self.file_open.store(open, Relaxed);
        log::set_max_level(self.modules.most_verbose(open).filter());
    }

    fn submit(&self, module: &std::sync::Arc<Module>, level: Level, dests: u8, text: String) {
        if dests == 0 {
            return;
        }
        let text = shortened(text);
        let (thread, sequence) = thread::stamp();
        self.writer.put(Event {
            when: SystemTime::now(),
            at: Instant::now(),
            level,
            module: module.clone(),
            thread,
            sequence,
            text,
            dests,
        });
    }
}

/// Maximum length of a message, bytes. Messages quote values of the database and of controllers.
const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// The text to write for a message: if it is too long, its beginning and the number of bytes left out.
fn shortened(mut text: String) -> String {
    if text.len() > MAX_MESSAGE_BYTES {
        let end = (0..=MAX_MESSAGE_BYTES)
            .rfind(|i| text.is_char_boundary(*i))
            .unwrap_or(0);
        let rest = text.len() - end;
        text.truncate(end);
        text.shrink_to_fit();
        text += &format!("... ({rest} bytes more)");
    }
    text
}

impl log::Log for Vlog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        let module = self.modules.get_or_add(module_name(metadata.target()));
        self.wanted(&module, metadata.level().into()) != 0
    }

    fn log(&self, record: &log::Record<'_>) {
        let module = self.modules.get_or_add(module_name(record.target()));
        let level = Level::from(record.level());
        let dests = self.wanted(&module, level);
        if dests == 0 {
            return;
        }
        if record.level() <= log::Level::Warn && !rounds::is_news(record.target(), record.args()) {
            return;
        }
        if module.honor_rate_limits.load(Relaxed) {
            match self.limiter.admit(record, Instant::now()) {
                Admission::Pass => {}
                Admission::Drop => return,
                Admission::PassAfter(dropped) => {
                    let text = format!(
                        "Dropped {} log messages in last {} seconds (most recently, {} seconds ago) due to excessive rate",
                        dropped.count, dropped.first_secs_ago, dropped.last_secs_ago
                    );
                    self.submit(&module, level, dests, text);
                }
            }
        }
        self.submit(&module, level, dests, record.args().to_string());
    }

    fn flush(&self) {
        flush();
    }
}
