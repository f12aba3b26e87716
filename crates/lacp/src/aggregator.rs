//! One system's end of an aggregation: the links, their partners, and the links that are attached.
//!
//! **New links.** Until a partner is heard on a new link, or three seconds are over, the link is announced as
//! attached. It carries nothing, since a partner has to agree.

use crate::LinkSettings;
use crate::info::{Flags, Info, Pdu, PduError};

/// Intervals of messages, and the number of them after which silence counts (§6.4.4).
const FAST_MS: u64 = 1000;
const SLOW_MS: u64 = 30_000;
const TIMEOUT_INTERVALS: u64 = 3;

/// Settings of an aggregator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Name, for the log and the commands.
    pub name: String,
    /// The system; not zero.
    pub sys_id: [u8; 6],
    /// Priority of the system; the lower number decides.
    pub sys_priority: u16,
    /// Messages are sent whether any are heard or not.
    pub active: bool,
    /// The partner is to send every second, not every 30 seconds.
    pub fast: bool,
    /// Links without a partner are attached, if no link has a partner.
    pub fallback: bool,
}

/// State of an aggregator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// No link is attached to a partner.
    Configured,
    /// A link is attached.
    Negotiated,
}

/// State of a link's partner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Partner {
    /// The partner was heard in time.
    Current,
    /// The partner was not heard in time.
    Expired,
    /// There is none.
    Defaulted,
}

/// Messages and events of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) tx: u32,
    pub(crate) rx: u32,
    pub(crate) rx_bad: u32,
    pub(crate) rx_marker: u32,
    pub(crate) expired: u32,
    pub(crate) defaulted: u32,
    pub(crate) carrier_changed: u32,
}

/// One link.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) id: u32,
    pub(crate) settings: LinkSettings,
    pub(crate) status: Partner,
    pub(crate) attached: bool,
    carrier: bool,
    pub(crate) partner: Info,
    /// No partner was heard so far, and the time to wait for one is not over.
    pub(crate) is_new: bool,
    /// This end, as the partner knows it.
    known: Info,
    /// When the next message is sent, ms.
    tx_ms: u64,
    /// Until when a message is expected, ms.
    rx_ms: u64,
    pub(crate) counters: Counters,
}

/// A message to be sent on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The link's id.
    pub link: u32,
    /// The message.
    pub pdu: Pdu,
}

/// The result of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// A message; the link's state is up to date with it.
    Message,
    /// A message on a link whose carrier is down, as far as is known: it is ignored.
    NoCarrier,
    /// No message.
    Nothing(PduError),
    /// There is no such link.
    NoLink,
}

/// One end of an aggregation.
#[derive(Clone, Debug)]
pub struct Aggregator {
    pub(crate) settings: Settings,
    /// Links in the order in which they were added. The key of the first one is the aggregation's.
    pub(crate) links: Vec<Link>,
    pub(crate) negotiated: bool,
    /// The attached links have to be selected anew.
    update: bool,
}

impl Link {
    /// Whether packets may be sent and received.
    pub(crate) fn may_enable(&self, fallback: bool) -> bool {
        let synchronized = self.partner.state.has(Flags::SYNCHRONIZED);
        self.attached && (synchronized || fallback && self.status == Partner::Defaulted)
    }
    fn may_send(&self, active: bool) -> bool {
        self.carrier && (active || self.status != Partner::Defaulted)
    }
    /// The partner was not heard in time: it gets one fast timeout more.
    fn expire(&mut self, now_ms: u64) {
        self.status = Partner::Expired;
        self.partner.state.set(Flags::TIMEOUT, true);
        self.partner.state.set(Flags::SYNCHRONIZED, false);
        self.rx_ms = now_ms + TIMEOUT_INTERVALS * FAST_MS;
    }
    fn forget_partner(&mut self) {
        self.partner = Info::default();
        self.is_new = false;
        self.status = Partner::Defaulted;
    }
}

impl Aggregator {
    /// An aggregator without links.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            links: Vec::new(),
            negotiated: false,
            update: true,
        }
    }

    /// Changes the settings.
    pub fn configure(&mut self, settings: Settings) {
        let system = |s: &Settings| (s.sys_id, s.sys_priority, s.fallback);
        self.update |= system(&self.settings) != system(&settings);
        self.settings = settings;
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds a link, or changes its settings.
    pub fn set_link(&mut self, id: u32, settings: LinkSettings, now_ms: u64) {
        let at = self.links.iter().position(|l| l.id == id).unwrap_or_else(|| {
            self.links.push(Link {
                id,
                settings: LinkSettings::default(),
                status: Partner::Defaulted,
                attached: false,
                carrier: false,
                partner: Info::default(),
                is_new: true,
                known: Info::default(),
                tx_ms: 0,
                rx_ms: 0,
                counters: Counters::default(),
            });
            self.update = true;
            self.links.len() - 1
        });
        let speaks = self.settings.active || self.negotiated;
        let Some(link) = self.links.get_mut(at) else {
            return;
        };
        let identity = |s: &LinkSettings| (s.port_id, s.port_priority, s.key);
        if identity(&link.settings) != identity(&settings) {
            self.update = true;
            if speaks {
                link.expire(now_ms);
            }
        }
        link.settings = settings;
    }

    /// Removes all links but these.
    pub fn keep_links(&mut self, keep: impl Fn(u32) -> bool) {
        let before = self.links.len();
        self.links.retain(|l| keep(l.id));
        self.update |= self.links.len() != before;
    }

    /// Whether a link's device has a carrier, as far as this protocol knows.
    pub fn has_carrier(&self, id: u32) -> bool {
        self.links.iter().any(|l| l.id == id && l.carrier)
    }

    /// The carrier of a link's device has changed.
    pub fn set_carrier(&mut self, id: u32, up: bool, now_ms: u64) {
        let active = self.settings.active;
        let Some(link) = self.link_mut(id) else { return };
        if link.carrier == up {
            return;
        }
        if link.status == Partner::Current || active {
            link.expire(now_ms);
        }
        link.carrier = up;
        link.counters.carrier_changed = link.counters.carrier_changed.wrapping_add(1);
    }

    /// Takes the payload of a packet of the slow protocols.
    pub fn receive(&mut self, id: u32, payload: &[u8], now_ms: u64) -> Received {
        let name = &self.settings.name;
        let Some(link) = self.links.iter_mut().find(|l| l.id == id) else {
            return Received::NoLink;
        };
        link.counters.rx = link.counters.rx.wrapping_add(1);
        let pdu = match Pdu::read(payload) {
            Ok(pdu) => pdu,
            Err(PduError::Marker) => {
                link.counters.rx_marker = link.counters.rx_marker.wrapping_add(1);
                log::debug!(target: "lacp", "{name}: received a LACP marker PDU.");
                return Received::Nothing(PduError::Marker);
            }
            Err(PduError::Malformed) => {
                link.counters.rx_bad = link.counters.rx_bad.wrapping_add(1);
                log::warn!(target: "lacp", per_min = 1, burst = 5; "{name}: received an unparsable LACP PDU.");
                return Received::Nothing(PduError::Malformed);
            }
        };
        if !link.carrier {
            let name = &link.settings.name;
            log::info!(target: "lacp", per_min = 1, burst = 5;
                "{name}: carrier state is DOWN, dropping received LACP PDU.");
            return Received::NoCarrier;
        }
        let interval = if self.settings.fast { FAST_MS } else { SLOW_MS };
        link.status = Partner::Current;
        link.is_new = false;
        link.rx_ms = now_ms + TIMEOUT_INTERVALS * interval;
        link.known = pdu.partner;
        if link.partner != pdu.actor {
            self.update = true;
            link.partner = pdu.actor;
        }
        Received::Message
    }

    /// Runs timers, selects the attached links, and returns the messages that are due. The owner sends them.
    pub fn run(&mut self, now_ms: u64) -> Vec<Outgoing> {
        for link in self.links.iter_mut().filter(|l| now_ms >= l.rx_ms) {
            match link.status {
                Partner::Current => {
                    link.expire(now_ms);
                    link.counters.expired = link.counters.expired.wrapping_add(1);
                }
                Partner::Expired => {
                    link.forget_partner();
                    link.counters.defaulted = link.counters.defaulted.wrapping_add(1);
                    self.update = true;
                }
                Partner::Defaulted => {}
            }
        }
        if std::mem::take(&mut self.update) {
            self.select();
        }
        let mut outgoing = Vec::new();
        let active = self.settings.active;
        for at in 0..self.links.len() {
            let actor = self.actor(at);
            let Some(link) = self.links.get_mut(at).filter(|l| l.may_send(active)) else {
                continue;
            };
            if now_ms < link.tx_ms && !link.known.is_outdated(&actor) {
                continue;
            }
            link.known = actor;
            let fast = link.partner.state.has(Flags::TIMEOUT);
            link.tx_ms = now_ms + if fast { FAST_MS } else { SLOW_MS };
            link.counters.tx = link.counters.tx.wrapping_add(1);
            outgoing.push(Outgoing {
                link: link.id,
                pdu: Pdu {
                    actor,
                    partner: link.partner,
                },
            });
        }
        outgoing
    }

    /// When it has to run again, ms, if nothing comes before. `None`: not at all.
    pub fn wake_ms(&self) -> Option<u64> {
        let active = self.settings.active;
        if self.update {
            return Some(0);
        }
        let of = |l: &Link| {
            let tx = l.may_send(active).then_some(l.tx_ms);
            let rx = (l.status != Partner::Defaulted).then_some(l.rx_ms);
            tx.into_iter().chain(rx).min()
        };
        self.links.iter().filter_map(of).min()
    }

    /// A message of [`Aggregator::run`] was not sent. The next run makes another one, at `at_ms` at the
    /// earliest.
    pub fn unsent(&mut self, id: u32, at_ms: u64) {
        if let Some(link) = self.link_mut(id) {
            link.tx_ms = at_ms;
            link.counters.tx = link.counters.tx.wrapping_sub(1);
        }
    }

    /// The owner was late by this much: partners get as much time more.
    pub fn forgive(&mut self, late_ms: u64) {
        for link in &mut self.links {
            link.rx_ms = link.rx_ms.saturating_add(late_ms);
        }
    }

    /// Whether a link is attached to a partner.
    pub fn status(&self) -> Status {
        match self.negotiated {
            true => Status::Negotiated,
            false => Status::Configured,
        }
    }

    /// Whether a link may carry packets, as far as this protocol knows.
    pub fn may_enable(&self, id: u32) -> bool {
        self.links
            .iter()
            .any(|l| l.id == id && l.may_enable(self.settings.fallback))
    }

    /// Whether a link has a partner (`Interface.lacp_current`). `None`: there is no such link.
    pub fn has_partner(&self, id: u32) -> Option<bool> {
        let link = self.links.iter().find(|l| l.id == id)?;
        Some(link.status != Partner::Defaulted)
    }

    fn link_mut(&mut self, id: u32) -> Option<&mut Link> {
        self.links.iter_mut().find(|l| l.id == id)
    }

    /// The aggregation's key. `None`: there is no link.
    pub(crate) fn key(&self) -> Option<u16> {
        let first = &self.links.first()?.settings;
        Some(if first.key == 0 { first.port_id } else { first.key })
    }

    /// This end of a link.
    pub(crate) fn actor(&self, at: usize) -> Info {
        let Some(link) = self.links.get(at) else {
            return Info::default();
        };
        let mut state = Flags::default();
        state.set(Flags::ACTIVITY, self.settings.active);
        state.set(Flags::TIMEOUT, self.settings.fast);
        state.set(Flags::SYNCHRONIZED, link.attached);
        state.set(Flags::DEFAULTED, link.status == Partner::Defaulted);
        state.set(Flags::EXPIRED, link.status == Partner::Expired);
        state.set(Flags::AGGREGATION, self.links.len() > 1);
        let carries = Flags(Flags::COLLECTING.0 | Flags::DISTRIBUTING.0);
        state.set(carries, link.attached || !self.negotiated);
        Info {
            sys_priority: self.settings.sys_priority,
            sys_id: self.settings.sys_id,
            key: self.key().unwrap_or(0),
            port_priority: link.settings.port_priority,
            port_id: link.settings.port_id,
            state,
        }
    }

    /// A link's place among the others: the view of the system with the higher priority decides (§6.4.14).
    fn priority(&self, at: usize) -> (u16, [u8; 6], u16, u16) {
        let partner = self.links.get(at).map(|l| l.partner).unwrap_or_default();
        let own = (self.settings.sys_priority, self.settings.sys_id);
        if own < (partner.sys_priority, partner.sys_id) {
            self.actor(at).priority()
        } else {
            partner.priority()
        }
    }

    /// Selects the links that are attached: those whose partner has the same system and key as the leading
    /// link's. A link that works already leads, so a better one does not disturb it.
    fn select(&mut self) {
        let places = 0..self.links.len();
        let of = |at: usize| self.links.get(at);
        let works = |at: &usize| of(*at).is_some_and(|l| l.status == Partner::Current && l.attached);
        let working = places.clone().filter(works).min_by_key(|at| self.priority(*at));
        let working_system = working.and_then(of).map(|l| l.partner.sys_id);
        let fallback = self.settings.fallback;
        let mut best = None;
        for at in places {
            let priority = self.priority(at);
            let Some(link) = self.links.get_mut(at) else {
                continue;
            };
            link.attached = false;
            if link.partner.sys_id == self.settings.sys_id {
                log::warn!(target: "lacp", per_min = 1, burst = 10;
                    "member {}: Loopback detected. Interface is connected to its own bond", link.settings.name);
                continue;
            }
            if link.status == Partner::Defaulted {
                link.attached = fallback;
                continue;
            }
            if working_system.is_some_and(|system| system != link.partner.sys_id) {
                // A system that has just started does not detach links whose partner it has not heard yet.
                // Otherwise a partner that knows the system from before disables them for a moment.
                link.attached = link.is_new;
                continue;
            }
            link.attached = true;
            if best.is_none_or(|(least, _)| priority < least) {
                best = Some((priority, at));
            }
        }
        let lead = working.or(best.map(|(_, at)| at));
        self.negotiated = lead.is_some();
        let Some(lead) = lead.and_then(|at| self.links.get(at)) else {
            return;
        };
        let selected = (lead.partner.key, lead.partner.sys_id);
        for link in &mut self.links {
            let falls_back = fallback && link.status == Partner::Defaulted;
            let differs = (link.partner.key, link.partner.sys_id) != selected;
            let waits = link.is_new && link.status == Partner::Expired;
            if falls_back || differs && !waits {
                link.attached = false;
            }
        }
    }
}
