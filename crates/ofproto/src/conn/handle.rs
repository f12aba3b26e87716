//! Carries out a peer's messages that concern the connection itself. The bridge carries out the others.

use super::bundles::{Context, Failure};
use super::flow_mod_counts::FlowModCounts;
use super::outbox::Sort;
use super::session::Peer;
use super::settings::INVALID_TTL;
use crate::blocking::block_in_place;
use crate::bridge::{Bridge, Monitor, Origin};
use heddle_openflow::message::{
    AsyncType, ConfigFlags, FlowEvent, FlowModCommand, FlowMonitorRequest, Message, MonitorCommand,
    MonitorFlags, MpReply, MpRequest, Role, RoleRequest, SwitchConfig,
};
use heddle_openflow::{ErrorKind, OfError, Version};
use std::sync::Arc;

/// Flow monitors that one connection may have.
const MAX_MONITORS: usize = 1024;

impl Peer {
    /// Takes a message; after a failure, sends an error. `whole`: the message's bytes.
    pub(super) fn take(&self, version: Version, xid: u32, message: Message, whole: &[u8]) {
        if let Err(failure) = self.handle(version, xid, message, whole) {
            if let Some((before, error)) = failure.before {
                self.send_error(version, before, &error);
            }
            self.send_error(version, xid, &OfError::new(failure.kind, whole));
        }
    }

    fn handle(&self, version: Version, xid: u32, message: Message, whole: &[u8]) -> Result<(), Failure> {
        let bridge = &self.manager.bridge;
        if changes_the_switch(&message) && self.role() == Role::Secondary {
            return Err(ErrorKind::BadRequestIsSecondary.into());
        }
        match message {
            // Another hello is harmless; errors about our messages and replies to our probes need no reply.
            Message::Hello(_) | Message::EchoReply(_) => {}
            Message::Error(e) => {
                log::info!(target: "ofproto", "{}: peer reports error {:?}", bridge.name, e.kind);
            }
            Message::EchoRequest(data) => self.reply(xid, &Message::EchoReply(data)),
            Message::BarrierRequest => {
                bridge.apply_to_offloaded();
                self.reply(xid, &Message::BarrierReply);
            }
            Message::GetConfigRequest => self.reply(xid, &Message::GetConfigReply(self.config(version))),
            Message::SetConfig(c) => {
                if self.role() != Role::Secondary {
                    bridge.set_frag_flags(c.flags);
                }
                self.settings.lock().configure(version, &c);
                self.manager.update_miss();
            }
            Message::RoleRequest(r) => self.change_role(xid, r)?,
            Message::GetAsyncRequest => {
                let wanted = self.settings.lock().wanted;
                self.reply(xid, &Message::GetAsyncReply(wanted));
            }
            Message::SetAsync(update) => {
                self.settings.lock().set_async(self.kind, &update);
                self.manager.update_miss();
            }
            Message::SetFlowFormat(_) => {} // each message has a format of its own
            Message::FlowModTableId(on) => self.settings.lock().decode.flow_mod_table_id = on,
            Message::SetPacketInFormat(f) => self.settings.lock().format = f,
            Message::SetControllerId(id) => self.settings.lock().controller_id = id,
            Message::BundleControl(c) => {
                let (answer, done) = block_in_place(|| {
                    self.with_bundles(version, |b, cx| (b.control(cx, &c, whole), b.take_done()))
                });
                let answer = answer?;
                bridge.apply_to_offloaded();
                self.flow_mods.lock().note(&done, bridge.now_ms());
                self.reply(xid, &Message::BundleControl(answer));
            }
            Message::BundleAdd(add) => self.with_bundles(version, |b, cx| b.add(cx, xid, &add, whole))?,
            Message::FlowMonitorCancel(id) => self.end_monitor(id)?,
            Message::MultipartRequest { more, body } => {
                let now = bridge.now_ms();
                let taken = self.multiparts.lock().take(xid, more, body, whole, now)?;
                match taken {
                    None => {}
                    Some(MpRequest::FlowMonitor(requests)) => {
                        block_in_place(|| self.monitor(version, xid, requests))?;
                    }
                    Some(MpRequest::Flow(request)) => self.begin_dump(version, xid, &request)?,
                    Some(body) => {
                        let request = Message::MultipartRequest { more: false, body };
                        self.request(version, xid, &request)?;
                    }
                }
            }
            Message::Resume(p) if !self.parties().is_own(&p.continuation) => {
                return Err(ErrorKind::ResumeStale.into());
            }
            Message::Unsupported(u) => return Err(u.error.kind.into()),
            other => {
                self.request(version, xid, &other)?;
                let mut done = FlowModCounts::default();
                done.count(&other);
                self.flow_mods.lock().note(&done, bridge.now_ms());
                if matches!(other, Message::GroupMod(_) | Message::MeterMod(_)) {
                    self.manager.forward(self.id, xid, other);
                }
            }
        }
        Ok(())
    }

    /// Hands a message to the bridge, and the bridge's replies to the peer.
    fn request(&self, version: Version, xid: u32, message: &Message) -> Result<(), ErrorKind> {
        let origin = Some(Origin { peer: self.id, xid });
        let bridge = &self.manager.bridge;
        let replies = if takes_long(message) {
            block_in_place(|| bridge.handle(version, origin, message))
        } else {
            bridge.handle(version, origin, message)
        };
        for reply in replies? {
            self.send_as(version, xid, &reply, Sort::Reply);
        }
        Ok(())
    }

    fn config(&self, version: Version) -> SwitchConfig {
        let mut flags = self.manager.bridge.frag_flags() & ConfigFlags::FRAG_MASK;
        let w = self.settings.lock();
        let reasons = w.wanted.primary[AsyncType::PacketIn as usize];
        flags.set(
            ConfigFlags::INVALID_TTL_TO_CONTROLLER,
            version < Version::V13 && reasons & INVALID_TTL != 0,
        );
        SwitchConfig {
            flags,
            miss_send_len: w.miss_send_len,
        }
    }

    fn with_bundles<R>(
        &self,
        version: Version,
        f: impl FnOnce(&mut super::bundles::Bundles, &Context<'_>) -> R,
    ) -> R {
        let bridge: &Bridge = &self.manager.bridge;
        let decode = self.settings.lock().decode.clone();
        let cx = Context {
            bridge,
            version,
            peer: self.id,
            decode: &decode,
            now_ms: bridge.now_ms(),
        };
        f(&mut self.bundles.lock(), &cx)
    }

    fn change_role(&self, xid: u32, request: RoleRequest) -> Result<(), ErrorKind> {
        if let (Some(id), Role::Primary | Role::Secondary) = (request.generation_id, request.role) {
            self.manager
                .check_generation(id)
                .map_err(|_| ErrorKind::RoleRequestFailedStale)?;
        }
        if request.role != Role::NoChange {
            self.set_role(request.role);
        }
        if request.role == Role::Primary {
            self.manager.demote_others(self.id);
        }
        // A request that changes no role gets the last one, too.
        let generation_id = self.manager.generation();
        self.reply(
            xid,
            &Message::RoleReply(RoleRequest {
                role: self.role(),
                generation_id,
            }),
        );
        Ok(())
    }

    /// Makes, changes and ends monitors. The reply has the flows of the monitors with "initial". Where one
    /// request of several fails, the monitors that the others made are gone again.
    fn monitor(
        &self,
        version: Version,
        xid: u32,
        requests: Vec<FlowMonitorRequest>,
    ) -> Result<(), ErrorKind> {
        let bridge = &self.manager.bridge;
        let mut made = Vec::new();
        let done = requests.into_iter().try_for_each(|r| {
            let (id, command) = (r.id, r.command);
            if matches!(command, MonitorCommand::Modify | MonitorCommand::Delete) {
                self.end_monitor(id)?;
            }
            if command != MonitorCommand::Delete {
                let new = Monitor::new(r)?;
                let mut monitors = self.monitors.lock();
                if monitors.by_id.contains_key(&id) {
                    return Err(ErrorKind::FlowMonitorFailedMonitorExists);
                }
                if monitors.by_id.len() >= MAX_MONITORS {
                    return Err(ErrorKind::FlowMonitorFailedUnknown);
                }
                monitors.by_id.insert(id, Arc::new(new));
                bridge.count_monitors(1);
                made.push(id);
            }
            Ok(())
        });
        if let Err(kind) = done {
            for id in made {
                // Fails only if a later request has ended the monitor.
                let _ = self.end_monitor(id);
            }
            return Err(kind);
        }
        // The bridge is locked before the monitors, as when changes are reported.
        let asked = |id: &u32, m: &Monitor| made.contains(id) && m.flags.contains(MonitorFlags::INITIAL);
        bridge.look_at_flows(
            || {
                let monitors = self.monitors.lock();
                let initial = monitors.by_id.iter().filter(|(id, m)| asked(id, m));
                initial.map(|(_, m)| m.clone()).collect()
            },
            |flows| {
                let updates = flows
                    .into_iter()
                    .map(|(e, monitors)| {
                        let flags = monitors
                            .iter()
                            .fold(MonitorFlags::empty(), |all, m| all | m.flags);
                        super::monitors::full(FlowEvent::Initial, &e.data, flags)
                    })
                    .collect();
                let body = MpReply::FlowMonitor(updates);
                let reply = Message::MultipartReply { more: false, body };
                self.send_as(version, xid, &reply, Sort::Reply);
            },
        );
        Ok(())
    }

    fn end_monitor(&self, id: u32) -> Result<(), ErrorKind> {
        let gone = self.monitors.lock().by_id.remove(&id);
        gone.ok_or(ErrorKind::FlowMonitorFailedUnknownMonitor)?;
        self.manager.bridge.count_monitors(-1);
        Ok(())
    }
}

/// Whether a message may take long.
fn takes_long(m: &Message) -> bool {
    match m {
        Message::FlowMod(fm) => matches!(fm.command, FlowModCommand::Modify | FlowModCommand::Delete),
        Message::GroupMod(_)
        | Message::MeterMod(_)
        | Message::TableMod(_)
        | Message::TlvTableMod(_)
        | Message::CtFlushZone(_)
        | Message::CtFlush { .. }
        | Message::MultipartRequest { .. } => true,
        _ => false,
    }
}

fn changes_the_switch(m: &Message) -> bool {
    matches!(
        m,
        Message::FlowMod(_)
            | Message::GroupMod(_)
            | Message::MeterMod(_)
            | Message::PacketOut(_)
            | Message::Resume(_)
            | Message::PortMod(_)
            | Message::CtFlushZone(_)
            | Message::CtFlush { .. }
            | Message::TlvTableMod(_)
            | Message::TableMod(_)
            | Message::BundleControl(_)
            | Message::BundleAdd(_)
    )
}
