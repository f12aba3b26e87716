//! Bridges made by hand, as the control half would publish them.

use crate::features::Features;
use crate::group::Group;
use crate::mac::MacTable;
use crate::meter::OfMeter;
use crate::model::{Binding, BridgeView, Mirror, N_TABLES, PortBundle, PortView, Rule, Snapshot, Table};
use crate::snooping::SnoopingView;
use crate::stats::Stats;
use crate::trace::{TraceEnv, Traced, trace};
use crate::tunnels::{Tunnel, TunnelMap};
use crate::underlay_port::UnderlayPorts;
use crate::versioned::Versioned;
use crate::xlate::{Pipeline, key_port, of_port};
use heddle_classifier::{Entry, MiniMatch};
use heddle_datapath_api::{Changes, Generations, PortNo, Purpose, Request, Translate, Translation};
use heddle_flow::{FlowKey, Match};
use heddle_openflow::{Action, Instruction, InstructionSet, Port};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct LabBridge {
    pub(crate) name: String,
    pub(crate) bundles: Vec<PortBundle>,
    pub(crate) config: HashMap<Port, u32>,
    /// MTU of ports for which it is not 1500.
    pub(crate) mtus: HashMap<Port, u32>,
    pub(crate) patches: HashMap<Port, (u64, Port)>,
    pub(crate) tunnels: HashMap<Port, Arc<Tunnel>>,
    pub(crate) down: HashSet<Port>,
    pub(crate) bfd_ports: HashMap<Port, crate::bfd_port::BfdPort>,
    pub(crate) standbys: HashMap<Port, crate::standby::FailoverPair>,
    pub(crate) mac: Arc<MacTable>,
    pub(crate) snooping: Option<SnoopingView>,
    pub(crate) tables: Arc<Vec<Table>>,
    version: Arc<AtomicU64>,
    pub(crate) miss_to_controller: bool,
    pub(crate) flood_vlans: Option<Arc<crate::model::VlanSet>>,
    pub(crate) groups: Arc<Versioned<Group>>,
    pub(crate) mirrors: Vec<Mirror>,
    meters: Arc<Versioned<Arc<OfMeter>>>,
    purged: Arc<AtomicU64>,
    patch_stats: Arc<Stats>,
    pub(crate) features: Features,
    pub(crate) ipfix: Option<crate::sampling::IpfixConfig>,
}

/// A pipeline under test. Datapath port numbers are `100 * bridge + port`, 100 for the
/// local port.
pub(crate) struct Lab {
    pub(crate) pipeline: Pipeline,
    pub(crate) generations: Arc<Generations>,
    pub(crate) bridges: Vec<LabBridge>,
    pub(crate) underlay: UnderlayPorts,
}

pub(crate) fn dp(bridge: usize, port: u32) -> PortNo {
    PortNo(u32::try_from(bridge).unwrap() * 100 + if port == 0xffff_fffe { 100 } else { port })
}

pub(crate) fn out(port: u32) -> Action {
    Action::Output {
        port: Port(port),
        max_len: 0,
    }
}
pub(crate) fn to(port: Port) -> Action {
    Action::Output {
        port,
        max_len: 0xffff,
    }
}
pub(crate) fn resubmit(table: u8) -> Action {
    Action::Resubmit {
        port: Port::IN_PORT,
        table: Some(table),
        with_ct_orig: false,
    }
}

impl Lab {
    /// Bridges `br0`, `br1`, ... with ports 1 to `n` and the local port.
    pub(crate) fn new(ports: &[u32]) -> Self {
        let generations = Arc::new(Generations::default());
        let bridges = ports.iter().enumerate().map(|(i, n)| LabBridge {
            name: format!("br{i}"),
            bundles: std::iter::once(Port::LOCAL)
                .chain((1..=*n).map(Port))
                .map(|p| PortBundle {
                    name: port_name(i, p),
                    ports: vec![p],
                    ..PortBundle::default()
                })
                .collect(),
            config: HashMap::new(),
            mtus: HashMap::new(),
            patches: HashMap::new(),
            tunnels: HashMap::new(),
            down: HashSet::new(),
            bfd_ports: HashMap::new(),
            standbys: HashMap::new(),
            mac: Arc::new(MacTable::new(i as u64, generations.clone())),
            snooping: None,
            tables: Arc::new(
                (0..N_TABLES)
                    .map(|t| Table::new(i as u64, u8::try_from(t).unwrap()))
                    .collect(),
            ),
            version: Arc::new(1.into()),
            miss_to_controller: false,
            flood_vlans: None,
            groups: Arc::default(),
            mirrors: Vec::new(),
            meters: Arc::default(),
            purged: Arc::default(),
            patch_stats: Arc::default(),
            features: Features::default(),
            ipfix: None,
        });
        let bridges = bridges.collect();
        let lab = Self {
            pipeline: Pipeline::new(generations.clone()),
            generations,
            bridges,
            underlay: UnderlayPorts::default(),
        };
        lab.publish();
        lab
    }

    /// Publishes the bridges as they are configured.
    pub(crate) fn publish(&self) {
        let mut snapshot = Snapshot::default();
        for (i, b) in self.bridges.iter().enumerate() {
            let mut ports = crate::shared_map::SharedMap::default();
            for (bundle, p) in b
                .bundles
                .iter()
                .enumerate()
                .flat_map(|(n, b)| b.ports.iter().map(move |p| (n, *p)))
            {
                let binding = match (b.patches.get(&p), b.tunnels.get(&p)) {
                    (Some(peer), _) => Binding::Patch(Some(*peer)),
                    (None, Some(tunnel)) => Binding::Tunnel(tunnel.clone()),
                    (None, None) => Binding::Datapath(dp(i, p.0)),
                };
                if let Binding::Datapath(no) = binding {
                    snapshot.by_dp_port.insert(no, (i as u64, p));
                }
                if let Some(pair) = b.standbys.get(&p) {
                    snapshot.by_dp_port.insert(pair.standby_port(), (i as u64, p));
                }
                let view = PortView {
                    no: p,
                    name: port_name(i, p),
                    binding,
                    mac: [0; 6],
                    mtu: b.mtus.get(&p).copied().unwrap_or(1500),
                    config: b.config.get(&p).copied().unwrap_or(0),
                    up: !b.down.contains(&p),
                    bfd: b.bfd_ports.get(&p).cloned(),
                    lacp: None,
                    standby: b.standbys.get(&p).cloned(),
                    bundle,
                    patch_rx: b.patch_stats.clone(),
                    patch_tx: b.patch_stats.clone(),
                };
                ports.insert(p, Arc::new(view));
            }
            let view = BridgeView {
                tlv: None,
                mirrors: b.mirrors.clone(),
                id: i as u64,
                name: b.name.clone(),
                ports,
                bundles: b.bundles.iter().cloned().map(Arc::new).enumerate().collect(),
                flood_vlans: b.flood_vlans.clone(),
                forward_bpdu: false,
                mac: b.mac.clone(),
                snooping: b.snooping.clone(),
                tables: b.tables.clone(),
                groups: b.groups.clone(),
                meters: b.meters.clone(),
                version: b.version.clone(),
                purged: b.purged.clone(),
                vlan_limit: 2,
                miss_to_controller: b.miss_to_controller,
                frags: crate::model::Fragments::Normal,
                features: b.features.clone(),
                has_controllers: false,
                ipfix: b.ipfix.clone().map(Arc::new),
                control: std::sync::Weak::<crate::bridge::Bridge>::new(),
            };
            snapshot.bridges.insert(i as u64, Arc::new(view));
        }
        let bridges = self.bridges.iter().enumerate();
        let tunnels: Vec<_> = bridges
            .flat_map(|(i, b)| b.tunnels.iter().map(move |(p, t)| ((i as u64, *p), &**t, None)))
            .collect();
        snapshot.tunnels = Arc::new(TunnelMap::of(&tunnels, &TunnelMap::default()));
        snapshot.underlay = Arc::new(self.underlay.clone());
        self.pipeline.publish(snapshot);
    }

    /// Adds a meter.
    pub(crate) fn meter(&self, bridge: usize, id: u32) {
        self.bridges[bridge]
            .meters
            .insert(id, 1, Arc::new(OfMeter::of_id(id)));
        self.generations.bump(crate::meter::slot(bridge as u64, id));
    }

    /// Joins two bridges.
    pub(crate) fn patch(&mut self, a: (usize, u32), b: (usize, u32)) {
        self.bridges[a.0]
            .patches
            .insert(Port(a.1), (b.0 as u64, Port(b.1)));
        self.bridges[b.0]
            .patches
            .insert(Port(b.1), (a.0 as u64, Port(a.1)));
        self.publish();
    }

    /// Adds a rule as a controller's flow mod would: rules, version, generations.
    pub(crate) fn add(
        &self,
        at: (usize, u8),
        priority: u16,
        matches: &Match,
        set: InstructionSet,
    ) -> Arc<Entry<Arc<Rule>>> {
        let b = &self.bridges[at.0];
        let table = &b.tables[usize::from(at.1)];
        let mini = MiniMatch::new(matches);
        let rule = Rule {
            table: at.1,
            priority,
            matches: mini.clone(),
            cookie: 0,
            idle_timeout: 0.into(),
            hard_timeout: 0.into(),
            importance: 0,
            flags: 0,
            instructions: Arc::new(set),
            created_ms: 0,
            modified_ms: 0.into(),
            born: 0,
            serial: 0,
            hidden: false,
            stats: Default::default(),
        };
        let version = b.version.load(Ordering::Relaxed) + 1;
        let entry = table
            .rules
            .insert(&mini, priority.into(), version, Arc::new(rule));
        table.rules.publish();
        b.version.store(version, Ordering::Release);
        self.changed(table.slot, &mini);
        entry
    }

    /// Adds a rule with actions to table `at.1` of bridge `at.0`.
    pub(crate) fn rule(&self, at: (usize, u8), matches: &str, actions: Vec<Action>) -> Arc<Entry<Arc<Rule>>> {
        let m = Match::parse_text(matches, None).unwrap();
        self.add(at, 0x8000, &m, InstructionSet(vec![Instruction::Apply(actions)]))
    }

    fn changed(&self, slot: u16, matches: &MiniMatch) {
        let mut changes = Changes::default();
        changes.add(matches);
        self.generations.bump_changed(slot, changes);
    }

    pub(crate) fn remove(&self, at: (usize, u8), entry: &Arc<Entry<Arc<Rule>>>) {
        let b = &self.bridges[at.0];
        let table = &b.tables[usize::from(at.1)];
        let version = b.version.load(Ordering::Relaxed) + 1;
        table.rules.remove(&entry.data.matches, entry, version);
        b.version.store(version, Ordering::Release);
        self.changed(table.slot, &entry.data.matches);
        table.rules.purge(version);
    }

    /// A key of the datapath: `text` is in the form of `ovs-ofctl`, its `in_port` a port of bridge 0.
    pub(crate) fn key(text: &str) -> FlowKey {
        let mut key = FlowKey::parse_text(text, None).unwrap();
        key.in_port = dp(0, of_port(key.in_port).0).0;
        key
    }

    pub(crate) fn translate(&self, key: &FlowKey, purpose: Purpose) -> Translation {
        let mut t = Translation::default();
        self.pipeline.translate(
            &Request {
                key,
                packet: None,
                now_ms: 1000,
                purpose,
            },
            &mut t,
        );
        t
    }

    /// Translates a missed packet, returns the datapath actions' text.
    pub(crate) fn actions(&self, text: &str) -> String {
        heddle_datapath_api::format_actions(&self.translate(&Self::key(text), Purpose::Miss).actions, None)
    }

    pub(crate) fn trace(&self, args: &[&str]) -> Result<Traced, String> {
        let env = TraceEnv {
            datapaths: &["dummy", "ovs-dummy"],
            port_numbers: &|_| None,
            port_names: &|no| self.name_of(no),
            now_ms: 1000,
        };
        trace(&self.pipeline, args, &env)
    }
}

impl Lab {
    fn name_of(&self, no: PortNo) -> Option<String> {
        let snapshot = self.pipeline.snapshot();
        let (bridge, port) = snapshot.by_dp_port.get(&no)?;
        Some(port_name(usize::try_from(*bridge).ok()?, *port))
    }
}

fn port_name(bridge: usize, p: Port) -> String {
    if p == Port::LOCAL {
        format!("br{bridge}")
    } else {
        format!("p{}{}", bridge, key_port(p))
    }
}
