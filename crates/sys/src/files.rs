//! Files in directories that other users may write to. They are opened so that another user's symlink or FIFO
//! neither redirects a write nor blocks the process.

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, open, readlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum number of symlinks that are followed one after the other.
const MAX_LINKS: usize = 8;

/// Opens `path` for appending, and makes it with `mode` where it is missing. A symlink at its end is followed
/// if it belongs to root or to this process's user: administrators lead log files elsewhere with one. Writes
/// to a FIFO do not wait.
///
/// # Errors
/// `PermissionDenied` for a symlink of another user; `ENXIO` for a FIFO that no process reads; otherwise
/// errors of open(2).
pub fn append(path: &Path, mode: u32) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match open(&path, flags | OFlags::NOFOLLOW, mode) {
            Err(Errno::LOOP) => {}
            other => return Ok(other?.into()),
        }
        // One descriptor, so that owner and target are those of the same link.
        let link = open(
            &path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let owner = fstat(&link)?.st_uid;
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            let text = format!("it is a symlink of another user ({owner})");
            return Err(Error::new(ErrorKind::PermissionDenied, text));
        }
        if fstatfs(&link)?.f_type == PROC_SUPER_MAGIC {
            // Such as /proc/self/fd/2, which is no path.
            return Ok(rustix::fs::openat(CWD, &path, flags, mode)?.into());
        }
        let target = readlinkat(&link, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    Err(Errno::LOOP.into())
}

/// Opens the regular file `path` for reading. A symlink at its end is not followed.
///
/// # Errors
/// `ELOOP` for a symlink, `InvalidInput` if it is not a regular file; else the error of open(2).
pub fn read(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Whether only root and this process's user may change a file with these properties.
pub fn is_private(metadata: &Metadata) -> bool {
    let owners = [0, rustix::process::geteuid().as_raw()];
    owners.contains(&metadata.uid()) && metadata.mode() & 0o022 == 0
}

/// Denies other users to write to files and sockets that this process makes from now on, whatever mask it was
/// started with.
pub fn keep_others_out() {
    let others = Mode::WOTH;
    let given = rustix::process::umask(others);
    rustix::process::umask(given | others);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn private_files() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, private) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), permissions).unwrap();
            assert_eq!(
                is_private(&file.as_file().metadata().unwrap()),
                private,
                "{mode:o}"
            );
        }
        if rustix::process::geteuid().is_root() {
            lchown(file.path(), Some(65534), None).unwrap();
            assert!(!is_private(&file.as_file().metadata().unwrap()));
        }
    }

    #[test]
    fn links_and_fifos() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        append(&at("plain"), 0o640).unwrap().write_all(b"a").unwrap();
        symlink("plain", at("own")).unwrap();
        symlink(at("own"), at("twice")).unwrap();
        append(&at("twice"), 0o640).unwrap().write_all(b"b").unwrap();
        assert_eq!(std::fs::read(at("plain")).unwrap(), b"ab");
        symlink("loop", at("loop")).unwrap();
        assert!(append(&at("loop"), 0o640).is_err());
        // No process reads the FIFO, and opening it does not wait for one.
        rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(append(&at("fifo"), 0o640).unwrap_err().raw_os_error(), Some(6));
        assert!(read(&at("own")).is_err() && read(&at("fifo")).is_err() && read(&at("plain")).is_ok());
        append(Path::new("/proc/self/fd/2"), 0o640).unwrap();
        if rustix::process::geteuid().is_root() {
            symlink(at("secret"), at("planted")).unwrap();
            lchown(at("planted"), Some(65534), None).unwrap();
            let error = append(&at("planted"), 0o640).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(!at("secret").exists());
        }
    }
}
