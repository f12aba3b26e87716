//! Settings of the whole switch: `Open_vSwitch.other_config`.

use heddle_datapath::{Datapath, MaxSleep};
use heddle_kernel_conntrack::Choice;
use heddle_kernel_conntrack::choice::{DEFAULT_LIMIT, Zones};

use std::sync::Arc;

use super::desired::Smap;
use super::offload_choice;
use super::pmd::Pmd;
use super::warnings::{self, ConfigWarning};
use crate::switch::Switch;

/// The network below encrypts: tunnels that request encryption may send clear text into it.
pub(super) const ALLOW_CLEAR: &str = "heddle-allow-clear";
/// Connections are mirrored in the kernel's table.
pub(super) const KERNEL_CONNTRACK: &str = "heddle-kernel-conntrack";
/// The zones whose connections are mirrored.
pub(super) const KERNEL_CONNTRACK_ZONES: &str = "heddle-kernel-conntrack-zones";
/// Maximum number of mirrored connections.
pub(super) const KERNEL_CONNTRACK_LIMIT: &str = "heddle-kernel-conntrack-limit";

/// The settings that this switch has. Others are accepted and change nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Globals {
    /// The `other_config` that they were read from.
    config: Smap,
    flow_limit: usize,
    max_idle_ms: u64,
    /// VLAN tags that are looked at, 0: as many as possible.
    pub(super) vlan_limit: usize,
    /// Seconds without a message after which a bundle is discarded.
    pub(super) bundle_idle_s: u64,
    /// Processors of workers; `None`: the datapath's choice.
    cpus: Option<Vec<usize>>,
    /// Settings of workers; `None`: none were read yet.
    pmd: Option<Pmd>,
    /// `pmd-perf-metrics`.
    perf_metrics: bool,
    /// Controllers wait until flows are restored.
    pub(super) restore_wait: bool,
    /// Statistics of the machine are wanted.
    pub(super) statistics: bool,
    /// Milliseconds between updates of statistics.
    pub(super) stats_interval_ms: u64,
    /// `vhost-sock-dir`: where sockets of `dpdkvhostuser` ports are, below the run directory.
    pub(super) vhost_sock_dir: Option<String>,
    /// `vhost-iommu-support`.
    pub(super) vhost_iommu: bool,
    /// `vhost-postcopy-support`, which this switch does not have.
    pub(super) vhost_postcopy: bool,
    /// `dpdk-init`: ports of DPDK's types are wanted.
    pub(super) dpdk_init: bool,
    /// `hw-offload`, `heddle-ebpf` and `tc-policy`: the bridges whose flows are offloaded, and the back ends.
    pub(super) offload: offload_choice::Wanted,
    /// `heddle-kernel-conntrack`: connections that are mirrored in the kernel's table.
    kernel_conntrack: Option<Choice>,
    /// `heddle-allow-clear`: tunnels that request encryption send clear text.
    pub(super) allow_clear: bool,
}

impl Globals {
    /// The settings before the first configuration.
    pub(super) fn new() -> Globals {
        Globals {
            restore_wait: true,
            ..Globals::default()
        }
    }

    /// The settings in `config`. If `config` is unchanged, so are they, and no warning is repeated.
    pub(super) fn renewed(&self, config: &Smap) -> Globals {
        if self.pmd.is_some() && self.config == *config {
            return self.clone();
        }
        warnings::log_new(&self.config, config);
        Globals::read(config, self.restore_wait)
    }

    /// Reads the settings. Once flows are restored, `flow-restore-wait` is ignored (`waited` is its last
    /// value).
    fn read(config: &Smap, waited: bool) -> Globals {
        let size = |key, default| usize::try_from(config.number(key, default)).unwrap_or(usize::MAX);
        Globals {
            config: config.clone(),
            flow_limit: size("flow-limit", 200_000),
            max_idle_ms: config.number("max-idle", 10_000),
            vlan_limit: size("vlan-limit", 1),
            bundle_idle_s: config.number("bundle-idle-timeout", 10).max(1),
            cpus: config
                .get("pmd-cpu-mask")
                .filter(|m| !m.is_empty())
                .and_then(|mask| cpu_mask(mask).ok()),
            pmd: Some(Pmd::read(config)),
            perf_metrics: config.bool("pmd-perf-metrics", false),
            restore_wait: waited && config.bool("flow-restore-wait", false),
            statistics: config.bool("enable-statistics", false),
            stats_interval_ms: config.number("stats-update-interval", 5000).max(5000),
            vhost_sock_dir: config.get("vhost-sock-dir").map(str::to_owned),
            vhost_iommu: config.bool("vhost-iommu-support", false),
            vhost_postcopy: config.bool("vhost-postcopy-support", false),
            offload: offload_choice::Wanted::read(config),
            kernel_conntrack: kernel_conntrack(config),
            allow_clear: config.bool(ALLOW_CLEAR, false),
            dpdk_init: config.bool("dpdk-init", false) || config.get("dpdk-init") == Some("try"),
        }
    }

    /// Processors without a worker: packets from the switch to pods are processed there.
    pub(super) fn cpus_without_workers(&self) -> Vec<usize> {
        let workers = match &self.cpus {
            Some(cpus) => Ok(cpus.clone()),
            None => heddle_sys::cpu::allowed(),
        };
        match (heddle_sys::cpu::online(), workers) {
            (Ok(online), Ok(workers)) => online.into_iter().filter(|c| !workers.contains(c)).collect(),
            _ => Vec::new(),
        }
    }

    /// Logs which settings this switch does not have.
    fn log_absent(&self, before: &Globals) {
        if self.dpdk_init && !before.dpdk_init {
            log::info!(target: "dpdk", "ports of DPDK's types need no DPDK here (type dpdk uses AF_XDP): dpdk-* settings change nothing");
        }
        if self.vhost_postcopy && !before.vhost_postcopy {
            log::warn!(target: "dpdk", "POSTCOPY support for vhost-user is not available, it stays disabled.");
        }
    }

    /// Applies the differences from `before` to the switch.
    pub(super) fn apply(&self, before: &Globals, switch: &Arc<Switch>) {
        let datapath = &*switch.datapath;
        if self.kernel_conntrack != before.kernel_conntrack {
            switch.set_kernel_conntrack(self.kernel_conntrack.clone());
        }
        if self.flow_limit != before.flow_limit {
            datapath.set_flow_limit(self.flow_limit);
        }
        if self.max_idle_ms != before.max_idle_ms {
            datapath.set_max_idle_ms(self.max_idle_ms);
        }
        if self.vlan_limit != before.vlan_limit {
            datapath.set_vlan_limit(u8::try_from(self.vlan_limit).unwrap_or(u8::MAX));
        }
        self.log_absent(before);
        if self.perf_metrics != before.perf_metrics {
            let state = if self.perf_metrics { "enabled" } else { "disabled" };
            log::info!(target: "dpif_netdev", "PMD performance metrics collection {state}");
            datapath.set_perf_metrics(self.perf_metrics);
        }
        if let Some(pmd) = &self.pmd {
            pmd.apply(before.pmd.as_ref(), datapath);
            let request = pmd.priority();
            if before.pmd.as_ref().is_none_or(|b| b.priority() != request) {
                switch.priority.apply(request, datapath);
            }
        }
        if self.cpus != before.cpus {
            if let Err(error) = datapath.set_workers(self.cpus.as_deref()) {
                log::error!(target: "dpif_netdev", "pmd-cpu-mask: {error}");
            }
            let spare = self.cpus_without_workers();
            let ports = datapath.ports();
            ports
                .iter()
                .filter_map(|p| datapath.port(p.no))
                .for_each(|p| p.steer(&spare));
        }
        if let Some(pmd) = &self.pmd {
            pmd.apply_sleep(before.pmd.as_ref(), datapath);
        }
    }

    /// Logs how workers sleep, once the first bridge is there, so that this line comes after those about the
    /// bridge.
    pub(super) fn log_sleep(&self, logged: &mut Option<MaxSleep>, datapath: &Datapath) {
        if let Some(pmd) = &self.pmd {
            pmd.log_sleep(logged, datapath);
        }
    }
}

/// The connections that are mirrored in the kernel's table.
fn kernel_conntrack(config: &Smap) -> Option<Choice> {
    let all = config
        .get(KERNEL_CONNTRACK)
        .is_some_and(|v| v.eq_ignore_ascii_case("all"));
    (all || config.bool(KERNEL_CONNTRACK, false)).then(|| Choice {
        all,
        zones: config
            .get(KERNEL_CONNTRACK_ZONES)
            .and_then(Zones::parse)
            .unwrap_or_default(),
        limit: usize::try_from(config.number(KERNEL_CONNTRACK_LIMIT, DEFAULT_LIMIT as u64))
            .unwrap_or(usize::MAX),
    })
}

/// The faults in `heddle-kernel-conntrack` and `heddle-kernel-conntrack-zones`.
pub(super) fn kernel_conntrack_warnings(config: &Smap) -> impl Iterator<Item = ConfigWarning> {
    let mode = config.get(KERNEL_CONNTRACK).filter(|v| {
        !["true", "false", "all"]
            .iter()
            .any(|known| v.eq_ignore_ascii_case(known))
    });
    let mode = mode.map(|v| {
        (
            KERNEL_CONNTRACK,
            format!("{v} is not true, false or all: false is used"),
        )
    });
    let zones = config
        .get(KERNEL_CONNTRACK_ZONES)
        .filter(|v| Zones::parse(v).is_none());
    let zones = zones.map(|v| {
        let text = format!(
            "{v} is no list of zones such as 5,64000-64010 (zone 0 is the host's): all zones are used"
        );
        (KERNEL_CONNTRACK_ZONES, text)
    });
    mode.into_iter().chain(zones).map(|(key, text)| ConfigWarning {
        keys: vec![key],
        module: "bridge",
        text: format!("other_config:{key}={text}"),
    })
}

/// The faults in `heddle-ebpf` and `tc-policy`.
pub(super) fn offload_warnings(config: &Smap) -> impl Iterator<Item = ConfigWarning> {
    let ebpf = config
        .get(offload_choice::EBPF)
        .filter(|v| !offload_choice::is_known(v))
        .map(|v| {
            (
                offload_choice::EBPF,
                v,
                "is not auto, true or false: auto is used",
            )
        });
    let policy = config
        .get(offload_choice::TC_POLICY)
        .filter(|v| heddle_offload::TcPolicy::parse(v).is_none())
        .map(|v| {
            (
                offload_choice::TC_POLICY,
                v,
                "is not none, skip_sw or skip_hw: none is used",
            )
        });
    ebpf.into_iter()
        .chain(policy)
        .map(|(key, value, text)| ConfigWarning {
            keys: vec![key],
            module: "bridge",
            text: format!("other_config:{key}={value} {text}"),
        })
}

/// The fault in `pmd-cpu-mask`.
pub(super) fn mask_warnings(config: &Smap) -> Option<ConfigWarning> {
    let mask = config.get("pmd-cpu-mask").filter(|m| !m.is_empty())?;
    let (module, text) = cpu_mask(mask).err()?;
    Some(ConfigWarning {
        keys: vec!["pmd-cpu-mask"],
        module,
        text,
    })
}

/// Processor numbers of a hexadecimal mask; or the module and text of a warning.
fn cpu_mask(text: &str) -> Result<Vec<usize>, (&'static str, String)> {
    let digits = text
        .strip_prefix("0x")
        .or_else(|| text.strip_prefix("0X"))
        .unwrap_or(text);
    let mut cpus = Vec::new();
    for (place, digit) in digits.chars().rev().enumerate() {
        let Some(bits) = digit.to_digit(16) else {
            return Err(("ovs_numa", format!("Invalid cpu mask: {digit}")));
        };
        cpus.extend(
            (0..4)
                .filter(|bit| bits & (1 << bit) != 0)
                .map(|bit| place * 4 + bit),
        );
    }
    if cpus.is_empty() {
        let text = format!("pmd-cpu-mask {text} names no processor: workers run as if it were not set");
        return Err(("dpif_netdev", text));
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        assert_eq!(cpu_mask("0x5"), Ok(vec![0, 2]));
        assert_eq!(cpu_mask("100000000000000001"), Ok(vec![0, 68]));
        assert!(cpu_mask("0").is_err() && cpu_mask("0xg").is_err());
    }

    #[test]
    fn mirrored_connections_are_chosen() {
        let read = |pairs: &[(&str, &str)]| {
            let map = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            let config = Smap(map.collect());
            let warnings = kernel_conntrack_warnings(&config).count();
            (kernel_conntrack(&config), warnings)
        };
        assert_eq!(read(&[(KERNEL_CONNTRACK_LIMIT, "7")]), (None, 0));
        assert_eq!(read(&[(KERNEL_CONNTRACK, "false")]), (None, 0));
        assert_eq!(read(&[(KERNEL_CONNTRACK, "yes")]), (None, 1));
        assert_eq!(read(&[(KERNEL_CONNTRACK, "True")]), (Some(Choice::default()), 0));
        let pairs = [
            (KERNEL_CONNTRACK, "all"),
            (KERNEL_CONNTRACK_ZONES, "5-6"),
            (KERNEL_CONNTRACK_LIMIT, "7"),
        ];
        let zones = Zones::parse("5-6").unwrap();
        let choice = Choice {
            all: true,
            zones,
            limit: 7,
        };
        assert_eq!(read(&pairs), (Some(choice), 0));
        let pairs = [(KERNEL_CONNTRACK, "true"), (KERNEL_CONNTRACK_ZONES, "0-6")];
        assert_eq!(read(&pairs), (Some(Choice::default()), 1));
    }

    #[test]
    fn what_is_as_it_was_is_not_read_again() {
        let config = |value: &str| Smap([("max-idle".to_owned(), value.to_owned())].into());
        let first = Globals::new().renewed(&config("7"));
        assert_eq!(
            (first.max_idle_ms, first.renewed(&config("7"))),
            (7, first.clone())
        );
        assert_eq!(first.renewed(&config("8")).max_idle_ms, 8);
        assert_eq!(Globals::new().renewed(&Smap::default()).max_idle_ms, 10_000);
    }

    #[test]
    fn waiting_ends_once() {
        let config = Smap([("flow-restore-wait".to_owned(), "true".to_owned())].into());
        assert!(Globals::read(&config, true).restore_wait);
        assert!(!Globals::read(&config, false).restore_wait);
        assert!(!Globals::read(&Smap::default(), true).restore_wait);
    }
}
