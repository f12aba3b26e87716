//! A connection that sends almost good messages lives on, and its last requests are carried out.
//!
//! `cargo test` sends a fixed number of mutants ([`heddle_fuzz`]) of the messages that `heddle-openflow`
//! keeps; `make fuzz` runs for a time. After a failure, all messages of the connection are in a file that is
//! named.

use super::super::session::{Kind, Next, Peer};
use super::manager;
use heddle_fuzz::{Corpus, Dice, rounds};
use heddle_openflow::message::{Hello, Role};
use heddle_openflow::{DecodeContext, Message, Version, decode, encode, frame_len};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Messages on one connection, to one bridge.
const CONVERSATION: usize = 200;
/// Maximum length of a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 4096;

struct Wire {
    peer: Arc<Peer>,
}

impl Wire {
    fn send(&self, version: Version, xid: u32, m: &Message) {
        for part in encode(version, xid, m).expect("encodes") {
            assert_eq!(self.peer.receive(&part), Next::Continue);
        }
    }
    /// The messages that were sent; each is whole.
    fn heard(&self) -> Vec<Message> {
        let mut all = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(list) = self.peer.outbox.poll_take(MAX_MESSAGE_BYTES, &mut cx) {
            for out in &list {
                assert_eq!(frame_len(&out.bytes).expect("a frame"), Some(out.bytes.len()));
                let (_, m) = decode(&out.bytes, &DecodeContext::default()).expect("the switch speaks well");
                all.push(m);
                self.peer.written(out);
            }
        }
        all
    }
}

/// The corpus of the decoder's own fuzzer.
fn corpus() -> Vec<Vec<u8>> {
    let kept = Corpus::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../openflow"), "messages");
    kept.scripts().expect("the corpus is beside the source")
}

/// Runs one connection. `sent` gets the messages that it has sent, to analyse a failure.
fn converse(dice: &mut Dice, corpus: &[Vec<u8>], sent: &mut Vec<u8>) {
    sent.clear();
    let (_of, manager) = manager(&Version::ALL);
    let version = Version::ALL[dice.roll(Version::ALL.len())];
    let own: Vec<Vec<u8>> = corpus
        .iter()
        .filter(|m| m[0] == version.wire())
        .cloned()
        .collect();
    let peer = Peer::new(manager, Kind::Service, "fuzz".into());
    let wire = Wire { peer };
    let bitmap = Some(version.bit());
    wire.send(version, 1, &Message::Hello(Hello { bitmap }));
    for _ in 0..CONVERSATION {
        let mut m = dice.message(&own, MAX_MESSAGE_BYTES);
        // The framing is right: a broken one would end the connection.
        m[0] = version.wire();
        let len = u16::try_from(m.len()).expect("short").to_be_bytes();
        m[2..4].copy_from_slice(&len);
        sent.extend_from_slice(&m);
        assert_eq!(wire.peer.receive(&m), Next::Continue, "{m:02x?}");
        wire.heard();
    }
    // The connection replies, whatever state it is in.
    wire.peer.set_role(Role::Equal);
    wire.send(version, 9, &Message::EchoRequest(vec![1, 2, 3]));
    wire.send(version, 9, &Message::BarrierRequest);
    let heard = wire.heard();
    assert!(heard.contains(&Message::EchoReply(vec![1, 2, 3])) && heard.contains(&Message::BarrierReply));
    wire.peer.close();
}

#[test]
fn connections_survive_what_they_are_sent() {
    let corpus = corpus();
    let mut dice = Dice::new(1);
    for _ in 0..30 {
        converse(&mut dice, &corpus, &mut Vec::new());
    }
}

/// See the module's header.
#[test]
#[ignore = "runs for FUZZ_SECONDS; make fuzz"]
fn explore() {
    let corpus = corpus();
    let (runs, slowest) = rounds("connections", |dice, sent| converse(dice, &corpus, sent));
    println!("{runs} connections of {CONVERSATION} messages; the slowest took {slowest:?}");
}
