//! Pairs of veth devices of which one end is in another network namespace: identity and address of that end.

use crate::device_programs::xdp;
use crate::netlink::Requests;
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_route::RouteNetlinkMessage::{GetLink, NewLink};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use std::io;

/// The other end of a veth device, in another network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Index of this end's device.
    pub ifindex: u32,
    /// The other namespace, as this one numbers it.
    namespace: i32,
    /// Index of the other end's device there.
    index: u32,
}

/// Requests about them, in the caller's namespace.
#[derive(Debug)]
pub struct Peers(Requests);

const IFLA_TARGET_NETNSID: u16 = 46;

impl Peers {
    /// A socket for requests.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Requests::new(None).map(Self)
    }
    /// All pairs.
    pub fn all(&self) -> io::Result<Vec<Peer>> {
        let mut all = Vec::new();
        self.0
            .ask(GetLink(LinkMessage::default()), NLM_F_DUMP, |answer| {
                if let NewLink(message) = answer {
                    all.extend(peer(&message));
                }
            })?;
        Ok(all)
    }
    /// The other end of one device: `None` if it is no veth, or both ends are here.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(&self, ifindex: u32) -> io::Result<Option<Peer>> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        let mut found = None;
        self.0.ask(GetLink(request), NLM_F_ACK, |answer| {
            if let NewLink(message) = answer {
                found = peer(&message);
            }
        })?;
        Ok(found)
    }
    /// The other end's hardware address; `None` if it has an XDP program, which sees only packets that this
    /// end sends.
    ///
    /// # Errors
    /// The kernel's error: `PermissionDenied` without rights there, `EINVAL` before Linux 4.19.
    pub fn mac(&self, peer: &Peer) -> io::Result<Option<[u8; 6]>> {
        let mut request = LinkMessage::default();
        request.header.index = peer.index;
        let namespace = DefaultNla::new(IFLA_TARGET_NETNSID, peer.namespace.to_ne_bytes().to_vec());
        request.attributes.push(LinkAttribute::Other(namespace));
        let (mut mac, mut has_xdp) = (None, false);
        self.0.ask(GetLink(request), NLM_F_ACK, |answer| {
            if let NewLink(message) = answer {
                has_xdp = xdp(&message);
                mac = message.attributes.iter().find_map(|a| match a {
                    LinkAttribute::Address(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok(),
                    _ => None,
                });
            }
        })?;
        let mac = mac.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok((!has_xdp).then_some(mac))
    }
}

fn peer(message: &LinkMessage) -> Option<Peer> {
    let (mut namespace, mut index, mut veth) = (None, None, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::LinkNetNsId(id) => namespace = Some(*id),
            LinkAttribute::Link(at) => index = Some(*at),
            LinkAttribute::LinkInfo(infos) => {
                veth |= infos.iter().any(|i| matches!(i, LinkInfo::Kind(InfoKind::Veth)));
            }
            _ => {}
        }
    }
    Some(Peer {
        ifindex: message.header.index,
        namespace: namespace.filter(|_| veth)?,
        index: index?,
    })
}
