//! Decapsulation.
//!
//! A packet that comes out of a tunnel is looked up as if the tunnel's port had received it.

use super::keys::Context;
use super::parse::{ReadAs, fresh_origin};
use super::stage::{Change, LastOuter, Stage};
use super::{Choice, Worker};
use crate::exec::{LiveId, Meta, tunnel};
use heddle_datapath_api::DropKind;
use heddle_flow::packet_type;
use heddle_tunnel::TunnelKind;
use heddle_tunnel::outer_cache::{OuterHeaderCache, View};
use std::sync::Arc;

impl Worker {
    /// Decapsulates packets from the tunnel of this step, and puts them into stage `to`.
    pub(super) fn decapsulate(
        &mut self,
        to: &mut Stage,
        choice: Choice,
        step: u16,
        ids: impl Iterator<Item = LiveId>,
        meta: &Meta,
    ) {
        let program = choice.program(&self.cache, &self.once);
        let Some(tunnel) = program.and_then(|p| p.pop_of(step)) else {
            return self.counters.drops.add(DropKind::InvalidPort, ids.count() as u64);
        };
        let resources = &mut self.resources;
        let how = resources.read_as(packet_type::ETHERNET);
        for id in ids {
            let p = resources.live.get_mut(id);
            let (l3, view) = (meta.l3, View::of(p, meta.l3));
            // Most packets have the outer headers of the packet before. Comparing them costs half of
            // decapsulating them.
            if let (Some(outer), Some(view)) = (&to.outer, &view)
                && Arc::ptr_eq(&outer.tunnel, tunnel)
                && outer.headers.apply(tunnel, p, view, l3)
            {
                p.in_port = tunnel.port;
                let change = Change::Headers(how, fresh_origin(p), Context::SameTunnel(outer.context));
                to.push(resources, id..id + 1, change);
                continue;
            }
            let waiting = (&mut self.frames, &mut resources.pool, resources.now_ms);
            match tunnel::pop(p, meta, tunnel, &mut self.popped, waiting) {
                Ok(None) => {}
                Ok(Some(out)) => {
                    p.in_port = tunnel.port;
                    let how = ReadAs {
                        packet_type: out.packet_type,
                        ..how
                    };
                    let change = Change::Headers(how, fresh_origin(p), Context::Tunnel(&self.popped));
                    if !to.push(resources, id..id + 1, change) {
                        continue;
                    }
                    let frame = out.packet_type == packet_type::ETHERNET;
                    let at = to.keys.last_context().filter(|_| frame);
                    let new = view.and_then(|v| Some((OuterHeaderCache::new(tunnel, v, l3, &out)?, at?)));
                    match (&mut to.outer, new) {
                        (Some(outer), Some(new)) if Arc::ptr_eq(&outer.tunnel, tunnel) => {
                            (outer.headers, outer.context) = new;
                        }
                        (old, new) => {
                            *old = new.map(|(headers, context)| LastOuter {
                                headers,
                                tunnel: Arc::clone(tunnel),
                                context,
                            });
                        }
                    }
                }
                Err(kind) => resources.lost(kind, id),
            }
        }
        if tunnel.kind == TunnelKind::Stt {
            self.count_lost_segments();
        }
    }

    /// Counts segments whose frames took too long to complete, or that others evicted.
    #[inline]
    pub(super) fn count_lost_segments(&mut self) {
        let lost = self.frames.take_lost();
        for (kind, n) in [
            (DropKind::SegmentTimeout, lost.timeout),
            (DropKind::SegmentEvicted, lost.evicted),
        ] {
            if n > 0 {
                self.counters.drops.add(kind, n);
            }
        }
    }
}
