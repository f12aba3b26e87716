//! Tunnel interfaces, and the datapath ports that they share.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_datapath::Datapath;
use heddle_datapath_api::PortNo;
use heddle_ofproto::tunnels::Tunnel;
use heddle_port::TunnelPort;
use heddle_tunnel::config::{encryption_option, parse, show_datapath_port};
use heddle_tunnel::{TunnelConfig, TunnelType};

use super::bridge::InterfaceError;
use super::desired::{BridgeRow, InterfaceRow};
use super::environment::Environment;
use super::globals::{ALLOW_CLEAR, Globals};
use crate::inventory::Item;

/// A datapath port that tunnels share.
struct Shared {
    device: Arc<TunnelPort>,
    no: PortNo,
}

/// The tunnels of all bridges.
#[derive(Default)]
pub(super) struct Tunnels {
    /// Bridge and tunnel by name of the interface.
    tunnels: BTreeMap<String, (String, Arc<Tunnel>)>,
    /// Shared tunnels by name of the datapath port.
    shared: BTreeMap<String, Shared>,
}

impl Tunnels {
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

    /// The configurations, and the names of their bridges.
    pub(super) fn configs(&self) -> impl Iterator<Item = (&str, &TunnelConfig)> {
        let all = self.tunnels.values();
        all.map(|(bridge, tunnel)| (bridge.as_str(), &tunnel.config))
    }

    /// The datapath ports, by their names, as commands show them.
    pub(super) fn items(&self) -> BTreeMap<String, Item> {
        let item = |(name, shared): (&String, &Shared)| {
            let ty = heddle_port::Port::tunnel(&*shared.device)?;
            let bridge = self.bridge_of(shared.no)?;
            let item = Item {
                settings: show_datapath_port(ty, shared.device.dst_port()),
                ..Item::of_shared(bridge, shared.device.clone(), shared.no)
            };
            Some((name.clone(), item))
        };
        self.shared.iter().filter_map(item).collect()
    }

    /// Reads a tunnel's options. An error is returned for `Interface.error`.
    fn config(&self, row: &InterfaceRow, ty: TunnelType, globals: &Globals) -> Result<TunnelConfig, String> {
        let name = &row.name;
        let refuse = |lines: &[String], why: &str| {
            log_faults(lines);
            log::warn!(target: "netdev", "{name}: could not set configuration ({why})");
            lines.join("\n")
        };
        if let Some(key) = encryption_wish(row, globals) {
            let line = format!(
                "{name}: option {key} asks for encryption, which Heddle does not do: nothing is sent. If the \
                 network below encrypts, set Open_vSwitch other_config:{ALLOW_CLEAR}=true"
            );
            return Err(refuse(&[line], "Operation not supported"));
        }
        let (config, lines) =
            parse(name, ty, &row.options.0).map_err(|e| refuse(&[e.text], "Invalid argument"))?;
        if self.disagrees(name, &config) {
            let line = format!(
                "{name}: VXLAN-GBP, and non-VXLAN-GBP tunnels can't be configured on the same dst_port"
            );
            return Err(refuse(&[&lines[..], &[line]].concat(), "File exists"));
        }
        log_faults(&lines);
        Ok(config)
    }

    /// Makes a tunnel, with the datapath port that it needs.
    pub(super) fn add(
        &mut self,
        bridge: &BridgeRow,
        row: &InterfaceRow,
        ty: TunnelType,
        env: &Environment,
    ) -> Result<Arc<Tunnel>, InterfaceError> {
        let config = self.config(row, ty, &env.globals)?;
        let dp = self.share(bridge, &config, env)?;
        let tunnel = Arc::new(Tunnel::new(config, dp));
        if let Some(other) = self.alike(&row.name, &tunnel) {
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
            self.remove_unused(&env.switch.datapath);
            return Err(text.into());
        }
        self.tunnels
            .insert(row.name.clone(), (bridge.name.clone(), tunnel.clone()));
        Ok(tunnel)
    }

    /// Gives a tunnel the options of its row. On an error the tunnel keeps its old ones.
    pub(super) fn change(
        &mut self,
        bridge: &BridgeRow,
        row: &InterfaceRow,
        tunnel: &mut Arc<Tunnel>,
        env: &Environment,
    ) -> Result<(), InterfaceError> {
        let config = self.config(row, tunnel.config.ty, &env.globals)?;
        if config == tunnel.config {
            return Ok(());
        }
        let dp = self.share(bridge, &config, env)?;
        let new = Arc::new(Tunnel::new(config, dp));
        if let Some(other) = self.alike(&row.name, &new) {
            log::warn!(
                target: "tunnel",
                "{}: attempting to add tunnel port with same config as port '{other}' ({})",
                row.name,
                new.match_text()
            );
        }
        self.tunnels
            .insert(row.name.clone(), (bridge.name.clone(), new.clone()));
        *tunnel = new;
        self.remove_unused(&env.switch.datapath);
        Ok(())
    }

    /// Removes a tunnel, and its datapath port if no other tunnel uses it.
    pub(super) fn remove(&mut self, name: &str, datapath: &Datapath) {
        self.tunnels.remove(name);
        self.remove_unused(datapath);
    }

    /// The datapath port of tunnels like this one.
    fn share(
        &mut self,
        bridge: &BridgeRow,
        config: &TunnelConfig,
        env: &Environment,
    ) -> Result<PortNo, InterfaceError> {
        let name = config.port_name();
        if let Some(shared) = self.shared.get(&name) {
            return Ok(shared.no);
        }
        let device = TunnelPort::open(config.ty, config.dst_port);
        let wish = env.wished_number(&bridge.datapath_type, &name);
        let no = env
            .switch
            .datapath
            .add_port(device.clone(), wish)
            .map_err(|error| {
                let text = format!("could not add network device {name} to ofproto ({error})");
                log::warn!(target: "bridge", "{text}");
                InterfaceError::new(text, &error)
            })?;
        self.shared.insert(name, Shared { device, no });
        Ok(no)
    }

    /// Removes the datapath ports that no tunnel uses.
    fn remove_unused(&mut self, datapath: &Datapath) {
        let unused: Vec<String> = self
            .shared
            .iter()
            .filter(|(_, s)| !self.is_used(s.no))
            .map(|(name, _)| name.clone())
            .collect();
        for name in unused {
            if let Some(shared) = self.shared.remove(&name)
                && let Err(error) = datapath.del_port(shared.no)
            {
                log::warn!(target: "dpif", "{name}: {error}");
            }
        }
    }
}

/// The option of a tunnel that requests encryption, unless the owner allows clear text.
pub(super) fn encryption_wish<'r>(row: &'r InterfaceRow, globals: &Globals) -> Option<&'r str> {
    encryption_option(&row.options.0).filter(|_| !globals.allow_clear)
}

/// Logs all faults in options at once.
fn log_faults(lines: &[String]) {
    if !lines.is_empty() {
        log::warn!(target: "netdev_vport", "{}", lines.join("\n"));
    }
}
