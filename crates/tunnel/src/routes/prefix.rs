//! Prefixes of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

/// The bits of an address, left-aligned.
fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(a) => u128::from(a.to_bits()) << 96,
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// Length of an address of that family, bits.
fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

impl Prefix {
    /// The prefix of `addr` that is `len` bits long; `None`: an address has fewer.
    pub fn new(addr: IpAddr, len: u8) -> Option<Prefix> {
        (len <= width(addr)).then(|| Prefix { addr, len }.trimmed())
    }
    /// The prefix that contains only `addr`.
    pub fn host(addr: IpAddr) -> Prefix {
        Prefix {
            addr,
            len: width(addr),
        }
    }
    fn trimmed(self) -> Prefix {
        let bits = Self::cut(bits(self.addr), self.len);
        let addr = match self.addr {
            #[allow(clippy::cast_possible_truncation)] // the upper 32 bits
            IpAddr::V4(_) => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
        };
        Prefix { addr, ..self }
    }
    /// The first `len` bits of `bits`, followed by zeros.
    fn cut(bits: u128, len: u8) -> u128 {
        match len {
            0 => 0,
            len => bits & u128::MAX << (128 - u32::from(len.min(128))),
        }
    }
    /// The first address.
    pub fn addr(self) -> IpAddr {
        self.addr
    }
    /// Length, bits.
    #[allow(clippy::len_without_is_empty)] // a prefix is never empty
    pub fn len(self) -> u8 {
        self.len
    }
    /// Length in bits where IPv4 addresses are written as IPv6 ones (`::ffff:a.b.c.d`).
    pub fn mapped_len(self) -> u8 {
        self.len + (128 - width(self.addr))
    }
    /// Whether `addr` has this prefix.
    pub fn contains(self, addr: IpAddr) -> bool {
        self.addr.is_ipv4() == addr.is_ipv4() && Self::cut(bits(addr), self.len) == bits(self.addr)
    }
    /// Key among prefixes of one length and family.
    pub(super) fn key(self) -> u128 {
        bits(self.addr)
    }
    /// The key of the prefix of `addr` that is `len` bits long.
    pub(super) fn key_of(addr: IpAddr, len: u8) -> u128 {
        Self::cut(bits(addr), len)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// Number of leading bits that two addresses share; 0 for different families.
pub(super) fn common_len(a: IpAddr, b: IpAddr) -> u8 {
    if a.is_ipv4() != b.is_ipv4() {
        return 0;
    }
    #[allow(clippy::cast_possible_truncation)] // at most 128
    let n = (bits(a) ^ bits(b)).leading_zeros() as u8;
    n.min(width(a))
}
