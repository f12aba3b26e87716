//! OpenFlow ports: taking over the database's view, descriptions, port mods, events.

use super::bridges::PatchEnds;
use super::port_views::PortViews;
use super::{Bridge, BridgeState, Event, PortBundleConfig, PortChanged, PortConfig, PortTarget};
use crate::bfd_port::BfdPort;
use crate::bond_port::LacpLink;
use crate::model::{self, Binding, BridgeView, Fragments, PortBundle, PortView, VlanSet, port_config};
use crate::snooping::ReportBudget;
use crate::stats::Stats;
use heddle_openflow::message::{self, PortDesc, PortFeatures, PortMod, PortReason, PortState as OfState};
use heddle_openflow::{ErrorKind, Port as OfPort};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One port, with the data that survives a reconfiguration.
pub(crate) struct PortState {
    pub(crate) config: PortConfig,
    /// [`port_config`] bits that controllers set (admin state aside, which is the device's).
    bits: u32,
    /// The forwarding state of its BFD session and its LACP, as controllers know it.
    forwards: bool,
    pub(super) patch_rx: Arc<Stats>,
    pub(super) patch_tx: Arc<Stats>,
    pub(super) created_ms: u64,
}

impl PortState {
    fn new(config: PortConfig, now_ms: u64, port_views: &mut PortViews) -> Self {
        let mut port = Self {
            config,
            bits: 0,
            forwards: true,
            patch_rx: Arc::default(),
            patch_tx: Arc::default(),
            created_ms: now_ms,
        };
        port_views.join(port.config.no, &port.config.bundle);
        port.touch(port_views);
        port
    }

    fn change(&mut self, config: PortConfig, port_views: &mut PortViews) {
        let old = std::mem::replace(&mut self.config, config);
        if old.bundle != self.config.bundle {
            port_views.leave(old.no, &old.bundle);
            port_views.join(old.no, &self.config.bundle);
        }
        self.touch(port_views);
    }

    /// Takes over the forwarding state of its session.
    fn follow_session(&mut self) {
        let PortConfig { bfd, lacp, .. } = &self.config;
        self.forwards = bfd.as_ref().is_none_or(BfdPort::is_forwarding)
            && lacp.as_ref().is_none_or(LacpLink::is_forwarding);
    }

    /// Updates everything that depends on the port's configuration.
    fn touch(&mut self, port_views: &mut PortViews) {
        self.follow_session();
        let no = self.config.no;
        match &self.config.target {
            PortTarget::Patch(_) => port_views.patches.insert(no),
            PortTarget::Datapath(_) | PortTarget::Tunnel(_) | PortTarget::Unbound => {
                port_views.patches.remove(&no)
            }
        };
        port_views.touch_port(no);
    }
}

impl BridgeState {
    /// Takes over the whole set of bundles.
    fn set_bundles(&mut self, mut bundles: Vec<PortBundleConfig>) {
        bundles.sort_by(|a, b| a.name.cmp(&b.name));
        let old = std::mem::replace(&mut self.bundles, bundles);
        let (mut old, mut new) = (old.iter().peekable(), self.bundles.iter().peekable());
        while let Some(name) = [old.peek(), new.peek()]
            .into_iter()
            .flatten()
            .map(|b| &b.name)
            .min()
        {
            let was = old.next_if(|b| b.name == *name);
            if was != new.next_if(|b| b.name == *name) {
                self.port_views.touch_bundle(name);
            }
        }
    }
}

impl Bridge {
    /// Takes over the whole set of ports and bundles, notifies controllers of changes, and publishes.
    pub fn set_ports(&self, bundles: Vec<PortBundleConfig>, ports: Vec<PortConfig>) {
        let now = self.now_ms();
        let mut events = Vec::new();
        let mut left = Vec::new();
        let mut names = Vec::new();
        let mut unlearned = Vec::new();
        let mut added = BTreeSet::new();
        let gone_bundles = {
            let mut state = self.state.lock();
            state.set_bundles(bundles);
            let BridgeState {
                ports: there,
                port_views,
                ..
            } = &mut *state;
            let numbers: BTreeSet<OfPort> = ports.iter().map(|p| p.no).collect();
            for config in ports {
                let no = config.no;
                match there.get_mut(&no) {
                    Some(b) if b.config == config => {}
                    Some(b) if b.config.name == config.name => {
                        let was = desc(b);
                        b.change(config, port_views);
                        events.extend(changed(was, b, None));
                    }
                    _ => {
                        if let Some(replaced) = there.remove(&no) {
                            port_views.leave(no, &replaced.config.bundle);
                            events.push(status(PortReason::Delete, &replaced));
                        }
                        let new = PortState::new(config, now, port_views);
                        // Two events: the port is added, and then it is live.
                        let mut asleep = desc(&new);
                        asleep.state.remove(OfState::LIVE);
                        events.push(event(PortReason::Add, asleep.clone(), None, None));
                        events.extend(changed(asleep, &new, None));
                        there.insert(no, new);
                        added.insert(no);
                    }
                }
            }
            // With equal numbers, no port has gone.
            if there.len() != numbers.len() {
                there.retain(|no, gone| {
                    let stays = numbers.contains(no);
                    if !stays {
                        port_views.leave(*no, &gone.config.bundle);
                        port_views.renew(&gone.config.bundle, &added);
                        port_views.patches.remove(no);
                        port_views.touch_port(*no);
                        unlearned.extend(self.mac.flush_port(*no));
                        left.push(*no);
                        names.push(gone.config.name.clone());
                        events.push(status(PortReason::Delete, gone));
                    }
                    stays
                });
            }
            state.take_gone_bundles()
        };
        if !unlearned.is_empty()
            && let Some(of) = self.of.upgrade()
        {
            // Stations behind a port that has gone may be anywhere: the other bridges, too, learn them anew.
            let gone = unlearned.into_iter().collect();
            of.bridges().iter().for_each(|b| b.mac.flush_keys(&gone));
        }
        self.republish();
        // Translations that still saw the port may have learned addresses behind it again.
        for port in left {
            self.mac.flush_port(port);
            self.forget_neighbours(port);
        }
        self.forget_snooped(&gone_bundles);
        self.forget_neighbours_on(&names);
        self.emit(&events);
    }

    /// Descriptions of all ports, in order.
    pub fn port_descs(&self) -> Vec<PortDesc> {
        self.state.lock().ports.values().map(desc).collect()
    }

    /// The OpenFlow port of an interface.
    pub fn port_by_name(&self, name: &str) -> Option<OfPort> {
        self.state
            .lock()
            .ports
            .values()
            .find(|p| p.config.name == name)
            .map(|p| p.config.no)
    }

    /// Name of a port.
    pub fn port_name(&self, no: OfPort) -> Option<String> {
        self.state.lock().ports.get(&no).map(|p| p.config.name.clone())
    }

    /// Number of ports.
    pub fn n_ports(&self) -> usize {
        self.state.lock().ports.len()
    }

    /// Whether a port is not shut down.
    pub fn is_admin_up(&self, no: OfPort) -> Option<bool> {
        self.state.lock().ports.get(&no).map(|p| p.config.admin_up)
    }

    /// Adds its patch ports to those of other bridges.
    pub(crate) fn add_patches(&self, ends: &mut PatchEnds) {
        let state = self.state.lock();
        for no in &state.port_views.patches {
            if let Some(port) = state.ports.get(no)
                && let PortTarget::Patch(peer) = &port.config.target
            {
                ends.add(&port.config.name, (self.id, *no), peer);
            }
        }
    }

    /// Notifies controllers if the session that watches a port has changed its forwarding state.
    pub(crate) fn report_link(&self, no: OfPort) {
        let event = {
            let mut state = self.state.lock();
            let Some(port) = state.ports.get_mut(&no) else {
                return;
            };
            let before = desc(port);
            port.follow_session();
            changed(before, port, None)
        };
        self.emit(event.as_slice());
    }

    /// Carries out a port mod of the connection `source`. Bits that cannot be changed are ignored, as in Open
    /// vSwitch.
    pub fn port_mod(&self, pm: &PortMod, source: Option<u64>) -> Result<(), ErrorKind> {
        let admin = self.port_mod_admin(pm)?;
        let events = {
            let mut state = self.state.lock();
            let port = state
                .ports
                .get_mut(&pm.port)
                .ok_or(ErrorKind::PortModFailedBadPort)?;
            let before = desc(port);
            let changeable = port_config::NO_RECV
                | port_config::NO_RECV_STP
                | port_config::NO_FLOOD
                | port_config::NO_FWD
                | port_config::NO_PACKET_IN;
            let mask = pm.mask.bits() & changeable;
            port.bits = port.bits & !mask | pm.config.bits() & mask;
            // First what the controller changed, then what the device made of that.
            let mut events = Vec::new();
            if let Some((up, _)) = admin {
                port.config.admin_up = up;
            }
            events.extend(changed(before, port, source));
            if let Some((_, Some(link_up))) = admin {
                let before = desc(port);
                port.config.link_up = link_up;
                events.extend(changed(before, port, None));
            }
            state.port_views.touch_port(pm.port);
            events
        };
        self.republish();
        self.emit(&events);
        Ok(())
    }

    /// Changes the device's admin state if a port mod requests that. Returns it, and the device's link after
    /// it. The device may take a while, so the bridge is not locked meanwhile.
    fn port_mod_admin(&self, pm: &PortMod) -> Result<Option<(bool, Option<bool>)>, ErrorKind> {
        let up = !pm.config.contains(message::PortConfig::PORT_DOWN);
        let target = {
            let state = self.state.lock();
            let port = state.ports.get(&pm.port).ok_or(ErrorKind::PortModFailedBadPort)?;
            if pm.hw_addr != [0; 6] && pm.hw_addr != port.config.mac {
                return Err(ErrorKind::PortModFailedBadHwAddr);
            }
            if !pm.mask.contains(message::PortConfig::PORT_DOWN) || up == port.config.admin_up {
                return Ok(None);
            }
            port.config.target.clone()
        };
        let PortTarget::Datapath(no) = target else {
            return Ok(Some((up, None)));
        };
        let engine = self.of.upgrade().and_then(|of| of.engine());
        let Some(now) = engine.and_then(|dp| dp.set_port_admin(no, up)) else {
            return Ok(None);
        };
        if let Some(e) = now.error {
            log::warn!(target: "ofproto", "{}: could not change port {}: {e}", self.name, pm.port.0);
        }
        Ok(Some((now.admin_up, Some(now.link_up))))
    }

    /// The immutable view for translation. `ends`: the patch ports of all bridges.
    pub(crate) fn view(self: &Arc<Self>, ends: &PatchEnds) -> BridgeView {
        let mut state = self.state.lock();
        state.build(ends);
        let config = &state.config;
        BridgeView {
            mirrors: state.mirrors(&state.port_views.places),
            tlv: self.tlv_map(),
            id: self.id,
            name: self.name.clone(),
            ports: state.port_views.ports.clone(),
            bundles: state.port_views.bundles.clone(),
            flood_vlans: vlan_set(&config.flood_vlans),
            forward_bpdu: config.forward_bpdu,
            mac: self.mac.clone(),
            snooping: state.snooping.view(),
            tables: self.tables.clone(),
            groups: self.groups.clone(),
            meters: self.meters.clone(),
            version: self.version.clone(),
            purged: self.purged.clone(),
            vlan_limit: vlan_limit(&state),
            miss_to_controller: state.miss_to_controller,
            frags: Fragments::from_flags(state.frag_flags),
            features: state.features.clone(),
            has_controllers: config.has_controllers,
            ipfix: state.ipfix.clone(),
            control: Arc::<Self>::downgrade(self),
        }
    }
}

fn vlan_limit(state: &BridgeState) -> usize {
    match state.config.vlan_limit {
        0 => heddle_flow::N_VLANS,
        n => n.min(heddle_flow::N_VLANS),
    }
}

fn vlan_set(ids: &[u16]) -> Option<Arc<VlanSet>> {
    (!ids.is_empty()).then(|| Arc::new(VlanSet::from_ids(ids.iter().copied())))
}

pub(super) fn bundle_view(
    b: &PortBundleConfig,
    id: u32,
    reports: ReportBudget,
    ports: Vec<OfPort>,
) -> PortBundle {
    PortBundle {
        id,
        name: b.name.clone(),
        vlan_mode: b.vlan_mode,
        tag: b.tag,
        trunks: vlan_set(&b.trunks),
        cvlans: vlan_set(&b.cvlans),
        qinq_ethtype: if b.qinq_ethtype == 0 {
            0x88a8
        } else {
            b.qinq_ethtype
        },
        priority_tags: b.priority_tags,
        protected: b.protected,
        queue_dscp: b.queue_dscp.clone(),
        ports,
        bond: b.bond.clone(),
        snooping: b.snooping,
        reports,
    }
}

pub(super) fn port_view(p: &PortState, bundle: usize, ends: &PatchEnds) -> PortView {
    let binding = match &p.config.target {
        PortTarget::Datapath(no) => Binding::Datapath(*no),
        PortTarget::Patch(peer) => Binding::Patch(ends.peer_of(&p.config.name, peer)),
        PortTarget::Tunnel(tunnel) => Binding::Tunnel(tunnel.clone()),
        PortTarget::Unbound => Binding::Unbound,
    };
    PortView {
        no: p.config.no,
        name: p.config.name.clone(),
        binding,
        mac: p.config.mac,
        mtu: p.config.mtu,
        config: bits(p),
        up: p.config.admin_up && p.config.link_up,
        bfd: p.config.bfd.clone(),
        lacp: p.config.lacp.clone(),
        standby: p.config.standby.clone(),
        bundle,
        patch_rx: p.patch_rx.clone(),
        patch_tx: p.patch_tx.clone(),
    }
}

fn bits(p: &PortState) -> u32 {
    p.bits
        | if p.config.admin_up {
            0
        } else {
            port_config::PORT_DOWN
        }
}

fn status(reason: PortReason, p: &PortState) -> Event {
    event(reason, desc(p), None, None)
}

/// The event about a port that was `old` before, if that is different now.
fn changed(old: PortDesc, p: &PortState, source: Option<u64>) -> Option<Event> {
    let new = desc(p);
    (new != old).then(|| event(PortReason::Modify, new, Some(old), source))
}

fn event(reason: PortReason, desc: PortDesc, old: Option<PortDesc>, source: Option<u64>) -> Event {
    Event::PortStatus(Arc::new(PortChanged {
        status: message::PortStatus { reason, desc },
        old,
        source,
    }))
}

fn desc(p: &PortState) -> PortDesc {
    let c = &p.config;
    let mut state = OfState::empty();
    state.set(OfState::LINK_DOWN, !c.link_up);
    state.set(OfState::LIVE, c.link_up && c.admin_up && p.forwards);
    let kbps = u32::try_from(c.speed_bps / 1000).unwrap_or(u32::MAX);
    PortDesc {
        port: c.no,
        hw_addr: c.mac,
        name: c.name.clone(),
        config: message::PortConfig::from_bits_truncate(bits(p)),
        state,
        curr: speed_feature(c.speed_bps),
        advertised: PortFeatures::empty(),
        supported: PortFeatures::empty(),
        peer: PortFeatures::empty(),
        curr_speed: kbps,
        max_speed: 0,
    }
}

fn speed_feature(bps: u64) -> PortFeatures {
    match bps / 1_000_000 {
        0 => PortFeatures::empty(),
        10 => PortFeatures::FD_10M,
        100 => PortFeatures::FD_100M,
        1_000 => PortFeatures::FD_1G,
        10_000 => PortFeatures::FD_10G | PortFeatures::COPPER,
        40_000 => PortFeatures::FD_40G,
        100_000 => PortFeatures::FD_100G,
        _ => PortFeatures::OTHER,
    }
}

/// Keeps the documentation's promise that the two spellings of "down" agree.
const _: () = assert!(model::port_config::PORT_DOWN == message::PortConfig::PORT_DOWN.bits());
