//! The transactions: ports that come and go, and the switch's results.
//!
//! Rows are found by their contents (`where`); no uuid is stored. If a transaction depends on the presence or
//! absence of a row, it begins with a `wait` with timeout 0. So of two plug-ins at once, only one can
//! succeed.

use crate::args::Args;
use crate::conf::{Bandwidth, Conf, Vlan, mac_text};
use crate::error::{Code, Failure, fail};
use crate::kind::Kind;
use heddle_ovsdb::blocking::{Error, Sent};
use heddle_ovsdb::vswitch::{NAME, Vswitch, insert, pairs, rows};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Keys of `external_ids` of a pod's Interface.
pub(crate) const NETWORK: &str = "heddle-cni/network";
pub(crate) const CONTAINER: &str = "heddle-cni/container";
pub(crate) const IFNAME: &str = "heddle-cni/ifname";
pub(crate) const NETNS: &str = "heddle-cni/netns";
/// Number of the namespace: another one may be at its path later.
pub(crate) const NETNS_INODE: &str = "heddle-cni/netns-inode";
pub(crate) const KIND: &str = "heddle-cni/kind";
/// Bridge and MAC address in one value, so that one condition finds the port with an address.
const ADDRESS: &str = "heddle-cni/mac";
/// Key of `Bridge.status`, which the switch writes.
const EBPF: &str = "heddle_ebpf";
/// Key of QoS and Queue rows: the port that they are for.
const PORT: &str = "heddle-cni/port";

/// The database.
pub(crate) struct Db(Vswitch);

/// An Interface that this plug-in has made or taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodInterface {
    pub(crate) name: String,
    uuid: String,
    pub(crate) ids: BTreeMap<String, String>,
    pub(crate) ofport: Option<i64>,
    pub(crate) error: Option<String>,
    pub(crate) mac: Option<String>,
    pub(crate) ofport_request: Option<i64>,
    pub(crate) kind: String,
}

impl PodInterface {
    pub(crate) fn id(&self, key: &str) -> &str {
        self.ids.get(key).map_or("", String::as_str)
    }
}

/// A port to be added.
pub(crate) struct NewPort<'a> {
    pub(crate) name: &'a str,
    pub(crate) bridge: &'a str,
    pub(crate) kind: Kind,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu_bytes: Option<u32>,
    pub(crate) vlan: &'a Vlan,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) socket: Option<&'a str>,
    pub(crate) options: &'a BTreeMap<String, String>,
    pub(crate) ids: BTreeMap<String, String>,
    /// Place where the switch may make the device at once: number and path of a network namespace, name
    /// there.
    pub(crate) birthplace: Option<(u64, &'a str, &'a str)>,
}

const COLUMNS: [&str; 8] = [
    "_uuid",
    "name",
    "external_ids",
    "ofport",
    "error",
    "mac_in_use",
    "ofport_request",
    "type",
];

impl Db {
    pub(crate) fn open(conf: &Conf) -> Result<Self, Failure> {
        Self::at(conf.database(), conf.timeout())
    }

    pub(crate) fn at(address: &str, timeout: Duration) -> Result<Self, Failure> {
        match Vswitch::open(address, timeout) {
            Ok(database) => Ok(Self(database)),
            Err(Error::Address(address)) => fail(
                Code::Conf,
                format!("database {address:?} is not unix:PATH or tcp:HOST:PORT"),
            ),
            Err(e) => fail(
                Code::Later,
                format!("the database at {address} does not reply: {}", text(&e)),
            ),
        }
    }

    fn transact(&mut self, operations: &[Value]) -> Result<Vec<Value>, Failure> {
        self.0.transact(operations).map_err(away)
    }

    fn interfaces(&mut self, condition: Value) -> Result<Vec<PodInterface>, Failure> {
        let rows = self.select("Interface", condition, json!(COLUMNS))?;
        Ok(rows.iter().filter_map(found).collect())
    }

    fn select(&mut self, table: &str, condition: Value, columns: Value) -> Result<Vec<Value>, Failure> {
        self.0.select(table, &condition, &columns).map_err(away)
    }

    /// The Interfaces of a container's device: none or one, unless another client wrote such rows.
    pub(crate) fn of(&mut self, args: &Args) -> Result<Vec<PodInterface>, Failure> {
        let ids = map(&[(CONTAINER, &args.container), (IFNAME, &args.ifname)]);
        self.interfaces(json!([["external_ids", "includes", ids]]))
    }

    /// The Interfaces of a network.
    pub(crate) fn of_network(&mut self, network: &str) -> Result<Vec<PodInterface>, Failure> {
        self.interfaces(json!([["external_ids", "includes", map(&[(NETWORK, network)])]]))
    }

    /// All Interfaces of this plug-in.
    pub(crate) fn all(&mut self) -> Result<Vec<PodInterface>, Failure> {
        let all = self.interfaces(json!([]))?;
        Ok(all
            .into_iter()
            .filter(|i| i.ids.contains_key(CONTAINER))
            .collect())
    }

    /// The Interface of that name, also one of another client.
    pub(crate) fn named(&mut self, name: &str) -> Result<Option<PodInterface>, Failure> {
        Ok(self.interfaces(json!([["name", "==", name]]))?.into_iter().next())
    }

    /// The MTU of a bridge's own port, if the switch has written one.
    pub(crate) fn mtu_of(&mut self, bridge: &str) -> Result<Option<u32>, Failure> {
        let rows = self.select("Interface", json!([["name", "==", bridge]]), json!(["mtu"]))?;
        let mtu = rows.first().and_then(|row| row.get("mtu")?.as_u64());
        Ok(mtu.and_then(|mtu| u32::try_from(mtu).ok()))
    }

    /// Whether the bridge exists.
    pub(crate) fn has_bridge(&mut self, name: &str) -> Result<bool, Failure> {
        Ok(!self
            .select("Bridge", json!([["name", "==", name]]), json!(["name"]))?
            .is_empty())
    }

    /// Whether the switch forwards flows of this bridge's veths in the kernel, as it has written in the row.
    pub(crate) fn offloads(&mut self, bridge: &str) -> Result<bool, Failure> {
        let rows = self.select("Bridge", json!([["name", "==", bridge]]), json!(["status"]))?;
        Ok(rows.iter().any(is_offloaded))
    }

    /// The same of the bridge that has this Interface.
    pub(crate) fn offloads_interface(&mut self, interface: &PodInterface) -> Result<bool, Failure> {
        let port = json!([["interfaces", "includes", ["uuid", interface.uuid]]]);
        let ports = self.select("Port", port, json!(["_uuid"]))?;
        let Some(port) = ports.first().and_then(|row| row.get("_uuid")) else {
            return Ok(false);
        };
        let rows = self.select("Bridge", json!([["ports", "includes", port]]), json!(["status"]))?;
        Ok(rows.iter().any(is_offloaded))
    }

    /// Adds a port.
    pub(crate) fn add(&mut self, port: &NewPort<'_>) -> Result<(), Failure> {
        let address = format!("{} {}", port.bridge, mac_text(port.mac));
        let same = json!([["external_ids", "includes", map(&[(ADDRESS, &address)])]]);
        let mut operations = vec![
            wait(
                "Bridge",
                json!([["name", "==", port.bridge]]),
                json!([{"name": port.bridge}]),
            ),
            wait("Interface", same, json!([])),
        ];
        operations.extend(rows_of(port, &address));
        match self.0.transact(&operations) {
            Ok(_) => Ok(()),
            Err(e) if e.is_timeout(0) => no_bridge(port.bridge),
            Err(e) if e.is_timeout(1) => fail(
                Code::DuplicateMac,
                format!(
                    "another pod of bridge {} has the MAC address {}",
                    port.bridge,
                    mac_text(port.mac)
                ),
            ),
            Err(e) => Err(away(e)),
        }
    }

    /// Changes the type of an existing Interface: its port, its `external_ids` and references to it stay.
    /// `ofport` is emptied, so that the caller can wait for the switch to set it.
    pub(crate) fn convert(&mut self, old: &PodInterface, to: &Conversion<'_>) -> Result<(), Failure> {
        let here = json!([["_uuid", "==", ["uuid", old.uuid]], ["type", "==", old.kind]]);
        let mut row = json!({"type": to.kind, "ofport": ["set", []], "error": ["set", []]});
        row["mac"] = to.mac.map_or(json!(["set", []]), |mac| json!(mac_text(mac)));
        row["mtu_request"] = to.mtu_bytes.map_or(json!(["set", []]), |mtu| json!(mtu));
        // The port keeps its number, unless another port gets it meanwhile.
        row["ofport_request"] = to.ofport.map_or(json!(["set", []]), |n| json!(n));
        let keys: Vec<&str> = to.ids.keys().map(String::as_str).collect();
        let mut mutations = vec![json!(["external_ids", "delete", ["set", keys]])];
        if !to.forget {
            mutations.push(json!(["external_ids", "insert", ids(&to.ids)]));
        }
        let operations = [
            wait("Interface", here.clone(), json!([{"name": old.name}])),
            json!({"op": "update", "table": "Interface", "where": here, "row": row}),
            json!({"op": "mutate", "table": "Interface", "where": [["_uuid", "==", ["uuid", old.uuid]]],
                "mutations": mutations}),
        ];
        match self.0.transact(&operations) {
            Ok(_) => Ok(()),
            Err(Error::Operation { index: 0, .. }) => fail(
                Code::Later,
                format!("interface {} was changed by another client meanwhile", old.name),
            ),
            Err(e) => Err(away(e)),
        }
    }

    /// Sends a request that waits until the switch has set `ofport` of the Interface, to a number or an
    /// error.
    pub(crate) fn request_port(&mut self, name: &str) -> Result<Sent, Failure> {
        self.0.send_wait_for_port(name, &json!(COLUMNS)).map_err(away)
    }

    /// The Interface, when the switch has made its port.
    pub(crate) fn wait_for_port(&mut self, name: &str, sent: Sent) -> Result<PodInterface, Failure> {
        let row = match self.0.receive_port(sent) {
            Err(e) if e.is_timeout(0) => {
                let seconds = self.0.timeout().as_secs();
                return fail(
                    Code::Later,
                    format!("the switch made no port for {name} in {seconds} s; is heddled running?"),
                );
            }
            other => other.map_err(away)?,
        };
        let Some(interface) = row.as_ref().and_then(found) else {
            return fail(
                Code::Later,
                format!("interface {name} was removed by another client"),
            );
        };
        match interface.ofport {
            Some(1..) => Ok(interface),
            _ => {
                let why = interface.error.as_deref().unwrap_or("it gives no reason");
                fail(Code::Refused, format!("the switch refuses port {name}: {why}"))
            }
        }
    }

    /// Removes Interfaces with their ports, QoS and queues. Missing rows are no error.
    pub(crate) fn remove(&mut self, interfaces: &[PodInterface]) -> Result<(), Failure> {
        if interfaces.is_empty() {
            return Ok(());
        }
        let ports: Vec<Value> = interfaces
            .iter()
            .map(|i| {
                json!({"op": "select", "table": "Port", "columns": ["_uuid"],
                "where": [["interfaces", "includes", ["uuid", i.uuid]]]})
            })
            .collect();
        let results = self.transact(&ports)?;
        let uuids: Vec<Value> = results
            .iter()
            .flat_map(|r| rows(Some(r)))
            .filter_map(|r| r.get("_uuid").cloned())
            .collect();
        let mut operations = vec![json!({"op": "mutate", "table": "Bridge", "where": [],
            "mutations": [["ports", "delete", ["set", uuids]]]})];
        for i in interfaces {
            // The row is removed with its last reference, but only after the operations; until then it refers
            // to the QoS.
            operations.push(
                json!({"op": "update", "table": "Port", "row": {"qos": ["set", []]},
                "where": [["interfaces", "includes", ["uuid", i.uuid]]]}),
            );
            for table in ["QoS", "Queue"] {
                operations.push(json!({"op": "delete", "table": table,
                    "where": [["external_ids", "includes", map(&[(PORT, &i.name)])]]}));
            }
        }
        self.transact(&operations).map(drop)
    }

    /// Waits until the switch has applied the present contents of the database, or 5 s; returns whether it
    /// has.
    pub(crate) fn round_trip(&mut self) -> Result<bool, Failure> {
        let results = self.transact(&[
            json!({"op": "mutate", "table": NAME, "where": [], "mutations": [["next_cfg", "+=", 1]]}),
            json!({"op": "select", "table": NAME, "where": [], "columns": ["next_cfg"]}),
        ])?;
        let Some(mine) = rows(results.get(1))
            .first()
            .and_then(|row| row.get("next_cfg")?.as_i64())
        else {
            return fail(
                Code::Unavailable,
                "the database holds no row in table Open_vSwitch (ovs-vsctl init)",
            );
        };
        let end = std::time::Instant::now() + self.0.timeout().min(Duration::from_secs(5));
        loop {
            let rows = self.select(NAME, json!([]), json!(["cur_cfg"]))?;
            if rows
                .first()
                .and_then(|row| row.get("cur_cfg")?.as_i64())
                .is_some_and(|n| n >= mine)
            {
                return Ok(true);
            }
            if std::time::Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The new values of an Interface that is converted.
pub(crate) struct Conversion<'a> {
    pub(crate) kind: &'a str,
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu_bytes: Option<u32>,
    pub(crate) ofport: Option<i64>,
    pub(crate) ids: BTreeMap<String, String>,
    /// Remove the keys of `ids` instead of setting them.
    pub(crate) forget: bool,
}

pub(crate) fn no_bridge<T>(name: &str) -> Result<T, Failure> {
    fail(
        Code::NoBridge,
        format!("there is no bridge {name} (ovs-vsctl add-br {name})"),
    )
}

fn wait(table: &str, condition: Value, rows: Value) -> Value {
    json!({"op": "wait", "timeout": 0, "table": table, "where": condition, "columns": ["name"],
        "until": "==", "rows": rows})
}

/// The operations that insert a port.
fn rows_of(port: &NewPort<'_>, address: &str) -> Vec<Value> {
    let mut marks = port.ids.clone();
    marks.insert(ADDRESS.to_owned(), address.to_owned());
    marks.insert("attached-mac".to_owned(), mac_text(port.mac));
    let mut interface =
        json!({"name": port.name, "type": port.kind.interface_type(), "external_ids": ids(&marks)});
    if matches!(port.kind, Kind::Internal | Kind::Vduse) {
        interface["mac"] = json!(mac_text(port.mac));
    }
    if let Some(mtu) = port.mtu_bytes {
        interface["mtu_request"] = json!(mtu);
    }
    let mut options = port.options.clone();
    options.extend(
        port.socket
            .map(|path| ("vhost-server-path".to_owned(), path.to_owned())),
    );
    interface["options"] = ids(&options);
    if let Some((inode, path, device)) = port.birthplace {
        let inode = inode.to_string();
        interface["other_config"] =
            map(&[("netns", path), ("netns-device", device), ("netns-inode", &inode)]);
    }
    let rate = port.bandwidth;
    if rate.egress_rate > 0 {
        // Columns in kbit/s and kbit; a burst of 0 is the switch's default.
        interface["ingress_policing_rate"] = json!(rate.egress_rate.div_ceil(1000));
        interface["ingress_policing_burst"] = json!(rate.egress_burst.div_ceil(1000));
    }
    let mut row =
        json!({"name": port.name, "interfaces": ["named-uuid", "interface"], "external_ids": ids(&port.ids)});
    if let Some(tag) = port.vlan.tag {
        row["tag"] = json!(tag);
        row["vlan_mode"] = json!(if port.vlan.trunks.is_empty() {
            "access"
        } else {
            "native-untagged"
        });
    }
    if !port.vlan.trunks.is_empty() {
        row["trunks"] = json!(["set", port.vlan.trunks]);
        if port.vlan.tag.is_none() {
            row["vlan_mode"] = json!("trunk");
        }
    }
    let mut operations = vec![insert("Interface", "interface", &interface)];
    if rate.ingress_rate > 0 {
        let mut limits = vec![("max-rate", rate.ingress_rate.to_string())];
        if rate.ingress_burst > 0 {
            limits.push(("burst", rate.ingress_burst.to_string()));
        }
        let limits: Vec<(&str, &str)> = limits.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let mark = map(&[(PORT, port.name)]);
        let queue = json!({"other_config": map(&limits), "external_ids": mark});
        operations.push(insert("Queue", "queue", &queue));
        let qos = json!({"type": "linux-htb", "other_config": map(&limits[..1]), "external_ids": mark,
            "queues": ["map", [[0, ["named-uuid", "queue"]]]]});
        operations.push(insert("QoS", "qos", &qos));
        row["qos"] = json!(["named-uuid", "qos"]);
    }
    operations.push(insert("Port", "port", &row));
    operations.push(
        json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", port.bridge]],
        "mutations": [["ports", "insert", ["named-uuid", "port"]]]}),
    );
    operations.push(json!({"op": "comment", "comment": format!("heddle-cni: added {}", port.name)}));
    operations
}

fn map(pairs: &[(&str, &str)]) -> Value {
    json!(["map", pairs])
}
fn ids(pairs: &BTreeMap<String, String>) -> Value {
    json!(["map", pairs.iter().collect::<Vec<_>>()])
}

fn found(row: &Value) -> Option<PodInterface> {
    let ids = pairs(row.get("external_ids")?);
    let text = |key: &str| row.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(PodInterface {
        name: text("name")?,
        uuid: row.get("_uuid")?.get(1)?.as_str()?.to_owned(),
        ids: ids.map(|(key, id)| (key.to_owned(), id.to_owned())).collect(),
        ofport: row.get("ofport").and_then(Value::as_i64),
        error: text("error"),
        mac: text("mac_in_use"),
        ofport_request: row.get("ofport_request").and_then(Value::as_i64),
        kind: text("type")?,
    })
}

/// Whether a Bridge's status has the switch's mark of eBPF.
fn is_offloaded(row: &Value) -> bool {
    row.get("status")
        .is_some_and(|status| pairs(status).any(|(key, value)| key == EBPF && value == "true"))
}

fn text(e: &Error) -> String {
    match e {
        Error::Io(e) => heddle_sys::errno_text(e),
        other => other.to_string(),
    }
}

fn away(e: Error) -> Failure {
    match e {
        Error::Operation { .. } | Error::Refused(_) => Failure::new(
            Code::Refused,
            format!("the database refuses the change: {}", text(&e)),
        ),
        _ => Failure::new(Code::Later, format!("the database does not reply: {}", text(&e))),
    }
}
