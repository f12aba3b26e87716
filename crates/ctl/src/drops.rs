//! `heddle drops`: which packets were dropped, by which rule, with an example of each kind.
//!
//! The switch takes some examples each second, and keeps the last one of each reason and port. On request it
//! explains an example by a trace. The rule is the one that decides now.

use crate::console;
use crate::request::Target;
use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Interval between two requests of `--follow`.
const LOOK: Duration = Duration::from_millis(250);
/// Columns of a line, if the text may be wrapped.
const COLUMNS: usize = 100;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Only packets that came in by this port
    #[arg(short, long, value_name = "PORT")]
    port: Option<String>,
    /// Continue, and print each new example
    #[arg(short, long)]
    follow: bool,
    /// Also copies of flooded packets for bridges' own devices that are down
    #[arg(short, long)]
    all: bool,
    /// Count anew from now on; metrics and coverage are not reset
    #[arg(long, conflicts_with_all = ["follow", "json", "port"])]
    reset: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A reply of the switch.
#[derive(Debug, Deserialize)]
struct DropsReply {
    number: u64,
    /// Packets by reason, since the daemon started.
    totals: BTreeMap<String, u64>,
    examples: Vec<Example>,
}

#[derive(Debug, Deserialize)]
struct Example {
    reason: String,
    port: String,
    /// Port that the packet was to be output to.
    to: Option<String>,
    /// Whether the output is a bridge's own port.
    #[serde(default)]
    to_bridge: bool,
    packets: u64,
    /// Seconds since it was dropped.
    age: f64,
    length: u64,
    bytes: String,
    bridge: Option<String>,
    table: Option<String>,
    cookie: Option<String>,
    rule: Option<String>,
    packet: Option<String>,
    trace: Option<String>,
}

impl Example {
    fn is_for_a_device_that_is_down(&self) -> bool {
        self.reason.ends_with("_tx_down")
    }

    /// A copy of a flooded packet for a bridge's own device that has no address: an ordinary drop.
    fn is_ordinary(&self) -> bool {
        self.to_bridge && self.is_for_a_device_that_is_down()
    }
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        if self.reset {
            self.target.request("heddle/drops-reset", &[])?;
            return Ok(());
        }
        let mut text = self.request(0)?;
        let mut told: DropsReply = serde_json::from_str(&text)?;
        if !self.follow {
            let of = match &self.port {
                Some(port) => format!("DROPPED OF WHAT CAME IN BY {}", clean(port)),
                None => "DROPPED SINCE THE START OR RESET".to_owned(),
            };
            return console::out(&if self.json {
                text
            } else {
                table(&told, &of, self.shows_all())
            });
        }
        loop {
            std::thread::sleep(LOOK);
            text = self.request(told.number)?;
            told = serde_json::from_str(&text)?;
            let shown = |e: &&Example| self.shows_all() || !e.is_ordinary();
            if !told.examples.iter().any(|e| shown(&e)) {
                continue;
            }
            if !self.json {
                // The newest one first, as they come.
                text = told.examples.iter().rev().filter(shown).map(one).collect();
            }
            console::out(&text)?;
        }
    }

    /// With --port, all examples of that port are shown.
    fn shows_all(&self) -> bool {
        self.all || self.port.is_some()
    }

    fn request(&self, since: u64) -> Result<String> {
        let port = self.port.as_deref().unwrap_or("-");
        self.target.request("heddle/drops", &[port, &since.to_string()])
    }
}

/// Names come from the database, and packets from any host, so characters that control the terminal are
/// removed.
fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Splits a text into pieces of at most `width` columns, at commas if there are any.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for part in text.split_inclusive(',') {
        if !line.is_empty() && line.chars().count() + part.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        line.push_str(part);
    }
    lines.push(line);
    lines
}

fn table(told: &DropsReply, of: &str, all: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{of:<40} {:>16}", "PACKETS");
    if told.totals.is_empty() {
        let _ = writeln!(out, "nothing");
    }
    for (reason, n) in &told.totals {
        let _ = writeln!(out, "{:<40} {n:>16}", clean(reason));
    }
    let ordinary = told.examples.iter().filter(|e| !all && e.is_ordinary());
    let ordinary: u64 = ordinary.map(|e| e.packets).sum();
    if ordinary > 0 {
        let _ = writeln!(
            out,
            "About {ordinary} of these were copies for bridges' own devices that are down (--all shows them)."
        );
    }
    // A healthy switch drops copies for devices that are down, too.
    let (healthy, others): (Vec<_>, Vec<_>) = told
        .examples
        .iter()
        .filter(|e| all || !e.is_ordinary())
        .partition(|e| e.is_for_a_device_that_is_down());
    for e in others.into_iter().chain(healthy) {
        out.push('\n');
        out += &one(e);
    }
    out
}

/// One example, on several lines.
fn one(e: &Example) -> String {
    let ago = match e.age {
        s if s < 10.0 => format!("{s:.1} s ago"),
        s => format!("{s:.0} s ago"),
    };
    let how_many = match e.packets {
        1 => "about 1 packet".to_owned(),
        n => format!("about {n} packets, the last one"),
    };
    let mut out = format!("{} at {}: {how_many} {ago}\n", clean(&e.reason), clean(&e.port));
    let mut put = |name: &str, text: &str| {
        for (i, line) in wrap(&clean(text), COLUMNS - 10).into_iter().enumerate() {
            let _ = writeln!(out, "  {:<8}{line}", if i == 0 { name } else { "" });
        }
    };
    if let Some(to) = &e.to {
        // Most such packets are copies of a flooded packet that other ports have received.
        let down = match e.is_for_a_device_that_is_down() {
            true => ", whose device is down; copies for other ports are not concerned",
            false => "",
        };
        put("to", &format!("{to}{down}"));
    }
    if let (Some(bridge), Some(table)) = (&e.bridge, &e.table) {
        let cookie = e
            .cookie
            .as_deref()
            .map_or(String::new(), |c| format!(", cookie {c}"));
        put("rule", &format!("bridge {bridge}, table {table}{cookie}"));
        put("", e.rule.as_deref().unwrap_or_default());
    }
    match &e.packet {
        Some(packet) => put("packet", packet),
        None => put(
            "packet",
            &format!("{} bytes: {}", e.length, e.bytes.get(..64).unwrap_or(&e.bytes)),
        ),
    }
    if let Some(trace) = &e.trace {
        // The trace is one line, so that it can be copied.
        let _ = writeln!(out, "  {:<8}{}", "trace", clean(trace));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_names_the_rule_that_decided() {
        let told: DropsReply = serde_json::from_str(
            r#"{"number": 3, "totals": {"drop_action_of_pipeline": 7}, "examples": [{"reason": "drop_action_of_pipeline",
            "number": 3, "port": "p\u001b1", "packets": 7, "at": 1.0, "age": 0.25, "length": 60, "bytes": "00", "bridge": "br0",
            "table": "1", "cookie": "0x77", "rule": "tcp,tp_dst=23, priority 200", "packet": "tcp,in_port=1",
            "trace": "ovs-appctl ofproto/trace 'in_port(1)'"}]}"#,
        )
        .unwrap();
        let text = table(&told, "DROPPED SINCE THE START", false);
        for wanted in [
            "drop_action_of_pipeline                                 7\n",
            "drop_action_of_pipeline at p?1: about 7 packets, the last one 0.2 s ago\n",
            "  rule    bridge br0, table 1, cookie 0x77\n          tcp,tp_dst=23, priority 200\n",
            "  packet  tcp,in_port=1\n",
            "  trace   ovs-appctl ofproto/trace 'in_port(1)'\n",
        ] {
            assert!(text.contains(wanted), "{wanted}{text}");
        }
    }

    #[test]
    fn copies_for_bridges_that_are_down_are_a_line() {
        let text = |to_bridge: bool| {
            format!(
                r#"{{"number": 3, "totals": {{"datapath_drop_tx_down": 7}}, "examples": [{{"reason": "datapath_drop_tx_down",
                "number": 3, "port": "p1", "to": "br0", "to_bridge": {to_bridge}, "packets": 7, "at": 1.0, "age": 0.25,
                "length": 60, "bytes": "00"}}]}}"#
            )
        };
        let of = |to_bridge, all| table(&serde_json::from_str(&text(to_bridge)).unwrap(), "DROPPED", all);
        assert!(of(true, false).contains("About 7 of these") && !of(true, false).contains("at p1"));
        assert!(of(true, true).contains("at p1") && of(false, false).contains("at p1"));
    }

    #[test]
    fn long_packets_are_wrapped_at_commas() {
        assert_eq!(wrap("a,bb,ccc", 4), ["a,", "bb,", "ccc"]);
        assert_eq!(wrap("abcdefgh", 4), ["abcdefgh"]);
        assert_eq!(wrap("", 4), [""]);
    }
}
