//! The one place that decides which texts of a configuration may become a path, a device or a program.
//!
//! **Problem.** Tenants write network configurations, and programs with all privileges of the host read them.
//! A name such as `../../bin/sh` leads out of the directory that it is joined to. A name that begins with `-`
//! is an option to the program that gets it.
//!
//! **Limits.** These functions look at the text alone. A symlink inside an allowed directory
//! still leads out of it: [`append_below`], [`make_dir_below`] and [`remove_dir_below`] refuse those.

use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// Longest name of a network device, bytes.
const MAX_DEVICE_BYTES: usize = 15;
/// Longest name of a file, bytes.
const MAX_FILE_BYTES: usize = 255;
/// Longest path, bytes.
const MAX_PATH_BYTES: usize = 4095;

/// Whether the kernel takes `text` as the name of a network device. `all` and `default` are directories
/// beside the devices in `/proc/sys/net`.
pub fn is_device(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | '%');
    let reserved = matches!(text, "." | ".." | "all" | "default");
    !text.is_empty()
        && text.len() <= MAX_DEVICE_BYTES
        && text.chars().all(fits)
        && !text.starts_with('-')
        && !reserved
}

/// Whether `text` may name a container, a network, a kernel module, or a program in a directory of programs.
/// Such a name has letters, digits, `_`, `.` and `-`, with a letter or digit first.
pub fn is_plain(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        && text.len() < MAX_FILE_BYTES
}

/// Whether `text` is an absolute path without `.`, `..`, doubled slashes and control characters.
pub fn is_absolute(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('/') else {
        return false;
    };
    let fits = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= MAX_FILE_BYTES;
    text.len() <= MAX_PATH_BYTES && !text.chars().any(char::is_control) && rest.split('/').all(fits)
}

/// The first of `dirs` that the path `text` is below or equal to; `None` also for a path that is not
/// [absolute and plain](is_absolute).
pub fn dir_of<'a>(text: &str, dirs: &'a [PathBuf]) -> Option<&'a Path> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let found = dirs.iter().find(|dir| Path::new(text).starts_with(dir))?;
    is_absolute(text).then_some(found.as_path())
}

/// Resolution that does not leave a directory.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// The rest of `path` below `dir`: plain names only.
fn rest_below<'a>(dir: &Path, path: &'a Path) -> Result<&'a Path> {
    match path.strip_prefix(dir) {
        Ok(rest) if rest.components().all(|c| matches!(c, Component::Normal(_))) => Ok(rest),
        _ => Err(outside()),
    }
}

fn outside() -> Error {
    Error::new(ErrorKind::InvalidInput, "the path is not below its directory")
}

/// Opens the directory `rest` below `dir`. With `make`, makes the directories that are missing. Symlinks
/// below `dir` are refused.
fn open_dir(dir: &Path, rest: &Path, make: bool) -> Result<OwnedFd> {
    if make {
        std::fs::create_dir_all(dir)?;
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(dir, flags, Mode::empty())?;
    for part in rest.components() {
        if make {
            match rustix::fs::mkdirat(&at, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        at = rustix::fs::openat2(&at, part.as_os_str(), flags, Mode::empty(), WITHIN)?;
    }
    Ok(at)
}

/// Makes the directory `path` below `dir`, and directories above it, where they are missing. Symlinks below
/// `dir` are refused.
pub fn make_dir_below(dir: &Path, path: &Path) -> Result<()> {
    open_dir(dir, rest_below(dir, path)?, true).map(drop)
}

/// Removes the directory `path` below `dir` with everything in it. Symlinks below `dir` are not followed.
pub fn remove_dir_below(dir: &Path, path: &Path) -> Result<()> {
    let rest = rest_below(dir, path)?;
    let name = rest.file_name().ok_or_else(outside)?;
    let parent = open_dir(dir, rest.parent().unwrap_or(Path::new("")), false)?;
    // The standard library does not follow symlinks at this name or below it.
    let found = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name);
    std::fs::remove_dir_all(found)
}

/// Opens the regular file `path` below `dir` for appending, and makes it, and directories above it, where
/// they are missing. Symlinks below `dir` are refused, and so is anything but a regular file.
pub fn append_below(dir: &Path, path: &Path) -> Result<File> {
    let below = rest_below(dir, path)?;
    let at = open_dir(dir, below.parent().unwrap_or(Path::new("")), true)?;
    let name = below.file_name().ok_or_else(outside)?;
    // A FIFO without a reader would keep a plain open waiting.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(&at, name, flags, Mode::from_raw_mode(0o640), WITHIN)?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for good in ["eth0", "br-int", "a.100", ".x"] {
            assert!(is_device(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "-x",
            "a b",
            "all",
            "default",
            "0123456789abcdef",
            "a%d",
            "é",
        ] {
            assert!(!is_device(bad), "{bad}");
        }
        for good in ["host-local", "vduse", "heddle_x.1"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in [
            "",
            "..",
            "../x",
            "/bin/sh",
            "-r",
            ".hidden",
            "a b",
            "a\0b",
            "a\n",
            &"a".repeat(255),
        ] {
            assert!(!is_plain(bad), "{bad}");
        }
        let dirs = ["/run/heddle".into(), "/var/log/heddle".into()];
        for (path, dir) in [
            ("/run/heddle/vhost", Some("/run/heddle")),
            ("/run/heddle/", Some("/run/heddle")),
            ("/var/log/heddle/cni.log", Some("/var/log/heddle")),
            ("/run/heddle2/x", None),
            ("/run/heddle/../x", None),
            ("/run/heddle//x", None),
            ("/run/heddle/./x", None),
            ("/etc", None),
            ("run/heddle", None),
            ("", None),
            ("/", None),
            ("/run/heddle/a\nb", None),
        ] {
            assert_eq!(dir_of(path, &dirs), dir.map(Path::new), "{path}");
        }
    }

    #[test]
    fn directories_stay_in_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("run"), dir.path().join("other"));
        let make = |path: &str| make_dir_below(&root, &root.join(path));
        let remove = |path: &str| remove_dir_below(&root, &root.join(path));
        make("vhost/port").unwrap();
        make("vhost/port").unwrap();
        std::fs::write(root.join("vhost/port/vhost.sock"), "").unwrap();
        std::fs::create_dir_all(other.join("port")).unwrap();
        std::os::unix::fs::symlink(&other, root.join("way")).unwrap();
        std::os::unix::fs::symlink(&other, root.join("vhost/port/way")).unwrap();
        for bad in ["way", "way/port", "way/new", "../new"] {
            assert!(make(bad).is_err(), "{bad}");
        }
        for bad in ["way/port", "../other", "", "none"] {
            assert!(remove(bad).is_err(), "{bad}");
        }
        remove("vhost/port").unwrap();
        assert!(root.join("vhost").is_dir() && !root.join("vhost/port").exists());
        assert!(other.join("port").is_dir() && !other.join("new").exists());
    }

    #[test]
    fn a_log_stays_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (root, secret) = (dir.path().join("log"), dir.path().join("secret"));
        std::fs::write(&secret, "s").unwrap();
        let append = |path: PathBuf| append_below(&root, &path).and_then(|mut f| f.write_all(b"line\n"));
        append(root.join("deep/cni.log")).unwrap();
        append(root.join("deep/cni.log")).unwrap();
        assert_eq!(std::fs::read(root.join("deep/cni.log")).unwrap(), b"line\nline\n");
        std::os::unix::fs::symlink(&secret, root.join("planted")).unwrap();
        std::os::unix::fs::symlink(dir.path(), root.join("way")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        for bad in [
            "planted",
            "way/secret",
            "way/new",
            "fifo",
            "../secret",
            "",
            "deep",
        ] {
            assert!(append(root.join(bad)).is_err(), "{bad}");
        }
        assert_eq!(std::fs::read(&secret).unwrap(), b"s");
        assert!(!dir.path().join("new").exists());
    }
}
