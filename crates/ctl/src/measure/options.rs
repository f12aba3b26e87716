//! The command line of `heddle measure`.

use anyhow::{Context as _, Result, bail};
use heddle_measure::attach::{ATTACHMENTS, Attachment, Deployment};
use heddle_measure::factors;
use heddle_measure::load::{Pattern, Transport};
use heddle_measure::results::{Case, Plan};
use heddle_measure::uperf::Profile;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Parses a list separated by commas; duplicates are left out.
pub(super) fn list<T: FromStr + PartialEq>(text: &str, what: &str) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.trim().parse::<T>() {
            Ok(value) if !all.contains(&value) => all.push(value),
            Ok(_) => {}
            Err(_) => bail!("{part:?} in {text:?}: not {what}"),
        }
    }
    Ok(all)
}

/// `90`, `90s`, `10m`, `1h`.
fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.chars().last() {
        Some('s') => (&text[..text.len() - 1], 1.0),
        Some('m') => (&text[..text.len() - 1], 60.0),
        Some('h') => (&text[..text.len() - 1], 3600.0),
        _ => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(n) if n > 0.0 && n * unit < 1e7 => Ok(Duration::from_secs_f64(n * unit)),
        _ => Err("not a time: 90s, 10m, 1h".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (0.0..=3600.0).contains(&n) => Ok(n),
        _ => Err("not a number of seconds up to 3600".into()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(n) if n > 0.0 && n < 100.0 => Ok(n / 100.0),
        _ => Err("not a percentage between 0 and 100".into()),
    }
}

/// Two end points with a name, `NAME=A,B` or `A,B`; or `new`: pairs that the program makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Between {
    Given {
        name: String,
        client: String,
        server: String,
    },
    New,
}

impl FromStr for Between {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "new" {
            return Ok(Self::New);
        }
        let (name, ends) = match text.split_once('=') {
            Some((name, ends)) if !name.is_empty() => (name, ends),
            _ => (text, text),
        };
        match ends.split(',').collect::<Vec<_>>().as_slice() {
            [client, server] if !client.is_empty() && !server.is_empty() => Ok(Self::Given {
                name: name.to_owned(),
                client: (*client).to_owned(),
                server: (*server).to_owned(),
            }),
            _ => Err("two end points: A,B, or NAME=A,B, or new".into()),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Two end points, the client first (repeated: contenders that take turns). Written as a namespace's
    /// NAME, here, pid:N, container:ID, pod:[NAMESPACE/]NAME, ssh:HOST, or tcp:ADDRESS:PORT. Or `new`: a pair
    /// of namespaces for each attachment that this node supports, removed afterwards
    #[arg(long, value_name = "[NAME=]A,B | new")]
    pub(super) between: Vec<Between>,
    /// With `new`: host-device, veth, bridge, macvlan, ipvlan-l2, ipvlan-l3, internal, vhost-user, vduse
    #[arg(long, value_name = "LIST", default_value = "all")]
    attachments: String,
    /// With `new`: same (one node), across (two nodes, which are namespaces joined by a veth pair)
    #[arg(long, value_name = "LIST", default_value = "same")]
    deployments: String,
    /// A setting of both end points' devices, whose values become contenders, and which is restored
    /// afterwards: rfs, rps, gro, gso, tso (off, on), mtu, ring
    #[arg(long, value_name = "FACTOR=VALUES")]
    vary: Vec<String>,
    /// The run directory of the switch, for internal and vhost-user; without it $OVS_RUNDIR, or
    /// /var/run/openvswitch
    #[arg(long, value_name = "DIRECTORY")]
    rundir: Option<PathBuf>,
    /// Patterns of connections: rr (request and response), write, read
    #[arg(long, value_name = "LIST", default_value = "rr,write,read")]
    pattern: String,
    /// Connections at once
    #[arg(long, value_name = "LIST", default_value = "1,50,250")]
    connections: String,
    /// Bytes of requests and responses
    #[arg(long, value_name = "LIST", default_value = "1x1,200x1000,200x30000")]
    sizes: String,
    /// Bytes of a stream's messages
    #[arg(long, value_name = "LIST", default_value = "30720")]
    stream_sizes: String,
    /// tcp, udp, or both
    #[arg(long, value_name = "LIST", default_value = "tcp")]
    transport: String,
    /// 4, 6, or both
    #[arg(long, value_name = "LIST", default_value = "4")]
    family: String,
    /// Messages a second of all connections together; latency counts from the time when each was due. Each
    /// value of a list is a case of its own. Without it, connections are as fast as they can be
    #[arg(long, value_name = "LIST")]
    rate: Option<String>,
    /// Run the loads of a profile of uperf (XML) instead; $name in it is taken from the environment
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "connections", "sizes", "stream_sizes", "transport", "rate"])]
    profile: Option<PathBuf>,
    /// Seconds of a series; without it 2, or the duration in the profile
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Seconds before each series, which do not count
    #[arg(long, default_value = "0.3", value_parser = seconds)]
    warmup: f64,
    /// Series of each case and contender, at least
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Maximum number of series of each case and contender, if the interval is not narrow enough sooner
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    most_rounds: u32,
    /// A case is repeated until half the confidence interval is at most PERCENT of the mean
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    precision: f64,
    /// Confidence of intervals, per cent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = percent)]
    confidence: f64,
    /// End after this time, whatever is left: 90s, 10m, 1h
    #[arg(long, value_parser = time)]
    pub(super) time: Option<Duration>,
    /// Threads of each end point; without it, the number of processors
    #[arg(long, default_value_t = 0)]
    pub(super) threads: usize,
    /// Keep the clients on these processors
    #[arg(long, value_name = "LIST")]
    client_processors: Option<String>,
    /// Keep the servers on these processors
    #[arg(long, value_name = "LIST")]
    server_processors: Option<String>,
    /// The server's address; without it its first one
    #[arg(long)]
    pub(super) address: Vec<IpAddr>,
    /// The server's first port; without it any
    #[arg(long, default_value_t = 0)]
    pub(super) port: u16,
    /// The file of results, JSON Lines
    #[arg(long, default_value = "measure.jsonl")]
    pub(super) out: PathBuf,
    /// Continue the file of results where it ended
    #[arg(long)]
    pub(super) resume: bool,
    /// Path of `heddle` on hosts that ssh reaches
    #[arg(long, default_value = "heddle")]
    pub(super) remote: String,
}

impl Options {
    pub(super) fn client_processors(&self) -> Result<Vec<usize>> {
        self.client_processors
            .as_deref()
            .map_or(Ok(Vec::new()), |t| list(t, "a processor"))
    }
    pub(super) fn server_processors(&self) -> Result<Vec<usize>> {
        self.server_processors
            .as_deref()
            .map_or(Ok(Vec::new()), |t| list(t, "a processor"))
    }

    /// The pairs of `new`.
    pub(super) fn pairs(&self) -> Result<Vec<(Attachment, Deployment)>> {
        let attachments = match self.attachments.as_str() {
            "all" => ATTACHMENTS.iter().map(|(_, a)| *a).collect(),
            text => list::<Attachment>(text, "an attachment (--help names them)")?,
        };
        let mut all = Vec::new();
        for deployment in list::<Deployment>(&self.deployments, "same or across")? {
            all.extend(attachments.iter().map(|a| (*a, deployment)));
        }
        Ok(all)
    }

    /// Whether a setting is varied.
    pub(super) fn varies(&self) -> bool {
        !self.vary.is_empty()
    }

    /// Settings of contenders.
    pub(super) fn variations(&self) -> Result<Vec<Vec<(String, String)>>> {
        let factors = self
            .vary
            .iter()
            .map(|t| factors::parse(t))
            .collect::<Result<Vec<_>>>()?;
        for (i, (factor, _)) in factors.iter().enumerate() {
            if factors[..i].iter().any(|(f, _)| f == factor) {
                bail!("--vary {factor} is given twice: {factor}=A,B names all values");
            }
        }
        Ok(factors::combinations(&factors))
    }

    pub(super) fn rundir(&self) -> PathBuf {
        let named = self
            .rundir
            .clone()
            .or_else(|| std::env::var_os("OVS_RUNDIR").map(PathBuf::from));
        named.unwrap_or_else(|| PathBuf::from("/var/run/openvswitch"))
    }

    fn patterns(&self) -> Result<Vec<Pattern>> {
        let mut all = Vec::new();
        for word in list::<String>(&self.pattern, "a pattern")? {
            all.push(match word.as_str() {
                "rr" => Pattern::Rr,
                "write" => Pattern::Write,
                "read" => Pattern::Read,
                _ => bail!("{word:?}: patterns are rr, write and read"),
            });
        }
        Ok(all)
    }

    fn transports(&self) -> Result<Vec<Transport>> {
        let mut all = Vec::new();
        for word in list::<String>(&self.transport, "a transport")? {
            all.push(match word.as_str() {
                "tcp" => Transport::Tcp,
                "udp" => Transport::Udp,
                _ => bail!("{word:?}: transports are tcp and udp"),
            });
        }
        Ok(all)
    }

    fn families(&self) -> Result<Vec<u8>> {
        let all = list::<u8>(&self.family, "4 or 6")?;
        match all.iter().find(|f| ![4, 6].contains(*f)) {
            Some(other) => bail!("family {other}: 4 or 6"),
            None => Ok(all),
        }
    }

    /// Request and response of each pattern.
    fn sizes(&self, pattern: Pattern) -> Result<Vec<(usize, usize)>> {
        if pattern != Pattern::Rr {
            let all = list::<usize>(&self.stream_sizes, "a number of bytes")?;
            return Ok(all.into_iter().map(|s| (s, 0)).collect());
        }
        let mut all = Vec::new();
        for text in list::<String>(&self.sizes, "sizes")? {
            let pair = text
                .split_once('x')
                .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            match pair {
                Some(pair) => all.push(pair),
                None => bail!("{text:?}: sizes are bytes of a request and of its response, 200x1000"),
            }
        }
        Ok(all)
    }

    /// All requested cases, checked.
    pub(super) fn cases(&self) -> Result<Vec<Case>> {
        if let Some(profile) = self.profile()? {
            return self.checked(self.of_profile(&profile)?);
        }
        let rates = match &self.rate {
            Some(text) => list::<f64>(text, "messages a second")?
                .into_iter()
                .map(Some)
                .collect(),
            None => vec![None],
        };
        let connections = list::<usize>(&self.connections, "a number of connections")?;
        let mut cases = Vec::new();
        for family in self.families()? {
            for transport in self.transports()? {
                for pattern in self.patterns()? {
                    for (request, response) in self.sizes(pattern)? {
                        for &connections in &connections {
                            for &rate_per_s in &rates {
                                cases.push(Case {
                                    pattern,
                                    transport,
                                    family,
                                    connections,
                                    request,
                                    response,
                                    rate_per_s,
                                });
                            }
                        }
                    }
                }
            }
        }
        self.checked(cases)
    }

    /// The profile's loads, over each family.
    fn of_profile(&self, profile: &Profile) -> Result<Vec<Case>> {
        let mut cases: Vec<Case> = Vec::new();
        for family in self.families()? {
            for case in &profile.cases {
                let case = Case {
                    family,
                    ..case.clone()
                };
                if !cases.contains(&case) {
                    cases.push(case);
                }
            }
        }
        Ok(cases)
    }

    fn checked(&self, cases: Vec<Case>) -> Result<Vec<Case>> {
        for case in &cases {
            if let Err(why) = case.load(self.threads).check() {
                bail!("{}: {why}", case.name());
            }
        }
        Ok(cases)
    }

    /// The profile of uperf, if one was named.
    fn profile(&self) -> Result<Option<Profile>> {
        let Some(path) = &self.profile else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(path)
            .map_err(|e| anyhow::anyhow!("{}: {}", path.display(), heddle_sys::errno_text(&e)))?;
        let profile = Profile::parse(&text, &|name| std::env::var(name).ok());
        profile.map(Some).with_context(|| path.display().to_string())
    }

    pub(super) fn plan(&self, contenders: Vec<String>, cases: Vec<Case>) -> Result<Plan> {
        let of_profile = self.profile()?.and_then(|p| p.seconds);
        let seconds = self.seconds.or(of_profile).unwrap_or(2.0);
        if seconds < 0.05 {
            bail!("--seconds {seconds}: at least 0.05");
        }
        Ok(Plan {
            contenders,
            cases,
            seconds,
            warmup_s: self.warmup,
            least_rounds: self.rounds,
            most_rounds: self.most_rounds.max(self.rounds),
            confidence: self.confidence,
            precision: self.precision,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_command_line() {
        assert_eq!(list::<u32>("1,50,1", "n").unwrap(), [1, 50]);
        assert!(list::<u32>("1,,2", "a number").is_err());
        assert_eq!(time("10m"), Ok(Duration::from_secs(600)));
        for bad in ["", "m", "-1", "1d", "NaN", "inf", "é"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(percent("5%"), Ok(0.05));
        let given = |name: &str, client: &str, server: &str| Between::Given {
            name: name.into(),
            client: client.into(),
            server: server.into(),
        };
        assert_eq!("x=a,ssh:b".parse(), Ok(given("x", "a", "ssh:b")));
        assert_eq!("a,b".parse(), Ok(given("a,b", "a", "b")));
        assert_eq!("new".parse(), Ok(Between::New));
        assert!("a".parse::<Between>().is_err() && "a,b,c".parse::<Between>().is_err());
    }
}
