//! Messages on their way to one peer.
//!
//! **Problem.** Most replies are made by the task that also writes them. A channel from a task to itself
//! wakes the task while it runs, so a runtime of several threads fetches another thread for it. That takes
//! longer than a flow mod.
//!
//! **Invariants.** A task that found no message is woken by the next one, unless it has promised to look
//! again by itself ([`Outbox::attend`]).

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

/// The kind of a message: each kind has a bound on what waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    /// A reply: the peer's next request waits for it.
    Reply,
    /// A message that is no reply.
    Event,
    /// An event, and one of a bounded number of packet-ins.
    PacketIn,
    /// An event, of flow monitors.
    Monitor,
}

/// Bytes on their way to a peer.
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) sort: Sort,
}

#[derive(Default)]
struct Waiting {
    list: VecDeque<Outgoing>,
    /// The task looks at the list before it sleeps.
    attended: bool,
    /// A message was added since [`Outbox::take_added`].
    added: bool,
    /// Further messages are dropped.
    closed: bool,
    task: Option<Waker>,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Outbox(Mutex<Waiting>);

impl Outbox {
    /// Adds a message, or drops it after [`Outbox::close`].
    pub(super) fn push(&self, out: Outgoing) {
        let mut waiting = self.0.lock();
        if waiting.closed {
            return;
        }
        waiting.list.push_back(out);
        waiting.added = true;
        let task = if waiting.attended {
            None
        } else {
            waiting.task.take()
        };
        drop(waiting);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Promises that the task that takes messages out will do so before it sleeps.
    pub(super) fn attend(&self) {
        self.0.lock().attended = true;
    }

    /// Whether anything was added since the last call.
    pub(super) fn take_added(&self) -> bool {
        std::mem::take(&mut self.0.lock().added)
    }

    /// Makes [`Outbox::push`] drop further messages.
    pub(super) fn close(&self) {
        self.0.lock().closed = true;
    }

    /// Takes waiting messages that have up to `bytes` together, or a single longer one. Ready with no message
    /// only after [`Outbox::close`].
    pub(super) fn poll_take(&self, bytes: usize, cx: &mut Context<'_>) -> Poll<Vec<Outgoing>> {
        let mut waiting = self.0.lock();
        let mut sum = 0;
        let many = waiting.list.iter().take_while(|out| {
            sum += out.bytes.len();
            sum <= bytes
        });
        let n = many.count().max(1).min(waiting.list.len());
        if n == 0 && !waiting.closed {
            waiting.attended = false;
            waiting.task = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(waiting.list.drain(..n).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn message(n: usize) -> Outgoing {
        Outgoing {
            bytes: vec![0; n],
            sort: Sort::Reply,
        }
    }

    #[test]
    fn a_task_that_sleeps_is_woken_and_one_that_looks_by_itself_is_not() {
        let (outbox, woken) = (Outbox::default(), Arc::new(Woken::default()));
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        let mut take = || match outbox.poll_take(10, &mut cx) {
            Poll::Ready(list) => list.iter().map(|out| out.bytes.len()).collect(),
            Poll::Pending => vec![usize::MAX],
        };
        assert_eq!(take(), [usize::MAX]);
        outbox.push(message(4));
        outbox.push(message(6));
        outbox.push(message(20));
        assert!(outbox.take_added() && !outbox.take_added());
        assert_eq!(woken.0.load(Relaxed), 1, "once is enough");
        assert_eq!([take(), take(), take()], [vec![4, 6], vec![20], vec![usize::MAX]]);
        outbox.attend();
        outbox.push(message(1));
        assert_eq!(woken.0.load(Relaxed), 1);
        // The task looks, and may sleep then.
        assert_eq!([take(), take()], [vec![1], vec![usize::MAX]]);
        outbox.push(message(2));
        assert_eq!(woken.0.load(Relaxed), 2);
        outbox.close();
        outbox.push(message(3));
        assert_eq!([take(), take()], [vec![2], vec![]]);
    }
}
