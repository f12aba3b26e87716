//! Packets behind `ct` whose checksums the port does not report as right. Packets with right checksums are
//! tracked as if the port had; packets with wrong ones are invalid.

use super::recirc::under;
use super::{FakePort, Toy, ToyRule, udp};
use crate::{Config, Datapath};
use heddle_conntrack::{CtAction, state};
use heddle_datapath_api::{Action, Engine, PortNo};
use heddle_wire::checksum::checksum;
use heddle_wire::ip::pseudo;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sum {
    Right,
    Wrong,
    /// No checksum: the field is zero.
    None,
}

/// UDP or TCP of these ports, with `payload` bytes behind it.
fn frame(v6: bool, tcp: bool, ports: (u16, u16), sum: Sum, payload: usize) -> Vec<u8> {
    let mut l4 = if tcp {
        // Both sequence numbers 7; ACK; a window.
        let rest = [0, 0, 0, 7, 0, 0, 0, 7, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
        [&ports.0.to_be_bytes()[..], &ports.1.to_be_bytes(), &rest].concat()
    } else {
        let len = u16::try_from(8 + payload).unwrap().to_be_bytes();
        [&ports.0.to_be_bytes()[..], &ports.1.to_be_bytes(), &len, &[0, 0]].concat()
    };
    l4.extend((0..payload).map(|n| u8::try_from(n % 251).unwrap()));
    let len = u16::try_from(l4.len()).unwrap();
    let proto = if tcp { 6 } else { 17 };
    let mut f = udp(0x0a00_0001, 0x0a00_0002, 0, 0)[..34].to_vec();
    f[16..18].copy_from_slice(&(20 + len).to_be_bytes());
    f[23] = proto;
    f[24..26].fill(0);
    let header = checksum(&f[14..34]).to_be_bytes();
    f[24..26].copy_from_slice(&header);
    if v6 {
        let [a, b] = len.to_be_bytes();
        let (src, dst) = ([0xfd; 16], [0xfe; 16]);
        let ip = [&[0x60, 0, 0, 0, a, b, proto, 64][..], &src, &dst].concat();
        f.splice(12..34, [vec![0x86, 0xdd], ip].concat());
    }
    let at = if tcp { 16 } else { 6 };
    let right = pseudo(&f[14..], v6, proto, len.into())
        .unwrap()
        .bytes(&l4)
        .checksum();
    let said = match sum {
        Sum::Right => right,
        Sum::Wrong => right ^ 0x0100,
        Sum::None => 0,
    };
    l4[at..at + 2].copy_from_slice(&said.to_be_bytes());
    f.extend(l4);
    f
}

#[test]
fn unknown_checksums_are_read() {
    let track = Action::Ct(Arc::new(CtAction {
        commit: true,
        ..CtAction::default()
    }));
    let invalid = {
        let mut m = under(1);
        (m.key.ct_state, m.mask.0.ct_state) = (state::INV.into(), state::INV.into());
        m
    };
    let toy = Toy::new(vec![
        ToyRule::new(under(0), vec![track, Action::Recirc(1)]),
        ToyRule::new(invalid, vec![Action::Output(PortNo(4))]),
        ToyRule::new(under(1), vec![Action::Output(PortNo(3))]),
    ]);
    let dp = Datapath::new(Config::default(), toy as _).unwrap();
    let ports: Vec<_> = (1..=4).map(|no| FakePort::new(&format!("p{no}"))).collect();
    for (no, p) in (1..).zip(&ports) {
        dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
    }
    let mut wrong = 0;
    for (v6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        // Twice: a new connection and an existing one; one packet alone, and several in a burst.
        for (n, payload) in [(1_u16, 18), (1, 18), (2, 1), (2, 1401), (3, 0)] {
            for sum in [Sum::Right, Sum::Wrong, Sum::None] {
                let f = frame(v6, tcp, (1000 + n, 80), sum, payload);
                // Only UDP over IPv4 may have no checksum.
                let right = sum == Sum::Right || sum == Sum::None && !v6 && !tcp;
                ports[0].send(vec![f.clone(), f.clone(), f.clone()]);
                ports[0].drained();
                let left = [2, 3].map(|p: usize| ports[p].take());
                let want = if right { [3, 0] } else { [0, 3] };
                assert_eq!(
                    [left[0].len(), left[1].len()],
                    want,
                    "{v6} {tcp} {n} {payload} {sum:?}"
                );
                assert!(left.iter().flatten().all(|l| *l == f));
                wrong += u64::from(!right) * 3;
                // The port's report is trusted.
                ports[1].set_checked(true);
                ports[1].send(vec![f.clone()]);
                ports[1].drained();
                assert!(sum == Sum::None || ports[2].take().len() == 1);
                ports.iter().for_each(|p| drop(p.take()));
            }
        }
    }
    dp.flush_stats();
    let counted = dp
        .coverage()
        .into_iter()
        .find(|(n, _)| *n == "conntrack_l4csum_err");
    assert_eq!(counted.map(|(_, n)| n), Some(wrong));
}
