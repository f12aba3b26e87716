//! Routers report that outer packets of tunnels are too long for a path: the path's MTU is learned.
//!
//! **Problem.** The kernel learns from such ICMP errors for its own sockets and tunnel devices only. Outer
//! packets of this switch come from neither. A UDP socket on the tunnel's port would not help: the kernel
//! looks for the socket with the quoted packet's source port.
//!
//! **Shape.** A raw socket gets a copy of these errors from the host's stack. So they may arrive by any
//! device, and by the internal port of a bridge. The host's firewall applies. [`heddle_tunnel::Routes`] has
//! the MTUs, and translations depend on them.
//!
//! **Forged errors.** An error counts only if it quotes outer headers of one of our tunnels, and the source
//! is our address. The destination has to be configured or in use. The smallest MTU is that of the kernel.

use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};
use std::{fs, io};

use heddle_sys::{Epoll, TooBigSocket};
use heddle_tunnel::TooBig;
use heddle_tunnel::routes::{PathLimits, PathReport};

use crate::switch::Switch;
use heddle_daemon::coverage::coverage;
use heddle_daemon::vlog::errno_text;

/// Errors that are handled in one go.
const BATCH: usize = 64;
/// Bytes of an error that are read. A router may quote 576 bytes of IPv4, or 1,280 of IPv6.
const BUFFER_BYTES: usize = 1280;

/// The sockets that receive these errors.
#[derive(Debug)]
pub(crate) struct PathErrors(Vec<TooBigSocket>);

impl PathErrors {
    /// Opens the sockets. Those that cannot be opened are left out.
    pub(crate) fn open() -> Self {
        let open = |v6| match TooBigSocket::new(v6) {
            Ok(socket) => Some(socket),
            Err(error) => {
                let family = if v6 { "IPv6" } else { "IPv4" };
                log::info!(
                    target: "tunnel",
                    "ICMP errors about outer {family} packets that are too long are ignored ({})", errno_text(&error)
                );
                None
            }
        };
        Self([false, true].into_iter().filter_map(open).collect())
    }

    pub(crate) fn add_to(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        self.0.iter().try_for_each(|s| epoll.add(s.as_raw_fd(), token))
    }
}

impl Switch {
    /// Reads errors, and learns the MTUs that they report.
    pub(crate) fn learn_path_mtus(&self, errors: &PathErrors) {
        let snapshot = self.ofproto.pipeline().snapshot();
        let mut buffer = [0; BUFFER_BYTES];
        let mut reports = Vec::new();
        let mut routers = Vec::new();
        // With 1 the minimum is used instead of the reported MTU, with 2 and 3 errors are ignored.
        let mode = setting("ipv4/ip_no_pmtu_disc", 0);
        for socket in &errors.0 {
            for _ in 0..BATCH {
                let Some((len, router)) = socket.receive(&mut buffer) else {
                    break;
                };
                let Some(packet) = buffer.get(..len) else { continue };
                let error = match socket.is_v6() {
                    true => TooBig::parse_v6(packet),
                    false => TooBig::parse_v4(packet),
                };
                let Some(error) = error else { continue };
                let Some(is_configured) = snapshot.tunnels.sends(&error) else {
                    continue;
                };
                let mtu_bytes = match (socket.is_v6(), mode) {
                    (true, _) | (false, 0) => error.mtu_bytes,
                    (false, 1) => 0,
                    (false, _) => continue,
                };
                reports.push(PathReport {
                    source: error.source,
                    destination: error.destination,
                    mtu_bytes,
                    is_configured,
                });
                routers.push((error.destination, router));
            }
        }
        if reports.is_empty() {
            return;
        }
        let seconds = |name| Duration::from_secs(setting(name, 600).into());
        let limits = PathLimits {
            min_v4_bytes: setting("ipv4/route/min_pmtu", 552),
            v4_lifetime: seconds("ipv4/route/mtu_expires"),
            v6_lifetime: seconds("ipv6/route/mtu_expires"),
        };
        let routes = &self.ofproto.pipeline().underlay().routes;
        let learned = routes.learn_path_mtus(&reports, &limits, Instant::now());
        if learned.is_empty() {
            return;
        }
        // Offloaded flows get the new MTU, too.
        self.datapath.revalidate_soon();
        for path in learned {
            coverage!("tunnel_path_mtu");
            let router = routers.iter().find(|(dst, _)| *dst == path.destination);
            let router = router.map(|(_, router)| router.to_string()).unwrap_or_default();
            log::info!(
                target: "tunnel", per_min = 10, burst = 10;
                "the path to {} by {} carries packets of {} bytes (ICMP error of {router})",
                path.destination, path.device, path.mtu_bytes
            );
        }
    }
}

/// A number of the kernel's settings, or its default.
fn setting(name: &str, default: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default();
    text.trim().parse().unwrap_or(default)
}
