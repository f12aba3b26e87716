//! Two systems and the links between them, on a clock that tests move.

mod fuzz;

use super::*;
use proptest::prelude::*;

const A: [u8; 6] = [0xaa, 0, 0, 0, 0, 1];
const B: [u8; 6] = [0xbb, 0, 0, 0, 0, 1];

fn settings(sys_id: [u8; 6]) -> Settings {
    Settings {
        name: format!("bond{:x}", sys_id[0]),
        sys_id,
        sys_priority: 65534,
        active: true,
        fast: true,
        fallback: false,
    }
}

fn link(n: u32) -> LinkSettings {
    LinkSettings {
        name: format!("p{n}"),
        port_id: u16::try_from(n + 1).unwrap(),
        port_priority: 65535,
        key: 0,
    }
}

/// Two ends, joined by links of equal numbers.
struct Lab {
    ends: [Aggregator; 2],
    now_ms: u64,
    /// Links that carry messages, by number.
    wires: Vec<bool>,
    sent: [usize; 2],
}

impl Lab {
    fn new(a: Settings, b: Settings, n: u32) -> Self {
        let mut lab = Self {
            ends: [a, b].map(Aggregator::new),
            now_ms: 1000,
            wires: vec![true; n as usize],
            sent: [0; 2],
        };
        for end in &mut lab.ends {
            for i in 0..n {
                end.set_link(i, link(i), 1000);
                end.set_carrier(i, true, 1000);
            }
        }
        lab
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now_ms += 10;
            for from in [0, 1, 0, 1] {
                if self.ends[from].wake_ms().is_none_or(|at| at > self.now_ms) {
                    continue;
                }
                for o in self.ends[from].run(self.now_ms) {
                    self.sent[from] += 1;
                    let bytes = frame([2; 6], &o.pdu);
                    if self.wires[o.link as usize] {
                        let payload = payload_of(&bytes).unwrap();
                        assert_eq!(
                            self.ends[1 - from].receive(o.link, payload, self.now_ms),
                            Received::Message
                        );
                    }
                }
            }
        }
    }

    fn enabled(&self, end: usize) -> Vec<bool> {
        (0..self.wires.len())
            .map(|i| self.ends[end].may_enable(u32::try_from(i).unwrap()))
            .collect()
    }
}

#[test]
fn two_systems_negotiate_and_keep_the_fast_rate() {
    let mut lab = Lab::new(settings(A), settings(B), 2);
    lab.pass(500);
    for end in 0..2 {
        assert_eq!(lab.ends[end].status(), Status::Negotiated);
        assert_eq!(lab.enabled(end), [true, true]);
    }
    let before = lab.sent;
    lab.pass(10_000);
    for (now, before) in lab.sent.iter().zip(before) {
        let sent = now - before;
        assert!((18..=22).contains(&sent), "{sent} messages in 10 s on two links");
    }
}

/// The partner decides how often it wants to hear: slow systems get a message in 30 s.
#[test]
fn the_partner_chooses_the_rate() {
    let slow = Settings {
        fast: false,
        ..settings(B)
    };
    let mut lab = Lab::new(settings(A), slow, 1);
    lab.pass(5000);
    let before = lab.sent;
    lab.pass(60_000);
    let sent = [lab.sent[0] - before[0], lab.sent[1] - before[1]];
    assert!((1..=3).contains(&sent[0]), "{sent:?}");
    assert!((58..=62).contains(&sent[1]), "{sent:?}");
}

#[test]
fn passive_systems_are_silent_until_they_hear() {
    let passive = |id| Settings {
        active: false,
        ..settings(id)
    };
    let mut lab = Lab::new(passive(A), passive(B), 1);
    lab.pass(10_000);
    assert_eq!(lab.sent, [0, 0]);
    assert_eq!(lab.ends[0].status(), Status::Configured);
    let mut lab = Lab::new(passive(A), settings(B), 1);
    lab.pass(1000);
    assert_eq!(lab.enabled(0), [true]);
    assert_eq!(lab.enabled(1), [true]);
}

/// Three seconds without a message, and the link is expired; three more, and it has no partner.
#[test]
fn silence_expires_a_link_and_leaves_the_others() {
    let mut lab = Lab::new(settings(A), settings(B), 2);
    lab.pass(2000);
    lab.wires[1] = false;
    lab.pass(1900);
    assert_eq!(lab.enabled(0), [true, true]);
    lab.pass(1500);
    assert_eq!(lab.enabled(0), [true, false]);
    assert_eq!(lab.ends[0].has_partner(1), Some(true));
    lab.pass(3500);
    assert_eq!(lab.ends[0].has_partner(1), Some(false));
    assert_eq!(lab.ends[0].status(), Status::Negotiated);
    // Without a partner, a link sends at the slow rate.
    lab.wires[1] = true;
    lab.pass(31_000);
    assert_eq!(lab.enabled(0), [true, true]);
    assert_eq!(lab.enabled(1), [true, true]);
}

/// A system that begins anew within the timeout announces itself as before, so its partner keeps the links.
#[test]
fn a_restarted_system_does_not_disturb_its_partner() {
    let mut lab = Lab::new(settings(A), settings(B), 2);
    lab.pass(5000);
    let now = lab.now_ms;
    let mut fresh = Aggregator::new(settings(A));
    lab.ends[1].run(now);
    lab.now_ms += 1500;
    for i in 0..2 {
        fresh.set_link(i, link(i), lab.now_ms);
        fresh.set_carrier(i, true, lab.now_ms);
    }
    lab.ends[0] = fresh;
    for _ in 0..500 {
        lab.pass(10);
        assert_eq!(lab.enabled(1), [true, true]);
    }
    assert_eq!(lab.enabled(0), [true, true]);
}

/// The same, if the partner is heard on one link before the other.
#[test]
fn a_restarted_system_keeps_links_whose_partner_is_heard_later() {
    let mut lab = Lab::new(settings(A), settings(B), 2);
    lab.pass(5000);
    let now_ms = lab.now_ms + 1500;
    let mut fresh = Aggregator::new(settings(A));
    for i in 0..2 {
        fresh.set_link(i, link(i), now_ms);
        fresh.set_carrier(i, true, now_ms);
    }
    let first = fresh.run(now_ms);
    lab.ends[1].receive(0, &first[0].pdu.bytes(), now_ms);
    for o in lab.ends[1].run(now_ms).iter().filter(|o| o.link == 0) {
        fresh.receive(0, &o.pdu.bytes(), now_ms);
    }
    for o in fresh.run(now_ms).iter().chain(&first[1..]) {
        assert!(o.pdu.actor.state.has(Flags::SYNCHRONIZED));
        lab.ends[1].receive(o.link, &o.pdu.bytes(), now_ms);
    }
    lab.ends[1].run(now_ms);
    assert_eq!(lab.enabled(1), [true, true]);
    assert!(fresh.may_enable(0) && !fresh.may_enable(1));
    // A link on which no partner is heard is detached in the end.
    fresh.run(now_ms + 3000);
    assert_eq!(fresh.has_partner(1), Some(false));
    assert!(
        !fresh
            .run(now_ms + 3010)
            .iter()
            .any(|o| o.link == 1 && o.pdu.actor.state.has(Flags::SYNCHRONIZED))
    );
}

#[test]
fn only_links_to_one_system_with_one_key_are_attached() {
    let mut lab = Lab::new(settings(A), settings(B), 2);
    let mut other = Aggregator::new(settings([0xcc, 0, 0, 0, 0, 1]));
    other.set_link(0, link(9), 1000);
    other.set_carrier(0, true, 1000);
    lab.pass(2000);
    lab.ends[0].set_link(2, link(2), lab.now_ms);
    lab.ends[0].set_carrier(2, true, lab.now_ms);
    for _ in 0..3 {
        for o in other.run(lab.now_ms) {
            lab.ends[0].receive(2, &o.pdu.bytes(), lab.now_ms);
        }
        lab.ends[0].run(lab.now_ms);
    }
    assert!(!lab.ends[0].may_enable(2));
    assert_eq!(lab.enabled(0), [true, true]);
}

#[test]
fn a_link_to_itself_is_not_used() {
    let mut one = Aggregator::new(settings(A));
    for i in 0..2 {
        one.set_link(i, link(i), 1000);
        one.set_carrier(i, true, 1000);
    }
    for n in 0..10 {
        let now_ms = 1000 + n * 1000;
        for o in one.run(now_ms) {
            one.receive(1 - o.link, &o.pdu.bytes(), now_ms);
        }
    }
    assert!(!one.may_enable(0) && !one.may_enable(1));
}

#[test]
fn without_a_partner_links_fall_back_where_that_is_configured() {
    for fallback in [false, true] {
        let mut one = Aggregator::new(Settings {
            fallback,
            ..settings(A)
        });
        one.set_link(0, link(0), 1000);
        one.set_carrier(0, true, 1000);
        (0..10).for_each(|n| drop(one.run(1000 + n * 1000)));
        assert_eq!(one.status(), Status::Configured);
        assert_eq!(one.may_enable(0), fallback);
    }
}

#[test]
fn messages_wait_for_the_carrier() {
    let mut lab = Lab::new(settings(A), settings(B), 1);
    lab.pass(2000);
    let now_ms = lab.now_ms;
    lab.ends[0].set_carrier(0, false, now_ms);
    assert_eq!(lab.enabled(0), [false]);
    assert_eq!(lab.ends[0].run(now_ms + 2000), []);
    let pdu = Pdu::default().bytes();
    assert_eq!(lab.ends[0].receive(0, &pdu, now_ms), Received::NoCarrier);
    assert_eq!(lab.ends[0].receive(7, &pdu, now_ms), Received::NoLink);
}

#[test]
fn time_that_the_owner_lost_is_not_the_partners() {
    let mut lab = Lab::new(settings(A), settings(B), 1);
    lab.pass(2000);
    let now_ms = lab.now_ms + 10_000;
    lab.ends[0].forgive(10_000);
    lab.ends[0].run(now_ms);
    assert_eq!(lab.enabled(0), [true]);
}

/// The texts of Open vSwitch for the same aggregator.
#[test]
fn texts() {
    let mut one = Aggregator::new(settings(A));
    one.set_link(3, link(0), 1000);
    one.run(1000);
    let end = |which: &str, id: &str, priorities: (u32, u32), n: u32, state: &str| {
        format!(
            "\n  {which} sys_id: {id}\n  {which} sys_priority: {}\n  {which} port_id: {n}\n  \
             {which} port_priority: {}\n  {which} key: {n}\n  {which} state:{state}\n",
            priorities.0, priorities.1
        )
    };
    let head = "---- bondaa ----\n  status: active negotiated\n  sys_id: aa:00:00:00:00:01\n  \
                sys_priority: 65534\n  aggregation key: 1\n  lacp_time: fast\n\
                \nmember: p0: expired attached\n  port_id: 1\n  port_priority: 65535\n  may_enable: false\n";
    let actor = " activity timeout synchronized collecting distributing expired";
    let want = [
        head.to_owned(),
        end("actor", "aa:00:00:00:00:01", (65534, 65535), 1, actor),
        end("partner", "00:00:00:00:00:00", (0, 0), 0, " timeout"),
    ];
    assert_eq!(one.details(), want.concat());
    assert_eq!(
        one.statistics(),
        "---- bondaa statistics ----\n\nmember: p0:\n  TX PDUs: 0\n  RX PDUs: 0\n  RX Bad PDUs: 0\n  \
         RX Marker Request PDUs: 0\n  Link Expired: 0\n  Link Defaulted: 0\n  Carrier Status Changed: 0\n"
    );
    assert!(
        Aggregator::new(settings(A))
            .details()
            .contains("aggregation key: none\n")
    );
}

fn infos() -> impl Strategy<Value = Info> {
    any::<(u16, [u8; 6], u16, u16, u16, u8)>().prop_map(|(sys_priority, sys_id, key, q, port_id, state)| {
        Info {
            sys_priority,
            sys_id,
            key,
            port_priority: q,
            port_id,
            state: Flags(state),
        }
    })
}

proptest! {
    #[test]
    fn messages_are_read_as_written(actor in infos(), partner in infos(), tail in any::<Vec<u8>>()) {
        let pdu = Pdu { actor, partner };
        let mut bytes = frame([4; 6], &pdu);
        prop_assert_eq!(bytes.len(), FRAME_LEN);
        bytes.extend(tail);
        prop_assert_eq!(Pdu::read(payload_of(&bytes).unwrap()), Ok(pdu));
    }

    /// Any bytes are read or refused, and cut messages are refused.
    #[test]
    fn bad_messages_are_refused(bytes in any::<Vec<u8>>(), pdu in (infos(), infos()), at in 0..109usize, to: u8) {
        let _ = payload_of(&bytes).map(Pdu::read);
        let _ = Pdu::read(&bytes);
        let whole = Pdu { actor: pdu.0, partner: pdu.1 }.bytes();
        prop_assert_eq!(Pdu::read(&whole[..at]), Err(PduError::Malformed));
        let mut changed = whole;
        changed[at] = to;
        let header = [0, 2, 3, 22, 23].contains(&at) && to != whole[at];
        prop_assert_eq!(Pdu::read(&changed).is_err(), header);
    }

    /// Whatever is received, at most one system with one key is attached, and the number of messages in
    /// return is bounded.
    #[test]
    fn no_sequence_of_messages_breaks_it(
        steps in proptest::collection::vec((0..4u32, any::<bool>(), 0..3u8, 0..3u16, any::<u8>(), 0..4000u64), 1..200)
    ) {
        let mut one = Aggregator::new(settings(A));
        for i in 0..3 {
            one.set_link(i, link(i), 1000);
        }
        let mut now_ms = 1000;
        for (id, up, sys, key, state, ms) in steps {
            now_ms += ms;
            one.set_carrier(id, up, now_ms);
            let actor = Info { sys_id: [sys; 6], key, state: Flags(state), ..Info::default() };
            one.receive(id, &Pdu { actor, ..Pdu::default() }.bytes(), now_ms);
            prop_assert!(one.run(now_ms).len() <= 3);
            // Links that wait for their first message are attached to no system.
            let attached = || one.links.iter().filter(|l| l.attached);
            let known = attached().filter(|l| !l.is_new);
            let systems: std::collections::BTreeSet<_> = known.map(|l| (l.partner.sys_id, l.partner.key)).collect();
            prop_assert!(systems.len() <= 1);
            prop_assert_eq!(one.negotiated, attached().count() > 0);
            prop_assert!(one.wake_ms().is_none_or(|at| at > now_ms));
            let _ = (one.details(), one.statistics());
        }
    }
}
