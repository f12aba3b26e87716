//! Closing descriptors whose closing takes the kernel long, on threads of their own.
//!
//! To close a packet socket the kernel waits until no processor uses it any more. That takes some 10 ms, or
//! 30 ms with a ring, and blocks the caller. Sockets that are closed at the same time share that wait if each
//! has a thread. So a switch with a hundred ports ends at once instead of in seconds.
//!
//! Threads are started when there is something to close, [`MAX_THREADS`] at most. They end when there is
//! nothing left. A caller that closes more than they can waits too, so that no more than [`MAX_WAITING`]
//! descriptors wait to be closed. Any thread may call.

use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Threads at most. They only wait.
const MAX_THREADS: usize = 64;
/// Descriptors that wait at most.
const MAX_WAITING: usize = 1024;

#[derive(Debug)]
struct Closer {
    waiting: Vec<OwnedFd>,
    threads: usize,
}

static STATE: Mutex<Closer> = Mutex::new(Closer {
    waiting: Vec::new(),
    threads: 0,
});
static IDLE: Condvar = Condvar::new();

/// Closes `fd` soon; here and now if many wait, or there can be no threads.
pub(crate) fn close(fd: OwnedFd) {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if state.waiting.len() >= MAX_WAITING {
        drop(state);
        return drop(fd);
    }
    state.waiting.push(fd);
    if state.threads >= MAX_THREADS {
        return;
    }
    let thread = std::thread::Builder::new()
        .name("closer".into())
        .stack_size(64 << 10);
    if thread.spawn(run).is_ok() {
        state.threads += 1;
    } else if state.threads == 0 {
        let all = std::mem::take(&mut state.waiting);
        drop(state);
        drop(all);
    }
}

fn run() {
    loop {
        let next = {
            let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
            let next = state.waiting.pop();
            if next.is_none() {
                state.threads -= 1;
                IDLE.notify_all();
            }
            next
        };
        match next {
            Some(fd) => drop(fd),
            None => return,
        }
    }
}

/// Waits until all is closed that was to be; `false`: it takes longer than `patience`.
pub fn wait_closed(patience: Duration) -> bool {
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = IDLE.wait_timeout_while(state, patience, |s| s.threads > 0 || !s.waiting.is_empty());
    !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn all_are_closed_and_threads_end() {
        let mut ends = Vec::new();
        for _ in 0..3 * MAX_THREADS {
            let (read, write) = std::io::pipe().unwrap();
            close(write.into());
            ends.push(read);
        }
        assert!(wait_closed(Duration::from_secs(20)));
        for mut end in ends {
            // No descriptor of the other end is open.
            assert_eq!(end.read(&mut [0]).unwrap(), 0);
        }
    }
}
