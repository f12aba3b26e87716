//! Answers that are long, and requests that take long.
//!
//! **Problem.** Connections share a few threads; and the answer about a million flows is larger than what
//! memory should be spent for a peer that may not read it.
//!
//! **Shape.** Flow statistics are written in pieces of [`PIECE`] flows: between two of them others have their
//! turn, and the next one waits until most of the last has been read. What cannot be done in pieces is done
//! [`aside`](mod@crate::aside).

use super::outbox::Sort;
use super::session::Peer;
use crate::aside::aside;
use crate::bridge::FlowDump;
use heddle_openflow::message::FlowStatsRequest;
use heddle_openflow::{ErrorKind, FlowStatsWriter, Version};

/// Flows that are described at once.
const PIECE: usize = 512;

/// An answer about flows, of which some part is still to be written.
pub(super) struct Dump {
    flows: FlowDump,
    writer: FlowStatsWriter,
}

impl Peer {
    /// Begins to answer a request for flow statistics; [`Peer::go_on`] does the rest.
    pub(super) fn begin_dump(
        &self,
        version: Version,
        xid: u32,
        r: &FlowStatsRequest,
    ) -> Result<(), ErrorKind> {
        let dump = Dump {
            flows: aside(|| self.manager.bridge.flow_dump(version, r))?,
            writer: FlowStatsWriter::new(version, xid, r.nxm),
        };
        *self.dump.lock() = Some(dump);
        Ok(())
    }

    /// Writes the next piece of an answer that was begun. `false`: nothing is left of it.
    pub(super) fn go_on(&self) -> bool {
        let Some(mut dump) = self.dump.lock().take().filter(|_| self.is_open()) else {
            return false;
        };
        let _scope = self.manager.bridge.tlv_scope();
        let mut n = 0;
        for flow in dump.flows.by_ref().take(PIECE) {
            n += 1;
            if let Err(e) = dump.writer.push(&flow) {
                let bridge = &self.manager.bridge.name;
                log::warn!(target: "ofproto", per_min = 5, burst = 5; "{bridge}: a flow is left out of statistics: {e}");
            }
        }
        let more = n == PIECE;
        let parts = if more {
            let full = dump.writer.take_full();
            *self.dump.lock() = Some(dump);
            full
        } else {
            dump.writer.finish()
        };
        parts.into_iter().for_each(|bytes| self.push(bytes, Sort::Answer));
        more
    }
}
