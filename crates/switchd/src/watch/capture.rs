//! The one capture that may be under way: `heddle/capture-start`, `-read`, `-stop`.
//!
//! The client reads every fraction of a second. A capture without a read for [`UNREAD_TIMEOUT`] ends, so that
//! a killed reader costs nothing. Filters are applied here, not by workers.

use std::time::{Duration, Instant};

use heddle_datapath::{CapturePoint, CaptureWish, Captured};
use heddle_datapath_api::{DropKind, PortNo};
use heddle_flow::odp::KeyText;
use heddle_flow::{FlowKey, Match};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{hex, key_of};
use crate::commands::port_names;
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// Time without a read after which a capture ends.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Most packets and bytes in one reply. The reader gets little of a busy processor, and must be able to end
/// soon.
const MOST_PACKETS: usize = 1024;
const MOST_BYTES: usize = 4 << 20;
/// Default of the maximum number of bytes kept of a packet.
const SNAP_LEN: usize = 65_535;

struct Session {
    id: u64,
    filter: Option<Match>,
    read: Instant,
    /// Packets that the filter left out.
    passed_over: u64,
}

/// The capture that is under way, if there is one.
#[derive(Default)]
pub(crate) struct Captures(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    session: Option<Session>,
}

/// Parsed arguments of a command.
#[derive(Default, Debug)]
pub(super) struct Asked<'a> {
    port: Option<&'a str>,
    drop: Option<&'a str>,
    filter: Option<&'a str>,
    pub(super) snap_len: Option<usize>,
}

pub(super) fn read_args<'a>(args: &[&'a str]) -> Result<Asked<'a>, String> {
    let mut asked = Asked::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args
            .next()
            .copied()
            .ok_or_else(|| format!("{arg}: a value is missing"))?;
        match *arg {
            "--port" => asked.port = Some(value),
            "--drop" => asked.drop = Some(value),
            "--filter" => asked.filter = Some(value),
            "--snaplen" => {
                let n = value.parse().ok().filter(|n| (1..=SNAP_LEN).contains(n));
                asked.snap_len = Some(n.ok_or_else(|| format!("{value}: no length from 1 to {SNAP_LEN}"))?);
            }
            other => return Err(format!("{other}: unknown option")),
        }
    }
    Ok(asked)
}

/// The drop reason of a name: its whole name, or its end.
pub(super) fn reason(name: &str) -> Result<Option<DropKind>, String> {
    if name == "any" {
        return Ok(None);
    }
    let named = |kind: &&DropKind| kind.name() == name || kind.name().ends_with(&format!("_{name}"));
    let mut found = DropKind::ALL.iter().filter(named);
    match (found.next(), found.next()) {
        (Some(kind), None) => Ok(Some(*kind)),
        (Some(_), Some(_)) => Err(format!("{name}: the end of several names; give a whole one")),
        (None, _) => Err(format!(
            "{name}: no reason for a drop (docs/drops.md lists all of them, and any is valid)"
        )),
    }
}

impl Captures {
    /// Begins a capture; returns its number.
    pub(crate) fn start(&self, switch: &Switch, args: &[&str]) -> Reply {
        let asked = read_args(args)?;
        let ports = port_names(switch);
        let number = |name: &str| ports.iter().find(|(_, n)| *n == name).map(|(no, _)| *no);
        let port = match asked.port {
            Some(name) => Some(number(name).ok_or_else(|| format!("{name}: no such port of the datapath"))?),
            None => None,
        };
        let filter = match asked.filter {
            Some(text) => Some(Match::parse_text(text, Some(&number)).map_err(|e| format!("{text}: {e}"))?),
            None => None,
        };
        let drops = asked.drop.map(reason).transpose()?;
        let mut state = self.0.lock();
        if state
            .session
            .as_ref()
            .is_some_and(|s| s.read.elapsed() < UNREAD_TIMEOUT)
        {
            return Err("another capture is under way".into());
        }
        switch.datapath.capture(Some(CaptureWish {
            traffic: drops.is_none(),
            drops,
            port: port.map(PortNo),
            snap_len: asked.snap_len.unwrap_or(SNAP_LEN),
        }));
        state.last += 1;
        let id = state.last;
        state.session = Some(Session {
            id,
            filter,
            read: Instant::now(),
            passed_over: 0,
        });
        Ok(format!("{id}\n"))
    }

    /// The packets captured since the last read.
    pub(crate) fn read(&self, switch: &Switch, id: &str) -> Reply {
        // Reads in a thread of its own at low priority, since workers want the processor.
        std::thread::scope(|s| {
            let reader = s.spawn(|| {
                heddle_sys::cpu::stand_back();
                self.read_all(switch, id)
            });
            reader.join().map_err(|_| "the reader has ended".to_owned())?
        })
    }

    fn read_all(&self, switch: &Switch, id: &str) -> Reply {
        let filter = {
            let mut state = self.0.lock();
            let session = of(&mut state, id)?;
            session.read = Instant::now();
            session.filter
        };
        let ports = port_names(switch);
        let (mut bytes, mut passed_over) = (0, 0);
        let mut told = Vec::new();
        for _ in 0..MOST_PACKETS {
            if bytes >= MOST_BYTES {
                break;
            }
            let mut one = None;
            switch.datapath.take_captured(1, &mut |c| one = Some(c));
            let Some(c) = one else { break };
            let key = key_of(&c.bytes, c.len, c.port.0, None);
            if filter.as_ref().is_some_and(|m| !matches(m, &key)) {
                passed_over += 1;
                continue;
            }
            bytes += c.bytes.len();
            let name = ports
                .get(&c.port.0)
                .cloned()
                .unwrap_or_else(|| format!("#{}", c.port.0));
            told.push(packet(&c, &key, &name));
        }
        let mut state = self.0.lock();
        let session = of(&mut state, id)?;
        session.passed_over += passed_over;
        let missed = switch.datapath.capture_missed();
        let answer = json!({"packets": told, "missed": missed, "passed_over": session.passed_over});
        drop(state);
        Ok(format!("{answer}\n"))
    }

    /// Ends the capture.
    pub(crate) fn stop(&self, switch: &Switch, id: &str) -> Reply {
        let mut state = self.0.lock();
        of(&mut state, id)?;
        state.session = None;
        switch.datapath.capture(None);
        Ok(String::new())
    }

    /// Ends a capture that is no longer read. To be called now and then.
    pub(crate) fn tick(&self, switch: &Switch) {
        let mut state = self.0.lock();
        if state
            .session
            .as_ref()
            .is_some_and(|s| s.read.elapsed() >= UNREAD_TIMEOUT)
        {
            state.session = None;
            switch.datapath.capture(None);
        }
    }
}

fn of<'a>(state: &'a mut State, id: &str) -> Result<&'a mut Session, String> {
    let session = state.session.as_mut().filter(|s| s.id.to_string() == id);
    session.ok_or_else(|| format!("{id}: this capture is over"))
}

fn packet(c: &Captured, key: &FlowKey, port: &str) -> Value {
    let (way, drop) = match c.way {
        CapturePoint::In => ("in", None),
        CapturePoint::Out => ("out", None),
        CapturePoint::Dropped(kind) => ("drop", Some(kind.name())),
    };
    let flow = KeyText {
        key,
        mask: None,
        verbose: false,
        names: None,
        vlan_limit: heddle_flow::key::N_VLANS,
    };
    json!({
        // A string, since a JSON number may lose its last digits.
        "at_ns": c.at.as_nanos().to_string(),
        "port": port,
        "way": way,
        "drop": drop,
        "flow": flow.to_string(),
        "length": c.len,
        "bytes": hex(&c.bytes),
    })
}

/// Whether a packet fits a match.
fn matches(m: &Match, key: &FlowKey) -> bool {
    let wanted = m.key.words().iter().zip(m.mask.0.words());
    key.words()
        .iter()
        .zip(wanted)
        .all(|(have, (want, mask))| (have ^ want) & mask == 0)
}
