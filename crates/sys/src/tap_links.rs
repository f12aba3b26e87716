//! The kernel's list of tap devices, with the data that only rtnetlink(7) has: their alias, their queues,
//! whether they are persistent.
//!
//! The alias (`ip link set DEV alias TEXT`) is a text that the kernel keeps with a device through renaming
//! and moves between namespaces; it serves to recognise a device.

use crate::netlink::Requests;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, Nla};
use netlink_packet_route::RouteNetlinkMessage::{self, DelLink, GetLink, NewLink, SetLink};
use netlink_packet_route::link::{InfoData, InfoTun, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use std::io;
use std::os::fd::OwnedFd;

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Alias, empty if none.
    pub alias: String,
    /// Group of devices; 0: none.
    pub group: u32,
    /// Properties of a tap device; `None` for devices of other kinds.
    pub tap: Option<TapInfo>,
}

/// Properties of a tap device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapInfo {
    /// The device stays when no process holds it.
    pub persistent: bool,
    /// The device was made for several queues. This never changes.
    pub multi_queue: bool,
    /// Queues that processes hold. Counted for devices with several queues only: joining another that is held
    /// is refused with `EBUSY`.
    pub queues: u32,
}

/// Requests about the devices of one network namespace.
#[derive(Debug)]
pub struct TapLinks(Requests);

// Attributes of a tap device in `IFLA_INFO_DATA` (linux/if_link.h).
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_PERSIST: u16 = 6;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;

impl TapLinks {
    /// Requests about the caller's namespace, or about `ns`.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN` to enter `ns`; no descriptors left.
    pub fn new(ns: Option<&OwnedFd>) -> io::Result<Self> {
        Requests::new(ns).map(Self)
    }

    /// All devices of the namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn all(&self) -> io::Result<Vec<Link>> {
        self.ask(GetLink(LinkMessage::default()), NLM_F_DUMP)
    }

    /// The device with that name, if there is one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn named(&self, name: &str) -> io::Result<Option<Link>> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.into()));
        match self.ask(GetLink(request), NLM_F_ACK) {
            Ok(links) => Ok(links.into_iter().next()),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sets a device's alias.
    ///
    /// # Errors
    /// `ENODEV`; `EINVAL` or `ERANGE` for a text of more than 254 bytes.
    pub fn set_alias(&self, ifindex: u32, alias: &str) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        request.attributes.push(LinkAttribute::IfAlias(alias.into()));
        self.ask(SetLink(request), NLM_F_ACK).map(drop)
    }

    /// Brings a device up, as one of a group of devices ([`TapLinks::remove_group`]).
    ///
    /// # Errors
    /// `ENODEV`, or the driver's error.
    pub fn bring_up(&self, ifindex: u32, group: u32) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        request.header.flags = LinkFlags::Up;
        request.header.change_mask = LinkFlags::Up;
        request.attributes.push(LinkAttribute::Group(group));
        self.ask(SetLink(request), NLM_F_ACK).map(drop)
    }

    /// Removes all devices of a group at once; a group without devices is no error. Removed one by one, each
    /// device takes tens of milliseconds, because the kernel waits for its readers (RCU) each time.
    ///
    /// # Errors
    /// The kernel's error; `EOPNOTSUPP` if one of the devices cannot be removed by a request.
    pub fn remove_group(&self, group: u32) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::Group(group));
        match self.ask(DelLink(request), NLM_F_ACK) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            done => done.map(drop),
        }
    }

    /// The devices in the reply to a request.
    fn ask(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<Link>> {
        let mut links = Vec::new();
        self.0.ask(request, flags, |answer| {
            if let NewLink(message) = answer {
                links.push(link(message));
            }
        })?;
        Ok(links)
    }
}

fn link(message: LinkMessage) -> Link {
    let mut link = Link {
        ifindex: message.header.index,
        ..Link::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::IfAlias(alias) => link.alias = alias,
            LinkAttribute::Group(group) => link.group = group,
            LinkAttribute::LinkInfo(parts) => link.tap = parts.iter().find_map(tap),
            _ => {}
        }
    }
    link
}

/// The properties of a tun or tap device, if it is a tap.
fn tap(part: &LinkInfo) -> Option<TapInfo> {
    let LinkInfo::Data(InfoData::Tun(data)) = part else {
        return None;
    };
    let mut tap = TapInfo::default();
    let mut is_tap = true;
    for attribute in data {
        let value = number(attribute);
        match attribute.kind() {
            IFLA_TUN_TYPE => is_tap = value == libc::IFF_TAP as u32,
            IFLA_TUN_PERSIST => tap.persistent = value != 0,
            IFLA_TUN_MULTI_QUEUE => tap.multi_queue = value != 0,
            IFLA_TUN_NUM_QUEUES | IFLA_TUN_NUM_DISABLED_QUEUES => {
                tap.queues = tap.queues.saturating_add(value);
            }
            _ => {}
        }
    }
    is_tap.then_some(tap)
}

/// A number of one or four bytes; 0 for anything else.
fn number(attribute: &InfoTun) -> u32 {
    let mut bytes = [0; 4];
    match attribute.value_len() {
        1 => {
            attribute.emit_value(&mut bytes[..1]);
            bytes[0].into()
        }
        4 => {
            attribute.emit_value(&mut bytes);
            u32::from_ne_bytes(bytes)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::DefaultNla;
    use netlink_packet_route::link::InfoKind;

    fn message(kind: InfoKind, tun_type: i32) -> LinkMessage {
        let byte = |kind, value| InfoTun::Other(DefaultNla::new(kind, vec![value]));
        let word = |kind, value: u32| InfoTun::Other(DefaultNla::new(kind, value.to_ne_bytes().to_vec()));
        let data = InfoData::Tun(vec![
            byte(IFLA_TUN_TYPE, tun_type as u8),
            byte(IFLA_TUN_PERSIST, 1),
            byte(IFLA_TUN_MULTI_QUEUE, 1),
            word(IFLA_TUN_NUM_QUEUES, 2),
            word(IFLA_TUN_NUM_DISABLED_QUEUES, 1),
        ]);
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.attributes = vec![
            LinkAttribute::IfName("p0".into()),
            LinkAttribute::IfAlias("of mine".into()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)]),
        ];
        message
    }

    /// The message as the kernel would send it.
    fn parsed(message: LinkMessage) -> Link {
        let mut message = crate::netlink::Message::from(NewLink(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let read: crate::netlink::Message = crate::netlink::messages(&bytes).next().unwrap().unwrap();
        match read.payload {
            netlink_packet_core::NetlinkPayload::InnerMessage(NewLink(m)) => link(m),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn taps_are_told_from_others() {
        let mut expected = Link {
            ifindex: 7,
            name: "p0".into(),
            alias: "of mine".into(),
            group: 0,
            tap: Some(TapInfo {
                persistent: true,
                multi_queue: true,
                queues: 3,
            }),
        };
        assert_eq!(parsed(message(InfoKind::Tun, libc::IFF_TAP)), expected);
        expected.tap = None;
        assert_eq!(parsed(message(InfoKind::Tun, libc::IFF_TUN)), expected);
        assert_eq!(parsed(message(InfoKind::Dummy, libc::IFF_TAP)), expected);
    }

    /// In the test's own network namespace.
    #[test]
    fn a_group_of_devices_goes_at_once() {
        let done = std::thread::spawn(|| {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; nothing that processes share is unshared here"
            )]
            if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
                return; // not root
            }
            let links = TapLinks::new(None).unwrap();
            let open = |name: &str| crate::TapOpen::new(name).open().unwrap();
            let taps = ["g0", "g1", "other"].map(open);
            for (name, group) in [("g0", 77), ("g1", 77), ("other", 78)] {
                let index = links.named(name).unwrap().unwrap().ifindex;
                links.bring_up(index, group).unwrap();
                assert!(crate::LinkCtl::new().unwrap().flags(name).unwrap().up);
            }
            links.remove_group(77).unwrap();
            let left: Vec<String> = links.all().unwrap().into_iter().map(|l| l.name).collect();
            assert_eq!(left.iter().filter(|n| n.starts_with('g')).count(), 0, "{left:?}");
            assert!(left.contains(&"other".to_owned()), "{left:?}");
            links.remove_group(77).unwrap();
            drop(taps);
        });
        done.join().unwrap();
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
}
