//! `qos/*`: queues of devices. There are none here yet: types of QoS are accepted in the database and do
//! nothing.

use super::Commands;
use crate::switch::Switch;

pub(super) fn register(c: &Commands<'_>) {
    c.add("qos/show", "interface", (1, 1), |s, args| {
        let name = interface(s, args)?;
        Ok(format!("QoS not configured on {name}\n"))
    });
    c.add("qos/show-types", "interface", (1, 1), |s, args| {
        interface(s, args)?;
        Ok(String::new())
    });
}

fn interface<'a>(switch: &Switch, args: &[&'a str]) -> Result<&'a str, String> {
    let name = args.first().copied().unwrap_or_default();
    let known = switch.inventory.read().interfaces.contains_key(name);
    known.then_some(name).ok_or_else(|| "no such interface".into())
}
