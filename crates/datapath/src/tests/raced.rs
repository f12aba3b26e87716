//! Rules that change between a translation's reading of them and its result. The result may be used for the
//! packet that caused it, which was sent before, and for no other.
//!
//! The worker (or the revalidator) must read the known generation of changes before the translation.
//! Otherwise the result looks as fresh as the change. Threads meet at that moment very rarely, so here the
//! change is made within the translation.

use super::fake::{FakePort, Toy, ToyRule, udp};
use crate::{Config, Datapath};
use heddle_datapath_api::PortNo;
use heddle_flow::key::Match;
use heddle_sync::Clock;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A switch whose packets from port 1 go to port 2 or 3.
struct Setup {
    dp: Arc<Datapath>,
    toy: Arc<Toy>,
    from: Arc<FakePort>,
    to: [Arc<FakePort>; 2],
    frame: Vec<u8>,
}

impl Setup {
    fn new(logged: bool, wide: bool) -> Self {
        let toy = match logged {
            true => Toy::logged(rules(2)),
            false => Toy::new(rules(2)),
        };
        let clock = Arc::new(Clock::default());
        clock.stop();
        let config = Config {
            clock,
            revalidate_interval_ms: 0,
            cpus: Some(vec![0]),
            ..Config::default()
        };
        let dp = Datapath::new(config, Arc::clone(&toy) as _).unwrap();
        let port = |no: u32| {
            let port = FakePort::new(&format!("p{no}"));
            dp.add_port(Arc::clone(&port) as _, Some(PortNo(no))).unwrap();
            port
        };
        let (from, to) = (port(1), [port(2), port(3)]);
        let mut frame = udp(1, 2, 3, 4);
        if wide {
            // Two tags: the packet needs the full key.
            frame.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]);
        }
        Self {
            dp,
            toy,
            from,
            to,
            frame,
        }
    }
    /// Sends one packet, and checks that this port sends it.
    fn comes_out_of(&self, no: usize) {
        self.from.send([self.frame.clone()]);
        self.to[no - 2].wait(1);
        assert!(self.to.iter().all(|p| p.take().is_empty()));
    }
    /// Within the next translation, the rules change: packets go to this port.
    fn meanwhile_to(&self, no: u32) {
        self.toy.meanwhile(move |toy| toy.replace(1, last(no)));
    }
    fn translated(&self) -> u64 {
        self.toy.translated.load(Relaxed)
    }
}

fn last(no: u32) -> ToyRule {
    ToyRule::output(no)
}

/// A rule about other packets, and one about all packets.
fn rules(no: u32) -> Vec<ToyRule> {
    let mut other = Match::any();
    (other.key.tp_src, other.mask.0.tp_src) = (77, u16::MAX);
    vec![ToyRule::new(other, vec![]), last(no)]
}

/// Runs the test with tables that log changes and those that do not, with ordinary packets and others.
fn each(test: impl Fn(&Setup)) {
    for logged in [false, true] {
        for wide in [false, true] {
            test(&Setup::new(logged, wide));
        }
    }
}

#[test]
fn a_miss_is_overtaken() {
    each(|s| {
        s.meanwhile_to(3);
        s.comes_out_of(2);
        s.comes_out_of(3);
        s.comes_out_of(3);
        assert_eq!(s.translated(), 2, "the second answer is kept");
    });
}

/// An entry exists, so changes are known up to some point. Packets of another flow arrive meanwhile.
#[test]
fn a_miss_beside_others_is_overtaken() {
    each(|s| {
        s.comes_out_of(2);
        let mut other = s.frame.clone();
        let sport = other.len() - 60 + 34;
        other[sport + 1] = 9;
        // The first flow's packet, in the same burst or not, makes the worker read the change.
        s.meanwhile_to(3);
        s.from.send([other.clone()]);
        s.to[0].wait(1);
        s.comes_out_of(3);
        s.from.send([other]);
        s.to[1].wait(1);
        s.comes_out_of(3);
    });
}

#[test]
fn an_entry_that_is_translated_again_is_overtaken() {
    each(|s| {
        s.comes_out_of(2);
        // The same result, of another rule.
        s.toy.replace(1, last(2));
        s.meanwhile_to(3);
        s.comes_out_of(2);
        s.comes_out_of(3);
        s.comes_out_of(3);
    });
}

#[test]
fn the_revalidator_is_overtaken() {
    each(|s| {
        s.comes_out_of(2);
        s.toy.replace(1, last(2));
        s.meanwhile_to(3);
        s.dp.tick();
        s.comes_out_of(3);
        s.comes_out_of(3);
    });
}
