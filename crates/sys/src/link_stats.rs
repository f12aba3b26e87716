//! What the kernel counts of a network device (rtnetlink(7), `IFLA_STATS64`).

use crate::netlink::Requests;
use netlink_packet_core::NLM_F_ACK;
use netlink_packet_route::RouteNetlinkMessage::{GetLink, NewLink};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use std::io;

/// Counts of what a device received, and of collisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Multicast packets received.
    pub multicast: u64,
    /// Collisions while sending.
    pub collisions: u64,
    /// Received with a wrong checksum of the frame.
    pub crc_errors: u64,
    /// Received with a wrong alignment.
    pub frame_errors: u64,
    /// The device's ring overflowed.
    pub over_errors: u64,
    /// Missed by the device.
    pub missed_errors: u64,
}

impl LinkStats {
    /// Of the device with that index in the caller's network namespace.
    ///
    /// # Errors
    /// `ENODEV`; no descriptors left.
    pub fn of(ifindex: u32) -> io::Result<Self> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        let mut found = None;
        Requests::new(None)?.ask(GetLink(request), NLM_F_ACK, |answer| {
            if let NewLink(message) = answer {
                found = message.attributes.iter().find_map(|a| match a {
                    LinkAttribute::Stats64(s) => Some(Self {
                        multicast: s.multicast,
                        collisions: s.collisions,
                        crc_errors: s.rx_crc_errors,
                        frame_errors: s.rx_frame_errors,
                        over_errors: s.rx_over_errors,
                        missed_errors: s.rx_missed_errors,
                    }),
                    _ => None,
                });
            }
        })?;
        found.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_some() {
        assert_eq!(LinkStats::of(1).unwrap().collisions, 0);
        assert!(LinkStats::of(u32::MAX >> 1).is_err());
    }
}
