//! Local samples for the kernel's psample ([`heddle_sys::psample`]).
//!
//! **Bounds.** Each group, domain and point in use has an action of its own in the kernel. There are at most
//! [`MAX_ACTIONS`], and an action without a sample for [`IDLE_MS`] is removed. After the last one the device
//! goes, too. A sample without an action is lost and counted.

use std::collections::HashMap;
use std::io;

use heddle_daemon::vlog::errno_text;
use heddle_flow::packet_type;
use heddle_ofproto::sampling::LocalSample;
use heddle_sys::psample::SampleDevice;

use crate::sample_counts::{SampleCounts, count};

/// Maximum number of actions in the kernel.
const MAX_ACTIONS: u32 = 1024;
/// The time after which an action without samples is removed, ms.
const IDLE_MS: u64 = 10_000;
/// Interval of the search for idle actions, ms.
const SEARCH_INTERVAL_MS: u64 = 1000;
/// The time from a failure to the next attempt, ms.
const RETRY_MS: u64 = 10_000;

/// A device that gives frames to psample by mark. Tests have their own.
trait Device {
    fn add(&mut self, mark: u32, group: u32, cookie: [u8; 8]) -> io::Result<()>;
    fn remove(&mut self, mark: u32) -> io::Result<()>;
    fn send(&mut self, mark: u32, frame: &[u8]) -> io::Result<()>;
}

impl Device for SampleDevice {
    fn add(&mut self, mark: u32, group: u32, cookie: [u8; 8]) -> io::Result<()> {
        SampleDevice::add(self, mark, group, cookie)
    }
    fn remove(&mut self, mark: u32) -> io::Result<()> {
        SampleDevice::remove(self, mark)
    }
    fn send(&mut self, mark: u32, frame: &[u8]) -> io::Result<()> {
        SampleDevice::send(self, mark, frame)
    }
}

/// Group and cookie of a sample.
type Id = (u32, [u8; 8]);

struct InUse {
    mark: u32,
    last_ms: u64,
}

/// The actions of a device.
struct Actions<D> {
    device: D,
    in_use: HashMap<Id, InUse>,
    /// Marks without an action.
    free: Vec<u32>,
}

/// A sample that psample did not get.
#[derive(Debug)]
enum Lost {
    NoRoom,
    /// The kernel refused the action.
    Action(io::Error),
    /// The kernel refused the packet.
    Packet(io::Error),
}

impl<D: Device> Actions<D> {
    fn new(device: D) -> Self {
        Self {
            device,
            in_use: HashMap::new(),
            free: (1..=MAX_ACTIONS).rev().collect(),
        }
    }

    fn send(&mut self, id: Id, frame: &[u8], now_ms: u64) -> Result<(), Lost> {
        let mark = match self.in_use.get_mut(&id) {
            Some(found) => {
                found.last_ms = now_ms;
                found.mark
            }
            None => self.add(id, now_ms)?,
        };
        self.device.send(mark, frame).map_err(Lost::Packet)
    }

    fn add(&mut self, id: Id, now_ms: u64) -> Result<u32, Lost> {
        let mark = self.free.pop().ok_or(Lost::NoRoom)?;
        if let Err(error) = self.device.add(mark, id.0, id.1) {
            self.free.push(mark);
            return Err(Lost::Action(error));
        }
        let last_ms = now_ms;
        self.in_use.insert(id, InUse { mark, last_ms });
        Ok(mark)
    }

    /// Removes idle actions.
    fn tidy(&mut self, now_ms: u64) {
        let Self { device, in_use, free } = self;
        in_use.retain(|_, action| {
            let stays = now_ms.saturating_sub(action.last_ms) < IDLE_MS;
            if !stays {
                // An action that cannot be removed keeps its mark, so that no other sample gets its cookie.
                match device.remove(action.mark) {
                    Ok(()) => free.push(action.mark),
                    Err(error) => {
                        let why = errno_text(&error);
                        log::warn!(target: "samples", per_min = 1, burst = 1; "an action is not removed ({why})");
                    }
                }
            }
            stays
        });
    }
}

/// State of the kernel's psample.
#[derive(Default)]
enum Kernel {
    /// There was no sample for some time.
    #[default]
    Idle,
    Ready(Actions<SampleDevice>),
    /// The kernel cannot do it.
    Missing,
    Failed {
        retry_ms: u64,
    },
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Psample {
    state: Kernel,
    next_search_ms: u64,
}

impl Psample {
    /// Gives a sample to the kernel, if that has psample.
    pub(super) fn give(&mut self, sample: &LocalSample<'_>, now_ms: u64, counts: &SampleCounts) {
        match self.state {
            Kernel::Missing => return,
            Kernel::Failed { retry_ms } if now_ms < retry_ms => return count(&counts.psample_error, 1),
            Kernel::Idle | Kernel::Failed { .. } => self.open(now_ms),
            Kernel::Ready(_) => {}
        }
        let Kernel::Ready(actions) = &mut self.state else {
            return;
        };
        // The device's frames have Ethernet headers.
        if sample.packet_type != packet_type::ETHERNET {
            return count(&counts.psample_error, 1);
        }
        match actions.send((sample.group, sample.cookie()), sample.bytes, now_ms) {
            Ok(()) => count(&counts.psample_sent, 1),
            Err(Lost::NoRoom) => count(&counts.psample_no_room, 1),
            Err(Lost::Action(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.give_up(&error, now_ms);
            }
            Err(Lost::Action(error)) => {
                count(&counts.psample_error, 1);
                self.give_up(&error, now_ms);
            }
            Err(Lost::Packet(error)) => {
                count(&counts.psample_error, 1);
                if is_of_device(&error) {
                    self.give_up(&error, now_ms);
                }
            }
        }
    }

    fn open(&mut self, now_ms: u64) {
        match SampleDevice::new() {
            Ok(device) => self.state = Kernel::Ready(Actions::new(device)),
            Err(error) => self.give_up(&error, now_ms),
        }
    }

    fn give_up(&mut self, error: &io::Error, now_ms: u64) {
        let why = errno_text(error);
        self.state = if error.kind() == io::ErrorKind::NotFound {
            log::info!(target: "samples", "the kernel has no psample by act_sample ({why}): `heddle samples` reads local samples");
            Kernel::Missing
        } else {
            log::warn!(target: "samples", per_min = 1, burst = 1; "psample gets no samples for {RETRY_MS} ms ({why})");
            let retry_ms = now_ms + RETRY_MS;
            Kernel::Failed { retry_ms }
        };
    }

    /// Removes idle actions for some time.
    pub(super) fn tidy(&mut self, now_ms: u64) {
        let Kernel::Ready(actions) = &mut self.state else {
            return;
        };
        if now_ms < self.next_search_ms {
            return;
        }
        self.next_search_ms = now_ms + SEARCH_INTERVAL_MS;
        actions.tidy(now_ms);
        if actions.in_use.is_empty() {
            self.state = Kernel::Idle;
        }
    }
}

/// Whether the device was deleted or set down.
fn is_of_device(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = Errno::from_io_error(error);
    [Errno::NXIO, Errno::NODEV, Errno::NETDOWN]
        .map(Some)
        .contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The kernel's part, as a table.
    #[derive(Default)]
    struct Table {
        actions: BTreeMap<u32, Id>,
        sent: Vec<Id>,
        refuses: bool,
    }

    impl Device for Table {
        fn add(&mut self, mark: u32, group: u32, cookie: [u8; 8]) -> io::Result<()> {
            if self.refuses {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            assert!(mark != 0 && self.actions.insert(mark, (group, cookie)).is_none());
            Ok(())
        }
        fn remove(&mut self, mark: u32) -> io::Result<()> {
            assert!(self.actions.remove(&mark).is_some());
            Ok(())
        }
        fn send(&mut self, mark: u32, _: &[u8]) -> io::Result<()> {
            self.sent.push(self.actions[&mark]);
            Ok(())
        }
    }

    fn id(point: u32) -> Id {
        (10, u64::from(point).to_be_bytes())
    }

    #[test]
    fn each_sample_has_the_action_of_its_group_and_cookie() {
        let mut a = Actions::new(Table::default());
        for sent in [id(1), id(2), (11, id(1).1), id(1)] {
            a.send(sent, b"", 0).unwrap();
        }
        assert_eq!(a.device.sent, [id(1), id(2), (11, id(1).1), id(1)]);
        assert_eq!(a.device.actions.len(), 3);
    }

    #[test]
    fn actions_are_bounded_and_idle_ones_make_room() {
        let mut a = Actions::new(Table::default());
        for point in 0..MAX_ACTIONS {
            a.send(id(point), b"", 0).unwrap();
        }
        assert!(matches!(a.send(id(MAX_ACTIONS), b"", 1), Err(Lost::NoRoom)));
        a.send(id(7), b"", IDLE_MS - 1).unwrap();
        a.tidy(IDLE_MS);
        assert_eq!(a.device.actions.values().collect::<Vec<_>>(), [&id(7)]);
        for point in 0..MAX_ACTIONS {
            a.send(id(point), b"", IDLE_MS).unwrap();
        }
        assert_eq!(a.device.actions.len(), MAX_ACTIONS as usize);
        a.tidy(3 * IDLE_MS);
        assert!(a.device.actions.is_empty() && a.free.len() == MAX_ACTIONS as usize);
    }

    #[test]
    fn a_refused_action_keeps_its_mark_free() {
        let mut a = Actions::new(Table::default());
        a.device.refuses = true;
        assert!(matches!(a.send(id(1), b"", 0), Err(Lost::Action(_))));
        a.device.refuses = false;
        a.send(id(1), b"", 0).unwrap();
        assert_eq!(a.free.len(), MAX_ACTIONS as usize - 1);
    }
}
