//! The back end: the switch's side of vhost-user.
//!
//! [`Device`] is what a port implements; sessions call it.

mod device;
mod link;

pub use device::{Device, MAX_QUEUE_PAIRS, Notify, Offer, Queue, RingSetup, StartError};
pub use link::Link;

use crate::message::ProtocolFeatures;

/// The protocol features that sessions implement. Postcopy migration, cross-endian rings and in-band notifications are not among
/// them.
pub const PROTOCOL: ProtocolFeatures = ProtocolFeatures::MQ
    .union(ProtocolFeatures::LOG_SHMFD)
    .union(ProtocolFeatures::RARP)
    .union(ProtocolFeatures::REPLY_ACK)
    .union(ProtocolFeatures::MTU)
    .union(ProtocolFeatures::BACKEND_REQ)
    .union(ProtocolFeatures::CONFIG)
    .union(ProtocolFeatures::INFLIGHT_SHMFD)
    .union(ProtocolFeatures::RESET_DEVICE)
    .union(ProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(ProtocolFeatures::STATUS);
