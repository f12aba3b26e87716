//! Bridges and internal ports get their hardware addresses.

use std::collections::BTreeMap;

use super::state::BridgeState;
use super::{Reconciler, mac};

impl Reconciler {
    /// Gives bridges and internal ports their addresses.
    pub(super) fn set_addresses(&self, state: &mut BridgeState) {
        let own = mac::bridge_mac(&state.row, &state.ifaces);
        state.mac = own;
        let mut wishes: BTreeMap<String, [u8; 6]> = BTreeMap::new();
        for iface in state.ifaces.values() {
            let Some((port, row)) = state.row.interface(&iface.name) else {
                continue;
            };
            let wish = match row.mac {
                None if port.fake_bridge => mac::lent_mac(&state.row, &state.ifaces, port.bundle.tag),
                wish => wish,
            };
            match wish {
                _ if iface.is_local() => {
                    if wish.is_some() {
                        log::error!(
                            target: "bridge",
                            "interface {}: ignoring mac in Interface record (use Bridge record to set local port's mac)",
                            iface.name
                        );
                    }
                    wishes.insert(iface.name.clone(), own);
                }
                Some(mac) if iface.kind.takes_mac => match mac {
                    [0, 0, 0, 0, 0, 0] => {
                        log::error!(target: "bridge", "interface {}: cannot set MAC to all zero address", iface.name);
                    }
                    [first, ..] if first & 1 != 0 => {
                        log::error!(target: "bridge", "interface {}: cannot set MAC to multicast address", iface.name);
                    }
                    mac => drop(wishes.insert(iface.name.clone(), mac)),
                },
                _ => {}
            }
        }
        for (name, wish) in wishes {
            let Some(iface) = state.ifaces.get_mut(&name).filter(|i| i.status.mac != wish) else {
                continue;
            };
            let done = match iface.device() {
                Some((device, _)) => device.set_mac(wish),
                None => Ok(()),
            };
            match done {
                Ok(()) => iface.status.mac = wish,
                Err(error) => log::error!(target: "bridge", "interface {name}: setting MAC failed ({error})"),
            }
        }
    }
}
