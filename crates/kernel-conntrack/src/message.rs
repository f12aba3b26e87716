//! Entries as messages of nfnetlink, and back (linux/netfilter/nfnetlink_conntrack.h). The crate
//! `netlink-packet-netfilter` has the messages; the attributes that it leaves raw are made and read here.
//!
//! **Own entries.** A process that was killed leaves entries in the kernel, which the next one must
//! recognize. Each entry of the switch has a signature, stored as a position in the sequence numbers of its
//! replies ([`SIGNATURE`]). The kernel uses this position only together with offsets, which are zero. No
//! packet of the kernel's stack meets an entry, because the kernel uses its own zone 0.

use crate::entry::{EntryKey, Established, KernelEntry};
use heddle_conntrack::{Endpoint, Tuple, bits};
use netlink_packet_core::{DefaultNla, Emitable, NlaBuffer, NlasIterator};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoInfo, ProtoInfoTCP, ProtoTuple, Status,
    Tuple as CtTuple,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};

/// Signature of the switch's own entries.
const SIGNATURE: u32 = u32::from_be_bytes(*b"hedd");

const CTA_NAT_SRC: u16 = 6;
const CTA_NAT_DST: u16 = 13;
const CTA_SEQ_ADJ_REPLY: u16 = 16;
const CTA_ZONE: u16 = 18;
const CTA_LABELS: u16 = 22;
const CTA_NAT_V4_MINIP: u16 = 1;
const CTA_NAT_V4_MAXIP: u16 = 2;
const CTA_NAT_PROTO: u16 = 3;
const CTA_NAT_V6_MINIP: u16 = 4;
const CTA_NAT_V6_MAXIP: u16 = 5;
const CTA_PROTONAT_PORT_MIN: u16 = 1;
const CTA_PROTONAT_PORT_MAX: u16 = 2;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;
/// Windows are not checked (`IP_CT_TCP_FLAG_BE_LIBERAL`).
const BE_LIBERAL: u8 = 0x08;
/// `TCP_CONNTRACK_ESTABLISHED`.
const TCP_ESTABLISHED: u8 = 3;
const TCP: u8 = 6;
const CTA_PROTO_ICMP_ID: u16 = 4;
const CTA_PROTO_ICMP_TYPE: u16 = 5;
const CTA_PROTO_ICMP_CODE: u16 = 6;
const CTA_PROTO_ICMPV6_ID: u16 = 7;
const CTA_PROTO_ICMPV6_TYPE: u16 = 8;
const CTA_PROTO_ICMPV6_CODE: u16 = 9;
const CTA_SEQADJ_CORRECTION_POS: u16 = 1;
const CTA_SEQADJ_OFFSET_BEFORE: u16 = 2;
const CTA_SEQADJ_OFFSET_AFTER: u16 = 3;

/// An entry that was read, and whether the switch has made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Received {
    pub(crate) entry: KernelEntry,
    pub(crate) own: bool,
}

/// A request about connections of IPv4, IPv6 or both (`None`).
pub(crate) fn request(ipv6: Option<bool>, message: ConntrackMessage) -> NetfilterMessage {
    let family = match ipv6 {
        None => NetfilterProtoFamily::Unspec,
        Some(false) => NetfilterProtoFamily::IPv4,
        Some(true) => NetfilterProtoFamily::IPv6,
    };
    NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), message)
}

/// The request that makes an entry, or changes it. Labels are left out if the kernel has no room for them.
pub(crate) fn write(e: &KernelEntry, timeout_s: u32, labels: bool) -> NetfilterMessage {
    let mut attributes = key(&e.key);
    attributes.push(ConntrackAttribute::CtaTupleReply(tuple(&e.reply)));
    let replied = if e.replied {
        Status::SeenReply
    } else {
        Status::empty()
    };
    // Without `Assured`: if the table becomes full, the kernel drops these entries before others.
    attributes.push(ConntrackAttribute::CtaStatus(Status::Confirmed | replied));
    attributes.push(ConntrackAttribute::CtaTimeout(timeout_s));
    attributes.push(ConntrackAttribute::CtaMark(e.mark));
    if labels {
        attributes.push(raw(CTA_LABELS, label_bytes(e.label)));
    }
    if e.tcp_state != 0 {
        let state = vec![ProtoInfoTCP::State(e.tcp_state)];
        attributes.push(ConntrackAttribute::CtaProtoInfo(vec![ProtoInfo::TCP(state)]));
    }
    attributes.push(signature());
    request(Some(e.key.orig.ipv6), ConntrackMessage::New(attributes))
}

/// The request that makes the entry of an established connection.
pub(crate) fn established(e: &Established) -> NetfilterMessage {
    let mut attributes = key(&e.key());
    // The kernel computes the tuple of translated replies itself.
    attributes.push(ConntrackAttribute::CtaTupleReply(tuple(&e.orig.reversed())));
    let assured = if e.assured {
        Status::Assured
    } else {
        Status::empty()
    };
    attributes.push(ConntrackAttribute::CtaStatus(
        Status::Confirmed | Status::SeenReply | assured,
    ));
    attributes.push(ConntrackAttribute::CtaTimeout(e.timeout_s));
    attributes.push(ConntrackAttribute::CtaMark(e.mark));
    if e.label != 0 {
        attributes.push(raw(CTA_LABELS, label_bytes(e.label)));
    }
    if e.orig.proto == TCP {
        // Flags and their mask.
        let liberal = |kind| ProtoInfoTCP::Other(DefaultNla::new(kind, vec![BE_LIBERAL; 2]));
        let parts = vec![
            ProtoInfoTCP::State(TCP_ESTABLISHED),
            liberal(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL),
            liberal(CTA_PROTOINFO_TCP_FLAGS_REPLY),
        ];
        attributes.push(ConntrackAttribute::CtaProtoInfo(vec![ProtoInfo::TCP(parts)]));
    }
    let new = e.reply.reversed();
    if new != e.orig {
        attributes.push(nat(CTA_NAT_SRC, new.src, new.ipv6));
        attributes.push(nat(CTA_NAT_DST, new.dst, new.ipv6));
    }
    if !e.for_cards {
        attributes.push(signature());
    }
    request(Some(e.orig.ipv6), ConntrackMessage::New(attributes))
}

/// Translation of one end to exactly this address and port.
fn nat(kind: u16, to: Endpoint, ipv6: bool) -> ConntrackAttribute {
    let all = to.addr.to_be_bytes();
    let (address, min, max) = match ipv6 {
        true => (all.to_vec(), CTA_NAT_V6_MINIP, CTA_NAT_V6_MAXIP),
        false => (all[12..].to_vec(), CTA_NAT_V4_MINIP, CTA_NAT_V4_MAXIP),
    };
    #[allow(clippy::cast_possible_truncation)] // a port of TCP or UDP
    let port = (to.l4 as u16).to_be_bytes().to_vec();
    let ports = [
        DefaultNla::new(CTA_PROTONAT_PORT_MIN, port.clone()),
        DefaultNla::new(CTA_PROTONAT_PORT_MAX, port),
    ];
    let parts = [
        DefaultNla::new(min, address.clone()),
        DefaultNla::new(max, address),
        nested(CTA_NAT_PROTO, &ports),
    ];
    ConntrackAttribute::Other(nested(kind, &parts))
}

fn nested(kind: u16, parts: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; parts.buffer_len()];
    parts.emit(&mut value);
    DefaultNla::new(kind | netlink_packet_core::NLA_F_NESTED, value)
}

/// The request that sets the remaining life of an entry, seconds.
pub(crate) fn prolong(k: &EntryKey, timeout_s: u32) -> NetfilterMessage {
    let mut attributes = key(k);
    attributes.push(ConntrackAttribute::CtaTimeout(timeout_s));
    request(Some(k.orig.ipv6), ConntrackMessage::New(attributes))
}

/// The request that removes an entry.
pub(crate) fn remove(k: &EntryKey) -> NetfilterMessage {
    request(Some(k.orig.ipv6), ConntrackMessage::Delete(key(k)))
}

/// The request that reads an entry.
pub(crate) fn read(k: &EntryKey) -> NetfilterMessage {
    request(Some(k.orig.ipv6), ConntrackMessage::Get(key(k)))
}

/// The entry in a message: a reply, or an event. `None`: no message about a connection, or about one of a
/// kind that the tracker does not have.
pub(crate) fn entry(message: &NetfilterMessage) -> Option<Received> {
    let NetfilterMessageInner::Conntrack(ConntrackMessage::New(all) | ConntrackMessage::Delete(all)) =
        &message.inner
    else {
        return None;
    };
    let (mut zone, mut orig, mut reply) = (0, None, None);
    let (mut mark, mut label, mut replied, mut tcp_state, mut own) = (0, 0, false, 0, false);
    for attribute in all {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(parts) => orig = tuple_of(parts),
            ConntrackAttribute::CtaTupleReply(parts) => reply = tuple_of(parts),
            ConntrackAttribute::CtaMark(value) => mark = *value,
            ConntrackAttribute::CtaStatus(status) => replied = status.contains(Status::SeenReply),
            ConntrackAttribute::CtaProtoInfo(infos) => {
                let tcp = infos.iter().find_map(|i| match i {
                    ProtoInfo::TCP(parts) => Some(parts),
                    _ => None,
                });
                let state = tcp.into_iter().flatten().find_map(|part| match part {
                    ProtoInfoTCP::State(state) => Some(*state),
                    _ => None,
                });
                tcp_state = state.unwrap_or(0);
            }
            ConntrackAttribute::Other(nla) => match NlaValue::of(nla) {
                (CTA_ZONE, value) => zone = u16::from_be_bytes(value.bytes()?),
                (CTA_LABELS, value) => label = label_of(value.bytes()?),
                (CTA_SEQ_ADJ_REPLY, value) => own = is_signed(&value.0),
                _ => {}
            },
            _ => {}
        }
    }
    let (orig, reply) = (orig?, reply?);
    let entry = KernelEntry {
        key: EntryKey { zone, orig },
        reply,
        mark,
        label,
        replied,
        tcp_state,
    };
    Some(Received { entry, own })
}

fn key(k: &EntryKey) -> Vec<ConntrackAttribute> {
    vec![
        ConntrackAttribute::CtaTupleOrig(tuple(&k.orig)),
        raw(CTA_ZONE, k.zone.to_be_bytes().to_vec()),
    ]
}

fn raw(kind: u16, value: Vec<u8>) -> ConntrackAttribute {
    ConntrackAttribute::Other(DefaultNla::new(kind, value))
}

fn signature() -> ConntrackAttribute {
    let part = |kind, value: u32| DefaultNla::new(kind, value.to_be_bytes().to_vec());
    let parts = [
        part(CTA_SEQADJ_CORRECTION_POS, SIGNATURE),
        part(CTA_SEQADJ_OFFSET_BEFORE, 0),
        part(CTA_SEQADJ_OFFSET_AFTER, 0),
    ];
    ConntrackAttribute::Other(nested(CTA_SEQ_ADJ_REPLY, &parts))
}

fn is_signed(parts: &[u8]) -> bool {
    let mut parts = NlasIterator::new(parts).flatten();
    parts.any(|nla: NlaBuffer<&[u8]>| {
        nla.kind() == CTA_SEQADJ_CORRECTION_POS && nla.value() == SIGNATURE.to_be_bytes()
    })
}

/// A label as the kernel has it: words of the host's byte order, of which the first has the lowest bits.
fn label_bytes(label: u128) -> Vec<u8> {
    if cfg!(target_endian = "little") {
        label.to_le_bytes().to_vec()
    } else {
        let words = label.to_be_bytes();
        [&words[8..], &words[..8]].concat()
    }
}

fn label_of(bytes: [u8; 16]) -> u128 {
    if cfg!(target_endian = "little") {
        u128::from_le_bytes(bytes)
    } else {
        u128::from_be_bytes(bytes).rotate_left(64)
    }
}

/// The value of a raw attribute.
struct NlaValue(Vec<u8>);

impl NlaValue {
    /// The kind without flags, and the value.
    fn of(nla: &DefaultNla) -> (u16, Self) {
        use netlink_packet_core::Nla;
        let mut value = vec![0; nla.value_len()];
        nla.emit_value(&mut value);
        (nla.kind() & netlink_packet_core::NLA_TYPE_MASK, Self(value))
    }
    fn bytes<const N: usize>(&self) -> Option<[u8; N]> {
        self.0.as_slice().try_into().ok()
    }
}

#[allow(clippy::cast_possible_truncation)] // parts of a word
fn tuple(t: &Tuple) -> Vec<CtTuple> {
    let mut proto = vec![ProtoTuple::Protocol(t.proto.into())];
    if t.is_icmp() {
        let [id, kind, code] = if t.ipv6 {
            [CTA_PROTO_ICMPV6_ID, CTA_PROTO_ICMPV6_TYPE, CTA_PROTO_ICMPV6_CODE]
        } else {
            [CTA_PROTO_ICMP_ID, CTA_PROTO_ICMP_TYPE, CTA_PROTO_ICMP_CODE]
        };
        let l4 = t.src.l4;
        let part = |kind, value: Vec<u8>| ProtoTuple::Other(DefaultNla::new(kind, value));
        proto.push(part(id, ((l4 >> 16) as u16).to_be_bytes().to_vec()));
        proto.push(part(kind, vec![(l4 >> 8) as u8]));
        proto.push(part(code, vec![l4 as u8]));
    } else {
        proto.push(ProtoTuple::SourcePort(t.src.l4 as u16));
        proto.push(ProtoTuple::DestinationPort(t.dst.l4 as u16));
    }
    let ip = vec![
        IPTuple::SourceAddress(t.src_ip()),
        IPTuple::DestinationAddress(t.dst_ip()),
    ];
    vec![CtTuple::Ip(ip), CtTuple::Proto(proto)]
}

fn tuple_of(parts: &[CtTuple]) -> Option<Tuple> {
    let (mut src, mut dst, mut proto) = (None, None, None);
    let (mut ports, mut icmp) = ((0, 0), (None, None, None));
    for part in parts {
        match part {
            CtTuple::Ip(ends) => {
                for end in ends {
                    match end {
                        IPTuple::SourceAddress(addr) => src = Some(*addr),
                        IPTuple::DestinationAddress(addr) => dst = Some(*addr),
                        _ => {}
                    }
                }
            }
            CtTuple::Proto(fields) => {
                for field in fields {
                    match field {
                        ProtoTuple::Protocol(number) => proto = Some(u8::from(*number)),
                        ProtoTuple::SourcePort(port) => ports.0 = *port,
                        ProtoTuple::DestinationPort(port) => ports.1 = *port,
                        ProtoTuple::Other(nla) => match NlaValue::of(nla) {
                            (CTA_PROTO_ICMP_ID | CTA_PROTO_ICMPV6_ID, v) => {
                                icmp.0 = v.bytes().map(u16::from_be_bytes);
                            }
                            (CTA_PROTO_ICMP_TYPE | CTA_PROTO_ICMPV6_TYPE, v) => icmp.1 = v.bytes(),
                            (CTA_PROTO_ICMP_CODE | CTA_PROTO_ICMPV6_CODE, v) => icmp.2 = v.bytes(),
                            _ => {}
                        },
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let (src, dst, proto) = (src?, dst?, proto?);
    if src.is_ipv6() != dst.is_ipv6() {
        return None;
    }
    let end = |addr, port: u16| Endpoint {
        addr: bits(addr),
        l4: port.into(),
    };
    let t = Tuple {
        src: end(src, ports.0),
        dst: end(dst, ports.1),
        proto,
        ipv6: src.is_ipv6(),
    };
    if !t.is_icmp() {
        return Some(t);
    }
    let (id, [kind], [code]) = (icmp.0?, icmp.1?, icmp.2?);
    t.with_icmp(id, kind, code)
}
