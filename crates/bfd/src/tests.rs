//! Two sessions and a wire between them, on a clock that tests move.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn config(pairs: &[(&str, &str)]) -> Config {
    let mut map: BTreeMap<String, String> = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    map.entry("enable".into()).or_insert("true".into());
    Config::read(&map).expect("it is enabled")
}

struct Lab {
    ends: [Session; 2],
    rx: [u64; 2],
    now_ms: u64,
    /// Whether frames to this end arrive.
    reach: [bool; 2],
    sent: [u64; 2],
}

impl Lab {
    fn new(a: &[(&str, &str)], b: &[(&str, &str)]) -> Self {
        let now = Now {
            ms: 1000,
            rx_packets: 0,
        };
        let make = |n: u32, c: &[(&str, &str)]| {
            Session::new("p", &config(c), (0x1000 + n, 49152), u64::from(n) * 77 + 5, now)
        };
        Self {
            ends: [make(0, a), make(1, b)],
            rx: [0; 2],
            now_ms: 1000,
            reach: [true; 2],
            sent: [0; 2],
        }
    }
    fn now(&self, end: usize) -> Now {
        Now {
            ms: self.now_ms,
            rx_packets: self.rx[end],
        }
    }
    /// Lets milliseconds pass, and runs both ends in each.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ms += 1;
            for end in [0, 1, 0, 1] {
                let now = self.now(end);
                if self.ends[end].wake_ms() > now.ms {
                    continue;
                }
                if self.ends[end].should_send(now) {
                    let (frame, _) = self.ends[end].frame(MAC, now);
                    self.sent[end] += 1;
                    self.deliver(1 - end, &frame);
                }
                self.ends[end].run(now);
            }
        }
    }
    fn deliver(&mut self, end: usize, frame: &[u8]) {
        if self.reach[end] {
            self.rx[end] += 1;
            let now = self.now(end);
            self.ends[end].packets_came(now);
            self.ends[end].receive(udp_of(frame).expect("a message"), now);
        }
    }
    fn states(&self) -> [State; 2] {
        [0, 1].map(|e| self.ends[e].local().state)
    }
    fn reconfigure(&mut self, end: usize, pairs: &[(&str, &str)]) {
        let now = self.now(end);
        self.ends[end].configure(&config(pairs), now);
    }
    fn status(&self, end: usize, key: &str) -> String {
        let all = self.ends[end].status();
        all.into_iter().find(|(k, _)| *k == key).expect("a key").1
    }
}

#[test]
fn two_ends_come_up_and_go_down() {
    let mut lab = Lab::new(&[], &[]);
    assert!(!lab.ends[0].is_forwarding());
    lab.pass(4000);
    assert_eq!(lab.states(), [State::Up; 2]);
    assert_eq!(lab.status(0, "flap_count"), "1");
    assert_eq!(lab.status(0, "remote_state"), "up");
    // Both ends request 1000 ms, so three of these may pass.
    lab.reach = [false, true];
    lab.pass(2000);
    assert_eq!(lab.states()[0], State::Up);
    lab.pass(1100);
    assert_eq!(lab.states()[0], State::Down);
    assert_eq!(lab.status(0, "diagnostic"), "Control Detection Time Expired");
    lab.pass(1100);
    assert_eq!(
        lab.states()[1],
        State::Init,
        "it hears the other one, who is down"
    );
    assert_eq!(lab.status(1, "diagnostic"), "Neighbor Signaled Session Down");
    lab.reach = [true; 2];
    lab.pass(4000);
    assert_eq!(lab.states(), [State::Up; 2]);
    assert_eq!(lab.status(0, "flap_count"), "3");
}

#[test]
fn fast_sessions_find_out_fast_and_send_no_more_than_agreed() {
    let fast = [("min_tx", "10"), ("min_rx", "20"), ("mult", "5")];
    let mut lab = Lab::new(&fast, &fast);
    lab.pass(4000);
    assert_eq!(lab.states(), [State::Up; 2]);
    let before = lab.sent[0];
    lab.pass(2000);
    // The larger interval of both ends, up to a quarter sooner.
    assert!(
        (100..=140).contains(&(lab.sent[0] - before)),
        "{}",
        lab.sent[0] - before
    );
    lab.reach = [true, false];
    lab.pass(80);
    assert_eq!(lab.states()[1], State::Up);
    lab.pass(25);
    assert_eq!(lab.states()[1], State::Down);
}

#[test]
fn nobody_who_is_not_up_sends_more_than_once_a_second() {
    let mut lab = Lab::new(&[("min_tx", "1")], &[]);
    lab.reach = [false; 2];
    lab.pass(10_000);
    assert!(lab.sent[0] <= 14, "{}", lab.sent[0]);
}

#[test]
fn other_intervals_hold_from_the_end_of_a_poll() {
    let mut lab = Lab::new(&[("min_rx", "300")], &[]);
    lab.pass(4000);
    let text = |lab: &Lab, e: usize| lab.ends[e].details(lab.now(e));
    lab.reconfigure(0, &[("min_rx", "300"), ("min_tx", "200")]);
    assert!(lab.ends[0].local().flags.has(Flags::POLL));
    assert!(
        text(&lab, 0).contains("Local Minimum TX Interval: 100ms"),
        "slower only after the poll"
    );
    lab.pass(10);
    assert!(
        !lab.ends[0].local().flags.has(Flags::POLL),
        "it was answered at once"
    );
    assert!(text(&lab, 0).contains("Local Minimum TX Interval: 200ms"));
    assert!(text(&lab, 1).contains("Remote Minimum TX Interval: 200ms"));
    assert_eq!(lab.states(), [State::Up; 2]);
}

#[test]
fn a_message_never_polls_and_answers_at_once() {
    let mut lab = Lab::new(&[], &[]);
    lab.pass(4000);
    // Both poll at the same time.
    lab.reconfigure(0, &[("min_tx", "150")]);
    lab.reconfigure(1, &[("min_tx", "150")]);
    for _ in 0..2000 {
        lab.now_ms += 1;
        for end in [0, 1] {
            let now = lab.now(end);
            if lab.ends[end].should_send(now) {
                let (frame, _) = lab.ends[end].frame(MAC, now);
                let m = Message::read(udp_of(&frame).unwrap().payload).unwrap();
                assert!(!(m.flags.has(Flags::POLL) && m.flags.has(Flags::FINAL)));
                lab.deliver(1 - end, &frame);
            }
            lab.ends[end].run(now);
        }
    }
    assert_eq!([0, 1].map(|e| lab.ends[e].local().min_tx_ms), [150; 2]);
}

#[test]
fn a_broken_path_behind_one_end_is_known_to_the_other() {
    let mut lab = Lab::new(&[], &[]);
    lab.pass(4000);
    lab.reconfigure(0, &[("cpath_down", "true")]);
    lab.pass(1100);
    assert_eq!(lab.states(), [State::Up; 2]);
    assert!(!lab.ends[1].is_forwarding());
    assert_eq!(lab.status(1, "remote_diagnostic"), "Concatenated Path Down");
    lab.reconfigure(0, &[]);
    lab.pass(1100);
    assert!(lab.ends[1].is_forwarding());
}

#[test]
fn idle_ports_ask_for_fewer_messages() {
    let a = [("min_rx", "300"), ("min_tx", "300"), ("decay_min_rx", "3000")];
    let mut lab = Lab::new(&a, &[("min_tx", "300")]);
    lab.pass(9000);
    assert_eq!(lab.ends[0].local().min_rx_ms, 3000);
    let before = lab.sent[1];
    lab.pass(9000);
    assert!(lab.sent[1] - before < 6);
    // There is traffic again.
    for _ in 0..60 {
        lab.rx[0] += 5;
        lab.pass(100);
    }
    assert_eq!(lab.ends[0].local().min_rx_ms, 300);
    lab.reconfigure(
        0,
        &[("min_rx", "300"), ("min_tx", "300"), ("decay_min_rx", "200")],
    );
    lab.pass(9000);
    assert_eq!(
        lab.ends[0].local().min_rx_ms,
        300,
        "less than min_rx makes no sense"
    );
}

#[test]
fn packets_keep_it_forwarding_for_some_time() {
    let a = [("forwarding_if_rx", "true"), ("min_rx", "100")];
    let mut lab = Lab::new(&a, &[]);
    // Without messages packets do not keep it forwarding.
    lab.reach = [false; 2];
    for _ in 0..30 {
        lab.pass(100);
        let now = lab.now(0);
        lab.ends[0].packets_came(now);
    }
    assert!(!lab.ends[0].is_forwarding());
    lab.reach = [true; 2];
    lab.pass(4000);
    lab.reach = [false; 2];
    for i in 0..150 {
        lab.pass(100);
        let now = lab.now(0);
        lab.ends[0].packets_came(now);
        // Forwarding ends a hundred times 100 ms after the last message.
        let due = i < 98;
        assert_eq!(
            lab.ends[0].is_forwarding(),
            due || (i < 101 && lab.ends[0].is_forwarding()),
            "{i}"
        );
    }
    assert_eq!(lab.states()[0], State::Down);
    assert_eq!(lab.status(0, "flap_count"), "2");
}

#[test]
fn a_user_overrides_it() {
    let mut lab = Lab::new(&[], &[]);
    lab.reach = [false; 2];
    lab.ends[0].force(Some(true));
    assert!(lab.ends[0].is_forwarding());
    lab.ends[0].force(None);
    lab.pass(1);
    assert!(!lab.ends[0].is_forwarding());
    assert_eq!(lab.status(0, "flap_count"), "0");
}

#[test]
fn frames_are_as_configured() {
    let pairs = [
        ("bfd_local_src_mac", "00:11:22:33:44:55"),
        ("bfd_local_dst_mac", "00:11:22:33:44:56"),
        ("bfd_src_ip", "10.0.0.1"),
        ("bfd_dst_ip", "10.0.0.2"),
        ("oam", "true"),
    ];
    let now = Now { ms: 5, rx_packets: 0 };
    let mut s = Session::new("p", &config(&pairs), (1, 50000), 1, now);
    let (frame, oam) = s.frame(MAC, now);
    assert!(oam);
    assert_eq!(frame.len(), FRAME_LEN);
    assert_eq!(
        frame[..12],
        [0, 0x11, 0x22, 0x33, 0x44, 0x56, 0, 0x11, 0x22, 0x33, 0x44, 0x55]
    );
    assert_eq!(frame[26..34], [10, 0, 0, 1, 10, 0, 0, 2]);
    assert_eq!(heddle_wire::checksum::checksum(&frame[14..34]), 0);
    assert_eq!(udp_of(&frame).unwrap().ttl, 255);
    let mut s = Session::new("p", &config(&[]), (1, 50000), 1, now);
    let (frame, oam) = s.frame(MAC, now);
    assert!(!oam);
    assert_eq!(frame[..12], [0, 0x23, 0x20, 0, 0, 1, 2, 0, 0, 0, 0, 1]);
    assert_eq!(frame[26..34], [169, 254, 1, 1, 169, 254, 1, 0]);
}

#[test]
fn nonsense_in_the_configuration_counts_as_not_given() {
    let odd = [
        ("mult", "256"),
        ("min_tx", "-5"),
        ("min_rx", "soon"),
        ("decay_min_rx", "-1"),
        ("bfd_remote_dst_mac", "00:11"),
        ("bfd_src_ip", "me"),
    ];
    let c = config(&odd);
    assert_eq!(
        (c.mult, c.min_tx_ms, c.min_rx_ms, c.decay_min_rx_ms),
        (3, 1, 1000, 0)
    );
    assert_eq!(c.filter, Filter::default());
    assert_eq!(config(&[("mult", "0")]).mult, 3);
    let c = config(&[("bfd_src_ip", "10.0.0.1"), ("check_tnl_key", "true")]);
    assert_eq!(
        (c.filter.dst_ip, c.filter.no_tunnel_key),
        ("10.0.0.1".parse().ok(), true)
    );
    assert!(Config::read(&BTreeMap::new()).is_none());
    assert!(Config::read(&BTreeMap::from([("enable".into(), "yes".into())])).is_none());
}

/// A message that a session of discriminator 0x1000 would take from one that it has not heard of.
fn good() -> Message {
    Message {
        version: 1,
        diag: Diag::NONE,
        state: State::Down,
        flags: Flags::default(),
        mult: 3,
        length: 24,
        my_disc: 7,
        your_disc: 0,
        min_tx_us: 1_000_000,
        min_rx_us: 1_000_000,
        min_rx_echo_us: 0,
    }
}

#[test]
fn messages_that_lie_are_refused() {
    let g = good();
    let try_one = |m: Message, ttl: u8, cut: usize| {
        let mut lab = Lab::new(&[], &[]);
        let now = lab.now(0);
        let bytes = m.bytes();
        lab.ends[0].receive(
            Udp {
                ttl,
                payload: &bytes[..cut],
            },
            now,
        );
        lab.ends[0].remote().disc == 7
    };
    assert!(try_one(g, 255, 24));
    assert!(!try_one(g, 254, 24), "it has crossed a router");
    assert!(!try_one(g, 255, 23));
    let wrong = [
        Message { version: 0, ..g },
        Message { version: 2, ..g },
        Message {
            flags: Flags::AUTH,
            ..g
        },
        Message {
            flags: Flags::MULTIPOINT,
            ..g
        },
        Message { length: 23, ..g },
        Message { length: 25, ..g },
        Message { mult: 0, ..g },
        Message { my_disc: 0, ..g },
        Message {
            your_disc: 0x1001,
            ..g
        },
        Message {
            state: State::Up,
            ..g
        },
        Message {
            state: State::Init,
            ..g
        },
    ];
    for m in wrong {
        assert!(!try_one(m, 255, 24), "{m}");
    }
    assert!(try_one(
        Message {
            your_disc: 0x1000,
            state: State::Init,
            ..g
        },
        255,
        24
    ));
}

#[test]
fn headers_that_lie_hold_no_message() {
    let now = Now { ms: 5, rx_packets: 0 };
    let mut s = Session::new("p", &config(&[]), (1, 50000), 1, now);
    let (frame, _) = s.frame(MAC, now);
    let with = |at: usize, byte: u8| {
        let mut f = frame.clone();
        f[at] = byte;
        udp_of(&f).map(|u| u.payload.len())
    };
    assert_eq!(with(0, 1), Some(24));
    for (at, byte) in [
        (12, 9),    // EtherType
        (14, 0x46), // options that are the UDP header
        (14, 0x44),
        (14, 0x65),
        (17, 200), // longer than it is
        (17, 27),
        (20, 1), // a later fragment
        (21, 1),
        (23, 6),    // TCP
        (37, 0xc9), // another port
        (39, 7),
        (39, 33), // more than the IP packet has
    ] {
        assert_eq!(with(at, byte), None, "byte {at}");
    }
    // Shorter is not wrong, but there is no message then.
    assert_eq!(with(39, 20), Some(12));
    for n in 0..frame.len() {
        assert_eq!(udp_of(&frame[..n]), None);
    }
    // Behind a VLAN tag, and with padding.
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    tagged.extend([0; 18]);
    assert_eq!(udp_of(&tagged).unwrap().payload, &frame[42..]);
}

#[test]
fn what_people_see() {
    let mut lab = Lab::new(&[], &[]);
    lab.pass(4000);
    let text = lab.ends[0].details(lab.now(0));
    let expected = [
        "  Forwarding: true",
        "  Detect Multiplier: 3",
        "  Concatenated Path Down: false",
        "  TX Interval: Approx 1000ms",
        "  RX Interval: Approx 1000ms",
        "",
        "  Local Flags: none",
        "  Local Session State: up",
        "  Local Diagnostic: No Diagnostic",
        "  Local Discriminator: 0x1000",
        "  Local Minimum TX Interval: 100ms",
        "  Local Minimum RX Interval: 1000ms",
        "",
        "  Remote Flags: none",
        "  Remote Session State: up",
        "  Remote Diagnostic: No Diagnostic",
        "  Remote Discriminator: 0x1001",
        "  Remote Minimum TX Interval: 100ms",
        "  Remote Minimum RX Interval: 1000ms",
        "  Remote Detect Multiplier: 3",
    ];
    let shown: Vec<&str> = text.lines().filter(|l| !l.contains("Time:")).collect();
    assert_eq!(shown, expected);
    assert_eq!(Flags(0x3f).to_string(), "multipoint demand auth ctl final poll");
}

#[test]
fn who_is_late_does_not_take_the_peer_for_silent() {
    let fast = [("min_tx", "100"), ("min_rx", "100")];
    let mut lab = Lab::new(&fast, &fast);
    lab.pass(5000);
    assert_eq!(lab.states(), [State::Up; 2]);
    // No message was read for a second. Those of that time are read a moment later.
    lab.now_ms += 1000;
    for end in [0, 1] {
        let now = lab.now(end);
        lab.ends[end].forgive(1000, now);
        lab.ends[end].run(now);
    }
    lab.pass(1000);
    assert_eq!((lab.states(), lab.ends[0].flaps()), ([State::Up; 2], 1));
    // However late: a silent peer has one detection time more.
    lab.reach[0] = false;
    let now = lab.now(0);
    lab.ends[0].forgive(60_000, now);
    lab.pass(299);
    assert_eq!(lab.ends[0].local().state, State::Up);
    lab.pass(2);
    assert_eq!(lab.ends[0].local().state, State::Down);
    // A session that is down waits for nothing.
    let (now, wake_ms) = (lab.now(0), lab.ends[0].wake_ms());
    lab.ends[0].forgive(60_000, now);
    assert_eq!(lab.ends[0].wake_ms(), wake_ms);
}

#[test]
fn a_frame_that_was_not_handed_over_is_due_again_soon() {
    let mut lab = Lab::new(&[], &[]);
    lab.pass(3000);
    while !lab.ends[0].should_send(lab.now(0)) {
        lab.now_ms += 1;
    }
    let now = lab.now(0);
    lab.ends[0].frame(MAC, now);
    assert!(lab.ends[0].wake_ms() > now.ms + 5);
    lab.ends[0].unsent(now);
    assert_eq!(lab.ends[0].wake_ms(), now.ms + 5);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

    #[test]
    fn messages_are_read_as_written(bytes in prop::array::uniform24(any::<u8>())) {
        let m = Message::read(&bytes).unwrap();
        prop_assert_eq!(m.bytes(), bytes);
    }

    /// After any messages the session still works, does not request to run again and again, and the two ends
    /// find each other afterwards.
    #[test]
    fn a_session_survives_anything(
        messages in prop::collection::vec((prop::array::uniform24(any::<u8>()), any::<bool>(), 0_u64..500), 0..40),
    ) {
        let mut lab = Lab::new(&[("forwarding_if_rx", "true"), ("decay_min_rx", "2000")], &[]);
        lab.pass(2500);
        for (bytes, is_sane, ms) in messages {
            let mut m = Message::read(&bytes).unwrap();
            if is_sane {
                m = Message { version: 1, length: 24, mult: m.mult.max(1), my_disc: m.my_disc | 1, your_disc: 0x1000, ..m };
                m.flags.0 &= !(Flags::AUTH.0 | Flags::MULTIPOINT.0);
            }
            let now = lab.now(0);
            lab.ends[0].receive(Udp { ttl: 255, payload: &m.bytes() }, now);
            for _ in 0..4 {
                if lab.ends[0].should_send(now) {
                    lab.ends[0].frame(MAC, now);
                }
                lab.ends[0].run(now);
            }
            prop_assert!(lab.ends[0].wake_ms() > now.ms, "it wants to run at once");
            prop_assert!(!lab.ends[0].details(now).is_empty());
            lab.now_ms += ms;
        }
        // The peer may have requested one message per month. Its next message is valid again.
        let now = lab.now(0);
        let again = Message { your_disc: 0x1000, min_rx_us: 1000, min_tx_us: 1000, ..good() };
        lab.ends[0].receive(Udp { ttl: 255, payload: &again.bytes() }, now);
        lab.pass(9000);
        prop_assert_eq!(lab.states(), [State::Up; 2]);
    }
}
