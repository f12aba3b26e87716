//! The file of results: one JSON object a line, the machine first.
//!
//! A line is written when its series is over, so a crash loses only the series that was running. A last line
//! that was cut off is ignored when the file is read, and removed when the file is resumed.

use crate::load::{Load, Pattern, Transport};
use crate::usage::{Process, Processor};
use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// Version of the layout of lines.
pub const FORMAT: u32 = 1;

/// One case: a load, and the family of addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Request and response, or a stream.
    pub pattern: Pattern,
    /// Transport protocol.
    pub transport: Transport,
    /// 4 or 6.
    pub family: u8,
    /// Number of connections at once.
    pub connections: usize,
    /// Bytes of a request or of a stream's message.
    pub request: usize,
    /// Bytes of a reply; 0 of streams.
    pub response: usize,
    /// Messages a second of all connections; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
}

impl Case {
    /// Name of the case, unique in a plan: `rr 200x1000 c50 tcp4`.
    pub fn name(&self) -> String {
        let sizes = match self.pattern {
            Pattern::Rr => format!("rr {}x{}", self.request, self.response),
            Pattern::Write => format!("write {}", self.request),
            Pattern::Read => format!("read {}", self.request),
        };
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        let rate = self.rate_per_s.map_or(String::new(), |r| format!(" {r}/s"));
        format!("{sizes} c{} {transport}{}{rate}", self.connections, self.family)
    }
    /// The case as a load for agents.
    pub fn load(&self, threads: usize) -> Load {
        Load {
            pattern: self.pattern,
            transport: self.transport,
            connections: self.connections,
            threads,
            request: self.request,
            response: self.response,
            rate_per_s: self.rate_per_s,
        }
    }
    /// Whether a higher [`Series::headline`] is better.
    pub fn more_is_better(&self) -> bool {
        !(self.pattern == Pattern::Rr && self.rate_per_s.is_some())
    }
    /// The unit of [`Series::headline`].
    pub fn unit(&self) -> &'static str {
        match (self.pattern, self.rate_per_s) {
            (Pattern::Rr, None) => "1/s",
            (Pattern::Rr, Some(_)) => "us p99",
            _ => "MiB/s",
        }
    }
}

/// Latency of transactions, microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Transactions that were timed.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// Nine of ten are faster.
    pub p90_us: f64,
    /// 99 of 100 are faster.
    pub p99_us: f64,
    /// 999 of 1000 are faster.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// Latency at [`QUANTILES`].
    pub curve_us: Vec<f64>,
}

/// Quantiles of latency that are stored, for plots.
pub const QUANTILES: [f64; 25] = [
    0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85,
    0.9, 0.95, 0.975, 0.99, 0.999, 1.0,
];

impl Latency {
    /// Summary of pairs of nanoseconds and their number, ascending; `None` for no pairs.
    pub fn of(pairs: &[(u64, u64)]) -> Option<Self> {
        let count: u64 = pairs.iter().map(|(_, n)| n).sum();
        let (last, _) = pairs.last()?;
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |q: f64| {
            let mut left = (q * count as f64).ceil().max(1.0);
            for (ns, n) in pairs {
                left -= *n as f64;
                if left <= 0.0 {
                    return us(*ns);
                }
            }
            us(*last)
        };
        Some(Self {
            count,
            mean_us: pairs.iter().map(|(ns, n)| us(*ns) * *n as f64).sum::<f64>() / count as f64,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(*last),
            curve_us: QUANTILES.iter().map(|q| at(*q)).collect(),
        })
    }
}

/// Results of one series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the contender.
    pub contender: String,
    /// The case that was measured.
    pub case: Case,
    /// Number of the round; contenders of one round follow each other.
    pub round: u32,
    /// Start of the series, seconds since 1970.
    pub at_unix_s: f64,
    /// Measured time, seconds.
    pub seconds: f64,
    /// Requests with a reply, or received messages of streams, per second.
    pub transactions_per_s: f64,
    /// Payload that arrived, both directions of request and response.
    pub mib_per_s: f64,
    /// Latency of request and response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// 99th percentile of the generator's own delay of requests, at a fixed rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_p99_us: Option<f64>,
    /// Replies, or messages of streams, that did not come (UDP).
    pub lost: u64,
    /// Segments that TCP sent again, both ends.
    pub retransmitted: u64,
    /// Processor time of all machines that took part.
    pub processor: Processor,
    /// Processor seconds of both agents.
    pub agents_s: f64,
    /// The busiest processes.
    pub processes: Vec<Process>,
    /// Payload per second of processor time of all machines.
    pub mib_per_cpu_s: f64,
    /// Transactions per second of processor time of all machines.
    pub transactions_per_cpu_s: f64,
    /// Share of the machines' time that unrelated processes took.
    pub others_share: f64,
    /// Share that the hypervisor gave to others.
    pub steal_share: f64,
}

impl Series {
    /// The number by which series of a case are compared, and for which they are repeated.
    pub fn headline(&self) -> f64 {
        match (self.case.pattern, &self.latency) {
            (Pattern::Rr, Some(latency)) if self.case.rate_per_s.is_some() => latency.p99_us,
            (Pattern::Rr, _) => self.transactions_per_s,
            _ => self.mib_per_s,
        }
    }
}

/// The plan of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Names of the contenders, in the order of the command line.
    pub contenders: Vec<String>,
    /// Cases to measure.
    pub cases: Vec<Case>,
    /// Seconds of a series.
    pub seconds: f64,
    /// Seconds before a series that do not count.
    pub warmup_s: f64,
    /// Minimum number of series of each case and contender.
    pub least_rounds: u32,
    /// Maximum number of series of each case and contender.
    pub most_rounds: u32,
    /// Confidence of intervals: 0.95.
    pub confidence: f64,
    /// Maximum half width of an interval, as a share of the mean, at which a case is done.
    pub precision: f64,
}

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub enum Record {
    /// The machine that measured: the layout of lines, and names and values for people.
    Machine {
        /// Version of the layout: [`FORMAT`].
        format: u32,
        /// Facts by name.
        facts: BTreeMap<String, String>,
    },
    /// The plan of the run.
    Plan(Plan),
    /// A contender that cannot be measured here.
    Unavailable {
        /// Name of the contender.
        contender: String,
        /// The reason.
        why: String,
    },
    /// A series that failed.
    Fault {
        /// Name of the contender.
        contender: String,
        /// Name of the case.
        case: String,
        /// The reason.
        why: String,
    },
    /// A series.
    Series(Box<Series>),
}

/// First bytes of each file.
const BEGINNING: &[u8] = b"{\"record\":\"machine\"";

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Path of the file, for messages.
    pub name: String,
    /// Facts of the machine of each run, the newest last.
    pub machines: Vec<BTreeMap<String, String>>,
    /// The newest plan.
    pub plan: Option<Plan>,
    /// Contenders that could not be measured, and the reason.
    pub unavailable: Vec<(String, String)>,
    /// Contender, case and reason of series that failed.
    pub faults: Vec<(String, String, String)>,
    /// Series in the order in which they were measured.
    pub series: Vec<Series>,
    /// Length of the whole lines, bytes.
    pub whole: u64,
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    /// There is no such file, it has no results, or a line is malformed; the error names the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| anyhow::anyhow!("{}: {}", path.display(), heddle_sys::errno_text(&e)))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads a file to resume it. Unlike [`Results::read`], it takes a file whose first line is cut off as
    /// empty.
    ///
    /// # Errors
    /// The errors of [`Results::read`].
    pub fn read_to_go_on(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        match std::fs::read(path) {
            Ok(bytes)
                if BEGINNING.starts_with(&bytes)
                    || (bytes.starts_with(BEGINNING) && !bytes.contains(&b'\n')) =>
            {
                Ok(Self {
                    name,
                    ..Self::default()
                })
            }
            _ => Self::read(path),
        }
    }

    /// Reads a text as [`Results::read`] reads a file.
    ///
    /// # Errors
    /// The errors of [`Results::read`].
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut results = Self {
            name: name.to_owned(),
            ..Self::default()
        };
        for (n, line) in text.split_inclusive('\n').enumerate() {
            if !line.ends_with('\n') {
                break; // cut off
            }
            let record = serde_json::from_str(line).with_context(|| {
                format!(
                    "{name}: line {} is no line of results (remove it to keep the others)",
                    n + 1
                )
            })?;
            results.take(record).with_context(|| name.to_owned())?;
            results.whole += line.len() as u64;
        }
        if results.machines.is_empty() {
            bail!("{name}: no results of `heddle measure`");
        }
        Ok(results)
    }

    fn take(&mut self, record: Record) -> Result<()> {
        match record {
            Record::Machine { format, .. } if format != FORMAT => {
                bail!("written in format {format}, this program reads {FORMAT}")
            }
            Record::Machine { facts, .. } => self.machines.push(facts),
            Record::Plan(plan) => self.plan = Some(plan),
            Record::Unavailable { contender, why } => {
                self.unavailable.retain(|(c, _)| *c != contender);
                self.unavailable.push((contender, why));
            }
            Record::Fault { contender, case, why } => self.faults.push((contender, case, why)),
            Record::Series(series) => self.series.push(*series),
        }
        Ok(())
    }

    /// Contenders that have series, in the order of the plan.
    pub fn contenders(&self) -> Vec<String> {
        let mut all = self.plan.as_ref().map_or(Vec::new(), |p| p.contenders.clone());
        for s in &self.series {
            if !all.contains(&s.contender) {
                all.push(s.contender.clone());
            }
        }
        all.retain(|c| self.series.iter().any(|s| s.contender == *c));
        all
    }

    /// Cases that have series, in the order of the plan.
    pub fn cases(&self) -> Vec<Case> {
        let mut all = self.plan.as_ref().map_or(Vec::new(), |p| p.cases.clone());
        for s in &self.series {
            if !all.contains(&s.case) {
                all.push(s.case.clone());
            }
        }
        all.retain(|c| self.series.iter().any(|s| s.case == *c));
        all
    }

    /// Series of a contender in a case.
    pub fn of(&self, contender: &str, case: &Case) -> Vec<&Series> {
        let wanted = |s: &&Series| s.contender == contender && s.case == *case;
        self.series.iter().filter(wanted).collect()
    }

    /// [`Series::headline`] of each series of a contender in a case.
    pub fn headlines(&self, contender: &str, case: &Case) -> Vec<f64> {
        self.of(contender, case).iter().map(|s| s.headline()).collect()
    }
}

/// A results file that is being written.
#[derive(Debug)]
pub struct Sink {
    file: File,
    path: PathBuf,
}

impl Sink {
    /// Makes a new file.
    ///
    /// # Errors
    /// The file exists; it cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file = match file {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => bail!(
                "{}: exists already: use --resume to continue it, or another --out",
                path.display()
            ),
            file => {
                file.map_err(|e| anyhow::anyhow!("{}: {}", path.display(), heddle_sys::errno_text(&e)))?
            }
        };
        let path = path.to_owned();
        Ok(Self { file, path })
    }

    /// Opens a file to append to it, behind the whole lines of `results`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn resume(path: &Path, results: &Results) -> Result<Self> {
        let mut file = OpenOptions::new()
            .write(true)
            .open(path)
            .with_context(|| path.display().to_string())?;
        file.set_len(results.whole)?;
        file.seek(SeekFrom::End(0))?;
        let path = path.to_owned();
        Ok(Self { file, path })
    }

    /// Writes a line, and waits until it is on the disk.
    ///
    /// # Errors
    /// The disk is full.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        let mut text = serde_json::to_string(record)?;
        text.push('\n');
        let done = self
            .file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data());
        done.with_context(|| self.path.display().to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn case(connections: usize) -> Case {
        Case {
            pattern: Pattern::Rr,
            transport: Transport::Tcp,
            family: 4,
            connections,
            request: 200,
            response: 1000,
            rate_per_s: None,
        }
    }

    /// A made-up series with `transactions_per_s`.
    pub(crate) fn series(contender: &str, case: &Case, round: u32, transactions_per_s: f64) -> Series {
        Series {
            contender: contender.into(),
            case: case.clone(),
            round,
            at_unix_s: 0.0,
            seconds: 1.0,
            transactions_per_s,
            mib_per_s: transactions_per_s / 1000.0,
            latency: Latency::of(&[(1000, 90), (2000, 10)]),
            lag_p99_us: None,
            lost: 0,
            retransmitted: 0,
            processor: Processor {
                user_s: 0.5,
                idle_s: 1.5,
                ..Processor::default()
            },
            agents_s: 0.5,
            processes: Vec::new(),
            mib_per_cpu_s: transactions_per_s / 500.0,
            transactions_per_cpu_s: transactions_per_s * 2.0,
            others_share: 0.0,
            steal_share: 0.0,
        }
    }

    #[test]
    fn known_distribution() {
        // 1 to 1000 us, each once.
        let pairs: Vec<_> = (1..=1000).map(|us| (us * 1000, 1)).collect();
        let l = Latency::of(&pairs).unwrap();
        assert_eq!((l.count, l.p50_us, l.p90_us), (1000, 500.0, 900.0));
        assert_eq!((l.p99_us, l.p999_us, l.max_us), (990.0, 999.0, 1000.0));
        assert_eq!((l.mean_us, l.curve_us.len()), (500.5, QUANTILES.len()));
        assert_eq!(Latency::of(&[]), None);
    }

    #[test]
    fn files_are_written_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let machine = Record::Machine {
            format: FORMAT,
            facts: BTreeMap::from([("kernel".into(), "6".into())]),
        };
        let one = series("a", &case(1), 1, 100.0);
        let mut sink = Sink::create(&path).unwrap();
        sink.write(&machine).unwrap();
        sink.write(&Record::Series(Box::new(one.clone()))).unwrap();
        assert!(Sink::create(&path).unwrap_err().to_string().contains("--resume"));
        // A line that was cut off is no line.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"record\":\"ser").unwrap();
        let results = Results::read(&path).unwrap();
        assert_eq!(results.series.first(), Some(&one));
        Sink::resume(&path, &results)
            .unwrap()
            .write(&Record::Series(Box::new(one)))
            .unwrap();
        assert_eq!(Results::read(&path).unwrap().series.len(), 2);
    }

    #[test]
    fn a_file_without_a_whole_line_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        for cut in ["", "{\"rec", "{\"record\":\"machine\",\"form"] {
            std::fs::write(&path, cut).unwrap();
            let results = Results::read_to_go_on(&path).unwrap();
            assert_eq!((results.whole, results.series.len()), (0, 0));
            let facts = BTreeMap::new();
            let machine = Record::Machine {
                format: FORMAT,
                facts,
            };
            Sink::resume(&path, &results).unwrap().write(&machine).unwrap();
            assert_eq!(Results::read(&path).unwrap().machines.len(), 1);
        }
        for other in ["my letters", "{\"record\":\"sonata\"}", "\u{0}"] {
            std::fs::write(&path, other).unwrap();
            assert!(Results::read_to_go_on(&path).is_err(), "{other}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        for (text, why) in [
            ("", "no results"),
            ("hello\n", "line 1"),
            ("{\"record\":\"machine\",\"format\":99,\"facts\":{}}\n", "x"),
        ] {
            let e = Results::parse("x", text).unwrap_err();
            assert!(format!("{e:#}").contains(why), "{e:#}");
        }
        assert!(
            Results::read(Path::new("/no/such"))
                .unwrap_err()
                .to_string()
                .contains("No such file")
        );
    }
}
