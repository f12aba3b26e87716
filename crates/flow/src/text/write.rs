//! Values with masks, each in the form that a kind of field has in a match's text.

use core::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

/// `%#x` of C: zero has no prefix.
pub(crate) struct AltHex(pub(crate) u128);

impl fmt::Display for AltHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            f.write_char('0')
        } else {
            write!(f, "{:#x}", self.0)
        }
    }
}

/// Bytes as one number: `0` or `0x12ab`, without leading zeros.
pub struct HexBytes<'a>(pub &'a [u8]);

impl fmt::Display for HexBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = self.0.iter().skip_while(|b| **b == 0);
        match digits.next() {
            None => f.write_char('0'),
            Some(first) => {
                write!(f, "{first:#x}")?;
                digits.try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
    }
}

/// An Ethernet address.
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An IPv6 address as C's `inet_ntop` writes it, which also knows the IPv4-compatible form `::1.2.3.4`.
pub(crate) struct Ip6(pub(crate) [u8; 16]);

impl fmt::Display for Ip6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let a = Ipv6Addr::from(self.0);
        match a.segments() {
            [0, 0, 0, 0, 0, 0, hi, lo] if hi != 0 => {
                write!(f, "::{}", Ipv4Addr::from(u32::from(hi) << 16 | u32::from(lo)))
            }
            _ => write!(f, "{a}"),
        }
    }
}

/// The number of leading ones, where no one follows a zero.
pub(crate) fn prefix_len(mask: u128, width: u32) -> Option<u32> {
    let m = mask << (128 - width);
    let n = m.leading_ones();
    (m.checked_shl(n).unwrap_or(0) == 0).then_some(n)
}

/// `1.2.3.4`, `1.2.3.0/24` or `1.2.3.4/255.0.255.0`.
pub(crate) fn ip4(f: &mut dyn Write, v: u32, m: u32) -> fmt::Result {
    write!(f, "{}", Ipv4Addr::from(v))?;
    match prefix_len(m.into(), 32) {
        _ if m == u32::MAX => Ok(()),
        Some(n) => write!(f, "/{n}"),
        None => write!(f, "/{}", Ipv4Addr::from(m)),
    }
}

/// An IPv6 address with a mask.
pub(crate) fn ip6(f: &mut dyn Write, v: [u8; 16], m: [u8; 16]) -> fmt::Result {
    write!(f, "{}", Ip6(v))?;
    match prefix_len(u128::from_be_bytes(m), 128) {
        Some(128) => Ok(()),
        Some(n) => write!(f, "/{n}"),
        None => write!(f, "/{}", Ip6(m)),
    }
}

/// An Ethernet address with a mask.
pub(crate) fn mac(f: &mut dyn Write, v: [u8; 6], m: [u8; 6]) -> fmt::Result {
    write!(f, "{}", Mac(v))?;
    if m == [0xff; 6] {
        Ok(())
    } else {
        write!(f, "/{}", Mac(m))
    }
}

/// A list of `name=value` and bare words, separated by commas.
pub(crate) struct Items<'a> {
    out: &'a mut dyn Write,
    first: bool,
}

impl<'a> Items<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, first: true }
    }
    /// Starts the next item.
    pub(crate) fn item(&mut self) -> Result<&mut dyn Write, fmt::Error> {
        if !self.first {
            self.out.write_char(',')?;
        }
        self.first = false;
        Ok(self.out)
    }
    /// A bare word.
    pub(crate) fn word(&mut self, w: &str) -> fmt::Result {
        self.item()?.write_str(w)
    }
    /// `name=value`.
    pub(crate) fn show(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        write!(self.item()?, "{name}={value}")
    }
    /// Writes nothing for a zero mask, else `name=0x1` or `name=0x1/0x3`; zero as `0`.
    pub(crate) fn hex(&mut self, name: &str, v: u128, m: u128, all: u128) -> fmt::Result {
        if m == 0 {
            Ok(())
        } else if m == all {
            self.show(name, AltHex(v))
        } else {
            write!(self.item()?, "{name}={}/{}", AltHex(v), AltHex(m))
        }
    }
    /// Writes nothing for a zero mask, else `name=0x1` or `name=0x1/0x3`; zero as `0x0`.
    pub(crate) fn plain_hex32(&mut self, name: &str, v: u32, m: u32) -> fmt::Result {
        match m {
            0 => Ok(()),
            u32::MAX => self.show(name, format_args!("{v:#x}")),
            _ => write!(self.item()?, "{name}={v:#x}/{m:#x}"),
        }
    }
    /// Writes nothing for a zero mask, else `name=1` or `name=0x01/0x03`.
    pub(crate) fn dec8(&mut self, name: &str, v: u8, m: u8) -> fmt::Result {
        match m {
            0 => Ok(()),
            u8::MAX => self.show(name, v),
            _ => write!(self.item()?, "{name}={v:#04x}/{m:#04x}"),
        }
    }
    /// Writes nothing for a zero mask, else `name=1` or `name=0x1/0x3`.
    pub(crate) fn dec16(&mut self, name: &str, v: u16, m: u16) -> fmt::Result {
        match m {
            0 => Ok(()),
            u16::MAX => self.show(name, v),
            _ => write!(self.item()?, "{name}={v:#x}/{m:#x}"),
        }
    }
    /// Writes nothing for a zero mask, else `name=1` or `name=0x00000001/0x00000003`.
    pub(crate) fn dec32(&mut self, name: &str, v: u32, m: u32) -> fmt::Result {
        match m {
            0 => Ok(()),
            u32::MAX => self.show(name, v),
            _ => write!(self.item()?, "{name}={v:#010x}/{m:#010x}"),
        }
    }
    /// Writes nothing for a zero mask, else `name=` an address.
    pub(crate) fn ip4(&mut self, name: &str, v: u32, m: u32) -> fmt::Result {
        if m == 0 {
            return Ok(());
        }
        let w = self.item()?;
        write!(w, "{name}=")?;
        ip4(w, v, m)
    }
    /// Writes nothing for a zero mask, else `name=` an address.
    pub(crate) fn ip6(&mut self, name: &str, v: [u8; 16], m: [u8; 16]) -> fmt::Result {
        if m == [0; 16] {
            return Ok(());
        }
        let w = self.item()?;
        write!(w, "{name}=")?;
        ip6(w, v, m)
    }
    /// Writes nothing for a zero mask, else `name=` an address.
    pub(crate) fn mac(&mut self, name: &str, v: [u8; 6], m: [u8; 6]) -> fmt::Result {
        if m == [0; 6] {
            return Ok(());
        }
        let w = self.item()?;
        write!(w, "{name}=")?;
        mac(w, v, m)
    }
}
