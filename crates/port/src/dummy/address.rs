//! Addresses as the `netdev-dummy/ip4addr` and `ip6addr` commands write them.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Reads `1.2.3.4`, `1.2.3.4/24` or `1.2.3.4/255.255.255.0`.
///
/// # Errors
/// A text that names the input.
pub fn parse_ip4(text: &str) -> Result<(Ipv4Addr, Ipv4Addr), String> {
    let bad = || format!("{text}: invalid IP address");
    let (addr, mask) = text.split_once('/').unwrap_or((text, "32"));
    let addr: Ipv4Addr = addr.parse().map_err(|_| bad())?;
    let mask = match mask.parse::<Ipv4Addr>() {
        Ok(mask) => mask,
        Err(_) => match mask.parse::<u32>().map_err(|_| bad())? {
            bits @ 0..=32 => Ipv4Addr::from(u32::MAX.checked_shl(32 - bits).unwrap_or(0)),
            _ => return Err(format!("{text}: IP network prefix bits not between 0 and 32")),
        },
    };
    Ok((addr, mask))
}

/// Reads `fe80::1` or `fe80::1/64`.
///
/// # Errors
/// A text that names the input.
pub fn parse_ip6(text: &str) -> Result<(Ipv6Addr, u8), String> {
    let bad = || format!("{text}: invalid IPv6 address");
    let (addr, bits) = text.split_once('/').unwrap_or((text, "128"));
    let addr: Ipv6Addr = addr.parse().map_err(|_| bad())?;
    match bits.parse::<u8>().map_err(|_| bad())? {
        bits @ 0..=128 => Ok((addr, bits)),
        _ => Err(format!("{text}: IPv6 prefix bits not between 0 and 128")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let ip = |s: &str| s.parse::<Ipv4Addr>().unwrap();
        assert_eq!(
            parse_ip4("10.0.0.1/24"),
            Ok((ip("10.0.0.1"), ip("255.255.255.0")))
        );
        assert_eq!(
            parse_ip4("10.0.0.1/255.255.0.0"),
            Ok((ip("10.0.0.1"), ip("255.255.0.0")))
        );
        assert_eq!(parse_ip4("10.0.0.1"), Ok((ip("10.0.0.1"), ip("255.255.255.255"))));
        assert_eq!(parse_ip4("10.0.0.1/0"), Ok((ip("10.0.0.1"), ip("0.0.0.0"))));
        assert_eq!(parse_ip6("fe80::1/64"), Ok(("fe80::1".parse().unwrap(), 64)));
        for bad in ["", "10.0.0", "10.0.0.1/33", "10.0.0.1/x", "a/b"] {
            assert!(parse_ip4(bad).is_err(), "{bad}");
        }
        for bad in ["", "10.0.0.1", "::/129", "::/x"] {
            assert!(parse_ip6(bad).is_err(), "{bad}");
        }
    }
}
