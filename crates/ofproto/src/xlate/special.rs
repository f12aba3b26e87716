//! Packets of protocols that the switch itself handles: no rule decides about them.

use super::ctx::Ctx;
use crate::model::PortView;
use heddle_datapath_api::{Action, Upcall, UpcallCookie, UpcallKind};
use std::sync::Arc;

/// Maximum number of bytes of a packet that are handed over: all headers that can be in front of a message,
/// and the message.
const MAX_LEN: u16 = 192;

impl Ctx<'_> {
    /// Whether the packet, which came in by `port`, is for the BFD session that monitors the port. If so, it
    /// is handed over, and the translation ends.
    pub(super) fn is_special(&mut self, port: &PortView) -> bool {
        let Some(bfd) = &port.bfd else { return false };
        let (mask, extra) = self.out.masks();
        if !bfd.takes(&self.flow, mask, extra) {
            return false;
        }
        self.out.is_bfd = true;
        // A trace does not show the upcall.
        if !self.trace.is_on() {
            self.commit();
            self.out.emit(Action::Userspace(Arc::new(Upcall {
                kind: UpcallKind::SlowPath("bfd"),
                max_len: MAX_LEN,
                cookie: UpcallCookie(bfd.cookie()),
            })));
        }
        true
    }
}
