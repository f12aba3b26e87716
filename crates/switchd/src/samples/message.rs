//! A local sample as readers get it: the members of a JSON object.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{SystemTime, UNIX_EPOCH};

use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_flow::key::frag;
use heddle_ofproto::sampling::LocalSample;
use serde_json::json;

/// Maximum number of VLAN tags that are shown.
const MAX_SHOWN_VLANS: u8 = 2;

/// The members of the sample's object, without braces. `port`: name of the input port.
pub(super) fn text(sample: &LocalSample<'_>, port: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let object = json!({
        "time": since.as_secs_f64(),
        "group": sample.group,
        "domain": sample.domain,
        "point": sample.point,
        "cookie": hex(&sample.cookie()),
        "probability": sample.probability,
        "port": port,
        "length": sample.total_len,
        "packet": summary(&key_of(sample)),
        "bytes": hex(sample.bytes),
    });
    let text = object.to_string();
    text.strip_prefix('{')
        .and_then(|t| t.strip_suffix('}'))
        .unwrap_or_default()
        .to_owned()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn key_of(sample: &LocalSample<'_>) -> FlowKey {
    let mut key = FlowKey::default();
    let hint = Hint {
        total_len: sample.total_len,
        packet_type: sample.packet_type,
        vlan_limit: MAX_SHOWN_VLANS,
    };
    extract(sample.bytes, &hint, &mut key);
    key
}

/// EtherTypes and protocols with a text of their own.
const IP: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

/// One line about the packet: protocol, addresses and ports.
fn summary(key: &FlowKey) -> String {
    let mut text = String::new();
    for vlan in key.vlans.iter().filter(|v| v.tpid != 0) {
        // Writing to a string cannot fail.
        let _ = write!(text, "vlan {} ", vlan.tci & 0xfff);
    }
    text + &match key.dl_type {
        IP => {
            let (from, to) = (Ipv4Addr::from(key.nw_src), Ipv4Addr::from(key.nw_dst));
            ip(key, &from.to_string(), &to.to_string())
        }
        IPV6 => {
            let (from, to) = (Ipv6Addr::from(key.ipv6_src), Ipv6Addr::from(key.ipv6_dst));
            ip(key, &format!("[{from}]"), &format!("[{to}]"))
        }
        ARP => {
            let (from, to) = (Ipv4Addr::from(key.nw_src), Ipv4Addr::from(key.nw_dst));
            format!("arp op {} {from} > {to}", key.nw_proto)
        }
        other => {
            let (from, to) = (mac(key.dl_src), mac(key.dl_dst));
            format!("{from} > {to} type 0x{other:04x}")
        }
    }
}

fn ip(key: &FlowKey, from: &str, to: &str) -> String {
    let (source, target) = (key.tp_src, key.tp_dst);
    let later = key.nw_frag & frag::LATER != 0;
    match key.nw_proto {
        proto if later => format!("later fragment of protocol {proto} {from} > {to}"),
        TCP => format!("tcp {from}:{source} > {to}:{target}"),
        UDP => format!("udp {from}:{source} > {to}:{target}"),
        SCTP => format!("sctp {from}:{source} > {to}:{target}"),
        ICMP => format!("icmp {from} > {to} type {source} code {target}"),
        ICMPV6 => format!("icmp6 {from} > {to} type {source} code {target}"),
        proto => format!("ip protocol {proto} {from} > {to}"),
    }
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|b| format!("{b:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_datapath_api::PortNo;
    use serde_json::Value;

    fn sample(bytes: &[u8]) -> LocalSample<'_> {
        LocalSample {
            group: 10,
            domain: 0x0200_000a,
            point: 0x1234_5678,
            probability: 16384,
            in_port: PortNo(1),
            input: "",
            packet_type: 0,
            total_len: bytes.len(),
            bytes,
        }
    }

    fn frame(ethertype: u16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn a_message_is_an_object_with_cookie_port_and_packet() {
        let mut ip = vec![
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 7, 0, 1, 10, 7, 0, 2,
        ];
        ip.extend([0x0f, 0xa0, 0, 9, 0, 8, 0, 0]);
        let bytes = frame(IP, &ip);
        let text = text(&sample(&bytes), "p\"1");
        let object: Value = serde_json::from_str(&format!("{{{text}}}")).unwrap();
        assert_eq!(object["cookie"], "0200000a12345678");
        assert_eq!(object["packet"], "udp 10.7.0.1:4000 > 10.7.0.2:9");
        assert_eq!((&object["port"], &object["length"]), (&json!("p\"1"), &json!(42)));
        assert_eq!(object["bytes"].as_str().unwrap().len(), 84);
        let tagged = frame(0x8100, &[&[0x20, 5, 8, 0], &ip[..]].concat());
        assert_eq!(
            summary(&key_of(&sample(&tagged))),
            "vlan 5 udp 10.7.0.1:4000 > 10.7.0.2:9"
        );
        let odd = frame(0x88cc, &[0; 50]);
        assert_eq!(
            summary(&key_of(&sample(&odd))),
            "02:00:00:00:00:01 > 02:00:00:00:00:02 type 0x88cc"
        );
        for n in 0..bytes.len() {
            // A cut packet has a line, too.
            let mut cut = sample(&bytes[..n]);
            cut.total_len = bytes.len();
            assert!(!summary(&key_of(&cut)).is_empty());
        }
    }
}
