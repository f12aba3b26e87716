//! The kernel's list of tap devices, with what only rtnetlink(7) tells: their alias, their queues, whether they are kept.
//!
//! The alias (`ip link set DEV alias TEXT`) is a text that the kernel keeps with a device through renaming and moves between
//! namespaces; it serves to recognise a device.

use crate::netlink::{self, u32_at};
use crate::{cvt_len, netns, sock};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Alias, empty if none.
    pub alias: String,
    /// What a tap device says of itself; `None` for devices of other kinds.
    pub tap: Option<TapInfo>,
}

/// What a tap device says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapInfo {
    /// It stays when nobody holds it.
    pub persistent: bool,
    /// It was made for several queues. This never changes.
    pub multi_queue: bool,
    /// Queues that processes hold. Counted for devices with several queues only: joining another that is held is refused with
    /// `EBUSY`.
    pub queues: u32,
}

/// Requests about the devices of one network namespace.
#[derive(Debug)]
pub struct TapLinks {
    sock: OwnedFd,
}

/// Longest alias, bytes (`IFALIASZ`, less its zero).
const ALIAS_MAX: usize = 255;
// Attributes of a tap device in `IFLA_INFO_DATA` (linux/if_link.h).
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_PERSIST: u16 = 6;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;
/// Longest wait for the kernel's answer, seconds. It answers before the request returns; this is against waiting for ever.
const PATIENCE_S: i64 = 5;

impl TapLinks {
    /// Requests about the caller's namespace, or about `ns`.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN` to enter `ns`; no descriptors left.
    pub fn new(ns: Option<&OwnedFd>) -> io::Result<Self> {
        let make = || sock::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE);
        let sock = match ns {
            None => make()?,
            Some(ns) => netns::inside(ns, make)?,
        };
        let patience = libc::timeval {
            tv_sec: PATIENCE_S,
            tv_usec: 0,
        };
        sock::set(sock.as_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience)?;
        Ok(Self { sock })
    }

    /// All devices of the namespace.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn all(&self) -> io::Result<Vec<Link>> {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        self.ask(&netlink::link_message(libc::RTM_GETLINK, flags, 0, &[]))
    }

    /// The device with that name, if there is one.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn named(&self, name: &str) -> io::Result<Option<Link>> {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        let name = [name.as_bytes(), b"\0"].concat();
        let request = netlink::link_message(libc::RTM_GETLINK, flags, 0, &[(libc::IFLA_IFNAME, &name)]);
        match self.ask(&request) {
            Ok(links) => Ok(links.into_iter().next()),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sets a device's alias.
    ///
    /// # Errors
    /// `ENODEV`; `EINVAL` for a text of more than 255 bytes.
    pub fn set_alias(&self, ifindex: u32, alias: &str) -> io::Result<()> {
        if alias.len() > ALIAS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        let attribute = (libc::IFLA_IFALIAS, alias.as_bytes());
        self.ask(&netlink::link_message(
            libc::RTM_SETLINK,
            flags,
            ifindex,
            &[attribute],
        ))?;
        Ok(())
    }

    /// Sends a request and collects devices until the answer is complete.
    fn ask(&self, request: &[u8]) -> io::Result<Vec<Link>> {
        // SAFETY: `request` is readable for its length.
        cvt_len(unsafe { libc::send(self.sock.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) })?;
        let mut links = Vec::new();
        let mut buf = vec![0; 64 * 1024];
        loop {
            // SAFETY: `buf` is writable for its length.
            let got = cvt_len(unsafe {
                libc::recv(
                    self.sock.as_raw_fd(),
                    buf.as_mut_ptr().cast(),
                    buf.len(),
                    libc::MSG_TRUNC,
                )
            });
            let got = match got {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let data = buf
                .get(..got)
                .ok_or_else(|| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
            for (kind, body) in netlink::messages(data) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(links),
                    libc::NLMSG_ERROR => {
                        // An error number, negative; 0 acknowledges.
                        return match u32_at(body, 0).map_or(-libc::EBADMSG, u32::cast_signed) {
                            0 => Ok(links),
                            errno => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
                        };
                    }
                    _ if kind == libc::RTM_NEWLINK => links.extend(link(body)),
                    _ => {}
                }
            }
        }
    }
}

/// `struct ifinfomsg` and its attributes.
fn link(body: &[u8]) -> Option<Link> {
    let mut link = Link {
        ifindex: u32_at(body, 4)?,
        ..Link::default()
    };
    for (kind, value) in netlink::attributes(body.get(netlink::IFINFO..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = netlink::text(value),
            libc::IFLA_IFALIAS => link.alias = netlink::text(value),
            libc::IFLA_LINKINFO => link.tap = tap(value),
            _ => {}
        }
    }
    Some(link)
}

/// `IFLA_LINKINFO`: the kind of device, and what that kind tells.
fn tap(info: &[u8]) -> Option<TapInfo> {
    let find = |wanted| netlink::attributes(info).find(|(kind, _)| *kind == wanted);
    if netlink::text(find(libc::IFLA_INFO_KIND)?.1) != "tun" {
        return None;
    }
    let mut tap = TapInfo::default();
    let mut is_tap = true;
    let data = find(libc::IFLA_INFO_DATA).map_or(&[][..], |(_, data)| data);
    for (kind, value) in netlink::attributes(data) {
        let flag = value.first().is_some_and(|&b| b != 0);
        match kind {
            IFLA_TUN_TYPE => is_tap = value.first().copied() == Some(libc::IFF_TAP as u8),
            IFLA_TUN_PERSIST => tap.persistent = flag,
            IFLA_TUN_MULTI_QUEUE => tap.multi_queue = flag,
            IFLA_TUN_NUM_QUEUES | IFLA_TUN_NUM_DISABLED_QUEUES => {
                tap.queues = tap.queues.saturating_add(u32_at(value, 0).unwrap_or(0));
            }
            _ => {}
        }
    }
    is_tap.then_some(tap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nested(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, value) in attributes {
            netlink::push_attribute(&mut out, *kind, value);
        }
        out
    }

    fn message(kind: &[u8], tun_type: u8) -> Vec<u8> {
        let data = nested(&[
            (IFLA_TUN_TYPE, &[tun_type]),
            (IFLA_TUN_PERSIST, &[1]),
            (IFLA_TUN_MULTI_QUEUE, &[1]),
            (IFLA_TUN_NUM_QUEUES, &2_u32.to_ne_bytes()),
            (IFLA_TUN_NUM_DISABLED_QUEUES, &1_u32.to_ne_bytes()),
        ]);
        let info = nested(&[(libc::IFLA_INFO_KIND, kind), (libc::IFLA_INFO_DATA, &data)]);
        let attributes = [
            (libc::IFLA_IFNAME, &b"p0\0"[..]),
            (libc::IFLA_IFALIAS, b"of mine\0"),
            (libc::IFLA_LINKINFO | libc::NLA_F_NESTED as u16, &info),
        ];
        netlink::link_message(libc::RTM_NEWLINK, 0, 7, &attributes)
    }

    #[test]
    fn taps_are_told_from_others() {
        let mut expected = Link {
            ifindex: 7,
            name: "p0".into(),
            alias: "of mine".into(),
            tap: Some(TapInfo {
                persistent: true,
                multi_queue: true,
                queues: 3,
            }),
        };
        let parsed = |m: &[u8]| link(&m[netlink::HEADER..]).unwrap();
        assert_eq!(parsed(&message(b"tun\0", libc::IFF_TAP as u8)), expected);
        expected.tap = None;
        assert_eq!(parsed(&message(b"tun\0", libc::IFF_TUN as u8)), expected);
        assert_eq!(parsed(&message(b"veth\0", libc::IFF_TAP as u8)), expected);
    }

    #[test]
    fn the_kernel_answers() {
        let links = TapLinks::new(None).unwrap();
        let all = links.all().unwrap();
        let lo = links.named("lo").unwrap().unwrap();
        assert!(
            lo.ifindex == 1 && lo.tap.is_none() && all.contains(&lo),
            "{lo:?} {all:?}"
        );
        assert_eq!(links.named("no-such-device").unwrap(), None);
        assert!(links.set_alias(1, &"x".repeat(256)).is_err());
    }

    proptest! {
        #[test]
        fn nonsense_breaks_nothing(at in 0_usize..200, with in any::<u8>(), cut in 0_usize..200) {
            let mut m = message(b"tun\0", libc::IFF_TAP as u8);
            let len = m.len();
            m[at % len] = with;
            let _ = link(&m[netlink::HEADER..]);
            let _ = link(&m[..cut.min(len)]);
            let _ = netlink::messages(&m).count();
        }
    }
}
