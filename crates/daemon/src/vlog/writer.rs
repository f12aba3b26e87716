//! The queue between threads that log and the thread that writes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::VLOG;
use super::sink::Event;

/// The number of messages that the queue holds; further ones are dropped and counted.
const QUEUE: usize = 4096;
/// The longest wait of [`flush`], so that a terminal that takes nothing cannot hold up the end of the daemon.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

enum Item {
    Event(Event),
    /// The writer replies when all that was queued before it has been written.
    Flush(SyncSender<()>),
}

#[derive(Default)]
pub(super) struct Writer {
    queue: OnceLock<SyncSender<Item>>,
    dropped: AtomicU64,
}

impl Writer {
    /// Queues an event, or writes it at once when there is no writer thread.
    pub(super) fn put(&self, event: Event) {
        let Some(queue) = self.queue.get() else {
            VLOG.sinks.lock().write(&event);
            return;
        };
        match queue.try_send(Item::Event(event)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Relaxed);
            }
            Err(TrySendError::Disconnected(item)) => {
                if let Item::Event(event) = item {
                    VLOG.sinks.lock().write(&event);
                }
            }
        }
    }
}

/// Starts the writer thread. Fork before this, not after. A second call does nothing.
///
/// # Errors
/// When the thread cannot be started; messages are written in place then.
pub fn start_writer() -> io::Result<()> {
    let (sender, receiver) = sync_channel(QUEUE);
    if VLOG.writer.queue.get().is_none() {
        thread::Builder::new()
            .name("vlog".into())
            .spawn(move || run(&receiver))?;
        // If another thread was faster, ours ends at once: its queue has no sender.
        let _ = VLOG.writer.queue.set(sender);
    }
    Ok(())
}

fn run(queue: &Receiver<Item>) {
    while let Ok(item) = queue.recv() {
        match item {
            Item::Event(event) => {
                VLOG.sinks.lock().write(&event);
                let dropped = VLOG.writer.dropped.swap(0, Relaxed);
                if dropped > 0 {
                    let text = format!("{dropped} log messages were lost because the log could not keep up");
                    VLOG.sinks.lock().write(&Event { text, ..event });
                }
            }
            // The flushing thread may have given up.
            Item::Flush(done) => drop(done.try_send(())),
        }
    }
}

/// Waits until everything that this thread logged so far has been written, for two seconds at most.
pub fn flush() {
    let Some(queue) = VLOG.writer.queue.get() else {
        return;
    };
    let deadline = Instant::now() + FLUSH_LIMIT;
    let (done, wait) = sync_channel(1);
    let mut item = Item::Flush(done);
    while let Err(error) = queue.try_send(item) {
        match error {
            TrySendError::Full(back) if Instant::now() < deadline => item = back,
            _ => return,
        }
        thread::sleep(Duration::from_millis(1));
    }
    let _ = wait.recv_timeout(deadline.saturating_duration_since(Instant::now()));
}
