//! Reads lines from standard input and prints the crate's result for each. A packet in hexadecimal gives its
//! key. `match ...` and `key ...` give a text read and written again, `nxm ...` and `oxm ...` a match in
//! hexadecimal likewise. `odp ...` gives the key of a datapath's text, `flow ...` (or `flow-m ...`) that text
//! again. For comparing with Open vSwitch's tools.

use heddle_flow::extract::{Hint, extract};
use heddle_flow::odp::{KeyText, parse_flow, parse_key};
use heddle_flow::oxm::{MatchForm, pull_match, put_match};
use heddle_flow::{FlowKey, Match};

fn hex(s: &str) -> Option<Vec<u8>> {
    if !s.len().is_multiple_of(2) {
        return None;
    }
    (0..s.len() / 2)
        .map(|i| u8::from_str_radix(s.get(2 * i..2 * i + 2)?, 16).ok())
        .collect()
}

fn show(line: &str) -> Result<String, String> {
    if let Some(m) = line.strip_prefix("match ") {
        return Ok(Match::parse_text(m, None)?.to_string());
    }
    if let Some(k) = line.strip_prefix("key ") {
        return Ok(FlowKey::parse_text(k, None)?.to_string());
    }
    if let Some(k) = line.strip_prefix("odp ") {
        return Ok(parse_key(k, None)?.to_string());
    }
    if let Some((rest, verbose)) = line
        .strip_prefix("flow ")
        .map(|r| (r, false))
        .or(line.strip_prefix("flow-m ").map(|r| (r, true)))
    {
        let (key, mask) = parse_flow(rest, None)?;
        let text = KeyText {
            key: &key,
            mask: Some(&mask),
            verbose,
            names: None,
            vlan_limit: 2,
        };
        return Ok(text.to_string());
    }
    for (word, form) in [("nxm ", MatchForm::Nxm), ("oxm ", MatchForm::Oxm(6))] {
        if let Some(h) = line.strip_prefix(word) {
            let m = pull_match(&hex(h).ok_or("not hexadecimal")?, true).map_err(|e| e.to_string())?;
            let mut out = Vec::new();
            put_match(&m, form, &mut out);
            return Ok(out.iter().map(|b| format!("{b:02x}")).collect());
        }
    }
    let bytes = hex(line).ok_or("not hexadecimal")?;
    let mut key = FlowKey::default();
    extract(&bytes, &Hint::ethernet(bytes.len()), &mut key);
    key.in_port = 1;
    Ok(key.to_string())
}

fn main() {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        println!("{}", show(&line).unwrap_or_else(|e| format!("error: {e}")));
    }
}
