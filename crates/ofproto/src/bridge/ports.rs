//! OpenFlow ports: taking over the database's view, descriptions, port mods, events.

use super::{Bridge, BundleConfig, Event, PortChanged, PortConfig, PortTarget, State};
use crate::model::{self, Binding, BridgeView, Bundle, Fragments, PortView, Stats, VlanSet, port_config};
use crate::ofproto::PatchEnds;
use heddle_openflow::message::{self, PortDesc, PortFeatures, PortMod, PortReason, PortState as OfState};
use heddle_openflow::{ErrorKind, Port as OfPort};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// One port, with what survives a reconfiguration.
pub(crate) struct PortState {
    pub(crate) config: PortConfig,
    /// [`port_config`] bits that controllers set (admin state aside, which is the device's).
    bits: u32,
    pub(super) patch_rx: Arc<Stats>,
    pub(super) patch_tx: Arc<Stats>,
    pub(super) created_ms: u64,
}

impl Bridge {
    /// Takes over the whole set of ports and bundles, tells controllers what changed, and publishes.
    pub fn set_ports(&self, bundles: Vec<BundleConfig>, ports: Vec<PortConfig>) {
        let now = self.now_ms();
        let mut events = Vec::new();
        let mut left = Vec::new();
        let mut unlearned = Vec::new();
        {
            let mut state = self.state.lock();
            let mut old = std::mem::take(&mut state.ports);
            for config in ports {
                let before = old.remove(&config.no);
                let same = before.as_ref().is_some_and(|b| b.config.name == config.name);
                let port = match before {
                    Some(mut b) if same => {
                        let was = desc(&b);
                        b.config = config;
                        events.extend(changed(was, &b, None));
                        b
                    }
                    replaced => {
                        events.extend(replaced.iter().map(|r| status(PortReason::Delete, r)));
                        let new = PortState {
                            config,
                            bits: 0,
                            patch_rx: Arc::default(),
                            patch_tx: Arc::default(),
                            created_ms: now,
                        };
                        // A port is new first, and then it forwards.
                        let mut asleep = desc(&new);
                        asleep.state.remove(OfState::LIVE);
                        events.push(event(PortReason::Add, asleep.clone(), None, None));
                        events.extend(changed(asleep, &new, None));
                        new
                    }
                };
                state.ports.insert(port.config.no, port);
            }
            for gone in old.values() {
                unlearned.extend(self.mac.flush_port(gone.config.no));
                left.push(gone.config.no);
                events.push(status(PortReason::Delete, gone));
            }
            state.bundles = bundles;
        }
        if !unlearned.is_empty()
            && let Some(of) = self.of.upgrade()
        {
            // Who was behind a port that has gone may be anywhere: the other bridges, too, look for it anew.
            let gone = unlearned.into_iter().collect();
            of.bridges().iter().for_each(|b| b.mac.flush_keys(&gone));
        }
        self.republish();
        // What was translated meanwhile, with the port still there, may have learned it again.
        for port in left {
            self.mac.flush_port(port);
        }
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

    /// Ports as configured, in order.
    pub fn port_configs(&self) -> Vec<PortConfig> {
        self.state
            .lock()
            .ports
            .values()
            .map(|p| p.config.clone())
            .collect()
    }

    /// Carries out a port mod of the connection `source`. Bits that cannot be changed are ignored, as in Open vSwitch.
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
            events
        };
        self.republish();
        self.emit(&events);
        Ok(())
    }

    /// Changes the device's admin state where a port mod asks for that; returns it, and the device's link after it. The
    /// device may take a while, so the bridge is not locked meanwhile.
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
        let Some(device) = self
            .of
            .upgrade()
            .and_then(|of| of.datapath())
            .and_then(|dp| dp.port(no))
        else {
            return Ok(None);
        };
        if let Err(e) = device.set_admin(up) {
            log::warn!(target: "ofproto", "{}: could not change port {}: {e}", self.name, pm.port.0);
        }
        let now = device.status();
        Ok(Some((now.admin_up, Some(now.link_up))))
    }

    /// The immutable view for translation. `ends` says which patch ports exist and where.
    pub(crate) fn view(self: &Arc<Self>, ends: &PatchEnds) -> BridgeView {
        let state = self.state.lock();
        let index: HashMap<&str, usize> = state
            .bundles
            .iter()
            .enumerate()
            .map(|(i, b)| (b.name.as_str(), i))
            .collect();
        let mut bundles: Vec<Bundle> = state.bundles.iter().map(bundle_view).collect();
        let mut ports = BTreeMap::new();
        for (no, p) in &state.ports {
            let Some(&bundle) = index.get(p.config.bundle.as_str()) else {
                continue;
            };
            bundles[bundle].ports.push(*no);
            ports.insert(*no, Arc::new(port_view(p, bundle, &p.config.name, ends)));
        }
        let config = &state.config;
        BridgeView {
            mirrors: state.mirrors(&index),
            tlv: self.tlv_map(),
            id: self.id,
            name: self.name.clone(),
            ports,
            bundles,
            local_mac: config.local_mac,
            flood_vlans: vlan_set(&config.flood_vlans),
            forward_bpdu: config.forward_bpdu,
            mac: self.mac.clone(),
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
            control: Arc::downgrade(self),
        }
    }
}

fn vlan_limit(state: &State) -> usize {
    match state.config.vlan_limit {
        0 => heddle_flow::N_VLANS,
        n => n.min(heddle_flow::N_VLANS),
    }
}

fn vlan_set(ids: &[u16]) -> Option<Arc<VlanSet>> {
    (!ids.is_empty()).then(|| Arc::new(VlanSet::from_ids(ids.iter().copied())))
}

fn bundle_view(b: &BundleConfig) -> Bundle {
    Bundle {
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
        ports: Vec::new(),
    }
}

fn port_view(p: &PortState, bundle: usize, name: &str, ends: &PatchEnds) -> PortView {
    let binding = match &p.config.target {
        PortTarget::Datapath(no) => Binding::Datapath(*no),
        PortTarget::Patch(peer) => Binding::Patch(ends.peer_of(name, peer)),
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

/// What is told of a port that was `old` before, if that is different now.
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
    state.set(OfState::LIVE, c.link_up && c.admin_up);
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
