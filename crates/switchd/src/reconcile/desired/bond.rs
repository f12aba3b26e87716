//! A port's settings of a bond and of LACP.

use heddle_ofproto::bond::{BondConfig, BondSettings, LacpSettings, LinkSettings, Mode};
use heddle_openflow::Port as OfPort;
use heddle_ovsdb::Row;

use super::{InterfaceRow, Smap, opt_text, value};
use crate::reconcile::mac::parse_mac;

const DEFAULT_REBALANCE_MS: u64 = 10_000;
/// A shorter interval of rebalancing is made this long.
const MIN_REBALANCE_MS: u64 = 1000;
/// Priority of systems that have one link, and of those with several.
const SINGLE_PRIORITY: u16 = u16::MAX;
const BOND_PRIORITY: u16 = u16::MAX - 1;

/// A port's bond and its LACP. `None`: it has one interface, and speaks no LACP. `name` is the port's; a
/// system without an id of its own uses the address of its bridge, which is not known here: zero.
pub(super) fn read(row: &Row, name: &str, interfaces: usize, floods_vlans: bool) -> Option<BondConfig> {
    let other_config = Smap(value(row.map_str("other_config")));
    let bond = (interfaces > 1).then(|| bond(row, name, &other_config, floods_vlans));
    let lacp = lacp(row, name, &other_config, interfaces);
    (bond.is_some() || lacp.is_some()).then_some(BondConfig { bond, lacp })
}

fn bond(row: &Row, name: &str, other_config: &Smap, floods_vlans: bool) -> BondSettings {
    let default = Mode::default();
    let mode = match opt_text(row, "bond_mode") {
        Some(text) => Mode::parse(&text).unwrap_or_else(|| {
            log::warn!(target: "bridge", "port {name}: unknown bond_mode {text}, defaulting to {}", default.name());
            default
        }),
        None => default,
    };
    if mode == Mode::BalanceSlb && floods_vlans {
        log::warn!(target: "bridge", "port {name}: SLB bonds are incompatible with flood_vlans, \
            please use another bond type or disable flood_vlans");
    }
    if let Some(detect) = other_config.get("bond-detect-mode")
        && !matches!(detect, "carrier" | "miimon")
    {
        log::warn!(target: "bridge", "port {name}: unsupported bond-detect-mode {detect}, defaulting to carrier");
    }
    let delay_ms = |column| u64::try_from(value(row.int(column))).unwrap_or(0);
    let interval_ms = other_config.get("bond-rebalance-interval");
    let rebalance_ms = match interval_ms.map(|ms| ms.trim().parse::<i64>()) {
        None | Some(Err(_)) => DEFAULT_REBALANCE_MS,
        Some(Ok(0)) => 0,
        Some(Ok(ms)) => u64::try_from(ms).unwrap_or(0).max(MIN_REBALANCE_MS),
    };
    let basis = other_config
        .get("bond-hash-basis")
        .and_then(|b| b.trim().parse::<i32>().ok());
    let fallback = other_config.bool("lacp-fallback-ab", false);
    let primary = other_config
        .get("bond-primary")
        .filter(|_| mode == Mode::ActiveBackup || fallback);
    BondSettings {
        mode,
        updelay_ms: delay_ms("bond_updelay"),
        downdelay_ms: delay_ms("bond_downdelay"),
        rebalance_ms,
        basis: basis.map_or(0, i32::cast_unsigned),
        fallback,
        all_members_active: other_config.bool("all-members-active", false),
        primary: primary.map(str::to_owned),
        lb_output: mode == Mode::BalanceTcp && other_config.bool("lb-output-action", false),
        last_active: opt_text(row, "bond_active_slave")
            .as_deref()
            .and_then(parse_mac)
            .unwrap_or_default(),
    }
}

fn lacp(row: &Row, name: &str, other_config: &Smap, interfaces: usize) -> Option<LacpSettings> {
    let active = match opt_text(row, "lacp").as_deref() {
        None | Some("off") => return None,
        Some("active") => true,
        Some("passive") => false,
        Some(other) => {
            log::warn!(target: "bridge", "port {name}: unknown LACP mode {other}");
            return None;
        }
    };
    let sys_id = match other_config.get("lacp-system-id") {
        None => [0; 6],
        Some(text) => match parse_mac(text) {
            Some(id) if id != [0; 6] => id,
            Some(_) => {
                log::warn!(target: "bridge", "port {name}: Invalid zero LACP system ID.");
                return None;
            }
            None => {
                log::warn!(target: "bridge", "port {name}: LACP system ID ({text}) must be an Ethernet address.");
                return None;
            }
        },
    };
    let default_priority = if interfaces > 1 {
        BOND_PRIORITY
    } else {
        SINGLE_PRIORITY
    };
    Some(LacpSettings {
        name: name.to_owned(),
        sys_id,
        sys_priority: number(other_config, "lacp-system-priority").unwrap_or(default_priority),
        active,
        fast: other_config
            .get("lacp-time")
            .is_some_and(|t| t.eq_ignore_ascii_case("fast")),
        fallback: other_config.bool("lacp-fallback-ab", false),
    })
}

/// A number from 1 to 65535.
fn number(map: &Smap, key: &str) -> Option<u16> {
    let number = map.get(key)?.trim().parse().ok()?;
    Some(number).filter(|n| *n != 0)
}

impl InterfaceRow {
    /// The LACP settings of the interface, as port `no`.
    pub(in crate::reconcile) fn lacp_link(&self, no: OfPort) -> LinkSettings {
        let map = &self.other_config;
        LinkSettings {
            name: self.name.clone(),
            port_id: number(map, "lacp-port-id").unwrap_or(u16::try_from(no.0 & 0xffff).unwrap_or(0)),
            port_priority: number(map, "lacp-port-priority").unwrap_or(u16::MAX),
            key: number(map, "lacp-aggregation-key").unwrap_or(0),
        }
    }
}
