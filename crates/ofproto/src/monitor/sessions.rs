//! The sessions of BFD, the times at which they run, and their messages.

use super::{REFILL_MS, WatchedPort};
use crate::bfd_port::{BfdPort, BfdState, Cookie};
use crate::parts::Part;
use heddle_bfd::{Config, Now, Session, udp_of};
use heddle_datapath_api::{Generations, UpcallPacket};
use heddle_openflow::Port as OfPort;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Source ports of messages (RFC 5881 §4).
const FIRST_UDP_SRC: u16 = 49152;
const N_UDP_SRC: u16 = 16384;

pub(super) struct MonitoredSession {
    pub(super) port: WatchedPort,
    pub(super) session: Session,
    pub(super) shared: Arc<BfdState>,
    /// When it is to run next, as in `Sessions::due`.
    pub(super) wake_ms: u64,
    pub(super) rx_packets: u64,
}

#[derive(Default)]
pub(super) struct Sessions {
    pub(super) by_id: HashMap<u64, MonitoredSession>,
    pub(super) by_name: BTreeMap<String, u64>,
    /// The times at which sessions want to run, ms, with the sessions' numbers.
    pub(super) due: BTreeSet<(u64, u64)>,
    pub(super) last_id: u64,
    pub(super) discs: HashMap<u32, u64>,
    /// Sessions that have had messages since the last refill.
    pub(super) used: BTreeSet<u64>,
    pub(super) refilled_ms: u64,
    /// Ports for [`super::Monitor::take_moved`].
    pub(super) moved: BTreeSet<(u64, OfPort)>,
}

/// A frame that is to be sent.
pub(super) struct Outgoing {
    /// Number of the session.
    pub(super) id: u64,
    pub(super) port: WatchedPort,
    pub(super) frame: Vec<u8>,
    pub(super) oam: bool,
}

/// Changes of a session that are to be reported: in the database (`status`) and to controllers (`moved`).
#[derive(Clone, Copy, Default)]
pub(super) struct SessionChange {
    pub(super) status: bool,
    pub(super) moved: bool,
}

impl std::ops::BitOr for SessionChange {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self {
            status: self.status | other.status,
            moved: self.moved | other.moved,
        }
    }
}

impl MonitoredSession {
    pub(super) fn now(&self, now_ms: u64) -> Now {
        Now {
            ms: now_ms,
            rx_packets: self.rx_packets,
        }
    }
}

impl Sessions {
    pub(super) fn configure(
        &mut self,
        name: &str,
        config: &Config,
        port: WatchedPort,
        (now_ms, rx_packets): (u64, u64),
        generations: &Generations,
    ) -> BfdPort {
        let id = match self.by_name.get(name) {
            Some(id) => *id,
            None => self.make(name, config, port.clone(), (now_ms, rx_packets)),
        };
        if let Some(e) = self.by_id.get_mut(&id) {
            e.port = port;
            if e.session.config() != config {
                // Packets were perhaps not counted so far.
                e.rx_packets = rx_packets;
                let now = e.now(now_ms);
                e.session.configure(config, now);
            }
        }
        self.take_over_state(id, now_ms, generations);
        let shared = self.by_id[&id].shared.clone();
        BfdPort {
            shared,
            filter: config.filter,
        }
    }

    pub(super) fn make(
        &mut self,
        name: &str,
        config: &Config,
        port: WatchedPort,
        (now_ms, rx_packets): (u64, u64),
    ) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        // Hashed with the system's random keys, so peers cannot guess it (RFC 5880 §6.8.1).
        let random = RandomState::new();
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let disc = (0_u64..)
            .map(|n| random.hash_one((id, n)) as u32)
            .find(|d| *d != 0 && !self.discs.contains_key(d))
            .unwrap_or(1);
        self.discs.insert(disc, id);
        #[expect(clippy::cast_possible_truncation, reason = "of a remainder")]
        let udp_src = FIRST_UDP_SRC + ((id - 1) % u64::from(N_UDP_SRC)) as u16;
        let now = Now {
            ms: now_ms,
            rx_packets,
        };
        let entry = MonitoredSession {
            port,
            session: Session::new(name, config, (disc, udp_src), random.hash_one(disc), now),
            shared: Arc::new(BfdState {
                id,
                forwarding: AtomicBool::new(false),
                disc,
                came: 0.into(),
                came_known: 0.into(),
            }),
            wake_ms: 0,
            rx_packets,
        };
        self.due.insert((entry.wake_ms, id));
        self.by_id.insert(id, entry);
        self.by_name.insert(name.to_owned(), id);
        id
    }

    pub(super) fn remove(&mut self, name: &str) -> bool {
        let Some(id) = self.by_name.remove(name) else {
            return false;
        };
        if let Some(e) = self.by_id.remove(&id) {
            self.due.remove(&(e.wake_ms, id));
        }
        self.discs.retain(|_, of| *of != id);
        self.used.remove(&id);
        true
    }

    /// Takes over a session's current state. Translations see it at once.
    pub(super) fn take_over_state(
        &mut self,
        id: u64,
        now_ms: u64,
        generations: &Generations,
    ) -> SessionChange {
        let Some(e) = self.by_id.get_mut(&id) else {
            return SessionChange::default();
        };
        let now = e.now(now_ms);
        e.session.follow(now);
        let forwarding = e.session.is_forwarding();
        let moved = e.shared.forwarding.swap(forwarding, Relaxed) != forwarding;
        if moved {
            // After the flag: a translation that has read the old flag has an older generation.
            generations.bump(Part::Link(e.port.bridge, e.port.no).slot());
            self.moved.insert((e.port.bridge, e.port.no));
        }
        let wake_ms = e.session.wake_ms();
        if wake_ms != e.wake_ms {
            self.due.remove(&(e.wake_ms, id));
            e.wake_ms = wake_ms;
            self.due.insert((wake_ms, id));
        }
        SessionChange {
            status: e.session.take_status_changed(),
            moved,
        }
    }

    pub(super) fn receive(&mut self, upcall: &UpcallPacket, now_ms: u64) {
        let Some(Cookie(shared)) = upcall.upcall.cookie.0.as_any().downcast_ref() else {
            return;
        };
        let Some(e) = self.by_id.get_mut(&shared.id) else {
            return;
        };
        self.used.insert(shared.id);
        let Some(udp) = udp_of(&upcall.bytes) else { return };
        let now = e.now(now_ms);
        e.session.receive(udp, now);
        // The session may have to reply at once, and has to run in any case.
        self.due.remove(&(e.wake_ms, shared.id));
        e.wake_ms = 0;
        self.due.insert((0, shared.id));
    }

    /// See [`Session::forgive`].
    pub(super) fn forgive(&mut self, late_ms: u64, now_ms: u64) {
        if late_ms == 0 {
            return;
        }
        // Each session runs at its old time all the same, and settles on a later one then.
        for e in self.by_id.values_mut() {
            let now = e.now(now_ms);
            e.session.forgive(late_ms, now);
        }
    }

    /// See [`Session::unsent`].
    pub(super) fn unsent(&mut self, id: u64, now_ms: u64) {
        let Some(e) = self.by_id.get_mut(&id) else { return };
        let now = e.now(now_ms);
        e.session.unsent(now);
        self.due.remove(&(e.wake_ms, id));
        e.wake_ms = e.session.wake_ms();
        self.due.insert((e.wake_ms, id));
    }

    /// Does what is due, until `most` frames are to be sent.
    pub(super) fn run(
        &mut self,
        now_ms: u64,
        generations: &Generations,
        outgoing: &mut Vec<Outgoing>,
        most: usize,
    ) -> SessionChange {
        let mut change = SessionChange::default();
        if now_ms.saturating_sub(self.refilled_ms) >= REFILL_MS {
            self.refilled_ms = now_ms;
            for id in std::mem::take(&mut self.used) {
                if let Some(e) = self.by_id.get(&id) {
                    e.shared.refill();
                }
            }
        }
        let due: Vec<u64> = self.due.range(..=(now_ms, u64::MAX)).map(|(_, id)| *id).collect();
        for id in due {
            if outgoing.len() == most {
                break;
            }
            let Some(e) = self.by_id.get_mut(&id) else {
                continue;
            };
            let now = e.now(now_ms);
            if e.session.should_send(now) {
                let (frame, oam) = e.session.frame(e.port.mac, now);
                outgoing.push(Outgoing {
                    id,
                    port: e.port.clone(),
                    frame,
                    oam,
                });
            }
            e.session.run(now);
            change = change | self.take_over_state(id, now_ms, generations);
        }
        change
    }
}
