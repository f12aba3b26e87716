//! `heddle/capture-start`, `-read`, `-stop`: one capture at a time.
//!
//! The client reads every fraction of a second. Filters are applied here, not by workers.

use heddle_datapath::{CapturePoint, CaptureWish, Captured};
use heddle_datapath_api::{DropKind, PortNo};
use heddle_flow::odp::KeyText;
use heddle_flow::{FlowKey, Match};
use serde_json::{Value, json};

use super::{hex, key_of};
use crate::commands::flows::port_names;
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// Most packets and bytes in one reply. The reader gets little of a busy processor, and must be able to end
/// soon.
const MAX_PACKETS: usize = 1024;
const MAX_BYTES: usize = 4 << 20;
/// Default of the maximum number of bytes kept of a packet.
const SNAP_LEN: usize = 65_535;

/// Parsed arguments of a command.
#[derive(Default, Debug)]
pub(super) struct CaptureArgs<'a> {
    port: Option<&'a str>,
    drop: Option<&'a str>,
    filter: Option<&'a str>,
    pub(super) snap_len: Option<usize>,
}

pub(super) fn read_args<'a>(args: &[&'a str]) -> Result<CaptureArgs<'a>, String> {
    let mut wanted = CaptureArgs::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args
            .next()
            .copied()
            .ok_or_else(|| format!("{arg}: a value is missing"))?;
        match *arg {
            "--port" => wanted.port = Some(value),
            "--drop" => wanted.drop = Some(value),
            "--filter" => wanted.filter = Some(value),
            "--snaplen" => {
                let n = value.parse().ok().filter(|n| (1..=SNAP_LEN).contains(n));
                wanted.snap_len = Some(n.ok_or_else(|| format!("{value}: no length from 1 to {SNAP_LEN}"))?);
            }
            other => return Err(format!("{other}: unknown option")),
        }
    }
    Ok(wanted)
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

/// Begins a capture; returns its number.
pub(super) fn start(switch: &Switch, args: &[&str]) -> Reply {
    let wanted = read_args(args)?;
    let ports = port_names(switch);
    let number = |name: &str| ports.iter().find(|(_, n)| *n == name).map(|(no, _)| *no);
    let port = match wanted.port {
        Some(name) => Some(number(name).ok_or_else(|| format!("{name}: no such port of the datapath"))?),
        None => None,
    };
    let filter = match wanted.filter {
        Some(text) => Some(Match::parse_text(text, Some(&number)).map_err(|e| format!("{text}: {e}"))?),
        None => None,
    };
    let drops = wanted.drop.map(reason).transpose()?;
    let wish = CaptureWish {
        traffic: drops.is_none(),
        drops,
        port: port.map(PortNo),
        snap_len: wanted.snap_len.unwrap_or(SNAP_LEN),
    };
    let id = switch.captures.start(wish, filter, &switch.datapath)?;
    switch.pause_offload(true);
    Ok(format!("{id}\n"))
}

/// The packets captured since the last read.
pub(super) fn read(switch: &Switch, id: &str) -> Reply {
    // Reads in a thread of its own at low priority, since workers want the processor.
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            heddle_sys::cpu::stand_back();
            read_all(switch, id)
        });
        reader.join().map_err(|_| "the reader has ended".to_owned())?
    })
}

fn read_all(switch: &Switch, id: &str) -> Reply {
    let filter = switch.captures.begin_read(id)?;
    let ports = port_names(switch);
    let (mut bytes, mut passed_over) = (0, 0);
    let mut packets = Vec::new();
    for _ in 0..MAX_PACKETS {
        if bytes >= MAX_BYTES {
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
        packets.push(packet(&c, &key, &name));
    }
    let passed_over = switch.captures.add_passed_over(id, passed_over)?;
    let missed = switch.datapath.capture_missed();
    let reply = json!({"packets": packets, "missed": missed, "passed_over": passed_over});
    Ok(format!("{reply}\n"))
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
