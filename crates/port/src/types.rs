//! The types of ports: one table, from which all else that depends on a type is read.
//!
//! A new type is one entry of [`TYPES`] and one file that implements [`Port`]. `Open_vSwitch.iface_types`,
//! the options of an `Interface` of the type, and the thread that polls it follow from the entry.

use crate::guest::vduse::{VduseContext, is_vduse, open_vduse};
use crate::guest::vhost::{VhostContext, open_vhost};
use crate::{
    AfxdpPort, Birthplace, Divert, DummyPort, IngressFilters, KeptTaps, MarkPrograms, Port, PortError,
    Receivers, SystemPort, dummy, tap,
};
use heddle_tunnel::TunnelType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One type of port. Each `bool` is one special property of it.
#[derive(Debug)]
pub struct PortType {
    /// `Interface.type`.
    pub name: &'static str,
    /// The way in which a port of the type is made.
    pub make: Make,
    /// The type exists for tests only, with `--enable-dummy`, and no packet leaves the process by it.
    pub pretended: bool,
    /// The type that takes its place in tests, and when.
    pub instead: Option<(Pretend, &'static str)>,
    /// The queues of the type are assigned to workers and shown (`dpif-netdev/pmd-rxq-show`). The first
    /// worker polls all queues of other types.
    pub pmd: bool,
    /// The type's device is one of the kernel's and can disappear at any time. Open vSwitch polls such
    /// devices on its main thread.
    pub kernel: bool,
    /// The type's device outlives the process ([`KeptTaps`]).
    pub persists: bool,
    /// The type changes settings of its device, and restores them when it goes or the process ends.
    pub restores: bool,
    /// `Interface.mac` is its address.
    pub takes_mac: bool,
    /// The port's MTU follows those of its bridge's other ports, unless `mtu_request` is set.
    pub follows_mtu: bool,
    /// Maximum number of receive queues; `None`: as many as there are workers.
    pub max_rxq: Option<usize>,
    /// The options that `dpctl/show` shows.
    pub shown_options: &'static [&'static str],
}

/// The way in which a port is made.
#[derive(Debug)]
pub enum Make {
    /// No device: the port exists in translation only.
    Nothing,
    /// A place in the datapath that it shares with tunnels of its type ([`crate::TunnelPort`]).
    Tunnel(TunnelType),
    /// Another name for that type: its ports are made in the same way.
    As(&'static str),
    /// A device, opened by this function.
    Device(fn(&Request<'_>) -> Result<Arc<dyn Port>, PortError>),
}

/// When a pretended device takes the place of a real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pretend {
    /// In a pretended datapath.
    InDatapath,
    /// With `--enable-dummy=system` or `--enable-dummy=override`.
    System,
    /// With `--enable-dummy=override`.
    Override,
}

/// A port that is to be opened.
pub struct Request<'a> {
    kind: &'static PortType,
    name: &'a str,
    options: &'a BTreeMap<String, String>,
    host: &'a dyn Host,
}

/// Services that ports may need of their program.
pub trait Host {
    /// The program's persistent taps; without them, a tap device ends with its port.
    fn taps(&self) -> Option<&KeptTaps> {
        None
    }
    /// The namespace and name of a tap device that has to be made.
    fn birthplace(&self) -> Option<Birthplace<'_>> {
        None
    }
    /// The programs by which packets' marks cross its internal ports.
    fn marks(&self) -> Option<Arc<dyn MarkPrograms>> {
        None
    }
    /// The program that takes packets of its `system` ports; without one, packet sockets take them.
    fn divert(&self) -> Option<Arc<dyn Divert>> {
        None
    }
    /// The filters that keep packets of its `system` ports from the host's stack, which else gets a copy.
    fn ingress_filters(&self) -> Option<Arc<IngressFilters>> {
        None
    }
    /// Receiving sockets for its `system` ports that were made before.
    fn receivers(&self) -> Option<Arc<Receivers>> {
        None
    }
    /// The packets of the port's device that the host's stack gets from the first one on
    /// ([`Port::set_xdp_pass`]).
    fn xdp_pass(&self) -> Option<&str> {
        None
    }
    /// The state that its vhost-user ports share, for port `name`.
    ///
    /// # Errors
    /// When it has none, or none can be made.
    fn vhost(&self, _name: &str) -> Result<VhostContext, PortError> {
        Err(PortError::Unsupported("vhost-user"))
    }
    /// The state that its VDUSE ports share, and the settings of port `name`.
    ///
    /// # Errors
    /// When it has none, or none can be made.
    fn vduse(&self, _name: &str) -> Result<VduseContext, PortError> {
        Err(PortError::Unsupported("vduse"))
    }
}

fn system(request: &Request<'_>) -> Result<Arc<dyn Port>, PortError> {
    let port = SystemPort::open(request.name)?;
    let port = port.diverted_by(request.host.divert());
    let port = port.kept_by(request.host.ingress_filters());
    Ok(Arc::new(port.with_receivers(request.host.receivers())))
}

fn internal(request: &Request<'_>) -> Result<Arc<dyn Port>, PortError> {
    let host = request.host;
    let birthplace = || host.birthplace();
    tap::open(
        request.name,
        request.options,
        host.taps(),
        birthplace,
        host.marks(),
    )
}

/// A program that offers nothing.
struct Alone;
impl Host for Alone {}

/// A type about which nothing is special.
const PLAIN: PortType = PortType {
    name: "",
    make: Make::Nothing,
    pretended: false,
    instead: None,
    pmd: true,
    kernel: false,
    persists: false,
    restores: false,
    takes_mac: false,
    follows_mtu: false,
    max_rxq: None,
    shown_options: &[],
};

/// A device for tests.
const DUMMY: PortType = PortType {
    make: Make::Device(|r| Ok(DummyPort::open(r.kind.name, r.name, r.options)?)),
    pretended: true,
    pmd: false,
    max_rxq: Some(dummy::MAX_QUEUES),
    shown_options: &["ifindex", "pstream", "stream"],
    ..PLAIN
};

/// The virtio-net device of a virtual machine.
const VHOST: PortType = PortType {
    make: Make::Device(machine),
    ..PLAIN
};

/// The virtio-net device of a pod.
const VDUSE: PortType = PortType {
    make: Make::Device(pod),
    takes_mac: true,
    ..PLAIN
};

fn pod(r: &Request<'_>) -> Result<Arc<dyn Port>, PortError> {
    open_vduse(r.kind.name, r.name, r.options, r.host.vduse(r.name)?)
}

fn machine(r: &Request<'_>) -> Result<Arc<dyn Port>, PortError> {
    open_vhost(r.kind.name, r.name, r.options, r.host.vhost(r.name)?)
}

/// A socket, or a device that stands for one (Open vSwitch 3.5).
fn client(r: &Request<'_>) -> Result<Arc<dyn Port>, PortError> {
    if is_vduse(r.options) { pod(r) } else { machine(r) }
}

/// A tunnel.
const fn tunnel(name: &'static str, ty: TunnelType) -> PortType {
    PortType {
        name,
        make: Make::Tunnel(ty),
        pmd: false,
        ..PLAIN
    }
}

/// All types, in order of their names.
#[rustfmt::skip]
pub static TYPES: [PortType; 24] = [
    // A network device of the host, past its stack.
    PortType {
        name: "afxdp", make: Make::Device(|r| Ok(Arc::new(AfxdpPort::open(r.name, r.options, r.host.xdp_pass())?))),
        kernel: true, restores: true, max_rxq: Some(AfxdpPort::MAX_RXQ), ..PLAIN
    },
    PortType {
        name: "afxdp-nonpmd", make: Make::As("afxdp"), kernel: true, max_rxq: Some(AfxdpPort::MAX_RXQ), ..PLAIN
    },
    tunnel("bareudp", TunnelType::Bareudp),
    PortType {
        name: "dpdk", make: Make::Device(|r| Ok(Arc::new(AfxdpPort::open_dpdk(r.name, r.options, r.host.xdp_pass())?))),
        kernel: true, restores: true, max_rxq: Some(AfxdpPort::MAX_RXQ), shown_options: &["dpdk-devargs"], ..PLAIN
    },
    PortType { name: "dpdkvhostuser", ..VHOST },
    PortType { name: "dpdkvhostuserclient", make: Make::Device(client), ..VHOST },
    PortType { name: "dummy", ..DUMMY },
    PortType { name: "dummy-internal", follows_mtu: true, ..DUMMY },
    PortType { name: "dummy-pmd", pmd: true, ..DUMMY },
    tunnel("erspan", TunnelType::Erspan),
    tunnel("geneve", TunnelType::Geneve),
    tunnel("gre", TunnelType::Gre),
    tunnel("gtpu", TunnelType::Gtpu),
    // A tap device: the host's own end of a bridge.
    PortType {
        name: "internal", make: Make::Device(internal),
        instead: Some((Pretend::InDatapath, "dummy-internal")), kernel: true, persists: true, takes_mac: true, follows_mtu: true, ..PLAIN
    },
    tunnel("ip6erspan", TunnelType::Ip6erspan),
    tunnel("ip6gre", TunnelType::Ip6gre),
    tunnel("lisp", TunnelType::Lisp),
    // One end of a cable between two bridges.
    PortType { name: "patch", shown_options: &["peer"], ..PLAIN },
    tunnel("srv6", TunnelType::Srv6),
    tunnel("stt", TunnelType::Stt),
    // A network device of the host.
    PortType {
        name: "system", make: Make::Device(system),
        instead: Some((Pretend::System, "dummy")), kernel: true, ..PLAIN
    },
    PortType {
        name: "tap", make: Make::As("internal"), instead: Some((Pretend::Override, "dummy")), ..PLAIN
    },
    PortType { name: "vduse", ..VDUSE },
    tunnel("vxlan", TunnelType::Vxlan),
];

impl PortType {
    /// The type of that name; the empty name means `system`.
    pub fn named(name: &str) -> Option<&'static PortType> {
        let name = if name.is_empty() { "system" } else { name };
        TYPES.iter().find(|t| t.name == name)
    }

    /// The type that ports of this one are made as: itself, unless it is another name for one.
    pub fn real(&'static self) -> &'static PortType {
        match self.make {
            Make::As(name) => Self::named(name).expect("a name of the table"),
            _ => self,
        }
    }

    /// Name of the kernel's device that a port of this type uses. `None`: it uses none, or the options name
    /// none.
    pub fn device(&self, name: &str, options: &BTreeMap<String, String>) -> Option<String> {
        match self.name {
            "dpdk" => AfxdpPort::device_of_dpdk(options),
            _ => self.kernel.then(|| name.to_owned()),
        }
    }

    /// Opens port `name`.
    ///
    /// # Errors
    /// [`PortError::Sys`] when the device cannot be opened, [`PortError::Config`] for options that make no
    /// sense, [`PortError::Unsupported`] for a type without devices. [`PortError::Busy`] when another
    /// program uses the device.
    pub fn open(
        &'static self,
        name: &str,
        options: &BTreeMap<String, String>,
        host: &dyn Host,
    ) -> Result<Arc<dyn Port>, PortError> {
        let kind = self.real();
        match kind.make {
            Make::Device(open) => open(&Request {
                kind,
                name,
                options,
                host,
            }),
            Make::Nothing | Make::As(_) | Make::Tunnel(_) => Err(PortError::Unsupported(self.name)),
        }
    }
}

impl dyn Port + '_ {
    /// Properties of its type. Tests have ports of types that are not in the table.
    pub fn port_type(&self) -> &'static PortType {
        PortType::named(self.kind()).unwrap_or(const { &PLAIN })
    }

    /// Whether workers poll the type's queues by assignment ([`PortType::pmd`]).
    pub fn is_pmd(&self) -> bool {
        self.port_type().pmd
    }
}

/// The errors of [`PortType::open`]; [`PortError::Config`] for a type that does not exist.
pub fn open(kind: &str, name: &str, options: &BTreeMap<String, String>) -> Result<Arc<dyn Port>, PortError> {
    let unknown = || PortError::Config(format!("could not create {name}: unknown interface type {kind}"));
    PortType::named(kind)
        .ok_or_else(unknown)?
        .open(name, options, &Alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        assert!(TYPES.is_sorted_by_key(|t| t.name));
        for t in &TYPES {
            assert!(std::ptr::eq(PortType::named(t.name).unwrap(), t));
            assert!(!matches!(t.real().make, Make::As(_)), "{}", t.name);
            if let Make::Tunnel(ty) = t.make {
                assert_eq!(ty.name(), t.name);
            }
            if let Some((_, name)) = t.instead {
                assert!(PortType::named(name).unwrap().pretended, "{}", t.name);
            }
        }
        assert_eq!(PortType::named("").unwrap().name, "system");
    }

    #[test]
    fn ports_are_of_the_requested_type() {
        for kind in TYPES.iter().filter(|t| t.pretended) {
            let port = open(kind.name, "p1", &BTreeMap::new()).unwrap();
            assert!(std::ptr::eq(port.port_type(), kind));
        }
        let why = |kind| open(kind, "p1", &BTreeMap::new()).err().unwrap().to_string();
        assert_eq!(
            why("tunnel"),
            "could not create p1: unknown interface type tunnel"
        );
        assert_eq!(why("patch"), "patch not supported");
        assert_eq!(why("dpdkvhostuser"), "vhost-user not supported");
    }
}
