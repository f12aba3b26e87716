//! Filters: the places of programs at the clsact hooks of network devices.
//!
//! A filter is identified by hook, priority and handle. It stays when this process ends. All names are of the
//! calling thread's network namespace.

use aya::programs::tc::{NlOptions, SchedClassifierLink, SchedClassifierLinkId, TcAttachOptions, TcHandle};
use aya::programs::{Link as _, SchedClassifier, TcAttachType, tc};
use std::error::Error;
use std::io;

const HANDLE: TcHandle = TcHandle::new(0, 1);

/// Place of a program at a device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hook {
    /// Before the host's stack, for packets that the device receives.
    Ingress,
    /// Before the device, for packets that the host's stack sends.
    Egress,
}

impl Hook {
    fn kind(self) -> TcAttachType {
        match self {
            Self::Ingress => TcAttachType::Ingress,
            Self::Egress => TcAttachType::Egress,
        }
    }
}

/// Text of an error with all its causes, in one line.
pub(crate) fn why(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let e_text = e.to_string();
        if !text.contains(&e_text) {
            text = format!("{text}: {e_text}");
        }
        cause = e.source();
    }
    text
}

fn io_error(error: impl Error) -> io::Error {
    io::Error::other(why(&error))
}

/// Puts a program to a device, in the place of one that is there.
pub(crate) fn attach(program: &mut SchedClassifier, name: &str, hook: Hook, priority: u16) -> io::Result<()> {
    // The discipline may be there already, mostly because of an earlier process.
    let _ = tc::qdisc_add_clsact(name);
    if add(program, name, hook, priority) {
        return Ok(());
    }
    let there = SchedClassifierLink::attached(name, hook.kind(), priority, HANDLE, None)?;
    let id = program.attach_to_link(there).map_err(io_error)?;
    keep(program, id);
    Ok(())
}

/// Attaches a program to a device that has none any more, because another program removed its filter or its
/// queueing discipline. `true`: it had none.
pub(crate) fn attach_again(program: &mut SchedClassifier, name: &str, hook: Hook, priority: u16) -> bool {
    add(program, name, hook, priority)
        || tc::qdisc_add_clsact(name).is_ok() && add(program, name, hook, priority)
}

/// Puts a program where no filter is. `false`: one is, or none can be.
fn add(program: &mut SchedClassifier, name: &str, hook: Hook, priority: u16) -> bool {
    let options = TcAttachOptions::Netlink(NlOptions {
        priority,
        handle: HANDLE,
        classid: None,
    });
    let added = program.attach_with_options(name, hook.kind(), options);
    added.map(|id| keep(program, id)).is_ok()
}

/// The filter stays when this process ends.
fn keep(program: &mut SchedClassifier, id: SchedClassifierLinkId) {
    if let Ok(link) = program.take_link(id) {
        std::mem::forget(link);
    }
}

/// Takes the programs of a priority off a device.
pub(crate) fn detach(name: &str, priority: u16) -> io::Result<()> {
    let mut done = Err(io::ErrorKind::NotFound.into());
    for hook in [Hook::Ingress, Hook::Egress] {
        let link = SchedClassifierLink::attached(name, hook.kind(), priority, HANDLE, None)?;
        let one = link.detach().map_err(io_error);
        done = done.or(one);
    }
    done
}
