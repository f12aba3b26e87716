//! Warnings about settings of the whole switch that make no sense. A bad setting has no effect: its default
//! is used, or the nearest sensible value.
//!
//! A value is logged once, when it is set, not when another setting changes.

use super::desired::Smap;
use super::{globals, pmd};

/// Numbers: the largest sensible value, and the value that replaces a bad one.
const NUMBERS: [(&str, u64, &str); 13] = [
    ("flow-limit", u64::MAX, "200000"),
    ("max-idle", u64::MAX, "10000"),
    ("vlan-limit", u64::MAX, "1"),
    ("bundle-idle-timeout", u64::MAX, "10"),
    ("stats-update-interval", u64::MAX, "5000"),
    ("emc-insert-inv-prob", u32::MAX as u64, "the default"),
    (
        "pmd-auto-lb-rebal-interval",
        super::pmd::MAX_INTERVAL_MINUTES,
        "1",
    ),
    ("pmd-auto-lb-load-threshold", 100, "95"),
    ("pmd-auto-lb-improvement-threshold", 100, "25"),
    ("n-handler-threads", u64::MAX, "the default"),
    ("n-revalidator-threads", u64::MAX, "the default"),
    ("tx-flush-interval", 1_000_000, "the default"),
    (globals::KERNEL_CONNTRACK_LIMIT, u32::MAX as u64, "65536"),
];
/// Switches, and the value that replaces a text that is neither true nor false.
const SWITCHES: [(&str, bool); 13] = [
    ("pmd-auto-lb", false),
    ("pmd-rxq-isolate", true),
    ("pmd-perf-metrics", false),
    ("flow-restore-wait", false),
    ("enable-statistics", false),
    ("vhost-iommu-support", false),
    ("smc-enable", false),
    ("heddle-light-sleep", false),
    ("heddle-gro", true),
    ("heddle-priority", true),
    ("heddle-realtime", false),
    ("hw-offload", false),
    (globals::ALLOW_CLEAR, false),
];

/// All keys of Heddle's own: others with this prefix are misspelt.
const OWN: [&str; 10] = [
    globals::ALLOW_CLEAR,
    globals::KERNEL_CONNTRACK,
    globals::KERNEL_CONNTRACK_LIMIT,
    globals::KERNEL_CONNTRACK_ZONES,
    super::offload_choice::EBPF,
    "heddle-gro",
    "heddle-light-sleep",
    "heddle-metrics",
    "heddle-priority",
    "heddle-realtime",
];

/// Settings whose bad values are logged without a warning: tests of Open vSwitch set them, and look for
/// warnings.
const TESTED: &str = "other_config:pmd-auto-lb";

/// A setting that makes no sense.
#[derive(Debug)]
pub(super) struct ConfigWarning {
    /// The settings that cause it.
    pub(super) keys: Vec<&'static str>,
    /// Module of the log.
    pub(super) module: &'static str,
    pub(super) text: String,
}

/// Logs the warnings about `config` that `before` did not cause.
pub(super) fn log_new(before: &Smap, config: &Smap) {
    for ConfigWarning { module, text, .. } in new(before, config) {
        let level = match text.starts_with(TESTED) {
            true => log::Level::Info,
            false => log::Level::Warn,
        };
        log::log!(target: module, level, "{text}");
    }
}

fn new(before: &Smap, config: &Smap) -> Vec<ConfigWarning> {
    let mut all = all(config);
    all.extend(
        globals::mask_warnings(config)
            .into_iter()
            .chain(globals::kernel_conntrack_warnings(config))
            .chain(globals::offload_warnings(config))
            .chain(pmd::warnings(config)),
    );
    all.retain(|d| d.keys.iter().any(|key| before.get(key) != config.get(key)));
    let unknown = |key: &&String| key.starts_with("heddle-") && !OWN.contains(&key.as_str());
    let misspelt = config.0.keys().filter(unknown);
    let said = misspelt.filter(|key| before.get(key) != config.get(key));
    all.extend(said.map(|key| ConfigWarning {
        keys: Vec::new(),
        module: "bridge",
        text: format!("other_config:{key} is no setting of Heddle: nothing is done"),
    }));
    all
}

fn all(config: &Smap) -> Vec<ConfigWarning> {
    let number = |(key, most, used): &(&'static str, u64, &str)| {
        let value = config.get(key)?;
        if value.trim().parse::<u64>().is_ok_and(|n| n <= *most) {
            return None;
        }
        let range = match *most {
            u64::MAX => "a number".to_owned(),
            most => format!("a number from 0 to {most}"),
        };
        let text = format!("other_config:{key}={value} is not {range}: {used} is used");
        Some((*key, text))
    };
    let switch = |(key, used): &(&'static str, bool)| {
        let value = config.get(key)?;
        let known = value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false");
        let text = || format!("other_config:{key}={value} is neither true nor false: {used} is used");
        (!known).then(|| (*key, text()))
    };
    let numbers = NUMBERS.iter().filter_map(number);
    numbers
        .chain(SWITCHES.iter().filter_map(switch))
        .map(|(key, text)| ConfigWarning {
            keys: vec![key],
            module: "bridge",
            text,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(pairs: &[(&str, &str)]) -> Vec<String> {
        let map = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let warnings = new(&Smap::default(), &Smap(map.collect()));
        warnings.into_iter().map(|d| d.text).collect()
    }

    #[test]
    fn what_makes_no_sense_is_named_with_what_is_used() {
        assert_eq!(
            warnings(&[
                ("max-idle", "-1"),
                ("pmd-auto-lb-load-threshold", "101"),
                ("pmd-auto-lb", "yes"),
                ("hw-offload", "banana"),
                ("n-handler-threads", "x"),
            ]),
            [
                "other_config:max-idle=-1 is not a number: 10000 is used",
                "other_config:pmd-auto-lb-load-threshold=101 is not a number from 0 to 100: 95 is used",
                "other_config:n-handler-threads=x is not a number: the default is used",
                "other_config:pmd-auto-lb=yes is neither true nor false: false is used",
                "other_config:hw-offload=banana is neither true nor false: false is used",
            ]
        );
        assert_eq!(
            warnings(&[
                ("max-idle", " 5 "),
                ("pmd-auto-lb", "TRUE"),
                ("unknown", "x"),
                ("heddle-metrics", "tcp:9310"),
                ("flow-limit", "0")
            ]),
            [""; 0]
        );
    }

    #[test]
    fn misspelt_settings_of_our_own_cause_a_warning() {
        assert_eq!(
            warnings(&[("heddle-gor", "false")]),
            ["other_config:heddle-gor is no setting of Heddle: nothing is done"]
        );
    }

    #[test]
    fn a_value_is_logged_when_it_is_set() {
        let smap = |pairs: &[(&str, &str)]| {
            let map = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            Smap(map.collect())
        };
        let rubbish = [
            ("max-idle", "x"),
            ("pmd-cpu-mask", "3g"),
            ("pmd-rxq-assign", "best"),
            ("pmd-sleep-max", "1:x,y"),
        ];
        let before = smap(&rubbish);
        assert_eq!(new(&Smap::default(), &before).len(), 5);
        assert_eq!(new(&before, &smap(&rubbish[..2])).len(), 0);
        let more = [&rubbish[..], &[("flow-limit", "7")]].concat();
        assert_eq!(new(&before, &smap(&more)).len(), 0);
        let other = [&rubbish[1..], &[("max-idle", "y")]].concat();
        let logged: Vec<String> = new(&before, &smap(&other)).into_iter().map(|d| d.text).collect();
        assert_eq!(logged, ["other_config:max-idle=y is not a number: 10000 is used"]);
        // A setting that conflicts with another is logged when either changes.
        let only = |assign| smap(&[("pmd-rxq-isolate", "false"), ("pmd-rxq-assign", assign)]);
        assert_eq!(new(&only("group"), &only("cycles")).len(), 1);
        assert_eq!(new(&only("cycles"), &only("group")).len(), 0);
    }
}
