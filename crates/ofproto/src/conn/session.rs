//! One peer, without its socket: what it said, what it wants, what it is sent.
//!
//! A [`Peer`] is shared: its own task feeds it messages, any control thread hands it events. What is to be sent
//! goes into a queue that the task drains. Events are dropped, oldest wish first: packet-ins when more than
//! [`MAX_PACKET_INS`] wait; a peer for which more than [`MAX_BACKLOG`] bytes wait is cut off.

use super::Manager;
use crate::bridge::Event;
use crate::event::PacketInEvent;
use heddle_openflow::message::{
    AsyncConfig, AsyncType, ConfigFlags, Hello, Message, PacketInFormat, PacketInReason, Role, RoleRequest,
    SwitchConfig,
};
use heddle_openflow::{DecodeContext, ErrorKind, Header, OfError, Version};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// Packet-ins that may wait for one peer.
const MAX_PACKET_INS: usize = 100;
/// Bytes that may wait for one peer.
const MAX_BACKLOG: usize = 64 << 20;
/// `miss_send_len` of a controller that has not said another (OpenFlow 1.0 §5.3.2).
const DEFAULT_MISS_SEND_LEN: u16 = 128;
/// Packets with an invalid TTL, in a mask of packet-in reasons.
const INVALID_TTL: u32 = 1 << PacketInReason::InvalidTtl as u32;
/// The whole packet, whatever its length.
const NO_LIMIT: u16 = 0xffff;

/// Whether we called the peer (a controller) or it called us (a service connection, `ovs-ofctl`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Controller,
    Service,
}

/// Bytes on their way to a peer.
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    is_packet_in: bool,
}

pub(super) struct Peer {
    pub(super) id: u64,
    kind: Kind,
    manager: Arc<Manager>,
    wishes: Mutex<Wishes>,
    queue: mpsc::UnboundedSender<Outgoing>,
    backlog: AtomicUsize,
    packet_ins: AtomicUsize,
    open: AtomicBool,
}

/// What the peer has negotiated and asked for.
struct Wishes {
    version: Option<Version>,
    role: Role,
    wanted: AsyncConfig,
    format: PacketInFormat,
    miss_send_len: u16,
    controller_id: u16,
    decode: DecodeContext,
    next_xid: u32,
}

/// What a connection is to do after a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Continue,
    Close,
}

impl Peer {
    pub(super) fn new(manager: Arc<Manager>, kind: Kind) -> (Arc<Self>, mpsc::UnboundedReceiver<Outgoing>) {
        let (queue, outgoing) = mpsc::unbounded_channel();
        let peer = Arc::new(Self {
            id: manager.next_id(),
            kind,
            wishes: Mutex::new(Wishes {
                version: None,
                role: Role::Equal,
                wanted: AsyncConfig::default(),
                format: PacketInFormat::Standard,
                // A service connection gets events only once it asks for them by setting a length.
                miss_send_len: if kind == Kind::Service {
                    0
                } else {
                    DEFAULT_MISS_SEND_LEN
                },
                controller_id: 0,
                decode: DecodeContext::default(),
                next_xid: 1,
            }),
            queue,
            backlog: AtomicUsize::new(0),
            packet_ins: AtomicUsize::new(0),
            open: AtomicBool::new(true),
            manager: manager.clone(),
        });
        manager.join(&peer);
        (peer, outgoing)
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.wishes.lock().version
    }
    pub(super) fn role(&self) -> Role {
        self.wishes.lock().role
    }
    pub(super) fn set_role(&self, role: Role) {
        self.wishes.lock().role = role;
    }
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }
    /// The connection has ended.
    pub(super) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
        self.manager.update_miss();
    }
    /// The task has written these bytes.
    pub(super) fn written(&self, out: &Outgoing) {
        self.backlog.fetch_sub(out.bytes.len(), Ordering::Relaxed);
        if out.is_packet_in {
            self.packet_ins.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether packets that match nothing go to it (before OpenFlow 1.3 they do).
    pub(super) fn takes_implicit_misses(&self) -> bool {
        let w = self.wishes.lock();
        w.version.is_some() && w.wants(self.kind, AsyncType::PacketIn, PacketInReason::ImplicitMiss as u8)
    }

    fn allowed(&self) -> Vec<Version> {
        self.manager.bridge.versions()
    }

    /// The first message that we send.
    pub(super) fn greet(&self) {
        let allowed = self.allowed();
        let bitmap = allowed.iter().fold(0, |m, v| m | v.bit());
        let highest = allowed.into_iter().max().unwrap_or(Version::V10);
        // A bitmap is understood, or skipped, by every version (OpenFlow 1.3 §7.5.1).
        self.send_as(highest, 1, &Message::Hello(Hello { bitmap: Some(bitmap) }), false);
    }

    /// Sends a message of our own in the negotiated version.
    pub(super) fn send(&self, message: &Message) {
        let xid = self.wishes.lock().next_xid();
        self.reply(xid, message);
    }

    /// Answers the message that had this `xid`.
    fn reply(&self, xid: u32, message: &Message) {
        if let Some(version) = self.version() {
            self.send_as(version, xid, message, false);
        }
    }

    fn send_as(&self, version: Version, xid: u32, message: &Message, is_packet_in: bool) {
        match heddle_openflow::encode(version, xid, message) {
            Ok(parts) => parts.into_iter().for_each(|bytes| self.push(bytes, is_packet_in)),
            Err(e) => log::warn!(target: "ofproto", "{}: cannot send: {e}", self.manager.bridge.name),
        }
    }

    fn send_error(&self, version: Version, xid: u32, error: &OfError) {
        self.push(error.encode(version, xid), false);
    }

    fn push(&self, bytes: Vec<u8>, is_packet_in: bool) {
        let waiting = self.backlog.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if waiting > MAX_BACKLOG {
            self.open.store(false, Ordering::Relaxed);
        }
        if is_packet_in {
            self.packet_ins.fetch_add(1, Ordering::Relaxed);
        }
        // Fails only when the task has ended; then nobody waits for the bytes.
        let _ = self.queue.send(Outgoing { bytes, is_packet_in });
    }

    /// Takes one whole message.
    pub(super) fn receive(&self, bytes: &[u8]) -> Next {
        let Some(header) = Header::parse(bytes) else {
            return Next::Close;
        };
        match self.version() {
            None => self.negotiate(&header, bytes),
            Some(version) => {
                self.receive_in(version, header, bytes);
                if self.is_open() {
                    Next::Continue
                } else {
                    Next::Close
                }
            }
        }
    }

    /// OpenFlow 1.3 §6.3.1 and §7.5.1: the highest version in both bitmaps, else the lower of the two headers'.
    fn negotiate(&self, header: &Header, bytes: &[u8]) -> Next {
        let allowed = self.allowed();
        let ours = allowed.iter().fold(0, |m, v| m | v.bit());
        let highest = allowed.iter().max().copied().unwrap_or(Version::V10);
        let hello = match heddle_openflow::decode(bytes, &DecodeContext::default()) {
            Ok((_, Message::Hello(h))) => h,
            _ => {
                log::warn!(target: "ofproto", "{}: peer did not start with a hello", self.manager.bridge.name);
                return Next::Close;
            }
        };
        // Without a bitmap, a hello stands for its version and all below.
        let theirs = hello
            .bitmap
            .unwrap_or_else(|| (2u32 << header.version.min(highest.wire())) - 1);
        let common = Version::ALL
            .into_iter()
            .rev()
            .find(|v| v.bit() & ours & theirs != 0);
        let Some(version) = common else {
            let text = format!("no version in common: ours 0x{ours:02x}, yours 0x{theirs:02x}");
            let error = OfError {
                kind: ErrorKind::HelloFailedIncompatible,
                data: text.into_bytes(),
            };
            self.send_error(highest, header.xid, &error);
            return Next::Close;
        };
        {
            let mut w = self.wishes.lock();
            w.version = Some(version);
            w.wanted = AsyncConfig::defaults(version);
        }
        self.manager.update_miss();
        Next::Continue
    }

    fn receive_in(&self, version: Version, header: Header, bytes: &[u8]) {
        let context = self.wishes.lock().decode.clone();
        let result = match heddle_openflow::decode(bytes, &context) {
            _ if header.version != version.wire() && header.msg_type > 3 => {
                Err(ErrorKind::BadRequestBadVersion)
            }
            Ok((_, message)) => self.handle(version, header.xid, message),
            Err(e) => {
                self.send_error(version, header.xid, &e.error);
                return;
            }
        };
        if let Err(kind) = result {
            self.send_error(version, header.xid, &OfError::new(kind, bytes));
        }
    }

    fn handle(&self, version: Version, xid: u32, message: Message) -> Result<(), ErrorKind> {
        let bridge = &self.manager.bridge;
        if changes_the_switch(&message) && self.role() == Role::Secondary {
            return Err(ErrorKind::BadRequestIsSecondary);
        }
        match message {
            // Another hello is harmless; errors about what we sent and answers to our probes need no answer.
            Message::Hello(_) | Message::EchoReply(_) => {}
            Message::Error(e) => {
                log::info!(target: "ofproto", "{}: peer reports error {:?}", bridge.name, e.kind);
            }
            Message::EchoRequest(data) => self.reply(xid, &Message::EchoReply(data)),
            Message::BarrierRequest => self.reply(xid, &Message::BarrierReply),
            Message::GetConfigRequest => {
                let mut flags = bridge.frag_flags() & ConfigFlags::FRAG_MASK;
                let config = {
                    let w = self.wishes.lock();
                    let ttl = version < Version::V13
                        && w.wanted.primary[AsyncType::PacketIn as usize] & INVALID_TTL != 0;
                    flags.set(ConfigFlags::INVALID_TTL_TO_CONTROLLER, ttl);
                    SwitchConfig {
                        flags,
                        miss_send_len: w.miss_send_len,
                    }
                };
                self.reply(xid, &Message::GetConfigReply(config));
            }
            Message::SetConfig(c) => {
                if self.role() != Role::Secondary {
                    bridge.set_frag_flags(c.flags);
                }
                self.wishes.lock().configure(version, &c);
                self.manager.update_miss();
            }
            Message::RoleRequest(r) => self.change_role(xid, r)?,
            Message::GetAsyncRequest => {
                let wanted = self.wishes.lock().wanted;
                self.reply(xid, &Message::GetAsyncReply(wanted));
            }
            Message::SetAsync(update) => {
                self.wishes.lock().wanted.apply(&update);
                self.manager.update_miss();
            }
            Message::SetFlowFormat(_) => {} // the form of each message says for itself what it is
            Message::FlowModTableId(on) => self.wishes.lock().decode.flow_mod_table_id = on,
            Message::SetPacketInFormat(f) => self.wishes.lock().format = f,
            Message::SetControllerId(id) => self.wishes.lock().controller_id = id,
            Message::Unsupported(u) => return Err(u.error.kind),
            other => {
                for reply in bridge.handle(version, &other)? {
                    self.send_as(version, xid, &reply, false);
                }
            }
        }
        Ok(())
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
        let generation_id = request
            .generation_id
            .map(|_| self.manager.generation().unwrap_or(u64::MAX));
        self.reply(
            xid,
            &Message::RoleReply(RoleRequest {
                role: self.role(),
                generation_id,
            }),
        );
        Ok(())
    }

    /// Sends an event if the peer wants it.
    pub(super) fn event(&self, event: &Event) {
        let wants = |ty, reason| self.wishes.lock().wants(self.kind, ty, reason);
        match event {
            Event::PacketIn(p) => self.packet_in(p),
            Event::FlowRemoved(f) if wants(AsyncType::FlowRemoved, f.reason as u8) => {
                let mut f = (**f).clone();
                f.nxm = self.wishes.lock().format != PacketInFormat::Standard;
                self.send(&Message::FlowRemoved(Box::new(f)));
            }
            Event::PortStatus(s) if wants(AsyncType::PortStatus, s.reason as u8) => {
                self.send(&Message::PortStatus((**s).clone()));
            }
            _ => {}
        }
    }

    fn packet_in(&self, p: &PacketInEvent) {
        let (version, format, max_len, xid) = {
            let mut w = self.wishes.lock();
            let Some(version) = w.version else { return };
            let wanted = w.wants(self.kind, AsyncType::PacketIn, p.message.reason as u8);
            if !wanted || p.controller_id != w.controller_id {
                return;
            }
            let max_len = p.max_len.unwrap_or(if w.miss_send_len == 0 {
                NO_LIMIT
            } else {
                w.miss_send_len
            });
            (version, w.format, max_len, w.next_xid())
        };
        if self.packet_ins.load(Ordering::Relaxed) >= MAX_PACKET_INS {
            return;
        }
        let mut message = p.message.clone();
        message.format = format;
        if max_len != NO_LIMIT {
            message.data.truncate(max_len.into());
        }
        self.send_as(version, xid, &Message::PacketIn(Box::new(message)), true);
    }
}

fn changes_the_switch(m: &Message) -> bool {
    matches!(
        m,
        Message::FlowMod(_) | Message::PacketOut(_) | Message::PortMod(_) | Message::TableMod(_)
    )
}

impl Wishes {
    /// Before 1.3 a flag asks for packets with an invalid TTL; later `SetAsync` does.
    fn configure(&mut self, version: Version, c: &SwitchConfig) {
        self.miss_send_len = c.miss_send_len;
        if version < Version::V13 {
            let reasons = &mut self.wanted.primary[AsyncType::PacketIn as usize];
            let on = c.flags.contains(ConfigFlags::INVALID_TTL_TO_CONTROLLER);
            *reasons = if on {
                *reasons | INVALID_TTL
            } else {
                *reasons & !INVALID_TTL
            };
        }
    }
    fn wants(&self, kind: Kind, ty: AsyncType, reason: u8) -> bool {
        let silent = kind == Kind::Service && self.miss_send_len == 0;
        self.version.is_some() && !silent && self.wanted.wants(self.role == Role::Secondary, ty, reason)
    }
    fn next_xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.wrapping_add(1).max(2);
        self.next_xid
    }
}
