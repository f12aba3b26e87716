//! Input of NORMAL: the bundle that a packet came in on, and whether its VLAN may come in.

use super::super::ctx::{Ctx, of_port};
use super::super::report::Kind;
use super::xvlan::{allows_cvlan, trunks};
use crate::model::{PortBundle, VlanMode};
use heddle_openflow::Port;

/// Origin of a packet.
pub(in crate::xlate) enum InBundle<'w> {
    /// A port of the bridge: its bundle and the bundle's index.
    Bundle(usize, &'w PortBundle),
    /// A controller sent the packet.
    Controller,
}

impl<'w> InBundle<'w> {
    pub(in crate::xlate) fn bundle(&self) -> Option<&'w PortBundle> {
        match self {
            Self::Bundle(_, b) => Some(b),
            Self::Controller => None,
        }
    }
    pub(super) fn index(&self) -> Option<usize> {
        match self {
            Self::Bundle(i, _) => Some(*i),
            Self::Controller => None,
        }
    }
    pub(super) fn name(&self) -> &str {
        self.bundle().map_or("OFPP_NONE", |b| &b.name)
    }
}

impl<'w> Ctx<'w> {
    /// The bundle that the packet came in on.
    pub(in crate::xlate) fn input_bundle(&mut self) -> Option<InBundle<'w>> {
        let no = of_port(self.flow.in_port);
        let found = self
            .port(no)
            .and_then(|p| Some((p.bundle, self.at.bridge.bundles.get(&p.bundle)?)));
        match found {
            Some((i, b)) => Some(InBundle::Bundle(i, b)),
            None if matches!(no, Port::CONTROLLER | Port::NONE) => Some(InBundle::Controller),
            None => {
                let port = self.flow.in_port;
                self.report_error(|| format!("received packet on unknown port {port}"));
                self.trace.warn("no input bundle, dropping");
                None
            }
        }
    }

    /// Whether a packet with this outer VLAN id (0: none) may come in.
    pub(in crate::xlate) fn is_vid_admitted(&mut self, from: &InBundle<'_>, vid: u16) -> bool {
        let Some(b) = from.bundle() else { return true };
        let name = &b.name;
        match b.vlan_mode {
            VlanMode::Access if vid != 0 => {
                let tag = b.tag.unwrap_or(0);
                self.report_error(|| {
                    format!(
                        "dropping VLAN {vid} tagged packet received on port {name} configured as VLAN {tag} access port"
                    )
                });
                false
            }
            VlanMode::Access => true,
            VlanMode::NativeTagged | VlanMode::NativeUntagged if vid == 0 => true,
            VlanMode::Trunk | VlanMode::NativeTagged | VlanMode::NativeUntagged => {
                let ok = trunks(b, vid);
                if !ok {
                    self.report_error(|| {
                        format!(
                            "dropping VLAN {vid} packet received on port {name} not configured for trunking VLAN {vid}"
                        )
                    });
                }
                ok
            }
            VlanMode::Dot1qTunnel => {
                let ok = allows_cvlan(b, vid);
                if !ok {
                    self.report_error(|| {
                        format!(
                            "dropping VLAN {vid} packet received on dot1q-tunnel port {name} that excludes this VLAN"
                        )
                    });
                }
                ok
            }
        }
    }

    /// Reports a line about learning: in the trace, or in the debug log.
    pub(super) fn report_debug(&mut self, text: impl FnOnce() -> String) {
        if self.trace.is_on() {
            self.trace.report(Kind::Detail, text);
        } else if self.input.has_packet() {
            let name = &self.at.bridge.name;
            super::super::log::DEBUGS.log(log::Level::Debug, self.input.now_ms, || {
                format!("bridge {name}: {}", text())
            });
        }
    }
}

/// Addresses that a bridge does not forward: IEEE 802.1D's block, and those of protocols between Extreme's
/// and Cisco's switches (`forward-bpdu` in ovs-vswitchd.conf.db(5) lists them).
pub(in crate::xlate) fn is_reserved(mac: [u8; 6]) -> bool {
    match mac {
        [0x01, 0x80, 0xc2, 0, 0, last] => last <= 0x0f,
        [0x00, 0xe0, 0x2b, 0, 0, last] => matches!(last, 0 | 4 | 6),
        [0x01, 0x00, 0x0c, 0, 0, 0] => true,
        [0x01, 0x00, 0x0c, 0xcc, 0xcc, last] => matches!(last, 0xcc | 0xcd | 0xc0..=0xc7),
        [0x01, 0x00, 0x0c, 0xcd, 0xcd, 0xcd] => true,
        _ => false,
    }
}
