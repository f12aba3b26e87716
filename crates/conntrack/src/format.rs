//! Connections as `dpctl/dump-conntrack` and `dpctl/ct-stats-show` print them, in Open vSwitch's text.

use crate::dump::Conn;
use crate::protocol::tcp::{Peer, Scale, TcpState};
use crate::tuple::{Tuple, is_icmp};
use heddle_wire::ip::proto;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write as _};

const UDPLITE: u8 = 136;
const DCCP: u8 = 33;

/// The name of a protocol, or its number.
struct Proto(u8);

impl Display for Proto {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            proto::ICMP => "icmp",
            proto::ICMPV6 => "icmpv6",
            proto::TCP => "tcp",
            proto::UDP => "udp",
            proto::SCTP => "sctp",
            UDPLITE => "udplite",
            DCCP => "dccp",
            proto::IGMP => "igmp",
            n => return write!(f, "{n}"),
        })
    }
}

impl Display for Tuple {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "src={},dst={}", self.src_ip(), self.dst_ip())?;
        let (src, dst) = (self.src.l4, self.dst.l4);
        if is_icmp(self.proto, false) || is_icmp(self.proto, true) {
            write!(
                f,
                ",id={},type={},code={}",
                src >> 16,
                src >> 8 & 0xff,
                src & 0xff
            )
        } else {
            write!(f, ",sport={},dport={}", src & 0xffff, dst & 0xffff)
        }
    }
}

impl TcpState {
    const fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::SynSent => "SYN_SENT",
            Self::Established => "ESTABLISHED",
            Self::Closing => "CLOSING",
            Self::FinWait2 => "FIN_WAIT_2",
            Self::TimeWait => "TIME_WAIT",
        }
    }
    /// Returns the state to print if one state represents both endpoints.
    fn of_both(peers: &[Peer; 2]) -> Self {
        match peers[0].state.max(peers[1].state) {
            Self::FinWait2 => Self::TimeWait,
            other => other,
        }
    }
}

/// The flag of an endpoint; it has at most one.
fn flags(p: &Peer) -> &'static str {
    match p.scale {
        Scale::Known(_) => "WINDOW_SCALE",
        Scale::Unknown => "BE_LIBERAL",
        _ => "0",
    }
}

/// A connection as one line, without its end. `more`: as with `-m`; `stats`: as with `-s`.
pub fn conn(c: &Conn, more: bool, stats: bool) -> String {
    let mut s = String::new();
    // Writing into a string does not fail.
    let _ = write(&mut s, c, more, stats);
    s
}

fn write(s: &mut String, c: &Conn, more: bool, stats: bool) -> fmt::Result {
    write!(s, "{},orig=({}),reply=({})", Proto(c.orig.proto), c.orig, c.reply)?;
    if more {
        s.write_str(",id=0")?;
    }
    if c.zone != 0 {
        write!(s, ",zone={}", c.zone)?;
    }
    if more {
        s.write_str(",status=0")?;
    }
    if stats {
        write!(s, ",timeout={}", c.left_ms / 1000)?;
    }
    if c.mark != 0 {
        write!(s, ",mark={}", c.mark)?;
    }
    if c.label != 0 {
        write!(s, ",labels=0x{:x}", c.label)?;
    }
    if let Some(peers) = &c.tcp {
        s.write_str(",protoinfo=(")?;
        if more {
            let [a, b] = peers;
            write!(s, "state_orig={},state_reply={}", a.state.name(), b.state.name())?;
            let (x, y) = (a.scale.shift(), b.scale.shift());
            if x != 0 || y != 0 {
                write!(s, ",wscale_orig={x},wscale_reply={y}")?;
            }
            write!(s, ",flags_orig={},flags_reply={}", flags(a), flags(b))?;
        } else {
            write!(s, "state={}", TcpState::of_both(peers).name())?;
        }
        s.push(')');
    }
    if let Some(helper) = c.helper {
        write!(s, ",helper={}", helper.name())?;
    }
    if let Some(parent) = c.parent.filter(|_| more) {
        write!(s, ",parent=({parent})")?;
    }
    Ok(())
}

/// Counts of connections for `dpctl/ct-stats-show`.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    total: usize,
    protos: BTreeMap<u8, usize>,
    states: BTreeMap<TcpState, usize>,
}

impl Stats {
    /// Counts a connection.
    pub fn add(&mut self, c: &Conn) {
        self.total += 1;
        *self.protos.entry(c.orig.proto).or_default() += 1;
        if let Some(peers) = &c.tcp {
            *self.states.entry(TcpState::of_both(peers)).or_default() += 1;
        }
    }
    /// Returns the text. `verbose`: with states of TCP.
    pub fn text(&self, verbose: bool) -> String {
        let mut s = format!("Connections Stats:\n    Total: {}\n", self.total);
        let mut others = self.protos.clone();
        let names = [
            (proto::TCP, "TCP"),
            (proto::UDP, "UDP"),
            (UDPLITE, "UDPLITE"),
            (proto::SCTP, "SCTP"),
            (proto::ICMP, "ICMP"),
            (DCCP, "DCCP"),
            (proto::IGMP, "IGMP"),
        ];
        // Open vSwitch counts ICMPv6 and does not print it.
        others.remove(&proto::ICMPV6);
        for (number, name) in names {
            let Some(n) = others.remove(&number) else { continue };
            let _ = writeln!(s, "  {name}: {n}");
            if number == proto::TCP && verbose {
                s.push_str("    Conn per TCP states:\n");
                for (state, n) in &self.states {
                    let _ = writeln!(s, "\t  [{}]={n}", state.name());
                }
            }
        }
        let rest: usize = others.values().sum();
        if rest != 0 {
            let _ = writeln!(s, "  Other: {rest}");
        }
        s
    }
}
