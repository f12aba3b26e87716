//! Established connections that tc forwards (`act_ct`), as entries of the kernel's table.
//!
//! **Owner.** The zones [`TC_ZONES`] of the kernel belong to the switch's tc back end. The mirror writes no
//! entry there, and the back end writes none elsewhere. So `act_ct` finds the connections that the back end
//! has installed, and no others. Each zone of the switch has a zone of its own there.
//!
//! **Windows.** The entries of TCP are liberal: the kernel does not check windows. SYN, FIN and RST do not
//! pass `act_ct`, so an entry stays established until the switch removes it.
//!
//! **Flow table.** `act_ct` moves established connections to a flow table, from which a card takes them. The
//! kernel looks at an ended entry there once a second. So entries that no card takes have the signature of
//! the switch's entries ([`crate::message`]), which keeps them out of the flow table.

use crate::entry::{EntryKey, Established, KernelEntry, TC_ZONES};
use crate::message;
use crate::table::KernelTable;
use heddle_conntrack::Tuple;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_netfilter::NetfilterMessage;
use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, ConntrackMessage, Status};
use rustix::io::Errno;
use std::io;

const UDP: u8 = 17;

/// An entry as the kernel has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Key.
    pub key: EntryKey,
    /// Tuple of the reply direction.
    pub reply: Tuple,
    /// Remaining life, seconds; `None`: the flow table has the connection.
    pub timeout_s: Option<u32>,
}

/// The entries of [`TC_ZONES`], in this thread's network namespace.
#[derive(Debug)]
pub struct EstablishedTable {
    table: KernelTable,
    labels_checked: bool,
}

impl EstablishedTable {
    /// Opens the table.
    ///
    /// # Errors
    /// The kernel has no nfnetlink.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            table: KernelTable::new()?,
            labels_checked: false,
        })
    }
    /// Adds an entry.
    ///
    /// # Errors
    /// The kernel's reason. `EEXIST`: the zone has an entry with one of the tuples. After any other reason,
    /// the entry may be there if the kernel takes no requests.
    pub fn add(&mut self, e: &Established) -> io::Result<()> {
        self.table.write_new(e)?;
        if e.label == 0 || self.labels_checked {
            return Ok(());
        }
        let done = keep_label(&mut self.table, e);
        self.labels_checked = done.is_ok();
        done
    }
    /// Removes entries; those that do not exist are skipped.
    ///
    /// # Errors
    /// No request is possible any more.
    pub fn remove(&mut self, keys: &[EntryKey]) -> io::Result<()> {
        crate::Table::remove(&mut self.table, keys)
    }
    /// Sets the remaining life of entries; those that do not exist are skipped.
    ///
    /// # Errors
    /// No request is possible any more.
    pub fn prolong(&mut self, keys: &[EntryKey], timeout_s: u32) -> io::Result<()> {
        let requests = keys.iter().map(|key| message::prolong(key, timeout_s));
        self.table.send_all(requests, 0, |_, _| {})
    }
    /// All entries of [`TC_ZONES`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn list(&mut self) -> io::Result<Vec<Listed>> {
        let mut all = Vec::new();
        let request = message::request(None, ConntrackMessage::Get(Vec::new()));
        self.table
            .exchange(request, NLM_F_DUMP, |m| all.extend(listed(m)))?;
        Ok(all)
    }
    /// Whether the kernel's table has room: it is filled to less than seven eighths.
    pub fn has_room(&self) -> bool {
        let room = crate::Table::room(&self.table);
        room.max == 0 || room.count < room.max - room.max / 8
    }
    /// Whether the kernel takes requests about connections from this process.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn probe(&mut self) -> io::Result<()> {
        let orig = Tuple {
            proto: UDP,
            ..Tuple::default()
        };
        let zone = *TC_ZONES.start();
        let missing = message::remove(&EntryKey { zone, orig });
        match self.table.exchange(missing, NLM_F_ACK, |_| {}) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NOENT) => Ok(()),
            done => done,
        }
    }
}

/// Requests about one entry.
pub(crate) trait Requests {
    /// Adds an entry.
    fn write_new(&mut self, e: &Established) -> io::Result<()>;
    /// The entry with this key, if one exists.
    fn read_entry(&mut self, key: &EntryKey) -> io::Result<Option<KernelEntry>>;
    /// Removes an entry, if it exists.
    fn remove_entry(&mut self, key: &EntryKey) -> io::Result<()>;
    /// Makes labels possible, for entries that are added from now on.
    fn make_labels(&mut self) -> io::Result<()>;
}

impl Requests for KernelTable {
    fn write_new(&mut self, e: &Established) -> io::Result<()> {
        let mut refused = None;
        self.send_all(
            [message::established(e)],
            NLM_F_CREATE | NLM_F_EXCL,
            |_, reason| refused = Some(reason),
        )?;
        refused.map_or(Ok(()), |reason| Err(reason.into()))
    }
    fn read_entry(&mut self, key: &EntryKey) -> io::Result<Option<KernelEntry>> {
        crate::Table::read(self, key)
    }
    fn remove_entry(&mut self, key: &EntryKey) -> io::Result<()> {
        crate::Table::remove(self, &[*key])
    }
    fn make_labels(&mut self) -> io::Result<()> {
        crate::Table::enable_labels(self)
    }
}

/// Checks the label of an entry that was just added. If it got lost, makes labels possible and adds the entry
/// again. After an error the entry is removed: no connection owns it.
pub(crate) fn keep_label(table: &mut impl Requests, e: &Established) -> io::Result<()> {
    let mut check = || {
        let found = table.read_entry(&e.key())?;
        if found.is_some_and(|f| f.label != e.label) {
            table.make_labels()?;
            table.remove_entry(&e.key())?;
            table.write_new(e)?;
        }
        Ok(())
    };
    let done = check();
    if done.is_err() {
        let _ = table.remove_entry(&e.key());
    }
    done
}

/// The entry in a message, if it is in [`TC_ZONES`].
pub(crate) fn listed(m: &NetfilterMessage) -> Option<Listed> {
    let received = message::entry(m)?;
    let NetfilterMessageInner::Conntrack(ConntrackMessage::New(all)) = &m.inner else {
        return None;
    };
    let mut timeout_s = None;
    for attribute in all {
        match attribute {
            ConntrackAttribute::CtaTimeout(s) => timeout_s = Some(*s),
            ConntrackAttribute::CtaStatus(status) if status.contains(Status::Offload) => {
                timeout_s = None;
                break;
            }
            _ => {}
        }
    }
    let entry = received.entry;
    TC_ZONES.contains(&entry.key.zone).then_some(Listed {
        key: entry.key,
        reply: entry.reply,
        timeout_s,
    })
}
