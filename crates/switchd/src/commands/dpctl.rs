//! `dpctl/*`: the datapath by itself.
//!
//! All bridges share one datapath here. Commands show one datapath per type that has bridges, as in Open
//! vSwitch. Each has the ports of its bridges and the flows that come from them. The type `system` is shown
//! as Open vSwitch shows the kernel's datapath: programs that were written for that read these texts.

use std::collections::{BTreeMap, BTreeSet};

use heddle_datapath_api::{Engine, FlowDump, Merged, Totals, ufid};
use heddle_flow::Match;

use super::Commands;
use super::args::{self, Options};
use super::flows::{self, Lines, Style};
use crate::inventory::{Item, OWN_PORT, datapath_name};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// The type that stands for the kernel's datapath.
const KERNEL: &str = "system";
/// Maximum number of flows that are all kept in memory to find those that several workers have.
const MAX_MERGED_FLOWS: u64 = 100_000;

pub(super) const EINVAL: &str = "Invalid argument";
pub(super) const ENOENT: &str = "No such file or directory";
pub(super) const EPERM: &str = "Operation not permitted";
pub(super) const ENODEV: &str = "No such device";

pub(super) fn register(c: &Commands<'_>) {
    const ANY: usize = usize::MAX;
    c.add("dpctl/dump-dps", "", (0, 0), |s, _| {
        Ok(types(s).iter().map(|t| datapath_name(t) + "\n").collect())
    });
    c.add("dpctl/show", "[-s] [dp...]", (0, ANY), show);
    c.add(
        "dpctl/dump-flows",
        "[-m] [--names] [dp] [filter=..] [type=..] [pmd=..]",
        (0, ANY),
        dump_flows,
    );
    c.add("dpctl/get-flow", "[dp] ufid", (1, 3), get_flow);
    c.add("dpctl/del-flows", "[dp] [file]", (0, 2), del_flows);
}

/// Types of datapath that have bridges.
pub(super) fn types(switch: &Switch) -> BTreeSet<String> {
    switch.inventory.read().bridges.values().cloned().collect()
}

pub(super) const UNKNOWN: &str = "please specify an existing datapath";

/// Whether a datapath has this name, with its type or without.
pub(super) fn is_known(switch: &Switch, name: &str) -> bool {
    types(switch)
        .iter()
        .any(|t| name == format!("ovs-{t}") || name == datapath_name(t))
}

pub(super) fn failed(switch: &Switch, text: &str, why: Option<&str>) -> String {
    let why = why.map(|w| format!(" ({w})")).unwrap_or_default();
    format!("{}: {text}{why}\n", switch.options.names.program)
}

/// The type of datapath that a user means by a name such as `netdev@ovs-netdev`.
pub(super) fn named(switch: &Switch, name: &str) -> Option<String> {
    let full = if name.contains('@') {
        name.to_owned()
    } else {
        format!("system@{name}")
    };
    types(switch).into_iter().find(|t| datapath_name(t) == full)
}

/// The datapath that the first of all arguments names, or the only one; and the other arguments.
pub(super) fn one<'a, 'b>(
    switch: &Switch,
    args: &'a [&'b str],
    max: usize,
) -> Result<(String, &'a [&'b str]), String> {
    if let [first, rest @ ..] = args
        && let Some(found) = named(switch, first)
    {
        return Ok((found, rest));
    }
    let not_found = failed(switch, "datapath not found", Some(EINVAL));
    if args.len() >= max {
        return Err(not_found);
    }
    let mut all = types(switch).into_iter();
    match (all.next(), all.next()) {
        (Some(only), None) => Ok((only, args)),
        (None, _) => Err(failed(switch, "no datapaths exist", None) + &not_found),
        _ => Err(failed(switch, "multiple datapaths, specify one", None) + &not_found),
    }
}

/// Interfaces of a datapath, by their numbers in it.
pub(super) fn ports_of(switch: &Switch, datapath_type: &str) -> BTreeMap<u32, (String, Item)> {
    let inventory = switch.inventory.read();
    let of_type = |item: &Item| {
        inventory
            .bridges
            .get(&item.bridge)
            .is_some_and(|t| t == datapath_type)
    };
    let own = inventory.interfaces.iter().filter(|(_, item)| !item.shares);
    let all = own.chain(&inventory.shared).filter(|(_, item)| of_type(item));
    all.filter_map(|(name, item)| Some((item.dp_no?.0, (name.clone(), item.clone()))))
        .collect()
}

fn show(switch: &Switch, args: &[&str]) -> Reply {
    let (options, names) = args::split(args)?;
    if names.is_empty() {
        return Ok(types(switch)
            .iter()
            .map(|t| show_one(switch, t, options))
            .collect());
    }
    let mut out = String::new();
    let mut ok = true;
    for name in names {
        match named(switch, name) {
            Some(found) => out += &show_one(switch, &found, options),
            None => {
                ok = false;
                out += &failed(switch, &format!("opening datapath {name} failed"), Some(ENODEV));
            }
        }
    }
    if ok { Ok(out) } else { Err(out) }
}

fn show_one(switch: &Switch, datapath_type: &str, options: Options) -> String {
    let t = switch.datapath.totals();
    let hits = t.packets.saturating_sub(t.misses);
    let mut out = format!(
        "{}:\n  lookups: hit:{hits} missed:{} lost:{}\n  flows: {}\n",
        datapath_name(datapath_type),
        t.misses,
        t.lost,
        t.flows
    );
    if datapath_type == KERNEL {
        out += &masks(&t);
    }
    let own = switch
        .datapath
        .port(OWN_PORT)
        .filter(|_| datapath_type == "dummy");
    if let Some(own) = own {
        let item = Item::of_datapath(own);
        out += &show_port(switch, OWN_PORT.0, "ovs-dummy", &item, options);
    }
    for (no, (name, item)) in ports_of(switch, datapath_type) {
        out += &show_port(switch, no, &name, &item, options);
    }
    out
}

/// The kernel's line about lookups in tables of masks.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn masks(t: &Totals) -> String {
    let per_packet = t.l2_masks_probed as f64 / t.packets.max(1) as f64;
    format!(
        "  masks: hit:{} total:{} hit/pkt:{per_packet:.2}\n",
        t.l2_masks_probed, t.masks
    )
}

fn show_port(switch: &Switch, no: u32, name: &str, item: &Item, options: Options) -> String {
    let kind = match item.shown {
        "system" => String::new(),
        shown => format!(" ({shown}{})", settings(item)),
    };
    let statistics = if options.statistics {
        statistics(switch, item)
    } else {
        String::new()
    };
    format!("  port {no}: {name}{kind}\n{statistics}")
}

/// `: key=value, key=value`, or nothing.
pub(super) fn settings(item: &Item) -> String {
    let all: Vec<String> = item.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
    if all.is_empty() {
        String::new()
    } else {
        format!(": {}", all.join(", "))
    }
}

/// The settings under their names in Open vSwitch 3.3 and later, with each number of queues only once.
pub(super) fn config(item: &Item) -> BTreeMap<String, String> {
    let mut all = item.settings.clone();
    for (key, name) in [
        ("configured_rx_queues", "n_rxq"),
        ("configured_tx_queues", "n_txq"),
    ] {
        if let Some(n) = all.remove(key) {
            all.insert(name.to_owned(), n);
            let numa = item.device.as_ref().and_then(|d| d.status().numa);
            all.extend(numa.map(|n| ("numa_id".to_owned(), n.to_string())));
        }
    }
    all.retain(|key, _| !key.starts_with("requested_"));
    all
}

fn statistics(switch: &Switch, item: &Item) -> String {
    let stats = item
        .dp_no
        .and_then(|no| switch.datapath.port_stats(no))
        .unwrap_or_default();
    format!(
        "    RX packets:{} errors:{} dropped:{} overruns:? frame:?\n    \
         TX packets:{} errors:{} dropped:{} aborted:? carrier:?\n    collisions:?\n    \
         RX bytes:{}{}  TX bytes:{}{}\n",
        stats.rx_packets,
        stats.rx_errors,
        stats.rx_dropped,
        stats.tx_packets,
        stats.tx_errors,
        stats.tx_dropped,
        stats.rx_bytes,
        human(stats.rx_bytes),
        stats.tx_bytes,
        human(stats.tx_bytes),
    )
}

/// ` (1.5 KiB)`, or nothing for less than a kibibyte.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn human(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| bytes >> bits != 0);
    unit.map(|(bits, name)| format!(" ({:.1} {name})", bytes as f64 / (1_u64 << bits) as f64))
        .unwrap_or_default()
}

/// The flows that a user wants to see.
#[derive(Default)]
struct Filter {
    flow: Option<Match>,
    core: Option<Option<usize>>,
    /// Places whose flows are shown (`None`: workers); an empty list shows all.
    places: Vec<Option<&'static str>>,
}

impl Filter {
    /// Takes `filter=`, `type=` and `pmd=` off the end of the arguments.
    fn take(switch: &Switch, mut args: &[&str]) -> Result<(Filter, usize), String> {
        let mut filter = Filter::default();
        while let [rest @ .., last] = args {
            if let Some(text) = last.strip_prefix("filter=") {
                let ports = flows::port_names(switch);
                let number = |name: &str| ports.iter().find(|(_, n)| *n == name).map(|(no, _)| *no);
                let wanted = Match::parse_text(text, Some(&number));
                let why = |e| failed(switch, &format!("Failed to parse filter ({e})"), None);
                filter.flow = Some(wanted.map_err(why)?);
            } else if let Some(list) = last.strip_prefix("type=") {
                for kind in list.split(',') {
                    match kind {
                        "all" => filter.places.extend([None, Some("tc"), Some("ebpf")]),
                        "ovs" | "non-offloaded" => filter.places.push(None),
                        "offloaded" => filter.places.extend([Some("tc"), Some("ebpf")]),
                        "ebpf" => filter.places.push(Some("ebpf")),
                        "tc" => filter.places.push(Some("tc")),
                        // Places that no flow has.
                        "dpdk" => filter.places.push(Some("dpdk")),
                        "partially-offloaded" => filter.places.push(Some("partial")),
                        other => {
                            return Err(failed(switch, &format!("Failed to parse type ({other})"), None));
                        }
                    }
                }
            } else if let Some(core) = last.strip_prefix("pmd=") {
                let number: i64 = core
                    .parse()
                    .map_err(|_| failed(switch, &format!("Failed to parse pmd ({core})"), None))?;
                // -1 is the main thread.
                filter.core = Some(usize::try_from(number).ok());
            } else {
                break;
            }
            args = rest;
        }
        Ok((filter, args.len()))
    }

    /// The heading above the flows of one thread; empty if the user named a thread.
    fn heading(&self, text: &str) -> String {
        match self.core {
            None => text.to_owned(),
            Some(_) => String::new(),
        }
    }

    /// `core` is the processor of the thread that has the flow; `None` is the main thread, in Open vSwitch.
    fn takes(&self, flow: &FlowDump, core: Option<usize>) -> bool {
        let wanted = self.flow.as_ref().is_none_or(|m| {
            // Bits that the flow leaves open are compatible with any value.
            let masks = m.mask.0.words().iter().zip(flow.mask.words());
            let words = flow.key.words().iter().zip(m.key.words()).zip(masks);
            words
                .into_iter()
                .all(|((have, want), (mask, counts))| (have ^ want) & mask & counts == 0)
        });
        let is_shown = self.places.is_empty() || self.places.contains(&flow.place);
        wanted && is_shown && self.core.is_none_or(|wanted| wanted == core)
    }
}

fn dump_flows(switch: &Switch, args: &[&str]) -> Reply {
    let (options, args) = args::split(args)?;
    let (filter, left) = Filter::take(switch, args)?;
    let (datapath_type, _) = one(switch, args.get(..left).unwrap_or_default(), 1)?;
    let ports = ports_of(switch, &datapath_type);
    let style = Style {
        verbose: options.verbosity > 0,
        names: options.names,
        ufid: (options.verbosity > 0).then_some(", "),
        kernel: datapath_type == KERNEL,
    };
    let all = switch.datapath.ports();
    let is_tunnel = |kind: &str| heddle_tunnel::TunnelType::named(kind).is_some();
    let mut main: Vec<u32> = all.iter().filter(|p| !p.is_pmd).map(|p| p.no.0).collect();
    // Tunnels have no queues: their flows are with the worker of the uplink.
    if all.iter().all(|p| p.is_pmd || is_tunnel(p.kind)) {
        main.clear();
    }
    let lines = Lines::new(switch, style);
    // The kernel has no threads to name, and each flow once.
    if style.kernel && filter.core.is_none() && switch.datapath.totals().flows <= MAX_MERGED_FLOWS {
        let wanted = |flow: &FlowDump| ports.contains_key(&flow.key.in_port) && filter.takes(flow, None);
        return Ok(lines.merged(switch, wanted));
    }
    // Open vSwitch's main thread polls pretended devices, and has each of their flows once.
    let mut of_main = Merged::default();
    // There may be a million other flows: only their lines are kept.
    let mut of_cores: BTreeMap<usize, String> = BTreeMap::new();
    switch.datapath.each_flow(|flow| {
        let core = (!main.contains(&flow.key.in_port)).then_some(flow.core);
        if !ports.contains_key(&flow.key.in_port) || !filter.takes(&flow, core) {
            return;
        }
        match core {
            None => of_main.add(flow),
            Some(core) => {
                let head = || filter.heading(&format!("flow-dump from pmd on cpu core: {core}\n"));
                *of_cores.entry(core).or_insert_with(head) += &lines.of(&flow);
            }
        }
    });
    let mut texts = of_cores.into_values();
    let mut out = match of_main.flows() {
        [] => texts.next().unwrap_or_default(),
        flows => {
            filter.heading("flow-dump from the main thread:\n")
                + &flows.iter().map(|f| lines.of(f)).collect::<String>()
        }
    };
    texts.for_each(|text| out += &text);
    Ok(out)
}

/// The flow of a name, as `-m` shows it.
fn get_flow(switch: &Switch, args: &[&str]) -> Reply {
    let (options, args) = args::split(args)?;
    let (datapath_type, rest) = one(switch, args, 2)?;
    let wanted = rest.first().copied().unwrap_or_default();
    let digits = wanted.strip_prefix("ufid:").unwrap_or_default();
    let is_hex = digits.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    if digits.is_empty() || !is_hex {
        return Err(failed(switch, "failed to parse ufid", Some(EINVAL)));
    }
    let ports = ports_of(switch, &datapath_type);
    let of_name = |f: &FlowDump| ports.contains_key(&f.key.in_port) && ufid(&f.key, &f.mask) == wanted;
    let style = Style {
        verbose: options.verbosity > 0,
        names: options.names,
        ufid: (options.verbosity > 0).then_some(", "),
        kernel: datapath_type == KERNEL,
    };
    let found = Lines::new(switch, style).merged(switch, of_name);
    if found.is_empty() {
        return Err(failed(switch, "getting flow", Some(ENOENT)));
    }
    Ok(found)
}

fn del_flows(switch: &Switch, args: &[&str]) -> Reply {
    let (_, args) = args::split(args)?;
    one(switch, args, 1)?;
    switch.datapath.purge();
    Ok(String::new())
}
