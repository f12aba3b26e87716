//! Packet programs and queueing disciplines that other programs have put on a network device: XDP, filters at
//! the clsact hooks, a root discipline. Links of tcx are no part of rtnetlink(7), and are left out.

use crate::ingress::{self, FLOW_COOKIE, FLOW_PRIORITIES, OWN_PRIORITIES};
use crate::netlink::Requests;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_route::RouteNetlinkMessage::{
    GetLink, GetQueueDiscipline, GetTrafficFilter, NewLink, NewQueueDiscipline, NewTrafficFilter,
};
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached};
use netlink_packet_route::tc::{
    TcActionAttribute, TcAttribute, TcFilterFlowerOption, TcHandle, TcMessage, TcOption,
};
use std::collections::HashMap;
use std::io;

/// Hook of filters at a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterHook {
    /// For packets that the device receives.
    Ingress,
    /// For packets that are sent by the device.
    Egress,
}

impl FilterHook {
    fn parent(self) -> TcHandle {
        let minor = match self {
            Self::Ingress => 0xfff2,
            Self::Egress => 0xfff3,
        };
        TcHandle { major: 0xffff, minor }
    }
}

/// Requests about the devices of the caller's network namespace.
#[derive(Debug)]
pub struct DevicePrograms(Requests);

impl DevicePrograms {
    /// A socket for requests.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Requests::new(None).map(Self)
    }

    /// Whether the device has an XDP program.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn has_xdp(&self, ifindex: u32) -> io::Result<bool> {
        let mut found = false;
        self.link(ifindex, |message| found |= xdp(message))?;
        Ok(found)
    }

    /// Identifiers of the XDP programs of the device: one for each mode.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn xdp_programs(&self, ifindex: u32) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        self.link(ifindex, |message| found.extend(xdp_programs(message)))?;
        Ok(found)
    }

    fn link(&self, ifindex: u32, mut read: impl FnMut(&LinkMessage)) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        self.0.ask(GetLink(request), NLM_F_ACK, |answer| {
            if let NewLink(message) = answer {
                read(&message);
            }
        })
    }

    /// Kind and priority of the first filter at a hook that is not one of this switch's.
    ///
    /// # Errors
    /// The kernel's error. A device without hooks is none.
    pub fn foreign_filter(&self, ifindex: u32, hook: FilterHook) -> io::Result<Option<(String, u16)>> {
        let mut request = message(ifindex);
        request.header.parent = hook.parent();
        let mut found = None;
        self.0.ask(GetTrafficFilter(request), NLM_F_DUMP, |answer| {
            let NewTrafficFilter(m) = answer else { return };
            let priority = u16::try_from(m.header.info >> 16).unwrap_or(0);
            let own =
                OWN_PRIORITIES.contains(&priority) || FLOW_PRIORITIES.contains(&priority) && is_flow(&m);
            if found.is_none() && !own {
                found = Some((kind(&m), priority));
            }
        })?;
        Ok(found)
    }

    /// Devices whose ingress may have filters.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn with_filters(&self) -> io::Result<Vec<u32>> {
        ingress::with_ingress(&self.0)
    }

    /// Devices with a root discipline that a program has set, and its kind. The kernel's own choice has no
    /// handle.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_disciplines(&self) -> io::Result<HashMap<u32, String>> {
        let mut found = HashMap::new();
        self.0.ask(GetQueueDiscipline(message(0)), NLM_F_DUMP, |answer| {
            if let NewQueueDiscipline(m) = answer
                && m.header.parent == TcHandle::ROOT
                && m.header.handle.major != 0
                && let Ok(ifindex) = u32::try_from(m.header.index)
            {
                found.insert(ifindex, kind(&m));
            }
        })?;
        Ok(found)
    }
}

/// Whether the device of this message has an XDP program.
pub(crate) fn xdp(message: &LinkMessage) -> bool {
    let mut attached = xdp_attributes(message).filter_map(|x| match x {
        LinkXdp::Attached(attached) => Some(attached),
        _ => None,
    });
    attached.any(|a| *a != XdpAttached::None)
}

fn xdp_programs(message: &LinkMessage) -> impl Iterator<Item = u32> + '_ {
    xdp_attributes(message).filter_map(|x| match x {
        LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) | LinkXdp::HwProgId(id) => Some(*id),
        _ => None,
    })
}

fn xdp_attributes(message: &LinkMessage) -> impl Iterator<Item = &LinkXdp> + '_ {
    let all = message.attributes.iter().filter_map(|a| match a {
        LinkAttribute::Xdp(all) => Some(all),
        _ => None,
    });
    all.flatten()
}

/// Whether a filter is one of a flow of this switch, or of another on this machine.
fn is_flow(message: &TcMessage) -> bool {
    let options = message.attributes.iter().find_map(|a| match a {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    let Some(options) = options else {
        // A priority as a whole comes before its filters, without a handle and without options.
        return u32::from(message.header.handle) == 0 && kind(message) == "flower";
    };
    let actions = options.iter().find_map(|o| match o {
        TcOption::Flower(TcFilterFlowerOption::Actions(actions)) => actions.first(),
        _ => None,
    });
    let mut attributes = actions.into_iter().flat_map(|action| &action.attributes);
    attributes.any(|a| matches!(a, TcActionAttribute::Cookie(cookie) if cookie.starts_with(&FLOW_COOKIE)))
}

fn message(ifindex: u32) -> TcMessage {
    TcMessage::with_index(i32::try_from(ifindex).unwrap_or(-1))
}

fn kind(message: &TcMessage) -> String {
    let kind = message.attributes.iter().find_map(|a| match a {
        TcAttribute::Kind(kind) => Some(kind.clone()),
        _ => None,
    });
    kind.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn run(command: &str) -> bool {
        Command::new("sh")
            .args(["-c", command])
            .output()
            .is_ok_and(|out| out.status.success())
    }

    #[test]
    fn programs_of_others_are_found() {
        // In a namespace of this thread's own: other tests are not touched.
        let done = std::thread::spawn(|| {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; nothing that processes share is unshared here"
            )]
            if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
                return;
            }
            if !run(
                "ip link add h0 type veth peer name h1 && ip link set h0 up && tc qdisc add dev h0 clsact",
            ) {
                return; // without the right, or without classifiers
            }
            let index = crate::LinkCtl::new().unwrap().ifindex("h0").unwrap();
            let all = DevicePrograms::new().unwrap();
            let filter = |hook| all.foreign_filter(index, hook).unwrap();
            let own = "tc filter add dev h0 ingress protocol all prio 18500 bpf da bytecode '1,6 0 0 0,'";
            assert!(run(own));
            assert_eq!(
                (filter(FilterHook::Ingress), filter(FilterHook::Egress)),
                (None, None)
            );
            assert!(!all.has_xdp(index).unwrap());
            assert_eq!(all.set_disciplines().unwrap().get(&index), None);
            assert!(run(&own.replace("18500", "7")));
            assert_eq!(filter(FilterHook::Ingress), Some(("bpf".into(), 7)));
            assert!(run(&own.replace("ingress", "egress").replace("18500", "9")));
            assert_eq!(filter(FilterHook::Egress), Some(("bpf".into(), 9)));
            if run("tc qdisc add dev h0 root tbf rate 1mbit burst 10k latency 50ms") {
                assert_eq!(all.set_disciplines().unwrap()[&index], "tbf");
            }
            assert!(all.has_xdp(index + 1000).is_err());
        });
        done.join().unwrap();
    }
}
