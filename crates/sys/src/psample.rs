//! Packets for the kernel's psample (tc-sample(8)): a device whose sent packets the kernel samples and drops.
//!
//! psample has no system call that takes a packet. So there is a tap device of this process, with a
//! classifier by packet mark (cls_fw) at its egress. Each mark in use has one action `sample`, with the group
//! and the cookie of its samples. [`SampleDevice::send`] sends a frame with a mark through a packet socket.
//! The action gives the frame to psample with rate 1 and ends its way: no packet reaches the tap's queue.
//!
//! **Reasons.** The hook at egress gets the frame as it was written, and the kernel reads the protocol out of
//! its Ethernet header. A mark is found by a hash, however many there are.
//!
//! **End.** The device is not persistent: it goes with this process, and classifier and actions with it, also
//! after kill -9.
//!
//! `netlink-packet-route` has no messages for cls_fw and act_sample; [`sample_action`] writes them.

use crate::netlink::Requests;
use crate::{LinkCtl, TapQueue, sock, tap};
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage::{
    self, DelTrafficFilter, NewQueueDiscipline, NewTrafficFilter,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use rustix::net::{AddressFamily, SendFlags, SocketType, send};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Name of the device; the kernel chooses the number.
const NAME_PATTERN: &str = "hdlsample%d";
/// Longest frame that is taken, bytes without the Ethernet header.
const MTU_BYTES: u32 = 9000;

const CLSACT: TcHandle = TcHandle {
    major: 0xffff,
    minor: 0xfff1,
};
const CLSACT_EGRESS: TcHandle = TcHandle {
    major: 0xffff,
    minor: 0xfff3,
};
const PRIORITY: u32 = 1;
const ETH_P_ALL: u16 = 3;

/// Attributes and values of linux/pkt_cls.h and linux/tc_act/tc_sample.h.
const NLA_F_NESTED: u16 = 0x8000;
const TCA_FW_ACT: u16 = 4;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_ACT_COOKIE: u16 = 6;
const TCA_SAMPLE_PARMS: u16 = 2;
const TCA_SAMPLE_RATE: u16 = 3;
const TCA_SAMPLE_PSAMPLE_GROUP: u16 = 5;
/// The packet ends here, and its sender gets no error.
const TC_ACT_STOLEN: i32 = 4;

/// See the module's text.
#[derive(Debug)]
pub struct SampleDevice {
    /// Keeps the device; never read.
    tap: TapQueue,
    socket: OwnedFd,
    requests: Requests,
    ifindex: u32,
    /// The mark of packets that the socket sends now.
    mark: u32,
}

impl SampleDevice {
    /// A device in the caller's network namespace.
    ///
    /// # Errors
    /// `NotFound` without `/dev/net/tun` or the qdisc clsact, `PermissionDenied` without `CAP_NET_ADMIN` and
    /// `CAP_NET_RAW`.
    pub fn new() -> io::Result<Self> {
        let tap = tap::numbered(NAME_PATTERN)?;
        let name = tap.ifname()?;
        let links = LinkCtl::new()?;
        let ifindex = links.ifindex(&name)?;
        // The host's own stack sends nothing by it. A kernel without IPv6 has no such file.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        links.set_mtu(&name, MTU_BYTES)?;
        links.set_up(&name, true)?;
        let socket = sock::socket(AddressFamily::PACKET, SocketType::RAW)?;
        bind(&socket, ifindex)?;
        let device = Self {
            tap,
            socket,
            requests: Requests::new(None)?,
            ifindex,
            mark: 0,
        };
        let mut qdisc = device.message(
            TcHandle {
                major: CLSACT.major,
                minor: 0,
            },
            CLSACT,
        );
        qdisc.attributes.push(TcAttribute::Kind("clsact".into()));
        device.request(NewQueueDiscipline(qdisc), NLM_F_CREATE | NLM_F_EXCL)?;
        Ok(device)
    }

    /// Name of the device.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn name(&self) -> io::Result<String> {
        self.tap.ifname()
    }

    /// From now on, frames with `mark` are samples of `group`, with this cookie. A mark is not 0.
    ///
    /// # Errors
    /// `NotFound` of a kernel without act_sample or cls_fw; `AlreadyExists`.
    pub fn add(&self, mark: u32, group: u32, cookie: [u8; 8]) -> io::Result<()> {
        let mut m = self.filter(mark);
        let actions = DefaultNla::new(TCA_FW_ACT | NLA_F_NESTED, sample_action(group, cookie));
        m.attributes
            .push(TcAttribute::Options(vec![TcOption::Other(actions)]));
        self.request(NewTrafficFilter(m), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Frames with `mark` are no samples any more.
    ///
    /// # Errors
    /// `NotFound`: there is none.
    pub fn remove(&self, mark: u32) -> io::Result<()> {
        self.request(DelTrafficFilter(self.filter(mark)), 0)
    }

    /// Gives an Ethernet frame to psample, as a sample of `mark`. It does not wait.
    ///
    /// # Errors
    /// `EINVAL` for a frame without a whole Ethernet header, `EMSGSIZE` for one that is too long. `ENXIO` or
    /// `ENETDOWN` if the device was deleted or set down.
    pub fn send(&mut self, mark: u32, frame: &[u8]) -> io::Result<()> {
        if self.mark != mark {
            sock::set(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &mark)?;
            self.mark = mark;
        }
        send(&self.socket, frame, SendFlags::DONTWAIT)?;
        Ok(())
    }

    fn request(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.requests.ask(request, NLM_F_ACK | flags, |_| {})
    }

    fn message(&self, handle: TcHandle, parent: TcHandle) -> TcMessage {
        let mut m = TcMessage::with_index(i32::try_from(self.ifindex).unwrap_or(-1));
        m.header.handle = handle;
        m.header.parent = parent;
        m
    }

    fn filter(&self, mark: u32) -> TcMessage {
        let mut m = self.message(mark.into(), CLSACT_EGRESS);
        m.header.info = PRIORITY << 16 | u32::from(ETH_P_ALL.to_be());
        m.attributes.push(TcAttribute::Kind("fw".into()));
        m
    }
}

/// Binds for sending only: with protocol 0 nothing is received, and the kernel reads each frame's protocol.
fn bind(socket: &OwnedFd, ifindex: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap_or_default(),
        sll_protocol: 0,
        sll_ifindex: i32::try_from(ifindex).unwrap_or(-1),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    sock::bind(socket.as_fd(), &address)
}

/// The value of a list of one action: `sample rate 1 group GROUP`, which ends the packet's way.
fn sample_action(group: u32, cookie: [u8; 8]) -> Vec<u8> {
    // Index, capabilities, action, and two counts that the kernel fills in (struct tc_sample).
    let fields = [[0; 4], [0; 4], TC_ACT_STOLEN.to_ne_bytes(), [0; 4], [0; 4]];
    let mut options = attribute(TCA_SAMPLE_PARMS, &fields.concat());
    options.extend(attribute(TCA_SAMPLE_RATE, &1_u32.to_ne_bytes()));
    options.extend(attribute(TCA_SAMPLE_PSAMPLE_GROUP, &group.to_ne_bytes()));
    let mut action = attribute(TCA_ACT_KIND, b"sample\0");
    action.extend(attribute(TCA_ACT_OPTIONS | NLA_F_NESTED, &options));
    action.extend(attribute(TCA_ACT_COOKIE, &cookie));
    // The number of an action in a list begins at 1.
    attribute(1 | NLA_F_NESTED, &action)
}

/// A netlink attribute with its padding (netlink(7)). The values here are some bytes long.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{Nla, NlasIterator};

    #[test]
    fn the_action_has_group_and_cookie() {
        let bytes = sample_action(10, [1, 2, 3, 4, 5, 6, 7, 8]);
        let of = |bytes: &[u8]| -> Vec<(u16, Vec<u8>)> {
            NlasIterator::new(bytes)
                .map(|nla| {
                    let nla = nla.unwrap();
                    (nla.kind(), nla.value().to_vec())
                })
                .collect()
        };
        let list = of(&bytes);
        assert_eq!(list.len(), 1);
        let action = of(&list[0].1);
        assert_eq!(action[0], (TCA_ACT_KIND, b"sample\0".to_vec()));
        assert_eq!(action[2], (TCA_ACT_COOKIE, vec![1, 2, 3, 4, 5, 6, 7, 8]));
        let options = of(&action[1].1);
        assert_eq!(options[0].1.len(), 20);
        assert_eq!(options[0].1[8..12], TC_ACT_STOLEN.to_ne_bytes());
        assert_eq!(options[1].1, 1_u32.to_ne_bytes());
        assert_eq!(
            options[2],
            (TCA_SAMPLE_PSAMPLE_GROUP, 10_u32.to_ne_bytes().to_vec())
        );
        let padded = DefaultNla::new(TCA_FW_ACT | NLA_F_NESTED, bytes.clone());
        assert_eq!(padded.value_len(), bytes.len());
    }
}
