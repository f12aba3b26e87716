//! Reads and writes of the configuration database.

use anyhow::{Context, Result, bail, ensure};
use heddle_ovsdb::vswitch::{NAME, Vswitch, insert, pairs};
use serde_json::{Value, json};
use std::time::Duration;

/// Timeout for the switch to make a port.
const LIMIT: Duration = Duration::from_secs(20);
/// Key in `external_ids` of rows that this crate has made.
const MARK: &str = "heddle-node";

pub(crate) struct Db(Vswitch);

impl Db {
    pub(crate) fn open(address: &str) -> Result<Self> {
        let database = Vswitch::open(address, LIMIT);
        Ok(Self(database.with_context(|| {
            format!("the database at {address} does not reply")
        })?))
    }

    fn transact(&mut self, operations: &[Value]) -> Result<Vec<Value>> {
        self.0
            .transact(operations)
            .context("the database refuses the change")
    }

    fn select(&mut self, table: &str, condition: Value, columns: Value) -> Result<Vec<Value>> {
        self.0
            .select(table, &condition, &columns)
            .context("the database refuses the change")
    }

    /// A key of `Open_vSwitch.other_config`.
    pub(crate) fn other_config(&mut self, key: &str) -> Result<Option<String>> {
        let rows = self.select(NAME, json!([]), json!(["other_config"]))?;
        let row = rows
            .first()
            .context("the database holds no row in table Open_vSwitch (ovs-vsctl init)")?;
        let mut found = pairs(&row["other_config"]).filter(|(name, _)| *name == key);
        Ok(found.next().map(|(_, value)| value.to_owned()))
    }

    /// Sets a key of `Open_vSwitch.other_config`, or removes it.
    pub(crate) fn set_other_config(&mut self, key: &str, value: Option<&str>) -> Result<()> {
        let mut mutations = vec![json!(["other_config", "delete", ["set", [key]]])];
        if let Some(value) = value {
            mutations.push(json!(["other_config", "insert", ["map", [[key, value]]]]));
        }
        let mutate = json!({"op": "mutate", "table": NAME, "where": [], "mutations": mutations});
        self.transact(&[mutate]).map(drop)
    }

    /// `Interface.type` of a port; `None`: there is no such port.
    pub(crate) fn interface_type(&mut self, name: &str) -> Result<Option<String>> {
        let rows = self.select("Interface", json!([["name", "==", name]]), json!(["type"]))?;
        let kind = rows.first().and_then(|row| row["type"].as_str());
        Ok(kind.map(str::to_owned))
    }

    /// Sets `Interface.type` of a port, and waits for the switch.
    pub(crate) fn set_interface_type(&mut self, name: &str, kind: &str) -> Result<()> {
        let update = json!({"op": "update", "table": "Interface", "where": [["name", "==", name]],
            "row": {"type": kind, "ofport": ["set", []]}});
        self.change_interface(name, update)?;
        self.wait_for(name)
    }

    /// A key of `Interface.options`.
    pub(crate) fn interface_option(&mut self, name: &str, key: &str) -> Result<Option<String>> {
        let rows = self.select("Interface", json!([["name", "==", name]]), json!(["options"]))?;
        let row = rows.first();
        let mut found = row
            .into_iter()
            .flat_map(|row| pairs(&row["options"]))
            .filter(|(k, _)| *k == key);
        Ok(found.next().map(|(_, value)| value.to_owned()))
    }

    /// Sets a key of `Interface.options`, or removes it.
    pub(crate) fn set_interface_option(&mut self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        let mut mutations = vec![json!(["options", "delete", ["set", [key]]])];
        if let Some(value) = value {
            mutations.push(json!(["options", "insert", ["map", [[key, value]]]]));
        }
        let mutate = json!({"op": "mutate", "table": "Interface", "where": [["name", "==", name]], "mutations": mutations});
        self.change_interface(name, mutate)
    }

    fn change_interface(&mut self, name: &str, operation: Value) -> Result<()> {
        let done = self.transact(&[operation])?;
        let changed = done.first().and_then(|row| row["count"].as_u64());
        ensure!(changed.is_some_and(|n| n > 0), "{name} is no port of the switch");
        Ok(())
    }

    /// Whether the device is a port of the bridge. An error if it is one of another bridge.
    pub(crate) fn is_port(&mut self, bridge: &str, nic: &str) -> Result<bool> {
        let ports = self.select("Port", json!([["name", "==", nic]]), json!(["_uuid"]))?;
        let Some(uuid) = ports.first().and_then(|p| p.get("_uuid")) else {
            return Ok(false);
        };
        let bridges = self.select("Bridge", json!([["ports", "includes", uuid]]), json!(["name"]))?;
        match bridges
            .first()
            .and_then(|b| b.get("name"))
            .and_then(Value::as_str)
        {
            Some(name) if name == bridge => Ok(true),
            Some(other) => bail!("{nic} is a port of bridge {other}"),
            None => Ok(false),
        }
    }

    /// Makes the device a port of the bridge, which is made if it is not there, and waits for the switch.
    pub(crate) fn add_bridge(
        &mut self,
        bridge: &str,
        nic: &str,
        datapath_type: &str,
        mac: &str,
    ) -> Result<()> {
        let mark = json!(["map", [[MARK, "made"]]]);
        let mut operations = Vec::new();
        let mut ports = Vec::new();
        let there = !self
            .select("Bridge", json!([["name", "==", bridge]]), json!(["name"]))?
            .is_empty();
        if !there {
            operations.push(insert(
                "Interface",
                "own_if",
                &json!({"name": bridge, "type": "internal"}),
            ));
            let own = json!({"name": bridge, "interfaces": ["named-uuid", "own_if"]});
            operations.push(insert("Port", "own", &own));
            ports.push(json!(["named-uuid", "own"]));
        }
        if !self.is_port(bridge, nic)? {
            operations.push(insert("Interface", "nic_if", &json!({"name": nic})));
            let row = json!({"name": nic, "interfaces": ["named-uuid", "nic_if"], "external_ids": mark});
            operations.push(insert("Port", "nic", &row));
            ports.push(json!(["named-uuid", "nic"]));
        }
        // The bridge keeps the MAC address of the device.
        let address = json!(["map", [["hwaddr", mac]]]);
        if there {
            let mutations = json!([
                ["ports", "insert", ["set", ports]],
                ["other_config", "delete", ["set", ["hwaddr"]]],
                ["other_config", "insert", address]
            ]);
            operations.push(
                json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]],
                "mutations": mutations}),
            );
        } else {
            let row = json!({"name": bridge, "ports": ["set", ports], "other_config": address, "external_ids": mark,
                "fail_mode": "standalone", "datapath_type": datapath_type});
            operations.push(insert("Bridge", "bridge", &row));
            operations.push(json!({"op": "mutate", "table": NAME, "where": [],
                "mutations": [["bridges", "insert", ["named-uuid", "bridge"]]]}));
        }
        self.transact(&operations)?;
        for port in [bridge, nic] {
            self.wait_for(port)?;
        }
        Ok(())
    }

    fn wait_for(&mut self, name: &str) -> Result<()> {
        let sent = self.0.send_wait_for_port(name, &json!(["ofport", "error"]))?;
        let row = match self.0.receive_port(sent) {
            Err(e) if e.is_timeout(0) => {
                bail!(
                    "the switch made no port {name} in {} s; is heddled running?",
                    LIMIT.as_secs()
                );
            }
            row => row?.unwrap_or_default(),
        };
        let error = row.get("error").and_then(Value::as_str).unwrap_or("no reason");
        ensure!(
            row["ofport"].as_i64().is_some_and(|n| n > 0),
            "the switch refuses port {name}: {error}"
        );
        Ok(())
    }

    /// Removes the device from the bridge, and the bridge if it was made for it.
    pub(crate) fn remove_bridge(&mut self, bridge: &str, nic: &str) -> Result<()> {
        let bridges = self.select(
            "Bridge",
            json!([["name", "==", bridge]]),
            json!(["_uuid", "external_ids"]),
        )?;
        let Some(row) = bridges.first() else { return Ok(()) };
        let made = pairs(&row["external_ids"]).any(|(key, _)| key == MARK);
        let operation = if made {
            json!({"op": "mutate", "table": NAME, "where": [], "mutations": [["bridges", "delete", row["_uuid"]]]})
        } else {
            let ports = self.select("Port", json!([["name", "==", nic]]), json!(["_uuid"]))?;
            let uuids: Vec<&Value> = ports.iter().filter_map(|p| p.get("_uuid")).collect();
            json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]],
                "mutations": [["ports", "delete", ["set", uuids]], ["other_config", "delete", ["set", ["hwaddr"]]]]})
        };
        self.transact(&[operation]).map(drop)
    }
}
