//! One peer, without its socket: its settings, its requests and the messages for it.
//!
//! A [`Peer`] is shared: its own task feeds it messages (`handle`), any control thread hands it events
//! (`events`). Messages for the peer go into a queue that the task drains. Packet-ins are dropped when more
//! than [`MAX_PACKET_INS`] wait. While more than [`MAX_UNREAD`] bytes of replies wait, the peer's next
//! request waits too, so that at most one more reply is added to them. A peer for which more than
//! [`MAX_EVENTS`] bytes of events wait is cut off.

use super::Manager;
use super::bundles::Bundles;
use super::flow_dump::Dump;
use super::flow_mod_counts::FlowModReport;
use super::monitors::Monitors;
use super::multipart::Multiparts;
use super::outbox::{Outbox, Outgoing, Sort};
use super::settings::PeerSettings;
use heddle_openflow::message::{AsyncConfig, AsyncType, Hello, Message, PacketInReason, Role};
use heddle_openflow::text::{Versions, describe};
use heddle_openflow::{DecodeContext, ErrorKind, Header, OfError, Version};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Packet-ins that may wait for one peer.
pub(super) const MAX_PACKET_INS: usize = 100;
/// Bytes of replies beyond which a peer's next request waits.
const MAX_UNREAD: usize = 1 << 20;
/// Bytes of events that may wait for one peer.
const MAX_EVENTS: usize = if cfg!(test) { 1 << 20 } else { 128 << 20 };
/// Whether we called the peer (a controller) or it called us (a service connection, `ovs-ofctl`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Controller,
    Service,
}

pub(super) struct Peer {
    pub(super) id: u64,
    /// The connection's name in the log.
    name: String,
    pub(super) kind: Kind,
    pub(super) manager: Arc<Manager>,
    pub(super) settings: Mutex<PeerSettings>,
    pub(super) monitors: Mutex<Monitors>,
    pub(super) bundles: Mutex<Bundles>,
    pub(super) multiparts: Mutex<Multiparts>,
    pub(super) flow_mods: Mutex<FlowModReport>,
    /// The flow dump that is under way.
    pub(super) dump: Mutex<Option<Dump>>,
    pub(super) outbox: Outbox,
    /// Bytes of replies that wait, and of events.
    replies: AtomicUsize,
    events: AtomicUsize,
    /// Raised when the peer's next request may be read.
    drained: Notify,
    /// Raised when it is cut off.
    cut: Notify,
    pub(super) packet_ins: AtomicUsize,
    /// Bytes of flow updates that wait.
    pub(super) updates: AtomicUsize,
    open: AtomicBool,
}

/// The log's module for messages of connections.
const LOG: &str = "vconn";

/// The versions that a side speaks, as the bits of its bitmap.
struct Supported(u32);

impl std::fmt::Display for Supported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bits, highest) = (self.0 & !1, self.0.checked_ilog2().unwrap_or(0));
        match bits.count_ones() {
            0 => f.write_str("no versions"),
            1 => write!(f, "version {highest:#04x}"),
            // All from the first on.
            n if n == highest => write!(f, "version {highest:#04x} and earlier"),
            _ => write!(f, "versions {}", Versions(bits)),
        }
    }
}

/// Whether a connection stays open after a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Continue,
    Close,
}

impl Peer {
    pub(super) fn new(manager: Arc<Manager>, kind: Kind, name: String) -> Arc<Self> {
        let peer = Arc::new(Self {
            id: manager.next_id(),
            name,
            kind,
            settings: Mutex::new(PeerSettings::new(kind)),
            monitors: Mutex::default(),
            bundles: Mutex::default(),
            multiparts: Mutex::default(),
            flow_mods: Mutex::default(),
            dump: Mutex::default(),
            outbox: Outbox::default(),
            replies: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            drained: Notify::new(),
            cut: Notify::new(),
            packet_ins: AtomicUsize::new(0),
            updates: AtomicUsize::new(0),
            open: AtomicBool::new(true),
            manager: manager.clone(),
        });
        manager.join(&peer);
        peer
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.settings.lock().version
    }
    pub(super) fn role(&self) -> Role {
        self.settings.lock().role
    }
    pub(super) fn set_role(&self, role: Role) {
        self.settings.lock().role = role;
    }
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }
    /// Ends the peer's monitors and reports its flow mods, since the connection has ended.
    pub(super) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
        self.report_flow_mods(self.manager.bridge.now_ms(), true);
        self.forget_monitors();
        self.manager.update_miss();
    }
    /// Counts a message that the task has written. Resumes monitors if no update waits any more.
    pub(super) fn written(&self, out: &Outgoing) {
        let n = out.bytes.len();
        if out.sort == Sort::Reply {
            let waited = self.replies.fetch_sub(n, Ordering::Relaxed);
            if waited > MAX_UNREAD && waited - n <= MAX_UNREAD {
                self.drained.notify_one();
            }
            return;
        }
        self.events.fetch_sub(n, Ordering::Relaxed);
        match out.sort {
            Sort::Reply | Sort::Event => {}
            Sort::PacketIn => {
                self.packet_ins.fetch_sub(1, Ordering::Relaxed);
            }
            Sort::Monitor => {
                if self.updates.fetch_sub(n, Ordering::Relaxed) == n {
                    self.resume_monitors();
                }
            }
        }
    }

    /// Logs the flow mods that have come, if it is time to.
    pub(super) fn report_flow_mods(&self, now_ms: u64, end: bool) {
        if let Some(text) = self.flow_mods.lock().report(now_ms, end) {
            log::info!(target: "connmgr", "{}<->{}: {text}", self.manager.bridge.name, self.name);
        }
    }

    /// Waits until the peer's next request may be read: few replies wait, or the peer is cut off.
    pub(super) async fn readable(&self) {
        while self.is_open() && self.replies.load(Ordering::Relaxed) > MAX_UNREAD {
            self.drained.notified().await;
        }
    }
    /// Waits until the peer is cut off.
    pub(super) async fn cut_off(&self) {
        while self.is_open() {
            self.cut.notified().await;
        }
    }

    /// Whether packets that match nothing go to it (before OpenFlow 1.3 they do).
    pub(super) fn takes_implicit_misses(&self) -> bool {
        let w = self.settings.lock();
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
        self.send_as(
            highest,
            1,
            &Message::Hello(Hello { bitmap: Some(bitmap) }),
            Sort::Reply,
        );
    }

    /// Sends a reply to the message that had this `xid`; a message of our own has 0.
    pub(super) fn reply(&self, xid: u32, message: &Message) {
        if let Some(version) = self.version() {
            self.send_as(version, xid, message, Sort::Reply);
        }
    }

    pub(super) fn send_as(&self, version: Version, xid: u32, message: &Message, sort: Sort) {
        let _scope = self.manager.bridge.tlv_scope();
        match heddle_openflow::encode(version, xid, message) {
            Ok(parts) => parts.into_iter().for_each(|bytes| self.push(bytes, sort)),
            Err(e) => log::warn!(target: "ofproto", "{}: cannot send: {e}", self.manager.bridge.name),
        }
    }

    pub(super) fn send_error(&self, version: Version, xid: u32, error: &OfError) {
        self.push(error.encode(version, xid), Sort::Reply);
    }

    pub(super) fn push(&self, bytes: Vec<u8>, sort: Sort) {
        if log::log_enabled!(target: LOG, log::Level::Debug) {
            self.log("sent (Success)", &bytes, &DecodeContext::default());
        }
        let n = bytes.len();
        if sort == Sort::Reply {
            self.replies.fetch_add(n, Ordering::Relaxed);
        } else if self.events.fetch_add(n, Ordering::Relaxed) + n > MAX_EVENTS
            && self.open.swap(false, Ordering::Relaxed)
        {
            let bridge = &self.manager.bridge.name;
            log::warn!(target: "ofproto", "{bridge}: disconnecting a peer that does not read its events");
            self.cut.notify_one();
        }
        match sort {
            Sort::Reply | Sort::Event => {}
            Sort::PacketIn => {
                self.packet_ins.fetch_add(1, Ordering::Relaxed);
            }
            Sort::Monitor => {
                self.updates.fetch_add(bytes.len(), Ordering::Relaxed);
            }
        }
        self.outbox.push(Outgoing { bytes, sort });
    }

    /// Logs one message for debugging.
    #[cold]
    fn log(&self, what: &str, bytes: &[u8], context: &DecodeContext) {
        let _scope = self.manager.bridge.tlv_scope();
        log::debug!(target: LOG, per_min = 600, burst = 600; "{}: {what}: {}", self.name, describe(bytes, context));
    }

    /// Takes one whole message.
    pub(super) fn receive(&self, bytes: &[u8]) -> Next {
        if log::log_enabled!(target: LOG, log::Level::Debug) {
            let context = self.settings.lock().decode.clone();
            self.log("received", bytes, &context);
        }
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

    /// OpenFlow 1.3 §6.3.1 and §7.5.1: the highest version in both bitmaps, else the lower of the two
    /// headers'.
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
        log::debug!(target: LOG, "{}: negotiated OpenFlow version {:#04x} (we support {}, peer supports {})",
            self.name, version.wire(), Supported(ours), Supported(theirs));
        {
            let mut w = self.settings.lock();
            w.version = Some(version);
            w.wanted = AsyncConfig::defaults(version);
        }
        self.manager.update_miss();
        Next::Continue
    }

    fn receive_in(&self, version: Version, header: Header, bytes: &[u8]) {
        if header.version != version.wire() && header.msg_type > 3 {
            // The error has the message's own version, if there is one: the peer understands it.
            let said = Version::from_wire(header.version).unwrap_or(version);
            let error = OfError::new(ErrorKind::BadRequestBadVersion, bytes);
            self.send_error(said, header.xid, &error);
            return;
        }
        let context = self.settings.lock().decode.clone();
        let _scope = self.manager.bridge.tlv_scope();
        match heddle_openflow::decode(bytes, &context) {
            Ok((_, message)) => self.take(version, header.xid, message, bytes),
            Err(e) => self.send_error(version, header.xid, &e.error),
        }
    }
}
