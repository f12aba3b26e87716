//! A connection that sends almost good messages lives on, and what it asked for last is done.
//!
//! `cargo test` sends a fixed number of mutants ([`heddle_openflow::fuzz`]) of the kept messages; `make fuzz` goes on for a time. The messages
//! since a connection began that end in a failure are kept in a file that is named.

use super::super::session::{Kind, Next, Outgoing, Peer};
use super::manager;
use heddle_openflow::fuzz::{Dice, corpus};
use heddle_openflow::message::{Hello, Role};
use heddle_openflow::{DecodeContext, Message, Version, decode, encode, frame_len};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

/// Messages on one connection, to one bridge.
const CONVERSATION: usize = 200;

struct Wire {
    peer: Arc<Peer>,
    outgoing: UnboundedReceiver<Outgoing>,
}

impl Wire {
    fn say(&self, version: Version, xid: u32, m: &Message) {
        for part in encode(version, xid, m).expect("encodes") {
            assert_eq!(self.peer.receive(&part), Next::Continue);
        }
    }
    /// What has been sent; each is a whole message.
    fn heard(&mut self) -> Vec<Message> {
        let mut all = Vec::new();
        while let Ok(out) = self.outgoing.try_recv() {
            assert_eq!(frame_len(&out.bytes).expect("a frame"), Some(out.bytes.len()));
            let (_, m) = decode(&out.bytes, &DecodeContext::default()).expect("the switch speaks well");
            all.push(m);
            self.peer.written(&out);
        }
        all
    }
}

/// One connection's life. `sent` is what it has said, for who has to look at a failure.
fn converse(dice: &mut Dice, corpus: &[Vec<u8>], sent: &mut Vec<Vec<u8>>) {
    sent.clear();
    let (_of, manager) = manager(&Version::ALL);
    let version = Version::ALL[dice.roll(Version::ALL.len())];
    let own: Vec<Vec<u8>> = corpus
        .iter()
        .filter(|m| m[0] == version.wire())
        .cloned()
        .collect();
    let (peer, outgoing) = Peer::new(manager, Kind::Service);
    let mut wire = Wire { peer, outgoing };
    let bitmap = Some(version.bit());
    wire.say(version, 1, &Message::Hello(Hello { bitmap }));
    for _ in 0..CONVERSATION {
        let mut m = dice.mutant(&own);
        // The framing is right: what else becomes of the connection is not about this.
        m[0] = version.wire();
        let len = u16::try_from(m.len()).expect("short").to_be_bytes();
        m[2..4].copy_from_slice(&len);
        sent.push(m);
        let m = sent.last().expect("just put there");
        assert_eq!(wire.peer.receive(m), Next::Continue, "{m:02x?}");
        wire.heard();
    }
    // Whatever it has become: it is asked, and answers.
    wire.peer.set_role(Role::Equal);
    wire.say(version, 9, &Message::EchoRequest(vec![1, 2, 3]));
    wire.say(version, 9, &Message::BarrierRequest);
    let heard = wire.heard();
    assert!(heard.contains(&Message::EchoReply(vec![1, 2, 3])) && heard.contains(&Message::BarrierReply));
    wire.peer.close();
}

#[test]
fn connections_survive_what_they_are_sent() {
    let corpus = corpus();
    let mut dice = Dice(1);
    for _ in 0..30 {
        converse(&mut dice, &corpus, &mut Vec::new());
    }
}

/// See the module's header.
#[test]
#[ignore = "runs for FUZZ_SECONDS; make fuzz"]
fn go_on() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(60).min(86_400));
    let failed = std::env::temp_dir().join(format!("fuzz-connections-failed-{}", std::process::id()));
    let corpus = corpus();
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|s| s.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
    let mut dice = Dice(seed.unwrap_or_else(|| u64::try_from(now() & 0xffff_ffff_ffff).expect("48 bits")));
    println!("FUZZ_SEED={}", dice.0);
    let (mut runs, mut slowest) = (0_u64, Duration::ZERO);
    let mut sent = Vec::new();
    while Instant::now() < end {
        let began = Instant::now();
        let run = std::panic::AssertUnwindSafe(|| converse(&mut dice, &corpus, &mut sent));
        if let Err(why) = std::panic::catch_unwind(run) {
            std::fs::write(&failed, sent.concat()).expect("can be written");
            eprintln!("the messages that fail are in {}", failed.display());
            std::panic::resume_unwind(why);
        }
        slowest = slowest.max(began.elapsed());
        runs += 1;
    }
    println!("{runs} connections of {CONVERSATION} messages; the slowest took {slowest:?}");
}
