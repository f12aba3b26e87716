//! The thread that counts samples and sends records of flows ([`heddle_ofproto::sampling`]).

use std::time::{Duration, Instant};

use heddle_sys::Epoll;

use crate::switch::Switch;
use heddle_daemon::vlog::errno_text;

/// The longest sleep; then the thread checks whether to end.
const MAX_WAIT_MS: u64 = 100;
/// The shortest rest between two batches, so that each batch has many samples.
const MIN_REST: Duration = Duration::from_millis(1);

impl Switch {
    /// Counts samples until the switch ends, at most half of the time.
    pub(crate) fn count_samples(&self) {
        let mut bell = match Epoll::new(1).and_then(|e| e.add(self.datapath.sample_fd(), 0).map(|()| e)) {
            Ok(bell) => Some(bell),
            Err(error) => {
                let why = errno_text(&error);
                log::error!(target: "ipfix", "cannot wait for samples, looking for them instead ({why})");
                None
            }
        };
        while !self.is_ending() {
            let began = Instant::now();
            let (more, due_us) = self.ofproto.sampling().run(&*self.datapath);
            std::thread::sleep(began.elapsed().max(MIN_REST));
            if more {
                continue;
            }
            let wait_ms = due_us.map_or(MAX_WAIT_MS, |us| us.div_ceil(1000).min(MAX_WAIT_MS));
            match &mut bell {
                Some(bell) => _ = bell.wait(i32::try_from(wait_ms).unwrap_or(0)),
                None => std::thread::sleep(Duration::from_millis(wait_ms.clamp(1, 10))),
            }
        }
        self.ofproto.sampling().end();
    }
}
