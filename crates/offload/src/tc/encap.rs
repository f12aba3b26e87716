//! Outer headers of a rule as the action `tunnel_key`.
//!
//! The action gives the packet a tunnel key, and a tunnel device of the kernel ([`super::tunnel_devices`])
//! writes the headers. Addresses, identifier, options, type of service, time to live and the don't-fragment
//! bit are those of the rule. The kernel chooses the UDP source port by its own hash, and the Ethernet
//! addresses by its own route and neighbour.
//!
//! **Deviation** from RFC 8926, section 3.4: the header's bit "critical options present" is not set, since
//! the action has no attribute for it. The options themselves have the bit. Open vSwitch's filters do the
//! same.
//!
//! **Checksums.** The device writes an outer UDP checksum, unless the action has `nocsum`.

use super::attrs::{self, TunnelKey};
use super::tunnel_devices::TunnelId;
use crate::Why;
use heddle_sys::tunnel_links::TunnelLinkKind;
use heddle_tunnel::{TunnelKind, TunnelPush};
use netlink_packet_route::tc::TcAction;
use std::net::IpAddr;

/// Offset of the IP header: outer packets have no tag.
const L3: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// First byte of an IPv4 header without options.
const NO_IP_OPTIONS: u8 = 0x45;
const UDP: u8 = 17;
const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const DONT_FRAGMENT: u8 = 0x40;
/// First byte of a VXLAN header: the identifier is valid, and there are no extensions.
const VXLAN_FLAGS: u8 = 0x08;
/// Geneve: units of the option length, bytes; a frame of Ethernet is inside.
const GENEVE_UNIT: usize = 4;
/// Geneve: an option is critical.
const GENEVE_CRITICAL: u8 = 0x40;
const GENEVE_ETHERNET: [u8; 2] = [0x65, 0x58];
/// Linux that can set the don't-fragment bit (`TCA_TUNNEL_KEY_NO_FRAG`).
const DONT_FRAGMENT_KERNEL: (u32, u32) = (6, 4);

const OTHER: Why = Why::Tunnel("has headers that tc's tunnel_key does not write");

/// The tunnel of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Encap {
    pub(super) kind: TunnelLinkKind,
    pub(super) key: TunnelKey,
}

/// Splits `N` bytes off.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], Why> {
    let (first, behind) = rest.split_first_chunk().ok_or(OTHER)?;
    *rest = behind;
    Ok(first)
}

impl Encap {
    /// The tunnel whose headers these are. `kernel`: the version of Linux.
    ///
    /// # Errors
    /// The headers have something that the action, or the kernel, does not write.
    pub(super) fn of(push: &TunnelPush, kernel: (u32, u32)) -> Result<Encap, Why> {
        let mut rest = push.header.as_slice();
        let ethernet: &[u8; L3] = take(&mut rest)?;
        let (src, dst, tos, ttl, dont_fragment): (IpAddr, IpAddr, u8, u8, bool);
        match [ethernet[12], ethernet[13]] {
            IPV4 => {
                let ip: &[u8; IPV4_LEN] = take(&mut rest)?;
                if ip[0] != NO_IP_OPTIONS || ip[9] != UDP {
                    return Err(OTHER);
                }
                (tos, ttl, dont_fragment) = (ip[1], ip[8], ip[6] & DONT_FRAGMENT != 0);
                src = [ip[12], ip[13], ip[14], ip[15]].into();
                dst = [ip[16], ip[17], ip[18], ip[19]].into();
            }
            IPV6 => {
                let ip: &[u8; IPV6_LEN] = take(&mut rest)?;
                let first = u32::from_be_bytes([ip[0], ip[1], ip[2], ip[3]]);
                let label = first & 0x000f_ffff;
                if label != 0 || ip[6] != UDP {
                    return Err(OTHER);
                }
                tos = u8::try_from(first >> 20 & 0xff).unwrap_or(0);
                (ttl, dont_fragment) = (ip[7], false);
                let mut addresses = [[0; 16]; 2];
                addresses[0].copy_from_slice(&ip[8..24]);
                addresses[1].copy_from_slice(&ip[24..40]);
                (src, dst) = (addresses[0].into(), addresses[1].into());
            }
            _ => return Err(OTHER),
        }
        if dont_fragment && kernel < DONT_FRAGMENT_KERNEL {
            return Err(Why::Tunnel(
                "sets the don't-fragment bit, which tc does since Linux 6.4 (df_default=false turns it off)",
            ));
        }
        // The kernel takes 0 as a wish for its default.
        if ttl == 0 {
            return Err(OTHER);
        }
        let udp: &[u8; UDP_LEN] = take(&mut rest)?;
        let head: &[u8; 8] = take(&mut rest)?;
        let id = u32::from_be_bytes([0, head[4], head[5], head[6]]);
        let kind = match push.kind {
            TunnelKind::Vxlan if head[0] == VXLAN_FLAGS && head[1..4] == [0; 3] && head[7] == 0 => {
                TunnelLinkKind::Vxlan
            }
            // Version 0, and no control packet.
            TunnelKind::Geneve
                if usize::from(head[0]) * GENEVE_UNIT == rest.len()
                    && head[1] & !GENEVE_CRITICAL == 0
                    && head[2..4] == GENEVE_ETHERNET =>
            {
                TunnelLinkKind::Geneve
            }
            _ => return Err(OTHER),
        };
        if kind == TunnelLinkKind::Vxlan && !rest.is_empty() {
            return Err(OTHER);
        }
        let mut options = Vec::new();
        while !rest.is_empty() {
            let option: &[u8; 4] = take(&mut rest)?;
            let len = usize::from(option[3] & 0x1f) * GENEVE_UNIT;
            let (data, behind) = rest.split_at_checked(len).ok_or(OTHER)?;
            // The kernel takes no option without data.
            if data.is_empty() {
                return Err(OTHER);
            }
            rest = behind;
            options.push(([option[0], option[1]], option[2], data.to_vec()));
        }
        let key = TunnelKey {
            src,
            dst,
            id,
            port: u16::from_be_bytes([udp[2], udp[3]]),
            tos,
            ttl,
            csum: push.csum,
            dont_fragment,
            options,
        };
        Ok(Encap { kind, key })
    }
    /// The tunnels that share a device with this one.
    pub(super) fn id(&self) -> TunnelId {
        (self.kind, self.key.port)
    }
    /// The action that gives a packet this tunnel's key.
    pub(super) fn action(&self) -> TcAction {
        attrs::tunnel_key_set(&self.key)
    }
}
