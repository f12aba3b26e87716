//! Packets that the host's stack gets although the device is a port: the host shares the device.
//!
//! An item is a property of a packet, such as its destination port. Packets with the property of one item are
//! the host's. Except for `ether` and `vlan`, items are about packets without a VLAN tag.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use zerocopy::{Immutable, IntoBytes};

/// Maximum number of items of a device.
pub(crate) const MAX_ITEMS: usize = 64;

/// One item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PassItem {
    /// `ether=0x88cc`: the outermost EtherType.
    Ether(u16),
    /// `vlan=5`: the outermost VLAN tag.
    Vlan(u16),
    /// `ip=ADDRESS`: the destination; also the target of an ARP message or a neighbour solicitation.
    Ip(IpAddr),
    /// `proto=112`: the protocol behind the IP header.
    Proto(u8),
    /// `tcp=22`: the destination port.
    Tcp(u16),
    /// `udp=68`: the destination port.
    Udp(u16),
}

/// An item as the program looks it up (`struct pass_key`).
pub(crate) type KeyBytes = [u8; size_of::<Key>()];

#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct Key {
    kind: u16,
    number: u16,
    address: [u8; 16],
}

const IPV4: u16 = 4;
const IPV6: u16 = 6;

impl PassItem {
    pub(crate) fn key(self) -> KeyBytes {
        let (kind, number) = match self {
            Self::Ether(n) => (1, n),
            Self::Vlan(n) => (2, n),
            Self::Ip(IpAddr::V4(_)) => (3, IPV4),
            Self::Ip(IpAddr::V6(_)) => (3, IPV6),
            Self::Proto(n) => (4, n.into()),
            Self::Tcp(n) => (5, n),
            Self::Udp(n) => (6, n),
        };
        let mut key = Key {
            kind,
            number,
            address: [0; 16],
        };
        match self {
            Self::Ip(IpAddr::V4(a)) => key.address[..4].copy_from_slice(&a.octets()),
            Self::Ip(IpAddr::V6(a)) => key.address = a.octets(),
            _ => {}
        }
        let mut bytes = KeyBytes::default();
        bytes.copy_from_slice(key.as_bytes());
        bytes
    }

    /// Reads a list: items between commas or blanks, in any order. The result is sorted, without duplicates.
    ///
    /// # Errors
    /// One sentence names the first item that makes no sense, or the maximum.
    pub fn list(text: &str) -> Result<Vec<Self>, String> {
        let words = text.split([',', ' ', '\t', '\n']).filter(|word| !word.is_empty());
        let mut items = words.map(Self::from_str).collect::<Result<Vec<_>, _>>()?;
        items.sort_unstable();
        items.dedup();
        if items.len() > MAX_ITEMS {
            return Err(format!("{} items: at most {MAX_ITEMS} are possible", items.len()));
        }
        Ok(items)
    }
}

impl FromStr for PassItem {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "'{text}': expected ip=ADDRESS, tcp=PORT, udp=PORT, proto=NUMBER, vlan=NUMBER or ether=0xTYPE"
            )
        };
        let (key, value) = text.split_once('=').ok_or_else(refused)?;
        let number = || value.parse::<u16>().map_err(|_| refused());
        Ok(match key {
            "ip" => Self::Ip(value.parse().map_err(|_| refused())?),
            "tcp" => Self::Tcp(number()?),
            "udp" => Self::Udp(number()?),
            "proto" => Self::Proto(value.parse().map_err(|_| refused())?),
            "vlan" => Self::Vlan(Some(number()?).filter(|n| *n < 4096).ok_or_else(refused)?),
            "ether" => {
                let digits = value.strip_prefix("0x").ok_or_else(refused)?;
                let kind = u16::from_str_radix(digits, 16).map_err(|_| refused())?;
                // A smaller number is a length.
                Self::Ether(Some(kind).filter(|k| *k >= 0x600).ok_or_else(refused)?)
            }
            _ => return Err(refused()),
        })
    }
}

impl fmt::Display for PassItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ether(n) => write!(f, "ether={n:#06x}"),
            Self::Vlan(n) => write!(f, "vlan={n}"),
            Self::Ip(a) => write!(f, "ip={a}"),
            Self::Proto(n) => write!(f, "proto={n}"),
            Self::Tcp(n) => write!(f, "tcp={n}"),
            Self::Udp(n) => write!(f, "udp={n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        let text = "udp=68, ip=10.0.0.5 tcp=22,ip=fd00::5,proto=112,vlan=0,ether=0x88cc,tcp=22";
        let items = PassItem::list(text).unwrap();
        let written: Vec<_> = items.iter().map(ToString::to_string).collect();
        let written = written.join(",");
        assert_eq!(
            written,
            "ether=0x88cc,vlan=0,ip=10.0.0.5,ip=fd00::5,proto=112,tcp=22,udp=68"
        );
        assert_eq!(PassItem::list(&written).unwrap(), items);
        assert_eq!(PassItem::list(" , ").unwrap(), []);
        for bad in [
            "ssh",
            "tcp=",
            "tcp=65536",
            "tcp=-1",
            "ip=10.0.0.0/8",
            "ip=host",
            "proto=256",
            "vlan=4096",
            "ether=88cc",
            "ether=0x5ff",
            "icmp=1",
        ] {
            let why = PassItem::list(&format!("tcp=1,{bad}")).unwrap_err();
            assert!(why.starts_with(&format!("'{bad}': expected ip=ADDRESS")), "{why}");
        }
        let many: Vec<_> = (0..65).map(|n| format!("tcp={n}")).collect();
        assert!(
            PassItem::list(&many.join(","))
                .unwrap_err()
                .contains("at most 64")
        );
    }

    #[test]
    fn keys_are_those_of_the_program() {
        assert_eq!(PassItem::Tcp(0x1234).key()[..4], [5_u16, 0x1234].as_bytes()[..]);
        let key = PassItem::Ip("10.1.2.3".parse().unwrap()).key();
        assert_eq!(key[4..], [10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let key = PassItem::Ip("fd00::7".parse().unwrap()).key();
        assert_eq!((key[4], key[19]), (0xfd, 7));
    }
}
