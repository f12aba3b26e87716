use super::*;
use crate::cbpf::{AND, JA, LSH, MAX_OPS, OR_X};
use proptest::prelude::*;

/// A frame as the filter sees it.
#[derive(Clone, Debug)]
struct Frame {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    port: u16,
    /// Bytes of IPv4 options, in fours.
    options: u8,
    fragment: u16,
    packet_type: u32,
    /// The tag that was before the frame.
    tci: Option<u16>,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; 12];
        let transport = [
            0x12,
            0x34,
            self.port.to_be_bytes()[0],
            self.port.to_be_bytes()[1],
            0,
            0,
            0,
            0,
        ];
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                out.extend([8, 0, 0x45 + self.options, 0, 0, 0, 0, 0]);
                out.extend(self.fragment.to_be_bytes());
                out.extend([64, self.protocol, 0, 0]);
                out.extend(source.octets());
                out.extend(destination.octets());
                out.extend(vec![1; usize::from(self.options) * 4]);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                out.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, self.protocol, 64]);
                out.extend(source.octets());
                out.extend(destination.octets());
            }
            _ => panic!("two families"),
        }
        out.extend(transport);
        out
    }
}

/// The simple twin of the program.
fn takes(filter: &OuterFilter, f: &Frame) -> bool {
    let whole = f.source.is_ipv6() || f.fragment & 0x1fff == 0;
    f.packet_type == 0
        && f.tci.is_none_or(|tci| tci & 0xfff == 0)
        && whole
        && filter.groups.iter().any(|g| {
            g.v6 == f.source.is_ipv6()
                && g.protocol == f.protocol
                && (g.port == 0 || g.port == f.port)
                && g.local
                    .map_or_else(|| filter.locals.contains(&f.destination), |l| l == f.destination)
                && g.remotes.as_ref().is_none_or(|r| r.contains(&f.source))
        })
}

/// Runs a program as the kernel does.
fn run(program: &[Op], f: &Frame) -> u32 {
    let bytes = f.bytes();
    let load = |at: u32, n: usize| -> Option<u32> {
        if at == PACKET_TYPE {
            return Some(f.packet_type);
        }
        if at == VLAN_TAG_PRESENT {
            return Some(f.tci.is_some().into());
        }
        if at == VLAN_TAG {
            return f.tci.map(u32::from);
        }
        let at = usize::try_from(at).ok()?;
        let bytes = bytes.get(at..at.checked_add(n)?)?;
        Some(bytes.iter().fold(0, |v, b| v << 8 | u32::from(*b)))
    };
    let (mut a, mut x, mut memory) = (0_u32, 0_u32, [None; 16]);
    let mut at = 0;
    loop {
        let (code, yes, no, k) = program[at];
        at += 1;
        let jump = |is: bool| usize::from(if is { yes } else { no });
        let loaded = |v: Option<u32>| v.ok_or(0);
        let step = match code {
            LD_IMM => Ok(k),
            LD_W_ABS => loaded(load(k, 4)),
            LD_H_ABS => loaded(load(k, 2)),
            LD_B_ABS => loaded(load(k, 1)),
            LD_H_IND => loaded(load(k + x, 2)),
            LD_MEM => Ok(memory[k as usize].expect("a word that was stored")),
            AND => Ok(a & k),
            OR_X => Ok(a | x),
            XOR_X => Ok(a ^ x),
            LSH => Ok(a << k),
            LDX_MSH => {
                x = (load(k, 1).expect("a header") & 0xf) * 4;
                Ok(a)
            }
            ST => {
                memory[k as usize] = Some(a);
                Ok(a)
            }
            TAX => {
                x = a;
                Ok(a)
            }
            JA => {
                at += k as usize;
                Ok(a)
            }
            JEQ => {
                at += jump(a == k);
                Ok(a)
            }
            JGE => {
                at += jump(a >= k);
                Ok(a)
            }
            JSET => {
                at += jump(a & k != 0);
                Ok(a)
            }
            RET => return k,
            other => panic!("code {other:x}"),
        };
        match step {
            Ok(value) => a = value,
            Err(code) => return code,
        }
    }
}

const SOCKET: ReturnCodes = ReturnCodes { taken: 1, others: 0 };

fn v4(n: u8) -> IpAddr {
    // Some below and some above the middle of all addresses.
    Ipv4Addr::new(if n.is_multiple_of(2) { 10 } else { 200 }, 0, n / 64, n).into()
}

fn v6(n: u8) -> IpAddr {
    // Different addresses with equal hashes among them.
    let (high, low) = (u16::from(n / 16), u16::from(n % 16));
    Ipv6Addr::new(0x2001, 0xdb8, high, low, low, 0, high, 1).into()
}

fn group(is_v6: bool) -> impl Strategy<Value = OuterGroup> {
    let ip = move |n: u8| if is_v6 { v6(n) } else { v4(n) };
    let kind = prop_oneof![Just((17, 6081)), Just((17, 4789)), Just((6, 7471)), Just((47, 0))];
    let remotes = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..120));
    (kind, proptest::option::of(0..3_u8), remotes).prop_map(move |((protocol, port), local, remotes)| {
        OuterGroup {
            v6: is_v6,
            protocol,
            port,
            local: local.map(ip),
            remotes: remotes.map(|r| r.into_iter().map(ip).collect()),
        }
    })
}

fn filter() -> impl Strategy<Value = OuterFilter> {
    let groups = proptest::collection::vec(any::<bool>().prop_flat_map(group), 0..5);
    (groups, proptest::collection::vec(0..5_u8, 0..4)).prop_map(|(groups, locals)| OuterFilter {
        groups,
        locals: locals.into_iter().flat_map(|n| [v4(n), v6(n)]).collect(),
    })
}

fn frame() -> impl Strategy<Value = Frame> {
    let kind = prop_oneof![4 => Just(17_u8), 1 => Just(6), 2 => Just(47), 1 => Just(1)];
    let port = prop_oneof![Just(6081_u16), Just(4789), Just(7471), Just(53)];
    let rare = (
        prop_oneof![9 => Just(0_u16), 1 => Just(0x2000), 1 => Just(0x2001)],
        0..3_u8,
    );
    let odd = (
        prop_oneof![9 => Just(0_u32), 1 => Just(3)],
        prop_oneof![6 => Just(None), 1 => Just(Some(5)), 2 => Just(Some(0)), 1 => Just(Some(0xf000))],
    );
    (any::<bool>(), any::<u8>(), 0..6_u8, kind, port, rare, odd).prop_map(
        |(is_v6, source, destination, protocol, port, (fragment, options), (packet_type, tci))| {
            let ip = |n| if is_v6 { v6(n) } else { v4(n) };
            Frame {
                source: ip(source),
                destination: ip(destination),
                protocol,
                port,
                options,
                fragment,
                packet_type,
                tci,
            }
        },
    )
}

proptest! {
    #[test]
    fn the_program_takes_what_its_twin_takes(
        filter in filter(),
        frames in proptest::collection::vec(frame(), 64),
    ) {
        let program = filter.program(7, SOCKET).unwrap();
        prop_assert_eq!(program[0], (LD_IMM, 0, 0, 7));
        for frame in frames {
            prop_assert_eq!(run(&program, &frame) == 1, takes(&filter, &frame), "{:?}", frame);
        }
    }
}

fn many(v6: bool, n: u32) -> OuterFilter {
    let ip = |n: u32| -> IpAddr {
        match v6 {
            true => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(n)).into(),
            false => Ipv4Addr::from_bits(0x0a00_0000 + n).into(),
        }
    };
    let group = OuterGroup {
        v6,
        protocol: 17,
        port: 6081,
        local: None,
        remotes: Some((0..n).map(ip).collect()),
    };
    OuterFilter {
        groups: vec![group],
        locals: vec![ip(1 << 20)],
    }
}

#[test]
fn a_thousand_tunnels_have_a_program_and_too_many_have_a_coarse_one() {
    for (v6, n) in [(false, 1000), (false, 3000), (true, 400)] {
        let filter = many(v6, n);
        let program = filter.program(0, SOCKET).unwrap();
        assert!(program.len() <= MAX_OPS, "{}", program.len());
        let frame = |source: IpAddr| Frame {
            source,
            destination: filter.locals[0],
            protocol: 17,
            port: 6081,
            options: 0,
            fragment: 0,
            packet_type: 0,
            tci: None,
        };
        let remotes = filter.groups[0].remotes.clone().unwrap();
        assert!(remotes.iter().all(|ip| run(&program, &frame(*ip)) == 1));
        assert_eq!(run(&program, &frame(filter.locals[0])), 0);
    }
    let filter = many(false, 4000);
    assert!(filter.program(0, SOCKET).is_none());
    assert!(filter.coarse().program(0, SOCKET).is_some());
    assert!(many(true, 1000).program(0, SOCKET).is_none());
}

#[test]
fn the_kernel_takes_the_program() {
    let Ok(socket) = crate::PacketSocket::receiver() else {
        return; // without the right
    };
    for filter in [OuterFilter::default(), many(false, 1000), many(true, 50)] {
        socket.set_filter(&filter).unwrap();
    }
}
