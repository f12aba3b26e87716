//! The data that the sessions of one bridge share.

use super::session::Peer;
use crate::bridge::{Bridge, Event, EventSink};
use heddle_openflow::Version;
use heddle_openflow::message::{Message, Role, RoleReason, RoleStatus};
use heddle_stream::Tls;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// The connections of one bridge.
pub struct Manager {
    pub(super) bridge: Arc<Bridge>,
    pub(super) tls: Arc<Tls>,
    /// Connections to controllers are to end.
    pub(super) reconnect: Notify,
    shared: Mutex<PeerList>,
}

#[derive(Default)]
struct PeerList {
    peers: Vec<Weak<Peer>>,
    /// Last generation id of a role request (OpenFlow 1.3 §6.3.6).
    generation: Option<u64>,
    next_id: u64,
}

/// A role request with an old generation id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stale;

impl Manager {
    /// The manager of `bridge`, which gets its events for as long as it lives. `tls` has the keys of its
    /// connections.
    pub fn new(bridge: Arc<Bridge>, tls: Arc<Tls>) -> Arc<Self> {
        let manager = Arc::new(Self {
            bridge,
            tls,
            reconnect: Notify::new(),
            shared: Mutex::default(),
        });
        let sink: Arc<dyn EventSink> = manager.clone();
        manager.bridge.subscribe(&sink);
        manager
    }

    /// The bridge.
    pub fn bridge(&self) -> &Arc<Bridge> {
        &self.bridge
    }

    pub(super) fn next_id(&self) -> u64 {
        let mut shared = self.shared.lock();
        shared.next_id += 1;
        shared.next_id
    }

    pub(super) fn join(&self, peer: &Arc<Peer>) {
        let mut shared = self.shared.lock();
        shared.peers.retain(|p| p.strong_count() != 0);
        shared.peers.push(Arc::downgrade(peer));
    }

    /// Updates whether misses go to a controller, after a peer has negotiated or left.
    pub(super) fn update_miss(&self) {
        let yes = self.peers().iter().any(|p| p.takes_implicit_misses());
        self.bridge.set_miss_to_controller(yes);
    }

    fn peers(&self) -> Vec<Arc<Peer>> {
        self.shared
            .lock()
            .peers
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|p| p.is_open())
            .collect()
    }

    /// Takes note of a generation id: it must not be older than the last one, in circular order.
    pub(super) fn check_generation(&self, id: u64) -> Result<(), Stale> {
        let mut shared = self.shared.lock();
        match shared.generation {
            // OpenFlow 1.3 §6.3.6: stale if the signed distance is negative.
            Some(last) if id.wrapping_sub(last) > u64::MAX / 2 => Err(Stale),
            _ => {
                shared.generation = Some(id);
                Ok(())
            }
        }
    }

    pub(super) fn generation(&self) -> Option<u64> {
        self.shared.lock().generation
    }

    /// Notifies the other peers of a request that has been carried out.
    pub(super) fn forward(&self, source: u64, xid: u32, message: Message) {
        let request = Message::RequestForward {
            xid,
            message: Box::new(message),
        };
        for p in self.peers().iter().filter(|p| p.id != source) {
            p.forwarded(&request);
        }
    }

    /// Makes the former primary controller secondary and notifies it: `primary` has become the primary one.
    pub(super) fn demote_others(&self, primary: u64) {
        let generation_id = self.generation().unwrap_or(u64::MAX);
        for p in self
            .peers()
            .iter()
            .filter(|p| p.id != primary && p.role() == Role::Primary)
        {
            p.set_role(Role::Secondary);
            let status = RoleStatus {
                role: Role::Secondary,
                reason: RoleReason::PrimaryRequest,
                generation_id,
            };
            // An experimenter's message in 1.3; before, there is none.
            if p.version().is_some_and(|v| v >= Version::V13) {
                p.notify(&Message::RoleStatus(status));
            }
        }
    }
}

impl EventSink for Manager {
    fn events(&self, events: &[Event]) {
        for p in self.peers() {
            p.events(events);
        }
    }

    fn reconnect(&self) {
        // Connections that wait for their next attempt will make it.
        self.reconnect.notify_waiters();
    }

    fn tick(&self, now_ms: u64) {
        let idle_ms = self.bridge.config().bundle_idle_s * 1000;
        for p in self.peers() {
            p.tick(now_ms, idle_ms);
        }
    }
}
