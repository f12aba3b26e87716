//! Moves bytes between a session and a socket, and probes a silent peer.

use super::Manager;
use super::listen::Activity;
use super::outbox::Sort;
use super::session::{Kind, Next, Peer};
use heddle_openflow::{Message, frame_len};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Bytes that are read or written at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes of messages, some two hundred flow mods, after which other connections' tasks run. While this task's
/// thread is busy, maybe no thread polls their sockets.
const YIELD_BYTES: usize = CHUNK_BYTES / 4;
/// Time for which the reader polls for a message before it sleeps. A peer that sends a message, waits for the
/// reply and sends the next one then needs no thread to be woken each time.
const BUSY_POLL: Duration = Duration::from_micros(100);
/// Number of consecutive reads that each took less than [`BUSY_POLL`], after which the reader polls.
const MIN_QUICK_READS: u32 = 2;
/// Number of reads without a message to the peer after which the reader polls no more. A peer that sends
/// without waiting is read in larger pieces if the reader sleeps.
const MAX_READS_WITHOUT_REPLY: u32 = 3;
/// Time after which a peer that takes no bytes is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval at which the switch's clock is read while a peer is silent.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which a connection that is to be closed must take its last messages.
const LAST_MESSAGES_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum CloseReason {
    /// The peer closed it, or a message of the peer made this side close it.
    Closed,
    /// The peer did not reply to a probe.
    Silent,
    /// The peer did not read the events that it had subscribed to.
    Unread,
    /// The socket failed.
    Io(std::io::Error),
}

/// Serves one connection, which the log calls `name`, until it ends. `up` gets the peer when the version is
/// negotiated. `activity` is notified when the connection is in use.
pub(super) async fn serve<S>(
    manager: Arc<Manager>,
    kind: Kind,
    name: String,
    socket: S,
    probe: Option<Duration>,
    up: Option<&watch::Sender<Option<Arc<Peer>>>>,
    activity: Option<&Activity>,
) -> CloseReason
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let peer = Peer::new(manager, kind, name);
    let (reader, mut writer) = tokio::io::split(socket);
    let _guard = Closer(peer.clone());
    peer.greet();
    // In this order, so that `write` finds the messages that `read` has added.
    let end = tokio::select! {
        biased;
        end = read(&peer, reader, probe, up, activity) => end,
        end = write(&peer, &mut writer, activity) => return end,
        () = peer.cut_off() => return CloseReason::Unread,
        // Connections that this switch makes are ended by the task that makes them.
        () = peer.manager.reconnect.notified(), if matches!(kind, Kind::Service) => return CloseReason::Closed,
    };
    // The last messages, such as why there is no version in common.
    peer.outbox.close();
    let last_messages = write(&peer, &mut writer, activity);
    if timeout(LAST_MESSAGES_TIMEOUT, last_messages).await.is_err() {
        log::debug!(target: "ofproto", "the peer did not take the last messages");
    }
    end
}

/// Waits for the peer until `wait` is over by the switch's clock, which tests move; `None`: it is over.
async fn within<T>(peer: &Peer, wait: Duration, mut reading: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let bridge = &peer.manager.bridge;
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let until_ms = bridge.now_ms().saturating_add(wait_ms);
    loop {
        let left = Duration::from_millis(until_ms.saturating_sub(bridge.now_ms()));
        if left.is_zero() {
            return None;
        }
        if let Ok(got) = timeout(left.min(CLOCK_INTERVAL), reading.as_mut()).await {
            return Some(got);
        }
    }
}

/// Marks the peer closed however its task ends.
struct Closer(Arc<Peer>);

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn read<R: AsyncRead + Unpin>(
    peer: &Arc<Peer>,
    mut reader: R,
    probe: Option<Duration>,
    up: Option<&watch::Sender<Option<Arc<Peer>>>>,
    activity: Option<&Activity>,
) -> CloseReason {
    let mut buffer: Vec<u8> = Vec::with_capacity(CHUNK_BYTES);
    let mut probed: Option<Instant> = None;
    let mut bytes_since_yield = 0;
    let (mut quick_reads, mut reads_left) = (0, 0);
    loop {
        let mut reading = pin!(reader.read_buf(&mut buffer));
        let begin = Instant::now();
        let mut got = None;
        reads_left = match peer.outbox.take_added() {
            true => MAX_READS_WITHOUT_REPLY,
            false => reads_left.saturating_sub(1),
        };
        if reads_left > 0 && quick_reads >= MIN_QUICK_READS {
            got = busy_poll(reading.as_mut(), begin + BUSY_POLL).await;
        }
        let got = match (got, probe) {
            (Some(got), _) => Ok(got),
            (None, Some(wait)) => within(peer, wait, reading).await.ok_or(()),
            (None, None) => Ok(reading.await),
        };
        quick_reads = if begin.elapsed() < BUSY_POLL {
            MIN_QUICK_READS.min(quick_reads + 1)
        } else {
            0
        };
        match got {
            Ok(Ok(0)) => return CloseReason::Closed,
            Ok(Ok(_)) => probed = None,
            Ok(Err(e)) => return CloseReason::Io(e),
            Err(_) if probed.is_some() => return CloseReason::Silent,
            Err(_) => {
                probed = Some(Instant::now());
                peer.reply(0, &Message::EchoRequest(Vec::new()));
                continue;
            }
        }
        let mut at = 0;
        peer.outbox.attend();
        loop {
            let rest = buffer.get(at..).unwrap_or_default();
            let n = match frame_len(rest) {
                Ok(Some(n)) if n <= rest.len() => n,
                Ok(_) => break,
                Err(e) => {
                    log::warn!(target: "ofproto", "connection lost: {e}");
                    return CloseReason::Closed;
                }
            };
            let negotiated = peer.version().is_some();
            peer.readable().await;
            if peer.receive(rest.get(..n).unwrap_or_default()) == Next::Close {
                return CloseReason::Closed;
            }
            if let (false, Some(up)) = (negotiated, up) {
                up.send_replace(Some(peer.clone()));
            }
            while peer.continue_dump() {
                tokio::task::yield_now().await;
                peer.readable().await;
                peer.outbox.attend();
            }
            at += n;
            bytes_since_yield += n;
            if bytes_since_yield >= YIELD_BYTES {
                bytes_since_yield = 0;
                tokio::task::yield_now().await;
                peer.outbox.attend();
            }
        }
        if let (1.., Some(activity)) = (at, activity) {
            activity.received();
        }
        buffer.drain(..at);
    }
}

/// The output of a future, if it is ready before `end`. Meanwhile this thread runs other tasks, but does not
/// sleep.
async fn busy_poll<F: Future>(mut f: Pin<&mut F>, end: Instant) -> Option<F::Output> {
    loop {
        if let Poll::Ready(out) = poll_fn(|cx| Poll::Ready(f.as_mut().poll(cx))).await {
            return Some(out);
        }
        if Instant::now() >= end {
            return None;
        }
        // The sending process may be waiting for this processor.
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

async fn write<W: AsyncWrite + Unpin>(
    peer: &Arc<Peer>,
    writer: &mut W,
    activity: Option<&Activity>,
) -> CloseReason {
    loop {
        let list = poll_fn(|cx| peer.outbox.poll_take(CHUNK_BYTES, cx)).await;
        let joined: Vec<u8>;
        let bytes = match &list[..] {
            [] => return CloseReason::Closed,
            [one] => &one.bytes,
            many => {
                joined = many.iter().map(|out| &out.bytes[..]).collect::<Vec<_>>().concat();
                &joined
            }
        };
        match timeout(WRITE_TIMEOUT, writer.write_all(bytes)).await {
            Ok(Ok(())) => {
                list.iter().for_each(|out| peer.written(out));
                // A socket takes events of a caller that does not read them.
                if let Some(activity) = activity.filter(|_| list.iter().any(|out| out.sort == Sort::Reply)) {
                    activity.reads();
                }
            }
            Ok(Err(e)) => return CloseReason::Io(e),
            Err(_) => return CloseReason::Silent,
        }
    }
}
