//! Makes one interface: its kind, its device, its place in the datapath.
//!
//! A failure is logged and returned for `Interface.error`, in the words that `ovs-vsctl` shows to its user.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use heddle_datapath::{Datapath, DatapathError, PortConfig as QueueConfig};
use heddle_datapath_api::PortNo;
use heddle_openflow::Port as OfPort;
use heddle_port::VduseContext;
use heddle_port::{Birthplace, Host, KeptTaps, Port, PortError, PortStatus, PortType, VhostContext};
use heddle_sys::errno_text;
use heddle_tunnel::TunnelType;

use super::iface::Session;
use super::{Body, Iface, InterfaceError};
use crate::reconcile::claims::Claim;
use crate::reconcile::desired::{BridgeRow, InterfaceRow, PortRow};
use crate::reconcile::environment::Environment;
use crate::reconcile::mac;
use crate::reconcile::tunnels::Tunnels;

/// Names that the datapaths themselves have.
const RESERVED: [&str; 3] = ["ovs-netdev", "ovs-dummy", "ovs-system"];

/// Key of `Interface.other_config`: the packets of a network card that the host's stack gets.
pub(super) const XDP_PASS: &str = "heddle-xdp-pass";

/// Maximum length of a kernel device's name, bytes (`IFNAMSIZ` without the final zero byte).
const MAX_DEVICE_NAME_BYTES: usize = 15;

/// Whether a name is too long for a device of this type.
fn is_too_long(name: &str, kind: &PortType) -> bool {
    matches!(kind.name, "internal" | "system" | "tap") && name.len() > MAX_DEVICE_NAME_BYTES
}

/// A device that was added to the datapath.
struct Opened {
    device: Arc<dyn Port>,
    no: PortNo,
    /// The device's error for the requested MTU, if it refuses.
    mtu_refused: Option<String>,
    claim: Option<Claim>,
}

/// Makes an interface that has no number yet; `taken`: names that another bridge has.
pub(super) fn make(
    bridge: &BridgeRow,
    port: &PortRow,
    row: &InterfaceRow,
    taken: &BTreeSet<String>,
    env: &Environment,
    tunnels: &mut Tunnels,
) -> Result<Iface, InterfaceError> {
    let name = &row.name;
    if RESERVED.contains(&name.as_str()) || TunnelType::has_name(name) {
        log::warn!(target: "bridge", "could not create interface {name}, name is reserved");
        return Err(InterfaceError::default());
    }
    let cannot_open = |why: &str| -> InterfaceError {
        let text = format!("could not open network device {name} ({why})");
        log::warn!(target: "bridge", "{text}");
        text.into()
    };
    if name.is_empty() {
        return Err(cannot_open("Invalid argument"));
    }
    if taken.contains(name) {
        let text = format!("could not add network device {name} to ofproto (File exists)");
        log::warn!(target: "bridge", "{text}");
        return Err(text.into());
    }
    let Ok(kind) = bridge.kind_of(row, &env.switch.options) else {
        log::warn!(target: "netdev", "could not create netdev {name} of unknown type {}", row.kind);
        return Err(cannot_open(&format!("unknown type {}", row.kind)));
    };
    if is_too_long(name, kind.open) {
        return Err(cannot_open("File name too long"));
    }
    let (body, status, mtu_refused, claim) = if let Some(ty) = kind.tunnel() {
        (
            Body::Tunnel(tunnels.add(bridge, row, ty, env)?),
            patch_status(),
            None,
            None,
        )
    } else if kind.is_patch() {
        let peer = patch_peer(row).inspect_err(|why| {
            log::error!(target: "netdev_vport", "{why}");
            log::warn!(target: "netdev", "{name}: could not set configuration (Invalid argument)");
        });
        (Body::Patch(peer?), patch_status(), None, None)
    } else {
        let Opened {
            device,
            no,
            mtu_refused,
            claim,
        } = open(bridge, row, kind.open, env)?;
        let status = device.status();
        (Body::Device(device, no), status, mtu_refused, claim)
    };
    Ok(Iface {
        name: name.clone(),
        uuid: row.uuid,
        port: port.name.clone(),
        kind: kind.requested,
        shown: kind.shown,
        no: OfPort::NONE,
        body,
        _claim: claim,
        status,
        options: row.options.clone(),
        mtu_request: row.mtu_request,
        mtu_refused,
        qos_refused: None,
        pair_fault: None,
        mtu_released: false,
        is_new: true,
        policing: Vec::new(),
        session: Session::default(),
    })
}

fn open(
    bridge: &BridgeRow,
    row: &InterfaceRow,
    kind: &'static PortType,
    env: &Environment,
) -> Result<Opened, InterfaceError> {
    let failed = |text: String, error: &(dyn Error + 'static)| {
        log::warn!(target: "bridge", "{text}");
        InterfaceError::new(text, error)
    };
    let options = &row.options.0;
    let mut claim = None;
    // An internal port makes its device.
    if let Some(device) = kind.device(&row.name, options).filter(|_| !kind.persists) {
        let taken = env.claims.take(&device, &row.name).map_err(|owner| {
            let text = format!("could not open network device {device} (it is the device of port {owner})");
            log::warn!(target: "bridge", "{text}");
            InterfaceError::from(text)
        });
        claim = Some(taken?);
    }
    let made = kind.open(&row.name, options, &Opening { env, bridge, row });
    let device = made.map_err(|e| failed(e.to_string(), &e))?;
    if kind.persists && device.is_here() {
        claim = env.claims.take(&row.name, &row.name).ok();
    }
    let mtu_refused = request_mtu(device.as_ref(), row);
    steer_tx(device.as_ref(), row);
    let datapath = &env.switch.datapath;
    let wish = env.wished_number(&bridge.datapath_type, &row.name);
    let no = datapath.add_port(device.clone(), wish).map_err(|error| {
        let text = match &error {
            DatapathError::Port(error) => error.to_string(),
            DatapathError::Io(error) => format!(
                "could not add network device {} to ofproto ({})",
                row.name,
                errno_text(error)
            ),
            other => format!("could not add network device {} to ofproto ({other})", row.name),
        };
        failed(text, &error)
    })?;
    device.steer(&env.globals.cpus_without_workers());
    set_queues(no, row, &device.status(), datapath);
    Ok(Opened {
        device,
        no,
        mtu_refused,
        claim,
    })
}

/// Gives a device's receive queues to workers: the number that the user wants, or that the device has by
/// itself (`status`).
pub(super) fn set_queues(no: PortNo, row: &InterfaceRow, status: &PortStatus, datapath: &Datapath) {
    // More queues than workers would only cost memory; pretended devices may have more, for tests.
    let most = PortType::named(&row.kind).and_then(|t| t.max_rxq);
    let most = most.unwrap_or_else(|| datapath.n_workers().max(1));
    if let Some(text) = row.options.get("n_rxq")
        && !text.trim().parse::<u64>().is_ok_and(|n| n > 0)
    {
        log::warn!(target: "dpif_netdev", "{}: options:n_rxq={text} is no number of queues: 1 is used", row.name);
    }
    let wanted = usize::try_from(row.options.number("n_rxq", 1)).unwrap_or(1);
    let n_rxq = status.n_rxq.unwrap_or(wanted.clamp(1, most)).max(1);
    let affinity = affinity(row);
    for (queue, _) in affinity.iter().filter(|(queue, _)| *queue >= n_rxq) {
        log::warn!(target: "dpif_netdev", "{}: pmd-rxq-affinity names queue {queue}, and there are {n_rxq} now", row.name);
    }
    let config = QueueConfig {
        n_rxq,
        affinity,
        numa: status.numa,
    };
    if let Err(error) = datapath.configure_port(no, config) {
        log::warn!(target: "dpif_netdev", "{}: {error}", row.name);
    }
}

/// The switch, for the port of one row.
struct Opening<'a> {
    env: &'a Environment,
    bridge: &'a BridgeRow,
    row: &'a InterfaceRow,
}

impl Host for Opening<'_> {
    fn taps(&self) -> Option<&KeptTaps> {
        Some(self.env.taps.kept())
    }
    fn birthplace(&self) -> Option<Birthplace<'_>> {
        // Later the path may lead to another program's namespace, so it counts only for a row without a port
        // number.
        if self.row.ofport.is_some() {
            return None;
        }
        let wish = &self.row.other_config;
        Some(Birthplace {
            namespace: Path::new(wish.get("netns")?),
            id: wish.get("netns-inode")?.parse().ok()?,
            device: wish.get("netns-device")?,
        })
    }
    fn marks(&self) -> Option<Arc<dyn heddle_port::MarkPrograms>> {
        Some(self.env.marks.clone())
    }
    fn divert(&self) -> Option<Arc<dyn heddle_port::Divert>> {
        let diverter = self.env.diverter.as_ref()?;
        diverter.of_type(&self.bridge.datapath_type)
    }
    fn ingress_filters(&self) -> Option<Arc<heddle_port::IngressFilters>> {
        self.env.switch.ingress.get().cloned()
    }
    fn receivers(&self) -> Option<Arc<heddle_port::Receivers>> {
        Some(self.env.receivers.clone())
    }
    fn xdp_pass(&self) -> Option<&str> {
        self.row.other_config.get(XDP_PASS)
    }
    fn vhost(&self, name: &str) -> Result<VhostContext, PortError> {
        self.env.guests.vhost(name, &self.env.switch, &self.env.globals)
    }
    fn vduse(&self, name: &str) -> Result<VduseContext, PortError> {
        self.env.guests.vduse(name, &self.env.switch, self.row)
    }
}

/// `tx-steering`: whether flows (`hash`) or workers (`thread`, the default) choose among a device's transmit
/// queues.
pub(super) fn steer_tx(device: &dyn Port, row: &InterfaceRow) {
    let mode = row.other_config.get("tx-steering");
    if let Some(other) = mode.filter(|mode| !matches!(*mode, "thread" | "hash")) {
        log::warn!(target: "dpif_netdev", "{}: tx-steering={other} is neither 'thread' nor 'hash': 'thread' is used", row.name);
    }
    device.set_tx_steering(mode == Some("hash"));
}

/// Gives the device the MTU that the user wants, or else the default MTU of its type, if there is one. The
/// device's error is returned, for `Interface.error`.
pub(super) fn request_mtu(device: &dyn Port, row: &InterfaceRow) -> Option<String> {
    let wish = row.mtu_request.or(device.default_mtu())?;
    let status = device.status();
    // The error may be about an earlier request.
    if status.mtu == wish && status.error.is_none() {
        return None;
    }
    let error = device.set_mtu(wish).err()?;
    log::warn!(target: "netdev", per_min = 5, burst = 5; "failed to set MTU for network device {}: {error}", row.name);
    Some(error.to_string())
}

/// The name of the peer, or the fault in the options.
pub(super) fn patch_peer(row: &InterfaceRow) -> Result<String, String> {
    let name = &row.name;
    match row.options.get("peer") {
        None => Err(format!("{name}: patch type requires valid 'peer' argument")),
        Some(_) if row.options.0.len() > 1 => Err(format!("{name}: patch type takes only a 'peer' argument")),
        Some(peer) if peer == name => Err(format!("{name}: patch peer must not be self")),
        Some(peer) => Ok(peer.to_owned()),
    }
}

fn patch_status() -> PortStatus {
    PortStatus {
        mac: mac::random_mac(),
        admin_up: true,
        link_up: true,
        ..PortStatus::default()
    }
}

/// `pmd-rxq-affinity`: `queue:processor` pairs. Other items are left out.
fn affinity(row: &InterfaceRow) -> Vec<(usize, usize)> {
    let text = row.other_config.get("pmd-rxq-affinity").unwrap_or_default();
    let number = |text: &str| text.trim().parse().ok();
    let mut pairs = Vec::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        match part
            .split_once(':')
            .and_then(|(queue, core)| Some((number(queue)?, number(core)?)))
        {
            Some(pair) => pairs.push(pair),
            None => {
                log::warn!(target: "dpif_netdev", "{}: pmd-rxq-affinity: '{part}' is no pair queue:processor and changes nothing", row.name);
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kernel_devices_have_a_length() {
        let too_long = |name: &str, kind: &str| is_too_long(name, PortType::named(kind).expect("a type"));
        for kind in ["internal", "system", "tap"] {
            assert!(!too_long("a23456789012345", kind), "{kind}");
            assert!(too_long("a234567890123456", kind), "{kind}");
        }
        for kind in ["dpdkvhostuserclient", "dummy", "patch"] {
            assert!(!too_long("a234567890123456", kind), "{kind}");
        }
    }
}
