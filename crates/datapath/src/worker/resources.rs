//! A worker's means to run programs: buffers, transmit queues, upcalls, and the packets of the burst.
//!
//! The worker's cache is no part of [`ProgramResources`]: a program is borrowed from the cache while it runs,
//! and changes the resources meanwhile.

use crate::counters::WorkerCounters;
use crate::exec::ct::{Ct, Tracked};
use crate::exec::tx::TxTable;
use crate::exec::upcalls::UpcallTx;
use crate::exec::{Exec, InFlight, Live, LiveId, Recirculated};
use crate::shared::Shared;
use crate::worker::parse::ReadAs;
use heddle_datapath_api::DropKind;
use heddle_flow::FlowKey;
use heddle_packet::Pool;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(super) struct ProgramResources {
    pub(super) shared: Arc<Shared>,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) tx: TxTable,
    pub(super) pool: Pool,
    pub(super) upcalls: UpcallTx,
    pub(super) live: Live,
    /// The packet that a program recirculates before it continues.
    pub(super) recirc: Option<Recirculated>,
    pub(super) tracked: Box<Tracked>,
    /// Fragments that continue when the packet at hand has left.
    pub(super) resumed: Vec<InFlight>,
    pub(super) random: u64,
    /// The clock, as the last burst read it.
    pub(super) now_ms: u64,
}

impl ProgramResources {
    /// The means to run a program on packets with this full key, if it was made, and this context.
    #[inline(always)]
    pub(super) fn exec<'a>(&'a mut self, key: Option<&'a FlowKey>, context: Option<&'a FlowKey>) -> Exec<'a> {
        Exec {
            live: &mut self.live,
            key,
            context,
            ct: Ct {
                tracker: &self.shared.conntrack,
                counts: &self.counters.ct,
                now_ms: self.now_ms,
            },
            fragments: &self.shared.fragments,
            resumed: &mut self.resumed,
            tracked: &mut self.tracked,
            pool: &mut self.pool,
            tx: &mut self.tx,
            upcalls: &mut self.upcalls,
            recirc: &mut self.recirc,
            drops: &self.counters.drops,
            random: &mut self.random,
            now_ms: self.now_ms,
        }
    }
    /// The settings to read packets whose first header is of this type.
    #[inline]
    pub(super) fn read_as(&self, packet_type: u32) -> ReadAs {
        ReadAs {
            packet_type,
            vlan_limit: self.shared.vlan_limit.load(Relaxed),
        }
    }
    /// Counts a packet as dropped. Its buffer is freed at the end of the burst.
    pub(super) fn lost(&mut self, kind: DropKind, id: LiveId) {
        self.counters.drops.add(kind, 1);
        self.tx.watch.lost(kind, 1, self.live.get(id), None);
    }
    /// Drops a packet that is shorter than its first header.
    #[cold]
    pub(super) fn drop_runt(&mut self, id: LiveId) {
        self.lost(DropKind::RxInvalid, id);
        let in_port = self.live.get(id).in_port;
        if let Some(c) = self.tx.counters(in_port) {
            c.rx_errors.add(1);
        }
    }
}
