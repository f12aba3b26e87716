//! `heddle/drops`, `heddle/capture-*` and `heddle/samples`: the requests of the command `heddle`.

mod capture;
mod drops;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use serde_json::json;

use super::Commands;
use crate::samples::socket_path;

/// Maximum number of VLAN tags that are shown of a packet.
const MAX_SHOWN_VLANS: u8 = 2;

pub(super) fn register(c: &Commands<'_>) {
    c.add("heddle/drops", "[port|-] [since]", (0, 2), |s, args| {
        let port = args.first().copied().filter(|name| *name != "-");
        let since = match args.get(1) {
            Some(text) => text
                .parse()
                .map_err(|_| format!("{text}: no number of an example"))?,
            None => 0,
        };
        drops::report(s, port, since)
    });
    c.add("heddle/drops-reset", "", (0, 0), |s, _| {
        s.drops.reset(&s.datapath);
        Ok(String::new())
    });
    c.add("heddle/samples", "", (0, 0), |s, _| {
        let counts: BTreeMap<_, _> = s.sample_counts.all().into();
        Ok(format!(
            "{}\n",
            json!({"socket": socket_path(), "counts": counts})
        ))
    });
    let usage = "[--port port] [--drop reason|any] [--filter match] [--snaplen bytes]";
    c.add("heddle/capture-start", usage, (0, 8), |s, args| {
        capture::start(s, args)
    });
    c.add("heddle/capture-read", "number", (1, 1), |s, args| {
        capture::read(s, args.first().copied().unwrap_or_default())
    });
    c.add("heddle/capture-stop", "number", (1, 1), |s, args| {
        let id = args.first().copied().unwrap_or_default();
        s.captures.stop(id, &s.datapath)?;
        s.pause_offload(false);
        Ok(String::new())
    });
}

/// The key of a packet that begins with `head` and came in by datapath port `in_port`.
fn key_of(head: &[u8], len: usize, in_port: u32, context: Option<&FlowKey>) -> FlowKey {
    let mut key = FlowKey::default();
    let hint = Hint {
        total_len: len.max(head.len()),
        packet_type: context.map_or(0, |c| c.packet_type),
        vlan_limit: MAX_SHOWN_VLANS,
    };
    extract(head, &hint, &mut key);
    if let Some(context) = context {
        key.copy_tunnel(context);
    }
    key.in_port = in_port;
    key
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| char::from(DIGITS[usize::from(n & 15)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(*b)]).collect()
}
