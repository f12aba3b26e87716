//! A network's configuration: read, checked, and converted for the other modules.

use crate::args::Args;
use crate::error::{Code, Failure, fail};
use crate::kind::Kind;
use crate::names;
use crate::{NEWEST, VERSIONS};
use heddle_sys::names::{is_device, is_plain};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Default address of the database.
pub(crate) const DATABASE: &str = "unix:/var/run/openvswitch/db.sock";
/// Default timeout of the database and the switch together, seconds.
const TIMEOUT_S: u64 = 30;
/// Default directory of the sockets of vhost-user ports.
const SOCKET_DIR: &str = "/var/run/heddle/vhost";

/// A configuration.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// Version of the specification.
    pub(crate) version: String,
    /// The whole configuration, for other plug-ins.
    pub(crate) raw: Map<String, Value>,
    pub(crate) name: String,
    pub(crate) own: Own,
    pub(crate) kind: Kind,
    /// The kind of pods for which there is no device of kind `device`.
    pub(crate) fallback: Option<Kind>,
    pub(crate) vlan: Vlan,
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) bandwidth: Bandwidth,
}

/// Keys of this plug-in in the configuration, as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Own {
    pub(crate) bridge: Option<String>,
    kind: Option<String>,
    fallback: Option<String>,
    #[serde(rename = "deviceID")]
    device_id: Option<String>,
    /// Name of a device of the host, for kind `device`.
    pub(crate) device: Option<String>,
    /// Name of the device that is the port of kind `device`.
    pub(crate) representor: Option<String>,
    /// Whether a virtual function is trusted.
    pub(crate) trust: Option<bool>,
    database: Option<String>,
    vlan: Option<u16>,
    trunk: Option<Vec<TrunkEntry>>,
    pub(crate) mtu: Option<u32>,
    mac: Option<String>,
    socket_dir: Option<String>,
    pub(crate) external_ids: BTreeMap<String, String>,
    /// `Interface.options`.
    pub(crate) options: BTreeMap<String, String>,
    timeout_seconds: Option<u64>,
    pub(crate) log_file: Option<String>,
    bandwidth: Option<Bandwidth>,
    runtime_config: RuntimeConfig,
    args: OuterArgs,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    mac: Option<String>,
    #[serde(rename = "deviceID")]
    device_id: Option<String>,
    bandwidth: Option<Bandwidth>,
}
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct OuterArgs {
    cni: InnerArgs,
}
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct InnerArgs {
    mac: Option<String>,
}

/// Some VLANs of a trunk.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrunkEntry {
    id: Option<u16>,
    #[serde(rename = "minID")]
    min: Option<u16>,
    #[serde(rename = "maxID")]
    max: Option<u16>,
}

/// Rates in bits a second, bursts in bits; 0: no limit. Ingress is the direction to the pod.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Bandwidth {
    pub(crate) ingress_rate: u64,
    pub(crate) ingress_burst: u64,
    pub(crate) egress_rate: u64,
    pub(crate) egress_burst: u64,
}

/// The VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vlan {
    /// The VLAN of packets without a tag.
    pub(crate) tag: Option<u16>,
    /// VLANs of packets with a tag. Empty, without `tag`: all.
    pub(crate) trunks: Vec<u16>,
}

/// The configuration's object.
pub(crate) fn parse(input: &[u8]) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_slice(input) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => fail(Code::Decode, "the configuration is not a JSON object"),
        Err(e) => fail(Code::Decode, format!("the configuration is not JSON: {e}")),
    }
}

/// The specification version of a configuration.
pub(crate) fn version(raw: &Map<String, Value>) -> Result<String, Failure> {
    match raw.get("cniVersion") {
        Some(Value::String(v)) if VERSIONS.contains(&v.as_str()) => Ok(v.clone()),
        Some(Value::String(v)) => fail(
            Code::Version,
            format!("cniVersion {v:?} is not spoken, only {}", VERSIONS.join(", ")),
        ),
        Some(_) => fail(Code::Decode, "cniVersion is not a string"),
        // The specification's default is 0.1.0.
        None => fail(
            Code::Version,
            format!("cniVersion is missing ({NEWEST} is the newest that is spoken)"),
        ),
    }
}

/// Name of the plug-in that a configuration is for.
pub(crate) fn kind_of(conf: &Map<String, Value>) -> Option<&str> {
    conf.get("type").and_then(Value::as_str)
}

impl Conf {
    /// Checks everything that needs neither the database nor the kernel.
    pub(crate) fn new(raw: Map<String, Value>, version: &str) -> Result<Self, Failure> {
        let own: Own = serde_json::from_value(Value::Object(own_keys(&raw)))
            .map_err(|e| Failure::new(Code::Conf, format!("the configuration is malformed: {e}")))?;
        let name = match raw.get("name") {
            Some(Value::String(name)) if is_plain(name) => name.clone(),
            Some(Value::String(name)) => return fail(Code::Conf, format!("name {name:?} is not valid")),
            _ => return fail(Code::Conf, "name is missing"),
        };
        if own.mtu.is_some_and(|mtu| !(68..=65535).contains(&mtu)) {
            return fail(
                Code::Conf,
                format!("mtu {} is not from 68 to 65535", own.mtu.unwrap_or(0)),
            );
        }
        let mac = [&own.runtime_config.mac, &own.args.cni.mac, &own.mac];
        let mac = mac
            .into_iter()
            .flatten()
            .next()
            .map(|text| self::mac(text))
            .transpose()?;
        let conf = Self {
            version: version.to_owned(),
            name,
            kind: Kind::named(own.kind.as_deref().unwrap_or("auto"))?,
            fallback: own.fallback.as_deref().map(Kind::named).transpose()?,
            vlan: vlan(own.vlan, own.trunk.as_deref())?,
            mac,
            bandwidth: own.runtime_config.bandwidth.or(own.bandwidth).unwrap_or_default(),
            raw,
            own,
        };
        conf.check_names()?;
        conf.check_device()?;
        Ok(conf)
    }

    /// Refuses keys of kind `device` that contradict each other or the kind.
    fn check_device(&self) -> Result<(), Failure> {
        let own = &self.own;
        for (key, name) in [("device", &own.device), ("representor", &own.representor)] {
            if let Some(name) = name.as_deref().filter(|n| !is_device(n)) {
                return fail(Code::Conf, format!("{key} {name:?} is not a name of a device"));
            }
        }
        if self.fallback == Some(Kind::Device) {
            return fail(Code::Conf, "fallback cannot be device");
        }
        let given = [
            ("device", own.device.is_some()),
            ("representor", own.representor.is_some()),
            ("trust", own.trust.is_some()),
            ("fallback", own.fallback.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((key, _)) if self.kind != Kind::Device => {
                fail(Code::Conf, format!("{key} is for kind device only"))
            }
            _ if own.device.is_some() && self.device_id().is_some() => fail(
                Code::Conf,
                "device and deviceID name a device each: leave one out",
            ),
            _ => Ok(()),
        }
    }

    /// PCI address of the device that the runtime has allocated to the pod.
    pub(crate) fn device_id(&self) -> Option<&str> {
        let own = &self.own;
        own.runtime_config
            .device_id
            .as_deref()
            .or(own.device_id.as_deref())
    }

    /// Refuses a configuration with a name that leads out of the allowed directories.
    fn check_names(&self) -> Result<(), Failure> {
        let own = &self.own;
        if let Some(bridge) = own.bridge.as_deref().filter(|b| !is_device(b)) {
            return fail(
                Code::Conf,
                format!(
                    "bridge {bridge:?} is not a name of a bridge (15 characters at most, no blank, /, : or %)"
                ),
            );
        }
        if let Some(kind) = self.ipam()? {
            self.check_is_another("ipam.type", kind)?;
        }
        match self.raw.get("delegate") {
            None | Some(Value::Null) => {}
            Some(Value::Object(inner)) => match kind_of(inner) {
                Some(kind) => {
                    names::program("delegate.type", kind)?;
                    self.check_is_another("delegate.type", kind)?;
                }
                None => return fail(Code::Conf, "delegate.type is missing"),
            },
            Some(_) => return fail(Code::Conf, "delegate is not an object"),
        }
        if let Some(path) = &own.log_file {
            names::check_log_file(path)?;
        }
        names::check_socket_dir(self.socket_dir())?;
        names::check_database(self.database())
    }

    /// Refuses to run this plug-in itself.
    fn check_is_another(&self, key: &str, kind: &str) -> Result<(), Failure> {
        if kind_of(&self.raw) == Some(kind) {
            return names::itself(key, kind);
        }
        Ok(())
    }

    pub(crate) fn database(&self) -> &str {
        self.own.database.as_deref().unwrap_or(DATABASE)
    }
    pub(crate) fn socket_dir(&self) -> &str {
        self.own.socket_dir.as_deref().unwrap_or(SOCKET_DIR)
    }
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.own.timeout_seconds.unwrap_or(TIMEOUT_S).clamp(1, 600))
    }
    /// The bridge, which most commands need.
    pub(crate) fn bridge(&self) -> Result<&str, Failure> {
        match &self.own.bridge {
            Some(bridge) => Ok(bridge),
            None => fail(Code::Conf, "bridge is missing"),
        }
    }
    /// Whether another plug-in has made the device, or is to be run to make it.
    pub(crate) fn is_chained(&self) -> bool {
        self.raw.get("prevResult").is_some_and(|v| !v.is_null()) || self.wrapped().is_some()
    }
    /// The configuration of the plug-in that is to be run first, in the form that it expects.
    pub(crate) fn wrapped(&self) -> Option<Map<String, Value>> {
        let Some(Value::Object(inner)) = self.raw.get("delegate") else {
            return None;
        };
        let mut inner = inner.clone();
        for key in ["cniVersion", "name", "runtimeConfig", "cni.dev/valid-attachments"] {
            if let Some(value) = self.raw.get(key).filter(|_| !inner.contains_key(key)) {
                inner.insert(key.to_owned(), value.clone());
            }
        }
        Some(inner)
    }
    /// The MAC address: from the runtime, in one of its three ways, or from the configuration.
    pub(crate) fn mac(&self, args: &Args) -> Result<Option<[u8; 6]>, Failure> {
        let asked = self.own.runtime_config.mac.is_some() || self.own.args.cni.mac.is_some();
        match args.extra("MAC").filter(|_| !asked) {
            Some(text) => mac(text).map(Some),
            None => Ok(self.mac),
        }
    }
    /// The address plug-in, if there is one.
    pub(crate) fn ipam(&self) -> Result<Option<&str>, Failure> {
        match self.raw.get("ipam") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(ipam)) => match ipam.get("type") {
                Some(Value::String(kind)) => names::program("ipam.type", kind).map(|()| Some(kind.as_str())),
                None if ipam.is_empty() => Ok(None),
                _ => fail(Code::Conf, "ipam.type is not a name of a plug-in"),
            },
            Some(_) => fail(Code::Conf, "ipam is not an object"),
        }
    }
}

/// The keys for serde, without those that are null: null means absent.
fn own_keys(raw: &Map<String, Value>) -> Map<String, Value> {
    let given = raw.iter().filter(|(_, v)| !v.is_null());
    given.map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn vlan(tag: Option<u16>, trunk: Option<&[TrunkEntry]>) -> Result<Vlan, Failure> {
    let legal = |id: u16| {
        if (1..=4094).contains(&id) {
            Ok(id)
        } else {
            fail(Code::Conf, format!("VLAN {id} is not from 1 to 4094"))
        }
    };
    // Many configurations use 0 for no VLAN.
    let tag = tag.filter(|id| *id != 0).map(legal).transpose()?;
    let mut trunks = Vec::new();
    for entry in trunk.unwrap_or_default() {
        match (entry.id, entry.min, entry.max) {
            (Some(id), None, None) => trunks.push(legal(id)?),
            (None, Some(min), Some(max)) if min <= max => trunks.extend(legal(min)?..=legal(max)?),
            _ => {
                return fail(
                    Code::Conf,
                    "a part of trunk is neither {id} nor {minID, maxID} in order",
                );
            }
        }
    }
    trunks.sort_unstable();
    trunks.dedup();
    Ok(Vlan { tag, trunks })
}

/// Parses a MAC address that a device can have.
fn mac(text: &str) -> Result<[u8; 6], Failure> {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    let bytes: Option<Vec<u8>> = parts
        .iter()
        .map(|p| u8::from_str_radix(p, 16).ok().filter(|_| p.len() == 2))
        .collect();
    match bytes.and_then(|b| <[u8; 6]>::try_from(b).ok()) {
        Some(mac) if mac[0] & 1 == 0 && mac != [0; 6] => Ok(mac),
        _ => fail(
            Code::Conf,
            format!("mac {text:?} is not the address of one device"),
        ),
    }
}

/// The text form of an address.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

/// Puts a key into an object of a configuration for another plug-in.
pub(crate) fn with(mut conf: Map<String, Value>, key: &str, value: Option<Value>) -> Value {
    match value {
        Some(value) => conf.insert(key.to_owned(), value),
        None => conf.remove(key),
    };
    json!(conf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Conf, Failure> {
        let raw = parse(text.as_bytes())?;
        let version = version(&raw)?;
        Conf::new(raw, &version)
    }
    fn with_keys(keys: &str) -> Result<Conf, Failure> {
        read(&format!(
            r#"{{"cniVersion":"1.0.0","name":"n","type":"heddle-cni"{keys}}}"#
        ))
    }

    #[test]
    fn what_is_read() {
        let conf = with_keys(
            r#","bridge":"br0","kind":"veth","vlan":7,"trunk":[{"id":9},{"minID":3,"maxID":5}],"mtu":1400,"ipam":{},
            "runtimeConfig":{"mac":"02-00-00-00-00-0A","bandwidth":{"ingressRate":8000}},"prevResult":null"#,
        )
        .unwrap();
        assert_eq!(
            (conf.vlan.tag, conf.vlan.trunks.as_slice()),
            (Some(7), &[3, 4, 5, 9][..])
        );
        assert_eq!(
            (conf.mac, conf.bandwidth.ingress_rate),
            (Some([2, 0, 0, 0, 0, 10]), 8000)
        );
        assert_eq!((conf.ipam().unwrap(), conf.kind), (None, Kind::Veth));
        let conf =
            with_keys(r#","delegate":{"type":"bridge","name":"own"},"ipam":{"type":"host-local"}"#).unwrap();
        let inner = conf.wrapped().unwrap();
        assert_eq!(
            (inner["name"].as_str(), inner["cniVersion"].as_str()),
            (Some("own"), Some("1.0.0"))
        );
        assert!(conf.is_chained() && conf.ipam().unwrap() == Some("host-local"));
    }

    #[test]
    fn what_is_refused() {
        for (text, code) in [
            ("", 6),
            ("[]", 6),
            ("{\"cniVersion\":1}", 6),
            ("{}", 1),
            (r#"{"cniVersion":"0.2.0"}"#, 1),
            (r#"{"cniVersion":"1.0.0"}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"a/b"}"#, 7),
        ] {
            assert_eq!(read(text).unwrap_err().code, code, "{text}");
        }
        for keys in [
            r#""vlan":4095"#,
            r#""vlan":"7""#,
            r#""vlan":-1"#,
            r#""trunk":[{"id":0}]"#,
            r#""trunk":[{"minID":9,"maxID":3}]"#,
            r#""trunk":[{"id":3,"maxID":3}]"#,
            r#""trunk":[{"ids":3}]"#,
            r#""mac":"01:00:00:00:00:00""#,
            r#""mac":"2:0:0:0:0:1""#,
            r#""mtu":10"#,
            r#""bridge":"a bridge""#,
            r#""kind":"quick""#,
            r#""bandwidth":{"ingressRate":-1}"#,
            r#""kind":"device","device":"a/b""#,
            r#""kind":"device","device":"a","deviceID":"0000:03:00.2""#,
            r#""kind":"device","fallback":"device""#,
            r#""kind":"veth","trust":true"#,
            r#""fallback":"veth""#,
        ] {
            let e = with_keys(&format!(",{keys}")).unwrap_err();
            assert_eq!(e.code, 7, "{keys}: {e:?}");
        }
        for keys in [
            r#""ipam":{"type":"../x"}"#,
            r#""ipam":{"type":""}"#,
            r#""ipam":{"type":"heddle-cni"}"#,
            r#""delegate":{"type":"heddle-cni"}"#,
            r#""ipam":{"type":7}"#,
            r#""delegate":{"type":"../../../bin/sh"}"#,
            r#""delegate":{"type":"/bin/sh"}"#,
            r#""delegate":{"type":".."}"#,
            r#""delegate":{"type":""}"#,
            r#""delegate":{}"#,
            r#""delegate":"sh""#,
            r#""logFile":"/etc/cron.d/x""#,
            r#""logFile":"/var/log/heddle/../auth.log""#,
            r#""logFile":"x.log""#,
            r#""logFile":"/var/log/heddle""#,
            r#""logFile":"/var/log/openvswitch/conf.db""#,
            r#""socketDir":"/etc""#,
            r#""socketDir":"run/heddle""#,
            r#""socketDir":"/run/heddle/../../etc""#,
            r#""database":"unix:/tmp/db.sock""#,
            r#""database":"tcp:192.0.2.1:6640""#,
            r#""bridge":"-x""#,
        ] {
            let e = with_keys(&format!(",{keys}")).unwrap_err();
            assert_eq!(e.code, 7, "{keys}: {e:?}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(text in "\\PC{0,60}", keys in "[\\[\\]{}\":,a-z0-9]{0,40}") {
            let _ = read(&text);
            let _ = with_keys(&format!(",{keys}"));
        }
    }
}
