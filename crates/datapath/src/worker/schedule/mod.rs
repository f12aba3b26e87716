//! The schedulers of a worker. Each file has one algorithm; the table names it.
//!
//! | question | file | algorithm | units |
//! | --- | --- | --- | --- |
//! | how many packets does a queue get, and when | `queue` | deficit round robin, surplus form (Shreedhar and Varghese 1995) | cycles |
//! | how many queues of one port are polled in a round | `queue`, `PortBudget` | a budget per round | cycles |
//! | which misses are translated | `misses` | token bucket whose rate halves and doubles; equal shares of hashed senders (stochastic fair queueing, McKenney 1990) | cycles |
//! | is a queue polled whose poll is a system call | `backoff` | truncated binary exponential back-off, one kernel query for all | cycles |
//! | does the worker poll again or sleep | `polling` | spin, then block, with a limit that adapts to the gaps between packets (as the kernel's adaptive busy polling) | cycles |
//! | does it pause between the packets of a stream | `moderation` | trials with truncated binary exponential back-off (interrupt moderation) | cycles |
//! | how does it pause, sleep and wake | `sleep` | arm, look again, sleep in epoll; `pmd-sleep-max` | microseconds, milliseconds |
//!
//! `round` calls them. In each iteration of [`Worker::run`](super::Worker::run):
//!
//! 1. `round` goes over the queues. Three have to agree to a poll, in this order: the port's
//!    budget, the queue's scheduler, and the back-off. It receives packets, and begins the queue's turn.
//! 2. When a burst is half full, or the round is over, the burst is forwarded. Each miss in it is admitted by
//!    the miss policer of its queue, measured by itself and charged. Then the turns end, with their shares of
//!    the burst's cycles.
//! 3. After a round with packets, `polling` learns the gap before them. After a round without, it decides
//!    whether the worker polls again; otherwise `sleep` pauses or sleeps.
//!
//! `queue`, `misses`, `backoff`, `polling` and `moderation` are pure: the caller passes the time, which is
//! the cycle counter ([`heddle_sys::Tsc`]). The worker reads the counter once per turn, once per burst and
//! twice per miss.

mod backoff;
mod misses;
mod moderation;
mod polling;
mod queue;
mod round;
mod sleep;

pub(super) use backoff::PollBackoff;
pub(super) use misses::sender_of;
pub(super) use queue::{PortBudget, QueueScheduler};
pub(super) use sleep::Idle;

/// The schedulers' state, without that of single queues.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Budget of each port, which its queues share.
    pub(super) budgets: Vec<PortBudget>,
    /// Number of the round over the queues.
    round: u64,
    /// Until this time in cycles, queues in back-off are skipped: rings had packets recently.
    rings_busy_until: u64,
    /// Back-off of the kernel query for all such queues.
    kernel_query: PollBackoff,
    /// Queues that had more packets than a turn took, and queues that had packets, in the last round.
    full: usize,
    pub(super) active: usize,
    pub(super) idle: Idle,
}
