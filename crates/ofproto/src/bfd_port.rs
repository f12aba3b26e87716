//! A BFD session as translation and workers see it. [`crate::monitor`] runs the session.

use heddle_bfd::{Filter, Message, udp_of};
use heddle_datapath_api::UpcallData;
use heddle_flow::key::frag;
use heddle_flow::{FlowKey, FlowMask};
use heddle_wire::eth::ethertype;
use heddle_wire::ip::proto;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Maximum number of waiting messages of one session. Further ones are lost, so that those of other sessions
/// have room.
pub(crate) const MAX_WAITING_MESSAGES: u32 = 16;

/// The state of one session that translation, workers and the monitor share.
#[derive(Debug)]
pub(crate) struct BfdState {
    /// Number of the session, never reused.
    pub(crate) id: u64,
    /// Whether packets may be sent by the session's port. A generation is counted up after each change
    /// (`Part::Link`).
    pub(crate) forwarding: AtomicBool,
    /// The session's discriminator. Its peer puts it into each message once it knows it; an attacker would
    /// have to guess it.
    pub(crate) disc: u32,
    /// Messages without the discriminator since the last refill.
    pub(crate) came: AtomicU32,
    /// Messages with the discriminator since the last refill.
    pub(crate) came_known: AtomicU32,
}

impl BfdState {
    /// Allows [`MAX_WAITING_MESSAGES`] messages again.
    pub(crate) fn refill(&self) {
        self.came.store(0, Relaxed);
        self.came_known.store(0, Relaxed);
    }
}

/// A session's part of an OpenFlow port: the filter for its messages, and its state.
#[derive(Clone, Debug)]
pub struct BfdPort {
    pub(crate) shared: Arc<BfdState>,
    pub(crate) filter: Filter,
}

impl PartialEq for BfdPort {
    fn eq(&self, other: &Self) -> bool {
        (self.id(), self.filter) == (other.id(), other.filter)
    }
}

impl Eq for BfdPort {}

impl BfdPort {
    /// Number of the session.
    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }
    /// Whether packets may be sent by this port. A translation that depends on it must read `Part::Link`'s
    /// generation before.
    pub(crate) fn is_forwarding(&self) -> bool {
        self.shared.forwarding.load(Relaxed)
    }
    /// Whether a packet is a message for the session. Bits that decide that are added to `mask`; those that
    /// Open vSwitch leaves out of it, to `extra`.
    pub(crate) fn takes(&self, flow: &FlowKey, mask: &mut FlowMask, extra: &mut FlowMask) -> bool {
        let m = &mut mask.0;
        if let Some(mac) = self.filter.dst_mac {
            m.dl_dst = [u8::MAX; 6];
            if flow.dl_dst != mac {
                return false;
            }
        }
        m.dl_type = u16::MAX;
        if flow.dl_type != ethertype::IP {
            return false;
        }
        (m.nw_proto, m.nw_frag) = (u8::MAX, frag::MASK);
        if flow.nw_proto != proto::UDP || flow.nw_frag & frag::LATER != 0 {
            return false;
        }
        m.tp_dst = u16::MAX;
        if flow.tp_dst != heddle_bfd::UDP_PORT {
            return false;
        }
        if let Some(ip) = self.filter.dst_ip {
            extra.0.nw_dst = u32::MAX;
            if flow.nw_dst != ip.to_bits() {
                return false;
            }
            m.nw_dst = u32::MAX;
        }
        if self.filter.no_tunnel_key {
            m.tun_id = u64::MAX;
            return flow.tun_id == 0;
        }
        true
    }
    /// The data of an upcall with a message.
    pub(crate) fn cookie(&self) -> Arc<dyn UpcallData> {
        Arc::new(Cookie(self.shared.clone()))
    }
}

/// See [`BfdPort::cookie`].
pub(crate) struct Cookie(pub(crate) Arc<BfdState>);

impl UpcallData for Cookie {
    fn text(&self) -> String {
        "slow_path(bfd)".to_owned()
    }
    fn receiver(&self) -> u64 {
        self.0.id
    }
    fn admit(&self, head: &[u8]) -> bool {
        let message = udp_of(head).and_then(|udp| Message::read(udp.payload));
        let known = message.is_some_and(|m| m.your_disc == self.0.disc && m.my_disc != 0 && m.mult != 0);
        let came = if known { &self.0.came_known } else { &self.0.came };
        // Workers that check at the same time let more messages in, one per worker.
        let room = came.load(Relaxed) < MAX_WAITING_MESSAGES;
        if room {
            came.fetch_add(1, Relaxed);
        }
        room
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
