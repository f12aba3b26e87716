//! Texts of `dpif-netdev/pmd-stats-show`, `pmd-perf-show`, `pmd-rxq-show` and `upcall/show`, in the layout of
//! Open vSwitch. For scripts, caches that Heddle does not have (PHWOL, SMC, simple match) have lines with
//! zeros.

use crate::control::{Control, WorkerHandle};
use crate::counters::{INTERVAL_MS, WINDOW_MS, WorkerNumbers, whole_intervals};
use crate::perf::PerfWanted;
use crate::revalidator::RevalidatorCounts;
use heddle_datapath_api::{DropKind, QueueView, Snapshot, WorkerView};
use heddle_sys::Tsc;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

fn head(s: &mut String, w: &WorkerHandle) {
    let _ = writeln!(s, "pmd thread numa_id {} core_id {}:", w.numa, w.core);
}

/// Upcalls lost since the last clearing.
fn lost(w: &WorkerHandle) -> u64 {
    w.counters.drops.get(DropKind::Upcall).saturating_sub(w.base_lost)
}

fn since(w: &WorkerHandle) -> WorkerNumbers {
    w.counters.read().since(&w.base)
}

/// The processor whose worker is shown; `None`: all workers.
pub(crate) type Core = Option<usize>;

fn chosen(c: &Control, core: Core) -> impl Iterator<Item = (usize, &WorkerHandle)> {
    let all = c.workers.iter().enumerate();
    all.filter(move |(_, w)| core.is_none_or(|core| core == w.core))
}

/// `dpif-netdev/pmd-stats-show`.
pub(crate) fn pmd_stats(c: &Control, core: Core) -> String {
    let mut s = String::new();
    for (_, w) in chosen(c, core) {
        head(&mut s, w);
        let n = since(w);
        let lost = lost(w);
        let _ = write!(
            s,
            "  packets received: {}\n  packet recirculations: {}\n  avg. datapath passes per packet: {:.2}\n  \
             phwol hits: 0\n  mfex opt hits: 0\n  simple match hits: 0\n  emc hits: {}\n  smc hits: 0\n  \
             megaflow hits: {}\n  avg. subtable lookups per megaflow hit: {:.2}\n  \
             miss with success upcall: {}\n  miss with failed upcall: {}\n  avg. packets per output batch: {:.2}\n",
            n.packets,
            n.recirculated,
            ratio(n.packets + n.recirculated, n.packets),
            n.l0_hits + n.l1_hits,
            n.l2_hits,
            ratio(n.l2_probes, n.l2_hits),
            n.misses,
            lost,
            ratio(n.tx_packets, n.tx_batches),
        );
        let total = n.cycles_busy + n.cycles_idle;
        if total == 0 {
            continue;
        }
        let _ = write!(
            s,
            "  idle cycles: {} ({:.2}%)\n  processing cycles: {} ({:.2}%)\n",
            n.cycles_idle,
            100.0 * ratio(n.cycles_idle, total),
            n.cycles_busy,
            100.0 * ratio(n.cycles_busy, total),
        );
        if n.packets > 0 {
            let _ = write!(
                s,
                "  avg cycles per packet: {:.2} ({total}/{})\n  avg processing cycles per packet: {:.2} ({}/{})\n",
                ratio(total, n.packets),
                n.packets,
                ratio(n.cycles_busy, n.packets),
                n.cycles_busy,
                n.packets,
            );
        }
    }
    s
}

/// `dpif-netdev/pmd-perf-show`. `now` is the wall clock as `HH:MM:SS.mmm`.
pub(crate) fn pmd_perf(c: &Control, core: Core, now: &str, wanted: PerfWanted) -> String {
    let mut s = String::new();
    let now_ms = c.shared.clock.now_ms();
    for (_, w) in chosen(c, core) {
        let n = since(w);
        let ms_since_clear = now_ms.saturating_sub(w.cleared_ms);
        let secs = (ms_since_clear as f64 / 1000.0).max(0.001);
        let us = 1e6 / Tsc::hz() as f64;
        let used = n.cycles_busy + n.cycles_idle;
        let pct = |a: u64, b: u64| 100.0 * ratio(a, b);
        let _ = write!(s, "\nTime: {now}\nMeasurement duration: {secs:.3} s\n\n");
        head(&mut s, w);
        let _ = write!(
            s,
            "\n  Iterations:         {:12}  ({:.2} us/it)\n  - Used TSC cycles:  {used:12}  ({:5.1} % of total cycles)\n  \
             - idle iterations:  {:12}  ({:5.1} % of used cycles)\n  \
             - busy iterations:  {:12}  ({:5.1} % of used cycles)\n  \
             - sleep iterations: {:12}  ({:5.1} % of iterations)\n  \
             Sleep time (us):    {:12.0}  ({:3.0} us/iteration avg.)\n",
            n.iterations,
            ratio(used + n.cycles_asleep, n.iterations) * us,
            100.0 * used as f64 / secs / Tsc::hz() as f64,
            n.iterations.saturating_sub(n.iterations_busy),
            pct(n.cycles_idle, used),
            n.iterations_busy,
            pct(n.cycles_busy, used),
            n.sleeps,
            pct(n.sleeps, n.iterations),
            n.cycles_asleep as f64 * us,
            ratio(n.cycles_asleep, n.sleeps) * us,
        );
        if n.packets == 0 {
            let _ = writeln!(s, "  Rx packets:         {:12}", 0);
        } else {
            let lost = lost(w);
            let passes = n.packets + n.recirculated;
            let zero = |name: &str| format!("  - {name}{:>1$}  (  0.0 %)\n", 0, 30 - name.len());
            let _ = write!(
                s,
                "  Rx packets:         {:12}  ({:.0} Kpps, {:.0} cycles/pkt)\n  \
                 Datapath passes:    {passes:12}  ({:.2} passes/pkt)\n{}{}{}  - EMC hits:         {:12}  ({:5.1} %)\n{}  \
                 - Megaflow hits:    {:12}  ({:5.1} %, {:.2} subtbl lookups/hit)\n  \
                 - Upcalls:          {:12}  ({:5.1} %, {:.1} us/upcall)\n  - Lost upcalls:     {lost:12}  ({:5.1} %)\n",
                n.packets,
                n.packets as f64 / secs / 1000.0,
                ratio(n.cycles_busy, n.packets),
                ratio(passes, n.packets),
                zero("PHWOL hits:"),
                zero("MFEX Opt hits:"),
                zero("Simple Match hits:"),
                n.l0_hits + n.l1_hits,
                pct(n.l0_hits + n.l1_hits, passes),
                zero("SMC hits:"),
                n.l2_hits,
                pct(n.l2_hits, passes),
                ratio(n.l2_probes, n.l2_hits),
                n.misses,
                pct(n.misses, passes),
                ratio(n.cycles_translate, n.misses) * us,
                pct(lost, passes),
            );
        }
        if n.tx_packets == 0 {
            let _ = write!(s, "  Tx packets:         {:12}\n\n", 0);
        } else {
            let _ = write!(
                s,
                "  Tx packets:         {:12}  ({:.0} Kpps)\n  Tx batches:         {:12}  ({:.2} pkts/batch)\n",
                n.tx_packets,
                n.tx_packets as f64 / secs / 1000.0,
                n.tx_batches,
                ratio(n.tx_packets, n.tx_batches),
            );
        }
        let metrics = c.shared.perf_metrics.load(Relaxed);
        if !wanted.brief {
            if metrics {
                s.push('\n');
                w.counters.perf.read().since(&w.base_perf).show(&mut s);
            }
            stages(&mut s, &n);
        }
        if metrics {
            let perf = &w.counters.perf;
            perf.show_last(&mut s, wanted.iterations, wanted.milliseconds);
        }
    }
    s
}

/// Cycles per packet by stage.
pub(crate) fn stages(s: &mut String, n: &WorkerNumbers) {
    if n.packets == 0 {
        return;
    }
    s.push_str("  Cycles per packet by stage:\n");
    let all = [
        ("rx", n.cycles_rx),
        ("parse", n.cycles_parse),
        ("lookup", n.cycles_lookup),
        ("translate", n.cycles_translate),
        ("execute", n.cycles_exec),
        ("tx", n.cycles_tx),
    ];
    for (name, cycles) in all {
        let _ = writeln!(
            s,
            "  - {:<18}{:12.1}",
            format!("{name}:"),
            ratio(cycles, n.packets)
        );
    }
}

/// `dpif-netdev/pmd-rxq-show`: usage over the last `secs` (at most a minute; 0: a minute), or since the
/// worker started.
pub(crate) fn pmd_rxq(c: &Control, core: Core, secs: u64) -> String {
    let now_ms = c.shared.clock.now_ms();
    let window_ms = match secs.saturating_mul(1000) {
        ms if ms == 0 || ms > WINDOW_MS => WINDOW_MS,
        ms => ms.next_multiple_of(INTERVAL_MS),
    };
    let mut s = String::new();
    for (_, w) in chosen(c, core) {
        if s.is_empty() {
            let _ = writeln!(s, "Displaying last {} seconds pmd usage %", window_ms / 1000);
        }
        let _ = write!(
            s,
            "pmd thread numa_id {} core_id {}:\n  isolated : {}\n",
            w.numa, w.core, w.isolated
        );
        // No usage is shown before the first whole interval.
        let total = Tsc::from_us(whole_intervals(now_ms, w.started_ms, window_ms) * INTERVAL_MS * 1000);
        let mut queues = 0;
        let mut in_queues = 0;
        let mut ports: Vec<_> = c.ports.values().filter(|p| p.port.is_pmd()).collect();
        ports.sort_by_key(|p| p.port.name().to_owned());
        for p in ports {
            for r in p.rx.iter().filter(|r| r.worker == Some(w.id)) {
                queues += 1;
                let cycles = r.shared.usage.sum(now_ms, window_ms);
                in_queues += cycles;
                let _ = write!(
                    s,
                    "  port: {:<16}  queue-id: {:2} {}  pmd usage: ",
                    p.port.name(),
                    r.queue,
                    if p.port.rxq_enabled(r.queue) {
                        "(enabled) "
                    } else {
                        "(disabled)"
                    },
                );
                usage(&mut s, cycles, total);
                // Tests of Open vSwitch compare the text for pretended ports.
                if let Some(numa) = p.config.numa.filter(|numa| *numa != w.numa)
                    && !p.port.port_type().pretended
                {
                    s.truncate(s.trim_end().len());
                    let _ = writeln!(s, "  (the port is on numa_id {numa})");
                }
            }
        }
        if queues > 0 {
            s.push_str("  overhead: ");
            usage(
                &mut s,
                w.counters.usage.sum(now_ms, window_ms).saturating_sub(in_queues),
                total,
            );
        }
    }
    s
}

/// `dpif-netdev/pmd-sleep-show`.
pub(crate) fn pmd_sleep(c: &Control) -> String {
    // Open vSwitch has no text for the difference between 0 and unset: there both poll for ever.
    let text = |max: Option<u64>| match max {
        None => "   0 us (not set: sleeps until woken)".to_owned(),
        Some(0) => "   0 us (never sleeps)".to_owned(),
        Some(us) => format!("{us:4} us"),
    };
    let mut s = format!("Default max sleep: {}\n", text(c.max_sleep.default_us));
    for w in &c.workers {
        head(&mut s, w);
        let max = c.max_sleep.of(w.core);
        let _ = writeln!(s, "  max sleep: {}", text(max));
    }
    s
}

/// Counters of workers and queues.
pub(crate) fn snapshot(c: &Control) -> Snapshot {
    let now_ms = c.shared.clock.now_ms();
    let worker = |w: &WorkerHandle| WorkerView {
        id: w.id,
        core: w.core,
        numa: w.numa,
        isolated: w.isolated,
        counters: w.counters.read().named(),
    };
    let mut queues = Vec::new();
    for p in c.ports.values() {
        for r in &p.rx {
            let w = r.worker.and_then(|id| c.workers.iter().find(|w| w.id == id));
            let lived = w.map_or(0, |w| whole_intervals(now_ms, w.started_ms, WINDOW_MS));
            let total = Tsc::from_us(lived * INTERVAL_MS * 1000);
            let cycles = r.shared.usage.sum(now_ms, lived * INTERVAL_MS);
            queues.push(QueueView {
                port: p.port.name().to_owned(),
                queue: r.queue,
                core: w.map(|w| w.core),
                percent: (lived > 0).then(|| 100.0 * ratio(cycles, total)),
                numa: p.config.numa,
            });
        }
    }
    Snapshot {
        tsc: Tsc::now(),
        tsc_hz: Tsc::hz(),
        workers: c.workers.iter().map(worker).collect(),
        queues,
    }
}

fn usage(s: &mut String, cycles: u64, total: u64) {
    let _ = match cycles.saturating_mul(100).checked_div(total) {
        None => writeln!(s, "NOT AVAIL"),
        Some(percent) => writeln!(s, "{:2} %", percent.min(100)),
    };
}

/// The lines of `upcall/show` below the datapath's name.
pub(crate) fn upcalls(c: &Control, n: &RevalidatorCounts) -> String {
    let flows = c.shared.n_flows.load(Relaxed);
    let avg = n.sum_flows.checked_div(n.passes).unwrap_or(0);
    let limit = c.shared.flow_limit.load(Relaxed);
    let max = n.max_flows.max(flows as u64);
    let mut s = format!(
        "  flows         : (current {flows}) (avg {avg}) (max {max}) (limit {limit})\n  \
         dump duration : {}ms\n  ufid enabled : true\n\n",
        n.last_pass_ms
    );
    for (i, w) in c.workers.iter().enumerate() {
        let _ = writeln!(s, "  {i}: (keys {})", w.counters.flows.get());
    }
    s
}
