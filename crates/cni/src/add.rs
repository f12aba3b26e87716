//! ADD alone: a port of the bridge for the pod.
//!
//! The order: the row first, since the switch needs time for it; addresses while it works; the device last.
//! The row names the pod's namespace, and the switch makes a tap device there if it can: the kernel takes
//! long to move one. If the switch cannot (it has a file system of its own, for example), the plug-in moves
//! the device. If a step fails, [`Undo`] undoes the steps before it.

use crate::args::Args;
use crate::conf::Conf;
use crate::db::{CONTAINER, Db, IFNAME, KIND, NETNS, NETNS_INODE, NETWORK, NewPort};
use crate::device::{self, BEFORE, HostDevice};
use crate::error::{Code, Failure, fail, kernel};
use crate::kind::{Choice, Kind};
use crate::pod::Pod;
use crate::result::{Addresses, Made};
use crate::{del, delegate, host, names};
use heddle_sys::NetConfig;
use heddle_sys::net_config::Change;
use serde_json::Value;
use std::collections::BTreeMap;

/// Adds the pod's port; returns the result.
pub(crate) fn add(args: &Args, conf: &Conf) -> Result<(Option<Value>, String), Failure> {
    conf.kind.is_possible()?;
    let pod = Pod::open(&args.netns)?;
    let mut db = Db::open(conf)?;
    let bridge = conf.bridge()?;
    let earlier = db.of(args)?;
    if !earlier.is_empty() {
        // The runtime repeats an attempt whose end it has not seen.
        del::take_away(args, conf, &mut db, &earlier)?;
    }
    let (choice, given) = choose(conf, bridge, &mut db)?;
    let kind = choice.kind;
    if earlier.is_empty() && kind == Kind::Veth {
        // The device of an earlier ADD that was killed before it had written its row.
        host::remove_device(&args.port_name());
    }
    if kind != Kind::VhostUser {
        pod.wait_until_free(&args.ifname, &args.port_name())?;
    }
    let mut undo = Undo {
        conf,
        args,
        db,
        addresses: false,
        veth: None,
        dir: false,
    };
    match undo.add(&choice, given.as_ref(), &pod) {
        Ok(result) => {
            let device = given.map_or(String::new(), |given| format!("; {given}"));
            Ok((Some(result), format!("{choice}{device}")))
        }
        Err(e) => {
            undo.all();
            Err(e)
        }
    }
}

/// The kind of the pod's device, and the host's device that it gets if it gets one.
fn choose(conf: &Conf, bridge: &str, db: &mut Db) -> Result<(Choice, Option<HostDevice>), Failure> {
    if conf.kind != Kind::Device {
        return Ok((conf.kind.choose(|| db.offloads(bridge))?, None));
    }
    let net = NetConfig::new(None).map_err(|e| kernel("netlink", &e))?;
    match (HostDevice::find(conf, &net, db), conf.fallback) {
        (Ok(given), _) => Ok((conf.kind.choose(|| Ok(false))?, Some(given))),
        // A configuration that is wrong is no lack of devices.
        (Err(e), Some(other)) if e.code == Code::NoKind as u64 => {
            let mut choice = other.choose(|| db.offloads(bridge))?;
            choice.why = format!("fallback, since {}", e.msg).into();
            Ok((choice, None))
        }
        (Err(e), _) => Err(e),
    }
}

/// Steps that were done, to be undone.
struct Undo<'a> {
    conf: &'a Conf,
    args: &'a Args,
    db: Db,
    /// The address plug-in was called.
    addresses: bool,
    /// A veth's end on the host.
    veth: Option<String>,
    /// The directory of a vhost-user socket was made.
    dir: bool,
}

impl Undo<'_> {
    fn add(&mut self, choice: &Choice, given: Option<&HostDevice>, pod: &Pod) -> Result<Value, Failure> {
        let kind = choice.kind;
        let (args, conf) = (self.args, self.conf);
        let name = given.map_or_else(|| args.port_name(), |given| given.representor.clone());
        let mut ids = marks(args, conf, kind, pod.id()?);
        ids.extend(given.map(|given| (BEFORE.to_owned(), given.before())));
        let mac = conf.mac(args)?.unwrap_or_else(|| args.port_mac());
        let net = NetConfig::new(None).map_err(|e| kernel("netlink", &e))?;
        let socket = match kind {
            Kind::VhostUser => Some(self.socket_dir()?),
            _ => None,
        };
        if kind == Kind::Veth {
            let peer = Change {
                namespace: Some(&pod.ns),
                name: Some(&args.ifname),
                mac: Some(mac),
                ..Change::default()
            };
            // The switch sets the bridge's MTU on its own devices, but not on a veth pair.
            let mtu = match conf.own.mtu {
                None => self.db.mtu_of(conf.bridge()?)?,
                given => given,
            };
            net.add_veth(&name, mtu, &peer)
                .map_err(|e| kernel("making a veth pair", &e))?;
            self.veth = Some(name.clone());
        }
        if matches!(kind, Kind::Veth | Kind::Device) && conf.bandwidth.ingress_rate > 0 {
            host::can_limit(&net, &name, kind)?;
        }
        self.db.add(&NewPort {
            name: &name,
            bridge: conf.bridge()?,
            kind,
            mac,
            // A representor gets the device's MTU with it, and its own back.
            mtu_bytes: conf.own.mtu.filter(|_| kind != Kind::Device),
            vlan: &conf.vlan,
            bandwidth: conf.bandwidth,
            socket: socket.as_deref(),
            options: &conf.own.options,
            ids,
            birthplace: match kind {
                Kind::Internal => Some((pod.id()?, &args.netns, &args.ifname)),
                _ => None,
            },
        })?;
        let asked = self.db.request_port(&name)?;
        let addresses = match conf.ipam()? {
            Some(ipam) => {
                self.addresses = true;
                let raw = Value::Object(conf.raw.clone());
                let addresses = Addresses::read(&delegate::run(args, conf, ipam, "ADD", &raw)?)?;
                if addresses.ips.is_empty() {
                    return fail(Code::Delegate, format!("plug-in {ipam} handed out no address"));
                }
                addresses
            }
            None => Addresses::default(),
        };
        self.db.wait_for_port(&name, asked)?;
        let change = Change {
            name: Some(&args.ifname),
            mac: Some(mac),
            mtu_bytes: conf.own.mtu,
            ..Change::default()
        };
        let device = match kind {
            Kind::VhostUser => None,
            Kind::Veth => pod.device(&args.ifname)?,
            Kind::Device => match given {
                Some(given) => given.give(&net, pod, conf, &change)?,
                None => None,
            },
            _ => Some(match pod.born(&args.ifname, &name, &change)? {
                Some(device) => device,
                None => pod.take(&net, &host::switch_device(&net, conf, kind, &name)?, &change)?,
            }),
        };
        if let Some(device) = &device {
            pod.configure(device, &addresses)?;
        }
        let made = Made {
            port: &name,
            ifname: &args.ifname,
            netns: &args.netns,
            mac: Some(mac),
            mtu_bytes: device.as_ref().map(|d| d.mtu_bytes).or(conf.own.mtu),
            socket: socket.as_deref(),
            pci: given.and_then(|given| given.pci.as_deref()),
            choice: choice.clone(),
        };
        Ok(addresses.result(&conf.version, &made, conf.raw.get("dns")))
    }

    /// Makes the directory of a vhost-user socket; returns the socket's path.
    fn socket_dir(&mut self) -> Result<String, Failure> {
        let dir = names::make_socket_dir(self.conf.socket_dir(), &self.args.port_name())?;
        self.dir = true;
        Ok(dir.join("vhost.sock").display().to_string())
    }

    /// Undoes all steps. Steps that cannot be undone are left to the DEL that runtimes send after a failed
    /// ADD.
    fn all(&mut self) {
        let mut found = self.db.of(self.args);
        if found.is_err()
            && let Ok(db) = Db::open(self.conf)
        {
            // Open a new connection: one that failed once is of no use.
            self.db = db;
            found = self.db.of(self.args);
        }
        if let Ok(found) = found {
            let _ = self.db.remove(&found);
            found.iter().for_each(device::give_back);
        }
        if self.dir {
            names::remove_socket_dir(self.conf.socket_dir(), &self.args.port_name());
        }
        if let Some(name) = &self.veth {
            host::remove_device(name);
        }
        if let (true, Ok(Some(ipam))) = (self.addresses, self.conf.ipam()) {
            let _ = delegate::run(
                self.args,
                self.conf,
                ipam,
                "DEL",
                &Value::Object(self.conf.raw.clone()),
            );
        }
    }
}

/// `external_ids` of a pod's rows.
pub(crate) fn marks(args: &Args, conf: &Conf, kind: Kind, inode: u64) -> BTreeMap<String, String> {
    let mut ids = conf.own.external_ids.clone();
    let mut mark = |key: &str, value: &str| ids.insert(key.to_owned(), value.to_owned());
    mark(NETWORK, &conf.name);
    mark(CONTAINER, &args.container);
    mark(IFNAME, &args.ifname);
    mark(NETNS, &args.netns);
    mark(NETNS_INODE, &inode.to_string());
    mark(KIND, kind.name());
    if let (Some(ns), Some(pod)) = (args.extra("K8S_POD_NAMESPACE"), args.extra("K8S_POD_NAME")) {
        mark("heddle-cni/pod", &format!("{ns}/{pod}"));
    }
    ids
}
