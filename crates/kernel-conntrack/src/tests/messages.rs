//! Messages: entries survive the way to the kernel's form and back; hostile bytes are ignored.

use crate::deletions::{Deletion, decode};
use crate::entry::{EntryKey, Established, KernelEntry, TC_ZONES};
use crate::established::{Listed, listed};
use crate::message::{self, Received};
use heddle_conntrack::{Endpoint, Tuple};
use heddle_sys::netlink::messages;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{NetfilterMessage, conntrack::ConntrackMessage};
use proptest::prelude::*;

fn bytes(message: NetfilterMessage) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn received(data: &[u8]) -> Vec<Received> {
    let inner = |m: NetlinkMessage<NetfilterMessage>| match m.payload {
        NetlinkPayload::InnerMessage(m) => message::entry(&m),
        _ => None,
    };
    messages(data).flatten().filter_map(inner).collect()
}

fn deletions(data: &[u8]) -> Vec<Deletion> {
    let mut all = Vec::new();
    decode(data, &mut |d| all.push(d));
    all
}

prop_compose! {
    fn tuple()(
        ipv6: bool,
        addrs: [u128; 2],
        ports: [u16; 2],
        proto in prop_oneof![Just(1_u8), Just(6), Just(17), Just(58), Just(132), Just(47), any::<u8>()],
        request in prop_oneof![Just(8_u8), Just(13), Just(15)],
        code: u8,
    ) -> Tuple {
        let end = |n: usize| Endpoint {
            addr: if ipv6 { addrs[n] } else { addrs[n] & 0xffff_ffff },
            l4: ports[n].into(),
        };
        let t = Tuple { src: end(0), dst: end(1), proto, ipv6 };
        match t.is_icmp() {
            true => t.with_icmp(ports[0], if ipv6 { 128 } else { request }, code).unwrap(),
            false => t,
        }
    }
}

prop_compose! {
    fn entry()(orig in tuple(), zone: u16, mark: u32, label: u128, replied: bool, tcp_state in 0_u8..9) -> KernelEntry {
        KernelEntry { key: EntryKey { zone, orig }, reply: orig.reversed(), mark, label, replied, tcp_state }
    }
}

proptest! {
    #[test]
    fn an_entry_is_read_as_it_was_written(e in entry()) {
        let data = bytes(message::write(&e, 600, true));
        prop_assert_eq!(received(&data), [Received { entry: e, own: true }]);
        let data = bytes(message::write(&e, 600, false));
        prop_assert_eq!(received(&data), [Received { entry: KernelEntry { label: 0, ..e }, own: true }]);
    }

    /// Each mutant is an entry, no entry, or not understood; no byte leads to a panic or an endless loop.
    #[test]
    fn hostile_bytes_are_ignored(
        e in entry(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut: prop::sample::Index,
        noise in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut data = bytes(message::write(&e, 600, true));
        for (index, byte) in changes {
            let at = index.index(data.len());
            data[at] = byte;
        }
        let cut = cut.index(data.len() + 1);
        for data in [&data[..], &data[..cut], &noise] {
            prop_assert!(received(data).len() + deletions(data).len() <= 2 * (data.len() / 16));
        }
    }
}

#[test]
fn every_truncation_and_every_length_is_survived() {
    let orig = Tuple {
        src: Endpoint { addr: 1, l4: 0 },
        dst: Endpoint { addr: 2, l4: 0 },
        proto: 58,
        ipv6: true,
    };
    let orig = orig.with_icmp(7, 128, 0).unwrap();
    let key = EntryKey { zone: 9, orig };
    let e = KernelEntry {
        key,
        reply: orig.reversed(),
        mark: 1,
        label: 2,
        replied: true,
        tcp_state: 0,
    };
    let data = bytes(message::write(&e, 1, true));
    for len in 0..data.len() {
        assert_eq!(received(&data[..len]), []);
    }
    // Each two bytes may be an attribute's length.
    for at in (0..data.len() - 1).step_by(2) {
        for length in [0_u16, 1, 3, 4, 5, 0x7fff, 0xffff] {
            let mut odd = data.clone();
            odd[at..at + 2].copy_from_slice(&length.to_ne_bytes());
            let _ = (received(&odd), deletions(&odd));
        }
    }
}

#[test]
fn what_others_wrote_has_no_signature() {
    let t = Tuple {
        src: Endpoint { addr: 1, l4: 2 },
        dst: Endpoint { addr: 3, l4: 4 },
        proto: 17,
        ipv6: false,
    };
    let key = EntryKey { zone: 5, orig: t };
    let e = KernelEntry {
        key,
        reply: t.reversed(),
        mark: 0,
        label: 0,
        replied: false,
        tcp_state: 0,
    };
    let mut data = bytes(message::write(&e, 600, false));
    let at = data.windows(4).position(|w| w == b"hedd").unwrap();
    data[at] = 0;
    assert_eq!(received(&data), [Received { entry: e, own: false }]);
    // Events about expectations, or of other parts of netfilter.
    let other = message::request(None, ConntrackMessage::Get(Vec::new()));
    assert_eq!(deletions(&bytes(other)), []);
    assert_eq!(
        deletions(&bytes(message::write(&e, 600, false))),
        [Deletion::Of(key)]
    );
}

fn established(proto: u8, reply: impl Fn(Tuple) -> Tuple) -> Established {
    let end = |addr, l4| Endpoint { addr, l4 };
    let orig = Tuple {
        src: end(0x0a09_0001, 5002),
        dst: end(0x0a09_0002, 5001),
        proto,
        ipv6: false,
    };
    Established {
        zone: *TC_ZONES.start(),
        orig,
        reply: reply(orig.reversed()),
        mark: 7,
        label: 0,
        timeout_s: 600,
        assured: false,
        for_cards: false,
    }
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|w| w == part)
}

#[test]
fn established_connections_are_liberal_and_translated() {
    let plain = bytes(message::established(&established(6, |t| t)));
    // Both directions: CTA_PROTOINFO_TCP_FLAGS_*, IP_CT_TCP_FLAG_BE_LIBERAL under its mask.
    for direction in [4, 5] {
        assert!(has(&plain, &[6, 0, direction, 0, 8, 8, 0, 0]));
    }
    // CTA_NAT_SRC and CTA_NAT_DST.
    let (src, dst) = ([40, 0, 6, 0], [40, 0, 13, 0]);
    assert!(!has(&plain, &src) && !has(&plain, &dst));
    // Replies come to 10.9.0.240, port 600.
    let translated = established(17, |t| Tuple {
        dst: Endpoint {
            addr: 0x0a09_00f0,
            l4: 600,
        },
        ..t
    });
    let sent = bytes(message::established(&translated));
    let ports = [20, 0, 3, 0x80, 6, 0, 1, 0, 2, 88, 0, 0, 6, 0, 2, 0, 2, 88, 0, 0];
    let address = [8, 0, 1, 0, 10, 9, 0, 240, 8, 0, 2, 0, 10, 9, 0, 240];
    assert!(has(&sent, &[&src[..], &address, &ports].concat()));
    assert!(has(&sent, &dst));
    // The tuple of replies without translation: the kernel makes the other one of it.
    let one = &received(&sent)[0];
    assert_eq!((one.entry.reply, one.own), (translated.orig.reversed(), true));
    let for_cards = Established {
        for_cards: true,
        ..translated
    };
    assert!(
        !received(&bytes(message::established(&for_cards)))[0].own,
        "a card's entry has no signature"
    );
    assert_eq!(
        listed(&message::established(&translated)),
        Some(Listed {
            key: translated.key(),
            reply: translated.orig.reversed(),
            timeout_s: Some(600),
        })
    );
    let elsewhere = Established {
        zone: TC_ZONES.start() - 1,
        ..translated
    };
    assert_eq!(listed(&message::established(&elsewhere)), None);
}
