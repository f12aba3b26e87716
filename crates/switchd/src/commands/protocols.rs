//! Commands of protocols that this switch does not have (bonds by hash, LACP, STP, RSTP, CFM, LLDP). They
//! reply as Open vSwitch does if no such protocol is configured. Scripts that collect a switch's state call
//! all of them.

use super::Commands;
use crate::reconcile::parse_mac;
use heddle_daemon::unixctl::Reply;
use heddle_flow::hash;

pub(super) fn register(c: &Commands<'_>) {
    // Lists that are empty, whatever bridge or port is named.
    for name in ["show-isid", "statistics", "status"] {
        c.add(&format!("autoattach/{name}"), "[bridge]", (0, 1), |_, _| {
            Ok(String::new())
        });
    }
    // Empty lists without an argument, an error for any name.
    for (name, usage, why) in [
        ("bond/show", "[port]", NO_BOND),
        ("cfm/show", "[interface]", NO_CFM),
        ("lacp/show", "[port]", NO_LACP),
        ("lacp/show-stats", "[port]", NO_LACP),
        ("stp/show", "[bridge]", NO_STP),
        ("rstp/show", "[bridge]", NO_RSTP),
    ] {
        c.add(name, usage, (0, 1), move |_, args| no_such(args, "", why));
    }
    for (name, why) in [("stp/tcn", NO_STP), ("rstp/tcn", NO_RSTP)] {
        c.add(name, "[bridge]", (0, 1), move |_, args| no_such(args, "OK", why));
    }
    c.add("bond/list", "", (0, 0), |_, _| {
        Ok("bond\ttype\trecircID\tmembers\n".into())
    });
    c.add("bond/migrate", "port hash member", (3, 3), |_, _| {
        Err(NO_BOND.into())
    });
    for name in ["set-active", "enable", "disable"] {
        c.add(&format!("bond/{name}-member"), "port member", (2, 2), |_, _| {
            Err(NO_BOND.into())
        });
    }
    c.add("bond/hash", "mac [vlan] [basis]", (1, 3), |_, args| {
        bond_hash(args)
    });
    c.add(
        "cfm/set-fault",
        "[interface] normal|false|true",
        (1, 2),
        |_, args| match args {
            [_, _, ..] => Err(NO_CFM.into()),
            ["normal" | "false" | "true"] => Ok("OK".into()),
            _ => Err("unknown fault string".into()),
        },
    );
}

const NO_BOND: &str = "no such bond";
const NO_CFM: &str = "no such CFM object";
const NO_LACP: &str = "no such lacp object";
const NO_STP: &str = "no such stp object";
const NO_RSTP: &str = "No such RSTP object";

fn no_such(args: &[&str], all: &str, why: &str) -> Reply {
    match args {
        [] => Ok(all.into()),
        _ => Err(why.into()),
    }
}

/// Returns the bucket (0 to 255) into which a bond hashes packets with this source address and VLAN.
fn bond_hash(args: &[&str]) -> Reply {
    let number = |i: usize, why: &str| match args.get(i) {
        None => Ok(0),
        Some(text) => text.parse::<u32>().map_err(|_| why.to_owned()),
    };
    let vlan = number(1, "invalid vlan")?;
    let basis = number(2, "invalid basis")?;
    let mac = args
        .first()
        .and_then(|text| parse_mac(text))
        .ok_or("invalid mac")?;
    let mac = mac.into_iter().fold(0, |all, byte| all << 8 | u64::from(byte));
    let key = u64::from(vlan & 0xffff) << 48 | mac;
    Ok(format!("{}", hash::bytes(&key.to_le_bytes(), basis) & 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers and errors are those of Open vSwitch's daemon.
    #[test]
    fn buckets_of_bonds() {
        assert_eq!(bond_hash(&["00:00:00:00:00:01"]), Ok("68".into()));
        assert_eq!(bond_hash(&["00:00:00:00:00:01", "5", "7"]), Ok("87".into()));
        assert_eq!(bond_hash(&["zz"]), Err("invalid mac".into()));
        assert_eq!(bond_hash(&["00:00:00:00:00:01", "x"]), Err("invalid vlan".into()));
        assert_eq!(
            bond_hash(&["00:00:00:00:00:01", "5", "x"]),
            Err("invalid basis".into())
        );
    }
}
