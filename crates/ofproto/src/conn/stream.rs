//! Moves bytes between a session and a socket, and probes a silent peer.

use super::Manager;
use super::session::{Kind, Next, Outgoing, Peer};
use heddle_openflow::{Message, frame_len};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

/// Bytes read at once.
const CHUNK: usize = 64 * 1024;
/// A peer that takes nothing for so long while we want to write is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection that is to be closed may take to read what was still to be said.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed it, or it was closed for what the peer said.
    Closed,
    /// The peer did not answer a probe.
    Silent,
    /// It did not read what it had asked to be told.
    Unread,
    /// The socket failed.
    Io(std::io::Error),
}

/// Serves one connection, which the log calls `name`, until it ends. `up` becomes true when the version is negotiated.
pub(super) async fn serve<S>(
    manager: Arc<Manager>,
    kind: Kind,
    name: String,
    socket: S,
    probe: Option<Duration>,
    up: Option<&watch::Sender<Option<Arc<Peer>>>>,
) -> End
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (peer, mut outgoing) = Peer::new(manager, kind, name);
    let (reader, mut writer) = tokio::io::split(socket);
    let _guard = Closer(peer.clone());
    peer.greet();
    let end = tokio::select! {
        end = read(&peer, reader, probe, up) => end,
        end = write(&peer, &mut writer, &mut outgoing) => return end,
        () = peer.cut_off() => return End::Unread,
    };
    // The last words, such as why there is no version in common.
    outgoing.close();
    let last_words = write(&peer, &mut writer, &mut outgoing);
    if timeout(LAST_WORDS_TIMEOUT, last_words).await.is_err() {
        log::debug!(target: "ofproto", "the peer did not take the last messages");
    }
    end
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
) -> End {
    let mut buffer: Vec<u8> = Vec::with_capacity(CHUNK);
    let mut probed: Option<Instant> = None;
    loop {
        let wait = probe.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
        match timeout(wait, reader.read_buf(&mut buffer)).await {
            Ok(Ok(0)) => return End::Closed,
            Ok(Ok(_)) => probed = None,
            Ok(Err(e)) => return End::Io(e),
            Err(_) if probed.is_some() => return End::Silent,
            Err(_) => {
                probed = Some(Instant::now());
                peer.send(&Message::EchoRequest(Vec::new()));
                continue;
            }
        }
        let mut at = 0;
        loop {
            let rest = buffer.get(at..).unwrap_or_default();
            let n = match frame_len(rest) {
                Ok(Some(n)) if n <= rest.len() => n,
                Ok(_) => break,
                Err(e) => {
                    log::warn!(target: "ofproto", "connection lost: {e}");
                    return End::Closed;
                }
            };
            let negotiated = peer.version().is_some();
            peer.readable().await;
            if peer.receive(rest.get(..n).unwrap_or_default()) == Next::Close {
                return End::Closed;
            }
            if let (false, Some(up)) = (negotiated, up) {
                up.send_replace(Some(peer.clone()));
            }
            while peer.go_on() {
                tokio::task::yield_now().await;
                peer.readable().await;
            }
            at += n;
            if at % (16 * CHUNK) < n {
                // A long run of messages must not keep other connections' tasks waiting.
                tokio::task::yield_now().await;
            }
        }
        buffer.drain(..at);
    }
}

async fn write<W: AsyncWrite + Unpin>(
    peer: &Arc<Peer>,
    writer: &mut W,
    outgoing: &mut mpsc::UnboundedReceiver<Outgoing>,
) -> End {
    while let Some(out) = outgoing.recv().await {
        match timeout(WRITE_TIMEOUT, writer.write_all(&out.bytes)).await {
            Ok(Ok(())) => peer.written(&out),
            Ok(Err(e)) => return End::Io(e),
            Err(_) => return End::Silent,
        }
    }
    End::Closed
}
