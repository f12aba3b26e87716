//! The vDPA bus: adding and removing devices, over generic netlink (linux/vdpa.h), and their attributes in
//! sysfs.
//!
//! The kernel serves these requests in its initial network namespace only. So all requests go there, if the
//! process may enter it.
//!
//! **These calls wait for the device**: adding or removing one makes the driver reset it. The kernel returns
//! when the device's server has replied. So the thread that serves the device must not call them.

use crate::netns;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The family that knows the others' numbers.
const CONTROL_FAMILY: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const DEV_NEW: u8 = 3;
const DEV_DEL: u8 = 4;
const MANAGEMENT_NAME: u16 = 2;
const DEVICE_NAME: u16 = 4;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// The type of an acknowledgement or error.
const ERROR: u16 = 2;
/// Bytes of netlink's header, and of generic netlink's behind it.
const HEADER: usize = 16;
const GENERIC: usize = 4;

/// Timeout of the kernel's reply. The kernel itself waits for the device's reply: 30 s, unless it is set
/// otherwise.
const ANSWER_LIMIT: Duration = Duration::from_secs(40);

/// One message: netlink's header, generic netlink's, and strings as attributes.
fn message(family: u16, command: u8, attributes: &[(u16, &str)]) -> Vec<u8> {
    let mut m = vec![0; HEADER];
    m.extend([command, 1, 0, 0]);
    for (kind, text) in attributes {
        let len = 4 + text.len() + 1; // with the zero behind it
        m.extend((len as u16).to_ne_bytes());
        m.extend(kind.to_ne_bytes());
        m.extend(text.as_bytes());
        m.push(0);
        m.resize(m.len().next_multiple_of(4), 0);
    }
    let header = [
        &(m.len() as u32).to_ne_bytes()[..],
        &family.to_ne_bytes(),
        &(REQUEST | ACKNOWLEDGE).to_ne_bytes(),
        &1_u32.to_ne_bytes(), // sequence
        &0_u32.to_ne_bytes(),
    ]
    .concat();
    m[..HEADER].copy_from_slice(&header);
    m
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}
fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

/// The value of attribute `wanted` in a message of generic netlink.
fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = message.get(HEADER + GENERIC..)?;
    loop {
        let (len, kind) = (usize::from(u16_at(rest, 0)?), u16_at(rest, 2)?);
        let value = rest.get(4..len)?;
        if kind & 0x3fff == wanted {
            return Some(value);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

/// Sends `request` and gives each message of the reply to `each`, until the acknowledgement.
fn ask(fd: &OwnedFd, request: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    send(fd, request, SendFlags::empty())?;
    let mut buf = vec![0; 32 * 1024];
    loop {
        let len = match recv(fd, &mut buf[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            got => got?.0,
        };
        let mut rest = buf.get(..len).unwrap_or_default();
        while let Some(len) = u32_at(rest, 0).map(|n| n as usize) {
            let Some(one) = rest.get(..len).filter(|one| one.len() >= HEADER) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            if u16_at(one, 4) == Some(ERROR) {
                return match u32_at(one, HEADER).map(u32::cast_signed) {
                    Some(0) => Ok(()),
                    Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    None => Err(io::ErrorKind::InvalidData.into()),
                };
            }
            each(one);
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// A socket in the initial namespace, or, where the process may not go there, in its own.
fn socket() -> io::Result<OwnedFd> {
    fn make() -> io::Result<OwnedFd> {
        let protocol = Some(netlink::GENERIC);
        Ok(socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?)
    }
    let first = fs::File::open("/proc/1/ns/net").map(OwnedFd::from);
    let fd = first
        .and_then(|ns| netns::inside(&ns, make))
        .or_else(|_| make())?;
    set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_LIMIT))?;
    Ok(fd)
}

/// One request to the family `vdpa`.
fn request(command: u8, attributes: &[(u16, &str)]) -> io::Result<()> {
    let fd = socket()?;
    let mut family = None;
    let question = message(CONTROL_FAMILY, GET_FAMILY, &[(FAMILY_NAME, "vdpa")]);
    let asked = ask(&fd, &question, |m| {
        family = attribute(m, FAMILY_ID).and_then(|v| u16_at(v, 0));
    });
    match (asked, family) {
        (Ok(()), Some(family)) => ask(&fd, &message(family, command, attributes), |_| {}),
        (Err(e), _) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel has no vDPA bus (is the module vdpa loaded?)",
        )),
    }
}

/// Adds the VDUSE device `name` to the bus, where a driver finds it. Waits for the device.
///
/// # Errors
/// `AlreadyExists`; `Unsupported` without the bus; `ENODEV` without the device; the driver's error.
pub fn add(name: &str) -> io::Result<()> {
    request(DEV_NEW, &[(DEVICE_NAME, name), (MANAGEMENT_NAME, "vduse")])
}

/// Removes a device from the bus; its driver leaves it. Waits for the device.
///
/// # Errors
/// `ENODEV` where there is none on the bus; `Unsupported` without the bus.
pub fn remove(name: &str) -> io::Result<()> {
    request(DEV_DEL, &[(DEVICE_NAME, name)])
}

fn place(name: &str) -> PathBuf {
    Path::new("/sys/bus/vdpa/devices").join(name)
}

/// Whether device `name` is on the bus.
pub fn is_present(name: &str) -> bool {
    place(name).exists()
}

/// Whether a driver has taken device `name`.
pub fn has_driver(name: &str) -> bool {
    place(name).join("driver").exists()
}

/// The network device that `virtio_vdpa` made of device `name`. One that this process's `/sys` does not show
/// (in another namespace) is not found.
pub fn netdev(name: &str) -> Option<String> {
    fs::read_dir(place(name)).ok()?.flatten().find_map(|entry| {
        let net = entry.path().join("net");
        let is_virtio = entry.file_name().to_string_lossy().starts_with("virtio");
        let first = is_virtio.then(|| fs::read_dir(net).ok()?.flatten().next())??;
        first.file_name().into_string().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_kernels_form() {
        let m = message(
            0x21,
            DEV_NEW,
            &[(DEVICE_NAME, "pod1"), (MANAGEMENT_NAME, "vduse")],
        );
        assert_eq!(m.len(), 16 + 4 + 12 + 12);
        assert_eq!(u32_at(&m, 0), Some(44));
        assert_eq!(attribute(&m, MANAGEMENT_NAME), Some(&b"vduse\0"[..]));
        assert_eq!(attribute(&m, 9), None);
        for cut in 0..m.len() {
            let _ = attribute(&m[..cut], 9);
        }
    }

    /// The kernel knows its own family; a kernel without the vDPA bus causes an error with a text.
    #[test]
    fn the_kernel_answers() {
        let fd = socket().unwrap();
        let mut found = None;
        let question = message(CONTROL_FAMILY, GET_FAMILY, &[(FAMILY_NAME, "nlctrl")]);
        ask(&fd, &question, |m| {
            found = attribute(m, FAMILY_ID).and_then(|v| u16_at(v, 0))
        })
        .unwrap();
        assert_eq!(found, Some(CONTROL_FAMILY));
        if !Path::new("/sys/bus/vdpa").exists() {
            let e = add("none").unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::Unsupported, "{e}");
        }
        assert!(!is_present("no-such-device") && netdev("no-such-device").is_none());
    }
}
