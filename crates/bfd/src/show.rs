//! Output for users and scripts in Open vSwitch's words: `bfd/show`, `Interface.bfd_status`, lines of the
//! log.

use crate::message::disc;
use crate::session::{Now, Session};

/// Milliseconds from now, with their sign.
fn from_now(at_ms: u64, now: Now) -> String {
    let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    format!("now {:+}ms", signed(at_ms).saturating_sub(signed(now.ms)))
}

impl Session {
    /// The details that `bfd/show` prints, lines that end.
    pub fn details(&self, now: Now) -> String {
        let l = self.local();
        let r = self.remote();
        format!(
            "  Forwarding: {}\n  Detect Multiplier: {}\n  Concatenated Path Down: {}\n  \
             TX Interval: Approx {}ms\n  RX Interval: Approx {}ms\n  Detect Time: {}\n  Next TX Time: {}\n  \
             Last TX Time: {}\n\n  Local Flags: {}\n  Local Session State: {}\n  Local Diagnostic: {}\n  \
             Local Discriminator: {}\n  Local Minimum TX Interval: {}ms\n  Local Minimum RX Interval: {}ms\n\n  \
             Remote Flags: {}\n  Remote Session State: {}\n  Remote Diagnostic: {}\n  \
             Remote Discriminator: {}\n  Remote Minimum TX Interval: {}ms\n  \
             Remote Minimum RX Interval: {}ms\n  Remote Detect Multiplier: {}\n",
            self.is_forwarding(),
            l.mult,
            l.cpath_down,
            self.tx_interval_ms(),
            self.rx_interval_ms(),
            from_now(l.detect_ms, now),
            from_now(l.next_tx_ms, now),
            from_now(l.last_tx_ms, now),
            l.flags,
            l.state,
            l.diag,
            disc(l.disc),
            self.min_tx_ms(),
            l.min_rx_ms,
            r.flags,
            r.state,
            r.diag,
            disc(r.disc),
            r.min_tx_ms,
            r.min_rx_ms,
            r.mult,
        )
    }

    /// `Interface.bfd_status`.
    pub fn status(&self) -> [(&'static str, String); 6] {
        let (l, r) = (self.local(), self.remote());
        [
            ("forwarding", self.is_forwarding().to_string()),
            ("state", l.state.to_string()),
            ("diagnostic", l.diag.to_string()),
            ("flap_count", self.flaps().to_string()),
            ("remote_state", r.state.to_string()),
            ("remote_diagnostic", r.diag.to_string()),
        ]
    }
}
