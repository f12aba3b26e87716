//! Multipart (1.0: statistics) requests and replies.
//!
//! Behind the header stand a type and flags, in an experimenter's also its id and subtype; then a body, or a
//! list of entries that may go on in further messages with the same transaction id.

use super::cursor::{Put, Reader};
use super::port::{port_from_u16, port_from_u32, port_to_u16};
use super::{counters, flow_stats, ports, tables};
use crate::action::Port;
use crate::error::{EncodeError, ErrorKind, NX_VENDOR, ONF_VENDOR};
use crate::header::{HEADER_LEN, Header};
use crate::message::{FlowStats, Message, MpReply, MpRequest, QueueGetConfig, Unsupported};
use crate::version::Version;

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

/// What a part is: a standard type, or an experimenter's subtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Of(u16),
    Nx(u32),
}

/// What follows the fixed part.
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

/// A monitor request: known, not handled.
fn monitor(whole: &[u8]) -> Message {
    let error = ErrorKind::BadRequestBadStat.about(whole);
    Message::Unsupported(Unsupported {
        kind: "OFPMP_FLOW_MONITOR",
        error,
    })
}

/// Reads a request. `whole` is the message with its header.
pub(super) fn decode_request(version: Version, r: Reader<'_>, whole: &[u8]) -> Result<Message, ErrorKind> {
    let Part {
        kind,
        more,
        body: mut r,
    } = split(version, r)?;
    let v10 = version == Version::V10;
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
            MpRequest::GroupDesc(u32::MAX)
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
            return Ok(monitor(whole));
        }
        Kind::Nx(nx::FLOW_MONITOR) if version <= Version::V13 => return Ok(monitor(whole)),
        Kind::Nx(nx::IPFIX_BRIDGE | nx::IPFIX_FLOW) => {
            let error = ErrorKind::NxStatsNotConfigured.about(whole);
            return Ok(Message::Unsupported(Unsupported {
                kind: "NXST_IPFIX",
                error,
            }));
        }
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
        Kind::Of(ty::GROUP) => MpReply::GroupStats,
        Kind::Of(ty::GROUP_DESC) => MpReply::GroupDesc,
        Kind::Of(ty::METER) => MpReply::MeterStats,
        Kind::Of(ty::METER_CONFIG) => MpReply::MeterConfig,
        Kind::Of(_) => return Err(ErrorKind::BadRequestBadStat),
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

/// A message in parts: entries are appended, and a new part starts where one would be too long.
struct Parts {
    version: Version,
    xid: u32,
    msg_type: u8,
    kind: Kind,
    done: Vec<Vec<u8>>,
    current: Vec<u8>,
}

impl Parts {
    fn new(version: Version, xid: u32, is_reply: bool, kind: Kind) -> Parts {
        let request = if version == Version::V10 { 16 } else { 18 };
        let mut p = Parts {
            version,
            xid,
            msg_type: request + u8::from(is_reply),
            kind,
            done: Vec::new(),
            current: Vec::new(),
        };
        p.current = p.head();
        p
    }

    fn head(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_LEN];
        out.u16(match self.kind {
            Kind::Of(ty) => ty,
            Kind::Nx(_) => ty::EXPERIMENTER,
        });
        out.u16(0);
        if self.version >= Version::V11 {
            out.zeros(4);
        }
        if let Kind::Nx(subtype) = self.kind {
            out.u32(NX_VENDOR);
            out.u32(subtype);
            if self.version == Version::V10 {
                out.zeros(4);
            }
        }
        out
    }

    /// Appends an entry.
    fn entry(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        const MAX: usize = u16::MAX as usize;
        let start = self.current.len();
        if let Err(e) = write(&mut self.current) {
            self.current.truncate(start);
            return Err(e);
        }
        if self.current.len() > MAX {
            let mut next = self.head();
            if next.len() + self.current.len() - start > MAX {
                self.current.truncate(start);
                return Err(EncodeError::TooLong("an entry of a multipart message"));
            }
            next.extend_from_slice(self.current.get(start..).unwrap_or(&[]));
            self.current.truncate(start);
            self.done.push(std::mem::replace(&mut self.current, next));
        }
        Ok(())
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        let last = std::mem::take(&mut self.current);
        for part in &mut self.done {
            part.patch(HEADER_LEN + 2, &MORE.to_be_bytes());
        }
        self.done.push(last);
        for part in &mut self.done {
            let length = u16::try_from(part.len()).expect("entries that do not fit start a new part");
            let header = Header {
                version: self.version.wire(),
                msg_type: self.msg_type,
                length,
                xid: self.xid,
            };
            part.patch(0, &header.to_bytes());
        }
        self.done
    }
}

/// Writes flow statistics one by one, so that a large table need not be collected first.
///
/// A flow that no message can hold is skipped ([`FlowStatsWriter::push`] says so), as Open vSwitch does.
pub struct FlowStatsWriter {
    parts: Parts,
    nxm: bool,
}

impl FlowStatsWriter {
    /// Starts a reply; `nxm` as in the request.
    pub fn new(version: Version, xid: u32, nxm: bool) -> FlowStatsWriter {
        let nxm = nxm && version == Version::V10;
        let kind = if nxm {
            Kind::Nx(nx::FLOW)
        } else {
            Kind::Of(ty::FLOW)
        };
        FlowStatsWriter {
            parts: Parts::new(version, xid, true, kind),
            nxm,
        }
    }
    /// Appends a flow. On an error it is left out and the reply stays whole.
    pub fn push(&mut self, flow: &FlowStats) -> Result<(), EncodeError> {
        let (version, nxm) = (self.parts.version, self.nxm);
        self.parts.entry(|out| flow_stats::put(version, nxm, flow, out))
    }
    /// The messages of the reply.
    pub fn finish(self) -> Vec<Vec<u8>> {
        self.parts.finish()
    }
}

/// A kind that exists since a version.
fn since(version: Version, first: Version, ty: u16, what: &'static str) -> Result<Kind, EncodeError> {
    if version >= first {
        Ok(Kind::Of(ty))
    } else {
        Err(EncodeError::NotInVersion { what, version })
    }
}

/// A group statistic's kind, which Nicira's extension has in 1.0.
fn group(version: Version, ty: u16, nx: u32) -> Kind {
    if version == Version::V10 {
        Kind::Nx(nx)
    } else {
        Kind::Of(ty)
    }
}

/// Writes a request.
pub(super) fn encode_request(version: Version, xid: u32, q: &MpRequest) -> Result<Vec<Vec<u8>>, EncodeError> {
    let v10 = version == Version::V10;
    let nxm = |nxm: bool, nx: u32, ty: u16| if nxm && v10 { Kind::Nx(nx) } else { Kind::Of(ty) };
    let kind = match q {
        MpRequest::Desc => Kind::Of(ty::DESC),
        MpRequest::Flow(f) => nxm(f.nxm, nx::FLOW, ty::FLOW),
        MpRequest::Aggregate(f) => nxm(f.nxm, nx::AGGREGATE, ty::AGGREGATE),
        MpRequest::Table => Kind::Of(ty::TABLE),
        MpRequest::Port(_) => Kind::Of(ty::PORT),
        MpRequest::Queue { .. } => Kind::Of(ty::QUEUE),
        MpRequest::PortDesc(_) => Kind::Of(ty::PORT_DESC),
        MpRequest::TableFeatures(_) => since(version, Version::V13, ty::TABLE_FEATURES, "table features")?,
        MpRequest::TableDesc => since(version, Version::V14, ty::TABLE_DESC, "table description")?,
        MpRequest::QueueDesc(_) => since(version, Version::V14, ty::QUEUE_DESC, "queue description")?,
        MpRequest::GroupStats(_) => group(version, ty::GROUP, nx::GROUP),
        MpRequest::GroupDesc(_) => group(version, ty::GROUP_DESC, nx::GROUP_DESC),
        MpRequest::GroupFeatures if version <= Version::V11 => Kind::Nx(nx::GROUP_FEATURES),
        MpRequest::GroupFeatures => Kind::Of(ty::GROUP_FEATURES),
        MpRequest::MeterStats(_) => since(version, Version::V13, ty::METER, "meter statistics")?,
        MpRequest::MeterConfig(_) => since(version, Version::V13, ty::METER_CONFIG, "meter description")?,
        MpRequest::MeterFeatures => since(version, Version::V13, ty::METER_FEATURES, "meter features")?,
    };
    let mut p = Parts::new(version, xid, false, kind);
    let port = |port: Port, pad: usize, out: &mut Vec<u8>| {
        if v10 {
            out.u16(port_to_u16(port));
            out.zeros(pad);
        } else {
            out.u32(port.0);
        }
    };
    match q {
        MpRequest::Flow(f) | MpRequest::Aggregate(f) => p.entry(|out| {
            flow_stats::encode_request(version, f, out);
            Ok(())
        })?,
        MpRequest::Port(number) => p.entry(|out| {
            port(*number, 6, out);
            out.zeros(if v10 { 0 } else { 4 });
            Ok(())
        })?,
        MpRequest::Queue { port: number, queue } => p.entry(|out| {
            port(*number, 2, out);
            out.u32(*queue);
            Ok(())
        })?,
        MpRequest::PortDesc(number) if version == Version::V15 => p.entry(|out| {
            out.u32(number.0);
            out.zeros(4);
            Ok(())
        })?,
        MpRequest::TableFeatures(list) => list.iter().try_for_each(|t| {
            p.entry(|out| {
                tables::put_features(version, t, out);
                Ok(())
            })
        })?,
        MpRequest::QueueDesc(d) => p.entry(|out| {
            out.u32(d.port.0);
            out.u32(d.queue.unwrap_or(u32::MAX));
            Ok(())
        })?,
        MpRequest::GroupDesc(_) if !matches!(version, Version::V10 | Version::V15) => {}
        MpRequest::GroupStats(id)
        | MpRequest::GroupDesc(id)
        | MpRequest::MeterStats(id)
        | MpRequest::MeterConfig(id) => p.entry(|out| {
            out.u32(*id);
            out.zeros(4);
            Ok(())
        })?,
        MpRequest::Desc
        | MpRequest::Table
        | MpRequest::PortDesc(_)
        | MpRequest::TableDesc
        | MpRequest::GroupFeatures
        | MpRequest::MeterFeatures => {}
    }
    Ok(p.finish())
}

/// Writes a reply, in as many messages as it takes.
pub(super) fn encode_reply(version: Version, xid: u32, reply: &MpReply) -> Result<Vec<Vec<u8>>, EncodeError> {
    let v10 = version == Version::V10;
    let kind = match reply {
        MpReply::Desc(_) => Kind::Of(ty::DESC),
        MpReply::Flow { nxm, flows } => {
            let mut w = FlowStatsWriter::new(version, xid, *nxm);
            flows.iter().try_for_each(|f| w.push(f))?;
            return Ok(w.finish());
        }
        MpReply::Aggregate { nxm: true, .. } if v10 => Kind::Nx(nx::AGGREGATE),
        MpReply::Aggregate { .. } => Kind::Of(ty::AGGREGATE),
        MpReply::Table(_) => Kind::Of(ty::TABLE),
        MpReply::Port(_) => Kind::Of(ty::PORT),
        MpReply::Queue(_) => Kind::Of(ty::QUEUE),
        MpReply::PortDesc(_) => Kind::Of(ty::PORT_DESC),
        MpReply::TableFeatures(_) => since(version, Version::V13, ty::TABLE_FEATURES, "table features")?,
        MpReply::TableDesc(_) => since(version, Version::V14, ty::TABLE_DESC, "table description")?,
        MpReply::QueueDesc(_) => since(version, Version::V14, ty::QUEUE_DESC, "queue description")?,
        MpReply::GroupStats => group(version, ty::GROUP, nx::GROUP),
        MpReply::GroupDesc => group(version, ty::GROUP_DESC, nx::GROUP_DESC),
        MpReply::GroupFeatures(_) if version <= Version::V11 => Kind::Nx(nx::GROUP_FEATURES),
        MpReply::GroupFeatures(_) => Kind::Of(ty::GROUP_FEATURES),
        MpReply::MeterStats => since(version, Version::V13, ty::METER, "meter statistics")?,
        MpReply::MeterConfig => since(version, Version::V13, ty::METER_CONFIG, "meter description")?,
        MpReply::MeterFeatures(_) => since(version, Version::V13, ty::METER_FEATURES, "meter features")?,
    };
    let mut p = Parts::new(version, xid, true, kind);
    /// Appends each entry of a list.
    fn all<T>(p: &mut Parts, list: &[T], put: impl Fn(&T, &mut Vec<u8>)) -> Result<(), EncodeError> {
        list.iter().try_for_each(|t| {
            p.entry(|out| {
                put(t, out);
                Ok(())
            })
        })
    }
    match reply {
        MpReply::Desc(d) => all(&mut p, &[d], |d, out| counters::put_desc(d, out))?,
        MpReply::Aggregate { stats, .. } => {
            all(&mut p, &[stats], |s, out| {
                flow_stats::put_aggregate(version, s, out)
            })?;
        }
        MpReply::Table(list) => {
            let last = list.last().map(|t| t.table_id);
            all(&mut p, list, |t, out| {
                tables::put_stats(version, t, last == Some(t.table_id), out)
            })?;
        }
        MpReply::Port(list) => all(&mut p, list, |s, out| counters::put_port(version, s, out))?,
        MpReply::Queue(list) => all(&mut p, list, |s, out| counters::put_queue(version, s, out))?,
        MpReply::PortDesc(list) => all(&mut p, list, |d, out| ports::put_desc(version, d, out))?,
        MpReply::TableFeatures(list) => all(&mut p, list, |t, out| tables::put_features(version, t, out))?,
        MpReply::TableDesc(list) => all(&mut p, list, tables::put_desc)?,
        MpReply::QueueDesc(list) => {
            for q in list {
                all(&mut p, &q.queues, |one, out| {
                    ports::put_queue_desc(q.port, one, out)
                })?;
            }
        }
        MpReply::GroupFeatures(f) => all(&mut p, &[f], |f, out| counters::put_group_features(f, out))?,
        MpReply::MeterFeatures(f) => all(&mut p, &[f], |f, out| counters::put_meter_features(f, out))?,
        MpReply::Flow { .. }
        | MpReply::GroupStats
        | MpReply::GroupDesc
        | MpReply::MeterStats
        | MpReply::MeterConfig => {}
    }
    Ok(p.finish())
}
