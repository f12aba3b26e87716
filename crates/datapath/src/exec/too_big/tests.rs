//! Errors for packets that are too long: who gets one, and that every checksum is right.

use super::replace;
use crate::exec::Meta;
use crate::tests::parsed;
use heddle_flow::packet_type;
use heddle_packet::Packet;
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::ip::{Ipv4, proto};
use proptest::prelude::*;

const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa];
const POD: [u8; 4] = [10, 0, 0, 1];
const FAR: [u8; 4] = [10, 0, 0, 2];

/// UDP in IPv4 with these bits of the word for fragments.
fn ipv4(frag: u16, payload: usize, tag: bool, (src, dst): ([u8; 4], [u8; 4])) -> Vec<u8> {
    let len = u16::try_from(20 + payload).expect("a length").to_be_bytes();
    let frag = frag.to_be_bytes();
    let header = [
        &[0x45, 0, len[0], len[1], 0, 9, frag[0], frag[1], 64, 17, 0, 0],
        &src[..],
        &dst,
    ]
    .concat();
    let tag: &[u8] = if tag { &[0x81, 0, 0, 5] } else { &[] };
    sealed([&ETHERNET[..], tag, &[8, 0], &header, &vec![7; payload]].concat())
}

/// The frame with the right checksum in its IPv4 header.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    let l3 = if frame[12] == 0x81 { 18 } else { 14 };
    frame[l3 + 10..l3 + 12].fill(0);
    let sum = checksum(&frame[l3..l3 + 20]).to_be_bytes();
    frame[l3 + 10..l3 + 12].copy_from_slice(&sum);
    frame
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).expect("a length").to_be_bytes();
    let (src, dst) = ([0xfd; 16], [0xfe; 16]);
    let header = [&[0x60, 0, 0, 0, len[0], len[1], next, 64][..], &src, &dst].concat();
    [&ETHERNET[..], &[0x86, 0xdd], &header, payload].concat()
}

/// The error for a frame, with its offsets.
fn error(frame: &[u8], mtu: u16) -> Option<(Vec<u8>, Meta)> {
    let mut p = Packet::from_bytes(frame);
    let (_, mut meta) = parsed(&mut p, packet_type::ETHERNET, 2);
    let frame_len = mtu.saturating_add(meta.l3);
    replace(&mut p, &mut meta, frame_len)?;
    let (key, again) = parsed(&mut p, packet_type::ETHERNET, 2);
    assert_eq!(
        (meta.l3, meta.l4, meta.proto),
        (again.l3, again.l4, again.proto),
        "{key}"
    );
    Some((p.to_vec(), meta))
}

proptest! {
    #[test]
    fn sender_gets_the_beginning_of_its_packet(more in 1_usize..1500, tag: bool, mtu in 576_u16..1500) {
        let payload = usize::from(mtu) - 20 + more;
        let frame = ipv4(Ipv4::DONT, payload, tag, (POD, FAR));
        let (out, meta) = error(&frame, mtu).expect("an error");
        let (l3, l4) = (usize::from(meta.l3), usize::from(meta.l4));
        prop_assert_eq!(&out[..12], [&ETHERNET[6..], &ETHERNET[..6]].concat());
        prop_assert_eq!(&out[12..l3], &frame[12..l3]);
        prop_assert_eq!(&out[l3 + 12..l4], [FAR, POD].concat());
        prop_assert_eq!((checksum(&out[l3..l4]), checksum(&out[l4..])), (0, 0));
        prop_assert_eq!(out[l4..l4 + 2].to_vec(), [3, 4]);
        prop_assert_eq!(out[l4 + 6..l4 + 8].to_vec(), mtu.to_be_bytes());
        let quoted = &out[l4 + 8..];
        prop_assert_eq!(quoted, &frame[l3..l3 + quoted.len()]);
        prop_assert!(quoted.len() == payload + 20 || out.len() - l3 == 576);
    }

    #[test]
    fn ipv6_too(more in 1_usize..1500, mtu in 1280_u16..1500) {
        let payload = usize::from(mtu) - 40 + more;
        let frame = ipv6(proto::UDP, &vec![7; payload]);
        let (out, _) = error(&frame, mtu).expect("an error");
        let message = &out[54..];
        let len = u32::try_from(message.len()).expect("a length");
        let sum = Sum::ZERO.pseudo_v6(&[0xfe; 16], &[0xfd; 16], proto::ICMPV6, len).bytes(message);
        prop_assert_eq!(sum.checksum(), 0);
        prop_assert_eq!(message[..2].to_vec(), [2, 0]);
        prop_assert_eq!(message[4..8].to_vec(), u32::from(mtu).to_be_bytes());
        prop_assert_eq!(&message[8..], &frame[14..14 + message.len() - 8]);
        prop_assert!(message.len() == payload + 48 || out.len() - 14 == 1280);
    }

    /// Frames of any bytes never end in a panic, nor in an error that is longer than it may be.
    #[test]
    fn any_bytes(frame in prop::collection::vec(any::<u8>(), 14..120), v6: bool, mtu: u16) {
        let mut frame = frame;
        frame[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        if let Some(first) = frame.get_mut(14) {
            *first = if v6 { 0x60 } else { 0x45 };
        }
        if let Some((out, _)) = error(&frame, mtu) {
            prop_assert!(out.len() <= 14 + 1280);
        }
    }
}

#[test]
fn packets_without_an_error() {
    let dont = |src, dst| ipv4(Ipv4::DONT, 1400, false, (src, dst));
    let icmp = |ty: u8| {
        let mut frame = dont(POD, FAR);
        (frame[23], frame[34]) = (proto::ICMP, ty);
        sealed(frame)
    };
    let icmpv6 = |ty: u8| ipv6(proto::ICMPV6, &[&[ty, 0][..], &[0; 1400]].concat());
    let changed = |at: usize, bits: u8| {
        let mut frame = dont(POD, FAR);
        frame[at] ^= bits;
        frame
    };
    let mut arp = dont(POD, FAR);
    arp[12..14].copy_from_slice(&[8, 6]);
    for (what, frame, mtu) in [
        ("may be fragmented", ipv4(0, 1400, false, (POD, FAR)), 1280),
        (
            "a fragment",
            ipv4(Ipv4::DONT | Ipv4::MORE, 1400, false, (POD, FAR)),
            1280,
        ),
        ("to a group", dont(POD, [224, 0, 0, 1]), 1280),
        ("to all", dont(POD, [255; 4]), 1280),
        ("from nobody", dont([0, 0, 0, 0], FAR), 1280),
        ("from a loopback device", dont([127, 0, 0, 1], FAR), 1280),
        ("an error", icmp(3), 1280),
        ("an error of IPv6", icmpv6(2), 1280),
        ("too small an MTU", dont(POD, FAR), 575),
        ("too small an MTU for IPv6", icmpv6(128), 1279),
        ("no IP", arp, 1280),
        (
            "short enough, with padding",
            [dont(POD, FAR), vec![0; 400]].concat(),
            1420,
        ),
        ("a wrong checksum", changed(14 + 10, 0x55), 1280),
        ("a header of four bytes", changed(14, 0x45 ^ 0x41), 1280),
        ("to a group's Ethernet address", changed(0, 1), 1280),
        ("cut off", dont(POD, FAR)[..100].to_vec(), 1280),
    ] {
        assert!(error(&frame, mtu).is_none(), "{what}");
    }
    assert!(error(&icmp(8), 1280).is_some());
    assert!(error(&icmpv6(128), 1280).is_some());
}
