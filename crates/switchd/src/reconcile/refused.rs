//! Refusals of `ct` in the log: their number since the last line, and the remedy.
//!
//! Workers only count. The counts are read about once a second here, so a flood of refusals is one line.
//! There are at most a few lines a minute of each kind.

use std::collections::BTreeMap;

use heddle_conntrack::Event;
use log::Level;

/// The log line of one kind: its level and the text after the number.
fn text(event: Event) -> Option<(Level, &'static str)> {
    Some(match event {
        Event::Full => (
            Level::Warn,
            "new connections were not kept: there are as many as dpctl/ct-set-maxconns allows",
        ),
        // A user has set that limit, so reaching it is no fault.
        Event::ZoneLimit => (
            Level::Info,
            "new connections were not kept: their zones have as many as their limits allow (dpctl/ct-get-limits)",
        ),
        Event::NatExhausted => (
            Level::Warn,
            "connections. Unable to NAT due to tuple space exhaustion - if DoS attack, use firewalling and/or \
             zone partitioning.",
        ),
        Event::NoRoom => (
            Level::Warn,
            "new connections were not kept: the table has no room for more",
        ),
        Event::FtpMalformed => (
            Level::Info,
            "messages of FTP announce connections of others, or make no sense",
        ),
        Event::FragmentsFull => (
            Level::Info,
            "fragments were not put together: there is no room for them (dpctl/ipf-set-max-nfrags)",
        ),
        _ => return None,
    })
}

/// The number of each kind at the last reading.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<&'static str, u64>);

impl Refused {
    /// Lines about refusals since the last call; `counts`: numbers since the start, by name.
    fn lines(&mut self, counts: &[(&'static str, u64)]) -> Vec<(Level, String)> {
        let mut lines = Vec::new();
        for event in Event::ALL {
            let (Some((level, text)), Some((name, n))) =
                (text(event), counts.iter().find(|(name, _)| *name == event.name()))
            else {
                continue;
            };
            let before = self.0.insert(name, *n).unwrap_or(0);
            if *n > before {
                lines.push((level, format!("{} {text}", n - before)));
            }
        }
        lines
    }

    /// Logs refusals since the last call.
    pub(super) fn log_new(&mut self, counts: &[(&'static str, u64)]) {
        for (level, line) in self.lines(counts) {
            log::log!(target: "conntrack", level, per_min = 12, burst = 6; "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once_with_its_number() {
        let mut r = Refused::default();
        assert!(r.lines(&[("conntrack_full", 0), ("other", 9)]).is_empty());
        let lines = r.lines(&[("conntrack_full", 3), ("conntrack_zone_full", 5), ("other", 10)]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].1.starts_with("3 new connections") && lines[0].0 == Level::Warn);
        assert!(lines[1].1.starts_with("5 ") && lines[1].0 == Level::Info);
        let lines = r.lines(&[("conntrack_full", 4), ("conntrack_zone_full", 5)]);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].1.starts_with("1 "));
    }
}
