//! Network namespaces: listing them, and doing something inside one.
//!
//! A namespace belongs to a thread. A short-lived thread enters it, so no other thread's view changes. A
//! descriptor opened there (a socket, `/dev/net/tun`) stays there, whichever thread uses it.
//!
//! **Limits.** [`all`] finds namespaces in which a visible process runs or that are mounted here (`ip netns
//! add`, container runtimes). It does not find namespaces that only a descriptor of some process keeps.

#![allow(unsafe_code)] // an ioctl

use crate::cvt;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The identity of a namespace: its inode in the file system of namespaces. The kernel may give it to another
/// namespace after the end of this one.
pub type Id = u64;

/// `NS_GET_NSTYPE` of linux/nsfs.h.
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;

/// The identity of an open namespace.
///
/// # Errors
/// The error of fstat(2).
pub fn id(ns: &OwnedFd) -> io::Result<Id> {
    Ok(File::from(ns.try_clone()?).metadata()?.ino())
}

/// The calling thread's namespace.
///
/// # Errors
/// Without `/proc`.
pub fn own() -> io::Result<OwnedFd> {
    open(Path::new("/proc/thread-self/ns/net"))
}

/// Runs `work` on a thread inside the namespace `ns`, and waits for it.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_ADMIN`; errors of setns(2) or `work`.
pub fn inside<T: Send + 'static>(
    ns: &OwnedFd,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let ns = ns.try_clone()?;
    let thread = std::thread::Builder::new().name("netns".into()).spawn(move || {
        // Only this thread changes its namespace, and it ends right after.
        move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    })?;
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("thread ended early")))
}

/// Moves this process into the namespace at `path` for good: `/run/netns/NAME`, `/proc/PID/ns/net`.
///
/// # Errors
/// `Unsupported` when other threads run already, which would stay where they are; errors of open(2) or
/// setns(2).
pub fn enter(path: &Path) -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        let text = "cannot change the namespace of a process with several threads";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    move_into_link_name_space(open(path)?.as_fd(), Some(LinkNameSpaceType::Network)).map_err(Into::into)
}

/// The paths at which the namespaces of all running processes can be opened.
pub fn of_processes() -> impl Iterator<Item = PathBuf> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = all.filter(|e| {
        e.file_name()
            .as_encoded_bytes()
            .first()
            .is_some_and(u8::is_ascii_digit)
    });
    processes.map(|e| e.path().join("ns/net"))
}

/// The namespaces that can be found, the caller's own first. One that ends meanwhile is left out.
pub fn all() -> Vec<OwnedFd> {
    let mut found: BTreeMap<Id, OwnedFd> = BTreeMap::new();
    let own = own().ok();
    let own_id = own.as_ref().and_then(|ns| id(ns).ok());
    let mut offer = |path: &Path, known: Option<Id>| {
        if known.is_some_and(|id| Some(id) == own_id || found.contains_key(&id)) {
            return;
        }
        let Ok(ns) = open(path) else { return };
        if let Ok(id) = id(&ns)
            && Some(id) != own_id
        {
            found.entry(id).or_insert(ns);
        }
    };
    for path in of_processes() {
        if let Ok(link) = fs::read_link(&path) {
            offer(&path, link.to_str().and_then(link_id));
        }
    }
    for (path, id) in mounted(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()) {
        offer(&path, Some(id));
    }
    own.into_iter().chain(found.into_values()).collect()
}

/// Opens a file that is a network namespace. Does not wait, whatever the file is.
///
/// # Errors
/// The error of open(2); `EINVAL` or `ENOTTY` for another file.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // SAFETY: this request takes no argument.
    let kind = cvt(unsafe { libc::ioctl(file.as_fd().as_raw_fd(), NS_GET_NSTYPE) })?;
    if kind != libc::CLONE_NEWNET {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(file.into())
}

/// The identity in the text of a link or of a mount's root: `net:[4026531840]`.
fn link_id(text: &str) -> Option<Id> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Network namespaces among the mounts of proc_pid_mountinfo(5).
fn mounted(mountinfo: &str) -> Vec<(PathBuf, Id)> {
    let one = |line: &str| {
        let mut fields = line.split(' ').skip(3);
        let id = link_id(fields.next()?)?;
        Some((PathBuf::from(unescape(fields.next()?)), id))
    };
    mountinfo.lines().filter_map(one).collect()
}

/// Undoes the `\040` for white space in a mount's path.
fn unescape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let code = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(code.into());
                rest = &after[3..];
            }
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_namespace_is_first_and_once() {
        let all = all();
        let ids: Vec<Id> = all.iter().map(|ns| id(ns).unwrap()).collect();
        assert_eq!(ids.first(), Some(&id(&own().unwrap()).unwrap()));
        let mut unique = ids.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), ids.len());
    }

    #[test]
    fn mounts_are_read() {
        let text = "39 25 0:4 net:[4026532291] /run/netns/a rw shared:5 - nsfs nsfs rw\n\
                    22 25 0:20 / /proc rw,nosuid shared:12 - proc proc rw\n\
                    40 25 0:4 mnt:[4026532292] /run/mnt rw - nsfs nsfs rw\n\
                    41 25 0:4 net:[7] /run/with\\040space\\134 rw - nsfs nsfs rw\n\ncut net:[";
        let expected = [("/run/netns/a", 4_026_532_291), ("/run/with space\\", 7)];
        assert_eq!(
            mounted(text),
            expected.map(|(path, id)| (PathBuf::from(path), id))
        );
        assert_eq!(unescape("a\\é\\04"), "a\\é\\04");
    }

    #[test]
    fn other_files_are_no_namespaces() {
        for path in ["/dev/null", "/proc/self/ns/mnt", "/nowhere", "/"] {
            assert!(open(Path::new(path)).is_err(), "{path}");
        }
    }
}
