//! Requests about filters, and the parser of the kernel's messages about them.

use super::cookie::Cookie;
use super::{attrs, ct};
use netlink_packet_route::tc::{
    TcAction, TcAttribute, TcFilterFlowerOption as Key, TcHandle, TcMessage, TcOption,
};

/// Length of `struct tcmsg`, bytes.
const HEADER_LEN: usize = 20;
/// Flags of a filter (`TCA_CLS_FLAGS_*`).
pub(super) const SKIP_HW: u32 = 1;
pub(super) const SKIP_SW: u32 = 2;
const IN_HW: u32 = 4;
/// The ingress of a device with the queueing discipline `clsact`.
const INGRESS: TcHandle = TcHandle {
    major: 0xffff,
    minor: 0xfff2,
};
/// Attributes of a filter, of flower, of an action, and of statistics.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_CHAIN: u16 = 11;
const TCA_FLOWER_ACT: u16 = 3;
const TCA_FLOWER_FLAGS: u16 = 22;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_ACT_STATS: u16 = 4;
const TCA_ACT_COOKIE: u16 = 6;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_BASIC_HW: u16 = 7;
/// The number of packets, if it has more than 32 bits.
const TCA_STATS_PKT64: u16 = 8;

/// The id of a filter in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FilterId {
    pub(super) ifindex: u32,
    pub(super) chain: u32,
    pub(super) priority: u16,
    /// EtherType of the packets that the kernel shows to filters of this priority.
    pub(super) protocol: u16,
    pub(super) handle: u32,
}

impl FilterId {
    fn message(self) -> TcMessage {
        let mut m = TcMessage::with_index(i32::try_from(self.ifindex).unwrap_or(-1));
        m.header.handle = TcHandle::from(self.handle);
        m.header.parent = INGRESS;
        m.header.info = u32::from(self.priority) << 16 | u32::from(self.protocol.to_be());
        m.attributes.push(TcAttribute::Kind("flower".into()));
        m.attributes.push(TcAttribute::Chain(self.chain));
        m
    }
    /// The message of a request to remove or to show the filter.
    pub(super) fn named(self) -> TcMessage {
        self.message()
    }
    /// The message of a request to add the filter. `flags`: [`SKIP_HW`] and [`SKIP_SW`].
    pub(super) fn filter(self, keys: Vec<Key>, actions: Vec<TcAction>, flags: u32) -> TcMessage {
        let mut m = self.message();
        let mut options: Vec<TcOption> = keys.into_iter().map(TcOption::Flower).collect();
        options.push(TcOption::Flower(Key::Flags(flags)));
        options.push(TcOption::Flower(Key::Actions(actions)));
        m.attributes.push(TcAttribute::Options(options));
        m
    }
}

/// Request for all filters of a device's ingress.
pub(super) fn all_of(ifindex: u32) -> TcMessage {
    let mut m = TcMessage::with_index(i32::try_from(ifindex).unwrap_or(-1));
    m.header.parent = INGRESS;
    m
}

/// Request for the filters of a device's ingress without their keys, in the order of priorities. The dump
/// fails with `EMSGSIZE` at the first filter of a kind that has no such short form. This switch's filters of
/// such kinds come after those of flows.
pub(super) fn flows_of(ifindex: u32) -> TcMessage {
    let mut m = all_of(ifindex);
    m.attributes.push(TcAttribute::Other(attrs::terse()));
    m
}

/// The same for the filters of one priority.
pub(super) fn flows_at(ifindex: u32, priority: u16, protocol: u16) -> TcMessage {
    let mut m = flows_of(ifindex);
    m.header.info = u32::from(priority) << 16 | u32::from(protocol.to_be());
    m
}

/// Packets and bytes as the kernel counts them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counted {
    pub(super) packets: u64,
    /// Bytes without Ethernet header and tag, except those that a card counted.
    pub(super) bytes: u64,
    /// The part that a card counted.
    pub(super) hw_packets: u64,
    pub(super) hw_bytes: u64,
}

/// A filter of flower that the kernel reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reported {
    pub(super) filter_id: FilterId,
    pub(super) cookie: Option<Cookie>,
    pub(super) counted: Counted,
    pub(super) in_hw: bool,
    /// The filter passes outer packets of a tunnel to the host's stack.
    pub(super) to_host: bool,
}

/// Kind and value of each attribute, up to the first one that is truncated. The values of
/// `netlink-packet-core`'s iterator would borrow from the iterator.
fn nlas(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const NESTED_AND_ORDER: u16 = 0xc000;
    std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_ne_bytes(*len));
        let kind = u16::from_ne_bytes(*rest.first_chunk::<2>()?) & !NESTED_AND_ORDER;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of an attribute.
fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    nlas(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk::<4>()?))
}

/// Packets and bytes of a `struct gnet_stats_basic`, which has 32 bits for packets.
fn basic(stats: &[u8], kind: u16) -> (u64, u64) {
    let read = |b: &[u8]| {
        let bytes = u64::from_ne_bytes(*b.first_chunk::<8>()?);
        Some((u64::from(u32_at(b, 8)?), bytes))
    };
    find(stats, kind).and_then(read).unwrap_or_default()
}

/// Zones of the `ct` actions of a filter of flower, from a message about the filter.
pub(super) fn ct_zones(payload: &[u8]) -> Vec<u16> {
    let options = payload.get(HEADER_LEN..).and_then(|all| find(all, TCA_OPTIONS));
    let actions = options.and_then(|options| find(options, TCA_FLOWER_ACT));
    let zone = |(_, action): (u16, &[u8])| {
        let is_ct = find(action, TCA_ACT_KIND)? == b"ct\0";
        let options = find(action, TCA_ACT_OPTIONS).filter(|_| is_ct)?;
        let zone = find(options, ct::TCA_CT_ZONE)?;
        Some(u16::from_ne_bytes(*zone.first_chunk::<2>()?))
    };
    nlas(actions.unwrap_or_default()).filter_map(zone).collect()
}

/// Length of `struct rtmsg`, bytes, and its attribute of the output device.
const ROUTE_HEADER_LEN: usize = 12;
const RTA_OIF: u16 = 4;

/// Interface index of a route's output device, from a message about the route.
pub(super) fn output_device(payload: &[u8]) -> Option<u32> {
    u32_at(find(payload.get(ROUTE_HEADER_LEN..)?, RTA_OIF)?, 0)
}

/// Reads a message about a filter. `None`: no filter of flower, or a truncated message.
pub(super) fn read(payload: &[u8]) -> Option<Reported> {
    let attributes = payload.get(HEADER_LEN..)?;
    if find(attributes, TCA_KIND)? != b"flower\0" {
        return None;
    }
    let info = u32_at(payload, 16)?;
    let low = u16::try_from(info & 0xffff).unwrap_or(0);
    let filter_id = FilterId {
        ifindex: u32_at(payload, 4)?,
        handle: u32_at(payload, 8)?,
        priority: u16::try_from(info >> 16).unwrap_or(0),
        protocol: u16::from_be(low),
        chain: find(attributes, TCA_CHAIN)
            .and_then(|b| u32_at(b, 0))
            .unwrap_or(0),
    };
    let options = find(attributes, TCA_OPTIONS).unwrap_or_default();
    let flags = find(options, TCA_FLOWER_FLAGS).and_then(|b| u32_at(b, 0));
    // The first action counts all packets of the filter.
    let first = find(options, TCA_FLOWER_ACT).and_then(|all| nlas(all).next());
    let first = first.map_or(&[][..], |(_, value)| value);
    let stats = find(first, TCA_ACT_STATS).unwrap_or_default();
    let (low, bytes) = basic(stats, TCA_STATS_BASIC);
    let packets = find(stats, TCA_STATS_PKT64).and_then(|b| b.first_chunk::<8>());
    let packets = packets.map_or(low, |b| u64::from_ne_bytes(*b));
    let (hw_packets, hw_bytes) = basic(stats, TCA_STATS_BASIC_HW);
    Some(Reported {
        filter_id,
        cookie: find(first, TCA_ACT_COOKIE).and_then(Cookie::parse),
        counted: Counted {
            packets,
            bytes,
            hw_packets,
            hw_bytes,
        },
        in_hw: flags.is_some_and(|flags| flags & IN_HW != 0),
        // Only these filters begin with `skbedit`.
        to_host: find(first, TCA_KIND) == Some(b"skbedit\0"),
    })
}
