//! When workers come before other programs, so that messages are neither late nor lost.
//!
//! **Problem.** Workers share processors with whatever else runs there, and that may take its time, hundreds
//! of milliseconds now and then. Frames wait for them meanwhile, and rings run over: three messages of a
//! session in a row are soon lost.
//!
//! **Shape.** Where a frame has waited for [`PATIENCE_MS`], or a message is missing, all workers are hurried
//! for [`MOMENT_MS`], and not again for [`REST_MS`]. While some session goes down unless a message comes soon,
//! they do not rest, but are hurried for [`MOST_MS`] of a second at most. So other programs always get
//! something, and a switch with nothing to fear for takes nothing from them. Where the system does not let us
//! do this, that is said once.

use heddle_bfd::Missing;
use heddle_datapath::Datapath;
use std::io;

/// How long a frame may wait for its worker, ms.
const PATIENCE_MS: u64 = 5;
/// How long workers are hurried, ms.
const MOMENT_MS: u64 = 10;
/// How long they are not, after that, ms: shorter than what it takes packets to fill a ring.
const REST_MS: u64 = 10;

/// How long they are hurried in a second at most, ms.
const MOST_MS: u64 = 750;
const SECOND_MS: u64 = 1000;

/// Those who can be hurried.
pub(super) trait Workers {
    /// See [`Datapath::hurry`].
    fn hurry(&self, on: bool) -> io::Result<()>;
}

impl Workers for Datapath {
    fn hurry(&self, on: bool) -> io::Result<()> {
        Datapath::hurry(self, on)
    }
}

/// Whether workers are hurried.
#[derive(Debug, Default)]
pub(super) struct Haste {
    /// Since when they are, and until when, ms.
    moment_ms: Option<(u64, u64)>,
    /// When they may be again, ms.
    rest_ms: u64,
    /// The second that is counted began then, and how long they were hurried in it, ms.
    second_ms: u64,
    spent_ms: u64,
    refused: bool,
}

impl Haste {
    /// Looks whether it is time to begin or to end: messages are `missing`, a frame waits since `posted_ms`.
    pub(super) fn look(
        &mut self,
        workers: &dyn Workers,
        missing: Missing,
        posted_ms: Option<u64>,
        now_ms: u64,
    ) {
        if now_ms >= self.second_ms + SECOND_MS {
            (self.second_ms, self.spent_ms) = (now_ms, 0);
        }
        if let Some((since_ms, until_ms)) = self.moment_ms {
            if now_ms < until_ms {
                return;
            }
            self.spent_ms += now_ms - since_ms;
            if missing == Missing::Last && self.spent_ms < MOST_MS {
                self.moment_ms = Some((now_ms, now_ms + MOMENT_MS));
                return;
            }
            let _ = workers.hurry(false);
            (self.moment_ms, self.rest_ms) = (None, now_ms + REST_MS);
        }
        let waits = posted_ms.is_some_and(|at_ms| now_ms >= at_ms + PATIENCE_MS);
        let rests = now_ms < self.rest_ms && missing < Missing::Last;
        if self.refused || rests || self.spent_ms >= MOST_MS || !(missing > Missing::None || waits) {
            return;
        }
        self.moment_ms = Some((now_ms, now_ms + MOMENT_MS));
        if let Err(error) = workers.hurry(true) {
            // Some of them may be.
            let _ = workers.hurry(false);
            (self.moment_ms, self.refused) = (None, true);
            log::info!(target: "bfd", "workers cannot be hurried where messages wait ({error})");
        }
    }

    /// When it wants to look again, ms.
    pub(super) fn wake_ms(&self, posted_ms: Option<u64>) -> Option<u64> {
        let waits = posted_ms.filter(|_| !self.refused);
        let begin = waits.map(|at_ms| (at_ms + PATIENCE_MS).max(self.rest_ms));
        self.moment_ms.map(|(_, until_ms)| until_ms).or(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Fake {
        asked: RefCell<Vec<bool>>,
        refuses: bool,
    }

    impl Workers for Fake {
        fn hurry(&self, on: bool) -> io::Result<()> {
            self.asked.borrow_mut().push(on);
            match self.refuses {
                true => Err(io::ErrorKind::PermissionDenied.into()),
                false => Ok(()),
            }
        }
    }

    #[test]
    fn where_nothing_is_late_nobody_is_hurried() {
        let (mut haste, workers) = (Haste::default(), Fake::default());
        for now_ms in 100..200 {
            haste.look(&workers, Missing::None, Some(now_ms - 4), now_ms);
            assert_eq!(haste.wake_ms(None), None);
        }
        assert_eq!(*workers.asked.borrow(), []);
    }

    #[test]
    fn half_of_the_time_at_most() {
        let (mut haste, workers) = (Haste::default(), Fake::default());
        let mut hurried = 0;
        for now_ms in 1000..2000 {
            haste.look(&workers, Missing::One, None, now_ms);
            hurried += u64::from(haste.moment_ms.is_some());
        }
        assert!((480..=520).contains(&hurried), "{hurried}");
        let asked = workers.asked.borrow();
        assert!(
            asked.len() >= 96
                && asked
                    .iter()
                    .zip([true, false].iter().cycle())
                    .all(|(a, b)| a == b)
        );
    }

    #[test]
    fn while_a_session_may_go_down_they_do_not_rest_but_leave_something_to_others() {
        let (mut haste, workers) = (Haste::default(), Fake::default());
        haste.look(&workers, Missing::One, None, 1000);
        haste.look(&workers, Missing::None, None, 1010);
        let mut hurried = Vec::new();
        for now_ms in 1011..4000 {
            haste.look(&workers, Missing::Last, None, now_ms);
            hurried.push(haste.moment_ms.is_some());
        }
        assert!(hurried[..700].iter().all(|h| *h), "at once, and without a break");
        let n = hurried.iter().filter(|h| **h).count();
        assert!((2200..=2300).contains(&n), "{n}");
    }

    #[test]
    fn a_frame_that_waits_is_looked_after_in_time() {
        let (mut haste, workers) = (Haste::default(), Fake::default());
        assert_eq!(haste.wake_ms(Some(100)), Some(105));
        haste.look(&workers, Missing::None, Some(100), 105);
        assert_eq!(
            (haste.wake_ms(Some(100)), haste.wake_ms(None)),
            (Some(115), Some(115))
        );
        haste.look(&workers, Missing::None, Some(100), 115);
        assert_eq!(haste.wake_ms(Some(100)), Some(125), "after a rest");
        assert_eq!(*workers.asked.borrow(), [true, false]);
    }

    #[test]
    fn who_may_not_does_not_ask_again() {
        let (mut haste, workers) = (
            Haste::default(),
            Fake {
                refuses: true,
                ..Fake::default()
            },
        );
        for now_ms in 1000..1100 {
            haste.look(&workers, Missing::One, Some(900), now_ms);
        }
        assert_eq!(*workers.asked.borrow(), [true, false]);
        assert_eq!(haste.wake_ms(Some(1090)), None);
    }
}
