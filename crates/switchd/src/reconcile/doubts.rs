//! Settings of the whole switch that make no sense: said in the log when they are set. What they would set stays at its default, or at the nearest
//! sensible value; everything else holds.
//!
//! Settings with texts of their own (`pmd-cpu-mask`, `pmd-rxq-assign`, `pmd-sleep-max`) are told of where they are read.

use super::desired::Smap;

/// Numbers: the largest that makes sense, and what is used instead of anything else.
const NUMBERS: [(&str, u64, &str); 12] = [
    ("flow-limit", u64::MAX, "200000"),
    ("max-idle", u64::MAX, "10000"),
    ("vlan-limit", u64::MAX, "1"),
    ("bundle-idle-timeout", u64::MAX, "10"),
    ("stats-update-interval", u64::MAX, "5000"),
    ("emc-insert-inv-prob", u32::MAX as u64, "100"),
    ("pmd-auto-lb-rebal-interval", super::pmd::MOST_INTERVAL, "1"),
    ("pmd-auto-lb-load-threshold", 100, "95"),
    ("pmd-auto-lb-improvement-threshold", 100, "25"),
    ("n-handler-threads", u64::MAX, "nothing"),
    ("n-revalidator-threads", u64::MAX, "nothing"),
    ("tx-flush-interval", 1_000_000, "nothing"),
];
/// Switches, and what they are where they are neither.
const SWITCHES: [(&str, bool); 7] = [
    ("pmd-auto-lb", false),
    ("pmd-rxq-isolate", true),
    ("pmd-perf-metrics", false),
    ("flow-restore-wait", false),
    ("enable-statistics", false),
    ("vhost-iommu-support", false),
    ("smc-enable", false),
];

/// Settings whose nonsense is no warning: tests of Open vSwitch set it, and look for warnings.
const TESTED: &str = "other_config:pmd-auto-lb";

/// Tells of those in `config`.
pub(super) fn tell(config: &Smap) {
    for text in all(config) {
        let level = match text.starts_with(TESTED) {
            true => log::Level::Info,
            false => log::Level::Warn,
        };
        log::log!(target: "bridge", level, "{text}");
    }
}

fn all(config: &Smap) -> Vec<String> {
    let number = |(key, most, used): &(&str, u64, &str)| {
        let value = config.get(key)?;
        if value.trim().parse::<u64>().is_ok_and(|n| n <= *most) {
            return None;
        }
        let range = match *most {
            u64::MAX => "a number".to_owned(),
            most => format!("a number from 0 to {most}"),
        };
        Some(format!(
            "other_config:{key}={value} is not {range}: {used} is used"
        ))
    };
    let switch = |(key, used): &(&str, bool)| {
        let value = config.get(key)?;
        let known = value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false");
        (!known).then(|| format!("other_config:{key}={value} is neither true nor false: {used} is used"))
    };
    NUMBERS
        .iter()
        .filter_map(number)
        .chain(SWITCHES.iter().filter_map(switch))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubts(pairs: &[(&str, &str)]) -> Vec<String> {
        let map = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        all(&Smap(map.collect()))
    }

    #[test]
    fn what_makes_no_sense_is_named_with_what_is_used() {
        assert_eq!(
            doubts(&[
                ("max-idle", "-1"),
                ("pmd-auto-lb-load-threshold", "101"),
                ("pmd-auto-lb", "yes")
            ]),
            [
                "other_config:max-idle=-1 is not a number: 10000 is used",
                "other_config:pmd-auto-lb-load-threshold=101 is not a number from 0 to 100: 95 is used",
                "other_config:pmd-auto-lb=yes is neither true nor false: false is used",
            ]
        );
        assert_eq!(
            doubts(&[
                ("max-idle", " 5 "),
                ("pmd-auto-lb", "TRUE"),
                ("unknown", "x"),
                ("flow-limit", "0")
            ]),
            [""; 0]
        );
    }
}
