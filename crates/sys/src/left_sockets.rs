//! Sockets in the file system that an earlier process made and left behind.
//!
//! **Problem.** A process that is killed leaves the files of its sockets. The next one replaces the files
//! that it needs. Files of ports and bridges that were removed meanwhile would stay for ever.
//!
//! **How.** A process notes each socket that it makes in a file of its run directory: device, inode, path.
//! The next one removes each socket that is still the same file and has no listener.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{self, OpenOptions};
use std::io::{Read, Result, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Size of the notes, bytes, above which notes of removed files are dropped.
const TIDY_BYTES: u64 = 64 << 10;
/// Maximum size of an earlier process's notes, bytes; the rest is not read.
const MAX_BYTES: u64 = 16 << 20;

static NOTES: OnceLock<Mutex<PathBuf>> = OnceLock::new();

/// Removes the sockets that the earlier process listed in the file `notes`, and lists there those that this
/// process makes. Returns the removed sockets.
///
/// # Errors
/// The system's error about the file.
pub fn start(notes: &Path) -> Result<Vec<PathBuf>> {
    let mut text = String::new();
    if let Ok(file) = crate::files::read(notes) {
        // A file that is no text holds no notes.
        let _ = file.take(MAX_BYTES).read_to_string(&mut text);
    }
    let mut gone = Vec::new();
    for (file, path) in text.lines().filter_map(note) {
        if is_same(file, path) && refuses(path) && fs::remove_file(path).is_ok() {
            gone.push(path.to_owned());
        }
    }
    match fs::remove_file(notes) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    NOTES.get_or_init(|| Mutex::new(notes.to_owned()));
    Ok(gone)
}

/// Notes that this process has made the socket `path`.
pub fn made(path: &Path) {
    if let Some(notes) = NOTES.get() {
        // A socket that is not listed may stay behind; nothing else follows.
        let _ = add(&notes.lock().unwrap_or_else(PoisonError::into_inner), path);
    }
}

fn add(notes: &Path, path: &Path) -> Result<()> {
    let path = std::path::absolute(path)?;
    let (Ok(meta), Some(text)) = (fs::symlink_metadata(&path), path.to_str()) else {
        return Ok(());
    };
    if text.contains('\n') {
        return Ok(());
    }
    let line = format!("{} {} {text}\n", meta.dev(), meta.ino());
    let mut file = crate::files::append(notes, 0o600)?;
    if file.metadata()?.len() > TIDY_BYTES {
        let all = fs::read_to_string(notes)?;
        let kept = all
            .lines()
            .filter(|l| note(l).is_some_and(|(id, p)| is_same(id, p)));
        let kept: String = kept.flat_map(|l| [l, "\n"]).collect();
        return write_anew(notes, &(kept + &line));
    }
    file.write_all(line.as_bytes())
}

fn write_anew(notes: &Path, text: &str) -> Result<()> {
    let new = notes.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, notes)
}

/// Device and inode of a file, and its path.
fn note(line: &str) -> Option<((u64, u64), &Path)> {
    let mut words = line.splitn(3, ' ');
    let mut number = || words.next()?.parse().ok();
    let file = (number()?, number()?);
    Some((file, Path::new(words.next()?)))
}

fn is_same(file: (u64, u64), path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket() && (m.dev(), m.ino()) == file)
}

/// Whether no process listens at the socket.
fn refuses(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let tried = SocketAddrUnix::new(path).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    });
    tried == Err(rustix::io::Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_what_an_earlier_process_made_and_left_goes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let notes = at("notes");
        let noted = |name: &str| {
            let listener = UnixListener::bind(at(name)).unwrap();
            add(&notes, &at(name)).unwrap();
            listener
        };
        let alive = noted("alive");
        for left in ["left", "replaced", "plain"] {
            drop(noted(left));
        }
        // Another process's socket is kept, though no process listens there either.
        drop(UnixListener::bind(at("foreign")).unwrap());
        for name in ["replaced", "plain"] {
            fs::rename(at(name), at(&format!("{name}.old"))).unwrap();
        }
        drop(UnixListener::bind(at("replaced")).unwrap());
        fs::write(at("plain"), "").unwrap();
        let mut text = fs::read_to_string(&notes).unwrap();
        text += "nonsense\n1 2\n\n";
        fs::write(&notes, text).unwrap();
        assert_eq!(start(&notes).unwrap(), [at("left")]);
        for kept in ["alive", "foreign", "replaced", "plain"] {
            assert!(at(kept).exists(), "{kept}");
        }
        assert!(!notes.exists());
        drop(alive);
        for _ in 0..2000 {
            add(&notes, &at("alive")).unwrap();
        }
        assert!(fs::metadata(&notes).unwrap().len() < 2 * TIDY_BYTES);
    }
}
