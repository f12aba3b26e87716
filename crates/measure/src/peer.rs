//! The requesting side of an agent: starts the agent, sends requests, and notices when it has gone.

use crate::agent::{Answer, Ask, Hello, Mark, Outcome, VERSION, line, send};
use crate::load::Load;
use crate::place::Place;
use anyhow::{Context as _, Result, bail};
use std::io::{BufReader, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Timeout of a reply; an agent that exceeds it has gone.
const ANSWER: Duration = Duration::from_secs(30);

/// An agent.
pub struct Peer {
    name: String,
    input: BufReader<Box<dyn Read + Send>>,
    output: Box<dyn Write + Send>,
    child: Option<Child>,
    hello: Hello,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer({})", self.name)
    }
}

/// The command that starts an agent at `place`; `None` for an agent that runs already.
fn command(place: &Place, processors: &[usize], remote: &str) -> Result<Option<Command>> {
    let mut command = match place {
        Place::Netns(path) => {
            let mut c = Command::new(std::env::current_exe().context("where is this program?")?);
            c.args(["measure", "agent", "--netns"]).arg(path);
            c
        }
        Place::Here => {
            let mut c = Command::new(std::env::current_exe().context("where is this program?")?);
            c.args(["measure", "agent"]);
            c
        }
        Place::Ssh(host) => {
            let mut c = Command::new("ssh");
            c.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-T"]);
            for option in std::env::var("HEDDLE_SSH_OPTIONS")
                .unwrap_or_default()
                .split_whitespace()
            {
                c.arg(option);
            }
            c.args([host.as_str(), "--", remote, "measure", "agent"]);
            c
        }
        Place::Tcp(_) => return Ok(None),
    };
    if !processors.is_empty() {
        let list: Vec<_> = processors.iter().map(ToString::to_string).collect();
        command.args(["--processors", &list.join(",")]);
    }
    Ok(Some(command))
}

impl Peer {
    /// Starts the agent of `place`, or connects to it. `remote` is the path of `heddle` on hosts that ssh
    /// reaches.
    ///
    /// # Errors
    /// The agent cannot be started or reached; it is of another version.
    pub fn start(name: &str, place: &Place, processors: &[usize], remote: &str) -> Result<Self> {
        let gone = Hello {
            version: 0,
            pid: 0,
            boot: String::new(),
            host: String::new(),
            addresses: Vec::new(),
        };
        let (input, output, child): (Box<dyn Read + Send>, Box<dyn Write + Send>, _) =
            match command(place, processors, remote)? {
                Some(mut command) => {
                    let (ours, theirs) = UnixStream::pair()?;
                    ours.set_read_timeout(Some(ANSWER))?;
                    let out: OwnedFd = theirs.try_clone()?.into();
                    let child = command
                        .stdin(Stdio::from(OwnedFd::from(theirs)))
                        .stdout(Stdio::from(out))
                        .stderr(Stdio::piped())
                        .spawn()
                        .with_context(|| format!("{name}: {}", command.get_program().to_string_lossy()))?;
                    (Box::new(ours.try_clone()?), Box::new(ours), Some(child))
                }
                None => {
                    let Place::Tcp(at) = place else {
                        bail!("{name}: no agent")
                    };
                    let address = at.to_socket_addrs().ok().and_then(|mut a| a.next());
                    let address =
                        address.with_context(|| format!("{name}: {at} is no address with a port"))?;
                    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))
                        .map_err(|e| anyhow::anyhow!("{name}: {at}: {}", heddle_sys::errno_text(&e)))?;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(ANSWER))?;
                    (Box::new(stream.try_clone()?), Box::new(stream), None)
                }
            };
        let mut peer = Self {
            name: name.to_owned(),
            input: BufReader::new(input),
            output,
            child,
            hello: gone,
        };
        match peer.ask(&Ask::Hello)? {
            Answer::Hello(hello) if hello.version == VERSION => peer.hello = hello,
            Answer::Hello(hello) => bail!(
                "{name}: its agent speaks version {}, this one {VERSION}: install the same heddle on both",
                hello.version
            ),
            other => bail!("{name}: unexpected reply {other:?}"),
        }
        Ok(peer)
    }

    /// The agent's description of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Name of the end point, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        let answer = send(&mut self.output, ask).and_then(|()| line(&mut self.input));
        match answer {
            Ok(Some(line)) => match serde_json::from_str(&line) {
                Ok(Answer::Fault(why)) => bail!("{}: {why}", self.name),
                Ok(answer) => Ok(answer),
                Err(_) => bail!("{}: not an agent: {}", self.name, line.trim()),
            },
            _ => {
                let words = self.last_words();
                bail!("{}: {words}", self.name)
            }
        }
    }

    /// The reason why an agent has gone: the last line of its error output, if there is one.
    fn last_words(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            if let Some(stderr) = &mut child.stderr {
                let _ = stderr.take(4096).read_to_string(&mut text);
            }
            let _ = child.wait();
        }
        let said = text.lines().map(str::trim).rfind(|l| !l.is_empty());
        match said {
            Some(said) => said.trim_start_matches("heddle: ").to_owned(),
            None => "this end point has gone away".to_owned(),
        }
    }

    fn done(&mut self, ask: &Ask) -> Result<()> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            other => bail!("{}: unexpected reply {other:?}", self.name),
        }
    }

    /// Whether the agent's process has ended. False for an agent over TCP: only the next request shows it.
    pub fn has_ended(&mut self) -> bool {
        let ended = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
        self.child.as_mut().is_some_and(ended)
    }

    /// Makes the agent the server of a load; returns its ports.
    ///
    /// # Errors
    /// A port is in use; the agent has gone.
    pub fn listen(&mut self, load: &Load, address: IpAddr, port: u16) -> Result<Vec<u16>> {
        let load = load.clone();
        match self.ask(&Ask::Listen { load, address, port })? {
            Answer::Listening(ports) => Ok(ports),
            other => bail!("{}: unexpected reply {other:?}", self.name),
        }
    }

    /// Makes the agent the client of a load, and connects it.
    ///
    /// # Errors
    /// The server cannot be reached; the agent has gone.
    pub fn connect(&mut self, load: &Load, to: IpAddr, ports: Vec<u16>) -> Result<()> {
        let load = load.clone();
        self.done(&Ask::Connect { load, to, ports })
    }

    /// Starts the load.
    ///
    /// # Errors
    /// The other end does not come; the agent has gone.
    pub fn go(&mut self) -> Result<()> {
        self.done(&Ask::Go)
    }

    /// Returns the present counters.
    ///
    /// # Errors
    /// The agent has gone.
    pub fn mark(&mut self, begins: bool) -> Result<Mark> {
        match self.ask(&Ask::Mark { begins })? {
            Answer::Mark(mark) => Ok(*mark),
            other => bail!("{}: unexpected reply {other:?}", self.name),
        }
    }

    /// Ends the load, and returns its result.
    ///
    /// # Errors
    /// The agent has gone.
    pub fn stop(&mut self) -> Result<Outcome> {
        match self.ask(&Ask::Stop)? {
            Answer::Outcome(outcome) => Ok(*outcome),
            other => bail!("{}: unexpected reply {other:?}", self.name),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The agent ends with its stream, too; a kill is sooner.
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
