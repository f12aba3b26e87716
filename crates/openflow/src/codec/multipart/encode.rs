//! Writing multipart messages, split at 64 KiB.

use super::{Kind, MORE, ONF_FLOW_MONITOR, nx, ty};
use crate::action::Port;
use crate::codec::{counters, flow_stats, groups, meters, monitor, ports, tables};
use crate::error::{EncodeError, NX_VENDOR, ONF_VENDOR};
use crate::header::{HEADER_LEN, Header};
use crate::message::{FlowStats, MpReply, MpRequest};
use crate::version::Version;
use crate::wire::cursor::Put;
use crate::wire::port::port_to_u16;

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
            // ONF's extension has this kind under a number of its own in 1.3.
            if self.version == Version::V13 && subtype == nx::FLOW_MONITOR {
                out.u32(ONF_VENDOR);
                out.u32(ONF_FLOW_MONITOR);
            } else {
                out.u32(NX_VENDOR);
                out.u32(subtype);
            }
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

    /// The parts that are full; there is another one behind them.
    fn take_full(&mut self) -> Vec<Vec<u8>> {
        let mut full = std::mem::take(&mut self.done);
        for part in &mut full {
            part.patch(HEADER_LEN + 2, &MORE.to_be_bytes());
            self.seal(part);
        }
        full
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        let mut all = self.take_full();
        let mut last = std::mem::take(&mut self.current);
        self.seal(&mut last);
        all.push(last);
        all
    }

    fn seal(&self, part: &mut Vec<u8>) {
        let length = u16::try_from(part.len()).expect("entries that do not fit start a new part");
        let header = Header {
            version: self.version.wire(),
            msg_type: self.msg_type,
            length,
            xid: self.xid,
        };
        part.patch(0, &header.to_bytes());
    }
}

/// Writes flow statistics one by one, so that a large table need not be collected first.
///
/// A flow that no message can hold is skipped, as Open vSwitch does.
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
    /// Appends a flow. A flow that is too long is left out, with a line in the log. On another error, which
    /// is returned, the flow is left out, too. The reply stays whole.
    pub fn push(&mut self, flow: &FlowStats) -> Result<(), EncodeError> {
        let (version, nxm) = (self.parts.version, self.nxm);
        match self.parts.entry(|out| flow_stats::put(version, nxm, flow, out)) {
            Err(EncodeError::TooLong(_)) => {
                warn_of_long_flow();
                Ok(())
            }
            done => done,
        }
    }
    /// The messages of the reply that are complete; others follow.
    pub fn take_full(&mut self) -> Vec<Vec<u8>> {
        self.parts.take_full()
    }
    /// The messages of the reply that were not taken yet.
    pub fn finish(self) -> Vec<Vec<u8>> {
        self.parts.finish()
    }
}

/// Warns at powers of two only: a reply has many flows, and a line for each that is left out would be too
/// many.
fn warn_of_long_flow() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let seen = SEEN.fetch_add(1, Relaxed) + 1;
    if seen.is_power_of_two() {
        log::warn!(
            target: "ofp_flow",
            "Flow exceeded the maximum flow statistics reply size and was excluded from the response set ({seen} so far)"
        );
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

/// A flow monitor's kind: an extension before 1.4.
fn flow_monitor(version: Version) -> Kind {
    if version >= Version::V14 {
        Kind::Of(ty::FLOW_MONITOR)
    } else {
        Kind::Nx(nx::FLOW_MONITOR)
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
pub(in crate::codec) fn encode_request(
    version: Version,
    xid: u32,
    q: &MpRequest,
) -> Result<Vec<Vec<u8>>, EncodeError> {
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
        MpRequest::FlowMonitor(_) => flow_monitor(version),
        MpRequest::IpfixBridge => Kind::Nx(nx::IPFIX_BRIDGE),
        MpRequest::IpfixFlow => Kind::Nx(nx::IPFIX_FLOW),
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
        MpRequest::FlowMonitor(list) => list.iter().try_for_each(|q| {
            p.entry(|out| {
                monitor::put_request(version, q, out);
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
        | MpRequest::IpfixBridge
        | MpRequest::IpfixFlow
        | MpRequest::MeterFeatures => {}
    }
    Ok(p.finish())
}

/// Writes a reply, in as many messages as it takes.
pub(in crate::codec) fn encode_reply(
    version: Version,
    xid: u32,
    reply: &MpReply,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    let v10 = version == Version::V10;
    let kind = match reply {
        MpReply::Desc(_) => Kind::Of(ty::DESC),
        MpReply::Flow { nxm, flows } => {
            let mut w = FlowStatsWriter::new(version, xid, *nxm);
            for f in flows {
                w.push(f)?;
            }
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
        MpReply::GroupStats(_) => group(version, ty::GROUP, nx::GROUP),
        MpReply::GroupDesc(_) => group(version, ty::GROUP_DESC, nx::GROUP_DESC),
        MpReply::GroupFeatures(_) if version <= Version::V11 => Kind::Nx(nx::GROUP_FEATURES),
        MpReply::GroupFeatures(_) => Kind::Of(ty::GROUP_FEATURES),
        MpReply::MeterStats(_) => since(version, Version::V13, ty::METER, "meter statistics")?,
        MpReply::MeterConfig(_) => since(version, Version::V13, ty::METER_CONFIG, "meter description")?,
        MpReply::MeterFeatures(_) => since(version, Version::V13, ty::METER_FEATURES, "meter features")?,
        MpReply::FlowMonitor(_) => flow_monitor(version),
        MpReply::IpfixBridge(_) => Kind::Nx(nx::IPFIX_BRIDGE),
        MpReply::IpfixFlow(_) => Kind::Nx(nx::IPFIX_FLOW),
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
        MpReply::IpfixBridge(s) => all(&mut p, &[s], |s, out| counters::put_ipfix(s, out))?,
        MpReply::IpfixFlow(list) => all(&mut p, list, counters::put_ipfix)?,
        MpReply::MeterFeatures(f) => all(&mut p, &[f], |f, out| counters::put_meter_features(f, out))?,
        MpReply::FlowMonitor(list) => list
            .iter()
            .try_for_each(|u| p.entry(|out| monitor::put_update(version, u, out)))?,
        MpReply::GroupStats(list) => all(&mut p, list, |s, out| groups::put_stats(version, s, out))?,
        MpReply::GroupDesc(list) => list
            .iter()
            .try_for_each(|d| p.entry(|out| groups::put_desc(version, d, out)))?,
        MpReply::MeterStats(list) => all(&mut p, list, meters::put_stats)?,
        MpReply::MeterConfig(list) => all(&mut p, list, meters::put_config)?,
        MpReply::Flow { .. } => {}
    }
    Ok(p.finish())
}
