//! Receiving sockets that are made before their ports are.
//!
//! To give a socket a ring takes the kernel some 10 ms, in which it waits for all processors. A socket needs
//! no device for that. The sockets of many ports are made at the same time and share one wait. So a switch
//! with a hundred ports starts at once instead of in a second. Any thread may use one.

use super::RING;
use heddle_sys::{PacketSocket, RxRing};
use parking_lot::Mutex;
use std::io;

/// Threads at most. They only wait.
const MAX_THREADS: usize = 64;

/// A socket that takes nothing in yet, and its ring; without one, why it has none.
pub(super) type Receiver = (PacketSocket, io::Result<RxRing>);

/// Sockets for ports that will be opened.
#[derive(Debug, Default)]
pub struct Receivers {
    made: Mutex<Vec<Receiver>>,
}

impl Receivers {
    /// Makes `n` of them. A socket that cannot be made now is made, or refused, when a port needs it.
    pub fn prepare(&self, n: usize) {
        let threads = n.min(MAX_THREADS);
        std::thread::scope(|scope| {
            for i in 0..threads {
                let work = move || {
                    for _ in (i..n).step_by(MAX_THREADS) {
                        let Ok(one) = make() else { return };
                        self.made.lock().push(one);
                    }
                };
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    return;
                }
            }
        });
    }

    /// Closes the sockets that no port has taken.
    pub fn clear(&self) {
        self.made.lock().clear();
    }

    /// One of them, or a new one.
    pub(super) fn take(&self) -> io::Result<Receiver> {
        let ready = self.made.lock().pop();
        ready.map_or_else(make, Ok)
    }
}

/// A new one.
pub(super) fn make() -> io::Result<Receiver> {
    let socket = PacketSocket::receiver()?;
    socket.set_rcvbuf(super::RCVBUF);
    let ring = RxRing::attach(&socket, RING);
    Ok((socket, ring))
}
