//! Writes pcapng (draft-ietf-opsawg-pcapng), which Wireshark and tcpdump read. Blocks of a section header, of
//! interfaces, which are ports of the switch, of packets with comments, and of statistics at the end.
//!
//! All numbers are little-endian, as the section header's magic number shows; options and packets are filled
//! up to four bytes. Times are in nanoseconds.

use std::collections::HashMap;
use std::io::{self, Write};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;

// Codes of options: the end of all blocks, and options of each kind of block.
const END: u16 = 0;
const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const STATISTICS_DROPPED: u16 = 5;

/// Ten to the power of minus nine seconds.
const NANOSECONDS: u8 = 9;

/// Direction of a packet, with the values of `epb_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    In = 1,
    Out = 2,
    Unknown = 0,
}

/// A file that is being written.
pub(super) struct Writer<W> {
    out: W,
    interfaces: HashMap<String, u32>,
    snap_len: u32,
    last_ns: u64,
}

#[derive(Default)]
struct Block(Vec<u8>);

impl Block {
    fn u16(&mut self, n: u16) {
        self.0.extend(n.to_le_bytes());
    }
    fn u32(&mut self, n: u32) {
        self.0.extend(n.to_le_bytes());
    }
    fn time(&mut self, ns: u64) {
        // The upper half first, whatever the order of bytes.
        self.u32(half(ns >> 32));
        self.u32(half(ns & 0xffff_ffff));
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        while !self.0.len().is_multiple_of(4) {
            self.0.push(0);
        }
    }
    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.u16(code);
        self.u16(u16::try_from(value.len()).unwrap_or(u16::MAX));
        self.bytes(value);
    }
    fn end(&mut self) {
        self.u16(END);
        self.u16(0);
    }
}

fn half(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn length(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub(super) fn new(out: W, snap_len: u32) -> io::Result<Self> {
        let mut writer = Self {
            out,
            interfaces: HashMap::new(),
            snap_len,
            last_ns: 0,
        };
        let mut b = Block::default();
        b.u32(BYTE_ORDER);
        b.u16(1);
        b.u16(0);
        // The section's length is not known.
        b.u32(u32::MAX);
        b.u32(u32::MAX);
        b.option(
            SECTION_APPLICATION,
            concat!("heddle ", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
        b.end();
        writer.block(SECTION, &b)?;
        writer.out.flush()?;
        Ok(writer)
    }

    fn block(&mut self, kind: u32, b: &Block) -> io::Result<()> {
        let len = length(b.0.len() + 12).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(&b.0)?;
        self.out.write_all(&len)
    }

    /// The number of a port in the file.
    fn interface(&mut self, name: &str) -> io::Result<u32> {
        if let Some(number) = self.interfaces.get(name) {
            return Ok(*number);
        }
        let mut b = Block::default();
        b.u16(LINKTYPE_ETHERNET);
        b.u16(0);
        b.u32(self.snap_len);
        b.option(INTERFACE_NAME, name.as_bytes());
        b.option(INTERFACE_RESOLUTION, &[NANOSECONDS]);
        b.end();
        self.block(INTERFACE, &b)?;
        let number = length(self.interfaces.len());
        self.interfaces.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Writes a packet of `len` bytes, of which `bytes` were captured.
    pub(super) fn packet(
        &mut self,
        (port, way): (&str, Direction),
        at_ns: u64,
        (bytes, len): (&[u8], usize),
        comment: &str,
    ) -> io::Result<()> {
        let interface = self.interface(port)?;
        self.last_ns = self.last_ns.max(at_ns);
        let mut b = Block::default();
        b.u32(interface);
        b.time(at_ns);
        b.u32(length(bytes.len()));
        b.u32(length(len));
        b.bytes(bytes);
        b.option(PACKET_FLAGS, &(way as u32).to_le_bytes());
        if !comment.is_empty() {
            b.option(COMMENT, comment.as_bytes());
        }
        b.end();
        self.block(PACKET, &b)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Ends the file. The number of missed packets is stored with its first port.
    pub(super) fn finish(mut self, missed: u64) -> io::Result<()> {
        if !self.interfaces.is_empty() {
            let mut b = Block::default();
            b.u32(0);
            b.time(self.last_ns);
            b.option(STATISTICS_DROPPED, &missed.to_le_bytes());
            b.end();
            self.block(STATISTICS, &b)?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types and bodies of the blocks of a file.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |b: &[u8]| u32::from_le_bytes(b[..4].try_into().unwrap());
        let mut all = Vec::new();
        while !file.is_empty() {
            let len = word(&file[4..]) as usize;
            assert_eq!(len % 4, 0);
            assert_eq!(word(&file[len - 4..]) as usize, len, "both lengths");
            all.push((word(file), file[8..len - 4].to_vec()));
            file = &file[len..];
        }
        all
    }

    #[test]
    fn blocks_are_whole_and_ports_come_once() {
        let mut file = Vec::new();
        let mut w = Writer::new(&mut file, 96).unwrap();
        w.packet(("p1", Direction::In), 0x1_0000_0002, (&[1, 2, 3], 60), "")
            .unwrap();
        w.packet(("p2", Direction::Unknown), 5, (&[4; 8], 8), "drop")
            .unwrap();
        w.packet(("p1", Direction::Out), 6, (&[], 0), "").unwrap();
        w.finish(7).unwrap();
        let all = blocks(&file);
        let kinds: Vec<u32> = all.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(
            kinds,
            [SECTION, INTERFACE, PACKET, INTERFACE, PACKET, PACKET, STATISTICS]
        );
        let first = &all[2].1;
        // Interface 0, the time's halves, both lengths, the bytes filled up.
        let want = [
            0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 60, 0, 0, 0, 1, 2, 3, 0,
        ];
        assert_eq!(first[..24], want);
        assert_eq!(all[4].1[0], 1, "the second port");
        assert!(all[4].1.windows(4).any(|w| w == b"drop"));
        assert!(all[6].1.windows(8).any(|w| w == 7_u64.to_le_bytes()));
    }
}
