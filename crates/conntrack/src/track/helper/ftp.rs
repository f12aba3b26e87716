//! The messages of FTP that announce connections: PORT, PASV's reply (RFC 959), EPRT, EPSV's reply (RFC
//! 2428).
//!
//! A message is read only if it is whole and at the beginning of a segment. The module [`super`] refuses a
//! message that announces another host's address.

use std::net::IpAddr;
use std::ops::Range;

/// Maximum number of bytes of a segment that are read.
pub(crate) const LOOK: usize = 256;

/// The sender of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Client,
    Server,
}

/// Notation of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// IPv4 with commas, as in `10,1,1,2`.
    Commas,
    Usual,
}

/// A message that announces a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// Range of the address in the text, its value and its notation; `None` for EPSV's reply.
    pub(crate) address: Option<(Range<usize>, IpAddr, Form)>,
    pub(crate) port: u16,
}

/// Error: a message begins like an announcement, but is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// A position in a text.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }
    /// Moves to the next byte for which `is` is true.
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
    /// Reads a number of up to `digits` digits and up to `most`. Another byte has to follow it.
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
    /// Reads four numbers of an address and two of a port, with commas.
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
    /// Reads `|2|::1|5000|` with any delimiter.
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

/// Reads the message at the beginning of a segment. `None`: it announces no connection.
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

/// Returns the text of an address in this notation.
pub(crate) fn write(address: IpAddr, form: Form) -> String {
    let text = address.to_string();
    match form {
        Form::Commas => text.replace('.', ","),
        Form::Usual => text,
    }
}
