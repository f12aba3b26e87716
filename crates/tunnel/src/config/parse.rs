//! Reads `Interface.options` into a configuration.

use super::number::{atoi, strtol, strtoull};
use super::{DEFAULT_TTL, Key, Local, PacketMode, TunnelConfig};
use crate::TunnelType;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bits of the type of service that are DSCP.
const DSCP_MASK: i64 = 0xfc;
/// Maximum number of SRv6 segments, as in Open vSwitch.
const MAX_SEGMENTS: usize = 6;

/// A refused configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// All faults, a line each, for `Interface.error` and the log.
    pub text: String,
}

/// Options by which a tunnel requests encryption by another program (`ovs-monitor-ipsec`).
const ENCRYPTION: [&str; 10] = [
    "ca_cert",
    "certificate",
    "local_cert",
    "local_key",
    "peer_cert",
    "private_key",
    "psk",
    "remote_cert",
    "remote_name",
    "use_ssl_cert",
];

fn is_encryption(key: &str) -> bool {
    ENCRYPTION.contains(&key) || key.starts_with("ipsec_")
}

/// An option that requests encryption, which this switch does not provide.
pub fn encryption_option(options: &BTreeMap<String, String>) -> Option<&str> {
    options.keys().map(String::as_str).find(|key| is_encryption(key))
}

/// A fault that ends parsing. Its text is in [`Parser::lines`].
struct Stop;

struct Parser<'a> {
    name: &'a str,
    ty: &'static str,
    config: TunnelConfig,
    remote_seen: Option<IpAddr>,
    remote_is_flow: bool,
    lines: Vec<String>,
}

/// Reads the options of interface `name`. Returns the configuration and a log line for each tolerated fault.
///
/// # Errors
/// [`Refused`], with all lines.
pub fn parse(
    name: &str,
    ty: TunnelType,
    options: &BTreeMap<String, String>,
) -> Result<(TunnelConfig, Vec<String>), Refused> {
    let mut p = Parser {
        name,
        ty: ty.name(),
        config: TunnelConfig::of(ty),
        remote_seen: None,
        remote_is_flow: false,
        lines: Vec::new(),
    };
    let done = options
        .iter()
        .try_for_each(|(key, value)| p.option(key, value))
        .and_then(|()| p.check(options));
    match done {
        Ok(()) => Ok((p.config, p.lines)),
        Err(Stop) => Err(Refused {
            text: p.lines.join("\n"),
        }),
    }
}

/// A value, or `None` for `flow`.
fn or_flow<T>(value: &str, read: impl FnOnce(&str) -> T) -> Option<T> {
    (value != "flow").then(|| read(value))
}

impl Parser<'_> {
    fn warn(&mut self, text: impl std::fmt::Display) {
        self.lines.push(format!("{}: {text}", self.name));
    }
    fn refuse(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        self.warn(text);
        Err(Stop)
    }

    /// Warns of a value that is no number, or too large for its header field: the field gets another number.
    fn expect(&mut self, key: &str, value: &str, base: u32, most: u64) {
        if !strtol(value, base).1 || strtoull(value, base) > most {
            self.warn(format_args!("{key}={value} is no number from 0 to {most}"));
        }
    }

    fn option(&mut self, key: &str, value: &str) -> Result<(), Stop> {
        let ty = self.config.ty;
        match key {
            "remote_ip" => self.remote(value)?,
            "local_ip" => self.local(value),
            "tos" if value == "inherit" => self.config.tos = None,
            "tos" => {
                let (tos, whole) = strtol(value, 0);
                match u8::try_from(tos & DSCP_MASK) {
                    Ok(dscp) if whole && i64::from(dscp) == tos => self.config.tos = Some(dscp),
                    _ => self.warn(format_args!("invalid TOS {value}")),
                }
            }
            "ttl" if value == "inherit" => self.config.ttl = None,
            "ttl" => {
                self.expect(key, value, 10, u8::MAX.into());
                let low = u8::try_from(atoi(value) & 0xff).unwrap_or(0);
                self.config.ttl = Some(if low == 0 { DEFAULT_TTL } else { low });
            }
            "dst_port" if ty.has_dst_port() => {
                self.expect(key, value, 10, u16::MAX.into());
                self.config.dst_port = u16::try_from(atoi(value) & 0xffff).unwrap_or(0);
            }
            "csum" if ty.has_csum() => {
                self.config.csum = value == "true";
                self.config.csum_optional = value == "false";
            }
            "seq" if ty.has_seq() => self.config.seq = value == "true",
            "df_default" => self.config.df = value != "false",
            // Keys and packet types are read at the end.
            "key" | "in_key" | "out_key" => {
                if value != "flow" {
                    self.expect(key, value, 0, ty.max_key());
                }
            }
            "packet_type" => {}
            // The caller decides whether a tunnel without encryption is allowed.
            _ if is_encryption(key) => {}
            "exts" if ty == TunnelType::Vxlan => {
                for ext in value.split(',').filter(|e| !e.is_empty()) {
                    match ext {
                        "gbp" => self.config.gbp = true,
                        "gpe" => self.config.gpe = true,
                        _ => self.warn(format_args!("unknown extension '{ext}'")),
                    }
                }
            }
            "egress_pkt_mark" => {
                self.expect(key, value, 10, u32::MAX.into());
                let low = strtoull(value, 10) & u64::from(u32::MAX);
                self.config.egress_pkt_mark = u32::try_from(low).ok();
            }
            "erspan_idx" | "erspan_ver" | "erspan_dir" | "erspan_hwid" => self.erspan(key, value)?,
            "payload_type" => {
                let known = match value {
                    "mpls" => Some(0x8847),
                    "ip" => Some(0x0800),
                    _ => match strtol(value, 0) {
                        (n, true) => u16::try_from(n).ok(),
                        _ => None,
                    },
                };
                match known {
                    Some(ethertype) => self.config.payload_ethertype = ethertype,
                    None => return self.refuse(format_args!("invalid payload_type {value}")),
                }
            }
            "srv6_segs" if ty == TunnelType::Srv6 => self.segments(value)?,
            _ => {
                let ty = self.ty;
                self.warn(format_args!("unknown {ty} argument '{key}'"));
            }
        }
        Ok(())
    }

    fn address(value: &str) -> Option<IpAddr> {
        match value.contains(':') {
            true => value.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            false => value.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        }
    }

    fn remote(&mut self, value: &str) -> Result<(), Stop> {
        if value == "flow" {
            self.remote_is_flow = true;
            return Ok(());
        }
        match Self::address(value) {
            Some(ip) if ip.is_multicast() => {
                self.refuse(format_args!("multicast remote_ip={value} not allowed"))
            }
            Some(ip) => {
                self.remote_seen = Some(ip);
                Ok(())
            }
            None => {
                let ty = self.ty;
                self.warn(format_args!("bad {ty} 'remote_ip'"));
                Ok(())
            }
        }
    }

    fn local(&mut self, value: &str) {
        self.config.local = match Self::address(value) {
            _ if value == "flow" => Local::Flow,
            Some(ip) if ip.is_unspecified() => Local::Any,
            Some(ip) => Local::Is(ip),
            None => {
                let ty = self.ty;
                self.warn(format_args!("bad {ty} 'local_ip'"));
                Local::Any
            }
        };
    }

    fn erspan(&mut self, key: &str, value: &str) -> Result<(), Stop> {
        let fits = |n: i64, most: i64| (0..=most).contains(&n);
        let e = &mut self.config.erspan;
        let wrong = match key {
            "erspan_idx" => {
                let idx = or_flow(value, |v| strtol(v, 16).0);
                e.idx = idx.and_then(|n| u32::try_from(n).ok());
                idx.is_some_and(|n| !fits(n, 0xf_ffff)).then_some("index")
            }
            "erspan_dir" => {
                let dir = or_flow(value, atoi);
                e.dir = dir.and_then(|n| u8::try_from(n).ok());
                dir.is_some_and(|n| !fits(n, 1)).then_some("direction")
            }
            "erspan_hwid" => {
                let hwid = or_flow(value, |v| strtol(v, 16).0);
                e.hwid = hwid.and_then(|n| u8::try_from(n).ok());
                hwid.is_some_and(|n| !fits(n, 0x3f)).then_some("hardware ID")
            }
            _ if value == "flow" => {
                // Packets of both versions may come, so all fields are the flow's.
                (e.ver, e.idx, e.dir, e.hwid) = (None, None, None, None);
                None
            }
            _ => {
                let ver = atoi(value);
                e.ver = u8::try_from(ver).ok();
                (ver != 1 && ver != 2).then_some("version")
            }
        };
        match wrong {
            Some(what) => self.refuse(format_args!("invalid erspan {what}: {value}")),
            None => Ok(()),
        }
    }

    fn segments(&mut self, value: &str) -> Result<(), Stop> {
        let all: Result<Vec<Ipv6Addr>, _> = value.split(',').map(|s| s.trim().parse()).collect();
        match all {
            Ok(all) if all.len() <= MAX_SEGMENTS => {
                self.config.segments = all;
                Ok(())
            }
            Ok(_) => self.refuse(format_args!(
                "too many srv6 segments in '{value}', at most {MAX_SEGMENTS}"
            )),
            Err(_) => {
                let ty = self.ty;
                self.refuse(format_args!("bad {ty} 'srv6_segs'"))
            }
        }
    }

    /// Checks options that depend on each other.
    fn check(&mut self, options: &BTreeMap<String, String>) -> Result<(), Stop> {
        self.mode(options.get("packet_type").map(String::as_str))?;
        let ty = self.ty;
        let remote = self.remote_seen.filter(|ip| !ip.is_unspecified());
        if remote.is_none() && !self.remote_is_flow {
            return self.refuse(format_args!("{ty} type requires valid 'remote_ip' argument"));
        }
        self.config.remote = remote;
        if self.config.local == Local::Flow && !self.remote_is_flow {
            return self.refuse(format_args!(
                "{ty} type requires 'remote_ip=flow' with 'local_ip=flow'"
            ));
        }
        if let (Some(remote), Local::Is(local)) = (remote, self.config.local)
            && remote.is_ipv4() != local.is_ipv4()
        {
            return self.refuse("'remote_ip' and 'local_ip' has to be of the same address family");
        }
        if self.config.ty == TunnelType::Srv6 {
            self.check_srv6()?;
        }
        let key = |name: &str| match options.get(name).or_else(|| options.get("key")) {
            None => Key::Absent,
            Some(value) => or_flow(value, |v| strtoull(v, 0)).map_or(Key::Flow, Key::Is),
        };
        self.config.in_key = key("in_key");
        self.config.out_key = key("out_key");
        Ok(())
    }

    /// The remote address must be the first segment.
    fn check_srv6(&mut self) -> Result<(), Stop> {
        match (self.config.segments.first(), self.config.remote) {
            (Some(first), Some(remote)) if IpAddr::V6(*first) != remote => {
                self.refuse("remote_ip does not match the first srv6 segment")
            }
            (_, Some(IpAddr::V4(_))) => self.refuse("srv6 needs an IPv6 'remote_ip'"),
            _ => Ok(()),
        }
    }

    fn mode(&mut self, configured: Option<&str>) -> Result<(), Stop> {
        let full_type = match (self.config.ty, self.config.gpe) {
            (TunnelType::Vxlan, true) => "VXLAN-GPE",
            (TunnelType::Vxlan, false) => "VXLAN (without GPE)",
            (ty, _) => ty.name(),
        };
        let cannot = |layer: &str| {
            format!(
                "legacy_{layer} configured on {full_type} tunnel that cannot carry {} traffic",
                layer.to_uppercase()
            )
        };
        self.config.mode = match configured {
            None => self.config.default_mode(),
            Some("legacy_l2") if !self.config.carries_l2() => return self.refuse(cannot("l2")),
            Some("legacy_l2") => PacketMode::LegacyL2,
            Some("legacy_l3") if !self.config.carries_l3() => return self.refuse(cannot("l3")),
            Some("legacy_l3") => PacketMode::LegacyL3,
            Some("ptap") => PacketMode::Aware,
            Some(other) => return self.refuse(format_args!("unknown packet_type '{other}'")),
        };
        Ok(())
    }
}
