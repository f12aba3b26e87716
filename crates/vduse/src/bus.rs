//! Adding devices to the vDPA bus and removing them, on a thread of its own.
//!
//! Each of these calls returns when the device has replied to the messages that it causes. So the thread that
//! replies cannot make them.

use crate::host::Host;
use heddle_sys::EventFd;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A request to the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    Add,
    Remove,
}

/// The result of an errand for endpoint `id`.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) id: u64,
    pub(crate) errand: Errand,
    pub(crate) result: io::Result<()>,
}

/// The thread, and the results of its errands.
pub(crate) struct Bus {
    errands: Sender<(u64, Errand, String)>,
    done: Arc<Mutex<Vec<Done>>>,
    /// Ends by itself when no more errands can come; one that waits for the kernel is not waited for.
    _thread: JoinHandle<()>,
}

impl Bus {
    /// Starts the thread; it notifies `wake` when something is done.
    pub(crate) fn start(host: Arc<dyn Host>, wake: Arc<EventFd>) -> io::Result<Self> {
        let (errands, theirs) = channel();
        let done = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&done);
        let thread = std::thread::Builder::new()
            .name("vduse-bus".into())
            .spawn(move || run(&*host, &theirs, &into, &wake))?;
        Ok(Self {
            errands,
            done,
            _thread: thread,
        })
    }
    /// Queues an errand; [`Bus::done`] has the result later.
    pub(crate) fn queue(&self, id: u64, errand: Errand, name: &str) {
        if self.errands.send((id, errand, name.to_owned())).is_err() {
            let result = Err(io::Error::other("the thread of the vDPA bus has ended"));
            self.done.lock().push(Done { id, errand, result });
        }
    }
    /// The results since the last call.
    pub(crate) fn done(&self) -> Vec<Done> {
        core::mem::take(&mut *self.done.lock())
    }
}

fn run(host: &dyn Host, errands: &Receiver<(u64, Errand, String)>, done: &Mutex<Vec<Done>>, wake: &EventFd) {
    for (id, errand, name) in errands {
        let result = match errand {
            Errand::Add => host.add(&name),
            Errand::Remove => host.remove(&name),
        };
        done.lock().push(Done { id, errand, result });
        wake.notify();
    }
}
