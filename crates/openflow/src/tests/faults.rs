//! Faulty messages get the errors that the specifications require.

use super::CX;
use crate::error::ErrorKind;
use crate::{Message, Version, decode};
use heddle_flow::Match;

/// The error that bytes get.
fn error_of(bytes: &[u8]) -> Option<ErrorKind> {
    decode(bytes, &CX).err().map(|e| e.error.kind)
}

/// A whole message with this body.
pub(super) fn message(version: u8, ty: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![version, ty, 0, 0, 0, 0, 0, 1];
    out.extend_from_slice(body);
    let len = u16::try_from(out.len()).expect("short").to_be_bytes();
    out[2..4].copy_from_slice(&len);
    out
}

#[test]
fn faults_get_the_errors_of_the_specification() {
    assert_eq!(
        error_of(&message(9, 5, &[])),
        Some(ErrorKind::BadRequestBadVersion)
    );
    assert_eq!(error_of(&message(1, 99, &[])), Some(ErrorKind::BadRequestBadType));
    assert_eq!(
        error_of(&message(1, 24, &[])),
        Some(ErrorKind::BadRequestBadType),
        "a role request in 1.0"
    );
    assert_eq!(error_of(&message(4, 5, &[0])), Some(ErrorKind::BadRequestBadLen));
    assert_eq!(
        error_of(&message(4, 4, &[0, 0, 0, 9, 0, 0, 0, 1])),
        Some(ErrorKind::BadRequestBadVendor)
    );
    assert_eq!(
        error_of(&message(4, 4, &[0, 0, 0x23, 0x20, 0, 0, 9, 9])),
        Some(ErrorKind::BadRequestBadSubtype)
    );
    assert_eq!(
        error_of(&message(4, 18, &[0, 99, 0, 0, 0, 0, 0, 0])),
        Some(ErrorKind::BadRequestBadStat)
    );
    assert_eq!(
        error_of(&message(1, 9, &[0, 8, 0, 0])),
        Some(ErrorKind::SwitchConfigFailedBadFlags)
    );
    assert_eq!(
        error_of(&message(4, 24, &[0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        Some(ErrorKind::RoleRequestFailedBadRole)
    );
    // Packet-outs with one action each.
    let out = |actions: &[u8]| {
        let mut body = vec![0xff; 4];
        body.extend([0, 1, 0, u8::try_from(actions.len()).expect("short")]);
        body.extend(actions);
        error_of(&message(1, 13, &body))
    };
    assert_eq!(out(&[0, 0, 0, 8, 0, 1, 0, 0]), None);
    assert_eq!(
        out(&[0, 0, 0, 8, 0xff, 0xff, 0, 0]),
        Some(ErrorKind::BadActionBadOutPort)
    );
    assert_eq!(out(&[0, 99, 0, 8, 0, 0, 0, 0]), Some(ErrorKind::BadActionBadType));
    assert_eq!(out(&[0, 0, 0, 9, 0, 1, 0, 0]), Some(ErrorKind::BadActionBadLen));
    assert_eq!(out(&[0, 0, 0, 0, 0, 1, 0, 0]), Some(ErrorKind::BadActionBadLen));
    assert_eq!(
        out(&[0, 1, 0, 8, 0xf0, 0, 0, 0]),
        Some(ErrorKind::BadActionBadArgument)
    );
    assert_eq!(
        out(&[0xff, 0xff, 0, 8, 0, 0, 0, 1]),
        Some(ErrorKind::BadActionBadVendor)
    );
    assert_eq!(
        out(&[0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0xff, 0, 0, 0, 0, 0, 0, 0]),
        Some(ErrorKind::BadActionBadVendorType)
    );
}

/// Found by thought, not by accident: clones in clones must not exhaust the stack.
#[test]
fn deep_nesting_is_refused() {
    let mut actions: Vec<u8> = Vec::new();
    for _ in 0..4000 {
        let len = u16::try_from(actions.len() + 16).expect("short").to_be_bytes();
        let mut outer = vec![
            0xff, 0xff, len[0], len[1], 0, 0, 0x23, 0x20, 0, 42, 0, 0, 0, 0, 0, 0,
        ];
        outer.append(&mut actions);
        actions = outer;
    }
    let len = u16::try_from(actions.len()).expect("short").to_be_bytes();
    let mut body = vec![0xff, 0xff, 0xff, 0xff, 0, 1, len[0], len[1]];
    body.append(&mut actions);
    assert_eq!(
        error_of(&message(1, 13, &body)),
        Some(ErrorKind::BadActionTooMany)
    );
}

/// The fuzzer found a specification of no bits, whose first word had no other known meaning: written again,
/// it ended the list.
#[test]
fn learning_no_bits_is_refused() {
    let mut body = vec![0xff; 4];
    body.extend([0, 1, 0, 48]);
    body.extend([0xff, 0xff, 0, 48, 0, 0, 0x23, 0x20, 0, 16]);
    body.extend([0; 22]);
    // From NXM_OF_VLAN_TCI[0..] to the same, and the end.
    body.extend([0x40, 0, 0, 0, 8, 2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0]);
    let error = error_of(&message(1, 13, &body));
    assert_eq!(error, Some(ErrorKind::BadActionBadSetLen));
}

#[test]
fn actions_must_fit_their_match() {
    let check = |version, m: &str, actions: &str| {
        let m = Match::parse_text(m, None).expect("match");
        let set = crate::text::parse_instructions(actions, None).expect("actions");
        crate::check::instructions(version, &set, &m, 3, 10).err()
    };
    use Version::{V10, V13};
    let inconsistent = Some(ErrorKind::BadActionMatchInconsistent);
    assert_eq!(check(V13, "ip", "mod_nw_src:1.2.3.4"), None);
    assert_eq!(check(V13, "", "mod_nw_src:1.2.3.4"), inconsistent);
    assert_eq!(
        check(V10, "", "mod_nw_src:1.2.3.4"),
        None,
        "1.0 lets it do nothing"
    );
    assert_eq!(check(V10, "", "set_field:1.2.3.4->ip_src"), inconsistent);
    assert_eq!(check(V13, "tcp", "set_field:1->udp_src"), inconsistent);
    assert_eq!(check(V13, "", "pop_vlan"), inconsistent);
    assert_eq!(
        check(V13, "", "push_vlan:0x8100,set_field:4097->vlan_vid,pop_vlan"),
        None
    );
    assert_eq!(
        check(V13, "", "push_vlan:0x8100,push_vlan:0x8100,push_vlan:0x8100"),
        Some(ErrorKind::BadActionBadTag)
    );
    assert_eq!(check(V13, "mpls", "pop_mpls:0x0800,dec_ttl"), None);
    assert_eq!(check(V13, "ip", "push_mpls:0x8847,dec_ttl"), inconsistent);
    assert_eq!(check(V13, "", "goto_table:4"), None);
    assert_eq!(
        check(V13, "", "goto_table:3"),
        Some(ErrorKind::BadInstructionBadTableId)
    );
    assert_eq!(
        check(V13, "", "goto_table:10"),
        Some(ErrorKind::BadInstructionBadTableId)
    );
    assert_eq!(check(V13, "", "output:NXM_OF_IP_SRC[]"), inconsistent);
}

/// Messages that are almost right, each beside the error that Open vSwitch's daemon gives to it.
#[test]
fn lists_are_measured_before_they_are_read() {
    let bytes = |hex: &str| -> Vec<u8> {
        let digits = (0..hex.len()).step_by(2);
        digits
            .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex"))
            .collect()
    };
    for hex in [
        // An aggregate request whose match is one byte longer than its length field; a flow request in words
        // and a half.
        "04120039000000770002000000000000ff0000000008ffffffffffff000000000000000000000000ff00020000000000000001000400000000",
        "0312003d0000007700010000000000000300000000000001ffffffff00000000000000000000000000000000000000000001000a80000a020800000000",
        // Group mods: one of a bad type besides, and one that ends in the middle of a bucket.
        "040f0016000000778000fe000000000600200001ffff",
        "050f002f00000077800002000000000400200000ffffffffffffffff00000000000000100000000100000000000000",
        // Table features; a bundle's control message with half a property.
        "0412001200000077000c0000000000000000",
        "06210013000000770000008100ffff00000000",
    ] {
        assert_eq!(error_of(&bytes(hex)), Some(ErrorKind::BadRequestBadLen), "{hex}");
    }
    // The flags of a request mean nothing before 1.3.
    for (hex, more) in [
        ("0312001000000077000300ff00000000", false),
        ("0110000c000000770003feff", false),
        ("0412001000000077000300ff00000000", true),
    ] {
        match decode(&bytes(hex), &CX) {
            Ok((_, Message::MultipartRequest { more: m, .. })) => assert_eq!(m, more, "{hex}"),
            other => panic!("{hex}: {other:?}"),
        }
    }
    // Reserved bytes are not checked here.
    assert_eq!(
        decode(&bytes("0104001800000077000023200000000f0100100000000000"), &CX)
            .map(|(_, m)| m)
            .ok(),
        Some(Message::FlowModTableId(true))
    );
}
