//! Bonds of a bridge, and ports that speak LACP: settings and members go to [`heddle_ofproto::bond`].

use std::collections::BTreeMap;

use heddle_ofproto::Ofproto;
use heddle_ofproto::bond::{BondConfig, BondPort, MemberConfig};

use super::{BridgeReconciler, Iface};
use crate::reconcile::desired::PortRow;

/// A bond as it was last configured.
pub(super) struct ConfiguredBond {
    config: BondConfig,
    members: Vec<MemberConfig>,
    port: BondPort,
}

impl BridgeReconciler {
    /// Makes and changes bonds as the rows demand. Returns their parts of the bundles, by port. Bonds that
    /// are gone stay until [`Self::forget_bonds`].
    pub(super) fn follow_bonds(&mut self, of: &Ofproto) -> BTreeMap<String, BondPort> {
        let mut all = BTreeMap::new();
        for row in self.row.clone().ports.values() {
            let Some(config) = &row.bond else { continue };
            let mut config = config.clone();
            if let Some(lacp) = config.lacp.as_mut().filter(|l| l.sys_id == [0; 6]) {
                lacp.sys_id = self.mac;
            }
            let members = self.members(row);
            let known = self
                .bonds
                .get(&row.name)
                .filter(|b| b.config == config && b.members == members);
            let port = match known {
                Some(bond) => Some(bond.port.clone()),
                None => of.bonds().configure(&row.name, self.bridge.id, &config, &members),
            };
            let Some(port) = port else { continue };
            all.insert(row.name.clone(), port.clone());
            let bond = ConfiguredBond {
                config,
                members,
                port,
            };
            self.bonds.insert(row.name.clone(), bond);
        }
        all
    }

    /// Ends the bonds that are not among `stay`.
    pub(super) fn forget_bonds(&mut self, of: &Ofproto, stay: &BTreeMap<String, BondPort>) {
        self.bonds.retain(|name, _| {
            let stays = stay.contains_key(name);
            if !stays {
                of.bonds().remove(name);
            }
            stays
        });
    }

    /// The interfaces of a port that exist.
    fn members(&self, row: &PortRow) -> Vec<MemberConfig> {
        let of_port = self.ifaces.values().filter(|i| i.port == row.name);
        let member = |iface: &Iface| {
            let interface = row.interfaces.iter().find(|i| i.name == iface.name)?;
            Some(MemberConfig {
                no: iface.no,
                name: iface.name.clone(),
                mac: iface.status.mac,
                carrier: iface.status.admin_up && iface.status.link_up,
                link_resets: iface.status.link_resets,
                dp: iface.device().map(|(_, no)| no),
                lacp: interface.lacp_link(iface.no),
                bfd: iface.bfd_port(),
            })
        };
        of_port.filter_map(member).collect()
    }
}
