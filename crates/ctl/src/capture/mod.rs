//! `heddle capture`: packets of a port, or packets that are dropped, in a file that Wireshark and tcpdump
//! read.
//!
//! Workers copy as many packets as they can in a few percent of their time, so that nobody else suffers; what
//! is missing is told at the end, and in the file. Filters are looked at after that.

mod pcapng;

use crate::ask::Target;
use crate::bench::enough;
use anyhow::{Context as _, Result, bail};
use pcapng::{Way, Writer};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Packets that this port receives or sends; with --drop, those that came in by it
    #[arg(short, long, value_name = "PORT")]
    port: Option<String>,
    /// Packets that are dropped for this reason (a name, or its end), or any
    #[arg(short, long, value_name = "REASON")]
    drop: Option<String>,
    /// Packets that are like this, such as tcp,nw_dst=10.0.0.2
    #[arg(long, value_name = "MATCH")]
    filter: Option<String>,
    /// Where to write pcapng; - is standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Bytes of each packet
    #[arg(short, long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    snaplen: u32,
    /// End after so many packets
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
}

/// What the switch tells.
#[derive(Deserialize)]
struct Told {
    packets: Vec<Packet>,
    missed: u64,
    passed_over: u64,
}

#[derive(Deserialize)]
struct Packet {
    at_ns: String,
    port: String,
    way: String,
    drop: Option<String>,
    flow: String,
    length: usize,
    bytes: String,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let out: Box<dyn Write> = match self.write.to_str() {
            Some("-") if io::stdout().is_terminal() => {
                bail!("pcapng is nothing for a terminal: -w FILE, or a pipe")
            }
            Some("-") => Box::new(io::stdout().lock()),
            _ => Box::new(File::create(&self.write).with_context(|| self.write.display().to_string())?),
        };
        let socket = self.target.socket()?;
        let ask = |command: &str, params: &[&str]| crate::ask::ask(&socket, command, params);
        let snap_len = self.snaplen.to_string();
        let mut wanted = vec!["--snaplen", snap_len.as_str()];
        for (option, value) in [
            ("--port", &self.port),
            ("--drop", &self.drop),
            ("--filter", &self.filter),
        ] {
            if let Some(value) = value {
                wanted.extend([option, value]);
            }
        }
        let ends = enough()?;
        let mut file = Writer::new(BufWriter::new(out), self.snaplen)?;
        let number = ask("heddle/capture-start", &wanted)?.trim().to_owned();
        let began = Instant::now();
        let mut written = 0;
        let mut missed = 0;
        let mut passed_over = 0;
        let done = loop {
            let time_is_over = self.seconds.is_some_and(|s| began.elapsed().as_secs_f64() >= s);
            let last = ends.load(Relaxed) || time_is_over;
            let told: Told = match ask("heddle/capture-read", &[&number]) {
                Ok(text) => serde_json::from_str(&text)?,
                Err(e) => break Err(e),
            };
            (missed, passed_over) = (told.missed, told.passed_over);
            let some = !told.packets.is_empty();
            let room = self.count.map_or(u64::MAX, |most| most.saturating_sub(written));
            let take = usize::try_from(room).unwrap_or(usize::MAX);
            let put = told.packets.iter().take(take).try_for_each(|p| {
                written += 1;
                write(&mut file, p)
            });
            if let Err(e) = put.and_then(|()| file.flush()) {
                break match e.kind() {
                    // Who reads this has read enough.
                    io::ErrorKind::BrokenPipe => Ok(()),
                    _ => Err(e.into()),
                };
            }
            if last || self.count.is_some_and(|most| written >= most) {
                break Ok(());
            }
            if !some {
                std::thread::sleep(LOOK);
            }
        };
        // It would end by itself after some seconds.
        let _ = ask("heddle/capture-stop", &[&number]);
        if done.is_ok() {
            let _ = file.finish(missed);
        }
        let not = match &self.filter {
            Some(_) => format!(", {passed_over} were not what the filter asks for"),
            None => String::new(),
        };
        eprintln!("{written} packets captured, {missed} missed{not}");
        done
    }
}

fn write<W: Write>(file: &mut Writer<W>, p: &Packet) -> io::Result<()> {
    let way = match p.way.as_str() {
        "in" => Way::In,
        "out" => Way::Out,
        _ => Way::Unknown,
    };
    let comment = match &p.drop {
        Some(reason) => format!("{reason}; {}", p.flow),
        None => p.flow.clone(),
    };
    let at_ns = p.at_ns.parse().unwrap_or(0);
    file.packet((&p.port, way), at_ns, (&unhex(&p.bytes), p.length), &comment)
}

/// The bytes of hexadecimal digits; what is none ends them.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    pairs
        .iter()
        .map_while(|[a, b]| Some(digit(*a)? << 4 | digit(*b)?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::unhex;

    #[test]
    fn digits() {
        assert_eq!(unhex("00ff1A"), [0, 255, 26]);
        assert_eq!(unhex("00zz11"), [0]);
        assert_eq!(unhex("001"), [0]);
    }
}
