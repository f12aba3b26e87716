//! From bytes to messages and back.
//!
//! [`decode`] looks at the header's version and type, checks lengths, and leaves the rest to the module of
//! the message. Types and their layouts are those of the specification of each version; extensions are
//! Nicira's and ONF's as Open vSwitch has them.

mod bundle;
mod continuation;
mod counters;
mod ct_flush;
mod flow_mod;
mod flow_removed;
mod flow_stats;
mod groups;
mod match10;
mod match11;
mod matches;
mod meters;
mod monitor;
mod multipart;
mod oxs;
mod packet;
mod ports;
mod role;
mod switch;
mod tables;
mod tlv;
mod types;
mod vendor;

use crate::error::{DecodeError, EncodeError, ErrorKind};
use crate::header::{HEADER_LEN, Header};
use crate::message::{Message, PacketInFormat};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
pub use continuation::{decode_continuation, encode_continuation};
pub use ct_flush::decode_ct_flush;
pub use multipart::FlowStatsWriter;
use types::Type;

/// State of a connection that changes how messages are read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DecodeContext {
    /// Nicira's extension (1.0): the upper byte of a flow mod's command is a table id.
    pub flow_mod_table_id: bool,
}

/// Reads one whole message (see [`crate::frame_len`]).
///
/// # Errors
/// The error to reply with, and the header to reply to. A message that is known, but not handled here, is not
/// an error but [`Message::Unsupported`].
pub fn decode(bytes: &[u8], cx: &DecodeContext) -> Result<(Header, Message), DecodeError> {
    let header = Header::parse(bytes).unwrap_or(Header {
        version: 0,
        msg_type: 0,
        length: 0,
        xid: 0,
    });
    decode_body(&header, bytes, cx)
        .map(|message| (header, message))
        .map_err(|kind| DecodeError {
            header,
            error: kind.about(bytes),
        })
}

fn decode_body(header: &Header, bytes: &[u8], cx: &DecodeContext) -> Result<Message, ErrorKind> {
    if bytes.len() < HEADER_LEN || bytes.len() != usize::from(header.length) {
        return Err(ErrorKind::BadRequestBadLen);
    }
    let mut r = Reader(bytes.get(HEADER_LEN..).unwrap_or(&[]));
    // These four are the same in every version, also in unknown ones.
    match header.msg_type {
        0 => return Ok(Message::Hello(switch::decode_hello(r))),
        1 => return Ok(Message::Error(switch::decode_error(header.version, r)?)),
        2 => return Ok(Message::EchoRequest(r.rest().to_vec())),
        3 => return Ok(Message::EchoReply(r.rest().to_vec())),
        _ => {}
    }
    let version = Version::from_wire(header.version).ok_or(ErrorKind::BadRequestBadVersion)?;
    let ty = Type::from_wire(version, header.msg_type).ok_or(ErrorKind::BadRequestBadType)?;
    let exact = |n: usize| {
        if r.len() == n {
            Ok(())
        } else {
            Err(ErrorKind::BadRequestBadLen)
        }
    };
    if in_words(version, ty) {
        whole_words(bytes)?;
    }
    let message = match ty {
        Type::Vendor => return vendor::decode(header, version, r, bytes, cx),
        Type::FeaturesRequest
        | Type::GetConfigRequest
        | Type::BarrierRequest
        | Type::BarrierReply
        | Type::GetAsyncRequest => {
            exact(0)?;
            match ty {
                Type::FeaturesRequest => Message::FeaturesRequest,
                Type::GetConfigRequest => Message::GetConfigRequest,
                Type::BarrierRequest => Message::BarrierRequest,
                Type::BarrierReply => Message::BarrierReply,
                _ => Message::GetAsyncRequest,
            }
        }
        Type::FeaturesReply => Message::FeaturesReply(switch::decode_features(version, r)?),
        Type::GetConfigReply => {
            exact(4)?;
            Message::GetConfigReply(switch::decode_config(version, r)?)
        }
        Type::SetConfig => {
            exact(4)?;
            Message::SetConfig(switch::decode_config(version, r)?)
        }
        Type::PacketIn => Message::PacketIn(Box::new(packet::decode_in(version, false, r)?)),
        Type::FlowRemoved => Message::FlowRemoved(Box::new(flow_removed::decode(version, false, r)?)),
        Type::PortStatus => Message::PortStatus(ports::decode_status(version, r)?),
        Type::PacketOut => Message::PacketOut(Box::new(packet::decode_out(version, r)?)),
        Type::FlowMod => Message::FlowMod(if version == Version::V10 {
            flow_mod::decode_10(r, cx)?
        } else {
            flow_mod::decode_11(r, version)?
        }),
        Type::PortMod => {
            match version {
                Version::V10 => exact(24)?,
                Version::V11 | Version::V12 | Version::V13 => exact(32)?,
                Version::V14 | Version::V15 => {}
            }
            Message::PortMod(ports::decode_mod(version, r)?)
        }
        Type::TableMod => {
            if version < Version::V14 {
                exact(8)?;
            }
            Message::TableMod(tables::decode_mod(version, r)?)
        }
        Type::MultipartRequest => return multipart::decode_request(version, r, bytes),
        Type::MultipartReply => return multipart::decode_reply(version, r),
        Type::QueueGetConfigRequest => {
            exact(if version == Version::V10 { 4 } else { 8 })?;
            Message::QueueGetConfigRequest(ports::decode_queue_request(version, r)?)
        }
        Type::QueueGetConfigReply => Message::QueueGetConfigReply(ports::decode_queues(version, r)?),
        Type::RoleRequest | Type::RoleReply => {
            exact(16)?;
            let is_reply = ty == Type::RoleReply;
            let role = role::decode_role(r, is_reply)?;
            if is_reply {
                Message::RoleReply(role)
            } else {
                Message::RoleRequest(role)
            }
        }
        Type::RoleStatus => Message::RoleStatus(role::decode_status(r)?),
        Type::GetAsyncReply | Type::SetAsync => {
            let c = if version >= Version::V14 {
                role::decode_async_props(version, r)?
            } else {
                exact(24)?;
                role::decode_async(version, r)?
            };
            if ty == Type::SetAsync {
                Message::SetAsync(c)
            } else {
                Message::GetAsyncReply(c)
            }
        }
        Type::GroupMod => Message::GroupMod(Box::new(groups::decode_mod(version, r)?)),
        Type::MeterMod => Message::MeterMod(meters::decode_mod(r)?),
        Type::BundleControl => {
            if r.len() < 8 {
                return Err(ErrorKind::BadRequestBadLen);
            }
            Message::BundleControl(bundle::decode_control(r)?)
        }
        Type::BundleAdd => Message::BundleAdd(bundle::decode_add(header, r, cx)?),
        Type::TableStatus => Message::TableStatus(tables::decode_status(r)?),
        Type::RequestForward => decode_forward(header, r.rest(), cx)?,
    };
    Ok(message)
}

/// A message that is a list has a multiple of eight bytes, which is checked before its contents.
fn whole_words(bytes: &[u8]) -> Result<(), ErrorKind> {
    if bytes.len().is_multiple_of(8) {
        Ok(())
    } else {
        Err(ErrorKind::BadRequestBadLen)
    }
}

fn in_words(version: Version, ty: Type) -> bool {
    match ty {
        Type::FlowMod | Type::GroupMod | Type::MeterMod | Type::BundleControl => true,
        Type::PortMod | Type::TableMod | Type::SetAsync => version >= Version::V14,
        _ => false,
    }
}

/// Reads a forwarded request: a group or meter mod with a header of its own.
fn decode_forward(outer: &Header, body: &[u8], cx: &DecodeContext) -> Result<Message, ErrorKind> {
    let inner = Header::parse(body).ok_or(ErrorKind::BundleFailedMsgBadLen)?;
    let whole = body
        .get(..inner.length.into())
        .ok_or(ErrorKind::BundleFailedMsgBadLen)?;
    if inner.version != outer.version {
        return Err(ErrorKind::BadRequestBadVersion);
    }
    let version = Version::from_wire(inner.version).ok_or(ErrorKind::BadRequestBadVersion)?;
    match Type::from_wire(version, inner.msg_type) {
        Some(Type::GroupMod | Type::MeterMod) => {}
        Some(Type::Vendor) if vendor::is_mod(Reader(whole.get(HEADER_LEN..).unwrap_or(&[]))) => {}
        _ => return Err(ErrorKind::BundleFailedMsgUnsup),
    }
    Ok(Message::RequestForward {
        xid: inner.xid,
        message: Box::new(decode_body(&inner, whole, cx)?),
    })
}

/// Writes a message, a multipart reply as one or more messages.
///
/// # Errors
/// The version has no such message, or the message is too long for its length field.
pub fn encode(version: Version, xid: u32, message: &Message) -> Result<Vec<Vec<u8>>, EncodeError> {
    match message {
        Message::MultipartRequest { body, .. } => return multipart::encode_request(version, xid, body),
        Message::MultipartReply { body, .. } => return multipart::encode_reply(version, xid, body),
        _ => {}
    }
    let mut out = vec![0; HEADER_LEN];
    let msg_type = encode_body(version, xid, message, &mut out)?;
    let length = u16::try_from(out.len()).map_err(|_| EncodeError::TooLong("message"))?;
    out.patch(
        0,
        &Header {
            version: version.wire(),
            msg_type,
            length,
            xid,
        }
        .to_bytes(),
    );
    Ok(vec![out])
}

/// Writes a body; returns the message's type.
fn encode_body(version: Version, xid: u32, message: &Message, out: &mut Vec<u8>) -> Result<u8, EncodeError> {
    let v10 = version == Version::V10;
    let wire = |ty: Type, what: &'static str| {
        ty.to_wire(version)
            .ok_or(EncodeError::NotInVersion { what, version })
    };
    match message {
        Message::Hello(h) => {
            switch::encode_hello(h, out);
            Ok(0)
        }
        Message::Error(e) => {
            let (vendor, ty, code) = e.raw;
            if vendor == 0 {
                out.u16(ty);
                out.u16(code);
            } else if version <= Version::V11 {
                out.put(&[0xb0, 0xc2, 0, 0]);
                out.u32(vendor);
                out.u16(ty);
                out.u16(code);
            } else {
                out.u16(0xffff);
                out.u16(ty);
                out.u32(vendor);
            }
            out.put(&e.data);
            Ok(1)
        }
        Message::EchoRequest(data) => {
            out.put(data);
            Ok(2)
        }
        Message::EchoReply(data) => {
            out.put(data);
            Ok(3)
        }
        Message::FeaturesRequest => wire(Type::FeaturesRequest, "features request"),
        Message::FeaturesReply(f) => {
            switch::encode_features(version, f, out);
            wire(Type::FeaturesReply, "features reply")
        }
        Message::GetConfigRequest => wire(Type::GetConfigRequest, "get-config request"),
        Message::GetConfigReply(c) => {
            switch::encode_config(c, out);
            wire(Type::GetConfigReply, "get-config reply")
        }
        Message::SetConfig(c) => {
            switch::encode_config(c, out);
            wire(Type::SetConfig, "set-config")
        }
        Message::PacketIn(p) => match p.format {
            PacketInFormat::Standard => {
                packet::encode_in(version, false, p, out);
                wire(Type::PacketIn, "packet-in")
            }
            PacketInFormat::Nxt => {
                vendor::begin(vendor::NXT_PACKET_IN, out);
                packet::encode_in(version, true, p, out);
                wire(Type::Vendor, "NXT_PACKET_IN")
            }
            PacketInFormat::Nxt2 => {
                vendor::begin(vendor::NXT_PACKET_IN2, out);
                packet::encode_in2(version, p, out);
                wire(Type::Vendor, "NXT_PACKET_IN2")
            }
        },
        Message::Resume(p) => {
            vendor::begin(vendor::NXT_RESUME, out);
            packet::encode_in2(version, p, out);
            wire(Type::Vendor, "NXT_RESUME")
        }
        Message::PacketOut(p) => {
            packet::encode_out(version, p, out)?;
            wire(Type::PacketOut, "packet-out")
        }
        Message::FlowMod(f) => {
            let vendor = v10 && f.nxm;
            if vendor {
                vendor::begin(vendor::NXT_FLOW_MOD, out);
            }
            flow_mod::encode(version, f, out)?;
            wire(if vendor { Type::Vendor } else { Type::FlowMod }, "flow mod")
        }
        Message::GroupMod(g) => {
            if v10 {
                vendor::begin(vendor::NXT_GROUP_MOD, out);
            }
            groups::encode_mod(version, g, out)?;
            wire(if v10 { Type::Vendor } else { Type::GroupMod }, "group mod")
        }
        Message::MeterMod(m) => {
            meters::encode_mod(m, out);
            wire(Type::MeterMod, "meter mod")
        }
        Message::FlowRemoved(f) => {
            if v10 && f.nxm {
                vendor::begin(vendor::NXT_FLOW_REMOVED, out);
                flow_removed::encode(version, f, out);
                return wire(Type::Vendor, "NXT_FLOW_REMOVED");
            }
            flow_removed::encode(
                version,
                &crate::message::FlowRemoved {
                    nxm: false,
                    ..(**f).clone()
                },
                out,
            );
            wire(Type::FlowRemoved, "flow removed")
        }
        Message::PortStatus(s) => {
            ports::encode_status(version, s, out);
            wire(Type::PortStatus, "port status")
        }
        Message::PortMod(m) => {
            ports::encode_mod(version, m, out);
            wire(Type::PortMod, "port mod")
        }
        Message::TableMod(m) => {
            tables::encode_mod(version, m, out);
            wire(Type::TableMod, "table mod")
        }
        Message::TableStatus(t) => {
            tables::encode_status(t, out);
            wire(Type::TableStatus, "table status")
        }
        Message::RequestForward { xid, message } => {
            match version {
                Version::V10 | Version::V11 | Version::V12 => vendor::begin(vendor::NXT_REQUESTFORWARD, out),
                Version::V13 => vendor::begin_onf(vendor::ONFT_REQUESTFORWARD, out),
                Version::V14 | Version::V15 => {}
            }
            for part in encode(version, *xid, message)? {
                out.put(&part);
            }
            let ty = if version >= Version::V14 {
                Type::RequestForward
            } else {
                Type::Vendor
            };
            wire(ty, "forwarded request")
        }
        Message::BarrierRequest => wire(Type::BarrierRequest, "barrier request"),
        Message::BarrierReply => wire(Type::BarrierReply, "barrier reply"),
        Message::RoleRequest(q) | Message::RoleReply(q) => {
            let is_reply = matches!(message, Message::RoleReply(_));
            if version >= Version::V12 {
                role::encode_role(q, out);
                return wire(
                    if is_reply {
                        Type::RoleReply
                    } else {
                        Type::RoleRequest
                    },
                    "role",
                );
            }
            let subtype = if is_reply {
                vendor::NXT_ROLE_REPLY
            } else {
                vendor::NXT_ROLE_REQUEST
            };
            vendor::begin(subtype, out);
            role::encode_nx_role(q, version, out)?;
            wire(Type::Vendor, "role")
        }
        Message::RoleStatus(s) => {
            if version == Version::V13 {
                vendor::begin_onf(vendor::ONFT_ROLE_STATUS, out);
                role::encode_status(s, out);
                return wire(Type::Vendor, "role status");
            }
            role::encode_status(s, out);
            wire(Type::RoleStatus, "role status")
        }
        Message::GetAsyncRequest => wire(Type::GetAsyncRequest, "get-async request"),
        Message::GetAsyncReply(c) | Message::SetAsync(c) => {
            let is_reply = matches!(message, Message::GetAsyncReply(_));
            if version < Version::V13 && !is_reply {
                vendor::begin(vendor::NXT_SET_ASYNC_CONFIG, out);
                role::encode_async(version, c, out);
                return wire(Type::Vendor, "set-async");
            }
            if version >= Version::V14 {
                role::encode_async_props(version, c, out);
            } else {
                role::encode_async(version, c, out);
            }
            wire(
                if is_reply {
                    Type::GetAsyncReply
                } else {
                    Type::SetAsync
                },
                "asynchronous configuration",
            )
        }
        Message::QueueGetConfigRequest(q) => {
            ports::encode_queue_request(version, q, out);
            wire(Type::QueueGetConfigRequest, "queue request")
        }
        Message::QueueGetConfigReply(q) => {
            ports::encode_queues(version, q, out);
            wire(Type::QueueGetConfigReply, "queue reply")
        }
        Message::SetFlowFormat(_)
        | Message::FlowModTableId(_)
        | Message::SetPacketInFormat(_)
        | Message::SetControllerId(_)
        | Message::CtFlushZone(_)
        | Message::CtFlush { .. }
        | Message::TlvTableMod(_)
        | Message::TlvTableRequest
        | Message::TlvTableReply(_) => {
            vendor::encode_setting(version, message, out)?;
            wire(Type::Vendor, "Nicira extension")
        }
        Message::BundleControl(_) | Message::BundleAdd(_) if version < Version::V13 => {
            Err(EncodeError::NotInVersion {
                what: "bundle",
                version,
            })
        }
        Message::BundleControl(c) => {
            let onf = version == Version::V13;
            if onf {
                vendor::begin_onf(vendor::ONFT_BUNDLE_CONTROL, out);
            }
            bundle::encode_control(c, out);
            wire(if onf { Type::Vendor } else { Type::BundleControl }, "bundle")
        }
        Message::BundleAdd(add) => {
            let onf = version == Version::V13;
            if onf {
                vendor::begin_onf(vendor::ONFT_BUNDLE_ADD, out);
            }
            bundle::encode_add(version, xid, add, out)?;
            wire(if onf { Type::Vendor } else { Type::BundleAdd }, "bundle")
        }
        Message::FlowMonitorCancel(_) | Message::FlowMonitorPaused | Message::FlowMonitorResumed => {
            vendor::encode_monitor(version, message, out)?;
            wire(Type::Vendor, "flow monitor")
        }
        Message::Unsupported(u) => Err(EncodeError::NotInVersion {
            what: u.kind,
            version,
        }),
        Message::MultipartRequest { .. } | Message::MultipartReply { .. } => {
            unreachable!("multipart messages are encoded by their own module")
        }
    }
}
