//! Statistics of the machine for `Open_vSwitch.statistics`, in the form that ovs-vswitchd.conf.db(5)
//! describes.

use std::fs;

/// Keys and values; values that the kernel does not report are left out.
pub(super) fn statistics(service: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    if let Ok(n) = std::thread::available_parallelism() {
        all.push(("cpu".to_owned(), n.to_string()));
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    if let [one, five, fifteen, ..] = load.split(' ').collect::<Vec<_>>().as_slice() {
        all.push(("load_average".to_owned(), format!("{one},{five},{fifteen}")));
    }
    if let Some(memory) = memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default()) {
        all.push(("memory".to_owned(), memory));
    }
    if let Some(process) = process() {
        all.push((format!("process_{service}"), process));
    }
    all
}

/// Total, used with and without caches, total swap, used swap, in kB.
fn memory(text: &str) -> Option<String> {
    let get = |key: &str| {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, free) = (get("MemTotal")?, get("MemFree")?);
    let cache = get("Buffers")? + get("Cached")?;
    let (swap, swap_free) = (get("SwapTotal")?, get("SwapFree")?);
    let used = total.saturating_sub(free);
    Some(format!(
        "{total},{used},{},{swap},{}",
        used.saturating_sub(cache),
        swap.saturating_sub(swap_free)
    ))
}

/// The statistics of this process: virtual and resident size in kB, processor time in ms, crashes, time since
/// the start twice, in ms.
fn process() -> Option<String> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks_ms = 1000 / 100;
    let cpu_ms = (field(14)? + field(15)?) * ticks_ms;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime_ms: f64 = uptime.split(' ').next()?.parse::<f64>().ok()? * 1000.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an uptime is a small number"
    )]
    let age_ms = (uptime_ms as u64).saturating_sub(field(22)? * ticks_ms);
    let (vsz, rss) = (field(23)? / 1024, field(24)? * 4);
    Some(format!("{vsz},{rss},{cpu_ms},0,{age_ms},{age_ms}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_kilobytes() {
        let text = "MemTotal: 100 kB\nMemFree: 30 kB\nBuffers: 5 kB\nCached: 15 kB\nSwapTotal: 8 kB\nSwapFree: 6 kB\n";
        assert_eq!(memory(text).as_deref(), Some("100,70,50,8,2"));
        assert_eq!(memory("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn the_machine_has_all_of_it() {
        let keys: Vec<String> = statistics("x").into_iter().map(|(k, _)| k).collect();
        assert_eq!(keys, ["cpu", "load_average", "memory", "process_x"]);
    }
}
