//! Text replaced in a packet, against a packet that is built with that text from the start.

use super::*;
use crate::counters::WorkerCounters;
use heddle_conntrack::{Config, Conntrack, CtAction, CtHelper, CtNat, NatEnd, NatHow, NatRange, Verdict};
use proptest::prelude::*;

/// A TCP segment with right checksums; `partial`: the checksum is left to a device.
fn segment(ipv6: bool, numbers: (u32, u32), text: &[u8], pad: usize, partial: bool) -> Packet {
    let mut l4 = vec![0x0f, 0xa0, 0, 21];
    l4.extend(numbers.0.to_be_bytes());
    l4.extend(numbers.1.to_be_bytes());
    l4.extend([0x50, 0x18, 0x10, 0, 0, 0, 0, 0]);
    l4.extend(text);
    let len = u32::try_from(l4.len()).unwrap();
    let (src, dst) = ([0xfd; 16], [0xfc; 16]);
    let pseudo = if ipv6 {
        Sum::ZERO.pseudo_v6(&src, &dst, proto::TCP, len)
    } else {
        Sum::ZERO.pseudo_v4(0x0a01_0101, 0x0a01_0102, proto::TCP, len)
    };
    let sum = if partial {
        pseudo.folded()
    } else {
        pseudo.bytes(&l4).checksum()
    };
    l4[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut f = vec![2; 12];
    if ipv6 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend(u16::try_from(len).unwrap().to_be_bytes());
        f.extend([proto::TCP, 64]);
        f.extend(src);
        f.extend(dst);
    } else {
        f.extend([8, 0, 0x45, 0]);
        f.extend(u16::try_from(20 + len).unwrap().to_be_bytes());
        f.extend([0, 1, 0x40, 0, 64, proto::TCP, 0, 0, 10, 1, 1, 1, 10, 1, 1, 2]);
        let sum = checksum(&f[14..]).to_be_bytes();
        f[24..26].copy_from_slice(&sum);
    }
    let l4_at = f.len();
    f.extend(l4);
    f.extend(vec![0; pad]);
    let mut p = Packet::from_bytes(&f);
    if partial {
        p.offload.csum = Csum::Partial {
            start: u16::try_from(l4_at).unwrap(),
            offset: 16,
        };
    }
    p.in_port = 3;
    p
}

fn at(ipv6: bool, text: &[u8]) -> Layout {
    let l4 = if ipv6 { 54 } else { 34 };
    Layout {
        l3: 14,
        l4,
        ipv6,
        payload: l4 + 20,
        end: l4 + 20 + text.len(),
    }
}

proptest! {
    #[test]
    fn as_if_made_so(
        ipv6: bool, partial: bool, numbers in any::<(u32, u32)>(), shifts in (-9_i32..9, -9_i32..9), pad in 0_usize..8,
        text in prop::collection::vec(any::<u8>(), 1..300), cut in any::<(prop::sample::Index, prop::sample::Index)>(),
        new in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let (a, b) = (cut.0.index(text.len()), cut.1.index(text.len()));
        let range = a.min(b)..a.max(b);
        let mut p = segment(ipv6, numbers, &text, pad, partial);
        let place = at(ipv6, &text);
        let edit = Edit { seq: shifts.0, ack: shifts.1, ..Edit::default() };
        renumber(&mut p, place, &edit);
        let shifted = (numbers.0.wrapping_add_signed(shifts.0), numbers.1.wrapping_add_signed(shifts.1));
        let same = segment(ipv6, shifted, &text, pad, partial);
        prop_assert!(sums_agree(&p, &same, place.l4 + 16));
        replace(&mut p, place, range.clone(), &new);
        let mut want = text.clone();
        want.splice(range, new);
        let same = segment(ipv6, shifted, &want, pad, partial);
        prop_assert!(sums_agree(&p, &same, place.l4 + 16));
        prop_assert_eq!((p.in_port, p.offload), (3, same.offload));
    }
}

/// Equal but for the two forms of zero that a sum may have.
fn sums_agree(a: &Packet, b: &Packet, sum: usize) -> bool {
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    let whole = |v: &mut Vec<u8>| {
        let n = u16::from_be_bytes([v[sum], v[sum + 1]]);
        v[sum..sum + 2].fill(0);
        n % 0xffff
    };
    (whole(&mut a), &a) == (whole(&mut b), &b)
}

/// A message whose address is translated, through the tracker: the packet gets longer, with right checksums.
#[test]
fn a_message_is_rewritten() {
    let tracker = Conntrack::new(Config {
        capacity: 1 << 10,
        max_conns: 100,
        seed: 1,
    })
    .unwrap();
    let counters = WorkerCounters::default();
    let ct = Ct {
        tracker: &tracker,
        counts: &counters.ct,
        now_ms: 1000,
    };
    let one = "10.1.1.240".parse().unwrap();
    let action = CtAction {
        commit: true,
        helper: Some(CtHelper::Ftp),
        nat: Some(CtNat {
            new: Some(NatRange {
                end: NatEnd::Src,
                addresses: Some((one, one)),
                ports: None,
                how: NatHow::Any,
                persistent: false,
            }),
        }),
        ..CtAction::default()
    };
    let text = b"PORT 10,1,1,1,16,0\r\n";
    let mut p = segment(false, (100, 500), text, 0, false);
    let meta = Meta {
        l3: 14,
        l4: 34,
        proto: proto::TCP,
        ..Meta::default()
    };
    let subject = view(&p, &meta, None, &|| true).unwrap().read().unwrap();
    let hash = tracker.hash(&subject.tuple, 0);
    let mut known = CtState::default();
    let reading = heddle_conntrack::ReadGuard::begin();
    let mut verdict = Verdict::default();
    let packet = heddle_conntrack::CtPacket {
        now_ms: 1000,
        subject: &subject,
        hash,
        action: &action,
        known: &mut known,
        verdict: &mut verdict,
    };
    tracker.track(&reading, tracker.guess(hash), packet);
    follow(&ct, verdict.control.unwrap(), &mut p, &meta, &mut known);
    let same = segment(false, (100, 500), b"PORT 10,1,1,240,16,0\r\n", 0, false);
    assert_eq!(p.to_vec(), same.to_vec());
    let mut p = segment(false, (120, 500), b"PORT 10,1,1,9,16,0\r\n", 0, false);
    let before = p.to_vec();
    follow(&ct, verdict.control.unwrap(), &mut p, &meta, &mut known);
    assert_eq!(known.state & state::INV, state::INV);
    assert_ne!(p.to_vec(), before, "shifted all the same");
}
