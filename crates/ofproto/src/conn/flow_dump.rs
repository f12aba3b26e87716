//! Long replies, and requests that take long.
//!
//! **Problem.** Connections share a few threads. And the reply about a million flows takes too much memory
//! for a peer that may not read it.
//!
//! **Shape.** Flow statistics are written in pieces of [`PIECE`] flows. Between two pieces other connections'
//! tasks run, and the next piece waits until most of the last one has been read. Requests that cannot be
//! carried out in pieces run [`block_in_place`](crate::blocking::block_in_place).

use super::outbox::Sort;
use super::session::Peer;
use crate::blocking::block_in_place;
use crate::bridge::FlowDump;
use heddle_openflow::message::FlowStatsRequest;
use heddle_openflow::{ErrorKind, FlowStatsWriter, Version};

/// Flows that are described at once.
const PIECE: usize = 512;

/// A reply about flows, of which some part is still to be written.
pub(super) struct Dump {
    flows: FlowDump,
    writer: FlowStatsWriter,
}

impl Peer {
    /// Begins the reply to a request for flow statistics; [`Peer::continue_dump`] writes the rest.
    pub(super) fn begin_dump(
        &self,
        version: Version,
        xid: u32,
        r: &FlowStatsRequest,
    ) -> Result<(), ErrorKind> {
        let dump = Dump {
            flows: block_in_place(|| self.manager.bridge.flow_dump(version, r))?,
            writer: FlowStatsWriter::new(version, xid, r.nxm),
        };
        *self.dump.lock() = Some(dump);
        Ok(())
    }

    /// Writes the next piece of the reply that was begun. `false`: the reply is complete.
    pub(super) fn continue_dump(&self) -> bool {
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
        parts.into_iter().for_each(|bytes| self.push(bytes, Sort::Reply));
        more
    }
}
