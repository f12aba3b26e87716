//! The thread that mirrors connections in the kernel's table ([`heddle_kernel_conntrack`]), for
//! `other_config:heddle-kernel-conntrack`. It starts with the first setting that requests it.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_datapath_api::Engine;
use heddle_kernel_conntrack::deletions::Deletion;
use heddle_kernel_conntrack::{Choice, Deletions, EntryKey, KernelTable, Mirror};
use heddle_sys::Epoll;

use crate::mirror_state::MirrorState;
use crate::switch::Switch;
use heddle_daemon::vlog::errno_text;

/// The target of the log.
const LOG: &str = "kernel_conntrack";
/// Shortest and longest rest between rounds. The rest is [`REST_TIMES`] as long as the round.
const MIN_REST: Duration = Duration::from_millis(100);
const MAX_REST: Duration = Duration::from_secs(10);
const REST_TIMES: u32 = 20;
/// The longest wait before the thread checks for changed settings or the switch's end.
const WAIT_MS: u64 = 200;
/// The time after which a failed start is repeated.
const RETRY: Duration = Duration::from_secs(10);
/// Deletions that are read in one go, datagrams.
const BATCH: usize = 256;

/// The mirror and the deletions of its entries.
struct Session {
    mirror: Mirror<KernelTable>,
    deletions: Deletions,
    bell: Epoll,
    choice: Choice,
}

impl Switch {
    /// Sets which connections are mirrored; `None`: no connections.
    pub(crate) fn set_kernel_conntrack(self: &Arc<Self>, wanted: Option<Choice>) {
        let own = &self.kernel_conntrack;
        let begins = wanted.is_some();
        *own.wanted.lock() = wanted;
        let mut thread = own.thread.lock();
        if let Some(thread) = &*thread {
            thread.unpark();
        } else if begins {
            match self.spawn("kernel-ct", Switch::mirror_connections) {
                Ok(handle) => *thread = Some(handle),
                Err(error) => log::error!(target: LOG, "connections are not mirrored: {error:#}"),
            }
        }
    }

    /// Mirrors connections until the switch ends.
    fn mirror_connections(&self) {
        let own = &self.kernel_conntrack;
        let mut session = None;
        let mut failed = None;
        while !self.is_ending() {
            let wanted = own.wanted.lock().clone();
            let Some(choice) = wanted else {
                self.end_session(session.take());
                failed = None;
                *own.state.lock() = MirrorState::Off;
                std::thread::park();
                continue;
            };
            let done = match &mut session {
                None => self.begin_session(choice).map(|begun| session = Some(begun)),
                Some(session) => self.mirror_once(session, choice),
            };
            match done {
                Ok(()) => failed = None,
                Err(error) => {
                    session = None;
                    let why = errno_text(&error);
                    *own.state.lock() = MirrorState::Failed(why.clone());
                    if failed.as_ref() != Some(&why) {
                        log::warn!(
                            target: LOG,
                            "connections are not mirrored in the kernel's table: {why} (it needs nf_conntrack_netlink and \
                             CAP_NET_ADMIN)"
                        );
                        failed = Some(why);
                    }
                    std::thread::park_timeout(RETRY);
                }
            }
        }
        self.end_session(session);
    }

    fn begin_session(&self, choice: Choice) -> io::Result<Session> {
        let table = KernelTable::new()?;
        // Opened before the first entry is written, so that no deletion is missed.
        let deletions = Deletions::new(table.port_id())?;
        let bell = Epoll::new(1)?;
        bell.add(deletions.as_raw_fd(), 0)?;
        let tracker = Arc::clone(self.datapath.conntrack());
        let mirror = Mirror::new(table, tracker, choice.clone())?;
        if !table_sends_events() {
            log::warn!(target: LOG, "net.netfilter.nf_conntrack_events=0: deletions in the kernel's table are not followed");
        }
        log::info!(target: LOG, "connections are mirrored in the kernel's table");
        Ok(Session {
            mirror,
            deletions,
            bell,
            choice,
        })
    }

    fn end_session(&self, session: Option<Session>) {
        if let Some(Err(error)) = session.map(|s| s.mirror.end()) {
            let why = errno_text(&error);
            log::warn!(target: LOG, "connections may stay in the kernel's table for ten minutes: {why}");
        }
    }

    /// One round, and deletions until the next one is due.
    fn mirror_once(&self, session: &mut Session, choice: Choice) -> io::Result<()> {
        if session.choice != choice {
            session.choice = choice;
            session.mirror.choose(session.choice.clone());
        }
        self.follow_deletions(session)?;
        let began = Instant::now();
        session
            .mirror
            .round(self.clock.now_ms(), heddle_sys::monotonic_ms())?;
        *self.kernel_conntrack.state.lock() = MirrorState::On(session.mirror.counts());
        let until = Instant::now() + (began.elapsed() * REST_TIMES).clamp(MIN_REST, MAX_REST);
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !self.is_ending()
            && self.kernel_conntrack.wanted.lock().as_ref() == Some(&session.choice)
        {
            let wait_ms = left.as_millis().clamp(1, WAIT_MS.into());
            let wait_ms = i32::try_from(wait_ms).unwrap_or(1);
            if session.bell.wait(wait_ms)?.next().is_some() {
                self.follow_deletions(session)?;
                *self.kernel_conntrack.state.lock() = MirrorState::On(session.mirror.counts());
            }
        }
        Ok(())
    }

    /// Ends the connections whose entries were deleted.
    fn follow_deletions(&self, session: &mut Session) -> io::Result<()> {
        let mut more = true;
        let mut lost = false;
        while more && !self.is_ending() {
            let mut keys: Vec<EntryKey> = Vec::new();
            more = session.deletions.read(BATCH, |deletion| match deletion {
                Deletion::Of(key) => keys.push(key),
                Deletion::Lost => lost = true,
            })?;
            session.mirror.deleted(self.clock.now_ms(), &keys)?;
        }
        match lost {
            true => session.mirror.compare(self.clock.now_ms()),
            false => Ok(()),
        }
    }
}

/// Whether the kernel sends events about connections at all.
fn table_sends_events() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_events");
    setting.map_or(true, |text| text.trim() != "0")
}
