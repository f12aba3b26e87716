//! `qos/*`: queues of devices.

use std::fmt::Write as _;
use std::sync::Arc;

use heddle_port::{Port, QosConfig};
use heddle_sys::QueueCounts;

use super::Commands;
use crate::switch::Switch;

pub(super) fn register(c: &Commands<'_>) {
    c.add("qos/show", "interface", (1, 1), |s, args| {
        let (name, device) = interface(s, args)?;
        Ok(match device.as_ref().and_then(|d| Some((d, d.qos()?))) {
            Some((device, qos)) => show(name, &qos, &device.queue_counts()),
            None => format!("QoS not configured on {name}\n"),
        })
    });
    c.add("qos/show-types", "interface", (1, 1), |s, args| {
        let (name, device) = interface(s, args)?;
        let types = device.map_or(&[][..], |d| d.qos_types());
        if types.is_empty() {
            return Ok(format!("No QoS types supported for interface: {name}\n"));
        }
        Ok(types.iter().map(|t| format!("QoS type: {t}\n")).collect())
    });
}

type Interface<'a> = (&'a str, Option<Arc<dyn Port>>);

fn interface<'a>(switch: &Switch, args: &[&'a str]) -> Result<Interface<'a>, String> {
    let name = args.first().copied().unwrap_or_default();
    let inventory = switch.inventory.read();
    let item = inventory.interfaces.get(name).ok_or("no such interface")?;
    Ok((name, item.device.clone()))
}

fn show(name: &str, qos: &QosConfig, counts: &[QueueCounts]) -> String {
    // Writing to a string cannot fail.
    let mut s = format!("QoS: {name} {}\n", qos.kind);
    for (key, value) in &qos.details {
        let _ = writeln!(s, "{key}: {value}");
    }
    for (queue, details) in &qos.queues {
        s += &match queue {
            0 => "\nDefault:\n".to_owned(),
            n => format!("\nQueue {n}:\n"),
        };
        for (key, value) in details {
            let _ = writeln!(s, "  {key}: {value}");
        }
        if let Some(c) = counts.iter().find(|c| c.queue == *queue) {
            let _ = writeln!(
                s,
                "  tx_packets: {}\n  tx_bytes: {}\n  tx_errors: {}",
                c.packets, c.bytes, c.dropped
            );
        }
    }
    s
}
