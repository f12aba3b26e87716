//! The program comes into the kernel, or is found there.
//!
//! Filters keep the program, and the program its maps, also when their process has ended: nothing has to be
//! pinned. The next process looks through the kernel's programs for one whose maps name the same owner and
//! the same version. A program of another version cannot be taken over: its filters are replaced.

use super::abi::{MAX_CONNS, MAX_CPUS, MAX_FLOWS, MAX_SLOTS};
use super::layout::{
    self, COUNT_WORDS, CPU_WORDS, ConnBytes, ConnKeyBytes, FirstBytes, FlowBytes, KeyBytes, LIVE_WORDS,
    MasksBytes, Origin, OutBytes, PortBytes, StageBytes,
};
pub(super) use crate::filter::Hook;
use crate::filter::{self, why};
use aya::maps::{Array, HashMap, Map, MapData, MapError, MapInfo};
use aya::programs::{ProgramInfo, SchedClassifier, loaded_programs};
use heddle_sys::shared_words::SharedWords;
use std::collections::HashMap as StdMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/classifier.bpf.o"));

/// Names of the program and of its maps.
const PROGRAM: &str = "hd_ingress";
const NAMES: [&str; 11] = [
    "hd_ports",
    "hd_outs",
    "hd_first",
    "hd_masks",
    "hd_flows",
    "hd_stages",
    "hd_conns",
    "hd_live",
    "hd_counts",
    "hd_slots",
    "hd_cpus",
];

/// Priority of the filter at a device.
const PRIORITY: u16 = 0x4844;

/// The program and its maps.
pub(super) struct Loaded {
    program: SchedClassifier,
    pub(super) ports: HashMap<MapData, u32, PortBytes>,
    pub(super) masks: Array<MapData, KeyBytes>,
    pub(super) outs: Array<MapData, OutBytes>,
    /// Flows of packets as they come in,
    pub(super) first: HashMap<MapData, FirstBytes, FlowBytes>,
    /// and of those behind a recirculation or a tunnel.
    pub(super) flows: HashMap<MapData, KeyBytes, FlowBytes>,
    pub(super) stages: HashMap<MapData, StageBytes, MasksBytes>,
    pub(super) conns: HashMap<MapData, ConnKeyBytes, ConnBytes>,
    pub(super) live: Arc<SharedWords>,
    pub(super) counts: SharedWords,
    pub(super) slots: SharedWords,
    pub(super) cpus: SharedWords,
}

/// Names a version of the program: the bytes that were loaded.
fn version() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in OBJECT {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

fn assemble(program: SchedClassifier, mut maps: StdMap<String, Map>) -> Result<Loaded, String> {
    let mut take = |name: &str| maps.remove(name).ok_or(format!("the map {name} is missing"));
    let words = |map: Map, n: usize| -> Result<SharedWords, String> {
        let Map::Array(data) = map else {
            return Err("a map is of another kind".into());
        };
        SharedWords::of_fd(data.fd().as_fd(), n).map_err(|e| format!("a map cannot be mapped: {e}"))
    };
    let e = |e: aya::maps::MapError| why(&e);
    Ok(Loaded {
        program,
        ports: HashMap::try_from(take("hd_ports")?).map_err(e)?,
        masks: Array::try_from(take("hd_masks")?).map_err(e)?,
        outs: Array::try_from(take("hd_outs")?).map_err(e)?,
        first: HashMap::try_from(take("hd_first")?).map_err(e)?,
        flows: HashMap::try_from(take("hd_flows")?).map_err(e)?,
        stages: HashMap::try_from(take("hd_stages")?).map_err(e)?,
        conns: HashMap::try_from(take("hd_conns")?).map_err(e)?,
        live: Arc::new(words(take("hd_live")?, MAX_CONNS * LIVE_WORDS)?),
        counts: words(take("hd_counts")?, MAX_FLOWS * COUNT_WORDS)?,
        slots: words(take("hd_slots")?, MAX_SLOTS)?,
        cpus: words(take("hd_cpus")?, MAX_CPUS * CPU_WORDS)?,
    })
}

/// Loads the program.
pub(super) fn load(owner: u64) -> Result<Loaded, String> {
    if OBJECT.is_empty() {
        return Err("this program was built without clang, which compiles the kernel's part".into());
    }
    let mut ebpf = aya::EbpfLoader::new().load(OBJECT).map_err(|e| why(&e))?;
    let program: &mut SchedClassifier = ebpf
        .program_mut(PROGRAM)
        .ok_or("the program is missing")?
        .try_into()
        .map_err(|e: aya::programs::ProgramError| why(&e))?;
    program.load().map_err(|e| why(&e))?;
    let info = program.info().map_err(|e| why(&e))?;
    let program = SchedClassifier::from_program_info(info, PROGRAM.into()).map_err(|e| why(&e))?;
    let mut maps = StdMap::new();
    for name in NAMES {
        maps.insert(
            name.to_owned(),
            ebpf.take_map(name).ok_or(format!("the map {name} is missing"))?,
        );
    }
    let loaded = assemble(program, maps)?;
    loaded.slots.store(0, owner);
    loaded.slots.store(1, version());
    Ok(loaded)
}

/// The maps of a program in the kernel, by name.
fn maps_of(info: &ProgramInfo) -> Option<StdMap<String, Map>> {
    let mut maps = StdMap::new();
    for id in info.map_ids().ok()?? {
        let name = MapInfo::from_id(id).ok()?.name_as_str()?.to_owned();
        maps.insert(name, Map::from_map_data(MapData::from_id(id).ok()?).ok()?);
    }
    Some(maps)
}

/// The programs that an owner has in the kernel, with their versions.
fn owned(owner: u64) -> Vec<(u64, ProgramInfo, StdMap<String, Map>)> {
    let ours = |info: &ProgramInfo| info.name_as_str() == Some(PROGRAM);
    let mut found = Vec::new();
    for info in loaded_programs().filter_map(Result::ok).filter(ours) {
        let Some(maps) = maps_of(&info) else { continue };
        let Some(Map::Array(slots)) = maps.get("hd_slots") else {
            continue;
        };
        let Ok(slots) = SharedWords::of_fd(slots.fd().as_fd(), 2) else {
            continue;
        };
        if slots.load(0) == owner {
            found.push((slots.load(1), info, maps));
        }
    }
    found
}

/// The maps and program that an earlier process of this owner and version left.
pub(super) fn find(owner: u64) -> Result<Option<Loaded>, String> {
    let Some((_, info, maps)) = owned(owner).into_iter().find(|(v, _, _)| *v == version()) else {
        return Ok(None);
    };
    let program = SchedClassifier::from_program_info(info, PROGRAM.into()).map_err(|e| why(&e))?;
    assemble(program, maps).map(Some)
}

/// See [`super::Ebpf::remove_leftovers`].
pub(super) fn remove_leftovers(owner: u64) -> usize {
    let mut n = 0;
    for (_, _, mut maps) in owned(owner) {
        let Some(ports) = maps.remove("hd_ports") else {
            continue;
        };
        let Ok(ports) = HashMap::<_, u32, PortBytes>::try_from(ports) else {
            continue;
        };
        let all: Vec<u32> = ports.keys().filter_map(Result::ok).collect();
        for ifindex in all {
            n += usize::from(name_of(ifindex).is_some_and(|name| detach(&name).is_ok()));
        }
    }
    n
}

/// The device of an index.
pub(super) fn name_of(ifindex: u32) -> Option<String> {
    let link = heddle_sys::LinkCtl::new().ok()?;
    link.name(ifindex).ok()
}

impl Loaded {
    /// Puts the program to a device, in the place of one that is there.
    pub(super) fn attach(&mut self, name: &str, hook: Hook) -> io::Result<()> {
        filter::attach(&mut self.program, name, hook, PRIORITY)
    }
    /// Attaches the program to a device that has none any more, because another program removed its filter or
    /// its queueing discipline. `true`: it had none.
    pub(super) fn attach_again(&mut self, name: &str, hook: Hook) -> bool {
        filter::attach_again(&mut self.program, name, hook, PRIORITY)
    }
    /// Writes a flow.
    pub(super) fn insert_flow(&mut self, key: &KeyBytes, flow: FlowBytes) -> Result<(), MapError> {
        match Origin::of(key).is_port() {
            true => self.first.insert(layout::first(key), flow, 0),
            false => self.flows.insert(key, flow, 0),
        }
    }
    /// Takes a flow out; a missing one is no error.
    pub(super) fn remove_flow(&mut self, key: &KeyBytes) {
        let _ = match Origin::of(key).is_port() {
            true => self.first.remove(&layout::first(key)),
            false => self.flows.remove(key),
        };
    }
    /// All flows.
    pub(super) fn all_flows(&self) -> Vec<(KeyBytes, FlowBytes)> {
        let first = self.first.iter().filter_map(Result::ok);
        let flows = self.flows.iter().filter_map(Result::ok);
        first
            .map(|(key, flow)| (layout::of_first(&key), flow))
            .chain(flows)
            .collect()
    }
    /// The program, to be run by tests.
    #[cfg(test)]
    pub(super) fn program(&self) -> &SchedClassifier {
        &self.program
    }
}

/// Takes the program off a device.
pub(super) fn detach(name: &str) -> io::Result<()> {
    filter::detach(name, PRIORITY)
}
