//! How long a connection lives without packets: by its state, and by the policy that it was made under.
//!
//! A policy is a row of numbers that packets read and a control thread writes, one by one. A connection has
//! its policy's place, not its numbers: a policy that changes counts at the connection's next packet, and one
//! that is gone has become the default (both as in Open vSwitch).

use heddle_sync::Published;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Names of connections' states, as far as they live differently long. The order is that of the settings'
/// names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Class {
    /// SYN.
    TcpSynSent,
    /// One end's first packet was not acknowledged yet.
    TcpSynRecv,
    /// Both were.
    TcpEstablished,
    /// One FIN.
    TcpFinWait,
    /// Two FINs.
    TcpTimeWait,
    /// Over, or reset.
    TcpClose,
    /// One packet of UDP, SCTP or other protocols.
    UdpFirst,
    /// Several, one way.
    UdpSingle,
    /// Both ways.
    UdpMultiple,
    /// Requests.
    IcmpFirst,
    /// An answer was seen.
    IcmpReply,
}

const CLASSES: usize = 11;

/// All settings: name as the database and `ovs-vsctl` have it, what it sets if anything, seconds by default.
/// What sets nothing is what Open vSwitch's own tracker does not use either.
const SETTINGS: [(&str, Option<Class>, u32); 16] = [
    ("tcp_syn_sent", Some(Class::TcpSynSent), 30),
    ("tcp_syn_recv", Some(Class::TcpSynRecv), 30),
    ("tcp_established", Some(Class::TcpEstablished), 24 * 60 * 60),
    ("tcp_fin_wait", Some(Class::TcpFinWait), 15 * 60),
    ("tcp_close_wait", None, 0),
    ("tcp_last_ack", None, 0),
    ("tcp_time_wait", Some(Class::TcpTimeWait), 45),
    ("tcp_close", Some(Class::TcpClose), 30),
    ("tcp_syn_sent2", None, 0),
    ("tcp_retransmit", None, 0),
    ("tcp_unack", None, 0),
    ("udp_first", Some(Class::UdpFirst), 60),
    ("udp_single", Some(Class::UdpSingle), 60),
    ("udp_multiple", Some(Class::UdpMultiple), 30),
    ("icmp_first", Some(Class::IcmpFirst), 60),
    ("icmp_reply", Some(Class::IcmpReply), 30),
];

/// Policies beside the default at one time.
pub const MAX_POLICIES: usize = 1023;

/// The place of a policy; 0 is the default.
pub(crate) type PolicyId = u16;

/// A policy: its name, and its settings by name, in seconds.
pub type Policy = (Arc<str>, Vec<(&'static str, u32)>);

type Names = BTreeMap<Arc<str>, PolicyId>;

/// All policies.
#[derive(Debug)]
pub(crate) struct Timeouts {
    /// Seconds by policy and class.
    rows: Box<[[AtomicU32; CLASSES]]>,
    names: Published<Names>,
    writer: Mutex<()>,
}

fn defaults() -> [u32; CLASSES] {
    let mut row = [0; CLASSES];
    for (_, class, s) in SETTINGS {
        if let Some(c) = class {
            row[c as usize] = s;
        }
    }
    row
}

impl Timeouts {
    pub(crate) fn new() -> Self {
        let row = || defaults().map(AtomicU32::new);
        Self {
            rows: (0..=MAX_POLICIES).map(|_| row()).collect(),
            names: Published::new(Names::new()),
            writer: Mutex::new(()),
        }
    }
    /// Milliseconds.
    #[inline]
    pub(crate) fn ms(&self, policy: PolicyId, class: Class) -> u64 {
        let row = self.rows.get(usize::from(policy)).or(self.rows.first());
        row.and_then(|r| r.get(class as usize))
            .map_or(0, |s| u64::from(s.load(Relaxed)) * 1000)
    }
    /// The place of a policy; the default's where there is none of that name.
    pub(crate) fn find(&self, name: Option<&str>) -> PolicyId {
        let Some(name) = name else { return 0 };
        self.names.load().get(name).copied().unwrap_or(0)
    }
    /// Makes or replaces a policy. Settings that it does not name have their default.
    pub(crate) fn set(&self, name: &str, settings: &[(&str, u32)]) -> Result<(), PolicyError> {
        let mut row = defaults();
        for (setting, seconds) in settings {
            let known = SETTINGS.iter().find(|s| s.0.eq_ignore_ascii_case(setting));
            let Some((_, class, _)) = known else {
                return Err(PolicyError::UnknownSetting((*setting).to_owned()));
            };
            if let Some(c) = class {
                row[*c as usize] = *seconds;
            }
        }
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let names = self.names.get();
        let id = match names.get(name) {
            Some(id) => *id,
            None => {
                let free = |id: &PolicyId| !names.values().any(|u| u == id);
                let mut places = (1..).take(MAX_POLICIES);
                let id = places.find(free).ok_or(PolicyError::TooMany)?;
                let mut all = Names::clone(&names);
                all.insert(name.into(), id);
                self.write(id, row);
                self.names.store(all);
                return Ok(());
            }
        };
        self.write(id, row);
        Ok(())
    }
    /// Forgets a policy. `false`: there is none.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Names::clone(&self.names.get());
        let Some(id) = all.remove(name) else { return false };
        self.names.store(all);
        self.write(id, defaults());
        true
    }
    /// All policies by name, with the seconds of all settings that mean something.
    pub(crate) fn list(&self) -> Vec<Policy> {
        let seconds = |id: PolicyId| {
            let used = SETTINGS.iter().filter_map(|(name, c, _)| Some((*name, (*c)?)));
            used.map(|(name, c)| (name, u32::try_from(self.ms(id, c) / 1000).unwrap_or(u32::MAX)))
                .collect()
        };
        let names = self.names.get();
        names
            .iter()
            .map(|(name, id)| (name.clone(), seconds(*id)))
            .collect()
    }
    fn write(&self, id: PolicyId, row: [u32; CLASSES]) {
        for (place, s) in self.rows.get(usize::from(id)).into_iter().flatten().zip(row) {
            place.store(s, Relaxed); // a packet may read some of before and some of after
        }
    }
}

/// Why a policy was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicyError {
    /// There is no setting of this name.
    UnknownSetting(String),
    /// There are [`MAX_POLICIES`] already.
    TooMany,
}

impl std::fmt::Display for PolicyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownSetting(s) => write!(f, "there is no timeout {s}"),
            Self::TooMany => write!(f, "there are {MAX_POLICIES} timeout policies already"),
        }
    }
}

impl std::error::Error for PolicyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_come_change_and_go() {
        let t = Timeouts::new();
        let read = |name| t.ms(t.find(Some(name)), Class::UdpSingle) / 1000;
        assert_eq!(read("none"), 60);
        t.set("a", &[("udp_single", 3), ("tcp_unack", 7)]).unwrap();
        t.set("b", &[("UDP_SINGLE", 4)]).unwrap();
        assert_eq!((read("a"), read("b"), t.find(None)), (3, 4, 0));
        t.set("a", &[("udp_first", 9)]).unwrap();
        assert_eq!(read("a"), 60, "what is not named has its default");
        let e = t.set("a", &[("udp_last", 9)]).unwrap_err();
        assert_eq!(e.to_string(), "there is no timeout udp_last");
        let b = t.find(Some("b"));
        assert!(t.remove("b") && !t.remove("b"));
        assert_eq!((t.find(Some("b")), t.ms(b, Class::UdpSingle)), (0, 60_000));
        assert_eq!(t.list().len(), 1);
        for n in 1..MAX_POLICIES {
            t.set(&n.to_string(), &[]).unwrap();
        }
        assert_eq!(t.set("more", &[]), Err(PolicyError::TooMany));
    }
}
