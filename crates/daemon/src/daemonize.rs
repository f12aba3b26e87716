//! Becoming a daemon: forking into the background, supervising, notifying the parent when all is ready.
//!
//! `--detach` forks. The parent waits on a pipe until the child reports that it is ready, then exits with
//! success. If the child dies first, the parent fails with the child's exit code, so a script knows whether
//! the switch is up. `--monitor` forks once more: the process in between restarts the daemon if a signal that
//! means a bug kills it, at most every ten seconds.
//!
//! All of this happens before the process starts its first thread; the operating system allows no other
//! order.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Write as _, pipe};
use std::os::fd::OwnedFd;
use std::process::exit;
use std::thread::sleep;
use std::time::{Duration, Instant};

use heddle_sys::process::{Fork, fork};
use heddle_sys::signal::{self, Signal};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus, setrlimit, setsid, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::vlog::{self, Destination, Level, errno_text};

const RESTART_INTERVAL: Duration = Duration::from_secs(10);

/// The signals after which a daemon is restarted, as ovs-vswitchd(8) lists them.
const CRASHES: [Signal; 9] = [
    Signal::ABORT,
    Signal::ALARM,
    Signal::BUS,
    Signal::FPE,
    Signal::ILL,
    Signal::PIPE,
    Signal::SEGV,
    Signal::XCPU,
    Signal::XFSZ,
];

/// A start that takes this long probably waits for something.
const LONG: Timespec = Timespec {
    tv_sec: 3,
    tv_nsec: 0,
};

/// The daemon's tie to the process that started it.
#[derive(Debug)]
pub struct Daemon {
    pending: Mutex<Pending>,
}

#[derive(Debug)]
struct Pending {
    parent: Option<File>,
    detach: bool,
    chdir: bool,
}

impl Daemon {
    /// Notifies the parent that the daemon works, and leaves the terminal: directory `/` unless `--no-chdir`,
    /// no standard input and output. Logging to the console ends. Only the first call does anything.
    pub fn ready(&self) {
        let mut pending = self.pending.lock();
        if let Some(mut parent) = pending.parent.take()
            && let Err(error) = parent.write_all(&[0])
        {
            log::warn!(target: "daemon_unix", "pipe write failed ({})", errno_text(&error));
        }
        if std::mem::take(&mut pending.detach) {
            if pending.chdir {
                // "/" always exists; without permission to enter it the daemon stays where it is.
                let _ = std::env::set_current_dir("/");
            }
            close_standard_fds();
        }
    }
}

fn close_standard_fds() {
    vlog::flush();
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
    vlog::set_all_levels(Some(Destination::Console), Level::Off);
}

/// The processes that a daemon is to have, and its terminal.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The daemon runs in the background; the process that started it waits until the daemon is ready.
    pub detach: bool,
    /// A process of its own restarts the daemon when it crashes.
    pub monitor: bool,
    /// A daemon in the background has `/` as its directory.
    pub chdir: bool,
    /// Note to the user at the terminal, if a start in the background takes longer than three seconds.
    pub slow_start: String,
}

/// Forks as the settings require. Returns in the process that is to be the daemon; the others never return.
///
/// # Errors
/// The text to show when the process cannot be split. It must have one thread only.
pub fn start(settings: &Settings) -> Result<Daemon, String> {
    let mut parent = None;
    if settings.detach {
        match fork_and_wait(Some(&settings.slow_start))? {
            Side::Child(pipe) => parent = Some(pipe),
            Side::Parent { ready: true, .. } => exit(0),
            Side::Parent { .. } => return Err("could not detach from foreground session".into()),
        }
        setsid().map_err(|error| format!("setsid failed ({})", errno_text(&error.into())))?;
    }
    if settings.monitor {
        match fork_and_wait(None)? {
            Side::Child(pipe) => parent = Some(pipe),
            Side::Parent { ready: false, .. } => return Err("could not initiate process monitoring".into()),
            Side::Parent { child, .. } => {
                if let Some(mut grandparent) = parent.take() {
                    // The write fails only if the grandparent is gone, which is no reason to stop.
                    let _ = grandparent.write_all(&[0]);
                }
                if settings.detach {
                    close_standard_fds();
                }
                parent = Some(monitor(child)?);
            }
        }
    }
    Ok(Daemon {
        pending: Mutex::new(Pending {
            parent,
            detach: settings.detach,
            chdir: settings.chdir,
        }),
    })
}

enum Side {
    /// Write a byte to the pipe when ready.
    Child(File),
    Parent {
        child: Pid,
        ready: bool,
        /// The child ended in order before it was ready, because of a signal or command.
        told_to_end: bool,
    },
}

/// Forks; the parent waits until the child is ready or dead. If the child ends with a failure of its own, so
/// does the parent. On a terminal it prints `slow_start` if the wait is longer than [`LONG`]. Scripts expect
/// a quiet start, however slow the machine is.
fn fork_and_wait(slow_start: Option<&str>) -> Result<Side, String> {
    let (mut read_end, write_end) =
        pipe().map_err(|error| format!("failed to create pipe ({})", errno_text(&error)))?;
    let child = match fork().map_err(|error| format!("fork failed ({})", errno_text(&error)))? {
        Fork::Child => return Ok(Side::Child(OwnedFd::from(write_end).into())),
        Fork::Parent(child) => child,
    };
    drop(write_end);
    if let Some(note) = slow_start.filter(|_| std::io::stderr().is_terminal()) {
        let said = poll(&mut [PollFd::new(&read_end, PollFlags::IN)], Some(&LONG));
        if said == Ok(0) {
            eprintln!("{note}");
        }
    }
    let ready = read_end.read_exact(&mut [0]).is_ok();
    let mut told_to_end = false;
    if !ready {
        let status = wait_for(child)?;
        match status.exit_status() {
            Some(0) => told_to_end = true,
            Some(code) => exit(code),
            None => {
                let text = status_text(status);
                log::error!(target: "daemon_unix", "fork child died before signaling startup ({text})");
            }
        }
    }
    Ok(Side::Parent {
        child,
        ready,
        told_to_end,
    })
}

fn wait_for(child: Pid) -> Result<WaitStatus, String> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(format!("waitpid failed ({})", errno_text(&error.into()))),
        }
    }
}

/// Watches over the daemon, and restarts it when it crashes. Returns in a new daemon process, with its pipe;
/// the monitor itself exits when the daemon has ended for another reason.
fn monitor(mut daemon: Pid) -> Result<File, String> {
    vlog::set_thread_name("monitor");
    let mut crashes = 0;
    let mut last_restart: Option<Instant> = None;
    loop {
        // The daemon has the log file open; two writers would keep a rotated file alive.
        vlog::close_log_file();
        let status = wait_for(daemon)?;
        let _ = vlog::reopen_log_file();
        let text = status_text(status);
        let signal = status.terminating_signal().and_then(Signal::from_named_raw);
        if !signal.is_some_and(|signal| CRASHES.contains(&signal)) {
            end(daemon, &text);
        }
        crashes += 1;
        if dumped_core(status) {
            // One core file is enough; further ones would only fill the disk.
            let none = Rlimit {
                current: Some(0),
                maximum: Some(0),
            };
            let _ = setrlimit(Resource::Core, none);
        }
        let report = format!("{crashes} crashes: pid {daemon} died, {text}");
        let wait = last_restart.and_then(|last| RESTART_INTERVAL.checked_sub(last.elapsed()));
        if let Some(wait) = wait {
            log::warn!(target: "daemon_unix", "{report}, waiting until 10 seconds since last restart");
            sleep(wait);
        }
        last_restart = Some(Instant::now());
        log::error!(target: "daemon_unix", "{report}, restarting");
        match fork_and_wait(None)? {
            Side::Child(pipe) => {
                vlog::set_thread_name("");
                return Ok(pipe);
            }
            Side::Parent {
                child, ready: true, ..
            } => daemon = child,
            // `exit` came right after the restart.
            Side::Parent {
                child,
                told_to_end: true,
                ..
            } => end(child, "exit status 0"),
            Side::Parent { .. } => return Err("restarted daemon did not start".into()),
        }
    }
}

fn end(daemon: Pid, text: &str) -> ! {
    log::info!(target: "daemon_unix", "pid {daemon} died, {text}, exiting");
    exit(0)
}

/// `WCOREDUMP` of wait(2).
fn dumped_core(status: WaitStatus) -> bool {
    status.signaled() && status.as_raw() & 0x80 != 0
}

fn status_text(status: WaitStatus) -> String {
    if let Some(code) = status.exit_status() {
        return format!("exit status {code}");
    }
    match status.terminating_signal().and_then(Signal::from_named_raw) {
        Some(signal) => {
            let dumped = if dumped_core(status) { ", core dumped" } else { "" };
            format!("killed ({}){dumped}", signal::text(signal))
        }
        None => format!("terminated abnormally ({:#x})", status.as_raw()),
    }
}
