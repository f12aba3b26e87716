//! The texts of `lacp/show` and `lacp/show-stats`.

use crate::aggregator::{Aggregator, Link, Partner};
use crate::info::{Flags, Info};
use std::fmt::{Display, Formatter, Result, Write as _};

struct Mac([u8; 6]);

impl Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Names of flags, each after a space.
impl Display for Flags {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let names = [
            (Self::ACTIVITY, "activity"),
            (Self::TIMEOUT, "timeout"),
            (Self::AGGREGATION, "aggregation"),
            (Self::SYNCHRONIZED, "synchronized"),
            (Self::COLLECTING, "collecting"),
            (Self::DISTRIBUTING, "distributing"),
            (Self::DEFAULTED, "defaulted"),
            (Self::EXPIRED, "expired"),
        ];
        for (_, name) in names.iter().filter(|(flag, _)| self.has(*flag)) {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}

/// One end of a link; `prefix` is which one.
fn end(text: &mut String, prefix: &str, info: &Info) {
    let _ = write!(
        text,
        "\n  {prefix} sys_id: {}\n  {prefix} sys_priority: {}\n  {prefix} port_id: {}\n  \
         {prefix} port_priority: {}\n  {prefix} key: {}\n  {prefix} state:{}\n",
        Mac(info.sys_id),
        info.sys_priority,
        info.port_id,
        info.port_priority,
        info.key,
        info.state
    );
}

impl Aggregator {
    /// Links with their places, by name.
    fn by_name(&self) -> Vec<(usize, &Link)> {
        let mut links: Vec<_> = self.links.iter().enumerate().collect();
        links.sort_by(|(_, a), (_, b)| a.settings.name.cmp(&b.settings.name));
        links
    }

    /// The text of `lacp/show`.
    pub fn details(&self) -> String {
        let s = &self.settings;
        let key = self.key().map_or("none".to_owned(), |key| key.to_string());
        let mut text = format!(
            "---- {} ----\n  status: {}{}\n  sys_id: {}\n  sys_priority: {}\n  aggregation key: {key}\n  \
             lacp_time: {}\n",
            s.name,
            if s.active { "active" } else { "passive" },
            if self.negotiated { " negotiated" } else { "" },
            Mac(s.sys_id),
            s.sys_priority,
            if s.fast { "fast" } else { "slow" },
        );
        for (at, link) in self.by_name() {
            let status = match link.status {
                Partner::Current => "current",
                Partner::Expired => "expired",
                Partner::Defaulted => "defaulted",
            };
            let attached = if link.attached { "attached" } else { "detached" };
            let l = &link.settings;
            let _ = write!(
                text,
                "\nmember: {}: {status} {attached}\n  port_id: {}\n  port_priority: {}\n  may_enable: {}\n",
                l.name,
                l.port_id,
                l.port_priority,
                link.may_enable(s.fallback)
            );
            end(&mut text, "actor", &self.actor(at));
            end(&mut text, "partner", &link.partner);
        }
        text
    }

    /// The text of `lacp/show-stats`.
    pub fn statistics(&self) -> String {
        let mut text = format!("---- {} statistics ----\n", self.settings.name);
        for (_, link) in self.by_name() {
            let c = &link.counters;
            let _ = write!(
                text,
                "\nmember: {}:\n  TX PDUs: {}\n  RX PDUs: {}\n  RX Bad PDUs: {}\n  \
                 RX Marker Request PDUs: {}\n  Link Expired: {}\n  Link Defaulted: {}\n  \
                 Carrier Status Changed: {}\n",
                link.settings.name,
                c.tx,
                c.rx,
                c.rx_bad,
                c.rx_marker,
                c.expired,
                c.defaulted,
                c.carrier_changed
            );
        }
        text
    }
}
