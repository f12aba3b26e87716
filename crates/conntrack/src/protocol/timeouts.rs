//! Timeouts of connections without packets, by their state and their timeout policy.
//!
//! A policy is a row of numbers that packets read and a control thread writes, one by one. A connection has
//! the slot of its policy, not the numbers. So a changed policy applies from the next packet of the
//! connection on. A removed policy becomes the default. Both are as in Open vSwitch.
//!
//! A slot is used again for another policy, with another generation. A connection has slot and generation. So
//! it uses the default timeouts after its policy is gone, and not those of another policy in the slot.

use heddle_sync::Published;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

/// Classes of states with the same timeout, in the order of the names of the settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Class {
    /// SYN.
    TcpSynSent,
    /// The first segment of one endpoint is not acknowledged yet.
    TcpSynRecv,
    /// The first segments of both endpoints were acknowledged.
    TcpEstablished,
    /// One FIN.
    TcpFinWait,
    /// Two FINs.
    TcpTimeWait,
    /// Closed or reset.
    TcpClose,
    /// One packet of UDP, SCTP or other protocols.
    UdpFirst,
    /// Several packets in one direction.
    UdpSingle,
    /// Packets in both directions.
    UdpMultiple,
    /// Requests.
    IcmpFirst,
    /// A reply was seen.
    IcmpReply,
}

const CLASSES: usize = 11;

/// All settings: name in the database, the class that it sets if any, default in seconds. Settings without a
/// class are those that Open vSwitch's own tracker does not use either.
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

/// Maximum number of policies beside the default.
pub const MAX_POLICIES: usize = 1023;

/// The slot of a policy, in the low half, and the generation there; 0 is the default. 65,536 policies in one
/// slot have different generations, and slots are used in turn. No connection outlives this number of
/// policies.
pub(crate) type PolicyId = u32;

/// A policy: its name, and its settings by name, in seconds.
pub type Policy = (Arc<str>, Vec<(&'static str, u32)>);

type Names = BTreeMap<Arc<str>, PolicyId>;

/// All policies.
#[derive(Debug)]
pub(crate) struct Timeouts {
    rows: Box<[Row]>,
    names: Published<Names>,
    /// The slot that was used last.
    writer: Mutex<u32>,
}

#[derive(Debug)]
#[repr(align(64))]
struct Row {
    /// Number of removed policies that had this slot.
    generation: AtomicU32,
    /// Timeouts by class.
    seconds: [AtomicU32; CLASSES],
}

/// The halves of a [`PolicyId`].
#[inline]
fn parts(id: PolicyId) -> (usize, u32) {
    ((id & 0xffff) as usize, id >> 16)
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
        let row = || Row {
            generation: AtomicU32::new(0),
            seconds: defaults().map(AtomicU32::new),
        };
        Self {
            rows: (0..=MAX_POLICIES).map(|_| row()).collect(),
            names: Published::new(Names::new()),
            writer: Mutex::new(0),
        }
    }
    /// Milliseconds.
    #[inline]
    pub(crate) fn ms(&self, policy: PolicyId, class: Class) -> u64 {
        let (place, generation) = parts(policy);
        let seconds = |row: &Row| row.seconds.get(class as usize).map_or(0, |s| s.load(Acquire));
        let own = self.rows.get(place).and_then(|row| {
            // Acquire there pairs with the Release in `write`: a reader of a later policy's number sees the
            // later generation, too.
            let s = seconds(row);
            (row.generation.load(Relaxed) == generation).then_some(s)
        });
        u64::from(own.unwrap_or_else(|| self.rows.first().map_or(0, seconds))) * 1000
    }
    /// The slot of a policy; the slot of the default if no policy has this name.
    pub(crate) fn find(&self, name: Option<&str>) -> PolicyId {
        let Some(name) = name else { return 0 };
        self.names.load().get(name).copied().unwrap_or(0)
    }
    /// Adds or replaces a policy. Settings that it does not name have their defaults.
    pub(crate) fn set(&self, name: &str, settings: &[(&str, u32)]) -> Result<(), PolicyError> {
        let mut seconds = defaults();
        for (setting, value) in settings {
            let known = SETTINGS.iter().find(|s| s.0.eq_ignore_ascii_case(setting));
            let Some((_, class, _)) = known else {
                return Err(PolicyError::UnknownSetting((*setting).to_owned()));
            };
            if let Some(c) = class {
                seconds[*c as usize] = *value;
            }
        }
        let mut last = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let names = self.names.get();
        let id = match names.get(name) {
            Some(id) => *id,
            None => {
                #[allow(clippy::cast_possible_truncation)] // 16 bits
                let most = MAX_POLICIES as u32;
                let free = |place: &u32| !names.values().any(|u| u & 0xffff == *place);
                let place = (0..most).map(|n| (*last + n) % most + 1).find(free);
                let place = place.ok_or(PolicyError::TooMany)?;
                *last = place;
                let row = self.rows.get(place as usize);
                let generation = row.map_or(0, |r| r.generation.load(Relaxed));
                let id = generation << 16 | place;
                let mut all = Names::clone(&names);
                all.insert(name.into(), id);
                self.write(id, seconds);
                self.names.store(all);
                return Ok(());
            }
        };
        self.write(id, seconds);
        Ok(())
    }
    /// Removes a policy. `false`: no policy has this name.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Names::clone(&self.names.get());
        let Some(id) = all.remove(name) else { return false };
        self.names.store(all);
        // From now on connections of the policy use the default timeouts, even if another gets the slot.
        if let Some(row) = self.rows.get(parts(id).0) {
            row.generation.store((parts(id).1 + 1) & 0xffff, Release);
        }
        true
    }
    /// All policies by name, with the seconds of all settings that have a class.
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
    fn write(&self, id: PolicyId, seconds: [u32; CLASSES]) {
        let row = self.rows.get(parts(id).0);
        for (place, s) in row.iter().flat_map(|r| &r.seconds).zip(seconds) {
            place.store(s, Release); // a packet may read some of before and some of after
        }
    }
}

/// The reason why a policy was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicyError {
    /// No setting has this name.
    UnknownSetting(String),
    /// [`MAX_POLICIES`] exist.
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

    /// A connection whose policy is gone never uses another policy in the same slot.
    #[test]
    fn a_place_used_again_is_another_policy() {
        let t = Timeouts::new();
        t.set("old", &[("udp_single", 3)]).unwrap();
        let old = t.find(Some("old"));
        for n in 0..3 * MAX_POLICIES {
            assert!(t.remove(if n == 0 { "old" } else { "new" }));
            assert_eq!(t.ms(old, Class::UdpSingle), 60_000, "{n}");
            t.set("new", &[("udp_single", 7)]).unwrap();
            let new = t.find(Some("new"));
            assert_eq!(
                (t.ms(old, Class::UdpSingle), t.ms(new, Class::UdpSingle)),
                (60_000, 7000)
            );
            assert_ne!(old, new);
        }
        assert_eq!(
            t.find(Some("new")) & 0xffff,
            old & 0xffff,
            "the place was used again"
        );
    }
}
