//! The thread that counts samples, sends records of flows ([`heddle_ofproto::sampling`]), and gives local
//! samples to readers ([`readers`]) and to the kernel ([`psample`]).
//!
//! **Bounds.** Workers put samples into rings of their own and never wait. This thread rests as long as it
//! has worked, and never waits for a reader or for a collector. Samples without room are lost and counted
//! ([`crate::sample_counts`]).

mod message;
mod psample;
mod readers;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use heddle_datapath_api::PortNo;
use heddle_ofproto::sampling::LocalSample;
use heddle_sys::{Epoll, monotonic_ms};

use crate::sample_counts::count;
use crate::switch::Switch;
use heddle_daemon::vlog::errno_text;
use psample::Psample;
use readers::Readers;

pub(crate) use readers::socket_path;

/// The longest sleep; then the thread checks whether to end.
const MAX_WAIT_MS: u64 = 100;
/// The shortest rest between two batches, so that each batch has many samples.
const MIN_REST: Duration = Duration::from_millis(1);

/// The receivers of local samples.
struct Local {
    readers: Readers,
    psample: Psample,
    /// Names of ports, for one batch.
    names: HashMap<PortNo, String>,
}

impl Local {
    /// Name of a datapath port.
    fn port(&mut self, switch: &Switch, no: PortNo) -> &str {
        let name = || switch.datapath.port(no).map(|p| p.name().to_owned());
        self.names.entry(no).or_insert_with(|| name().unwrap_or_default())
    }

    fn give(&mut self, switch: &Switch, sample: &LocalSample<'_>, now_ms: u64) {
        count(&switch.sample_counts.local, 1);
        self.psample.give(sample, now_ms, &switch.sample_counts);
        if !self.readers.is_empty() {
            let port = match sample.input {
                "" => self.port(switch, sample.in_port),
                name => name,
            };
            let message = message::text(sample, port);
            self.readers.send(&message, &switch.sample_counts);
        }
    }
}

impl Switch {
    /// Counts samples until the switch ends, at most half of the time.
    pub(crate) fn count_samples(&self) {
        let mut local = Local {
            readers: Readers::open(&socket_path()),
            psample: Psample::default(),
            names: HashMap::new(),
        };
        let bell = Epoll::new(2).and_then(|e| e.add(self.datapath.sample_fd(), 0).map(|()| e));
        let mut bell = match bell {
            Ok(bell) => {
                local.readers.wake(&bell);
                Some(bell)
            }
            Err(error) => {
                let why = errno_text(&error);
                log::error!(target: "ipfix", "cannot wait for samples, looking for them instead ({why})");
                None
            }
        };
        while !self.is_ending() {
            let began = Instant::now();
            let now_ms = monotonic_ms();
            local.readers.update();
            local.names.clear();
            let (more, due_us) = self
                .ofproto
                .sampling()
                .run(&*self.datapath, &mut |sample| local.give(self, sample, now_ms));
            local.psample.tidy(now_ms);
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
