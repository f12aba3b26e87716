//! Number of flow mods that came over a connection, for a line in the log now and then. A user who loads many
//! flows sees there that this is done.

use heddle_openflow::message::{FlowModCommand, Message};

/// Time between the first flow mod and the line that reports it, ms.
const REPORT_MS: u64 = 10_000;

/// Flow mods by what they do.
#[derive(Clone, Copy, Default)]
pub(super) struct FlowModCounts {
    adds: u64,
    deletes: u64,
    modifications: u64,
}

impl FlowModCounts {
    /// Counts a message, if it is a flow mod.
    pub(super) fn count(&mut self, message: &Message) {
        if let Message::FlowMod(fm) = message {
            *match fm.command {
                FlowModCommand::Add => &mut self.adds,
                FlowModCommand::Modify | FlowModCommand::ModifyStrict => &mut self.modifications,
                FlowModCommand::Delete | FlowModCommand::DeleteStrict => &mut self.deletes,
            } += 1;
        }
    }
    fn total(&self) -> u64 {
        self.adds + self.deletes + self.modifications
    }
}

/// The flow mods of a connection that the log has not reported.
#[derive(Default)]
pub(super) struct FlowModReport {
    counts: FlowModCounts,
    first_ms: u64,
    last_ms: u64,
}

impl FlowModReport {
    /// These have been carried out.
    pub(super) fn note(&mut self, done: &FlowModCounts, now_ms: u64) {
        if done.total() == 0 {
            return;
        }
        if self.counts.total() == 0 {
            self.first_ms = now_ms;
        }
        self.last_ms = now_ms;
        self.counts.adds += done.adds;
        self.counts.deletes += done.deletes;
        self.counts.modifications += done.modifications;
    }
    /// The text to log now, in Open vSwitch's words: `9 flow_mods in the last 0 s (7 adds, 2 deletes)`.
    /// `end`: it is time in any case.
    pub(super) fn report(&mut self, now_ms: u64, end: bool) -> Option<String> {
        let total = self.counts.total();
        if total == 0 || !end && now_ms < self.first_ms + REPORT_MS {
            return None;
        }
        let t = std::mem::take(&mut self.counts);
        let ago = now_ms.saturating_sub(self.first_ms) / 1000;
        let when = match (self.last_ms - self.first_ms) / 1000 {
            took if took == ago => format!("in the last {ago} s"),
            0 => format!("{ago} s ago"),
            took => format!("in the {took} s starting {ago} s ago"),
        };
        let kinds = [
            (t.adds, "adds"),
            (t.deletes, "deletes"),
            (t.modifications, "modifications"),
        ];
        let some = kinds.into_iter().filter(|(n, _)| *n > 0);
        let kinds: Vec<String> = some.map(|(n, kind)| format!("{n} {kind}")).collect();
        Some(format!("{total} flow_mods {when} ({})", kinds.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_mods_are_reported_once_and_in_time() {
        let mut mods = FlowModReport::default();
        let some = FlowModCounts {
            adds: 7,
            deletes: 2,
            modifications: 0,
        };
        assert_eq!(mods.report(0, true), None);
        mods.note(&FlowModCounts::default(), 500);
        mods.note(&some, 1000);
        assert_eq!(mods.report(10_999, false), None);
        assert_eq!(
            mods.report(1200, true).unwrap(),
            "9 flow_mods in the last 0 s (7 adds, 2 deletes)"
        );
        assert_eq!(mods.report(1200, true), None);
        mods.note(&some, 2000);
        mods.note(&some, 5000);
        assert_eq!(
            mods.report(12_000, false).unwrap(),
            "18 flow_mods in the 3 s starting 10 s ago (14 adds, 4 deletes)"
        );
    }
}
