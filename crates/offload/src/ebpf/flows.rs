//! Rules become entries of maps.
//!
//! **Invariants.** A mask's bytes are in their map before a port names it, and a port names it before a flow
//! has its number. A flow's counters are zero before the flow is there. They are given to another flow only
//! after all programs that may have found the old one have left ([`State::wait`]). So the counts that
//! `change` and `remove` return are exact, and no program runs the old actions any more when they return.
//!
//! **Generations.** A flow counts only as long as its slot has the generation that it names. Each diverted
//! port has a slot. One write ends all flows of a slot at once, when its port goes or the flows of an earlier
//! process are dropped. Their entries are taken out later.

use super::abi::{Key, MASKS_PER_PORT, MAX_CPUS, MAX_FLOWS, MAX_MASKS, MAX_SLOTS, TUNNEL_PORT};
use super::layout::{
    self, COUNT_BYTES, COUNT_PACKETS, COUNT_TCP_FLAGS, COUNT_WORDS, CPU_DROPPED, CPU_ENTERED, CPU_LEFT,
    CPU_LIMITED, CPU_PEER, CPU_UP, CPU_WORDS, ConnKeyBytes, Device, FlowHead, KeyBytes, LIVE_WORDS, Origin,
    UP,
};
use super::load::Loaded;
use crate::kernel;
use crate::miss::{CLAIM_TIMEOUT, MissDevice};
use crate::others::Others;
use crate::port_devices::PortDevices;
use crate::{Handle, Rule, Why};
use aya::maps::MapError;
use heddle_conntrack::offloaded::ConnId;
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_sys::shared_words;
use heddle_sys::veth::{Peer, Peers};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

/// Length of an Ethernet header without a tag, bytes.
const ETHERNET_LEN: u32 = 14;

/// Longest wait for the programs of a processor before the slower way of waiting is used.
const PROGRAMS_TIMEOUT: Duration = Duration::from_millis(50);

/// A port whose device is diverted.
pub(super) struct Diverted {
    /// The miss device. `None`: an internal port, whose packets go up by themselves.
    pub(super) miss: Option<MissDevice>,
    pub(super) slot: u32,
    pub(super) peer: Option<(Peer, [u8; 6])>,
    /// No program waits for packets that are sent by the device: they may go to the other end directly.
    pub(super) direct: bool,
    /// Keeps other switches from the device.
    pub(super) _claim: Option<UnixDatagram>,
}

struct Installed {
    key: KeyBytes,
    count: u32,
    /// Packets and bytes that were read from its counters last.
    read: (u64, u64),
}

/// Entries that an earlier process left.
#[derive(Default)]
pub(super) struct Adopted {
    /// Flows, with the index of their counters.
    flows: HashMap<KeyBytes, u32>,
    slots: Vec<u32>,
    /// Connections, with the index of the words that show whether they are there.
    pub(super) conns: HashMap<ConnKeyBytes, u32>,
    /// Devices.
    pub(super) ports: Vec<u32>,
}

pub(super) struct State {
    pub(super) loaded: Loaded,
    /// Group of the miss devices.
    pub(super) group: u32,
    /// Ports; a device that is diverted or let go is marked.
    pub(super) ports: PortDevices,
    pub(super) diverted: HashMap<u32, Diverted>,
    /// Time that claims of devices may still wait for the end of an earlier process.
    pub(super) claim_timeout: Duration,
    /// Devices that are left to workers.
    pub(super) others: Others,
    pub(super) peers: Option<Peers>,
    pub(super) rounds: u32,
    masks: Vec<Option<(KeyBytes, usize)>>,
    /// Masks of the flows of an origin, and the number of flows that have each.
    by_origin: HashMap<Origin, Vec<(u8, usize)>>,
    /// Distinguishes recirculation ids of this process from those of earlier ones.
    era: u8,
    /// Connections, with their keys.
    pub(super) conns: HashMap<ConnId, Vec<ConnKeyBytes>>,
    by_mask: HashMap<KeyBytes, u8>,
    installed: HashMap<Handle, Installed>,
    free_counts: Vec<u32>,
    next_count: u32,
    free_slots: Vec<u32>,
    next_slot: u32,
    /// Slot of all packets that come out of tunnels.
    tunnels: Option<u32>,
    /// The kernel can make room for outer headers before an Ethernet frame (Linux 5.13).
    encaps: bool,
    pub(super) adopted: Adopted,
    n_cpus: usize,
}

/// Counts one more flow with this mask. `true`: it is the first.
fn add_mask(masks: &mut Vec<(u8, usize)>, id: u8) -> bool {
    match masks.iter_mut().find(|(m, _)| *m == id) {
        Some((_, n)) => {
            *n += 1;
            false
        }
        None => {
            masks.push((id, 1));
            true
        }
    }
}

/// The reason for which a map refused an entry.
pub(super) fn refused(error: &MapError) -> Why {
    let errno = match error {
        MapError::SyscallError(e) => e.io_error.raw_os_error(),
        _ => None,
    };
    match errno.unwrap_or(Errno::INVAL.raw_os_error()) {
        errno if errno == Errno::TOOBIG.raw_os_error() => Why::Full,
        errno => Why::Refused(errno),
    }
}

impl State {
    pub(super) fn new(loaded: Loaded, group: u32) -> Self {
        Self {
            loaded,
            group,
            ports: PortDevices::default(),
            diverted: HashMap::new(),
            claim_timeout: CLAIM_TIMEOUT,
            others: Others::new(),
            peers: Peers::new().ok(),
            rounds: 0,
            masks: vec![None; MAX_MASKS],
            by_origin: HashMap::new(),
            era: 1,
            conns: HashMap::new(),
            by_mask: HashMap::new(),
            installed: HashMap::new(),
            free_counts: Vec::new(),
            next_count: 0,
            free_slots: Vec::new(),
            // The first two name owner and version.
            next_slot: 2,
            tunnels: None,
            encaps: kernel::version() >= (5, 13),
            adopted: Adopted::default(),
            n_cpus: n_cpus(),
        }
    }

    /// Takes over the entries of an earlier process. Its flows count until [`State::drop_adopted`].
    pub(super) fn adopt(&mut self) {
        for (key, flow) in self.loaded.all_flows() {
            let (count, slot) = layout::head(&flow);
            self.next_count = self.next_count.max(count + 1);
            self.next_slot = self.next_slot.max(slot + 1);
            if !self.adopted.slots.contains(&slot) {
                self.adopted.slots.push(slot);
            }
            let id = layout::parse_key(&key).mask_id;
            let entry = &mut self.masks[usize::from(id)];
            match entry {
                Some((_, n)) => *n += 1,
                None => {
                    let bytes = self
                        .loaded
                        .masks
                        .get(&u32::from(id), 0)
                        .unwrap_or([0; size_of::<Key>()]);
                    *entry = Some((bytes, 1));
                    self.by_mask.insert(bytes, id);
                }
            }
            let origin = Origin::of(&key);
            add_mask(self.by_origin.entry(origin).or_default(), id);
            self.era = self.era.max(origin.era.checked_add(1).unwrap_or(1));
            self.adopted.flows.insert(key, count);
        }
        let conns = self.loaded.conns.iter().filter_map(Result::ok);
        self.adopted.conns = conns.map(|(key, c)| (key, layout::conn_live(&c))).collect();
        self.adopted.ports = self.loaded.ports.keys().filter_map(Result::ok).collect();
        log::info!(
            target: "netdev_offload",
            "eBPF: took over {} flows of {} devices", self.adopted.flows.len(), self.adopted.ports.len()
        );
    }
    pub(super) fn adopted(&self) -> usize {
        self.adopted.flows.len()
    }

    // -- numbers

    pub(super) fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free_slots.pop() {
            return Some(slot);
        }
        let slot = self.next_slot;
        self.next_slot += 1;
        ((slot as usize) < MAX_SLOTS).then_some(slot)
    }
    /// The slot of flows of a device, or of a tunnel's port.
    fn slot_of(&mut self, ifindex: u32) -> Option<u32> {
        if ifindex & TUNNEL_PORT == 0 {
            return self.diverted.get(&ifindex).map(|d| d.slot);
        }
        if self.tunnels.is_none() {
            self.tunnels = self.take_slot();
        }
        self.tunnels
    }
    /// Ends all flows of a slot with one write.
    pub(super) fn end_slot(&mut self, slot: u32) {
        let at = slot as usize;
        let generation = self.loaded.slots.load(at);
        self.loaded
            .slots
            .store(at, generation.wrapping_add(1) & u64::from(u32::MAX));
        // The generation keeps counting: a flow of an earlier user of the slot never counts again.
        self.free_slots.push(slot);
    }
    fn take_count(&mut self) -> Option<u32> {
        let count = self.free_counts.pop().or_else(|| {
            let count = self.next_count;
            self.next_count += 1;
            ((count as usize) < MAX_FLOWS).then_some(count)
        })?;
        (0..COUNT_WORDS).for_each(|i| self.loaded.counts.store(count as usize * COUNT_WORDS + i, 0));
        Some(count)
    }
    /// Waits until the programs that may have found a removed entry have left.
    pub(super) fn wait(&self) {
        let cpus = &self.loaded.cpus;
        for cpu in (0..self.n_cpus).map(|n| n * CPU_WORDS) {
            let entered = cpus.load(cpu + CPU_ENTERED);
            let mut until = None;
            while cpus.load(cpu + CPU_LEFT) < entered {
                std::hint::spin_loop();
                if Instant::now() > *until.get_or_insert_with(|| Instant::now() + PROGRAMS_TIMEOUT) {
                    shared_words::wait_for_programs();
                    break;
                }
            }
        }
        // Except on x86-64, the program's count of entries is no barrier.
        if !cfg!(target_arch = "x86_64") {
            shared_words::wait_for_programs();
        }
    }

    // -- masks

    /// The masks of an origin.
    pub(super) fn mask_ids(&self, origin: Origin) -> Vec<u8> {
        let masks = self.by_origin.get(&origin);
        masks.map_or(Vec::new(), |all| all.iter().map(|(id, _)| *id).collect())
    }
    /// Writes the port's entry in the map, which the program reads.
    pub(super) fn write_port(&mut self, ifindex: u32) -> Result<(), Why> {
        let Some(d) = self.diverted.get(&ifindex) else {
            return Err(Why::InPort);
        };
        let masks = self.mask_ids(Origin::port(ifindex));
        let miss = d.miss.as_ref().map(|miss| miss.ifindex);
        let bytes = layout::port(miss, &masks);
        let out = layout::out(ifindex, d.peer.map(|(_, mac)| mac));
        self.loaded.outs.set(d.slot, out, 0).map_err(|e| refused(&e))?;
        self.loaded
            .ports
            .insert(ifindex, bytes, 0)
            .map_err(|e| refused(&e))
    }
    /// Writes the masks of an origin.
    fn write_masks(&mut self, origin: Origin) -> Result<(), Why> {
        if origin.is_port() {
            return self.write_port(origin.ifindex);
        }
        let masks = self.mask_ids(origin);
        if masks.is_empty() {
            let _ = self.loaded.stages.remove(&origin.stage());
            return Ok(());
        }
        self.loaded
            .stages
            .insert(origin.stage(), layout::stage(&masks), 0)
            .map_err(|e| refused(&e))
    }
    /// Counts one more flow of an origin with this mask. Returns the mask's number.
    fn take_mask(&mut self, origin: Origin, mask: &KeyBytes) -> Result<u8, Why> {
        let known = self.by_mask.get(mask).copied();
        let masks = self.by_origin.get(&origin).map_or(&[][..], Vec::as_slice);
        let has = known.is_some_and(|id| masks.iter().any(|(m, _)| *m == id));
        if !has && masks.len() >= MASKS_PER_PORT {
            return Err(Why::TooManyMasks);
        }
        let id = match known {
            Some(id) => id,
            None => {
                let free = self
                    .masks
                    .iter()
                    .position(Option::is_none)
                    .ok_or(Why::TooManyMasks)?;
                let id = u8::try_from(free).map_err(|_| Why::TooManyMasks)?;
                self.loaded
                    .masks
                    .set(u32::from(id), *mask, 0)
                    .map_err(|e| refused(&e))?;
                self.masks[free] = Some((*mask, 0));
                self.by_mask.insert(*mask, id);
                id
            }
        };
        if let Some((_, n)) = &mut self.masks[usize::from(id)] {
            *n += 1;
        }
        if add_mask(self.by_origin.entry(origin).or_default(), id)
            && let Err(why) = self.write_masks(origin)
        {
            self.give_mask(origin, id);
            return Err(why);
        }
        Ok(id)
    }
    /// Counts one flow of an origin with this mask less. No program that may have found the flow runs any
    /// more.
    fn give_mask(&mut self, origin: Origin, id: u8) {
        if let Some(masks) = self.by_origin.get_mut(&origin)
            && let Some(at) = masks.iter().position(|(m, _)| *m == id)
        {
            masks[at].1 -= 1;
            if masks[at].1 == 0 {
                masks.swap_remove(at);
                if masks.is_empty() {
                    self.by_origin.remove(&origin);
                }
                let _ = self.write_masks(origin);
            }
        }
        let entry = &mut self.masks[usize::from(id)];
        if let Some((mask, n)) = entry {
            *n -= 1;
            if *n == 0 {
                self.by_mask.remove(mask);
                *entry = None;
            }
        }
    }

    // -- flows

    /// The bytes of a flow with this rule, counters and slot.
    fn encode(&self, rule: &Rule, count: u32, slot: u32) -> Result<layout::FlowBytes, Why> {
        if let Some(why) = rule.only_tc() {
            return Err(why);
        }
        let mut mtu = u32::MAX;
        let missing = match rule.outer {
            Some(_) => Why::Tunnel("leaves by a device that the eBPF back end does not know"),
            None => Why::OutPort,
        };
        for no in rule.outputs() {
            let out = self.ports.get(no).ok_or(missing)?;
            mtu = mtu.min(if out.mtu == 0 { u32::MAX } else { out.mtu });
        }
        if let Some(push) = &rule.outer {
            // The inner Ethernet header is as long as the outer one, which does not count.
            let outer = u32::try_from(push.header.len()).unwrap_or(u32::MAX);
            mtu = mtu.min(if push.mtu == 0 { u32::MAX } else { push.mtu });
            mtu = mtu.saturating_sub(outer);
        }
        if let Some(len) = rule.max_frame {
            // Devices receive a tag outside of the frame.
            mtu = mtu.min(u32::from(len).saturating_sub(ETHERNET_LEN));
        }
        if rule.outer_may_fragment() {
            return Err(Why::Tunnel("lets outer packets be fragmented"));
        }
        let generation = u32::try_from(self.loaded.slots.load(slot as usize)).unwrap_or(0);
        let head = FlowHead {
            count,
            slot,
            generation,
            mtu,
            era: self.era,
        };
        let device = |no: PortNo| {
            let out = self.ports.get(no)?;
            Some(Device {
                ifindex: out.ifindex,
                internal: out.internal,
                slot: self.diverted.get(&out.ifindex).map_or(0, |d| d.slot),
            })
        };
        layout::flow(head, rule, device).ok_or(Why::TooManyActions)
    }

    pub(super) fn install(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        let ifindex = match rule.tunnel {
            true => layout::tunnel_port(rule.in_port),
            false => self.ports.get(rule.in_port).ok_or(Why::InPort)?.ifindex,
        };
        if rule.outer.is_some() && !self.encaps {
            return Err(Why::Tunnel("needs Linux 5.13"));
        }
        let left = self.others.of(ifindex).map_or(Why::InPort, |_| Why::LeftPort);
        let slot = self.slot_of(ifindex).ok_or(left)?;
        self.encode(rule, 0, slot)?;
        let mask = layout::mask(rule);
        let bare = layout::key(rule, ifindex, 0, self.era);
        let origin = Origin::of(&bare);
        // Packets that come in have no state of earlier stages, and their key has no room for it.
        if origin.is_port() && layout::of_first(&layout::first(&bare)) != bare {
            return Err(Why::Connection);
        }
        let id = self.take_mask(origin, &mask)?;
        let key = layout::key(rule, ifindex, id, self.era);
        let left = self.adopted.flows.remove(&key);
        let Some(count) = left.or_else(|| self.take_count()) else {
            self.give_mask(origin, id);
            return Err(Why::Full);
        };
        let done = self
            .encode(rule, count, slot)
            .and_then(|flow| self.loaded.insert_flow(&key, flow).map_err(|e| refused(&e)));
        if left.is_some() {
            // The flow that was replaced had the mask, too.
            self.wait();
            self.give_mask(origin, id);
        }
        if let Err(why) = done {
            self.free_counts.push(count);
            self.give_mask(origin, id);
            return Err(why);
        }
        // The counts of an earlier process's flow are credited to no flow.
        let read = self.read(count);
        self.installed.insert(at, Installed { key, count, read });
        Ok(())
    }
    fn read(&self, count: u32) -> (u64, u64) {
        let at = count as usize * COUNT_WORDS;
        let counter = |word| self.loaded.counts.load(at + word);
        (counter(COUNT_PACKETS), counter(COUNT_BYTES))
    }
    /// Packets and bytes that a flow has counted since the last call.
    fn more(&self, count: u32, read: &mut (u64, u64), now_ms: u64) -> FlowCounts {
        let now = self.read(count);
        let before = std::mem::replace(read, now);
        let flags = self
            .loaded
            .counts
            .load(count as usize * COUNT_WORDS + COUNT_TCP_FLAGS);
        match now.0.wrapping_sub(before.0) {
            0 => FlowCounts::default(),
            packets => FlowCounts {
                packets,
                bytes: now.1.wrapping_sub(before.1),
                used_ms: now_ms,
                tcp_flags: u16::try_from(flags & 0xfff).unwrap_or(0),
            },
        }
    }
    pub(super) fn change(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        let Some(flow) = self.installed.get(&at) else {
            return (
                FlowCounts::default(),
                Err(Why::Refused(Errno::NOENT.raw_os_error())),
            );
        };
        let (key, count) = (flow.key, flow.count);
        let slot = self.slot_of(layout::parse_key(&key).in_ifindex);
        let done = slot
            .ok_or(Why::InPort)
            .and_then(|slot| self.encode(rule, count, slot))
            .and_then(|flow| self.loaded.insert_flow(&key, flow).map_err(|e| refused(&e)));
        if let Err(why) = done {
            return (self.remove(at), Err(why));
        }
        self.wait();
        let Some(mut flow) = self.installed.remove(&at) else {
            return (FlowCounts::default(), Ok(()));
        };
        let counts = self.more(count, &mut flow.read, 0);
        self.installed.insert(at, flow);
        (counts, Ok(()))
    }
    pub(super) fn remove(&mut self, at: Handle) -> FlowCounts {
        let Some(mut flow) = self.installed.remove(&at) else {
            return FlowCounts::default();
        };
        self.loaded.remove_flow(&flow.key);
        self.wait();
        let counts = self.more(flow.count, &mut flow.read, 0);
        self.free_counts.push(flow.count);
        self.give_mask(Origin::of(&flow.key), layout::parse_key(&flow.key).mask_id);
        counts
    }
    pub(super) fn counters(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        let mut installed = std::mem::take(&mut self.installed);
        for (at, flow) in &mut installed {
            let n = self.more(flow.count, &mut flow.read, now_ms);
            if n.packets > 0 {
                f(*at, n);
            }
        }
        self.installed = installed;
    }

    /// Ends the entries of an earlier process that this one has not taken over. Flows end at once, by their
    /// generations; then their entries are removed, and devices that are no ports any more.
    pub(super) fn drop_adopted(&mut self) {
        let adopted = std::mem::take(&mut self.adopted);
        if adopted.flows.is_empty() && adopted.ports.is_empty() && adopted.conns.is_empty() {
            return;
        }
        for (key, live) in &adopted.conns {
            self.loaded.live.store(*live as usize * LIVE_WORDS, 0);
            let _ = self.loaded.conns.remove(key);
        }
        adopted.slots.iter().for_each(|slot| self.end_slot(*slot));
        for key in adopted.flows.keys() {
            self.loaded.remove_flow(key);
        }
        self.wait();
        for (key, count) in &adopted.flows {
            self.free_counts.push(*count);
            self.give_mask(Origin::of(key), layout::parse_key(key).mask_id);
        }
        let gone: Vec<u32> = adopted
            .ports
            .into_iter()
            .filter(|ifindex| !self.diverted.contains_key(ifindex))
            .collect();
        for ifindex in &gone {
            self.let_go(*ifindex);
        }
        log::info!(
            target: "netdev_offload",
            "eBPF: {} flows and {} devices that an earlier process left are dropped",
            adopted.flows.len(), gone.len()
        );
    }

    pub(super) fn stats(&self) -> Vec<(String, u64)> {
        let sum = |word: usize| -> u64 {
            let cpus = (0..self.n_cpus).map(|cpu| self.loaded.cpus.load(cpu * CPU_WORDS + word));
            cpus.sum()
        };
        let mut all = vec![
            ("ports".to_owned(), self.diverted.len() as u64),
            ("masks".to_owned(), self.by_mask.len() as u64),
            ("connections".to_owned(), self.conns.len() as u64),
            ("adopted-flows".to_owned(), self.adopted.flows.len() as u64),
            ("adopted-connections".to_owned(), self.adopted.conns.len() as u64),
            ("packets".to_owned(), sum(0)),
            ("to-peer".to_owned(), sum(CPU_PEER)),
            ("dropped".to_owned(), sum(CPU_DROPPED)),
            ("limited".to_owned(), sum(CPU_LIMITED)),
        ];
        let up = UP.iter().enumerate();
        all.extend(up.map(|(i, name)| (format!("up-{name}"), sum(CPU_UP + i))));
        all
    }
}

/// Processors that programs may run on.
fn n_cpus() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text
        .trim()
        .rsplit(['-', ','])
        .next()
        .and_then(|n| n.parse::<usize>().ok());
    last.map_or(MAX_CPUS, |n| (n + 1).min(MAX_CPUS))
}
