//! A connection for programs that make a few transactions and end: no replica, no task, one blocking socket.
//!
//! The operations and results are JSON as in RFC 7047 section 5.2. Each call waits for its own reply, at most
//! as long as the connection's limit. [`Connection::send`] does not wait: [`Connection::receive`] fetches its
//! reply later. The server holds back the reply to a transaction with a `wait` until the wait is over.

use crate::rpc::{FrameError, Framer, Message, MessageError, reply, request};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest reply that is accepted, bytes.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// Reasons for a missing or bad reply.
#[derive(Debug, Error)]
pub enum Error {
    /// The server cannot be reached or has left.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The address is not of a kind that is known here.
    #[error("{0}: not unix:PATH or tcp:HOST:PORT")]
    Address(String),
    /// The server does not speak the protocol.
    #[error("the database server sends invalid messages: {0}")]
    Frame(#[from] FrameError),
    /// The server sent JSON that is not a message of the protocol; the connection is of no further use.
    #[error("the database server sends invalid messages: {0}")]
    Message(#[from] MessageError),
    /// The server refused the request.
    #[error("the database server refuses: {0}")]
    Refused(Value),
    /// An operation failed; none of the transaction's operations was done.
    #[error("operation {index}: {error}{}", .details.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Operation {
        /// Index of the operation; the number of operations: the commit.
        index: usize,
        /// The error's name, such as `timed out` of a wait or `constraint violation`.
        error: String,
        /// In the server's words.
        details: Option<String>,
    },
}

impl Error {
    /// Whether operation `index`, a `wait`, took too long.
    #[must_use]
    pub fn is_timeout(&self, index: usize) -> bool {
        matches!(self, Error::Operation { index: at, error, .. } if *at == index && error == "timed out")
    }
}

trait Stream: Read + Write + Send {
    fn limit(&self, time: Duration) -> io::Result<()>;
}
impl Stream for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}
impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// A connection to a database server.
pub struct Connection {
    stream: Box<dyn Stream>,
    framer: Framer,
    limit: Duration,
    last_id: u64,
}

/// A transaction whose reply has not been fetched yet.
#[derive(Debug)]
#[must_use]
pub struct Sent(u64);

impl Connection {
    /// Connects to `unix:PATH` or `tcp:HOST:PORT`. No reply may take longer than `limit`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Address`].
    pub fn open(address: &str, limit: Duration) -> Result<Connection, Error> {
        let stream: Box<dyn Stream> = match address.split_once(':') {
            Some(("unix", path)) => Box::new(UnixStream::connect(path)?),
            Some(("tcp", host)) => Box::new(TcpStream::connect(host)?),
            _ => return Err(Error::Address(address.to_owned())),
        };
        stream.limit(limit)?;
        Ok(Connection {
            stream,
            framer: Framer::new(MAX_REPLY_BYTES),
            limit,
            last_id: 0,
        })
    }

    /// Sends a transaction.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn send(&mut self, database: &str, operations: &[Value]) -> Result<Sent, Error> {
        self.last_id += 1;
        let mut params = vec![json!(database)];
        params.extend_from_slice(operations);
        let text = request("transact", Value::Array(params), self.last_id).to_string();
        self.stream.write_all(text.as_bytes())?;
        Ok(Sent(self.last_id))
    }

    /// The results of a transaction, one for each operation.
    ///
    /// # Errors
    /// All of [`Error`]. After any but [`Error::Operation`] and [`Error::Refused`] the connection is of no
    /// use.
    pub fn receive(&mut self, sent: Sent) -> Result<Vec<Value>, Error> {
        let end = Instant::now() + self.limit;
        loop {
            match self.message(end)? {
                Message::Request { method, params, id } if method == "echo" => {
                    let text = reply(id, Value::Array(params)).to_string();
                    self.stream.write_all(text.as_bytes())?;
                }
                Message::Reply { id, outcome } if id == json!(sent.0) => {
                    return results(outcome.map_err(Error::Refused)?);
                }
                _ => {}
            }
        }
    }

    /// Sends a transaction and waits for its results.
    ///
    /// # Errors
    /// The same as those of [`Connection::receive`].
    pub fn transact(&mut self, database: &str, operations: &[Value]) -> Result<Vec<Value>, Error> {
        let sent = self.send(database, operations)?;
        self.receive(sent)
    }

    fn message(&mut self, end: Instant) -> Result<Message, Error> {
        loop {
            if let Some(json) = self.framer.next()? {
                return Ok(Message::from_json(json)?);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.limit(left)?;
            let mut bytes = [0; 16384];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.framer.push(bytes.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("last_id", &self.last_id)
            .finish_non_exhaustive()
    }
}

/// The results, or the first that is an error.
fn results(reply: Value) -> Result<Vec<Value>, Error> {
    let Value::Array(results) = reply else {
        return Err(Error::Refused(reply));
    };
    let text = |result: &Value, key: &str| result.get(key).and_then(Value::as_str).map(str::to_owned);
    match results
        .iter()
        .enumerate()
        .find_map(|(i, r)| Some((i, r, text(r, "error")?)))
    {
        Some((index, result, error)) => Err(Error::Operation {
            index,
            error,
            details: text(result, "details"),
        }),
        None => Ok(results),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Results of a connection to a server that sends `replies`, each after one read, and then reads no more.
    fn results_of(replies: &'static [&'static str]) -> Result<Vec<Value>, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for reply in replies {
                let n = stream.read(&mut [0; 4096]).unwrap();
                assert!(n > 0);
                stream.write_all(reply.as_bytes()).unwrap();
            }
        });
        let address = format!("unix:{}", path.display());
        let mut connection = Connection::open(&address, Duration::from_secs(20)).unwrap();
        let got = connection.transact("D", &[json!({"op": "select"})]);
        server.join().unwrap();
        got
    }

    #[test]
    fn replies_and_errors() {
        let got = results_of(&[
            r#"{"method":"echo","params":[1],"id":"x"}{"method":"update","params":[],"id":null}"#,
            r#"{"id":1,"error":null,"result":[{"rows":[]}]}"#,
        ]);
        assert_eq!(got.unwrap(), [json!({"rows": []})]);
        let got =
            results_of(&[r#"{"id":1,"error":null,"result":[{},{"error":"timed out","details":"so"},null]}"#]);
        assert_eq!(got.unwrap_err().to_string(), "operation 1: timed out (so)");
        assert!(matches!(
            results_of(&[r#"{"id":1,"error":"no","result":null}"#]),
            Err(Error::Refused(_))
        ));
        assert!(matches!(
            results_of(&[r#"{"id":1,"error":null,"result":7}"#]),
            Err(Error::Refused(_))
        ));
        assert!(matches!(results_of(&["HTTP/1.1"]), Err(Error::Frame(_))));
        assert!(matches!(results_of(&["{}"]), Err(Error::Message(_))));
        assert!(matches!(results_of(&[""]), Err(Error::Io(_))));
    }

    #[test]
    fn a_server_that_is_not_there() {
        let open = |address| Connection::open(address, Duration::from_secs(1));
        assert!(matches!(open("unix:/no/such/socket"), Err(Error::Io(_))));
        assert!(matches!(open("ssl:127.0.0.1:1"), Err(Error::Address(_))));
        assert!(matches!(open("db.sock"), Err(Error::Address(_))));
    }

    #[test]
    fn silence_has_an_end() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection {
            stream: Box::new(ours),
            framer: Framer::new(1000),
            limit: Duration::from_millis(50),
            last_id: 0,
        };
        assert!(
            matches!(connection.transact("D", &[]), Err(Error::Io(e)) if e.kind() == io::ErrorKind::TimedOut)
        );
    }
}
