//! The pid file, which is also the lock that keeps a second daemon from starting.
//!
//! The file holds the process id and a POSIX record lock (fcntl(2)) of that process, which the kernel drops
//! with the process. A reader such as `ovs-appctl` queries the holder of the lock from the kernel: without a
//! holder the file is stale. The file is made under a temporary name, locked, filled, and then renamed. So a
//! file of the final name is always whole and locked from the start.
//!
//! Invariant that POSIX imposes: closing *any* descriptor of the file drops this process's lock. So the file
//! is never opened again while [`Pidfile`] lives.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};

use crate::vlog::errno_text;

/// A pid file that this process holds the lock of, until it is dropped.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    _locked: File,
}

fn try_lock(file: &File) -> io::Result<()> {
    Ok(fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)?)
}

/// The process that holds the lock, other than this one; 0 if this process cannot see it.
fn holder(file: &File) -> io::Result<Option<i32>> {
    let lock = fcntl_getlk(file, &Flock::from(FlockType::WriteLock))?;
    Ok(lock.map(|lock| Pid::as_raw(lock.pid)))
}

impl Pidfile {
    /// Makes the pid file of this process. With `overwrite`, a running daemon's file is replaced.
    ///
    /// # Errors
    /// The text to show: another daemon is running, or the file cannot be made.
    pub fn create(path: &Path, overwrite: bool) -> Result<Pidfile, String> {
        let pid = std::process::id();
        // Daemons that start at the same time share one temporary file and its lock, unless `overwrite` is
        // set.
        let temporary = suffixed(
            path,
            &if overwrite {
                format!(".tmp{pid}")
            } else {
                ".tmp".into()
            },
        );
        let shown = temporary.display();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .custom_flags(OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed())
            .open(&temporary)
            .map_err(|error| format!("{shown}: create failed ({})", errno_text(&error)))?;
        try_lock(&file)
            .map_err(|error| format!("{shown}: fcntl(F_SETLK) failed ({})", errno_text(&error)))?;
        let made = fill(&mut file, pid, path, overwrite).and_then(|()| {
            fs::rename(&temporary, path).map_err(|error| {
                format!(
                    "failed to rename \"{shown}\" to \"{}\" ({})",
                    path.display(),
                    errno_text(&error)
                )
            })
        });
        if let Err(error) = made {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        Ok(Pidfile {
            path: path.to_owned(),
            _locked: file,
        })
    }

    /// The name of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn fill(file: &mut File, pid: u32, path: &Path, overwrite: bool) -> Result<(), String> {
    if !overwrite {
        match running(path) {
            Ok(None) => {}
            Ok(Some(other)) => {
                return Err(format!(
                    "{}: already running as pid {other}, aborting",
                    path.display()
                ));
            }
            Err(why) => {
                return Err(format!(
                    "{}: pidfile check failed ({why}), aborting",
                    path.display()
                ));
            }
        }
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{pid}"))
        .map_err(|error| format!("{}: write failed ({})", path.display(), errno_text(&error)))
}

/// The process that a pid file belongs to. A stale file is removed.
///
/// # Errors
/// The reason why that cannot be determined.
fn running(path: &Path) -> Result<Option<i32>, String> {
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(errno_text(&error)),
    };
    if let Some(pid) = holder(&file).map_err(|error| errno_text(&error))? {
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(|error| errno_text(&error))?;
        // Another number means that the holder is not the daemon of the file but a process about to remove
        // it.
        return if text.trim().parse() == Ok(pid) {
            Ok(Some(pid))
        } else {
            Err("No such process".into())
        };
    }
    // The lock is free. Only the holder of its lock may remove the file, and only while it still has this
    // name. Else we could remove the file of a daemon that has just started.
    try_lock(&file).map_err(|_| "lost race to lock pidfile".to_owned())?;
    let same = match (fs::metadata(path), file.metadata()) {
        (Ok(a), Ok(b)) => a.ino() == b.ino() && a.dev() == b.dev(),
        _ => false,
    };
    if !same {
        return Err("Operation already in progress".into());
    }
    fs::remove_file(path).map_err(|error| errno_text(&error))?;
    Ok(None)
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
