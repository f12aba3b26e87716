//! The one capture that may be under way. A capture without a read for [`UNREAD_TIMEOUT`] ends, so that a
//! killed reader costs nothing.

use std::time::{Duration, Instant};

use heddle_datapath::{CaptureWish, Datapath};
use heddle_flow::Match;
use parking_lot::Mutex;

/// Time without a read after which a capture ends.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);

struct Session {
    id: u64,
    filter: Option<Match>,
    read: Instant,
    /// Packets that the filter left out.
    passed_over: u64,
}

impl Session {
    fn is_unread(&self) -> bool {
        self.read.elapsed() >= UNREAD_TIMEOUT
    }
}

/// The capture that is under way, if there is one.
#[derive(Default)]
pub(crate) struct Captures(Mutex<Slot>);

#[derive(Default)]
struct Slot {
    last: u64,
    session: Option<Session>,
}

impl Captures {
    /// Begins a capture; returns its number.
    ///
    /// # Errors
    /// Another capture is under way.
    pub(crate) fn start(
        &self,
        wish: CaptureWish,
        filter: Option<Match>,
        datapath: &Datapath,
    ) -> Result<u64, String> {
        let mut slot = self.0.lock();
        if slot.session.as_ref().is_some_and(|s| !s.is_unread()) {
            return Err("another capture is under way".into());
        }
        datapath.capture(Some(wish));
        slot.last += 1;
        let id = slot.last;
        slot.session = Some(Session {
            id,
            filter,
            read: Instant::now(),
            passed_over: 0,
        });
        Ok(id)
    }

    /// Notes that a capture is read now; returns its filter.
    ///
    /// # Errors
    /// The capture is over.
    pub(crate) fn begin_read(&self, id: &str) -> Result<Option<Match>, String> {
        let mut slot = self.0.lock();
        let session = of(&mut slot, id)?;
        session.read = Instant::now();
        Ok(session.filter)
    }

    /// Adds packets that the filter left out; returns the number of all of them.
    ///
    /// # Errors
    /// The capture is over.
    pub(crate) fn add_passed_over(&self, id: &str, packets: u64) -> Result<u64, String> {
        let mut slot = self.0.lock();
        let session = of(&mut slot, id)?;
        session.passed_over += packets;
        Ok(session.passed_over)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// The capture is over.
    pub(crate) fn stop(&self, id: &str, datapath: &Datapath) -> Result<(), String> {
        let mut slot = self.0.lock();
        of(&mut slot, id)?;
        slot.session = None;
        datapath.capture(None);
        Ok(())
    }

    /// Ends a capture that is no longer read, and returns whether it did. To be called now and then.
    pub(crate) fn tick(&self, datapath: &Datapath) -> bool {
        let mut slot = self.0.lock();
        let is_over = slot.session.as_ref().is_some_and(Session::is_unread);
        if is_over {
            slot.session = None;
            datapath.capture(None);
        }
        is_over
    }
}

fn of<'a>(slot: &'a mut Slot, id: &str) -> Result<&'a mut Session, String> {
    let session = slot.session.as_mut().filter(|s| s.id.to_string() == id);
    session.ok_or_else(|| format!("{id}: this capture is over"))
}
