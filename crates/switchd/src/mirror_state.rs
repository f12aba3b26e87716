//! Settings and state of the mirror of connections in the kernel's table ([`crate::kernel_conntrack`]).

use heddle_kernel_conntrack::{Choice, Counts};
use parking_lot::Mutex;

/// The mirror's settings and state.
#[derive(Default)]
pub(crate) struct KernelConntrack {
    pub(crate) wanted: Mutex<Option<Choice>>,
    pub(crate) state: Mutex<MirrorState>,
    pub(crate) thread: Mutex<Option<std::thread::Thread>>,
}

/// The state of the mirror.
#[derive(Clone, Debug, Default)]
pub(crate) enum MirrorState {
    /// The setting is off.
    #[default]
    Off,
    /// The kernel refuses, for this reason.
    Failed(String),
    /// Connections are mirrored.
    On(Counts),
}

impl KernelConntrack {
    /// The state now.
    pub(crate) fn state(&self) -> MirrorState {
        self.state.lock().clone()
    }
}
