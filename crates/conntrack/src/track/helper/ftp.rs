//! The messages of FTP that announce connections: PORT, PASV's answer (RFC 959), EPRT, EPSV's answer
//! (RFC 2428).
//!
//! A message is read where it stands at the beginning of a segment, and whole. Whoever wants another address
//! than his own announced is refused elsewhere ([`super`]).

use std::net::IpAddr;
use std::ops::Range;

/// Bytes of a segment that are looked at.
pub(crate) const LOOK: usize = 256;

/// Who says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Client,
    Server,
}

/// How an address is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Of IPv4, with commas.
    Commas,
    Usual,
}

/// A message that announces a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// Where the address stands, which, and how; EPSV's answer has none.
    pub(crate) address: Option<(Range<usize>, IpAddr, Form)>,
    pub(crate) port: u16,
}

/// It begins like a message that announces a connection, and makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// A place in a text.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }
    /// Goes to the next byte that is so.
    fn skip_to(&mut self, is: impl Fn(u8) -> bool) -> Result<(), Malformed> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        self.at += rest.iter().position(|b| is(*b)).ok_or(Malformed)?;
        Ok(())
    }
    fn expect(&mut self, b: u8) -> Result<(), Malformed> {
        let is = self.peek() == Some(b);
        self.at += 1;
        is.then_some(()).ok_or(Malformed)
    }
    /// A number of up to `digits`, which something follows.
    fn number(&mut self, digits: usize, most: u32) -> Result<u32, Malformed> {
        let (mut n, mut seen) = (0, 0);
        while let Some(b) = self.peek().filter(u8::is_ascii_digit) {
            (n, seen) = (n * 10 + u32::from(b - b'0'), seen + 1);
            self.at += 1;
            if seen > digits {
                return Err(Malformed);
            }
        }
        let ends = self.peek().is_some();
        (seen > 0 && ends && n <= most).then_some(n).ok_or(Malformed)
    }
    /// Four numbers and two of a port, with commas.
    fn six(&mut self) -> Result<Message, Malformed> {
        let from = self.at;
        let (mut address, mut to) = ([0_u8; 4], from);
        for b in &mut address {
            *b = u8::try_from(self.number(3, 255)?).map_err(|_| Malformed)?;
            to = self.at;
            self.expect(b',')?;
        }
        let high = self.number(3, 255)?;
        self.expect(b',')?;
        let port = high << 8 | self.number(3, 255)?;
        Ok(Message {
            address: Some((from..to, IpAddr::from(address), Form::Commas)),
            port: u16::try_from(port).map_err(|_| Malformed)?,
        })
    }
    /// `|2|::1|5000|` with any mark between.
    fn extended(&mut self, ipv6: bool) -> Result<Message, Malformed> {
        let mark = self.peek().ok_or(Malformed)?;
        self.expect(mark)?;
        self.expect(if ipv6 { b'2' } else { b'1' })?;
        self.expect(mark)?;
        let from = self.at;
        self.skip_to(|b| b == mark)?;
        let text = self.text.get(from..self.at).ok_or(Malformed)?;
        let address: IpAddr = std::str::from_utf8(text)
            .ok()
            .and_then(|t| t.parse().ok())
            .filter(|a: &IpAddr| a.is_ipv6() == ipv6)
            .ok_or(Malformed)?;
        let range = from..self.at;
        self.expect(mark)?;
        Ok(Message {
            address: Some((range, address, Form::Usual)),
            port: u16::try_from(self.number(5, 65_535)?).map_err(|_| Malformed)?,
        })
    }
}

/// Reads what stands at the beginning of a segment. `None`: nothing that announces a connection.
pub(crate) fn read(side: Side, ipv6: bool, text: &[u8]) -> Result<Option<Message>, Malformed> {
    let text = text.get(..LOOK).unwrap_or(text);
    let Some(word) = text.first_chunk::<4>() else {
        return Ok(None);
    };
    let mut r = Reader { text, at: 4 };
    let is = |w: &[u8; 4]| word.eq_ignore_ascii_case(w);
    let message = match side {
        Side::Client if is(b"PORT") && !ipv6 => {
            r.expect(b' ')?;
            r.skip_to(|b| b.is_ascii_digit())?;
            r.six()?
        }
        Side::Client if is(b"EPRT") => {
            r.expect(b' ')?;
            r.extended(ipv6)?
        }
        Side::Server if matches!(word, b"227 " | b"227-") && !ipv6 => {
            r.skip_to(|b| b.is_ascii_digit())?;
            r.six()?
        }
        Side::Server if matches!(word, b"229 " | b"229-") => {
            r.skip_to(|b| b == b'(')?;
            r.skip_to(|b| b.is_ascii_digit())?;
            Message {
                address: None,
                port: u16::try_from(r.number(5, 65_535)?).map_err(|_| Malformed)?,
            }
        }
        _ => return Ok(None),
    };
    if message.port == 0 {
        return Err(Malformed);
    }
    Ok(Some(message))
}

/// An address as it is written there.
pub(crate) fn write(address: IpAddr, form: Form) -> String {
    let text = address.to_string();
    match form {
        Form::Commas => text.replace('.', ","),
        Form::Usual => text,
    }
}
