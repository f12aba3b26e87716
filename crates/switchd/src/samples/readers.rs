//! Readers of local samples: programs that connect to a Unix socket in the run directory.
//!
//! Each sample is one message (`SOCK_SEQPACKET`). The kernel's buffer of a connection is the reader's queue.
//! A message without room is lost for this reader, and its next message has the number of lost ones. So a
//! reader that never reads costs its buffer and nothing else.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use heddle_daemon::dirs;
use heddle_daemon::vlog::errno_text;
use heddle_sys::Epoll;
use heddle_sys::seqpacket::{Connection, Listener};

use crate::sample_counts::{SampleCounts, count};

/// Maximum number of readers. One more replaces the oldest one, so that idle ones do not lock others out.
const MAX_READERS: usize = 16;
/// Time until a socket that could not be made is tried again.
const RETRY: Duration = Duration::from_millis(50);
/// Size of a reader's queue, bytes.
const QUEUE_BYTES: usize = 1 << 20;
/// The socket's name in the run directory.
const SOCKET_NAME: &str = "heddle-samples.sock";

/// The file of the socket.
pub(crate) fn socket_path() -> PathBuf {
    dirs::rundir().join(SOCKET_NAME)
}

struct Reader {
    connection: Connection,
    /// Samples lost since the last one that was sent.
    lost: u64,
}

/// The socket and its readers.
pub(super) struct Readers {
    path: PathBuf,
    /// `None`: the socket cannot be made. An earlier process that was killed may still have it.
    listener: Option<Listener>,
    /// When it was tried to make the socket.
    tried: Instant,
    /// The oldest first.
    readers: Vec<Reader>,
}

impl Readers {
    /// Listens at `path`. A failure is logged: the samples have no readers then.
    pub(super) fn open(path: &Path) -> Self {
        let listener = Listener::bind(path)
            .inspect_err(|error| {
                let why = errno_text(error);
                log::warn!(target: "samples", "{}: samples have no socket ({why})", path.display());
            })
            .ok();
        Self {
            path: path.to_owned(),
            listener,
            tried: Instant::now(),
            readers: Vec::new(),
        }
    }

    /// Tries again to make a socket that could not be made.
    fn listen_again(&mut self) {
        if self.listener.is_none() && self.tried.elapsed() >= RETRY {
            self.tried = Instant::now();
            self.listener = Listener::bind(&self.path).ok();
        }
    }

    /// Has new readers wake the waiter of `bell`.
    pub(super) fn wake(&self, bell: &Epoll) {
        // Without it they wait for the next look, which is some milliseconds away.
        let _ = self.listener.as_ref().map(|l| bell.add(l.as_raw_fd(), 1));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.readers.is_empty()
    }

    /// Takes new readers, and forgets those that are gone or have sent something.
    pub(super) fn update(&mut self) {
        self.readers.retain(|r| !r.connection.is_over());
        self.listen_again();
        let Some(listener) = &self.listener else { return };
        loop {
            match listener.accept(QUEUE_BYTES) {
                Ok(Some(connection)) => {
                    if self.readers.len() >= MAX_READERS {
                        self.readers.remove(0);
                    }
                    self.readers.push(Reader { connection, lost: 0 });
                }
                Ok(None) => return,
                Err(error) => {
                    let why = errno_text(&error);
                    log::warn!(target: "samples", per_min = 1, burst = 1; "no reader is accepted ({why})");
                    return;
                }
            }
        }
    }

    /// Sends a message, the members of a JSON object, to all.
    pub(super) fn send(&mut self, members: &str, counts: &SampleCounts) {
        self.readers.retain_mut(|reader| {
            let message = format!("{{{members},\"lost\":{}}}", reader.lost);
            match reader.connection.send(message.as_bytes()) {
                Ok(()) => {
                    reader.lost = 0;
                    count(&counts.reader_sent, 1);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    reader.lost += 1;
                    count(&counts.reader_lost, 1);
                }
                Err(_) => return false,
            }
            true
        });
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        if self.listener.is_some() {
            // Without a listener the file is of no use; the next daemon would replace it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(counts: &SampleCounts, name: &str) -> u64 {
        let all = counts.all();
        all.iter().find(|(n, _)| *n == name).unwrap().1
    }

    #[test]
    fn a_reader_that_does_not_read_loses_samples_and_delays_no_other_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut readers = Readers::open(&path);
        let (slow, quick) = (Connection::open(&path).unwrap(), Connection::open(&path).unwrap());
        readers.update();
        let counts = SampleCounts::default();
        let members = format!("\"bytes\":\"{}\"", "a".repeat(4000));
        let mut buf = [0; 8192];
        for _ in 0..2000 {
            readers.send(&members, &counts);
            let got = quick.receive(&mut buf).unwrap().unwrap();
            assert!(got.ends_with(b",\"lost\":0}"));
        }
        let lost = counted(&counts, "sample_reader_lost");
        assert!(lost > 0 && counted(&counts, "sample_reader_sent") == 4000 - lost);
        // The next message has the number of lost ones.
        while slow.receive(&mut buf).is_ok() {}
        readers.send(&members, &counts);
        let got = slow.receive(&mut buf).unwrap().unwrap();
        assert!(got.ends_with(format!(",\"lost\":{lost}}}").as_bytes()));
    }

    #[test]
    fn a_socket_that_another_process_has_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let earlier = Listener::bind(&path).unwrap();
        let mut readers = Readers::open(&path);
        readers.update();
        assert!(readers.listener.is_none());
        drop(earlier);
        readers.tried = Instant::now().checked_sub(RETRY).unwrap();
        readers.update();
        let _reader = Connection::open(&path).unwrap();
        readers.update();
        assert_eq!(readers.readers.len(), 1);
    }

    #[test]
    fn readers_that_go_talk_or_are_too_many_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut readers = Readers::open(&path);
        let gone = Connection::open(&path).unwrap();
        let talks = Connection::open(&path).unwrap();
        readers.update();
        assert_eq!(readers.readers.len(), 2);
        drop(gone);
        talks.send(b"hello").unwrap();
        readers.update();
        assert!(readers.is_empty());
        let all: Vec<_> = (0..=MAX_READERS)
            .map(|_| {
                let reader = Connection::open(&path).unwrap();
                readers.update();
                reader
            })
            .collect();
        assert_eq!(readers.readers.len(), MAX_READERS);
        assert!(all[0].is_over() && !all[1].is_over(), "the oldest one gives way");
        drop(readers);
        assert!(!path.exists());
    }
}
