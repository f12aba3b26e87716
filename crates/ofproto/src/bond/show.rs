//! The texts of `bond/show` and `bond/list`.

use super::machine::{Bond, Member};
use crate::bond_port::Mode;
use std::fmt::Write as _;

impl Bond {
    /// The text of `bond/show`; `id` is the number of its table of buckets in the datapath.
    pub(super) fn details(&self, id: u32, now_ms: u64) -> String {
        let s = &self.settings;
        let [a, b, c, d, e, f] = self.active_mac;
        let (hashes, number) = match self.hashes() {
            true => ("yes", i64::from(id)),
            false => ("no", -1),
        };
        let (lb, lb_id) = match s.lb_output && s.mode == Mode::BalanceTcp {
            true => ("enabled", i64::from(id)),
            false => ("disabled", -1),
        };
        let mut text = format!(
            "---- {} ----\nbond_mode: {}\nbond may use recirculation: {hashes}, Recirc-ID : {number}\n\
             bond-hash-basis: {}\nlb_output action: {lb}, bond-id: {lb_id}\n",
            self.name,
            s.mode.name(),
            s.basis,
        );
        if s.mode == Mode::BalanceSlb {
            let _ = writeln!(text, "all members active: {}", s.all_members_active);
        }
        let _ = write!(
            text,
            "updelay: {} ms\ndowndelay: {} ms\n",
            s.updelay_ms, s.downdelay_ms
        );
        if self.is_balanced() {
            let left = ms_left(self.next_rebalance_ms, now_ms);
            let _ = writeln!(text, "next rebalance: {left} ms");
        }
        let primary = s.primary.as_deref();
        let unknown = primary.is_some_and(|name| self.by_name(name).is_none());
        let last = self.members.iter().find(|m| m.link.mac == self.active_mac);
        let _ = write!(
            text,
            "lacp_status: {}\nlacp_fallback_ab: {}\nactive-backup primary: {}{}\n\
             active member mac: {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}({})\n",
            self.lacp.name(),
            s.fallback,
            primary.unwrap_or("<none>"),
            if unknown { " (no such member)" } else { "" },
            last.map_or("none", |m| &m.link.name),
        );
        let mut members: Vec<&Member> = self.members.iter().collect();
        members.sort_by(|a, b| a.link.name.cmp(&b.link.name));
        members
            .iter()
            .for_each(|m| self.show_member(m, now_ms, &mut text));
        text.push('\n');
        text
    }

    fn show_member(&self, m: &Member, now_ms: u64, text: &mut String) {
        let state = if m.enabled { "enabled" } else { "disabled" };
        let _ = writeln!(text, "\nmember {}: {state}", m.link.name);
        if self.active == Some(m.link.no) {
            text.push_str("  active member\n");
        }
        if let Some(ends_ms) = m.delay_ends_ms {
            let which = if m.enabled { "downdelay" } else { "updelay" };
            let _ = writeln!(text, "  {which} expires in {} ms", ms_left(ends_ms, now_ms));
        }
        let _ = writeln!(text, "  may_enable: {}", m.may_enable);
        if !self.is_balanced() {
            return;
        }
        for (n, bucket) in self.buckets.iter().enumerate() {
            let kb = bucket.bytes / 1024;
            if bucket.member == Some(m.link.no) && kb != 0 {
                let _ = writeln!(text, "  hash {n}: {kb} kB load");
            }
        }
    }

    /// The bond's line of `bond/list`.
    pub(super) fn line(&self, id: u32) -> String {
        let id = match self.settings.mode {
            Mode::ActiveBackup => 0,
            Mode::BalanceSlb | Mode::BalanceTcp => id,
        };
        let members: Vec<&str> = self.members.iter().map(|m| m.link.name.as_str()).collect();
        let mode = self.settings.mode.name();
        format!("{}\t{mode}\t{id}\t{}\n", self.name, members.join(", "))
    }
}

/// Time until `then`, ms; negative after it.
fn ms_left(then: u64, now_ms: u64) -> i64 {
    i64::try_from(then).unwrap_or(i64::MAX) - i64::try_from(now_ms).unwrap_or(i64::MAX)
}
