//! The bundles that one connection has open.
//!
//! A message that is added is read and checked at once, so that its error comes at once. The bundle keeps its
//! bytes, a fraction of the decoded form, and reads them again at the commit. A flow mod that only adds a
//! flow is also prepared. [`Bundles::expire`] forgets idle bundles. The bytes that one connection may keep
//! are bounded.

use super::flow_mod_counts::FlowModCounts;
use crate::bridge::{Addition, Bridge, Bundled, SharedByAdditions};
use heddle_openflow::message::{BundleAdd, BundleCommand, BundleControl, Message};
use heddle_openflow::{DecodeContext, ErrorKind, Header, OfError, Version, decode};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of messages that one connection's bundles may hold.
const MAX_BYTES: usize = 1 << 30;
/// Bytes of actions that are kept decoded, which take ten times their size in messages. Beyond that, flow
/// mods are read again when they are carried out.
const MAX_PREPARED: usize = 256 << 20;
/// Bundles that one connection may have open.
const MAX_BUNDLES: usize = 4096;

/// Bytes that are kept together.
const CHUNK: usize = 1 << 20;

/// The bytes of many messages, in few pieces of memory. Each piece is given back as a whole, although rules
/// that stay are allocated between them.
#[derive(Default)]
struct Chunks(Vec<Vec<u8>>);

/// A message in [`Chunks`].
#[derive(Clone, Copy)]
struct MessageLocation {
    chunk: u32,
    begin: u32,
    end: u32,
}

/// A message that was added.
struct BundledMessage {
    xid: u32,
    message: MessageLocation,
    /// The prepared addition, if the message adds a flow.
    addition: Option<Addition>,
}

impl Chunks {
    fn push(&mut self, bytes: &[u8]) -> MessageLocation {
        if self.0.last().is_none_or(|c| c.len() + bytes.len() > CHUNK) {
            // The first chunk is as small as its message: most bundles are small.
            let room = if self.0.is_empty() { 0 } else { CHUNK };
            self.0.push(Vec::with_capacity(room));
        }
        let chunk = self.0.len() - 1;
        let last = &mut self.0[chunk];
        let begin = last.len();
        last.extend_from_slice(bytes);
        let number = |n| u32::try_from(n).expect("a bundle holds less than 4 GiB");
        MessageLocation {
            chunk: number(chunk),
            begin: number(begin),
            end: number(last.len()),
        }
    }
    fn get(&self, at: MessageLocation) -> &[u8] {
        let [chunk, begin, end] = [at.chunk, at.begin, at.end].map(|n| n as usize);
        self.0
            .get(chunk)
            .and_then(|c| c.get(begin..end))
            .unwrap_or_default()
    }
}

/// Bytes that wait in all bundles of all connections.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// Bytes that wait in bundles: messages, and additions that are prepared.
pub fn bundled_bytes() -> u64 {
    WAITING.load(Relaxed)
}

/// The bytes that one bundle adds to [`WAITING`].
#[derive(Default)]
struct BundleSize {
    /// Bytes of messages.
    bytes: usize,
    /// Bytes of prepared additions.
    prepared: usize,
}

impl BundleSize {
    fn more(&mut self, bytes: usize, prepared: usize) {
        self.bytes += bytes;
        self.prepared += prepared;
        WAITING.fetch_add((bytes + prepared) as u64, Relaxed);
    }
}

impl Drop for BundleSize {
    fn drop(&mut self) {
        WAITING.fetch_sub((self.bytes + self.prepared) as u64, Relaxed);
    }
}

/// One bundle.
struct Bundle {
    flags: u16,
    closed: bool,
    used_ms: u64,
    size: BundleSize,
    /// The message that began it, to be named by an error about it.
    opened_by: Box<[u8]>,
    entries: Vec<BundledMessage>,
    messages: Chunks,
    counts: FlowModCounts,
}

/// The bundles of one connection.
#[derive(Default)]
pub(super) struct Bundles {
    open: BTreeMap<u32, Bundle>,
    bytes: usize,
    prepared: usize,
    shared: SharedByAdditions,
    /// Messages that the last commit has carried out.
    done: FlowModCounts,
}

/// An error about the message at hand, perhaps after one about an earlier message.
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    /// An error to send first.
    pub(super) before: Option<(u32, OfError)>,
}

impl From<ErrorKind> for Failure {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, before: None }
    }
}

impl Bundles {
    /// Carries out a control message and returns the reply. `whole`: the message's bytes.
    pub(super) fn control(
        &mut self,
        cx: &Context<'_>,
        c: &BundleControl,
        whole: &[u8],
    ) -> Result<BundleControl, Failure> {
        let command = match c.command {
            BundleCommand::OpenRequest => {
                if self.remove(c.id).is_some() {
                    return Err(ErrorKind::BundleFailedBadId.into());
                }
                self.begin(cx, c.id, c.flags, whole)?;
                BundleCommand::OpenReply
            }
            BundleCommand::CloseRequest => {
                self.usable(c.id, c.flags)?
                    .ok_or(ErrorKind::BundleFailedBadId)?
                    .touch(cx.now_ms)
                    .closed = true;
                BundleCommand::CloseReply
            }
            BundleCommand::CommitRequest => {
                let bundle = self.remove(c.id).ok_or(ErrorKind::BundleFailedBadId)?;
                if bundle.flags != c.flags {
                    return Err(ErrorKind::BundleFailedBadFlags.into());
                }
                let counts = bundle.counts;
                commit(cx, bundle)?;
                self.done = counts;
                BundleCommand::CommitReply
            }
            BundleCommand::DiscardRequest => {
                self.remove(c.id).ok_or(ErrorKind::BundleFailedBadId)?;
                BundleCommand::DiscardReply
            }
            BundleCommand::OpenReply
            | BundleCommand::CloseReply
            | BundleCommand::CommitReply
            | BundleCommand::DiscardReply => return Err(ErrorKind::BundleFailedBadType.into()),
        };
        Ok(BundleControl {
            id: c.id,
            command,
            flags: 0,
        })
    }

    /// Adds a message; a bundle that is not open yet is opened by it. `whole`: the bytes of the add message.
    pub(super) fn add(
        &mut self,
        cx: &Context<'_>,
        xid: u32,
        add: &BundleAdd,
        whole: &[u8],
    ) -> Result<(), ErrorKind> {
        cx.bridge.check_bundled(cx.version, &add.message)?;
        let bytes = whole.len() + size_of::<BundledMessage>();
        if self.bytes + bytes > MAX_BYTES {
            return Err(ErrorKind::BundleFailedMsgTooMany);
        }
        if self.usable(add.id, add.flags)?.is_none() {
            self.begin(cx, add.id, add.flags, whole)?;
        }
        let Some(bundle) = self.open.get_mut(&add.id) else {
            return Err(ErrorKind::BundleFailedBadId);
        };
        bundle.touch(cx.now_ms);
        bundle.counts.count(&add.message);
        let message = bundle.messages.push(whole);
        let addition = match &*add.message {
            Message::FlowMod(fm) if self.prepared < MAX_PREPARED => {
                Addition::prepare(cx.version, fm, &mut self.shared)
            }
            _ => None,
        };
        let weight = addition.as_ref().map_or(0, Addition::weight);
        bundle.size.more(bytes, weight);
        self.prepared += weight;
        bundle.entries.push(BundledMessage {
            xid,
            message,
            addition,
        });
        self.bytes += bytes;
        Ok(())
    }

    /// The messages of the last commit, if it came after the last call.
    pub(super) fn take_done(&mut self) -> FlowModCounts {
        std::mem::take(&mut self.done)
    }

    /// Forgets bundles that were idle for `idle_ms`. Returns the errors about them, with their transaction
    /// ids.
    pub(super) fn expire(&mut self, now_ms: u64, idle_ms: u64) -> Vec<(u32, OfError)> {
        let late = |b: &Bundle| b.used_ms + idle_ms <= now_ms;
        let gone: Vec<u32> = self
            .open
            .iter()
            .filter(|(_, b)| late(b))
            .map(|(id, _)| *id)
            .collect();
        gone.into_iter()
            .filter_map(|id| self.remove(id))
            .map(|b| {
                let xid = Header::parse(&b.opened_by).map_or(0, |h| h.xid);
                (xid, OfError::new(ErrorKind::BundleFailedTimeout, &b.opened_by))
            })
            .collect()
    }

    /// The open bundle, if there is one. A bundle that is closed or has other flags is removed, and an error.
    fn usable(&mut self, id: u32, flags: u16) -> Result<Option<&mut Bundle>, ErrorKind> {
        let Some(bundle) = self.open.get(&id) else {
            return Ok(None);
        };
        let wrong = if bundle.closed {
            Some(ErrorKind::BundleFailedBundleClosed)
        } else if bundle.flags != flags {
            Some(ErrorKind::BundleFailedBadFlags)
        } else {
            None
        };
        if let Some(kind) = wrong {
            self.remove(id);
            return Err(kind);
        }
        Ok(self.open.get_mut(&id))
    }

    fn begin(&mut self, cx: &Context<'_>, id: u32, flags: u16, opened_by: &[u8]) -> Result<(), ErrorKind> {
        if self.open.len() >= MAX_BUNDLES {
            return Err(ErrorKind::BundleFailedOutOfBundles);
        }
        let bundle = Bundle {
            flags,
            closed: false,
            used_ms: cx.now_ms,
            size: BundleSize::default(),
            opened_by: opened_by.into(),
            entries: Vec::new(),
            messages: Chunks::default(),
            counts: FlowModCounts::default(),
        };
        self.open.insert(id, bundle);
        Ok(())
    }

    fn remove(&mut self, id: u32) -> Option<Bundle> {
        let bundle = self.open.remove(&id)?;
        self.bytes -= bundle.size.bytes;
        self.prepared -= bundle.size.prepared;
        if self.open.is_empty() {
            self.shared = SharedByAdditions::default();
        }
        Some(bundle)
    }
}

impl Bundle {
    fn touch(&mut self, now_ms: u64) -> &mut Self {
        self.used_ms = now_ms;
        self
    }
}

/// The data of a connection that its bundles need.
pub(super) struct Context<'a> {
    pub(super) bridge: &'a Bridge,
    pub(super) version: Version,
    /// The connection's number.
    pub(super) peer: u64,
    pub(super) decode: &'a DecodeContext,
    pub(super) now_ms: u64,
}

/// Commits. After a failure, the error about the message that failed is sent first.
fn commit(cx: &Context<'_>, bundle: Bundle) -> Result<(), Failure> {
    let Bundle {
        entries,
        messages,
        flags,
        ..
    } = bundle;
    let read = |at| match decode(messages.get(at), cx.decode) {
        Ok((_, Message::BundleAdd(add))) => Ok(Bundled::Message(add.message)),
        Ok(_) => Err(ErrorKind::BundleFailedMsgUnsup),
        Err(e) => Err(e.error.kind),
    };
    cx.bridge
        .make_ready(entries.iter().filter_map(|e| e.addition.as_ref()));
    let last = Cell::new(None);
    let entries = entries.into_iter().map(|e| {
        last.set(Some((e.xid, e.message)));
        let message = e.addition.map(Bundled::Addition);
        (e.xid, message.map_or_else(|| read(e.message), Ok))
    });
    let done = cx.bridge.commit_bundle(cx.version, cx.peer, flags, entries);
    done.map_err(|failed| Failure {
        kind: ErrorKind::BundleFailedMsgFailed,
        before: last
            .get()
            .map(|(xid, at)| (xid, OfError::new(failed.kind, messages.get(at)))),
    })
}
