//! Hostile files: a script is the content of a file, for which the right seal is made. No script causes a
//! panic. A connection that is read survives writing and reading, and a tracker takes it or names a reason.
//!
//! `cargo test` replays the corpus (`corpus/migrations`) with a fixed number of mutants ([`heddle_fuzz`]).
//! `make fuzz FUZZ=migrations` searches for a limited time and, with `KEEP=1`, renews the corpus.

use super::*;
use heddle_conntrack::{Config, Conntrack};
use heddle_fuzz::{Corpus, Dice, Fuzzer};
use std::collections::BTreeSet;

type Seen = BTreeSet<String>;

/// The script, with the seal that the attacker makes for it.
fn sealed(script: &[u8]) -> Vec<u8> {
    const TAG: usize = 32;
    let body = script.len().saturating_sub(TAG);
    let mut file = script[..body].to_vec();
    let tag = ring::digest::digest(&ring::digest::SHA256, &file);
    file.extend(tag.as_ref());
    file
}

/// An outcome: its class, and after `|` the details.
fn outcome(c: &ConnCopy, done: &str) -> String {
    let kind = match c.orig.proto {
        6 => "tcp",
        1 | 58 => "icmp",
        _ => "other",
    };
    let is = |condition: bool| u8::from(condition);
    let states = c.tcp.map(|peers| peers.map(|p| p.state));
    format!(
        "{kind} {:?} {}{}{}{} {done}|{} {states:?} {:?} {}",
        c.nat,
        is(c.orig.ipv6),
        is(c.parent.is_some()),
        is(c.loose),
        is(!c.expected.is_empty()),
        c.orig.proto,
        c.helper,
        is(c.skews != [0; 2])
    )
}

/// The script as the content of a section with connections, in a good file.
fn framed(script: &[u8]) -> Option<Vec<u8>> {
    let (mut writer, mut out) = Writer::new(&header(), None).ok()?;
    out.extend(writer.connections(script).ok()?);
    out.extend(writer.end());
    Some(out)
}

fn play(script: &[u8]) -> Seen {
    let mut seen = Seen::new();
    read(&sealed(script), &mut seen);
    framed(script).iter().for_each(|f| read(f, &mut seen));
    seen
}

fn read(bytes: &[u8], seen: &mut Seen) {
    let file = match File::open(bytes, None) {
        Ok(file) => file,
        Err(why) => {
            seen.insert(why.to_string());
            return;
        }
    };
    if let Err(why) = file.check() {
        seen.insert(why.to_string());
    }
    let config = Config {
        capacity: 64,
        max_conns: 16,
        seed: 1,
    };
    let ct = Conntrack::new(config).unwrap();
    for chunk in &file.chunks {
        for one in Connections::new(chunk).into_iter().flatten() {
            match one {
                Ok((zone, c)) => {
                    let mut again = Chunk::default();
                    assert!(again.add(zone, &c));
                    let again = again.content();
                    let read: Vec<_> = Connections::new(&again).unwrap().collect();
                    assert_eq!(read, [Ok((zone, c.clone()))]);
                    let done = ct.import(1000, zone, None, &c, file.header.live, None);
                    seen.insert(outcome(&c, &format!("{done:?}")));
                }
                Err(why) => _ = seen.insert(why.to_string()),
            }
        }
    }
    // All connections that were taken can move to a third node.
    ct.scan(1000, 0, u32::MAX, |c| assert_eq!(c.copy().check(), Ok(())));
}

struct Migrations;

impl Fuzzer for Migrations {
    type Outcome = String;
    type OutcomeClass = String;
    const NAME: &'static str = "migrations";
    const MAX_SCRIPT_LEN: usize = 2000;
    fn play(&self, script: &[u8]) -> (Seen, Seen) {
        let seen = play(script);
        let class = |outcome: &String| outcome.split('|').next().unwrap_or_default().to_owned();
        let classes = seen.iter().map(class).collect();
        (seen, classes)
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        seeds()
    }
}

/// Good files: of each kind of connection.
fn seeds() -> Vec<Vec<u8>> {
    let udp = plain();
    let mut tcp = plain();
    (tcp.orig.proto, tcp.orig.dst.l4) = (6, 21);
    tcp.reply = tcp.orig.reversed();
    tcp.reply.dst = end(0x0a00_00f0, 4000);
    (tcp.nat, tcp.helper, tcp.tcp) = (Some(NatEnd::Src), Some(CtHelper::Ftp), Some([Peer::default(); 2]));
    tcp.skews = [1, 2];
    tcp.expected = vec![Expected {
        reply: false,
        port: 4096,
        own_port: None,
    }];
    let mut six = plain();
    (six.orig.ipv6, six.orig.proto) = (true, 58);
    six.orig = six.orig.with_icmp(7, 128, 0).unwrap();
    six.reply = six.orig.reversed();
    (six.mark, six.label) = (1, 1 << 99);
    let mut related = tcp.clone();
    (related.nat, related.reply) = (None, related.orig.reversed());
    (related.skews, related.expected, related.parent) = ([0; 2], Vec::new(), Some(tcp.orig));
    let all = [udp, tcp, six, related];
    let mut files: Vec<Vec<u8>> = all.iter().map(|c| file(None, std::slice::from_ref(c))).collect();
    files.push(file(None, &all));
    // Contents of sections: without and with a count, so that mutants have good ones.
    let content = |of: &[ConnCopy]| {
        let mut chunk = Chunk::default();
        of.iter().for_each(|c| assert!(chunk.add(1, c)));
        chunk.content()
    };
    files.extend(all.iter().map(|c| content(std::slice::from_ref(c))));
    files.push(content(&all));
    files
}

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), Migrations::NAME)
}

/// The corpus, and mutants of it.
#[test]
fn hostile_files_break_nothing() {
    let mut scripts = corpus().scripts().unwrap();
    scripts.extend(seeds());
    let seen: Seen = scripts.iter().flat_map(|s| play(s)).collect();
    assert!(seen.len() > 50, "{} outcomes", seen.len());
    let mut dice = Dice::new(3);
    for _ in 0..3000 {
        play(&dice.mutant(&scripts, Migrations::MAX_SCRIPT_LEN));
    }
}

/// `make fuzz FUZZ=migrations`.
#[test]
#[ignore = "as long as FUZZ_SECONDS says"]
fn explore() {
    heddle_fuzz::explore(&Migrations, &corpus()).unwrap();
}
