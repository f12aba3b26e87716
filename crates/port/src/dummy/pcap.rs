//! Capture files in the classic libpcap format, microseconds, native byte order.
//!
//! Each record is one write, so that a reader finds whole records in the file at any time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
const SNAPLEN: u32 = 1518;
const LINK_ETHERNET: u32 = 1;

/// A capture file that is appended to.
#[derive(Debug)]
pub(super) struct Pcap {
    file: File,
    record: Vec<u8>,
}

impl Pcap {
    /// Opens `path` for appending; an empty file gets its header.
    pub(super) fn append(path: &str) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        if file.metadata()?.len() == 0 {
            let mut h = MAGIC_MICROSECONDS.to_ne_bytes().to_vec();
            h.extend(VERSION.iter().flat_map(|v| v.to_ne_bytes()));
            h.extend(
                [0, 0, SNAPLEN, LINK_ETHERNET]
                    .iter()
                    .flat_map(|v: &u32| v.to_ne_bytes()),
            );
            file.write_all(&h)?;
        }
        Ok(Self {
            file,
            record: Vec::new(),
        })
    }

    /// Appends one packet. A full disk loses the packet from the file, nothing else.
    pub(super) fn write(&mut self, frame: &[u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let secs = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        self.record.clear();
        for word in [secs, now.subsec_micros(), len, len] {
            self.record.extend_from_slice(&word.to_ne_bytes());
        }
        self.record.extend_from_slice(frame);
        let _ = self.file.write_all(&self.record);
    }
}
