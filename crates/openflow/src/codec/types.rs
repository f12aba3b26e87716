//! Numbers of message types, which moved between 1.0 and 1.1 and grew since.

use crate::version::Version;

/// A message type beyond the four that never change (hello, error, echo request and reply).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Type {
    Vendor,
    FeaturesRequest,
    FeaturesReply,
    GetConfigRequest,
    GetConfigReply,
    SetConfig,
    PacketIn,
    FlowRemoved,
    PortStatus,
    PacketOut,
    FlowMod,
    GroupMod,
    PortMod,
    TableMod,
    MultipartRequest,
    MultipartReply,
    BarrierRequest,
    BarrierReply,
    QueueGetConfigRequest,
    QueueGetConfigReply,
    RoleRequest,
    RoleReply,
    GetAsyncRequest,
    GetAsyncReply,
    SetAsync,
    MeterMod,
    RoleStatus,
    TableStatus,
    RequestForward,
    BundleControl,
    BundleAdd,
}

use Version::{V10, V11, V12, V13, V14, V15};

/// Type, first and last version, number.
const ROWS: &[(Type, Version, Version, u8)] = &[
    (Type::Vendor, V10, V15, 4),
    (Type::FeaturesRequest, V10, V15, 5),
    (Type::FeaturesReply, V10, V15, 6),
    (Type::GetConfigRequest, V10, V15, 7),
    (Type::GetConfigReply, V10, V15, 8),
    (Type::SetConfig, V10, V15, 9),
    (Type::PacketIn, V10, V15, 10),
    (Type::FlowRemoved, V10, V15, 11),
    (Type::PortStatus, V10, V15, 12),
    (Type::PacketOut, V10, V15, 13),
    (Type::FlowMod, V10, V15, 14),
    (Type::PortMod, V10, V10, 15),
    (Type::MultipartRequest, V10, V10, 16),
    (Type::MultipartReply, V10, V10, 17),
    (Type::BarrierRequest, V10, V10, 18),
    (Type::BarrierReply, V10, V10, 19),
    (Type::QueueGetConfigRequest, V10, V10, 20),
    (Type::QueueGetConfigReply, V10, V10, 21),
    (Type::GroupMod, V11, V15, 15),
    (Type::PortMod, V11, V15, 16),
    (Type::TableMod, V11, V15, 17),
    (Type::MultipartRequest, V11, V15, 18),
    (Type::MultipartReply, V11, V15, 19),
    (Type::BarrierRequest, V11, V15, 20),
    (Type::BarrierReply, V11, V15, 21),
    (Type::QueueGetConfigRequest, V11, V13, 22),
    (Type::QueueGetConfigReply, V11, V13, 23),
    (Type::RoleRequest, V12, V15, 24),
    (Type::RoleReply, V12, V15, 25),
    (Type::GetAsyncRequest, V13, V15, 26),
    (Type::GetAsyncReply, V13, V15, 27),
    (Type::SetAsync, V13, V15, 28),
    (Type::MeterMod, V13, V15, 29),
    (Type::RoleStatus, V14, V15, 30),
    (Type::TableStatus, V14, V15, 31),
    (Type::RequestForward, V14, V15, 32),
    (Type::BundleControl, V14, V15, 33),
    (Type::BundleAdd, V14, V15, 34),
];

impl Type {
    pub(super) fn from_wire(version: Version, number: u8) -> Option<Type> {
        ROWS.iter()
            .find(|r| r.3 == number && (r.1..=r.2).contains(&version))
            .map(|r| r.0)
    }
    pub(super) fn to_wire(self, version: Version) -> Option<u8> {
        ROWS.iter()
            .find(|r| r.0 == self && (r.1..=r.2).contains(&version))
            .map(|r| r.3)
    }
}
