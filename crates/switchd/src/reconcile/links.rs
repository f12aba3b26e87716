//! A thread that listens to the kernel's notices of network devices.

use std::io;
use std::os::fd::AsRawFd as _;

use heddle_sys::link_events::LinkEvent;
use heddle_sys::{Epoll, LinkEvents};
use tokio::sync::watch;

use heddle_daemon::vlog::errno_text;

/// After this time without a notice, the thread checks whether there still is a receiver.
const WAIT_MS: i32 = 500;

/// Starts listening. The receiver changes whenever a device came, went or changed. Without the kernel's
/// notices it never does, and devices are only read at intervals.
///
/// `released` is called with the index of each device whose filter was removed ([`LinkEvent::Released`]).
/// `carrier` is called with the name of each device that has changed, and whether it may forward.
pub(super) fn watch_links(
    released: impl Fn(u32) + Send + 'static,
    carrier: impl Fn(&str, bool) + Send + 'static,
) -> watch::Receiver<()> {
    let (sender, receiver) = watch::channel(());
    let thread = std::thread::Builder::new().name("links".into()).spawn(move || {
        if let Err(error) = listen(&sender, released, carrier) {
            log::warn!(target: "bridge", "no notices of network devices ({})", errno_text(&error));
        }
    });
    if let Err(error) = thread {
        log::warn!(target: "bridge", "no notices of network devices ({})", errno_text(&error));
    }
    receiver
}

fn listen(
    sender: &watch::Sender<()>,
    released: impl Fn(u32),
    carrier: impl Fn(&str, bool),
) -> io::Result<()> {
    let mut events = LinkEvents::new()?;
    let mut epoll = Epoll::new(1)?;
    epoll.add(events.as_raw_fd(), 0)?;
    while !sender.is_closed() {
        let ready = epoll.wait(WAIT_MS)?.next().is_some();
        let mut changed = false;
        for event in if ready { events.read()? } else { Vec::new() } {
            match event {
                LinkEvent::Released { ifindex } => released(ifindex),
                LinkEvent::Changed(device) => {
                    carrier(&device.name, device.up && device.lower_up);
                    changed = true;
                }
                LinkEvent::Gone(device) => {
                    carrier(&device.name, false);
                    changed = true;
                }
                LinkEvent::Lost => changed = true,
            }
        }
        if changed {
            // Sending fails when there is no receiver; then the loop ends.
            let _ = sender.send(());
        }
    }
    Ok(())
}
