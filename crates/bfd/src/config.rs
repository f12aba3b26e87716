//! `Interface.bfd`: the configuration of a session.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

const DEFAULT_MULT: u8 = 3;
const DEFAULT_MIN_TX_MS: i32 = 100;
const DEFAULT_MIN_RX_MS: i32 = 1000;
/// Default addresses of messages: link-local ones, as in Open vSwitch.
const DEFAULT_SRC: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const DEFAULT_DST: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 0);

/// A valid configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Number of missing messages in a row after which the path is broken (`bfd.DetectMult`); not 0.
    pub mult: u8,
    /// Shortest interval of sent messages, ms; not 0.
    pub min_tx_ms: u64,
    /// Shortest interval of received messages, ms; not 0.
    pub min_rx_ms: u64,
    /// Shortest interval of received messages while the port is idle, ms; 0: `min_rx_ms`.
    pub decay_min_rx_ms: u64,
    /// Packets of any kind that come in keep the port forwarding.
    pub forwarding_if_rx: bool,
    /// The path behind this end is broken, and messages report that to the peer.
    pub cpath_down: bool,
    /// Messages are sent with the tunnel's OAM flag.
    pub oam: bool,
    /// Source of messages; `None`: the port's own address.
    pub src_mac: Option<[u8; 6]>,
    /// Destination of messages; `None`: Open vSwitch's default.
    pub dst_mac: Option<[u8; 6]>,
    /// Source of messages.
    pub src_ip: Ipv4Addr,
    /// Destination of messages.
    pub dst_ip: Ipv4Addr,
    /// Selects the messages for this session.
    pub filter: Filter,
}

/// Selects the messages for a session among the packets that its port receives. They go to UDP port
/// [`UDP_PORT`](crate::UDP_PORT) and match all of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Ethernet destination (`bfd_remote_dst_mac`); `None`: any.
    pub dst_mac: Option<[u8; 6]>,
    /// IP destination: this end's address, if it is configured; `None`: any.
    pub dst_ip: Option<Ipv4Addr>,
    /// The tunnel's key has to be 0 (`check_tnl_key`).
    pub no_tunnel_key: bool,
}

impl Config {
    /// Reads `Interface.bfd`. `None`: no session is configured. Invalid values are ignored; invalid IP
    /// addresses are logged.
    pub fn read(map: &BTreeMap<String, String>) -> Option<Self> {
        let text = |key: &str| map.get(key).map_or("", String::as_str);
        // Only `true` is true, as in Open vSwitch.
        let is = |key: &str| text(key).eq_ignore_ascii_case("true");
        let int = |key: &str, default: i32| text(key).trim().parse::<i32>().unwrap_or(default);
        if !is("enable") {
            return None;
        }
        let interval = |key: &str, default: i32| u64::try_from(int(key, default).max(1)).unwrap_or(1);
        let ip = |key: &str, default: Ipv4Addr| match text(key) {
            "" => default,
            given => given.parse().unwrap_or_else(|_| {
                log::error!(target: "bfd", per_min = 20, burst = 20; "\"{given}\" is not a valid IP address");
                default
            }),
        };
        let src_ip = ip("bfd_src_ip", DEFAULT_SRC);
        Some(Self {
            mult: u8::try_from(int("mult", DEFAULT_MULT.into()))
                .ok()
                .filter(|mult| *mult != 0)
                .unwrap_or(DEFAULT_MULT),
            min_tx_ms: interval("min_tx", DEFAULT_MIN_TX_MS),
            min_rx_ms: interval("min_rx", DEFAULT_MIN_RX_MS),
            decay_min_rx_ms: u64::try_from(int("decay_min_rx", 0)).unwrap_or(0),
            forwarding_if_rx: is("forwarding_if_rx"),
            cpath_down: is("cpath_down"),
            oam: is("oam"),
            src_mac: mac(text("bfd_local_src_mac")),
            dst_mac: mac(text("bfd_local_dst_mac")),
            src_ip,
            dst_ip: ip("bfd_dst_ip", DEFAULT_DST),
            filter: Filter {
                dst_mac: mac(text("bfd_remote_dst_mac")),
                dst_ip: (src_ip != DEFAULT_SRC).then_some(src_ip),
                no_tunnel_key: is("check_tnl_key"),
            },
        })
    }
}

/// A valid Ethernet address that is not zero.
fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|p| matches!(p.len(), 1 | 2))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && bytes != [0; 6]).then_some(bytes)
}
