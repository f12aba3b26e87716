//! Multipart (1.0: statistics) requests and replies.
//!
//! The header is followed by a type and flags, in an experimenter's also by its id and subtype. Then comes a
//! body, or a list of entries that may continue in further messages with the same transaction id.

mod encode;

pub use encode::FlowStatsWriter;
pub(super) use encode::{encode_reply, encode_request};

use super::{counters, flow_stats, groups, meters, monitor, ports, tables, whole_words};
use crate::action::Port;
use crate::error::{ErrorKind, NX_VENDOR, ONF_VENDOR};
use crate::message::{GROUP_ALL, Message, MpReply, MpRequest, QueueGetConfig};
use crate::version::Version;
use crate::wire::cursor::Reader;
use crate::wire::port::{port_from_u16, port_from_u32};

/// Types.
mod ty {
    pub(super) const DESC: u16 = 0;
    pub(super) const FLOW: u16 = 1;
    pub(super) const AGGREGATE: u16 = 2;
    pub(super) const TABLE: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const QUEUE: u16 = 5;
    pub(super) const GROUP: u16 = 6;
    pub(super) const GROUP_DESC: u16 = 7;
    pub(super) const GROUP_FEATURES: u16 = 8;
    pub(super) const METER: u16 = 9;
    pub(super) const METER_CONFIG: u16 = 10;
    pub(super) const METER_FEATURES: u16 = 11;
    pub(super) const TABLE_FEATURES: u16 = 12;
    pub(super) const PORT_DESC: u16 = 13;
    pub(super) const TABLE_DESC: u16 = 14;
    pub(super) const QUEUE_DESC: u16 = 15;
    pub(super) const FLOW_MONITOR: u16 = 16;
    pub(super) const EXPERIMENTER: u16 = 0xffff;
}

/// Nicira's subtypes (1.0; the last two in any version).
mod nx {
    pub(super) const FLOW: u32 = 0;
    pub(super) const AGGREGATE: u32 = 1;
    pub(super) const FLOW_MONITOR: u32 = 2;
    pub(super) const IPFIX_BRIDGE: u32 = 3;
    pub(super) const IPFIX_FLOW: u32 = 4;
    pub(super) const GROUP: u32 = 7;
    pub(super) const GROUP_DESC: u32 = 8;
    pub(super) const GROUP_FEATURES: u32 = 9;
}
/// ONF's flow monitor in 1.3.
const ONF_FLOW_MONITOR: u32 = 1870;

/// More parts follow.
const MORE: u16 = 1;

/// Kind of a part: a standard type, or an experimenter's subtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Of(u16),
    Nx(u32),
}

/// The variable contents of a message, behind its fixed part.
struct Part<'a> {
    kind: Kind,
    more: bool,
    body: Reader<'a>,
}

fn split(version: Version, mut r: Reader<'_>) -> Result<Part<'_>, ErrorKind> {
    let (ty, flags) = (r.u16()?, r.u16()?);
    if version >= Version::V11 {
        r.skip(4)?;
    }
    let kind = if ty == ty::EXPERIMENTER {
        let (vendor, subtype) = (r.u32()?, r.u32()?);
        if version == Version::V10 {
            r.skip(4)?;
        }
        match vendor {
            NX_VENDOR => Kind::Nx(subtype),
            ONF_VENDOR if version == Version::V13 && subtype == ONF_FLOW_MONITOR => {
                Kind::Nx(nx::FLOW_MONITOR)
            }
            ONF_VENDOR => return Err(ErrorKind::BadRequestBadSubtype),
            _ => return Err(ErrorKind::BadRequestBadVendor),
        }
    } else {
        Kind::Of(ty)
    };
    Ok(Part {
        kind,
        more: flags & MORE != 0,
        body: r,
    })
}

/// Whether the variable part of a request is a list.
fn in_words(version: Version, kind: Kind) -> bool {
    match kind {
        Kind::Of(ty::FLOW | ty::AGGREGATE) => version >= Version::V11,
        Kind::Of(ty::TABLE_FEATURES) => version >= Version::V13,
        Kind::Of(ty::FLOW_MONITOR) => version >= Version::V14,
        Kind::Nx(nx::FLOW | nx::AGGREGATE) => version == Version::V10,
        Kind::Nx(nx::FLOW_MONITOR) => version <= Version::V13,
        _ => false,
    }
}

/// Reads a request. `whole` is the message with its header.
pub(super) fn decode_request(version: Version, r: Reader<'_>, whole: &[u8]) -> Result<Message, ErrorKind> {
    let Part {
        kind,
        more,
        body: mut r,
    } = split(version, r)?;
    let v10 = version == Version::V10;
    // A request has parts since 1.3; before, its flags mean nothing.
    let more = more && version >= Version::V13;
    if in_words(version, kind) {
        whole_words(whole)?;
    }
    let since = |v: Version| {
        if version >= v {
            Ok(())
        } else {
            Err(ErrorKind::BadRequestBadStat)
        }
    };
    let body = match kind {
        Kind::Of(ty::DESC) => MpRequest::Desc,
        Kind::Of(ty::FLOW) => {
            return Ok(Message::MultipartRequest {
                more,
                body: flow(version, false, r)?,
            });
        }
        Kind::Of(ty::AGGREGATE) => {
            return Ok(Message::MultipartRequest {
                more,
                body: aggregate(version, false, r)?,
            });
        }
        Kind::Nx(nx::FLOW) if v10 => {
            return Ok(Message::MultipartRequest {
                more,
                body: flow(version, true, r)?,
            });
        }
        Kind::Nx(nx::AGGREGATE) if v10 => {
            return Ok(Message::MultipartRequest {
                more,
                body: aggregate(version, true, r)?,
            });
        }
        Kind::Of(ty::TABLE) => MpRequest::Table,
        Kind::Of(ty::PORT) => MpRequest::Port(pull_port(v10, 6, 4, &mut r)?),
        Kind::Of(ty::QUEUE) => {
            let port = pull_port(v10, 2, 0, &mut r)?;
            MpRequest::Queue {
                port,
                queue: r.u32()?,
            }
        }
        Kind::Of(ty::GROUP) => {
            since(Version::V11)?;
            group_id(&mut r, MpRequest::GroupStats)?
        }
        Kind::Nx(nx::GROUP) if v10 => group_id(&mut r, MpRequest::GroupStats)?,
        Kind::Nx(nx::GROUP_DESC) if v10 => group_id(&mut r, MpRequest::GroupDesc)?,
        Kind::Nx(nx::GROUP_FEATURES) if version <= Version::V11 => MpRequest::GroupFeatures,
        Kind::Of(ty::GROUP_DESC) if version == Version::V15 => group_id(&mut r, MpRequest::GroupDesc)?,
        Kind::Of(ty::GROUP_DESC) => {
            since(Version::V11)?;
            MpRequest::GroupDesc(GROUP_ALL)
        }
        Kind::Of(ty::GROUP_FEATURES) => {
            since(Version::V12)?;
            MpRequest::GroupFeatures
        }
        Kind::Of(ty::METER) => {
            since(Version::V13)?;
            group_id(&mut r, MpRequest::MeterStats)?
        }
        Kind::Of(ty::METER_CONFIG) => {
            since(Version::V13)?;
            group_id(&mut r, MpRequest::MeterConfig)?
        }
        Kind::Of(ty::METER_FEATURES) => {
            since(Version::V13)?;
            MpRequest::MeterFeatures
        }
        Kind::Of(ty::TABLE_FEATURES) => {
            since(Version::V13)?;
            let mut list = Vec::new();
            while !r.is_empty() {
                list.push(tables::pull_features(version, &mut r)?);
            }
            MpRequest::TableFeatures(list)
        }
        Kind::Of(ty::PORT_DESC) if version == Version::V15 => {
            MpRequest::PortDesc(pull_port(false, 0, 4, &mut r)?)
        }
        Kind::Of(ty::PORT_DESC) => MpRequest::PortDesc(Port::NONE),
        Kind::Of(ty::TABLE_DESC) => {
            since(Version::V14)?;
            MpRequest::TableDesc
        }
        Kind::Of(ty::QUEUE_DESC) => {
            since(Version::V14)?;
            let port = port_from_u32(r.u32()?)?;
            let queue = r.u32()?;
            MpRequest::QueueDesc(QueueGetConfig {
                port,
                queue: (queue != u32::MAX).then_some(queue),
            })
        }
        Kind::Of(ty::FLOW_MONITOR) => {
            since(Version::V14)?;
            MpRequest::FlowMonitor(list(&mut r, |r| monitor::pull_request(version, r))?)
        }
        Kind::Nx(nx::FLOW_MONITOR) if version <= Version::V13 => {
            MpRequest::FlowMonitor(list(&mut r, |r| monitor::pull_request(version, r))?)
        }
        Kind::Nx(nx::IPFIX_BRIDGE) => MpRequest::IpfixBridge,
        Kind::Nx(nx::IPFIX_FLOW) => MpRequest::IpfixFlow,
        Kind::Of(_) => return Err(ErrorKind::BadRequestBadStat),
        Kind::Nx(_) => return Err(ErrorKind::BadRequestBadSubtype),
    };
    if r.is_empty() {
        Ok(Message::MultipartRequest { more, body })
    } else {
        Err(ErrorKind::BadRequestBadLen)
    }
}

fn flow(version: Version, nxm: bool, r: Reader<'_>) -> Result<MpRequest, ErrorKind> {
    Ok(MpRequest::Flow(Box::new(flow_stats::decode_request(
        version, nxm, r,
    )?)))
}

fn aggregate(version: Version, nxm: bool, r: Reader<'_>) -> Result<MpRequest, ErrorKind> {
    Ok(MpRequest::Aggregate(Box::new(flow_stats::decode_request(
        version, nxm, r,
    )?)))
}

/// A port of 16 bits and `pad16` bytes, or of 32 bits and `pad32` bytes.
fn pull_port(v10: bool, pad16: usize, pad32: usize, r: &mut Reader<'_>) -> Result<Port, ErrorKind> {
    if v10 {
        let p = port_from_u16(r.u16()?);
        r.skip(pad16)?;
        Ok(p)
    } else {
        let p = port_from_u32(r.u32()?)?;
        r.skip(pad32)?;
        Ok(p)
    }
}

/// A group or meter id and its padding.
fn group_id(r: &mut Reader<'_>, make: fn(u32) -> MpRequest) -> Result<MpRequest, ErrorKind> {
    let id = r.u32()?;
    r.skip(4)?;
    Ok(make(id))
}

/// Reads a reply.
pub(super) fn decode_reply(version: Version, r: Reader<'_>) -> Result<Message, ErrorKind> {
    let Part {
        kind,
        more,
        body: mut r,
    } = split(version, r)?;
    let r = &mut r;
    let body = match kind {
        Kind::Of(ty::DESC) => MpReply::Desc(counters::pull_desc(r)?),
        Kind::Of(ty::FLOW) => MpReply::Flow {
            nxm: false,
            flows: list(r, |r| flow_stats::pull(version, false, r))?,
        },
        Kind::Nx(nx::FLOW) if version == Version::V10 => MpReply::Flow {
            nxm: true,
            flows: list(r, |r| flow_stats::pull(version, true, r))?,
        },
        Kind::Of(ty::AGGREGATE) => MpReply::Aggregate {
            nxm: false,
            stats: flow_stats::pull_aggregate(version, r)?,
        },
        Kind::Nx(nx::AGGREGATE) if version == Version::V10 => MpReply::Aggregate {
            nxm: true,
            stats: flow_stats::pull_aggregate(version, r)?,
        },
        Kind::Of(ty::TABLE) => MpReply::Table(list(r, |r| tables::pull_stats(version, r))?),
        Kind::Of(ty::PORT) => MpReply::Port(list(r, |r| counters::pull_port(version, r))?),
        Kind::Of(ty::QUEUE) => MpReply::Queue(list(r, |r| counters::pull_queue(version, r))?),
        Kind::Of(ty::PORT_DESC) => MpReply::PortDesc(list(r, |r| ports::pull_desc(version, r))?),
        Kind::Of(ty::TABLE_FEATURES) => {
            MpReply::TableFeatures(list(r, |r| tables::pull_features(version, r))?)
        }
        Kind::Of(ty::TABLE_DESC) => MpReply::TableDesc(list(r, tables::pull_desc)?),
        Kind::Of(ty::QUEUE_DESC) => MpReply::QueueDesc(list(r, ports::pull_queue_desc)?),
        Kind::Of(ty::GROUP_FEATURES) => MpReply::GroupFeatures(counters::pull_group_features(r)?),
        Kind::Of(ty::METER_FEATURES) => MpReply::MeterFeatures(counters::pull_meter_features(r)?),
        Kind::Of(ty::GROUP) | Kind::Nx(nx::GROUP) => {
            MpReply::GroupStats(list(r, |r| groups::pull_stats(version, r))?)
        }
        Kind::Of(ty::GROUP_DESC) | Kind::Nx(nx::GROUP_DESC) => {
            MpReply::GroupDesc(list(r, |r| groups::pull_desc(version, r))?)
        }
        Kind::Nx(nx::GROUP_FEATURES) => MpReply::GroupFeatures(counters::pull_group_features(r)?),
        Kind::Of(ty::METER) => MpReply::MeterStats(list(r, meters::pull_stats)?),
        Kind::Of(ty::METER_CONFIG) => MpReply::MeterConfig(list(r, meters::pull_config)?),
        Kind::Of(ty::FLOW_MONITOR) => MpReply::FlowMonitor(list(r, |r| monitor::pull_update(version, r))?),
        Kind::Nx(nx::FLOW_MONITOR) if version <= Version::V13 => {
            MpReply::FlowMonitor(list(r, |r| monitor::pull_update(version, r))?)
        }
        Kind::Of(_) => return Err(ErrorKind::BadRequestBadStat),
        Kind::Nx(nx::IPFIX_BRIDGE) => MpReply::IpfixBridge(counters::pull_ipfix(r)?),
        Kind::Nx(nx::IPFIX_FLOW) => MpReply::IpfixFlow(list(r, counters::pull_ipfix)?),
        Kind::Nx(_) => return Err(ErrorKind::BadRequestBadSubtype),
    };
    Ok(Message::MultipartReply { more, body })
}

fn list<T>(
    r: &mut Reader<'_>,
    mut one: impl FnMut(&mut Reader<'_>) -> Result<T, ErrorKind>,
) -> Result<Vec<T>, ErrorKind> {
    let mut all = Vec::new();
    while !r.is_empty() {
        let before = r.len();
        all.push(one(r)?);
        if r.len() == before {
            return Err(ErrorKind::BadRequestBadLen);
        }
    }
    Ok(all)
}
