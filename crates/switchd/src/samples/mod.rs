//! The thread that counts samples, sends records of flows ([`heddle_ofproto::sampling`]), and gives local
//! samples to readers ([`readers`]) and to the kernel ([`psample`]).
//!
//! **Bounds.** Workers put samples into rings of their own and never wait. This thread rests as long as it
//! has worked, and never waits for a reader or for a collector. Samples without room are lost and counted
//! ([`SampleCounts`]).

mod message;
mod psample;
mod readers;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use heddle_datapath_api::PortNo;
use heddle_ofproto::sampling::LocalSample;
use heddle_sys::{Epoll, monotonic_ms};

use crate::switch::Switch;
use heddle_daemon::vlog::errno_text;
use psample::Psample;
use readers::Readers;

pub(crate) use readers::socket_path;

/// The longest sleep; then the thread checks whether to end.
const MAX_WAIT_MS: u64 = 100;
/// The shortest rest between two batches, so that each batch has many samples.
const MIN_REST: Duration = Duration::from_millis(1);

/// Numbers of local samples, each since the daemon's start.
#[derive(Default)]
pub(crate) struct SampleCounts {
    /// Taken from workers.
    local: AtomicU64,
    /// Sent to readers; one sample counts once for each.
    reader_sent: AtomicU64,
    /// Lost for a reader, which was slow.
    reader_lost: AtomicU64,
    /// Given to the kernel's psample.
    psample_sent: AtomicU64,
    /// Lost for the kernel: too many pairs of domain and point are in use.
    psample_no_room: AtomicU64,
    /// Lost for the kernel, which refused the packet or its action.
    psample_error: AtomicU64,
}

impl SampleCounts {
    /// Each number with its name.
    pub(crate) fn all(&self) -> [(&'static str, u64); 6] {
        [
            ("sample_local", &self.local),
            ("sample_reader_sent", &self.reader_sent),
            ("sample_reader_lost", &self.reader_lost),
            ("sample_psample_sent", &self.psample_sent),
            ("sample_psample_no_room", &self.psample_no_room),
            ("sample_psample_error", &self.psample_error),
        ]
        .map(|(name, n)| (name, n.load(Relaxed)))
    }
}

/// Adds to one of the numbers.
fn count(number: &AtomicU64, n: u64) {
    number.fetch_add(n, Relaxed);
}

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
