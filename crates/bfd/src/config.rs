//! `Interface.bfd`: what a user wants of a session.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

const DEFAULT_MULT: u8 = 3;
const DEFAULT_MIN_TX_MS: i32 = 100;
const DEFAULT_MIN_RX_MS: i32 = 1000;
/// What messages come from and go to where nobody says otherwise: addresses that are nobody's.
const DEFAULT_SRC: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const DEFAULT_DST: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 0);

/// The wishes of a user, valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Messages that may be missing in a row, `bfd.DetectMult`; not 0.
    pub mult: u8,
    /// Not more often than this a message is sent, ms; not 0.
    pub min_tx_ms: u64,
    /// Not more often than this a message is wanted, ms; not 0.
    pub min_rx_ms: u64,
    /// ... while the port is idle; 0: always as often.
    pub decay_min_rx_ms: u64,
    /// Packets of any kind that come in say that the path is good.
    pub forwarding_if_rx: bool,
    /// What is behind this end is broken: the peer is told so.
    pub cpath_down: bool,
    /// Messages go with the tunnel's OAM flag.
    pub oam: bool,
    /// Source of messages, if not the port's own address.
    pub src_mac: Option<[u8; 6]>,
    /// Destination of messages, if not the usual one.
    pub dst_mac: Option<[u8; 6]>,
    /// Source of messages.
    pub src_ip: Ipv4Addr,
    /// Destination of messages.
    pub dst_ip: Ipv4Addr,
    /// Which messages are for this session.
    pub filter: Filter,
}

/// Which of the packets that a port receives are messages for its session. Those to UDP port
/// [`UDP_PORT`](crate::UDP_PORT) are, if these agree, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Ethernet destination (`bfd_remote_dst_mac`); `None`: any.
    pub dst_mac: Option<[u8; 6]>,
    /// IP destination: this end's address, where a user has given one; `None`: any.
    pub dst_ip: Option<Ipv4Addr>,
    /// The tunnel's key has to be 0 (`check_tnl_key`).
    pub no_tunnel_key: bool,
}

impl Config {
    /// Reads `Interface.bfd`. `None`: there is to be no session. Values that make no sense count as not
    /// given; of addresses the log tells.
    pub fn read(map: &BTreeMap<String, String>) -> Option<Self> {
        let text = |key: &str| map.get(key).map_or("", String::as_str);
        // Whatever is not the opposite of the default is the default.
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

/// An Ethernet address that is one and says something.
fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|p| matches!(p.len(), 1 | 2))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && bytes != [0; 6]).then_some(bytes)
}
