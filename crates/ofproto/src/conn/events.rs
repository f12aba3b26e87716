//! Messages to a peer that are no replies: events, flow updates, errors about requests that it left undone.

use super::continuation_signature::Parties;
use super::monitors::{Monitors, PAUSE_BYTES};
use super::outbox::Sort;
use super::session::{MAX_PACKET_INS, Peer};
use crate::bridge::{Event, PortChanged};
use crate::packet_in::PacketInEvent;
use heddle_openflow::Version;
use heddle_openflow::message::{AsyncType, FlowUpdate, Message, MpReply, PacketInFormat, PortStatus};
use std::sync::atomic::Ordering;

impl Peer {
    /// Sends those events that the peer wants.
    pub(super) fn events(&self, events: &[Event]) {
        for e in events {
            self.event(e);
        }
        let changes = events.iter().filter_map(|e| match e {
            Event::FlowChanged(c) => Some(&**c),
            _ => None,
        });
        self.flow_updates(changes);
    }

    fn event(&self, event: &Event) {
        let wants = |ty, reason| self.settings.lock().wants(self.kind, ty, reason);
        match event {
            Event::PacketIn(p) => self.packet_in(p),
            Event::FlowRemoved(f) if wants(AsyncType::FlowRemoved, f.reason as u8) => {
                let mut f = (**f).clone();
                f.nxm = self.settings.lock().format != PacketInFormat::Standard;
                self.notify(&Message::FlowRemoved(Box::new(f)));
            }
            Event::PortStatus(c) if wants(AsyncType::PortStatus, c.status.reason as u8) => {
                self.port_status(c)
            }
            Event::TableStatus(s)
                if wants(AsyncType::TableStatus, s.reason as u8)
                    && self.version().is_some_and(|v| v >= Version::V14) =>
            {
                self.notify(&Message::TableStatus(**s));
            }
            _ => {}
        }
    }

    /// Before 1.5, a connection gets no event of its own change of a port (OpenFlow 1.4 §7.3.4.3). A change
    /// that the version cannot express is not worth a message.
    fn port_status(&self, c: &PortChanged) {
        let Some(version) = self.version() else { return };
        if c.source == Some(self.id) && version < Version::V15 {
            return;
        }
        if let Some(old) = &c.old {
            let before = PortStatus {
                desc: old.clone(),
                ..c.status.clone()
            };
            let encoded =
                |s: &PortStatus| heddle_openflow::encode(version, 0, &Message::PortStatus(s.clone()));
            if encoded(&before) == encoded(&c.status) {
                return;
            }
        }
        self.notify(&Message::PortStatus(c.status.clone()));
    }

    /// Notifies the peer of another controller's request that has been carried out, if the peer wants that.
    pub(super) fn forwarded(&self, request: &Message) {
        let Message::RequestForward { message, .. } = request else {
            return;
        };
        let reason = u8::from(matches!(**message, Message::MeterMod(_)));
        let wants = self
            .settings
            .lock()
            .wants(self.kind, AsyncType::RequestForward, reason);
        if wants {
            self.notify(request);
        }
    }

    /// Sends a message that is no reply: its transaction id is zero.
    pub(super) fn notify(&self, message: &Message) {
        if let Some(version) = self.version() {
            self.send_as(version, 0, message, Sort::Event);
        }
    }

    /// The bridge and the connection that may resume the packets of this connection.
    pub(super) fn parties(&self) -> Parties {
        Parties {
            bridge: self.manager.bridge.id,
            connection: self.id,
        }
    }

    fn packet_in(&self, p: &PacketInEvent) {
        let (version, format) = {
            let w = self.settings.lock();
            let Some(version) = w.version else { return };
            let wanted = w.wants(self.kind, AsyncType::PacketIn, p.message.reason as u8);
            if !wanted || p.controller_id != w.controller_id {
                return;
            }
            (version, w.format)
        };
        if self.packet_ins.load(Ordering::Relaxed) >= MAX_PACKET_INS {
            return;
        }
        let _scope = self.manager.bridge.tlv_scope();
        let mut message = p.message.clone();
        message.format = format;
        if let (PacketInFormat::Nxt2, Some(c)) = (format, &p.continuation) {
            match heddle_openflow::encode_continuation(version, c) {
                Ok(mut bytes) => {
                    self.parties().sign(&mut bytes);
                    message.continuation = bytes;
                }
                Err(e) => log::warn!(target: "ofproto", "a paused packet cannot be resumed: {e}"),
            }
        }
        self.send_as(version, 0, &Message::PacketIn(Box::new(message)), Sort::PacketIn);
    }

    fn flow_updates<'c>(&self, changes: impl Iterator<Item = &'c crate::bridge::FlowChanged>) {
        let mut monitors = self.monitors.lock();
        if monitors.by_id.is_empty() {
            return;
        }
        let updates = monitors.updates(self.id, changes);
        if !updates.is_empty() {
            self.send_updates(updates);
        }
        if monitors.paused.is_none() && self.updates.load(Ordering::Relaxed) > PAUSE_BYTES {
            monitors.paused = Some(self.manager.bridge.tables_version());
            self.report_paused(true);
        }
    }

    fn send_updates(&self, updates: Vec<FlowUpdate>) {
        let Some(version) = self.version() else { return };
        let body = MpReply::FlowMonitor(updates);
        self.send_as(
            version,
            0,
            &Message::MultipartReply { more: false, body },
            Sort::Monitor,
        );
    }

    fn report_paused(&self, paused: bool) {
        let Some(version) = self.version() else { return };
        if version >= Version::V14 {
            self.send_updates(vec![if paused {
                FlowUpdate::Paused
            } else {
                FlowUpdate::Resumed
            }]);
            return;
        }
        let message = if paused {
            Message::FlowMonitorPaused
        } else {
            Message::FlowMonitorResumed
        };
        self.send_as(version, 0, &message, Sort::Monitor);
    }

    /// Sends the updates that were held back, once everything that waited has been written.
    pub(super) fn resume_monitors(&self) {
        if self.monitors.lock().paused.is_none() {
            return;
        }
        self.manager.bridge.look_at_flows(
            || self.monitors.lock().by_id.values().cloned().collect(),
            |flows| {
                let mut own = self.monitors.lock();
                let Some(paused) = own.resume() else { return };
                let updates: Vec<FlowUpdate> = flows
                    .iter()
                    .filter_map(|(e, monitors)| Monitors::missed(paused, e.added, &e.data, monitors))
                    .collect();
                if !updates.is_empty() {
                    self.send_updates(updates);
                }
                self.report_paused(false);
            },
        );
    }

    /// Ends all monitors, after the connection has ended.
    pub(super) fn forget_monitors(&self) {
        let mut monitors = self.monitors.lock();
        let n = monitors.by_id.len();
        monitors.by_id.clear();
        self.manager
            .bridge
            .count_monitors(-isize::try_from(n).unwrap_or(isize::MAX));
    }

    /// Logs the peer's flow mods, and sends errors about bundles and multipart requests that it did not
    /// finish.
    pub(super) fn tick(&self, now_ms: u64, bundle_idle_ms: u64) {
        self.report_flow_mods(now_ms, false);
        let Some(version) = self.version() else { return };
        // A bundle that is being committed holds the lock.
        let bundles = self.bundles.try_lock();
        let mut late = bundles.map_or_else(Vec::new, |mut b| b.expire(now_ms, bundle_idle_ms));
        late.append(&mut self.multiparts.lock().expire(now_ms));
        for (xid, error) in late {
            self.send_error(version, xid, &error);
        }
    }
}
