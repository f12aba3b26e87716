//! `heddle capture`: packets of a port, or packets that are dropped, in a file that Wireshark and tcpdump
//! read.
//!
//! Workers copy packets for at most one percent of their time. All other work runs on processor time that
//! other programs leave, so no other traffic suffers. The number of missed packets is printed at the end, and
//! is in the file. Filters are applied after the copy.

mod pcapng;

use crate::bench::ended;
use crate::request::Target;
use anyhow::{Context as _, Result, bail};
use pcapng::{Direction, Writer};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Interval between two requests.
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
    /// Packets that match, for example tcp,nw_dst=10.0.0.2
    #[arg(long, value_name = "MATCH")]
    filter: Option<String>,
    /// File to write, as pcapng; - is standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Bytes of each packet
    #[arg(short, long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    snaplen: u32,
    /// End after N packets
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End after N seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n.is_finite() && n >= 0.0 => Ok(n),
        _ => Err("not a number of seconds".into()),
    }
}

/// A reply of the switch.
#[derive(Deserialize)]
struct CaptureReply {
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
        if self.write.as_os_str() == "-" && io::stdout().is_terminal() {
            bail!("pcapng is nothing for a terminal: -w FILE, or a pipe");
        }
        let socket = self.target.socket()?;
        let request = |command: &str, params: &[&str]| crate::request::request(&socket, command, params);
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
        heddle_sys::cpu::stand_back();
        let name = || self.write.display().to_string();
        // Open the file before signals are held: opening a pipe waits for its reader.
        let mut made = None;
        let out: Box<dyn Write> = match self.write.to_str() {
            Some("-") => Box::new(io::stdout().lock()),
            _ => {
                let (file, is_made) = Late::open(&self.write).with_context(name)?;
                made = is_made.then_some(&self.write);
                Box::new(file)
            }
        };
        let ends = ended()?;
        let refused = |why| {
            made.inspect(|path| drop(std::fs::remove_file(path)));
            why
        };
        let number = request("heddle/capture-start", &wanted).map_err(refused)?;
        let number = number.trim().to_owned();
        let begun = Writer::new(BufWriter::new(out), self.snaplen).with_context(name);
        let mut file = begun.inspect_err(|_| drop(request("heddle/capture-stop", &[&number])))?;
        let began = Instant::now();
        let mut written = 0;
        let mut missed = 0;
        let mut passed_over = 0;
        let done = loop {
            let time_is_over = self.seconds.is_some_and(|s| began.elapsed().as_secs_f64() >= s);
            let last = ends.load(Relaxed) || time_is_over;
            let told: CaptureReply = match request("heddle/capture-read", &[&number]) {
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
                    // The reader has read enough.
                    io::ErrorKind::BrokenPipe => Ok(()),
                    _ => Err(e).with_context(name),
                };
            }
            if last || self.count.is_some_and(|most| written >= most) {
                break Ok(());
            }
            if !some {
                std::thread::sleep(LOOK);
            }
        };
        // The capture would end by itself after some seconds.
        let _ = request("heddle/capture-stop", &[&number]);
        let done = done.and_then(|()| match file.finish(missed) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e).with_context(name),
            _ => Ok(()),
        });
        let not = match &self.filter {
            Some(_) => format!(", {passed_over} did not match the filter"),
            None => String::new(),
        };
        let s = if written == 1 { "" } else { "s" };
        eprintln!("{written} packet{s} captured, {missed} missed{not}");
        done
    }
}

/// A file that keeps its contents until the first write: if the switch refuses the capture, nothing is lost.
struct Late {
    file: File,
    is_new: bool,
}

impl Late {
    /// Opens the file; also returns whether it is new.
    fn open(path: &Path) -> io::Result<(Late, bool)> {
        let mut how = File::options();
        how.write(true);
        match how.clone().create_new(true).open(path) {
            Ok(file) => return Ok((Late { file, is_new: true }, true)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        // A link without a target creates a new file, too.
        let file = how.create(true).truncate(false).open(path)?;
        // Pipes and devices have no length.
        let is_new = !file.metadata()?.is_file();
        Ok((Late { file, is_new }, false))
    }
}

impl Write for Late {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_new {
            self.file.set_len(0)?;
            self.is_new = true;
        }
        self.file.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn write<W: Write>(file: &mut Writer<W>, p: &Packet) -> io::Result<()> {
    let way = match p.way.as_str() {
        "in" => Direction::In,
        "out" => Direction::Out,
        _ => Direction::Unknown,
    };
    let comment = match &p.drop {
        Some(reason) => format!("{reason}; {}", p.flow),
        None => p.flow.clone(),
    };
    let at_ns = p.at_ns.parse().unwrap_or(0);
    file.packet((&p.port, way), at_ns, (&unhex(&p.bytes), p.length), &comment)
}

/// The bytes of hexadecimal digits; any other character ends them.
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
    use super::{Late, seconds, unhex};
    use std::io::Write as _;

    #[test]
    fn a_file_is_emptied_by_the_first_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pcapng");
        std::fs::write(&path, "of yesterday").unwrap();
        let (mut late, is_made) = Late::open(&path).unwrap();
        assert!(!is_made && Late::open(&dir.path().join("other")).unwrap().1);
        assert_eq!(std::fs::read(&path).unwrap(), b"of yesterday");
        late.write_all(b"of").unwrap();
        late.write_all(b" today").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"of today");
    }

    #[test]
    fn times() {
        assert_eq!((seconds("0"), seconds("1.5")), (Ok(0.0), Ok(1.5)));
        for wrong in ["nan", "inf", "-1", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn digits() {
        assert_eq!(unhex("00ff1A"), [0, 255, 26]);
        assert_eq!(unhex("00zz11"), [0]);
        assert_eq!(unhex("001"), [0]);
    }
}
