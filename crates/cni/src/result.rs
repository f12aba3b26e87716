//! Results of ADD: reads those of other plug-ins, writes this one's, in any version.

use crate::conf::mac_text;
use crate::error::{Code, Failure, fail};
use crate::kind::Choice;
use heddle_sys::net_config::Route;
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    pub(crate) address: IpAddr,
    pub(crate) prefix_len: u8,
    pub(crate) gateway: Option<IpAddr>,
}

/// The result of an address plug-in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) ips: Vec<Ip>,
    /// Routes as the plug-in wrote them.
    routes: Vec<Value>,
    dns: Option<Value>,
}

/// The device that a pod has got.
#[derive(Clone, Debug)]
pub(crate) struct Made<'a> {
    /// Name of the switch's port.
    pub(crate) port: &'a str,
    /// Name in the pod.
    pub(crate) ifname: &'a str,
    pub(crate) netns: &'a str,
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu_bytes: Option<u32>,
    /// Path of a vhost-user port's socket.
    pub(crate) socket: Option<&'a str>,
    /// PCI address of a device of the host.
    pub(crate) pci: Option<&'a str>,
    pub(crate) choice: Choice,
}

impl Made<'_> {
    /// The plug-in's own part of the result.
    fn own(&self) -> Value {
        json!({"kind": self.choice.kind.name(), "why": self.choice.why, "port": self.port})
    }
}

impl Addresses {
    /// Reads the result of a plug-in.
    pub(crate) fn read(result: &Value) -> Result<Self, Failure> {
        let bad = |what: &str| Failure::new(Code::Delegate, format!("a result cannot be read: {what}"));
        let list = |key: &str| match result.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list.clone()),
            Some(_) => Err(bad(key)),
        };
        let mut ips = Vec::new();
        for ip in list("ips")? {
            let text = |key: &str| ip.get(key).and_then(Value::as_str);
            let (address, prefix_len) = text("address")
                .and_then(prefix)
                .ok_or_else(|| bad(&ip.to_string()))?;
            let gateway = match text("gateway") {
                None | Some("") => None,
                Some(gateway) => Some(gateway.parse().map_err(|_| bad(&ip.to_string()))?),
            };
            ips.push(Ip {
                address,
                prefix_len,
                gateway,
            });
        }
        let all = Self {
            ips,
            routes: list("routes")?,
            dns: result.get("dns").cloned(),
        };
        match all.routes.iter().find(|r| all.route(r).is_none()) {
            Some(route) => Err(bad(&route.to_string())),
            None => Ok(all),
        }
    }

    /// The routes to give to the pod's device.
    pub(crate) fn routes(&self) -> Vec<Route> {
        self.routes.iter().filter_map(|r| self.route(r)).collect()
    }

    fn route(&self, route: &Value) -> Option<Route> {
        let (dst, dst_len) = prefix(route.get("dst")?.as_str()?)?;
        let number = |key: &str| {
            route
                .get(key)
                .and_then(Value::as_u64)
                .and_then(|n| u32::try_from(n).ok())
        };
        let gateway = match route.get("gw").and_then(Value::as_str) {
            Some(text) if !text.is_empty() => Some(text.parse().ok()?),
            // A route without a gateway uses that of the addresses.
            _ => self
                .ips
                .iter()
                .find(|ip| ip.address.is_ipv4() == dst.is_ipv4())
                .and_then(|ip| ip.gateway),
        };
        let scope = number("scope").and_then(|s| u8::try_from(s).ok());
        Some(Route {
            dst,
            dst_len,
            // A scope of the link has no gateway.
            gateway: gateway.filter(|_| scope.is_none_or(|s| s < 253)),
            mtu_bytes: number("mtu").filter(|n| *n > 0),
            advmss: number("advmss").filter(|n| *n > 0),
            priority: number("priority").filter(|n| *n > 0),
            table: number("table").filter(|n| *n > 0),
            scope,
        })
    }

    /// The result of an ADD.
    pub(crate) fn result(&self, version: &str, made: &Made<'_>, dns: Option<&Value>) -> Value {
        let mut port = json!({"name": made.port});
        let mut device = json!({"name": made.ifname, "sandbox": made.netns});
        if let Some(mac) = made.mac {
            device["mac"] = json!(mac_text(mac));
        }
        if version == "1.1.0" {
            if let Some(mtu) = made.mtu_bytes {
                device["mtu"] = json!(mtu);
            }
            if let Some(pci) = made.pci {
                device["pciID"] = json!(pci);
            }
            if let Some(socket) = made.socket {
                port["socketPath"] = json!(socket);
                device["socketPath"] = json!(socket);
            }
        }
        let ips: Vec<Value> = self.ips.iter().map(|ip| ip.json(version)).collect();
        let mut result = json!({"cniVersion": version, "interfaces": [port, device], "ips": ips});
        if !self.routes.is_empty() {
            result["routes"] = Value::Array(self.routes.clone());
        }
        let is_there = |v: &&Value| !v.is_null() && **v != json!({});
        if let Some(dns) = self.dns.as_ref().filter(is_there).or(dns.filter(is_there)) {
            result["dns"] = dns.clone();
        }
        result["heddle"] = made.own();
        result
    }
}

impl Ip {
    fn json(&self, version: &str) -> Value {
        let mut out = json!({"address": format!("{}/{}", self.address, self.prefix_len), "interface": 1});
        if let Some(gateway) = self.gateway {
            out["gateway"] = json!(gateway.to_string());
        }
        if version.starts_with("0.") {
            out["version"] = json!(if self.address.is_ipv4() { "4" } else { "6" });
        }
        out
    }
}

/// Parses `10.1.0.2/24`; an address alone has the full prefix.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, len) = text.split_once('/').unwrap_or((text, ""));
    let ip: IpAddr = ip.parse().ok()?;
    let all = match ip {
        IpAddr::V4(_) => Ipv4Addr::BITS,
        IpAddr::V6(_) => Ipv6Addr::BITS,
    };
    let len: u32 = if len.is_empty() { all } else { len.parse().ok()? };
    Some((ip, u8::try_from(len).ok().filter(|_| len <= all)?))
}

/// The earlier result of a chain after the exchange, with the name of the switch's port as the other end.
pub(crate) fn exchanged(mut result: Map<String, Value>, old: &str, made: &Made<'_>) -> Value {
    if let Some(Value::Array(interfaces)) = result.get_mut("interfaces") {
        for interface in interfaces {
            let is_inside = interface
                .get("sandbox")
                .and_then(Value::as_str)
                .is_some_and(|s| !s.is_empty());
            if !is_inside && interface.get("name").and_then(Value::as_str) == Some(old) {
                // The old entry's MAC address is that of a device that is gone.
                *interface = json!({"name": made.port});
            }
        }
    }
    result.insert("heddle".to_owned(), made.own());
    Value::Object(result)
}

/// The result that an earlier plug-in of a chain left.
pub(crate) fn previous(raw: &Map<String, Value>) -> Result<Map<String, Value>, Failure> {
    match raw.get("prevResult") {
        Some(Value::Object(result)) => Ok(result.clone()),
        Some(_) => fail(Code::Conf, "prevResult is not an object"),
        None => fail(Code::Conf, "prevResult is missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;

    fn choice(kind: Kind) -> Choice {
        Choice {
            kind,
            why: "a test".into(),
        }
    }

    #[test]
    fn from_one_version_to_another() {
        let theirs = json!({"ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00::2/64"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd01::/16", "gw": "fd00::1", "mtu": 1300}], "dns": {}});
        let read = Addresses::read(&theirs).unwrap();
        let routes = read.routes();
        assert_eq!(routes[0].gateway, Some("10.1.0.1".parse().unwrap()));
        assert_eq!((routes[1].dst_len, routes[1].mtu_bytes), (16, Some(1300)));
        let made = Made {
            port: "p",
            ifname: "eth0",
            netns: "/n",
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu_bytes: Some(1400),
            socket: None,
            pci: None,
            choice: choice(Kind::Internal),
        };
        let out = read.result("0.4.0", &made, Some(&json!({"nameservers": ["10.0.0.1"]})));
        assert_eq!(
            out["ips"][1],
            json!({"address": "fd00::2/64", "interface": 1, "version": "6"})
        );
        assert_eq!(
            out["interfaces"][1],
            json!({"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/n"})
        );
        assert_eq!(out["dns"]["nameservers"][0], "10.0.0.1");
        let out = read.result("1.1.0", &made, None);
        assert_eq!(out["interfaces"][1]["mtu"], 1400);
        assert!(out["ips"][0].get("version").is_none() && out.get("dns").is_none());
    }

    #[test]
    fn nonsense_is_named() {
        for bad in [
            json!({"ips": 7}),
            json!({"ips": [{}]}),
            json!({"ips": [{"address": "10.0.0.1/33"}]}),
            json!({"ips": [{"address": "10.0.0.1/24", "gateway": "x"}]}),
            json!({"routes": [{"dst": "x"}]}),
            json!({"routes": ["10.0.0.0/8"]}),
        ] {
            assert_eq!(Addresses::read(&bad).unwrap_err().code, 106, "{bad}");
        }
        assert!(Addresses::read(&Value::Null).unwrap().ips.is_empty());
    }

    #[test]
    fn the_other_end_has_another_name() {
        let before = json!({"interfaces": [{"name": "cni0"}, {"name": "v1", "mac": "02::"},
            {"name": "eth0", "sandbox": "/n"}]});
        let made = Made {
            port: "p",
            ifname: "eth0",
            netns: "",
            mac: None,
            mtu_bytes: None,
            socket: None,
            pci: None,
            choice: choice(Kind::Veth),
        };
        let Value::Object(before) = before else {
            unreachable!()
        };
        let after = exchanged(before, "v1", &made);
        assert_eq!(
            after["interfaces"],
            json!([{"name": "cni0"}, {"name": "p"}, {"name": "eth0", "sandbox": "/n"}])
        );
    }
}
