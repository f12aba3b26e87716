//! Counters that drivers keep of the network devices in the process's own namespace: collisions, framing
//! errors and the like, which no worker sees.
//!
//! One dump of all devices over rtnetlink(7) serves every port for [`MAX_AGE`]. A node has thousands of
//! ports, and the database needs the counters of all of them at once. Any thread may call; only one dumps at
//! a time.

use crate::netlink::Requests;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage::{GetLink, NewLink};
use netlink_packet_route::link::{LinkAttribute, LinkMessage, Stats64};
use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Counters of one device since it was made (`IFLA_STATS64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Collisions while sending.
    pub collisions: u64,
    /// Frames received with a wrong checksum.
    pub rx_crc_errors: u64,
    /// Frames received with a wrong alignment.
    pub rx_frame_errors: u64,
    /// Frames that the receiver missed.
    pub rx_missed_errors: u64,
    /// Frames received for a group.
    pub rx_multicast: u64,
    /// Frames that overran the receiver's ring.
    pub rx_over_errors: u64,
}

/// Counters of a transmit queue of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueCounts {
    /// Number of the queue.
    pub queue: u32,
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that it had no room for.
    pub dropped: u64,
    /// Time since it was made, milliseconds.
    pub age_ms: u64,
}

/// Longest time that a dump is used.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The counters of all devices by interface index, and when they were read.
struct Dump {
    at: Instant,
    devices: HashMap<u32, DeviceCounters>,
}

static LAST: Mutex<Option<Dump>> = Mutex::new(None);

/// The counters of the device with this index, at most a second old. `None`: no such device, or no reply.
pub fn device_counters(ifindex: u32) -> Option<DeviceCounters> {
    let mut last = LAST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // A device that the dump lacks may have been made since.
    let is_of_use = |dump: &Dump| dump.at.elapsed() < MAX_AGE && dump.devices.contains_key(&ifindex);
    if !last.as_ref().is_some_and(is_of_use) {
        let devices = dump().unwrap_or_else(|error| {
            log::debug!("the counters of network devices cannot be read: {error}");
            HashMap::new()
        });
        let at = Instant::now();
        *last = Some(Dump { at, devices });
    }
    last.as_ref()?.devices.get(&ifindex).copied()
}

fn dump() -> io::Result<HashMap<u32, DeviceCounters>> {
    let mut devices = HashMap::new();
    Requests::new(None)?.ask(GetLink(LinkMessage::default()), NLM_F_DUMP, |answer| {
        if let NewLink(message) = answer {
            let stats = message.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::Stats64(stats) => Some(counters(stats)),
                _ => None,
            });
            devices.extend(stats.map(|stats| (message.header.index, stats)));
        }
    })?;
    Ok(devices)
}

fn counters(stats: &Stats64) -> DeviceCounters {
    DeviceCounters {
        collisions: stats.collisions,
        rx_crc_errors: stats.rx_crc_errors,
        rx_frame_errors: stats.rx_frame_errors,
        rx_missed_errors: stats.rx_missed_errors,
        rx_multicast: stats.multicast,
        rx_over_errors: stats.rx_over_errors,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loopback_device_has_counters_and_an_unknown_one_has_none() {
        let index = crate::LinkCtl::new().unwrap().ifindex("lo").unwrap();
        assert!(super::device_counters(index).is_some());
        assert_eq!(super::device_counters(u32::MAX), None);
    }
}
