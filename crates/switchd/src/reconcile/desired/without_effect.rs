//! Settings that the database accepts and the switch ignores: one table. Each of them is one line of the log,
//! and `heddle advise --live` finds it (command `heddle/without-effect`), so that no operator relies on it
//! unwarned. A spanning tree that does not run, for example, leaves a loop.

use heddle_ovsdb::{Db, Row};
use log::Level;

use super::{opt_text, text, value};
use crate::inventory::WithoutEffect;

/// The condition under which a column or key has a setting.
#[derive(Clone, Copy)]
enum Condition {
    /// A true boolean.
    Column,
    /// A column that is not empty.
    Any,
    /// A column with this text.
    Text(&'static str),
    /// A false boolean.
    ColumnFalse,
    /// The key is there, in the map of the column.
    Key(&'static str),
    /// The key is there, and the interface has no sockets of AF_XDP.
    KeyOfOthers(&'static str),
    /// The key has this value.
    KeyIs(&'static str, &'static str),
    /// The key has another value.
    KeyNot(&'static str, &'static str),
}

/// Table, column, condition, consequence. `Warn`: packets are forwarded differently than the setting
/// requires.
type Setting = (&'static str, &'static str, Condition, Level, &'static str);

const LOOP: &str = "no spanning tree runs: a loop of links floods for ever";
const DPDK: &str = "there is no DPDK here";
const PAUSE: &str = "pause frames are set with ethtool -A";
const TC_FIRST: &str = "flows are offered to tc first, then to eBPF";
const OTHER: &str = "other_config";

#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    ("Open_vSwitch", OTHER, Condition::Key("dpdk-alloc-mem"), Level::Info, DPDK),
    ("Open_vSwitch", OTHER, Condition::Key("dpdk-extra"), Level::Info, DPDK),
    ("Open_vSwitch", OTHER, Condition::Key("dpdk-hugepage-dir"), Level::Info, DPDK),
    ("Open_vSwitch", OTHER, Condition::Key("dpdk-lcore-mask"), Level::Info, DPDK),
    ("Open_vSwitch", OTHER, Condition::Key("dpdk-socket-limit"), Level::Info, DPDK),
    ("Open_vSwitch", OTHER, Condition::Key("dpdk-socket-mem"), Level::Info, DPDK),
    ("Open_vSwitch", OTHER, Condition::Key("hw-offload-priority"), Level::Info, TC_FIRST),
    ("Open_vSwitch", OTHER, Condition::Key("max-revalidator"), Level::Info, "revalidation has its own pace"),
    ("Open_vSwitch", OTHER, Condition::Key("min-revalidate-pps"), Level::Info, "revalidation has its own pace"),
    ("Open_vSwitch", OTHER, Condition::Key("n-offload-threads"), Level::Info, "one thread offloads flows"),
    ("Open_vSwitch", OTHER, Condition::KeyIs("offload-rebalance", "true"), Level::Info, "offloaded flows are not rebalanced"),
    ("Open_vSwitch", OTHER, Condition::KeyIs("per-port-memory", "true"), Level::Info, "packets need no memory pools"),
    ("Open_vSwitch", OTHER, Condition::Key("shared-mempool-config"), Level::Info, "packets need no memory pools"),
    ("Open_vSwitch", OTHER, Condition::KeyIs("smc-enable", "true"), Level::Info, "there is no signature match cache"),
    ("Open_vSwitch", OTHER, Condition::KeyNot("tx-flush-interval", "0"), Level::Info, "each burst is sent at once"),
    ("Bridge", "stp_enable", Condition::Column, Level::Warn, LOOP),
    ("Bridge", "rstp_enable", Condition::Column, Level::Warn, LOOP),
    ("Bridge", "netflow", Condition::Any, Level::Warn, "no NetFlow records are sent; use ipfix"),
    ("Bridge", "sflow", Condition::Any, Level::Warn, "no sFlow samples are sent; use ipfix"),
    ("Bridge", "auto_attach", Condition::Any, Level::Warn, "no mappings are requested"),
    ("Bridge", OTHER, Condition::Key("in-band-queue"), Level::Info, "there is no in-band control"),
    ("Port", OTHER, Condition::Key("bond-miimon-interval"), Level::Info, "the kernel reports a link's changes at once"),
    ("Interface", "cfm_mpid", Condition::Any, Level::Warn, "no continuity checks are sent"),
    ("Interface", "lldp", Condition::KeyIs("enable", "true"), Level::Warn, "no LLDP is sent"),
    ("Interface", OTHER, Condition::Key("hw-offload-priority"), Level::Info, TC_FIRST),
    ("Interface", OTHER, Condition::KeyOfOthers("heddle-xdp-pass"), Level::Info, "AF_XDP is for types afxdp and dpdk"),
    ("Interface", "options", Condition::KeyIs("rx-steering", "rss+lacp"), Level::Info, "the device's own hash chooses the queue"),
    ("Interface", "options", Condition::KeyOfOthers("n_rxq_desc"), Level::Info, "rings have the device's own size"),
    ("Interface", "options", Condition::KeyOfOthers("n_txq_desc"), Level::Info, "rings have the device's own size"),
    ("Interface", "options", Condition::Key("rx-flow-ctrl"), Level::Info, PAUSE),
    ("Interface", "options", Condition::Key("tx-flow-ctrl"), Level::Info, PAUSE),
    ("Interface", "options", Condition::Key("flow-ctrl-autoneg"), Level::Info, PAUSE),
    ("Interface", "options", Condition::KeyIs("dpdk-lsc-interrupt", "false"), Level::Info, "the kernel reports a link's changes at once"),
    ("Interface", "options", Condition::KeyOfOthers("xdp-mode"), Level::Info, "AF_XDP is for types afxdp and dpdk"),
    ("Interface", "options", Condition::KeyOfOthers("use-need-wakeup"), Level::Info, "AF_XDP is for types afxdp and dpdk"),
    ("Mirror", "filter", Condition::Any, Level::Warn, "every packet of its ports is mirrored"),
    ("Controller", "connection_mode", Condition::Text("in-band"), Level::Warn, "no hidden rules let the controller through"),
    ("Controller", "local_netmask", Condition::Any, Level::Info, "there is no in-band control"),
    ("Controller", "local_gateway", Condition::Any, Level::Info, "there is no in-band control"),
    ("Controller", "controller_rate_limit", Condition::Any, Level::Info, "packets for the controller are not limited; use meters"),
    ("Controller", "controller_burst_limit", Condition::Any, Level::Info, "packets for the controller are not limited; use meters"),
    ("Controller", "controller_queue_size", Condition::Any, Level::Info, "the queue has its own size"),
    ("Controller", "enable_async_messages", Condition::ColumnFalse, Level::Info, "the controller gets them"),
];

/// Tables that rows of `Bridge` refer to, with the referring column.
const REFERRED: [(&str, &str); 3] = [
    ("Port", "ports"),
    ("Mirror", "mirrors"),
    ("Controller", "controller"),
];

/// All settings without effect.
pub(in crate::reconcile) fn list(db: &Db, top: &Row) -> Vec<WithoutEffect> {
    let mut all = Vec::new();
    of_row("Open_vSwitch", top, &mut all);
    for bridge in db.referenced(top, "bridges", "Bridge") {
        of_row("Bridge", bridge, &mut all);
        for (table, column) in REFERRED {
            for row in db.referenced(bridge, column, table) {
                of_row(table, row, &mut all);
                let interfaces = match table {
                    "Port" => db.referenced(row, "interfaces", "Interface"),
                    _ => Vec::new(),
                };
                interfaces.iter().for_each(|i| of_row("Interface", i, &mut all));
            }
        }
    }
    all
}

fn place(table: &str, row: &Row) -> String {
    match table {
        "Open_vSwitch" => table.to_owned(),
        "Controller" => format!("controller {}", text(row, "target")),
        _ => format!("{} {}", table.to_ascii_lowercase(), text(row, "name")),
    }
}

fn of_row(table: &str, row: &Row, all: &mut Vec<WithoutEffect>) {
    for (_, column, condition, level, effect) in SETTINGS.iter().filter(|(t, ..)| *t == table) {
        if let Some(setting) = name_if_set(row, column, *condition) {
            all.push(WithoutEffect {
                place: place(table, row),
                setting,
                effect,
                level: *level,
            });
        }
    }
}

/// Name of the setting, if the row has it.
fn name_if_set(row: &Row, column: &str, condition: Condition) -> Option<String> {
    let of_key = |key: &str, wants: &dyn Fn(&str) -> bool| {
        let map = row.map_str(column).ok()?;
        wants(map.get(key)?).then(|| match column {
            "lldp" => column.to_owned(),
            _ => format!("{column}:{key}"),
        })
    };
    let yes = |yes: bool| yes.then(|| column.to_owned());
    match condition {
        Condition::Column => yes(value(row.bool(column))),
        Condition::Any => yes(row.datum(column).is_ok_and(|d| !d.is_empty())),
        Condition::ColumnFalse => yes(matches!(row.opt_bool(column), Ok(Some(false)))),
        Condition::Text(wanted) => yes(opt_text(row, column).is_some_and(|t| t == wanted)),
        Condition::Key(key) => of_key(key, &|_| true),
        Condition::KeyOfOthers(key) => {
            let ours = |kind: &str| kind == "dpdk" || kind.starts_with("afxdp");
            of_key(key, &|_| !ours(&text(row, "type")))
        }
        Condition::KeyIs(key, wanted) => of_key(key, &|v| v.eq_ignore_ascii_case(wanted)),
        Condition::KeyNot(key, default) => of_key(key, &|v| v != default),
    }
}

/// Logs each setting that is not among `before`, once.
pub(in crate::reconcile) fn log_without_effect(before: &[WithoutEffect], now: &[WithoutEffect]) {
    for new in now.iter().filter(|s| !before.contains(s)) {
        log::log!(target: "bridge", new.level, "{}: {} is not supported yet and changes nothing: {}",
            new.place, new.setting, new.effect);
    }
}
