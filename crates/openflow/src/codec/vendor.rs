//! Experimenter messages: Nicira's, and ONF's of 1.3.

use super::{DecodeContext, bundle, flow_mod, flow_removed, groups, packet, role, tlv};
use crate::error::{EncodeError, ErrorKind, NX_VENDOR, ONF_VENDOR};
use crate::header::Header;
use crate::message::{Message, PacketInFormat, Unsupported};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};

pub(super) const NXT_ROLE_REQUEST: u32 = 10;
pub(super) const NXT_ROLE_REPLY: u32 = 11;
const NXT_SET_FLOW_FORMAT: u32 = 12;
pub(super) const NXT_FLOW_MOD: u32 = 13;
pub(super) const NXT_FLOW_REMOVED: u32 = 14;
const NXT_FLOW_MOD_TABLE_ID: u32 = 15;
const NXT_SET_PACKET_IN_FORMAT: u32 = 16;
pub(super) const NXT_PACKET_IN: u32 = 17;
const NXT_FLOW_AGE: u32 = 18;
pub(super) const NXT_SET_ASYNC_CONFIG: u32 = 19;
const NXT_SET_CONTROLLER_ID: u32 = 20;
const NXT_FLOW_MONITOR_CANCEL: u32 = 21;
const NXT_FLOW_MONITOR_PAUSED: u32 = 22;
const NXT_FLOW_MONITOR_RESUMED: u32 = 23;
const NXT_TLV_TABLE_MOD: u32 = 24;
const NXT_TLV_TABLE_REQUEST: u32 = 25;
const NXT_TLV_TABLE_REPLY: u32 = 26;
const NXT_SET_ASYNC_CONFIG2: u32 = 27;
pub(super) const NXT_RESUME: u32 = 28;
const NXT_CT_FLUSH_ZONE: u32 = 29;
pub(super) const NXT_PACKET_IN2: u32 = 30;
pub(super) const NXT_GROUP_MOD: u32 = 31;
const NXT_CT_FLUSH: u32 = 32;
pub(super) const NXT_REQUESTFORWARD: u32 = 132;

const ONFT_FLOW_MONITOR_CANCEL: u32 = 1870;
const ONFT_FLOW_MONITOR_PAUSED: u32 = 1871;
const ONFT_FLOW_MONITOR_RESUMED: u32 = 1872;
pub(super) const ONFT_ROLE_STATUS: u32 = 1911;
pub(super) const ONFT_BUNDLE_CONTROL: u32 = 2300;
pub(super) const ONFT_BUNDLE_ADD: u32 = 2301;
pub(super) const ONFT_REQUESTFORWARD: u32 = 2350;

/// Values of `NXT_SET_FLOW_FORMAT`.
const FORMAT_OPENFLOW10: u32 = 0;
const FORMAT_NXM: u32 = 2;

/// Starts a message of Nicira's behind the header.
pub(super) fn begin(subtype: u32, out: &mut Vec<u8>) {
    out.u32(NX_VENDOR);
    out.u32(subtype);
}

/// Starts a message of ONF's behind the header.
pub(super) fn begin_onf(subtype: u32, out: &mut Vec<u8>) {
    out.u32(ONF_VENDOR);
    out.u32(subtype);
}

/// Whether the message behind the header is one that changes flows or groups.
pub(super) fn is_mod(mut r: Reader<'_>) -> bool {
    let (Ok(vendor), Ok(subtype)) = (r.u32(), r.u32()) else {
        return false;
    };
    vendor == NX_VENDOR && matches!(subtype, NXT_FLOW_MOD | NXT_GROUP_MOD)
}

/// Reads a message behind the header; `whole` is all of it.
pub(super) fn decode(
    header: &Header,
    version: Version,
    mut r: Reader<'_>,
    whole: &[u8],
    cx: &DecodeContext,
) -> Result<Message, ErrorKind> {
    let (vendor, subtype) = (r.u32()?, r.u32()?);
    match vendor {
        NX_VENDOR => nicira(header, version, subtype, r, whole, cx),
        ONF_VENDOR => onf(header, version, subtype, r, cx),
        _ => Err(ErrorKind::BadRequestBadVendor),
    }
}

fn unsupported(kind: &'static str, error: ErrorKind, whole: &[u8]) -> Result<Message, ErrorKind> {
    Ok(Message::Unsupported(Unsupported {
        kind,
        error: error.about(whole),
    }))
}

fn nicira(
    header: &Header,
    version: Version,
    subtype: u32,
    mut r: Reader<'_>,
    whole: &[u8],
    cx: &DecodeContext,
) -> Result<Message, ErrorKind> {
    let v10 = version == Version::V10;
    let len = r.len();
    let exact = |n: usize| {
        if len == n {
            Ok(())
        } else {
            Err(ErrorKind::BadRequestBadLen)
        }
    };
    if matches!(
        subtype,
        NXT_FLOW_MOD | NXT_SET_ASYNC_CONFIG2 | NXT_RESUME | NXT_GROUP_MOD | NXT_CT_FLUSH
    ) {
        super::whole_words(whole)?;
    }
    Ok(match subtype {
        NXT_ROLE_REQUEST | NXT_ROLE_REPLY => {
            exact(4)?;
            let q = role::decode_nx_role(r)?;
            if subtype == NXT_ROLE_REQUEST {
                Message::RoleRequest(q)
            } else {
                Message::RoleReply(q)
            }
        }
        NXT_SET_FLOW_FORMAT if v10 => {
            exact(4)?;
            match r.u32()? {
                FORMAT_OPENFLOW10 => Message::SetFlowFormat(false),
                FORMAT_NXM => Message::SetFlowFormat(true),
                _ => return Err(ErrorKind::BadRequestEperm),
            }
        }
        NXT_FLOW_MOD => Message::FlowMod(flow_mod::decode_nx(r, version, cx)?),
        NXT_FLOW_REMOVED => Message::FlowRemoved(Box::new(flow_removed::decode(version, true, r)?)),
        NXT_FLOW_MOD_TABLE_ID => {
            exact(8)?;
            Message::FlowModTableId(r.u8()? != 0)
        }
        NXT_SET_PACKET_IN_FORMAT => {
            exact(4)?;
            match r.u32()? {
                0 => Message::SetPacketInFormat(PacketInFormat::Standard),
                1 => Message::SetPacketInFormat(PacketInFormat::Nxt),
                2 => Message::SetPacketInFormat(PacketInFormat::Nxt2),
                _ => return Err(ErrorKind::BadRequestEperm),
            }
        }
        NXT_PACKET_IN => Message::PacketIn(Box::new(packet::decode_in(version, true, r)?)),
        NXT_PACKET_IN2 => Message::PacketIn(Box::new(packet::decode_in2(r)?)),
        NXT_FLOW_AGE => {
            exact(0)?;
            // Requests ages in flow statistics, which always have them here.
            return unsupported("NXT_FLOW_AGE", ErrorKind::BadRequestBadSubtype, whole);
        }
        NXT_SET_ASYNC_CONFIG => {
            exact(24)?;
            Message::SetAsync(role::decode_async(version, r)?)
        }
        NXT_SET_ASYNC_CONFIG2 if version <= Version::V13 => {
            Message::SetAsync(role::decode_async_props(version, r)?)
        }
        NXT_SET_CONTROLLER_ID => {
            exact(8)?;
            must_be_zero(r.array::<6>()?)?;
            Message::SetControllerId(r.u16()?)
        }
        NXT_FLOW_MONITOR_CANCEL if version <= Version::V12 => {
            exact(4)?;
            Message::FlowMonitorCancel(r.u32()?)
        }
        NXT_FLOW_MONITOR_PAUSED | NXT_FLOW_MONITOR_RESUMED if version <= Version::V12 => {
            exact(0)?;
            if subtype == NXT_FLOW_MONITOR_PAUSED {
                Message::FlowMonitorPaused
            } else {
                Message::FlowMonitorResumed
            }
        }
        NXT_REQUESTFORWARD if version <= Version::V12 => super::decode_forward(header, r.rest(), cx)?,
        NXT_RESUME => Message::Resume(Box::new(packet::decode_in2(r)?)),
        NXT_GROUP_MOD if v10 => Message::GroupMod(Box::new(groups::decode_mod(version, r)?)),
        NXT_TLV_TABLE_MOD => Message::TlvTableMod(tlv::decode_mod(r)?),
        NXT_TLV_TABLE_REQUEST => {
            exact(0)?;
            Message::TlvTableRequest
        }
        NXT_TLV_TABLE_REPLY => Message::TlvTableReply(tlv::decode_table(r)?),
        NXT_CT_FLUSH_ZONE => {
            exact(8)?;
            must_be_zero(r.array::<6>()?)?;
            Message::CtFlushZone(r.u16()?)
        }
        NXT_CT_FLUSH => {
            let ip_proto = r.u8()?;
            must_be_zero(r.array::<7>()?)?;
            let properties = r.rest().to_vec();
            super::decode_ct_flush(ip_proto, &properties)?;
            Message::CtFlush { ip_proto, properties }
        }
        _ => return Err(ErrorKind::BadRequestBadSubtype),
    })
}

fn must_be_zero<const N: usize>(bytes: [u8; N]) -> Result<(), ErrorKind> {
    if bytes == [0; N] {
        Ok(())
    } else {
        Err(ErrorKind::BadRequestMustBeZero)
    }
}

fn onf(
    header: &Header,
    version: Version,
    subtype: u32,
    mut r: Reader<'_>,
    cx: &DecodeContext,
) -> Result<Message, ErrorKind> {
    if version != Version::V13 {
        return Err(ErrorKind::BadRequestBadSubtype);
    }
    let len = r.len();
    let exact = |n: usize| {
        if len == n {
            Ok(())
        } else {
            Err(ErrorKind::BadRequestBadLen)
        }
    };
    Ok(match subtype {
        ONFT_ROLE_STATUS => Message::RoleStatus(role::decode_status(r)?),
        ONFT_FLOW_MONITOR_CANCEL => {
            exact(4)?;
            Message::FlowMonitorCancel(r.u32()?)
        }
        ONFT_FLOW_MONITOR_PAUSED | ONFT_FLOW_MONITOR_RESUMED => {
            exact(0)?;
            if subtype == ONFT_FLOW_MONITOR_PAUSED {
                Message::FlowMonitorPaused
            } else {
                Message::FlowMonitorResumed
            }
        }
        ONFT_BUNDLE_CONTROL => {
            exact(8)?;
            Message::BundleControl(bundle::decode_control(r)?)
        }
        ONFT_REQUESTFORWARD => super::decode_forward(header, r.rest(), cx)?,
        ONFT_BUNDLE_ADD => Message::BundleAdd(bundle::decode_add(header, r, cx)?),
        _ => return Err(ErrorKind::BadRequestBadSubtype),
    })
}

/// Writes a message about flow monitors: ONF's in 1.3, Nicira's before.
pub(super) fn encode_monitor(version: Version, m: &Message, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let (onf, nx) = match m {
        Message::FlowMonitorPaused => (ONFT_FLOW_MONITOR_PAUSED, NXT_FLOW_MONITOR_PAUSED),
        Message::FlowMonitorResumed => (ONFT_FLOW_MONITOR_RESUMED, NXT_FLOW_MONITOR_RESUMED),
        _ => (ONFT_FLOW_MONITOR_CANCEL, NXT_FLOW_MONITOR_CANCEL),
    };
    match version {
        Version::V10 | Version::V11 | Version::V12 => begin(nx, out),
        Version::V13 => begin_onf(onf, out),
        Version::V14 | Version::V15 => {
            return Err(EncodeError::NotInVersion {
                what: "flow monitor message",
                version,
            });
        }
    }
    if let Message::FlowMonitorCancel(id) = m {
        out.u32(*id);
    }
    Ok(())
}

/// Writes one of the messages that change how a connection works.
pub(super) fn encode_setting(version: Version, m: &Message, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match m {
        Message::SetFlowFormat(_) if version != Version::V10 => {
            return Err(EncodeError::NotInVersion {
                what: "NXT_SET_FLOW_FORMAT",
                version,
            });
        }
        Message::SetFlowFormat(nxm) => {
            begin(NXT_SET_FLOW_FORMAT, out);
            out.u32(if *nxm { FORMAT_NXM } else { FORMAT_OPENFLOW10 });
        }
        Message::FlowModTableId(set) => {
            begin(NXT_FLOW_MOD_TABLE_ID, out);
            out.u8((*set).into());
            out.zeros(7);
        }
        Message::SetPacketInFormat(f) => {
            begin(NXT_SET_PACKET_IN_FORMAT, out);
            out.u32(match f {
                PacketInFormat::Standard => 0,
                PacketInFormat::Nxt => 1,
                PacketInFormat::Nxt2 => 2,
            });
        }
        Message::SetControllerId(id) => {
            begin(NXT_SET_CONTROLLER_ID, out);
            out.zeros(6);
            out.u16(*id);
        }
        Message::CtFlushZone(zone) => {
            begin(NXT_CT_FLUSH_ZONE, out);
            out.zeros(6);
            out.u16(*zone);
        }
        Message::CtFlush { ip_proto, properties } => {
            begin(NXT_CT_FLUSH, out);
            out.u8(*ip_proto);
            out.zeros(7);
            out.put(properties);
        }
        Message::TlvTableMod(m) => {
            begin(NXT_TLV_TABLE_MOD, out);
            tlv::encode_mod(m, out);
        }
        Message::TlvTableRequest => begin(NXT_TLV_TABLE_REQUEST, out),
        Message::TlvTableReply(t) => {
            begin(NXT_TLV_TABLE_REPLY, out);
            tlv::encode_table(t, out);
        }
        _ => {
            return Err(EncodeError::NotInVersion {
                what: "message",
                version,
            });
        }
    }
    Ok(())
}
