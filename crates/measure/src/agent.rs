//! An agent: the process at an end point that opens sockets there and carries out requests.
//!
//! Requests and replies are one line of JSON each, over a stream: a socket pair, the pipes of `ssh`, or TCP
//! (`heddle measure agent --listen`). An agent ends with its stream, so no process is left behind when the
//! requesting program ends. It works with one load at a time; a new load ends the one before.

use crate::load::{EndResult, Listening, Load, Role, Running, Socket, Totals, connect};
use crate::usage::{Moment, Usage};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Version of the protocol, the same on both sides; raised when messages change.
pub const VERSION: u32 = 1;
/// Maximum length of a line.
const MAX_BYTES: u64 = 16 << 20;

/// A request to an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Return the agent's [`Hello`].
    Hello,
    /// Be the server, on `port` and the ones after it; 0: on any free ports.
    Listen {
        /// The load to serve.
        load: Load,
        /// The address that clients know.
        address: IpAddr,
        /// The first port, or 0.
        port: u16,
    },
    /// Be the client, and connect.
    Connect {
        /// The load to generate.
        load: Load,
        /// The server.
        to: IpAddr,
        /// The server's ports.
        ports: Vec<u16>,
    },
    /// Both ends are connected: start the load.
    Go,
    /// Return the present counters; the measurement begins or ends now.
    Mark {
        /// Whether the measurement begins; false: it ends.
        begins: bool,
    },
    /// End the load, and return its [`Outcome`].
    Stop,
}

/// The reply of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Reply to [`Ask::Hello`].
    Hello(Hello),
    /// Reply to [`Ask::Listen`]: the ports.
    Listening(Vec<u16>),
    /// The request was carried out, and there is nothing to return.
    Done,
    /// Reply to [`Ask::Mark`].
    Mark(Box<Mark>),
    /// Reply to [`Ask::Stop`].
    Outcome(Box<Outcome>),
    /// The request failed, for this reason.
    Fault(String),
}

/// An agent's description of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Process id of the agent.
    pub pid: u32,
    /// The kernel's boot id: end points with the same one are on the same machine.
    pub boot: String,
    /// The machine's name.
    pub host: String,
    /// Addresses of the end point, those of loopback and of one link left out.
    pub addresses: Vec<IpAddr>,
}

/// The counters of an end at one time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Mark {
    /// Time by the end's own clock.
    pub at_ns: u64,
    /// Counters since the load began.
    pub totals: Totals,
    /// Nanoseconds that this agent has had a processor.
    pub own_ns: u64,
    /// Processor time used since the mark before; empty at the first.
    pub usage: Usage,
    /// Whether connections broke.
    pub is_broken: bool,
}

/// The result of one end of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Latency in ns, as pairs of a value and its count.
    pub latency: Vec<(u64, u64)>,
    /// Delays of requests that only the generator caused, in ns, as pairs like `latency`.
    pub lag: Vec<(u64, u64)>,
    /// Errors of the threads, as text.
    pub faults: Vec<String>,
}

fn pairs(h: Option<Histogram<u64>>) -> Vec<(u64, u64)> {
    let recorded = |h: Histogram<u64>| {
        h.iter_recorded()
            .map(|v| (v.value_iterated_to(), v.count_at_value()))
            .collect()
    };
    h.map(recorded).unwrap_or_default()
}

impl From<EndResult> for Outcome {
    fn from(found: EndResult) -> Self {
        Self {
            latency: pairs(found.latency),
            lag: pairs(found.lag),
            faults: found.faults,
        }
    }
}

#[derive(Default)]
enum AgentState {
    #[default]
    Idle,
    Listening(Load, Listening),
    Connected(Load, Vec<Arc<Socket>>),
    Running(Running),
}

#[derive(Default)]
struct Agent {
    state: AgentState,
    last: Option<Moment>,
}

/// Handles the requests of one peer, until the stream ends.
///
/// # Errors
/// The stream breaks.
pub fn serve(input: impl Read, mut output: impl Write) -> io::Result<()> {
    let _ = heddle_sys::process::raise_descriptor_limit();
    let mut input = BufReader::new(input);
    let mut agent = Agent::default();
    while let Some(line) = line(&mut input)? {
        let answer = match serde_json::from_str(&line) {
            Ok(ask) => agent
                .answer(ask)
                .unwrap_or_else(|e| Answer::Fault(heddle_sys::errno_text(&e))),
            Err(e) => Answer::Fault(format!("this agent does not know the question: {e}")),
        };
        send(&mut output, &answer)?;
    }
    Ok(())
}

/// Reads the next line; `None` at the end.
pub(crate) fn line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let n = input.take(MAX_BYTES).read_line(&mut line)?;
    if n > 0 && !line.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((n > 0).then_some(line))
}

pub(crate) fn send(output: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(message)?;
    text.push('\n');
    output.write_all(text.as_bytes())?;
    output.flush()
}

impl Agent {
    fn answer(&mut self, ask: Ask) -> io::Result<Answer> {
        Ok(match ask {
            Ask::Hello => Answer::Hello(hello()),
            Ask::Listen { load, address, port } => {
                load.check().map_err(io::Error::other)?;
                self.state = AgentState::Idle;
                let listening = Listening::open(&load, address, port)?;
                let ports = listening.ports()?;
                self.state = AgentState::Listening(load, listening);
                Answer::Listening(ports)
            }
            Ask::Connect { load, to, ports } => {
                load.check().map_err(io::Error::other)?;
                self.state = AgentState::Idle;
                let sockets = connect(&load, to, &ports)?;
                self.state = AgentState::Connected(load, sockets);
                Answer::Done
            }
            Ask::Go => {
                self.last = None;
                let (load, role, sockets) = match std::mem::take(&mut self.state) {
                    AgentState::Listening(load, l) => {
                        let sockets = l.accept(&load)?;
                        (load, Role::Server, sockets)
                    }
                    AgentState::Connected(load, sockets) => (load, Role::Client, sockets),
                    _ => return Err(io::Error::other("no client is connected")),
                };
                self.state = AgentState::Running(Running::start(&load, role, sockets)?);
                Answer::Done
            }
            Ask::Mark { begins } => {
                let AgentState::Running(running) = &self.state else {
                    return Err(io::Error::other("nothing is running"));
                };
                running.measure(begins);
                let mut mark = Mark {
                    at_ns: heddle_sys::monotonic_ns(),
                    totals: running.totals(),
                    own_ns: own_ns(),
                    is_broken: running.is_broken(),
                    usage: Usage::default(),
                };
                let now = Moment::now();
                if let Some(last) = self.last.replace(now.clone()) {
                    mark.usage = now.since(&last);
                }
                Answer::Mark(Box::new(mark))
            }
            Ask::Stop => match std::mem::take(&mut self.state) {
                AgentState::Running(running) => Answer::Outcome(Box::new(running.stop().into())),
                _ => Answer::Outcome(Box::default()),
            },
        })
    }
}

/// Processor time of this process, all threads together, in ns.
fn own_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

fn hello() -> Hello {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut addresses = local_v4(&read("/proc/thread-self/net/fib_trie"));
    addresses.extend(local_v6(&read("/proc/thread-self/net/if_inet6")));
    Hello {
        version: VERSION,
        pid: std::process::id(),
        boot: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
        host: read("/proc/sys/kernel/hostname").trim().to_owned(),
        addresses,
    }
}

/// Local addresses in the kernel's picture of its routes: a leaf, and below it `/32 host LOCAL`.
fn local_v4(fib_trie: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut leaf = None;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<std::net::Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = leaf.filter(|a| !a.is_loopback())
            && !found.contains(&address.into())
        {
            found.push(address.into());
        }
    }
    found
}

/// `fd770000000000000000000000000001 02 40 00 80     eth0`, of global scope.
fn local_v6(if_inet6: &str) -> Vec<IpAddr> {
    let one = |line: &str| {
        let mut fields = line.split_whitespace();
        let bits = u128::from_str_radix(fields.next()?, 16).ok()?;
        (fields.nth(2)? == "00").then_some(IpAddr::V6(bits.into()))
    };
    if_inet6.lines().filter_map(one).collect()
}

/// Settings of an agent on this machine.
#[derive(Clone, Debug, Default)]
pub struct AgentOptions {
    /// The network namespace to enter.
    pub netns: Option<PathBuf>,
    /// Processors to stay on.
    pub processors: Vec<usize>,
}

impl AgentOptions {
    /// Enters the namespace and processors that this agent belongs to. Call it before any thread is started.
    ///
    /// # Errors
    /// The namespace is gone; this process may not enter it; no such processor.
    pub fn settle(&self) -> io::Result<()> {
        if !self.processors.is_empty() {
            heddle_sys::cpu::pin(&self.processors)
                .map_err(|e| io::Error::new(e.kind(), format!("processors {:?}: {e}", self.processors)))?;
        }
        match &self.netns {
            Some(path) => heddle_sys::netns::enter(path).map_err(|e| {
                let hint = match e.kind() {
                    io::ErrorKind::PermissionDenied => " (entering a network namespace needs root)",
                    _ => "",
                };
                let text = format!("{}: {}{hint}", path.display(), heddle_sys::errno_text(&e));
                io::Error::new(e.kind(), text)
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_kernel() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.0.0\n        /24 link UNICAST\n\
                    Local:\n     |-- 10.1.0.1\n        /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n\
                    \n     |-- 10.1.0.1\n        /32 host LOCAL\n     |-- 10.1.0.255\n        /32 link BROADCAST\n";
        assert_eq!(local_v4(trie), ["10.1.0.1".parse::<IpAddr>().unwrap()]);
        let v6 = "fd770000000000000000000000000001 02 40 00 80 eth0\n\
                  fe800000000000000000000000000001 02 40 20 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\nx\n";
        assert_eq!(local_v6(v6), ["fd77::1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn questions_out_of_turn_are_answered() {
        let asks = "{\"mark\":{\"begins\":true}}\n\"go\"\nrubbish\n\"stop\"\n\"hello\"\n";
        let mut out = Vec::new();
        serve(asks.as_bytes(), &mut out).unwrap();
        let lines: Vec<Answer> = String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert!(matches!(
            lines.as_slice(),
            [
                Answer::Fault(_),
                Answer::Fault(_),
                Answer::Fault(_),
                Answer::Outcome(_),
                Answer::Hello(_)
            ]
        ));
        // A request that is cut off.
        assert!(serve(&b"\"hello\""[..], Vec::new()).is_err());
    }
}
