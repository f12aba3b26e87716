//! Commands of protocols that this switch does not have (STP, RSTP, CFM, LLDP). They reply as Open vSwitch
//! does if no such protocol is configured. Scripts that collect a switch's state call all of them.

use super::Commands;
use heddle_daemon::unixctl::Reply;

pub(super) fn register(c: &Commands<'_>) {
    // Lists that are empty, whatever bridge or port is named.
    for name in ["show-isid", "statistics", "status"] {
        c.add(&format!("autoattach/{name}"), "[bridge]", (0, 1), |_, _| {
            Ok(String::new())
        });
    }
    // Empty lists without an argument, an error for any name.
    for (name, usage, why) in [
        ("cfm/show", "[interface]", NO_CFM),
        ("stp/show", "[bridge]", NO_STP),
        ("rstp/show", "[bridge]", NO_RSTP),
    ] {
        c.add(name, usage, (0, 1), move |_, args| no_such(args, "", why));
    }
    for (name, why) in [("stp/tcn", NO_STP), ("rstp/tcn", NO_RSTP)] {
        c.add(name, "[bridge]", (0, 1), move |_, args| no_such(args, "OK", why));
    }
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

const NO_CFM: &str = "no such CFM object";
const NO_STP: &str = "no such stp object";
const NO_RSTP: &str = "No such RSTP object";

fn no_such(args: &[&str], all: &str, why: &str) -> Reply {
    match args {
        [] => Ok(all.into()),
        _ => Err(why.into()),
    }
}
