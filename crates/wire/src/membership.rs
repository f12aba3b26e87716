//! Membership of multicast groups, as a switch reads it from messages on their way (RFC 4541).
//!
//! The protocols are IGMP 1 to 3 (RFC 1112, RFC 2236, RFC 3376), and MLD 1 and 2 (RFC 2710, RFC 3810).
//!
//! **Problem.** Any sender can send such messages. The reader takes nothing from a message whose checksum is
//! wrong. It reads no more records than the message has, and at most [`MAX_RECORDS`] of them.
//!
//! **Deviations from Open vSwitch.** Auxiliary data of a record is counted in 32-bit words (RFC 3376, 4.2.6).
//! An IGMP record of an unknown type is skipped, and the records behind it are read. A record whose group is
//! no multicast address is skipped.

use crate::checksum::Sum;
use crate::eth::{ethertype, payload};
use crate::icmp::{Icmp, Igmp};
use crate::ip::{Ipv4, Ipv6, Ipv6Ext, proto, pseudo};
use crate::{Be16, Be32, split, views};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Maximum number of records of a message that are read. An Ethernet frame of 1,500 bytes has room for 184.
pub const MAX_RECORDS: u16 = 512;

/// Types of IGMP messages.
pub mod igmp {
    /// Membership query.
    pub const QUERY: u8 = 0x11;
    /// Version 1 membership report.
    pub const REPORT_V1: u8 = 0x12;
    /// Version 2 membership report.
    pub const REPORT_V2: u8 = 0x16;
    /// Leave group.
    pub const LEAVE: u8 = 0x17;
    /// Version 3 membership report.
    pub const REPORT_V3: u8 = 0x22;
}

/// Types of MLD messages, which are types of ICMPv6.
pub mod mld {
    /// Multicast listener query.
    pub const QUERY: u8 = 130;
    /// Multicast listener report.
    pub const REPORT: u8 = 131;
    /// Multicast listener done.
    pub const DONE: u8 = 132;
    /// Version 2 multicast listener report.
    pub const REPORT_V2: u8 = 143;
}

/// Whether a type of IGMP is a report or a leave message.
pub fn is_igmp_report(ty: u8) -> bool {
    use igmp::{LEAVE, REPORT_V1, REPORT_V2, REPORT_V3};
    matches!(ty, REPORT_V1 | REPORT_V2 | REPORT_V3 | LEAVE)
}

/// Whether a type of ICMPv6 is a report or a done message of MLD.
pub fn is_mld_report(ty: u8) -> bool {
    matches!(ty, mld::REPORT | mld::DONE | mld::REPORT_V2)
}

/// Types of records (RFC 3376, 4.2.12; RFC 3810, 5.2.12).
const MODE_IS_INCLUDE: u8 = 1;
const CHANGE_TO_INCLUDE: u8 = 3;
const BLOCK_OLD_SOURCES: u8 = 6;

/// Length of an IPv6 address, bytes.
const ADDRESS_LEN: usize = 16;

views! {
    /// The beginning of IGMP 3 and MLD 2 reports.
    ReportHead {
        /// Type.
        ty: u8,
        /// Reserved.
        reserved: u8,
        /// Checksum.
        csum: Be16,
        /// Reserved.
        reserved2: Be16,
        /// Number of records.
        records: Be16,
    }
    /// A record of an IGMP 3 report, without its sources.
    IgmpRecord {
        /// Type.
        ty: u8,
        /// Auxiliary data, 32-bit words.
        aux_words: u8,
        /// Number of sources.
        sources: Be16,
        /// Group.
        group: Be32,
    }
    /// A record of an MLD 2 report, without its sources.
    MldRecord {
        /// Type.
        ty: u8,
        /// Auxiliary data, 32-bit words.
        aux_words: u8,
        /// Number of sources.
        sources: Be16,
        /// Group.
        group: [u8; 16],
    }
}

/// The protocol of a report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protocol {
    /// IGMP 1.
    Igmp1,
    /// IGMP 2.
    Igmp2,
    /// IGMP 3.
    Igmp3,
    /// MLD 1.
    Mld1,
    /// MLD 2.
    Mld2,
}

impl Protocol {
    /// The name in Open vSwitch's `mdb/show`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Igmp1 => "IGMPv1",
            Self::Igmp2 => "IGMPv2",
            Self::Igmp3 => "IGMPv3",
            Self::Mld1 => "MLDv1",
            Self::Mld2 => "MLDv2",
        }
    }
}

/// The change of one group that a report announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Address of the group; an IPv4 one is mapped (`::ffff:a.b.c.d`).
    pub group: Ipv6Addr,
    /// The protocol of the report, if the sender listens to the group; `None`: it leaves the group.
    pub joins: Option<Protocol>,
}

/// One message about membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A router queries for listeners.
    Query {
        /// The router has an address. If not, another switch queries in its place (RFC 4541, 2.1.1).
        has_source: bool,
    },
    /// A listener reports groups.
    Report(Records<'a>),
}

impl Message<'_> {
    /// Number of group records that it claims to have, at most [`MAX_RECORDS`]; at least 1.
    pub fn n_records(&self) -> u16 {
        match self {
            Self::Report(Records::Many { left, .. }) => (*left).max(1),
            Self::Report(Records::One(_)) | Self::Query { .. } => 1,
        }
    }
}

/// The records of a report, one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Records<'a> {
    /// A message about one group; `None`: it has been returned.
    One(Option<Record>),
    /// Records of IGMP 3, or of MLD 2.
    Many {
        /// They are MLD's.
        v6: bool,
        /// Number of records that are left.
        left: u16,
        /// Their bytes.
        bytes: &'a [u8],
    },
}

/// Reads the message of an Ethernet frame. `None`: it has none, is cut off, or has a wrong checksum.
/// `is_summed`: the checksum is known to be right, or not filled in yet.
pub fn read(frame: &[u8], is_summed: bool) -> Option<Message<'_>> {
    match payload(frame)? {
        (ethertype::IP, ip) => read_igmp(ip, is_summed),
        (ethertype::IPV6, ip) => read_mld(ip, is_summed),
        _ => None,
    }
}

fn read_igmp(packet: &[u8], is_summed: bool) -> Option<Message<'_>> {
    let (ip, _) = split::<Ipv4>(packet)?;
    if ip.proto != proto::IGMP || ip.is_fragment() || ip.header_len() < Ipv4::LEN {
        return None;
    }
    let body = packet.get(ip.header_len()..usize::from(ip.total_len.get()))?;
    let (igmp, _) = split::<Igmp>(body)?;
    if !is_summed && Sum::ZERO.bytes(body).checksum() != 0 {
        return None;
    }
    let group = Ipv4Addr::from_bits(igmp.group.get());
    let one = |joins| Some(Message::Report(Records::one(group.to_ipv6_mapped(), joins)));
    match igmp.ty {
        igmp::QUERY => Some(Message::Query {
            has_source: ip.src.get() != 0,
        }),
        igmp::REPORT_V1 => one(Some(Protocol::Igmp1)),
        igmp::REPORT_V2 => one(Some(Protocol::Igmp2)),
        igmp::LEAVE => one(None),
        igmp::REPORT_V3 => Records::many(body, false).map(Message::Report),
        _ => None,
    }
}

fn read_mld(packet: &[u8], is_summed: bool) -> Option<Message<'_>> {
    let (ip, behind) = split::<Ipv6>(packet)?;
    let body = icmpv6(ip.next, behind.get(..usize::from(ip.payload_len.get()))?)?;
    let (icmp, behind) = split::<Icmp>(body)?;
    if !is_summed {
        let len = u32::try_from(body.len()).ok()?;
        let sum = pseudo(packet, true, proto::ICMPV6, len)?.bytes(body);
        if sum.checksum() != 0 {
            return None;
        }
    }
    let one = |joins| {
        let (group, _) = split::<[u8; ADDRESS_LEN]>(behind)?;
        Some(Message::Report(Records::one((*group).into(), joins)))
    };
    match icmp.ty {
        mld::QUERY if behind.len() >= ADDRESS_LEN => Some(Message::Query {
            has_source: ip.src != [0; ADDRESS_LEN],
        }),
        mld::REPORT => one(Some(Protocol::Mld1)),
        mld::DONE => one(None),
        mld::REPORT_V2 => Records::many(body, true).map(Message::Report),
        _ => None,
    }
}

/// The ICMPv6 message behind the extension headers of a packet that is no fragment. Each header has at least
/// eight bytes.
fn icmpv6(mut next: u8, mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        let words = match next {
            proto::ICMPV6 => return Some(bytes),
            proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS => 2,
            proto::AH => 1,
            _ => return None,
        };
        let (ext, _) = split::<Ipv6Ext>(bytes)?;
        // AH counts 32-bit words, the others count pairs of them.
        let len = 8 + usize::from(ext.len) * 4 * words;
        (next, bytes) = (ext.next, bytes.get(len..)?);
    }
}

impl<'a> Records<'a> {
    fn one(group: Ipv6Addr, joins: Option<Protocol>) -> Self {
        let record = Record { group, joins };
        Self::One(Some(record).filter(Record::is_of_multicast))
    }

    fn many(body: &'a [u8], v6: bool) -> Option<Self> {
        let (head, bytes) = split::<ReportHead>(body)?;
        let left = head.records.get().min(MAX_RECORDS);
        Some(Self::Many { v6, left, bytes })
    }
}

impl Record {
    fn is_of_multicast(&self) -> bool {
        match self.group.to_ipv4_mapped() {
            Some(v4) => v4.is_multicast(),
            None => self.group.is_multicast(),
        }
    }

    /// The meaning of a record with `sources` sources. `None`: it has none.
    fn of(ty: u8, sources: u16, group: Ipv6Addr, protocol: Protocol) -> Option<Self> {
        // A listener that includes no source does not listen.
        let leaves = sources == 0 && matches!(ty, MODE_IS_INCLUDE | CHANGE_TO_INCLUDE);
        let record = Self {
            group,
            joins: (!leaves).then_some(protocol),
        };
        let is_known = (MODE_IS_INCLUDE..=BLOCK_OLD_SOURCES).contains(&ty);
        Some(record).filter(|r| is_known && r.is_of_multicast())
    }
}

/// Takes a record off the front of `bytes`. Outer `None`: they are too few.
fn take(v6: bool, bytes: &mut &[u8]) -> Option<Option<Record>> {
    let (record, aux_words, sources, behind) = if v6 {
        let (r, behind) = split::<MldRecord>(bytes)?;
        let n = r.sources.get();
        let record = Record::of(r.ty, n, r.group.into(), Protocol::Mld2);
        (record, r.aux_words, usize::from(n) * 16, behind)
    } else {
        let (r, behind) = split::<IgmpRecord>(bytes)?;
        let n = r.sources.get();
        let group = Ipv4Addr::from_bits(r.group.get()).to_ipv6_mapped();
        let record = Record::of(r.ty, n, group, Protocol::Igmp3);
        (record, r.aux_words, usize::from(n) * 4, behind)
    };
    // A record whose sources are cut off is read; no record is behind it.
    *bytes = behind
        .get(sources + usize::from(aux_words) * 4..)
        .unwrap_or_default();
    Some(record)
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        match self {
            Self::One(record) => record.take(),
            Self::Many { v6, left, bytes } => {
                while let Some(fewer) = left.checked_sub(1) {
                    *left = fewer;
                    if let Some(record) = take(*v6, bytes)? {
                        return Some(record);
                    }
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
