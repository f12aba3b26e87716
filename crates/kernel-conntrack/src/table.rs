//! The kernel's table of connections in this thread's network namespace.

use crate::entry::{EntryKey, KernelEntry, TC_ZONES};
use crate::labels::LabelRule;
use crate::message::{self, Received};
use heddle_sys::NetfilterSocket;
use heddle_sys::netlink::messages;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::NetfilterMessage;
use netlink_packet_netfilter::conntrack::ConntrackMessage;
use rustix::io::Errno;
use std::io;

/// Room for one datagram of the kernel: it fills at most 32 KiB of it in a dump.
const BUFFER_BYTES: usize = 64 * 1024;
/// Room for the refusals of one datagram of requests.
const SOCKET_BYTES: usize = 1 << 20;
/// Requests in one datagram.
const BATCH: usize = 64;
/// Life of an entry that is not refreshed. It bounds how long the entries of a killed process stay.
pub(crate) const TIMEOUT_S: u32 = 600;

/// The way to write an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// The entry is new. One that exists is refused.
    New,
    /// The entry exists: its mark, label, state and timeout change. A label of zero stays as it is. One that
    /// does not exist is refused (`ENOENT`).
    Change,
}

/// An entry that the kernel did not take.
#[derive(Debug)]
pub struct Refused {
    /// Index in the request.
    pub index: usize,
    /// The kernel's reason.
    pub reason: Errno,
}

/// Size of the kernel's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Number of entries.
    pub count: usize,
    /// Maximum number of entries, 0: no maximum.
    pub max: usize,
}

/// A table of connections outside of the tracker.
pub trait Table {
    /// Writes entries. Returns those that were refused.
    ///
    /// # Errors
    /// No request is possible any more.
    fn write(&mut self, entries: &[KernelEntry], how: Write) -> io::Result<Vec<Refused>>;
    /// Removes entries; those that do not exist are skipped.
    ///
    /// # Errors
    /// No request is possible any more.
    fn remove(&mut self, keys: &[EntryKey]) -> io::Result<()>;
    /// The entry with this key, if one exists.
    ///
    /// # Errors
    /// No request is possible any more.
    fn read(&mut self, key: &EntryKey) -> io::Result<Option<KernelEntry>>;
    /// All entries that a mirror has written.
    ///
    /// # Errors
    /// No request is possible any more.
    fn own(&mut self) -> io::Result<Vec<EntryKey>>;
    /// Makes labels possible, for entries that are written from now on.
    ///
    /// # Errors
    /// The table cannot have labels.
    fn enable_labels(&mut self) -> io::Result<()>;
    /// The size of the table.
    fn room(&self) -> Room;
}

/// The kernel's table.
#[derive(Debug)]
pub struct KernelTable {
    socket: NetfilterSocket,
    buf: Vec<u8>,
    out: Vec<u8>,
    sequence: u32,
    label_rule: Option<LabelRule>,
    labels: bool,
}

impl KernelTable {
    /// Opens the table.
    ///
    /// # Errors
    /// The kernel has no nfnetlink.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            socket: NetfilterSocket::new(SOCKET_BYTES)?,
            buf: vec![0; BUFFER_BYTES],
            out: Vec::new(),
            sequence: 0,
            label_rule: None,
            labels: true,
        })
    }
    /// The address of the socket, for [`crate::Deletions::new`].
    pub fn port_id(&self) -> u32 {
        self.socket.port_id()
    }
    /// Appends a request to those that [`KernelTable::send`] sends.
    fn add(&mut self, request: NetfilterMessage, flags: u16) {
        let mut message = NetlinkMessage::from(request);
        self.sequence = self.sequence.wrapping_add(1);
        message.header.sequence_number = self.sequence;
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let at = self.out.len();
        self.out.resize(at + message.buffer_len(), 0);
        message.serialize(&mut self.out[at..]);
    }
    fn send(&mut self) -> io::Result<()> {
        let sent = self.socket.send(&self.out);
        self.out.clear();
        sent
    }
    /// Sends requests that have no reply. Passes each refusal, with the request's index, to `refused`.
    pub(crate) fn send_all(
        &mut self,
        requests: impl IntoIterator<Item = NetfilterMessage>,
        flags: u16,
        mut refused: impl FnMut(usize, Errno),
    ) -> io::Result<()> {
        let mut requests = requests.into_iter().peekable();
        let mut base = 0;
        while requests.peek().is_some() {
            let first = self.sequence.wrapping_add(1);
            let mut n = 0;
            for request in requests.by_ref().take(BATCH) {
                self.add(request, flags);
                n += 1;
            }
            self.send()?;
            // The kernel has worked when send(2) returns, and its refusals are here.
            while let Some(data) = self.socket.receive(&mut self.buf, false)? {
                for message in messages::<NetfilterMessage>(data).flatten() {
                    let index = message.header.sequence_number.wrapping_sub(first) as usize;
                    if let NetlinkPayload::Error(e) = message.payload
                        && let Some(code) = e.code
                        && index < n
                    {
                        refused(
                            base + index,
                            Errno::from_raw_os_error(code.get().saturating_neg()),
                        );
                    }
                }
            }
            base += n;
        }
        Ok(())
    }
    /// Sends a request and passes the entries of its reply to `each`. A dump or an acknowledgement has to be
    /// among the flags: they end the reply.
    fn request(
        &mut self,
        request: NetfilterMessage,
        flags: u16,
        mut each: impl FnMut(Received),
    ) -> io::Result<()> {
        self.exchange(request, flags, |m| {
            if let Some(received) = message::entry(m) {
                each(received);
            }
        })
    }
    /// The same with the messages of the reply.
    pub(crate) fn exchange(
        &mut self,
        request: NetfilterMessage,
        flags: u16,
        mut each: impl FnMut(&NetfilterMessage),
    ) -> io::Result<()> {
        self.add(request, flags);
        self.send()?;
        loop {
            let data = self.socket.receive(&mut self.buf, true)?;
            let data = data.ok_or(io::ErrorKind::TimedOut)?;
            for message in messages::<NetfilterMessage>(data).flatten() {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    // Without a code it acknowledges.
                    NetlinkPayload::Error(e) => {
                        return if e.code.is_none() { Ok(()) } else { Err(e.to_io()) };
                    }
                    NetlinkPayload::InnerMessage(m) => each(&m),
                    _ => {}
                }
            }
        }
    }
}

/// Whether an error concerns all requests rather than the entry.
fn is_final(reason: Errno) -> bool {
    // Without `CAP_NET_ADMIN`; without the module nf_conntrack_netlink.
    matches!(reason, Errno::ACCESS | Errno::OPNOTSUPP)
}

impl Table for KernelTable {
    fn write(&mut self, entries: &[KernelEntry], how: Write) -> io::Result<Vec<Refused>> {
        let flags = match how {
            Write::New => NLM_F_CREATE | NLM_F_EXCL,
            Write::Change => 0,
        };
        let labels = self.labels;
        let requests = entries
            .iter()
            .map(|e| message::write(e, TIMEOUT_S, labels && e.label != 0));
        let (mut all, mut fatal) = (Vec::new(), None);
        self.send_all(requests, flags, |index, reason| {
            if is_final(reason) {
                fatal = Some(reason);
            }
            all.push(Refused { index, reason });
        })?;
        fatal.map_or(Ok(all), |reason| Err(reason.into()))
    }
    fn remove(&mut self, keys: &[EntryKey]) -> io::Result<()> {
        self.send_all(keys.iter().map(message::remove), 0, |_, _| {})
    }
    fn read(&mut self, key: &EntryKey) -> io::Result<Option<KernelEntry>> {
        let mut found = None;
        match self.request(message::read(key), NLM_F_ACK, |r| found = Some(r.entry)) {
            Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(None),
            done => done.map(|()| found),
        }
    }
    fn own(&mut self) -> io::Result<Vec<EntryKey>> {
        let mut all = Vec::new();
        let request = message::request(None, ConntrackMessage::Get(Vec::new()));
        self.request(request, NLM_F_DUMP, |r| {
            let zone = r.entry.key.zone;
            if r.own && zone != 0 && !TC_ZONES.contains(&zone) {
                all.push(r.entry.key);
            }
        })?;
        Ok(all)
    }
    fn enable_labels(&mut self) -> io::Result<()> {
        match LabelRule::new() {
            Ok(rule) => {
                self.label_rule = Some(rule);
                Ok(())
            }
            Err(error) => {
                self.labels = false;
                Err(error)
            }
        }
    }
    fn room(&self) -> Room {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?;
            text.trim().parse().ok()
        };
        Room {
            count: read("nf_conntrack_count").unwrap_or(0),
            max: read("nf_conntrack_max").unwrap_or(0),
        }
    }
}
