//! The little of HTTP/1.1 that a scrape needs: one request, one reply, the end of the connection.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::sync::{Arc, Weak};

use heddle_stream::bind_unix;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::collect::Collected;
use super::{CALLER_TIMEOUT, MAX_CALLERS, REQUEST_BYTES};
use crate::cli::MetricsAddress;
use crate::switch::Switch;

const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Produces the text of a scrape.
pub(super) struct Source {
    /// Locked while a scrape is made.
    registry: Mutex<Registry>,
    /// One text is made at a time.
    turns: Arc<Semaphore>,
}

impl Source {
    pub(super) fn new(switch: &Arc<Switch>) -> Source {
        let mut registry = Registry::with_prefix("heddle");
        let of: Weak<Switch> = Arc::downgrade(switch);
        registry.register_collector(Box::new(Collected { of }));
        Source {
            registry: Mutex::new(registry),
            turns: Arc::new(Semaphore::new(1)),
        }
    }

    /// All metrics now. May wait.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        match encode(&mut out, &self.registry.lock()) {
            Ok(()) => out,
            // Writing to a string cannot fail.
            Err(_) => String::from("# EOF\n"),
        }
    }
}

/// A listening socket.
pub(super) enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listening {
    pub(super) fn open(address: &MetricsAddress) -> io::Result<Listening> {
        match address {
            MetricsAddress::Unix(path) => {
                // A daemon that was killed left the socket. A live listener keeps it.
                let left = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
                    && std::os::unix::net::UnixStream::connect(path).is_err();
                if left {
                    std::fs::remove_file(path)?;
                }
                Ok(Listening::Unix(UnixListener::from_std(bind_unix(path)?)?))
            }
            MetricsAddress::Tcp(socket) => {
                let listener = std::net::TcpListener::bind(socket)?;
                listener.set_nonblocking(true)?;
                Ok(Listening::Tcp(TcpListener::from_std(listener)?))
            }
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Caller>> {
        Ok(match self {
            Listening::Unix(listener) => Box::new(listener.accept().await?.0),
            Listening::Tcp(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

trait Caller: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Caller for T {}

/// Serves until it is aborted.
pub(super) async fn serve(listening: Listening, source: Arc<Source>) {
    let mut callers: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listening.accept().await {
            Ok(caller) => {
                callers.retain(|c| !c.is_finished());
                if callers.len() >= MAX_CALLERS {
                    callers.pop_front().iter().for_each(AbortHandle::abort);
                }
                let source = source.clone();
                let task = tokio::spawn(async move {
                    // A caller that is slow, or goes away, harms only itself.
                    let _ = timeout(CALLER_TIMEOUT, reply(caller, source)).await;
                });
                callers.push_back(task.abort_handle());
            }
            Err(error) => {
                log::warn!(target: "metrics", per_min = 5, burst = 5; "accept failed: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
}

async fn reply(mut caller: Box<dyn Caller>, source: Arc<Source>) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        let n = caller.read(&mut piece).await?;
        if n == 0 || head.len() + n > REQUEST_BYTES {
            return Ok(());
        }
        head.extend_from_slice(&piece[..n]);
    }
    let line = String::from_utf8_lossy(&head);
    let (status, kind, body) = match request(&line) {
        Ok(()) => {
            let turn = source.turns.clone().acquire_owned().await;
            let text = tokio::task::spawn_blocking(move || {
                // The permit is kept until the text is made, also for a caller that has gone.
                let _turn = turn;
                source.text()
            });
            ("200 OK", CONTENT, text.await.unwrap_or_default())
        }
        Err(status) => (
            status,
            "text/plain; charset=utf-8",
            format!("{status}: metrics are at /metrics\n"),
        ),
    };
    let is_head = line.starts_with("HEAD ");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    caller.write_all(head.as_bytes()).await?;
    if !is_head {
        caller.write_all(body.as_bytes()).await?;
    }
    caller.shutdown().await
}

/// Whether a request is for the metrics; else the status of the reply.
pub(super) fn request(head: &str) -> Result<(), &'static str> {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    if !version.is_some_and(|v| v.starts_with("HTTP/1.")) {
        return Err("400 Bad Request");
    }
    if !matches!(method, Some("GET" | "HEAD")) {
        return Err("405 Method Not Allowed");
    }
    match target.unwrap_or_default().split('?').next() {
        Some("/metrics" | "/") => Ok(()),
        _ => Err("404 Not Found"),
    }
}
