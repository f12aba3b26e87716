//! ADD alone: a port of the bridge for the pod.
//!
//! The order: the row first, since the switch needs time for it; addresses while it works; the device last.
//! The row names the pod's namespace, and the switch makes a tap device there if it can: the kernel takes
//! long to move one. If the switch cannot (it has a file system of its own, for example), the plug-in moves
//! the device. If a step fails, [`Undo`] undoes the steps before it.

use crate::args::Args;
use crate::conf::{self, Conf};
use crate::db::{CONTAINER, Db, IFNAME, KIND, NETNS, NETNS_INODE, NETWORK, NewPort};
use crate::error::{Code, Failure, fail, kernel};
use crate::kind::Kind;
use crate::pod::Pod;
use crate::result::{Addresses, Made};
use crate::{del, delegate, names};
use heddle_sys::NetConfig;
use heddle_sys::htb::Htb;
use heddle_sys::net_config::{Change, Device};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Adds the pod's port; returns the result.
pub(crate) fn add(args: &Args, conf: &Conf) -> Result<(Option<Value>, String), Failure> {
    conf.bridge()?;
    let kind = conf.kind.on_this_node()?;
    let pod = Pod::open(&args.netns)?;
    let mut db = Db::open(conf)?;
    let earlier = db.of(args)?;
    if !earlier.is_empty() {
        // The runtime repeats an attempt whose end it has not seen.
        del::take_away(args, conf, &mut db, &earlier)?;
    } else if kind == Kind::Veth {
        // The device of an earlier ADD that was killed before it had written its row.
        remove_host_device(&port_name(args));
    }
    if kind != Kind::VhostUser {
        pod.wait_until_free(&args.ifname, &port_name(args))?;
    }
    let mut undo = Undo {
        conf,
        args,
        db,
        addresses: false,
        veth: None,
        dir: false,
    };
    match undo.add(kind, &pod) {
        Ok(result) => Ok((Some(result), format!("kind {}", kind.name()))),
        Err(e) => {
            undo.all();
            Err(e)
        }
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
    fn add(&mut self, kind: Kind, pod: &Pod) -> Result<Value, Failure> {
        let (args, conf) = (self.args, self.conf);
        let name = port_name(args);
        let mac = conf.mac(args)?.unwrap_or_else(|| port_mac(args));
        let host = NetConfig::new(None).map_err(|e| kernel("netlink", &e))?;
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
            host.add_veth(&name, mtu, &peer)
                .map_err(|e| kernel("making a veth pair", &e))?;
            self.veth = Some(name.clone());
            if conf.bandwidth.ingress_rate > 0 {
                can_limit(&host, &name)?;
            }
        }
        self.db.add(&NewPort {
            name: &name,
            bridge: conf.bridge()?,
            kind,
            mac,
            mtu_bytes: conf.own.mtu,
            vlan: &conf.vlan,
            bandwidth: conf.bandwidth,
            socket: socket.as_deref(),
            options: &conf.own.options,
            ids: marks(args, conf, kind, pod.id()?),
            birthplace: match kind {
                Kind::Internal => Some((pod.id()?, &args.netns, &args.ifname)),
                _ => None,
            },
        })?;
        let asked = self.db.ask_for_port(&name)?;
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
            _ => Some(match pod.born(&args.ifname, &name, &change)? {
                Some(device) => device,
                None => pod.take(&host, &switch_device(&host, conf, kind, &name)?, &change)?,
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
            kind: kind.name(),
        };
        Ok(addresses.result(&conf.version, &made, conf.raw.get("dns")))
    }

    /// Makes the directory of a vhost-user socket; returns the socket's path.
    fn socket_dir(&mut self) -> Result<String, Failure> {
        let dir = names::make_socket_dir(self.conf.socket_dir(), &port_name(self.args))?;
        self.dir = true;
        Ok(dir.join("vhost.sock").display().to_string())
    }

    /// Undoes all steps. Steps that cannot be undone are left to the DEL that runtimes send after a failed
    /// ADD.
    fn all(&mut self) {
        if let Ok(found) = self.db.of(self.args) {
            let _ = self.db.remove(&found);
        } else if let Ok(mut db) = Db::open(self.conf) {
            // Open a new connection: one that failed once is of no use.
            let _ = db.of(self.args).and_then(|found| db.remove(&found));
        }
        if self.dir {
            names::remove_socket_dir(self.conf.socket_dir(), &port_name(self.args));
        }
        if let Some(name) = &self.veth {
            remove_host_device(name);
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

/// Fails if the kernel lacks the queueing discipline by which the switch limits the packets to a veth's pod.
/// The switch replaces the one that is made here as a test.
fn can_limit(host: &NetConfig, name: &str) -> Result<(), Failure> {
    let Some(device) = host.device(name).map_err(|e| kernel(name, &e))? else {
        return fail(Code::Device, format!("the device {name} is gone"));
    };
    match Htb::new().and_then(|htb| htb.make(device.ifindex)) {
        Ok(()) => Ok(()),
        Err(e) => fail(
            Code::NoKind,
            format!(
                "bandwidth: the kernel cannot limit kind veth ({}): use kind internal or vduse",
                heddle_sys::errno_text(&e)
            ),
        ),
    }
}

/// Removes a device of the host's namespace, if it is there.
pub(crate) fn remove_host_device(name: &str) {
    if let Ok(host) = NetConfig::new(None)
        && let Ok(Some(device)) = host.device(name)
    {
        let _ = host.remove(device.ifindex);
    }
}

/// The device that the switch has made for a port.
pub(crate) fn switch_device(
    host: &NetConfig,
    conf: &Conf,
    kind: Kind,
    port: &str,
) -> Result<Device, Failure> {
    // The netdev of a VDUSE device comes after its port; the kernel makes one at a time.
    let patience = match kind {
        Kind::Vduse => conf.timeout(),
        _ => Duration::from_secs(1),
    };
    let end = Instant::now() + patience;
    loop {
        let name = match kind {
            Kind::Vduse => vduse_device(port).unwrap_or_default(),
            _ => port.to_owned(),
        };
        let device = host
            .device(&name)
            .map_err(|e| kernel(&format!("device {name}"), &e))?;
        match device {
            Some(device) => return Ok(device),
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            None if kind == Kind::Vduse => {
                let hint = format!("ovs-vsctl get interface {port} status error");
                return fail(
                    Code::Device,
                    format!(
                        "no netdev of VDUSE device {port} came within {} s ({hint})",
                        patience.as_secs()
                    ),
                );
            }
            None => {
                return fail(
                    Code::Device,
                    format!("the switch's device for port {port} is not in the plug-in's network namespace"),
                );
            }
        }
    }
}

/// The netdev of a device on the vDPA bus.
fn vduse_device(port: &str) -> Option<String> {
    let children = |dir: &Path| {
        std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
    };
    let device = PathBuf::from(format!("/sys/bus/vdpa/devices/{port}"));
    let is_virtio = |p: &PathBuf| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("virtio"))
    };
    let virtio = children(&device).find(is_virtio)?;
    let netdev = children(&virtio.join("net")).next()?;
    Some(netdev.file_name()?.to_string_lossy().into_owned())
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

/// Hash of the container's id and the device's name.
fn hash(args: &Args) -> u64 {
    // FNV-1a, 64 bits, and a mixing step, since neighbours would differ in few bits.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in args.container.bytes().chain([0]).chain(args.ifname.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}

/// Name of the port of a container's device, always the same.
pub(crate) fn port_name(args: &Args) -> String {
    format!("h{:014x}", hash(args) & 0xff_ffff_ffff_ffff)
}

/// Address of a container's device, always the same: a local one.
fn port_mac(args: &Args) -> [u8; 6] {
    let [.., b, c, d, e, f] = hash(args).to_be_bytes();
    [0x0a, b, c, d, e, f]
}

/// Configuration for another plug-in, as JSON, with the earlier result.
pub(crate) fn with_previous(conf: serde_json::Map<String, Value>, previous: Option<Value>) -> Value {
    conf::with(conf, "prevResult", previous.map(|p| json!(p)))
}
