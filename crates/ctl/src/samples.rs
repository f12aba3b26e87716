//! `heddle samples`: packets that rules sample for a local group, as they come.
//!
//! The switch sends each sample as one message of a Unix socket in its run directory. A reader that is too
//! slow loses samples, and gets their number.

use crate::console;
use crate::request::Target;
use anyhow::{Context as _, Result, bail};
use heddle_sys::Epoll;
use heddle_sys::seqpacket::Connection;
use serde::Deserialize;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

/// Maximum length of a message.
const MAX_MESSAGE_BYTES: usize = 1 << 16;
/// Bytes of a packet on one line.
const LINE_BYTES: usize = 16;
/// A rule's probability of 65,535 stands for every packet.
const EVERY_PACKET: f64 = 65_535.0;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Only samples of this group
    #[arg(short, long, value_name = "NUMBER")]
    group: Option<u32>,
    /// End after this number of samples
    #[arg(short = 'n', long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Also print the packets' bytes
    #[arg(long, conflicts_with = "json")]
    hex: bool,
    /// Print one JSON object for each sample
    #[arg(long)]
    json: bool,
}

/// The switch's reply to the request for samples.
#[derive(Deserialize)]
struct Source {
    socket: PathBuf,
}

#[derive(Deserialize)]
struct Sample {
    group: u32,
    domain: u32,
    point: u32,
    /// Sampling probability, as a fraction of 65,535.
    probability: u32,
    port: String,
    /// Length of the whole packet.
    length: u64,
    packet: String,
    bytes: String,
    /// Samples that this reader lost before this one.
    lost: u64,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let source: Source = serde_json::from_str(&self.target.request("heddle/samples", &[])?)?;
        let connection = Connection::open(&source.socket).with_context(|| {
            format!(
                "cannot connect to the socket of samples {}: does heddled run, and may this user open it?",
                source.socket.display()
            )
        })?;
        let mut epoll = Epoll::new(1)?;
        epoll.add(connection.as_fd().as_raw_fd(), 0)?;
        let mut buf = vec![0; MAX_MESSAGE_BYTES];
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            match connection.receive(&mut buf) {
                Ok(Some(message)) => {
                    if self.print(std::str::from_utf8(message)?)? {
                        left -= 1;
                    }
                }
                Ok(None) => bail!(
                    "the switch has closed the connection: it ended, or more than 16 readers are connected"
                ),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => _ = epoll.wait(-1)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Prints a sample. `false`: it is of another group.
    fn print(&self, message: &str) -> Result<bool> {
        let sample: Sample = serde_json::from_str(message)?;
        if self.group.is_some_and(|group| group != sample.group) {
            return Ok(false);
        }
        if self.json {
            console::out(&format!("{message}\n"))?;
        } else {
            console::out(&text(&sample, self.hex))?;
        }
        Ok(true)
    }
}

/// The lines of one sample.
fn text(s: &Sample, hex: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    if s.lost > 0 {
        let _ = writeln!(out, "{} samples lost, this reader was too slow", s.lost);
    }
    let rate = EVERY_PACKET / f64::from(s.probability.max(1));
    // A rate such as 4.00006 comes from a quarter in 65,535ths.
    let rate = (rate * 100.0).round() / 100.0;
    let _ = writeln!(
        out,
        "group {} domain {:#010x} point {:#010x} port {} rate 1/{rate} length {}: {}",
        s.group,
        s.domain,
        s.point,
        clean(&s.port),
        s.length,
        clean(&s.packet)
    );
    if hex {
        let digits: Vec<char> = s.bytes.chars().collect();
        for (i, line) in digits.chunks(2 * LINE_BYTES).enumerate() {
            let pairs: Vec<String> = line.chunks(2).map(|pair| pair.iter().collect()).collect();
            let _ = writeln!(out, "  {:04x}  {}", i * LINE_BYTES, pairs.join(" "));
        }
    }
    out
}

/// Replaces control characters by '?', since names come from the database and may control the terminal.
fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_one_line_and_its_bytes() {
        let sample = |lost| {
            serde_json::from_str(&format!(
                r#"{{"group":10,"domain":33554442,"point":7,"cookie":"0200000a00000007","probability":16384,"port":"p\u001b1",
                "length":60,"packet":"udp 10.7.0.1:1 > 10.7.0.2:9","bytes":"{}","lost":{lost},"time":1.5}}"#,
                "0a".repeat(18)
            ))
            .unwrap()
        };
        let line = "group 10 domain 0x0200000a point 0x00000007 port p?1 rate 1/4 length 60: udp 10.7.0.1:1 > 10.7.0.2:9\n";
        assert_eq!(text(&sample(0), false), line);
        let bytes = format!("  0000  {}\n  0010  0a 0a\n", ["0a"; 16].join(" "));
        let lost = "3 samples lost, this reader was too slow\n";
        assert_eq!(text(&sample(3), true), format!("{lost}{line}{bytes}"));
    }
}
