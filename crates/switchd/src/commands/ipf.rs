//! `dpctl/ipf-*`: fragments that are reassembled for connection tracking.

use std::fmt::Write as _;

use heddle_conntrack::ipf::Status;

use super::Commands;
use super::args;
use super::dpctl::{EINVAL, failed, one};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// Open vSwitch's error for a value that is out of range.
const EPERM: &str = "Operation not permitted";

pub(super) fn register(c: &Commands<'_>) {
    c.add("dpctl/ipf-set-enabled", "[dp] v4|v6", (1, 2), |s, a| {
        set_enabled(s, a, true)
    });
    c.add("dpctl/ipf-set-disabled", "[dp] v4|v6", (1, 2), |s, a| {
        set_enabled(s, a, false)
    });
    c.add(
        "dpctl/ipf-set-min-frag",
        "[dp] v4|v6 minfragment",
        (2, 3),
        set_min,
    );
    c.add("dpctl/ipf-set-max-nfrags", "[dp] maxfrags", (1, 2), set_max);
    c.add("dpctl/ipf-get-status", "[dp]", (0, 3), status);
}

/// Whether the text means IPv6.
fn family(text: &str) -> Option<bool> {
    if text.starts_with("v6") {
        Some(true)
    } else {
        text.starts_with("v4").then_some(false)
    }
}

/// The number at the beginning.
fn number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

fn set_enabled(switch: &Switch, args: &[&str], on: bool) -> Reply {
    let (_, args) = one(switch, args, 3)?;
    let Some(v6) = args.last().and_then(|t| family(t)) else {
        let text = "parameter missing: 'v4' for IPv4 or 'v6' for IPv6";
        return Err(failed(switch, text, Some(EINVAL)));
    };
    switch.datapath.fragments().set_enabled(v6, on);
    let verb = if on { "enabling" } else { "disabling" };
    Ok(format!("{verb} fragmentation reassembly successful"))
}

fn set_min(switch: &Switch, args: &[&str]) -> Reply {
    let (_, args) = one(switch, args, 3)?;
    let bad = |text| failed(switch, text, Some(EINVAL));
    let [.., which, size] = args else {
        return Err(bad("parameter missing: v4 for IPv4 or v6 for IPv6"));
    };
    let v6 = family(which).ok_or_else(|| bad("parameter missing: v4 for IPv4 or v6 for IPv6"))?;
    let size = number(size).ok_or_else(|| bad("parameter missing for minimum fragment size"))?;
    if !switch.datapath.fragments().set_min(v6, size) {
        let text = "requested minimum fragment size too small; see documentation";
        return Err(failed(switch, text, Some(EPERM)));
    }
    Ok("setting minimum fragment size successful".to_owned())
}

fn set_max(switch: &Switch, args: &[&str]) -> Reply {
    let (_, args) = one(switch, args, 2)?;
    let n = args.last().and_then(|t| number(t));
    let n = n.ok_or_else(|| failed(switch, "parameter missing for maximum fragments", Some(EINVAL)))?;
    if !switch.datapath.fragments().set_max(n) {
        return Err(failed(switch, "setting maximum fragments failed", Some(EPERM)));
    }
    Ok("setting maximum fragments successful".to_owned())
}

fn status(switch: &Switch, args: &[&str]) -> Reply {
    let (options, args) = args::split(args)?;
    one(switch, args, 1)?;
    let fragments = switch.datapath.fragments();
    let lists = (options.verbosity > 0).then(|| fragments.lists());
    Ok(text(&fragments.status(), lists.as_deref()))
}

/// Open vSwitch's text.
fn text(status: &Status, lists: Option<&[String]>) -> String {
    const INDENT: &str = "        ";
    let mut out = String::new();
    // Writing into a string does not fail.
    let mut line = |text: &str, n: u64| _ = writeln!(out, "{INDENT}{text}: {n}");
    let [v4, v6] = &status.families;
    line("v4 enabled", v4.enabled.into());
    line("v6 enabled", v6.enabled.into());
    line("max num frags (v4/v6)", status.max.into());
    line("num frag", status.waiting.into());
    for (name, f) in [("v4", v4), ("v6", v6)] {
        line(&format!("min {name} frag size"), f.min_size.into());
        for (what, n) in [
            ("accepted", f.accepted),
            ("completed", f.completed),
            ("expired", f.expired),
            ("too small", f.too_small),
            ("overlapped", f.overlap),
            ("purged", f.purged),
        ] {
            line(&format!("{name} frags {what}"), n);
        }
    }
    if let Some(lists) = lists {
        let _ = write!(out, "\n{INDENT}Fragment Lists:\n\n");
        lists.iter().for_each(|l| out += &format!("{l}\n"));
    }
    format!("{INDENT}Fragmentation Module Status\n{INDENT}---------------------------\n{out}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_conntrack::ipf::Ipf;

    #[test]
    fn the_status_is_as_scripts_read_it() {
        let ipf: Ipf<()> = Ipf::default();
        let shown = text(&ipf.status(), Some(&[]));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "        Fragmentation Module Status");
        assert_eq!(lines[1], "        ---------------------------");
        assert_eq!(lines[4], "        max num frags (v4/v6): 1000");
        assert_eq!(lines[6], "        min v4 frag size: 1200");
        assert_eq!(lines[12], "        v4 frags purged: 0");
        assert_eq!(lines[13], "        min v6 frag size: 1280");
        assert_eq!(lines[18], "        v6 frags overlapped: 0");
        assert_eq!(lines[20..], ["", "        Fragment Lists:", ""]);
        assert_eq!(text(&ipf.status(), None).lines().count(), 20);
    }

    #[test]
    fn arguments() {
        assert_eq!(
            [family("v4"), family("v6"), family("4")],
            [Some(false), Some(true), None]
        );
        assert_eq!(
            [number("500"), number("7x"), number("x")],
            [Some(500), Some(7), None]
        );
    }
}
