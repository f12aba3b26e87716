//! The file as a whole: its sections and its seal.

use crate::connection::Connections;
use crate::reader::Reader;
use crate::{
    Error, Header, KEY_BYTES, MAGIC, MAX_FILE_BYTES, MAX_NAME_BYTES, MAX_SECTION_BYTES, MAX_ZONES, VERSION,
};
use ring::{digest, hmac};

const HEADER: u8 = 1;
const CONNECTIONS: u8 = 2;
const END: u8 = 3;
const LIVE: u8 = 1;
const SEAL_BYTES: usize = 32;

/// The operator's key.
#[derive(Clone, Debug)]
pub struct Key(hmac::Key);

impl Key {
    /// A key of these bytes.
    ///
    /// # Errors
    /// The length is not in [`KEY_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if !KEY_BYTES.contains(&bytes.len()) {
            return Err(Error::KeyLength(bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }
}

/// The seal of a file: a hash of all bytes before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seal {
    /// SHA-256: detects accidental changes.
    Digest = 0,
    /// HMAC-SHA256: detects changes by anyone without the key.
    Keyed = 1,
}

enum Sealing {
    Digest(digest::Context),
    Keyed(hmac::Context),
}

impl Sealing {
    fn new(key: Option<&Key>) -> Self {
        match key {
            None => Self::Digest(digest::Context::new(&digest::SHA256)),
            Some(key) => Self::Keyed(hmac::Context::with_key(&key.0)),
        }
    }
    fn kind(&self) -> Seal {
        match self {
            Self::Digest(_) => Seal::Digest,
            Self::Keyed(_) => Seal::Keyed,
        }
    }
    fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Digest(d) => d.update(bytes),
            Self::Keyed(k) => k.update(bytes),
        }
    }
    fn end(self) -> Vec<u8> {
        match self {
            Self::Digest(d) => d.finish().as_ref().to_vec(),
            Self::Keyed(k) => k.sign().as_ref().to_vec(),
        }
    }
}

/// Makes a file, one section after the other.
pub struct Writer {
    seal: Sealing,
    connections: u64,
    bytes: usize,
}

fn put_text(out: &mut Vec<u8>, text: &str) -> Result<(), Error> {
    let n = u16::try_from(text.len())
        .ok()
        .filter(|n| usize::from(*n) <= MAX_NAME_BYTES);
    out.extend(n.ok_or(Error::TooLarge("a name"))?.to_be_bytes());
    out.extend(text.as_bytes());
    Ok(())
}

fn section(kind: u8, content: &[u8]) -> Result<Vec<u8>, Error> {
    let n = u32::try_from(content.len()).unwrap_or(u32::MAX);
    if content.len() > MAX_SECTION_BYTES {
        return Err(Error::TooLarge("a section"));
    }
    let mut out = Vec::with_capacity(content.len() + 5);
    out.push(kind);
    out.extend(n.to_be_bytes());
    out.extend(content);
    Ok(out)
}

impl Writer {
    /// Begins a file; returns its first bytes, too.
    ///
    /// # Errors
    /// The header exceeds a bound.
    pub fn new(header: &Header, key: Option<&Key>) -> Result<(Self, Vec<u8>), Error> {
        let seal = Sealing::new(key);
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_be_bytes());
        out.extend([seal.kind() as u8, 0]);
        let mut content = vec![if header.live { LIVE } else { 0 }];
        content.extend(header.made_s.to_be_bytes());
        put_text(&mut content, &header.port)?;
        put_text(&mut content, &header.writer)?;
        let zones = u16::try_from(header.zones.len())
            .ok()
            .filter(|n| usize::from(*n) <= MAX_ZONES);
        content.extend(zones.ok_or(Error::TooLarge("the number of zones"))?.to_be_bytes());
        for zone in &header.zones {
            put_text(&mut content, zone)?;
        }
        out.extend(section(HEADER, &content)?);
        let mut writer = Self {
            seal,
            connections: 0,
            bytes: 0,
        };
        writer.count(&out)?;
        Ok((writer, out))
    }
    fn count(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.bytes += bytes.len();
        if self.bytes > MAX_FILE_BYTES {
            return Err(Error::TooLarge("the length of the file"));
        }
        self.seal.add(bytes);
        Ok(())
    }
    /// Adds connections ([`crate::connection::Chunk::content`]); returns the bytes to write.
    ///
    /// # Errors
    /// The file would exceed a bound.
    pub fn connections(&mut self, content: &[u8]) -> Result<Vec<u8>, Error> {
        self.connections += u64::from(Reader(content).u32()?);
        let out = section(CONNECTIONS, content)?;
        self.count(&out)?;
        Ok(out)
    }
    /// Number of connections so far.
    pub fn len(&self) -> u64 {
        self.connections
    }
    /// Whether there are none so far.
    pub fn is_empty(&self) -> bool {
        self.connections == 0
    }
    /// Ends the file; returns the bytes to write.
    pub fn end(mut self) -> Vec<u8> {
        let mut out = vec![END];
        let n = u32::try_from(8 + SEAL_BYTES).unwrap_or(0);
        out.extend(n.to_be_bytes());
        out.extend(self.connections.to_be_bytes());
        self.seal.add(&out);
        out.extend(self.seal.end());
        out
    }
}

/// A file with a valid seal.
#[derive(Clone, Debug)]
pub struct File<'a> {
    /// Properties of the whole file.
    pub header: Header,
    /// Kind of the seal.
    pub seal: Seal,
    /// Number of connections.
    pub connections: u64,
    /// Contents of the sections with connections, in order.
    pub chunks: Vec<&'a [u8]>,
}

impl<'a> File<'a> {
    /// Reads a whole file.
    ///
    /// # Errors
    /// The reason why the file is refused. Only the lengths and kinds of sections are read before the seal is
    /// compared.
    pub fn open(bytes: &'a [u8], key: Option<&Key>) -> Result<Self, Error> {
        if bytes.len() > MAX_FILE_BYTES + 64 {
            return Err(Error::TooLarge("the length of the file"));
        }
        let mut r = Reader(bytes);
        if r.array().ok() != Some(MAGIC) {
            return Err(Error::NotAMigration);
        }
        match r.u16()? {
            VERSION => {}
            other => return Err(Error::Version(other)),
        }
        let seal = match (r.u8()?, r.u8()?) {
            (0, 0) => Seal::Digest,
            (1, 0) => Seal::Keyed,
            _ => return Err(Error::Malformed("an unknown seal")),
        };
        match (seal, key) {
            (Seal::Keyed, None) => return Err(Error::NeedsKey),
            (Seal::Digest, Some(_)) => return Err(Error::HasNoKey),
            _ => {}
        }
        let mut header = None;
        let (mut chunks, mut counted) = (Vec::new(), 0);
        let connections = loop {
            let kind = r.u8()?;
            let n = usize::try_from(r.u32()?).unwrap_or(usize::MAX);
            if n > MAX_SECTION_BYTES {
                return Err(Error::TooLarge("a section"));
            }
            let content = r.bytes(n)?;
            match kind {
                HEADER if header.is_none() => header = Some(content),
                CONNECTIONS if header.is_some() => {
                    counted += u64::from(Reader(content).u32()?);
                    chunks.push(content);
                }
                END if header.is_some() && n == 8 + SEAL_BYTES => break Reader(content).u64()?,
                _ => return Err(Error::Malformed("an unknown section")),
            }
        };
        if !r.is_empty() {
            return Err(Error::Malformed("bytes behind the end"));
        }
        let (sealed, tag) = bytes.split_at(bytes.len() - SEAL_BYTES);
        let right = match key {
            // `verify` compares in constant time.
            Some(key) => hmac::verify(&key.0, sealed, tag).is_ok(),
            None => digest::digest(&digest::SHA256, sealed).as_ref() == tag,
        };
        if !right {
            return Err(Error::Seal);
        }
        if connections != counted {
            return Err(Error::Malformed("the number of connections"));
        }
        Ok(Self {
            header: read_header(header.unwrap_or_default())?,
            seal,
            connections,
            chunks,
        })
    }
    /// Reads each connection once.
    ///
    /// # Errors
    /// The first value that no tracker makes.
    pub fn check(&self) -> Result<(), Error> {
        for chunk in &self.chunks {
            for connection in Connections::new(chunk)? {
                if usize::from(connection?.0) >= self.header.zones.len() {
                    return Err(Error::Malformed("a zone without a name"));
                }
            }
        }
        Ok(())
    }
}

fn read_header(content: &[u8]) -> Result<Header, Error> {
    let mut r = Reader(content);
    let flags = r.u8()?;
    if flags & !LIVE != 0 {
        return Err(Error::Malformed("an unknown flag of the header"));
    }
    let made_s = r.u64()?;
    let (port, writer) = (r.text()?, r.text()?);
    let n = usize::from(r.u16()?);
    if n > MAX_ZONES {
        return Err(Error::TooLarge("the number of zones"));
    }
    let zones = (0..n).map(|_| r.text()).collect::<Result<_, _>>()?;
    if !r.is_empty() {
        return Err(Error::Malformed("bytes behind the header"));
    }
    Ok(Header {
        live: flags & LIVE != 0,
        made_s,
        port,
        writer,
        zones,
    })
}
