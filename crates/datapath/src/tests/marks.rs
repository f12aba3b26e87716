//! Marks that packets bring in and take out in headers, as through a tap.

use super::flows::{Setup, setup};
use super::recirc::under;
use super::{ToyRule, udp};
use heddle_datapath_api::{Action, Masked, PortNo};
use heddle_packet::mark_header;

const OUT: Action = Action::Output(PortNo(2));

fn set_mark(value: u32, mask: u32) -> Action {
    Action::SetMark(Masked { value, mask })
}

/// A rule about packets with this mark under a recirculation id.
fn marked(id: u32, mark: u32, actions: Vec<Action>) -> ToyRule {
    let mut m = under(id);
    (m.key.pkt_mark, m.mask.0.pkt_mark) = (mark, u32::MAX);
    ToyRule::new(m, actions)
}

fn tap(rules: Vec<ToyRule>) -> Setup {
    let s = setup(rules);
    s.a.carry_marks(true);
    s.b.carry_marks(true);
    s
}

fn with(frame: &[u8], mark: u32) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.splice(mark_header::AT..mark_header::AT, mark_header::with(mark));
    frame
}

/// Frames of several kinds, in one burst.
fn frames() -> Vec<Vec<u8>> {
    let mut tagged = udp(1, 2, 3, 4);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let mut arp = udp(1, 2, 3, 4);
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut odd = udp(1, 2, 3, 4);
    odd[14] = 0x4f;
    vec![
        udp(1, 2, 3, 4),
        udp(1, 2, 3, 4),
        tagged,
        arp,
        odd,
        udp(1, 2, 9, 4),
    ]
}

#[test]
fn rules_match_and_set_marks_of_all_kinds_of_packets() {
    let s = tap(vec![
        marked(0, 7, vec![set_mark(0x900, 0xf00), OUT]),
        marked(0, 8, vec![Action::Recirc(5)]),
        marked(5, 8, vec![OUT]),
        marked(0, 6, vec![set_mark(0, u32::MAX), OUT]),
        marked(0, 0, vec![OUT]),
    ]);
    let (mut sent, mut expected) = (Vec::new(), Vec::new());
    for frame in frames() {
        for (mark, then) in [(7, 0x907), (0, 0), (8, 8), (6, 0), (1, u32::MAX), (7, 0x907)] {
            // A header with mark 0 protects a frame that begins like one with a header.
            sent.push(with(&frame, mark));
            match then {
                u32::MAX => {}
                0 => expected.push(frame.clone()),
                mark => expected.push(with(&frame, mark)),
            }
        }
        sent.push(frame.clone());
        expected.push(frame);
    }
    s.a.send(sent);
    let mut got = s.b.wait(expected.len());
    // Recirculated packets leave after the others of their burst.
    got.sort();
    expected.sort();
    assert_eq!(got, expected);
}

#[test]
fn copies_have_marks_of_their_own() {
    let frame = udp(1, 2, 3, 4);
    let s = tap(vec![marked(
        0,
        7,
        vec![
            OUT,
            Action::Clone(vec![set_mark(1, u32::MAX), OUT]),
            OUT,
            set_mark(2, u32::MAX),
            OUT,
        ],
    )]);
    s.a.send([with(&frame, 7)]);
    let mut got = s.b.wait(4);
    got.sort();
    assert_eq!(got, [1, 2, 7, 7].map(|mark| with(&frame, mark)));
}

#[test]
fn only_a_trusted_header_is_removed() {
    let frame = udp(1, 2, 3, 4);
    let s = tap(vec![marked(0, 7, Vec::new()), ToyRule::output(2)]);
    s.b.carry_marks(false);
    // One header is removed, the sender's own is a part of the frame.
    s.a.send([with(&with(&frame, 7), 0)]);
    assert_eq!(s.b.wait(1), [with(&frame, 7)]);
    s.a.carry_marks(false);
    s.a.send([with(&frame, 7)]);
    assert_eq!(s.b.wait(1), [with(&frame, 7)]);
}
