//! Tunnel interfaces, and the datapath ports that they share.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_datapath_api::PortNo;
use heddle_ofproto::tunnels::Tunnel;
use heddle_port::{PortStatus, TunnelPort};
use heddle_tunnel::config::{Local, encryption_option, parse, show_datapath_port};
use heddle_tunnel::routes::Query;
use heddle_tunnel::{TunnelConfig, TunnelType};
use parking_lot::Mutex;

use super::Reconciler;
use super::desired::{BridgeRow, InterfaceRow};
use super::globals::ALLOW_CLEAR;
use super::kinds;
use super::state::{Body, Iface, Item};

/// A datapath port that tunnels share.
struct Shared {
    device: Arc<TunnelPort>,
    no: PortNo,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Tunnels(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Bridge and tunnel by name of the interface.
    tunnels: BTreeMap<String, (String, Arc<Tunnel>)>,
    /// Shared tunnels by name of the datapath port.
    shared: BTreeMap<String, Shared>,
}

impl Known {
    /// The tunnel that receives the same packets as this one would, if it is not `name` itself.
    fn alike(&self, name: &str, tunnel: &Tunnel) -> Option<&String> {
        let mut others = self.tunnels.iter().filter(|(other, _)| *other != name);
        others
            .find(|(_, (_, t))| t.has_same_match(tunnel))
            .map(|(other, _)| other)
    }

    /// Whether another tunnel on the same UDP port differs in its use of group policies. Packets to a port
    /// can be read in one way only.
    fn disagrees(&self, name: &str, config: &TunnelConfig) -> bool {
        let of_port = |t: &Tunnel| t.config.ty == TunnelType::Vxlan && t.config.dst_port == config.dst_port;
        let mut others = self.tunnels.iter().filter(|(other, _)| *other != name);
        config.ty == TunnelType::Vxlan && others.any(|(_, (_, t))| of_port(t) && t.config.gbp != config.gbp)
    }

    /// Whether some tunnel is left that uses a datapath port.
    fn is_used(&self, no: PortNo) -> bool {
        self.bridge_of(no).is_some()
    }

    /// A bridge that has a tunnel that uses a datapath port.
    fn bridge_of(&self, no: PortNo) -> Option<&str> {
        let mut users = self.tunnels.values().filter(|(_, t)| t.dp == no);
        users.next().map(|(bridge, _)| bridge.as_str())
    }
}

impl Tunnels {
    /// The datapath ports, by their names, as commands show them.
    pub(super) fn items(&self) -> BTreeMap<String, Item> {
        let known = self.0.lock();
        let item = |(name, shared): (&String, &Shared)| {
            let ty = heddle_port::Port::tunnel(&*shared.device)?;
            let bridge = known.bridge_of(shared.no)?;
            let item = Item {
                settings: show_datapath_port(ty, shared.device.dst_port()),
                ..Item::of_shared(bridge, shared.device.clone(), shared.no)
            };
            Some((name.clone(), item))
        };
        known.shared.iter().filter_map(item).collect()
    }
}

/// Why a tunnel's packets cannot leave, in `Interface.status`.
const NO_EGRESS: &str = "tunnel_egress_error";

impl Reconciler {
    /// `Interface.status` of a tunnel: the device that its packets leave by. Empty if flows choose the
    /// remote.
    pub(super) fn tunnel_status(&self, iface: &Iface) -> Vec<(String, String)> {
        let Body::Tunnel(tunnel) = &iface.body else {
            return Vec::new();
        };
        let config = &tunnel.config;
        let Some(dst) = config.remote else {
            return Vec::new();
        };
        let query = Query {
            mark: config.egress_pkt_mark.unwrap_or(0),
            dst,
            src: match config.local {
                Local::Is(src) => Some(src),
                Local::Any | Local::Flow => None,
            },
        };
        let route = self.switch.ofproto.pipeline().underlay().routes.lookup(&query);
        let mut all = match &route {
            Some(route) => {
                let carrier = if self.has_carrier(&route.device) {
                    "up"
                } else {
                    "down"
                };
                vec![
                    ("tunnel_egress_iface", route.device.to_string()),
                    ("tunnel_egress_iface_carrier", carrier.to_owned()),
                ]
            }
            None => Vec::new(),
        };
        let outside = |device: &str| {
            let inventory = self.switch.inventory.read();
            let interface = inventory.interfaces.get(device);
            interface.is_none_or(|i| i.device.is_none())
        };
        let why = match &route {
            _ if !config.writes_headers() => Some(match config.ty.name() {
                ty @ ("erspan" | "ip6erspan") => format!("{ty} without erspan_ver sends nothing"),
                ty => format!("tunnels of type {ty} are not supported"),
            }),
            Some(route) if outside(&route.device) => Some(format!(
                "the way to {dst} leads by {}, which is no port of a bridge",
                route.device
            )),
            Some(_) => None,
            None => {
                let from = query.src.map_or_else(String::new, |src| format!(" from {src}"));
                Some(format!("no route to {dst}{from}"))
            }
        };
        all.extend(why.map(|why| (NO_EGRESS, why)));
        all.into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }

    /// Whether a device has a carrier: one of the kernel's, or of the switch alone.
    fn has_carrier(&self, device: &str) -> bool {
        if let Some(carrier) = self.switch.carriers.read().get(device) {
            return *carrier;
        }
        let own = {
            let inventory = self.switch.inventory.read();
            inventory.interfaces.get(device).and_then(|i| i.device.clone())
        };
        own.is_some_and(|device| device.status().link_up)
    }
}

/// Logs that a tunnel has lost its route, or never had one.
pub(super) fn say_lost_route(iface: &Iface, now: &PortStatus) {
    let lost = |status: &PortStatus| status.extra.iter().find(|(key, _)| key == NO_EGRESS).cloned();
    let now = lost(now);
    if now != lost(&iface.status)
        && let Some((_, why)) = now
    {
        log::info!(target: "tunnel", "{}: {why}, packets into it are dropped", iface.name);
    }
}

/// Logs all faults in options at once.
fn say(lines: &[String]) {
    if !lines.is_empty() {
        log::warn!(target: "netdev_vport", "{}", lines.join("\n"));
    }
}

impl Reconciler {
    /// The option of a tunnel that requests encryption, unless the owner allows clear text.
    pub(super) fn clear_in_spite_of<'r>(&self, row: &'r InterfaceRow) -> Option<&'r str> {
        encryption_option(&row.options.0).filter(|_| !self.globals.allow_clear)
    }

    /// Reads a tunnel's options. An error is returned for `Interface.error`.
    fn tunnel_config(&self, row: &InterfaceRow, ty: TunnelType) -> Result<TunnelConfig, String> {
        let name = &row.name;
        let refuse = |lines: &[String], why: &str| {
            say(lines);
            log::warn!(target: "netdev", "{name}: could not set configuration ({why})");
            lines.join("\n")
        };
        if let Some(key) = self.clear_in_spite_of(row) {
            let line = format!(
                "{name}: option {key} asks for encryption, which Heddle does not do: nothing is sent. If the \
                 network below encrypts, set Open_vSwitch other_config:{ALLOW_CLEAR}=true"
            );
            return Err(refuse(&[line], "Operation not supported"));
        }
        let (config, lines) =
            parse(name, ty, &row.options.0).map_err(|e| refuse(&[e.text], "Invalid argument"))?;
        if self.tunnels.0.lock().disagrees(name, &config) {
            let line = format!(
                "{name}: VXLAN-GBP, and non-VXLAN-GBP tunnels can't be configured on the same dst_port"
            );
            return Err(refuse(&[&lines[..], &[line]].concat(), "File exists"));
        }
        say(&lines);
        Ok(config)
    }

    /// Makes a tunnel, with the datapath port that it needs.
    pub(super) fn add_tunnel(
        &self,
        bridge: &BridgeRow,
        row: &InterfaceRow,
        ty: TunnelType,
    ) -> Result<Arc<Tunnel>, Option<String>> {
        let config = self.tunnel_config(row, ty)?;
        let dp = self.share(bridge, &config)?;
        let tunnel = Arc::new(Tunnel::new(config, dp));
        let mut known = self.tunnels.0.lock();
        if let Some(other) = known.alike(&row.name, &tunnel) {
            log::warn!(
                target: "tunnel",
                "{}: attempting to add tunnel port with same config as port '{other}' ({})",
                row.name,
                tunnel.match_text()
            );
            let text = format!(
                "could not add network device {} to ofproto (File exists)",
                row.name
            );
            log::warn!(target: "bridge", "{text}");
            drop(known);
            self.let_go_of_unused();
            return Err(Some(text));
        }
        known
            .tunnels
            .insert(row.name.clone(), (bridge.name.clone(), tunnel.clone()));
        Ok(tunnel)
    }

    /// Gives a tunnel the options of its row. On an error the tunnel keeps its old ones.
    pub(super) fn change_tunnel(
        &self,
        bridge: &BridgeRow,
        row: &InterfaceRow,
        tunnel: &mut Arc<Tunnel>,
    ) -> Result<(), Option<String>> {
        let config = self.tunnel_config(row, tunnel.config.ty)?;
        if config == tunnel.config {
            return Ok(());
        }
        let dp = self.share(bridge, &config)?;
        let new = Arc::new(Tunnel::new(config, dp));
        let mut known = self.tunnels.0.lock();
        if let Some(other) = known.alike(&row.name, &new) {
            log::warn!(
                target: "tunnel",
                "{}: attempting to add tunnel port with same config as port '{other}' ({})",
                row.name,
                new.match_text()
            );
        }
        known
            .tunnels
            .insert(row.name.clone(), (bridge.name.clone(), new.clone()));
        drop(known);
        *tunnel = new;
        self.let_go_of_unused();
        Ok(())
    }

    /// Removes a tunnel, and its datapath port if no other tunnel uses it.
    pub(super) fn remove_tunnel(&self, name: &str) {
        self.tunnels.0.lock().tunnels.remove(name);
        self.let_go_of_unused();
    }

    /// The datapath port of tunnels like this one.
    fn share(&self, bridge: &BridgeRow, config: &TunnelConfig) -> Result<PortNo, String> {
        let name = config.port_name();
        let mut known = self.tunnels.0.lock();
        if let Some(shared) = known.shared.get(&name) {
            return Ok(shared.no);
        }
        let device = TunnelPort::open(config.ty, config.dst_port);
        let wish = match kinds::is_dummy_datapath(&self.switch.options, &bridge.datapath_type) {
            true => self.easy_number(&name),
            false => None,
        };
        let no = self
            .switch
            .datapath
            .add_port(device.clone(), wish)
            .map_err(|error| {
                let text = format!("could not add network device {name} to ofproto ({error})");
                log::warn!(target: "bridge", "{text}");
                text
            })?;
        known.shared.insert(name, Shared { device, no });
        Ok(no)
    }

    fn let_go_of_unused(&self) {
        let mut known = self.tunnels.0.lock();
        let unused: Vec<String> = known
            .shared
            .iter()
            .filter(|(_, s)| !known.is_used(s.no))
            .map(|(name, _)| name.clone())
            .collect();
        for name in unused {
            if let Some(shared) = known.shared.remove(&name)
                && let Err(error) = self.switch.datapath.del_port(shared.no)
            {
                log::warn!(target: "dpif", "{name}: {error}");
            }
        }
    }
}
