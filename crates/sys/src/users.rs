//! Users and groups by name, as the system's directory knows them (getpwnam(3): files, LDAP, ...).

#![allow(unsafe_code)] // getpwnam_r and its like

use rustix::process::{Gid, Uid};
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Number.
    pub uid: Uid,
    /// Number of the group that he is in first of all.
    pub gid: Gid,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number.
    pub gid: Gid,
    /// Names of its further members.
    pub members: Vec<String>,
}

/// The user of that name.
///
/// # Errors
/// The error of getpwnam(3); an unknown name is no error.
pub fn user_named(name: &str) -> io::Result<Option<User>> {
    let name = CString::new(name)?;
    // SAFETY: a terminated name, and the arguments of `find`.
    find(
        |entry, buf, len, found| unsafe { libc::getpwnam_r(name.as_ptr(), entry, buf, len, found) },
        user,
    )
}

/// The user of that number.
///
/// # Errors
/// The error of getpwuid(3); an unknown number is no error.
pub fn user_of(uid: Uid) -> io::Result<Option<User>> {
    // SAFETY: the arguments of `find`.
    find(
        |entry, buf, len, found| unsafe { libc::getpwuid_r(uid.as_raw(), entry, buf, len, found) },
        user,
    )
}

/// The group of that name.
///
/// # Errors
/// The error of getgrnam(3); an unknown name is no error.
pub fn group_named(name: &str) -> io::Result<Option<Group>> {
    let name = CString::new(name)?;
    let read = |entry: &libc::group| {
        let mut members = Vec::new();
        let mut at = entry.gr_mem;
        // SAFETY: an entry's list of members ends with a null pointer, and each member is a terminated text.
        unsafe {
            while !at.is_null() && !(*at).is_null() {
                members.push(text(*at));
                at = at.add(1);
            }
        }
        Group {
            gid: Gid::from_raw(entry.gr_gid),
            members,
        }
    };
    // SAFETY: a terminated name, and the arguments of `find`.
    find(
        |entry, buf, len, found| unsafe { libc::getgrnam_r(name.as_ptr(), entry, buf, len, found) },
        read,
    )
}

fn user(entry: &libc::passwd) -> User {
    User {
        // SAFETY: an entry's name is a terminated text.
        name: unsafe { text(entry.pw_name) },
        uid: Uid::from_raw(entry.pw_uid),
        gid: Gid::from_raw(entry.pw_gid),
    }
}

/// # Safety
/// `at` is a terminated text.
unsafe fn text(at: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// Calls a lookup with room for an entry (`T`, a structure of pointers and numbers), for its texts, and for
/// where the entry is. If it reports too little room for texts, it is called again with more. Reads the
/// entry, if there is one.
fn find<T, R>(
    mut call: impl FnMut(*mut T, *mut c_char, usize, *mut *mut T) -> c_int,
    read: impl FnOnce(&T) -> R,
) -> io::Result<Option<R>> {
    const MAX_BYTES: usize = 1 << 20;
    let mut texts: Vec<c_char> = vec![0; 1024];
    loop {
        let mut entry = core::mem::MaybeUninit::<T>::uninit();
        let mut found = core::ptr::null_mut();
        match call(
            entry.as_mut_ptr(),
            texts.as_mut_ptr(),
            texts.len(),
            &raw mut found,
        ) {
            0 if found.is_null() => return Ok(None),
            // SAFETY: the entry was found: it is filled, and its texts are in `texts`.
            0 => return Ok(Some(read(unsafe { entry.assume_init_ref() }))),
            libc::EINTR => {}
            libc::ERANGE if texts.len() < MAX_BYTES => texts.resize(texts.len() * 4, 0),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_nobody_else_is_made_up() {
        let root = user_named("root").unwrap().unwrap();
        assert!(root.uid.is_root() && root.gid == Gid::ROOT, "{root:?}");
        assert_eq!(user_of(Uid::ROOT).unwrap(), Some(root));
        assert_eq!(group_named("root").unwrap().unwrap().gid, Gid::ROOT);
        assert_eq!(user_named("no-such-user").unwrap(), None);
        assert_eq!(group_named("no-such-group").unwrap(), None);
        assert!(user_named("with\0zero").is_err());
    }
}
