//! Profiles of uperf (XML), so that published workloads can be repeated.
//!
//! A group becomes cases. Its threads are connections. A write with a read after it is a request and its
//! response; only writes, or only reads, are a stream. A transaction with several requests has a case for
//! each kind of them, one after the other. Transactions that connect and disconnect are left out, since each
//! series connects anyway. Peers come from `--between`, and socket options are left out. Flow operations that
//! have no such meaning are refused by name. `$name` stands for the environment's variable, as with uperf.

use crate::load::{Pattern, Transport};
use crate::results::Case;
use anyhow::{Context as _, Result, bail};
use roxmltree::{Document, Node};

/// One profile, as cases.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name of the profile.
    pub name: String,
    /// Loads, in their order.
    pub cases: Vec<Case>,
    /// Duration of the longest transaction, seconds; `None`: the profile counts iterations.
    pub seconds: Option<f64>,
}

/// Replaces `$name` by its value.
fn expand(text: &str, get: &dyn Fn(&str) -> Option<String>) -> Result<String> {
    let Some((before, rest)) = text.split_once('$') else {
        return Ok(text.to_owned());
    };
    let end = rest
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let value = get(name).with_context(|| format!("the profile wants ${name}: set it in the environment"))?;
    Ok(format!("{before}{value}{}", expand(rest, get)?))
}

/// `64`, `8k`, `1m`.
fn size(text: &str) -> Result<usize> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, times) = match lower.chars().last() {
        Some('k') => (&lower[..lower.len() - 1], 1 << 10),
        Some('m') => (&lower[..lower.len() - 1], 1 << 20),
        _ => (lower.as_str(), 1),
    };
    match digits.parse::<usize>().ok().and_then(|n| n.checked_mul(times)) {
        Some(n) => Ok(n),
        None => bail!("{text:?} is no size that can be repeated: a number, 8k, 1m"),
    }
}

/// `30s`, `500ms`, `2m`.
fn duration_s(text: &str) -> Result<f64> {
    let text = text.trim();
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let times = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" => 60.0,
        "h" => 3600.0,
        _ => bail!("{text:?} is no duration: 30s"),
    };
    match number.parse::<f64>() {
        Ok(n) if n > 0.0 => Ok(n * times),
        _ => bail!("{text:?} is no duration: 30s"),
    }
}

/// The value of an operation's option.
fn option<'a>(options: &'a str, name: &str) -> Option<&'a str> {
    options
        .split_whitespace()
        .find_map(|o| o.strip_prefix(name)?.strip_prefix('='))
}

impl Profile {
    /// Reads a profile. `get`: values of `$name`.
    ///
    /// # Errors
    /// Not XML, no profile, or something in it that has no counterpart here, by name.
    pub fn parse(text: &str, get: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let document = Document::parse(text).context("not XML")?;
        let root = document.root_element();
        if !root.has_tag_name("profile") {
            bail!("<{}> is no <profile>", root.tag_name().name());
        }
        let mut profile = Self {
            name: root.attribute("name").unwrap_or("uperf").to_owned(),
            cases: Vec::new(),
            seconds: None,
        };
        for group in root.children().filter(|n| n.has_tag_name("group")) {
            profile.group(&group, get)?;
        }
        if profile.cases.is_empty() {
            bail!("no transaction in it reads or writes");
        }
        Ok(profile)
    }

    fn group(&mut self, group: &Node<'_, '_>, get: &dyn Fn(&str) -> Option<String>) -> Result<()> {
        let mut connections = 1_usize;
        for name in ["nthreads", "nprocs"] {
            if let Some(text) = group.attribute(name) {
                connections = connections.saturating_mul(size(&expand(text, get)?)?);
            }
        }
        let mut transport = Transport::Tcp;
        for transaction in group.children().filter(|n| n.has_tag_name("transaction")) {
            let mut turns = Turns::default();
            for op in transaction.children().filter(|n| n.has_tag_name("flowop")) {
                let options = expand(op.attribute("options").unwrap_or_default(), get)?;
                let bytes = || -> Result<usize> {
                    let size = size(option(&options, "size").context("a flowop without size=")?)?;
                    let count = option(&options, "count").map_or(Ok(1), self::size)?;
                    Ok(size.saturating_mul(count))
                };
                match op.attribute("type").unwrap_or_default() {
                    "connect" | "accept" => match option(&options, "protocol").unwrap_or("tcp") {
                        "tcp" => transport = Transport::Tcp,
                        "udp" => transport = Transport::Udp,
                        other => bail!("protocol={other} cannot be repeated here: tcp or udp"),
                    },
                    "disconnect" => {}
                    "write" | "send" | "sendto" => turns.write(bytes()?),
                    "read" | "recv" | "recvfrom" => turns.read(bytes()?),
                    other => bail!("flowop type={other:?} cannot be repeated here"),
                }
            }
            let kinds = turns.kinds()?;
            if kinds.is_empty() {
                continue;
            }
            if let Some(text) = transaction.attribute("duration") {
                let seconds = duration_s(&expand(text, get)?)?;
                self.seconds = Some(self.seconds.unwrap_or(0.0).max(seconds));
            }
            let rate = transaction
                .attribute("rate")
                .map(|t| expand(t, get))
                .transpose()?;
            let rate_per_s = rate
                .map(|t| {
                    t.trim()
                        .parse::<f64>()
                        .with_context(|| format!("rate={t:?} is no number"))
                })
                .transpose()?;
            self.cases
                .extend(kinds.into_iter().map(|(pattern, request, response)| Case {
                    pattern,
                    transport,
                    family: 4,
                    connections,
                    request,
                    response,
                    rate_per_s,
                }));
        }
        Ok(())
    }
}

/// The turns of a transaction: bytes written, then bytes read.
#[derive(Default)]
struct Turns(Vec<(usize, usize)>);

impl Turns {
    fn write(&mut self, bytes: usize) {
        match self.0.last_mut() {
            Some((written, 0)) => *written = written.saturating_add(bytes),
            _ => self.0.push((bytes, 0)),
        }
    }

    fn read(&mut self, bytes: usize) {
        match self.0.last_mut() {
            Some((_, read)) => *read = read.saturating_add(bytes),
            None => self.0.push((0, bytes)),
        }
    }

    /// Each kind of turn once, with the bytes of request and response.
    fn kinds(mut self) -> Result<Vec<(Pattern, usize, usize)>> {
        if self.0.len() > 1 {
            if let Some((0, _)) = self.0.first() {
                bail!("a transaction that reads before it writes cannot be repeated here");
            }
            // A transaction is repeated, so bytes that are written last belong to the first request of the
            // next one.
            if let Some(&(left, 0)) = self.0.last() {
                self.0.pop();
                if let Some((first, _)) = self.0.first_mut() {
                    *first = first.saturating_add(left);
                }
            }
        }
        let mut kinds = Vec::new();
        for turn in self.0 {
            let kind = match turn {
                (0, 0) => continue,
                (w, 0) => (Pattern::Write, w, 0),
                (0, r) => (Pattern::Read, r, 0),
                (w, r) => (Pattern::Rr, w, r),
            };
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Ok(kinds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    /// The shape of the profiles that uperf's users publish.
    const NETPERF: &str = r#"<?xml version="1.0"?>
        <profile name="netperf">
          <group nthreads="$nthr">
            <transaction iterations="1"><flowop type="connect" options="remotehost=$h protocol=tcp"/></transaction>
            <transaction duration="30s">
              <flowop type="write" options="size=90"/><flowop type="read" options="size=2k"/>
            </transaction>
            <transaction iterations="1"><flowop type="disconnect"/></transaction>
          </group>
          <group nprocs="2" nthreads="4">
            <transaction iterations="1"><flowop type="accept" options="protocol=udp"/></transaction>
            <transaction duration="500ms" rate="100"><flowop type="write" options="count=2 size=700"/></transaction>
          </group>
        </profile>"#;

    #[test]
    fn profiles_become_cases() {
        let get = |name: &str| match name {
            "nthr" => Some("50".to_owned()),
            "h" => Some("10.0.0.1".to_owned()),
            _ => None,
        };
        let profile = Profile::parse(NETPERF, &get).unwrap();
        assert_eq!((profile.name.as_str(), profile.seconds), ("netperf", Some(30.0)));
        let names: Vec<String> = profile.cases.iter().map(Case::name).collect();
        assert_eq!(names, ["rr 90x2048 c50 tcp4", "write 1400 c8 udp4 100/s"]);
        let e = Profile::parse(NETPERF, &none).unwrap_err();
        assert!(e.to_string().contains("$nthr"), "{e}");
    }

    #[test]
    fn several_requests_are_cases_of_their_own() {
        let names = |inner: &str| {
            let text = format!("<profile><group><transaction>{inner}</transaction></group></profile>");
            let cases = Profile::parse(&text, &none).unwrap().cases;
            cases.iter().map(Case::name).collect::<Vec<_>>()
        };
        let op = |kind: &str, size: usize| format!(r#"<flowop type="{kind}" options="size={size}"/>"#);
        let turn = |request, response| op("write", request) + &op("read", response);
        assert_eq!(
            names(&(turn(300, 100) + &turn(300, 200) + &turn(300, 100))),
            ["rr 300x100 c1 tcp4", "rr 300x200 c1 tcp4"]
        );
        // A request in two pieces; a write at the end belongs to the next round.
        assert_eq!(names(&(op("write", 1) + &turn(2, 7))), ["rr 3x7 c1 tcp4"]);
        assert_eq!(names(&(turn(3, 7) + &op("write", 4))), ["rr 7x7 c1 tcp4"]);
        assert_eq!(names(&(op("read", 5) + &op("read", 6))), ["read 11 c1 tcp4"]);
    }

    #[test]
    fn what_cannot_be_repeated_is_refused() {
        let profile =
            |inner: &str| format!("<profile><group><transaction>{inner}</transaction></group></profile>");
        for (text, why) in [
            ("<profile".to_owned(), "not XML"),
            ("<a/>".to_owned(), "<a> is no <profile>"),
            (profile(""), "no transaction"),
            (
                profile(r#"<flowop type="sendfile" options="dir=/"/>"#),
                "sendfile",
            ),
            (
                profile(r#"<flowop type="connect" options="protocol=sctp"/>"#),
                "sctp",
            ),
            (
                profile(r#"<flowop type="write" options="size=rand(1,2)"/>"#),
                "rand(1,2)",
            ),
            (
                profile(r#"<flowop type="write" options="count=1"/>"#),
                "without size",
            ),
            (
                profile(r#"<flowop type="read" options="size=1"/><flowop type="write" options="size=1"/>"#),
                "reads before",
            ),
            (
                r#"<!DOCTYPE a [<!ENTITY b "x">]><profile name="&b;"/>"#.to_owned(),
                "not XML",
            ),
        ] {
            let e = Profile::parse(&text, &none).unwrap_err();
            assert!(format!("{e:#}").contains(why), "{text}: {e:#}");
        }
    }
}
