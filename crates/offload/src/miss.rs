//! Miss devices: by them, packets that no back end forwards reach the switch.
//!
//! Each diverted device has a *miss device*: a tap that only the kernel's filters send to. The switch reads
//! from it the packets that the port received and no filter forwarded, with GSO packets and unfinished
//! checksums unchanged. With one tap per port, a packet needs no bytes for its port. Each tap has its own
//! queue, so misses of one port take no room of another port. The port reads the tap as a receive queue.
//!
//! The miss devices of a switch are one group of devices ([`group_of`]). They are removed together when the
//! process ends, or if it was killed, when the next one starts. Otherwise the kernel would remove each when
//! it is closed, and wait for an RCU grace period each time. The next process would wait until its ports are
//! free.

use heddle_sys::{LinkCtl, TapLinks, TapOpen, TapQueue};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait of all claims for the end of an earlier process.
pub(crate) const CLAIM_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval between attempts to claim a device.
const CLAIM_INTERVAL: Duration = Duration::from_millis(10);

/// Name of the miss device of device `ifindex`.
fn miss_name(ifindex: u32) -> String {
    format!("hdm{ifindex}")
}

/// Claims a device for this process, until the returned socket is closed. The claim is an abstract socket
/// address in the network namespace, which the kernel frees with its process. The kernel may still be ending
/// an earlier process, so a claim waits. `timeout` is the time that all claims together may still wait.
pub(crate) fn claim(ifindex: u32, timeout: &mut Duration) -> io::Result<UnixDatagram> {
    claim_name(&format!("heddle-divert-{ifindex}"), timeout)
}

/// Claims a name, as [`claim`] does.
pub(crate) fn claim_name(name: &str, timeout: &mut Duration) -> io::Result<UnixDatagram> {
    let name = SocketAddr::from_abstract_name(name)?;
    loop {
        match UnixDatagram::bind_addr(&name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && !timeout.is_zero() => {
                std::thread::sleep(CLAIM_INTERVAL);
                *timeout = timeout.saturating_sub(CLAIM_INTERVAL);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another switch on this machine has the device",
                ));
            }
            done => return done,
        }
    }
}

/// Device group (`IFLA_GROUP`) of the miss devices of the switch with this owner number.
pub(crate) fn group_of(owner: u64) -> u32 {
    // Half of a random number. Group 0 is every device's default; some tools print large ones as negative.
    #[allow(clippy::cast_possible_truncation)]
    let low = owner as u32;
    low & 0x3fff_ffff | 0x4000_0000
}

/// Removes all miss devices of a group.
pub(crate) fn remove_miss_devices(group: u32) {
    if let Err(error) = TapLinks::new(None).and_then(|links| links.remove_group(group)) {
        log::debug!(target: "netdev_offload", "miss devices are removed one by one ({error})");
    }
}

/// The miss device of one device. The kernel removes it when its last queue is closed.
#[derive(Debug)]
pub(crate) struct MissDevice {
    /// The queue that the port reads.
    pub(crate) tap: Arc<TapQueue>,
    /// Interface index of the miss device.
    pub(crate) ifindex: u32,
}

impl MissDevice {
    /// Makes the miss device of device `ifindex`.
    pub(crate) fn make(ifindex: u32, group: u32) -> io::Result<Self> {
        let name = miss_name(ifindex);
        let tap = TapOpen::new(&name).new_only(true).open()?;
        tap.enable_offloads();
        // The host's stack must not send on the miss device.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        let index = LinkCtl::new()?.ifindex(&name)?;
        TapLinks::new(None)?.bring_up(index, group)?;
        Ok(Self {
            tap: Arc::new(tap),
            ifindex: index,
        })
    }
}
