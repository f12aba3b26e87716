//! Packets of protocols that the switch itself handles: no rule decides about them.

use super::ctx::Ctx;
use crate::bond_port::LacpCookie;
use crate::model::PortView;
use heddle_datapath_api::{Action, Upcall, UpcallCookie, UpcallData, UpcallKind};
use std::sync::Arc;

/// Maximum number of bytes of a packet that are handed over: all headers that can be in front of a message,
/// and the message.
const MAX_LEN: u16 = 192;

impl Ctx<'_> {
    /// Whether the packet, which came in by `port`, is for the BFD session that monitors the port, or for the
    /// LACP that it speaks. If so, it is handed over, and the translation ends.
    pub(super) fn is_special(&mut self, port: &PortView) -> bool {
        self.is_for_bfd(port) || self.is_lacp(port)
    }

    /// Whether the packet is an LACP message for the bundle of `port`. If so, it is handed over.
    fn is_lacp(&mut self, port: &PortView) -> bool {
        let bundle = self.at.bridge.bundles.get(&port.bundle);
        let Some(bond) = bundle.and_then(|b| b.bond.as_ref()).filter(|b| b.speaks_lacp) else {
            return false;
        };
        self.out.mask.0.dl_type = u16::MAX;
        let Some(input) = bond.lacp_input(port.no, self.flow.dl_type) else {
            return false;
        };
        self.out.is_lacp = true;
        self.hand_over("lacp", Arc::new(LacpCookie(input)));
        true
    }

    fn is_for_bfd(&mut self, port: &PortView) -> bool {
        let Some(bfd) = &port.bfd else { return false };
        let (mask, extra) = self.out.masks();
        if !bfd.takes(&self.flow, mask, extra) {
            return false;
        }
        self.out.is_bfd = true;
        self.hand_over("bfd", bfd.cookie());
        true
    }

    /// Hands the packet over. A trace does not show the upcall.
    fn hand_over(&mut self, protocol: &'static str, cookie: Arc<dyn UpcallData>) {
        if !self.trace.is_on() {
            self.commit();
            self.out.emit(Action::Userspace(Arc::new(Upcall {
                kind: UpcallKind::SlowPath(protocol),
                max_len: MAX_LEN,
                cookie: UpcallCookie(cookie),
            })));
        }
    }
}
