//! One connection in the file.
//!
//! | bytes | content |
//! | --- | --- |
//! | 2 | index of the zone in the header |
//! | 2 | flags: the constants below |
//! | 1 | protocol |
//! | 4 | milliseconds until it expires without packets |
//! | 12 or 36 | original direction: two addresses, then two ports, or identifier, type and code of ICMP |
//! | 12 or 36 | reply direction, in the same form; only if an endpoint is translated |
//! | 12 or 36 | original direction of the parent, for a related connection |
//! | 4, 16 | mark; label |
//! | 24 | TCP, each endpoint: highest sequence number sent, highest allowed (4 each), window (2), scale (1), state (1) |
//! | 16 | offsets of sequence numbers |
//! | 1 + 5 n | expected connections: their number; each: flags (1), port (2), own port (2) |

use crate::reader::Reader;
use crate::{Error, MAX_SECTION_BYTES};
use heddle_conntrack::tcp::{Peer, Scale, TcpState};
use heddle_conntrack::transfer::{ConnCopy, Expected, MAX_EXPECTED};
use heddle_conntrack::{CtHelper, NatEnd, Phase, Tuple};
use heddle_wire::ip::proto;

const IPV6: u16 = 1;
const SNAT: u16 = 1 << 1;
const DNAT: u16 = 1 << 2;
const PARENT: u16 = 1 << 3;
const MARK: u16 = 1 << 4;
const LABEL: u16 = 1 << 5;
const LOOSE: u16 = 1 << 6;
const SKEWS: u16 = 1 << 7;
const EXPECTED: u16 = 1 << 8;
const FTP: u16 = 1 << 9;
const TFTP: u16 = 1 << 10;
/// Packets seen: two bits.
const PHASE_SHIFT: u32 = 11;
const KNOWN: u16 = (1 << 13) - 1;
/// Values in place of a window scale: none was negotiated; the scale is unknown.
const NO_SCALE: u8 = 0xff;
const UNKNOWN_SCALE: u8 = 0xfe;
/// Flags of an expected connection.
const REPLY: u8 = 1;
const OWN_PORT: u8 = 2;
/// Upper bound for the length of a connection in the file.
const MAX_BYTES: usize = 256;

/// Content of a section with connections, while it is written.
#[derive(Clone, Debug)]
pub struct Chunk {
    bytes: Vec<u8>,
    connections: u32,
}

impl Default for Chunk {
    fn default() -> Self {
        Self {
            bytes: vec![0; 4],
            connections: 0,
        }
    }
}

impl Chunk {
    /// Whether there is no room for another connection.
    pub fn is_full(&self) -> bool {
        self.bytes.len() > MAX_SECTION_BYTES - MAX_BYTES
    }
    /// Whether there is room for this number of connections of maximum length.
    pub fn has_room(&self, connections: u32) -> bool {
        let needed = usize::try_from(connections)
            .unwrap_or(usize::MAX)
            .saturating_mul(MAX_BYTES);
        self.bytes.len().saturating_add(needed) <= MAX_SECTION_BYTES
    }
    /// Number of connections.
    pub fn len(&self) -> u32 {
        self.connections
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.connections == 0
    }
    /// Adds a connection of the zone with this index. `false`: there is no room, or [`ConnCopy::check`]
    /// refuses the connection.
    pub fn add(&mut self, zone: u16, c: &ConnCopy) -> bool {
        if self.is_full() || c.check().is_err() {
            return false;
        }
        put(&mut self.bytes, zone, c);
        self.connections += 1;
        true
    }
    /// The section's content.
    pub fn content(mut self) -> Vec<u8> {
        self.bytes[..4].copy_from_slice(&self.connections.to_be_bytes());
        self.bytes
    }
}

fn flags(c: &ConnCopy) -> u16 {
    let is = |condition: bool, flag: u16| if condition { flag } else { 0 };
    is(c.orig.ipv6, IPV6)
        | is(c.nat == Some(NatEnd::Src), SNAT)
        | is(c.nat == Some(NatEnd::Dst), DNAT)
        | is(c.parent.is_some(), PARENT)
        | is(c.mark != 0, MARK)
        | is(c.label != 0, LABEL)
        | is(c.loose, LOOSE)
        | is(c.skews != [0; 2], SKEWS)
        | is(!c.expected.is_empty(), EXPECTED)
        | is(c.helper == Some(CtHelper::Ftp), FTP)
        | is(c.helper == Some(CtHelper::Tftp), TFTP)
        | (c.phase as u16) << PHASE_SHIFT
}

#[allow(clippy::cast_possible_truncation)] // `check` bounds IPv4 addresses and ports
fn put_tuple(out: &mut Vec<u8>, t: &Tuple) {
    for end in [t.src, t.dst] {
        if t.ipv6 {
            out.extend(end.addr.to_be_bytes());
        } else {
            out.extend((end.addr as u32).to_be_bytes());
        }
    }
    if t.is_icmp() {
        out.extend(t.src.l4.to_be_bytes());
    } else {
        out.extend((t.src.l4 as u16).to_be_bytes());
        out.extend((t.dst.l4 as u16).to_be_bytes());
    }
}

fn put(out: &mut Vec<u8>, zone: u16, c: &ConnCopy) {
    let flags = flags(c);
    out.extend(zone.to_be_bytes());
    out.extend(flags.to_be_bytes());
    out.push(c.orig.proto);
    let left_ms = u32::try_from(c.left_ms).unwrap_or(u32::MAX);
    out.extend(left_ms.to_be_bytes());
    put_tuple(out, &c.orig);
    if c.nat.is_some() {
        put_tuple(out, &c.reply);
    }
    c.parent.iter().for_each(|p| put_tuple(out, p));
    if flags & MARK != 0 {
        out.extend(c.mark.to_be_bytes());
    }
    if flags & LABEL != 0 {
        out.extend(c.label.to_be_bytes());
    }
    for end in c.tcp.iter().flatten() {
        out.extend(end.lo.to_be_bytes());
        out.extend(end.hi.to_be_bytes());
        out.extend(end.window.to_be_bytes());
        out.push(match end.scale {
            Scale::None => NO_SCALE,
            Scale::Unknown => UNKNOWN_SCALE,
            Scale::Known(s) => s,
        });
        out.push(end.state as u8);
    }
    if flags & SKEWS != 0 {
        c.skews.iter().for_each(|s| out.extend(s.to_be_bytes()));
    }
    if flags & EXPECTED != 0 {
        out.push(u8::try_from(c.expected.len()).unwrap_or(0));
        for a in &c.expected {
            let own = if a.own_port.is_some() { OWN_PORT } else { 0 };
            out.push(own | if a.reply { REPLY } else { 0 });
            out.extend(a.port.to_be_bytes());
            out.extend(a.own_port.unwrap_or(0).to_be_bytes());
        }
    }
}

/// Reads the connections of one section, each with the index of its zone.
#[derive(Clone, Copy, Debug)]
pub struct Connections<'a> {
    rest: Reader<'a>,
    left: u32,
}

impl<'a> Connections<'a> {
    /// Begins with the content of a section.
    ///
    /// # Errors
    /// The content is too short or too long.
    pub fn new(content: &'a [u8]) -> Result<Self, Error> {
        if content.len() > MAX_SECTION_BYTES {
            return Err(Error::TooLarge("a section"));
        }
        let mut rest = Reader(content);
        let left = rest.u32()?;
        Ok(Self { rest, left })
    }
}

impl Iterator for Connections<'_> {
    type Item = Result<(u16, ConnCopy), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            let more = !std::mem::replace(&mut self.rest, Reader(&[])).is_empty();
            return more.then_some(Err(Error::Malformed("bytes behind the connections")));
        }
        self.left -= 1;
        let read = read(&mut self.rest);
        if read.is_err() {
            (self.rest, self.left) = (Reader(&[]), 0);
        }
        Some(read)
    }
}

fn read_tuple(r: &mut Reader<'_>, ipv6: bool, proto: u8) -> Result<Tuple, Error> {
    let mut t = Tuple {
        proto,
        ipv6,
        ..Tuple::default()
    };
    for end in [&mut t.src, &mut t.dst] {
        end.addr = if ipv6 { r.u128()? } else { r.u32()?.into() };
    }
    if t.is_icmp() {
        let (id, kind, code) = (r.u16()?, r.u8()?, r.u8()?);
        return t
            .with_icmp(id, kind, code)
            .ok_or(Error::Malformed("a type of ICMP without a reply"));
    }
    (t.src.l4, t.dst.l4) = (r.u16()?.into(), r.u16()?.into());
    Ok(t)
}

fn read_end(r: &mut Reader<'_>) -> Result<Peer, Error> {
    Ok(Peer {
        lo: r.u32()?,
        hi: r.u32()?,
        window: r.u16()?,
        scale: match r.u8()? {
            NO_SCALE => Scale::None,
            UNKNOWN_SCALE => Scale::Unknown,
            shift => Scale::Known(shift),
        },
        state: match r.u8()? {
            0 => TcpState::Closed,
            2 => TcpState::SynSent,
            4 => TcpState::Established,
            7 => TcpState::Closing,
            9 => TcpState::FinWait2,
            10 => TcpState::TimeWait,
            _ => return Err(Error::Malformed("an unknown state of TCP")),
        },
    })
}

fn read_expected(r: &mut Reader<'_>) -> Result<Vec<Expected>, Error> {
    let n = usize::from(r.u8()?);
    if n == 0 || n > MAX_EXPECTED {
        return Err(Error::Malformed("the number of expected connections"));
    }
    let one = |_| {
        let flags = r.u8()?;
        let (port, own) = (r.u16()?, r.u16()?);
        if flags & !(REPLY | OWN_PORT) != 0 || flags & OWN_PORT == 0 && own != 0 {
            return Err(Error::Malformed("an expected connection"));
        }
        Ok(Expected {
            reply: flags & REPLY != 0,
            port,
            own_port: (flags & OWN_PORT != 0).then_some(own),
        })
    };
    (0..n).map(one).collect()
}

fn read(r: &mut Reader<'_>) -> Result<(u16, ConnCopy), Error> {
    let (zone, flags, protocol, left_ms) = (r.u16()?, r.u16()?, r.u8()?, r.u32()?);
    let has = |flag: u16| flags & flag != 0;
    if has(!KNOWN) || has(SNAT) && has(DNAT) || has(FTP) && has(TFTP) {
        return Err(Error::Malformed("flags that no connection has"));
    }
    let ipv6 = has(IPV6);
    let orig = read_tuple(r, ipv6, protocol)?;
    let mut c = ConnCopy::new(orig, left_ms.into());
    c.nat = match (has(SNAT), has(DNAT)) {
        (true, _) => Some(NatEnd::Src),
        (_, true) => Some(NatEnd::Dst),
        _ => None,
    };
    if c.nat.is_some() {
        c.reply = read_tuple(r, ipv6, protocol)?;
    }
    if has(PARENT) {
        c.parent = Some(read_tuple(r, ipv6, protocol)?);
    }
    c.helper = match (has(FTP), has(TFTP)) {
        (true, _) => Some(CtHelper::Ftp),
        (_, true) => Some(CtHelper::Tftp),
        _ => None,
    };
    if has(MARK) {
        c.mark = r.u32()?;
    }
    if has(LABEL) {
        c.label = r.u128()?;
    }
    if protocol == proto::TCP {
        c.tcp = Some([read_end(r)?, read_end(r)?]);
    }
    c.loose = has(LOOSE);
    c.phase = match flags >> PHASE_SHIFT & 3 {
        0 => Phase::First,
        1 => Phase::Single,
        2 => Phase::Both,
        _ => return Err(Error::Malformed("flags that no connection has")),
    };
    if has(SKEWS) {
        c.skews = [r.u64()?, r.u64()?];
    }
    if has(EXPECTED) {
        c.expected = read_expected(r)?;
    }
    c.check().map_err(|why| Error::Malformed(why.0))?;
    Ok((zone, c))
}
