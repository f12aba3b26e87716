//! Headers pushed and popped in any order, against a list of headers. The bytes match the list, and a parse
//! agrees with the executor's offsets.

use crate::exec::{Meta, apply};
use crate::tests::parsed;
use heddle_datapath_api::{Action, DropKind, Masked, NshHeader};
use heddle_flow::{Nsh, packet_type};
use heddle_packet::Packet;
use proptest::prelude::*;

/// A header in front of others, outermost last in the list of them.
#[derive(Clone, Debug)]
enum Layer {
    Ethernet { src: [u8; 6], dst: [u8; 6] },
    Nsh(NshHeader),
    Label(u32),
}

/// An IPv4 packet with a UDP header.
const IP: &[u8] = &[
    0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0x66, 0xcd, 10, 0, 0, 1, 10, 0, 0, 2, 0, 53, 0, 54, 0, 10, 0, 0, 1, 2,
];

/// Packet type and EtherType of a packet with these headers.
fn type_of(layers: &[Layer]) -> u32 {
    match layers.last() {
        Some(Layer::Ethernet { .. }) => packet_type::ETHERNET,
        Some(Layer::Nsh(_)) => packet_type::NSH,
        Some(Layer::Label(_)) => packet_type::MPLS,
        None => packet_type::IPV4,
    }
}

fn nsh_bytes(h: &NshHeader, next: u8) -> Vec<u8> {
    let k = &h.fields;
    let metadata: Vec<u8> = if k.mdtype == 1 {
        k.context().iter().flat_map(|c| c.to_be_bytes()).collect()
    } else {
        h.options.clone()
    };
    let words = u16::try_from(2 + metadata.len() / 4).unwrap();
    let first = u16::from(k.flags) << 12 | u16::from(k.ttl) << 6 | words;
    let mut b = first.to_be_bytes().to_vec();
    b.extend([k.mdtype, next]);
    b.extend(k.path.to_be_bytes());
    b.extend(metadata);
    b
}

/// The packet that has these headers.
fn bytes(layers: &[Layer]) -> Vec<u8> {
    let Some((outer, inner)) = layers.split_last() else {
        return IP.to_vec();
    };
    let behind = type_of(inner);
    let mut b = match outer {
        Layer::Ethernet { src, dst } => [*dst, *src]
            .concat()
            .into_iter()
            .chain(u16::try_from(behind & 0xffff).unwrap().to_be_bytes())
            .collect(),
        Layer::Nsh(h) => {
            let next = match behind {
                packet_type::ETHERNET => 3,
                packet_type::IPV4 => 1,
                _ => 4,
            };
            nsh_bytes(h, next)
        }
        Layer::Label(lse) => lse.to_be_bytes().to_vec(),
    };
    b.extend(bytes(inner));
    b
}

#[derive(Clone, Debug)]
enum Step {
    Push(Layer),
    Pop,
    Set(Masked<Nsh>),
}

fn fields() -> impl Strategy<Value = Nsh> {
    (0_u8..4, 0_u8..64, 1_u8..=2, any::<u32>(), any::<[u32; 4]>()).prop_map(
        |(flags, ttl, mdtype, path, c)| {
            let [c1, c2, c3, c4] = if mdtype == 1 { c } else { [0; 4] };
            Nsh {
                flags,
                ttl,
                mdtype,
                np: 0,
                path,
                c1,
                c2,
                c3,
                c4,
            }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let options = prop::collection::vec(any::<[u8; 4]>(), 0..4).prop_map(|w| w.concat());
    let layer = prop_oneof![
        any::<([u8; 6], [u8; 6])>().prop_map(|(src, dst)| Layer::Ethernet { src, dst }),
        (fields(), options).prop_map(|(fields, options)| {
            let options = if fields.mdtype == 1 { Vec::new() } else { options };
            Layer::Nsh(NshHeader { fields, options })
        }),
        any::<u32>().prop_map(Layer::Label),
    ];
    prop_oneof![
        3 => layer.prop_map(Step::Push),
        2 => Just(Step::Pop),
        1 => (fields(), fields()).prop_map(|(value, mask)| {
            let mask = Nsh { mdtype: 0, ..mask };
            Step::Set(Masked { value: value & mask, mask })
        }),
    ]
}

/// Applies a step to the list, and returns the action that does the same to the packet. `None`: it is
/// impossible.
fn model(layers: &mut Vec<Layer>, step: Step) -> Option<Action> {
    let ty = type_of(layers);
    let action = match step {
        Step::Push(Layer::Ethernet { src, dst }) if ty != packet_type::ETHERNET => {
            layers.push(Layer::Ethernet { src, dst });
            Action::PushEth { src, dst }
        }
        Step::Push(Layer::Nsh(h)) if ty != packet_type::MPLS => {
            layers.push(Layer::Nsh(h.clone()));
            Action::PushNsh(h)
        }
        Step::Push(Layer::Label(lse)) => {
            // Only the label at the bottom has the bottom-of-stack bit.
            let lse = if ty == packet_type::MPLS {
                lse & !0x100
            } else {
                lse | 0x100
            };
            layers.push(Layer::Label(lse));
            Action::AddMpls {
                lse,
                ethertype: 0x8847,
            }
        }
        Step::Pop => match layers.pop()? {
            Layer::Ethernet { .. } => Action::PopEth,
            Layer::Nsh(_) => Action::PopNsh,
            Layer::Label(_) => Action::PopMpls {
                ethertype: match type_of(layers) {
                    packet_type::ETHERNET => 0x6558,
                    ty => u16::try_from(ty & 0xffff).unwrap(),
                },
            },
        },
        Step::Set(m) => {
            let Some(Layer::Nsh(h)) = layers.last_mut() else {
                return None;
            };
            let old = h.fields;
            h.fields = (old & (m.mask ^ Nsh::ONES)) | m.value;
            if old.mdtype != 1 {
                [h.fields.c1, h.fields.c2, h.fields.c3, h.fields.c4] = [0; 4];
            }
            Action::SetNsh(m)
        }
        Step::Push(_) => return None,
    };
    Some(action)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn as_a_list_of_headers(steps in prop::collection::vec(step(), 1..12)) {
        let mut layers = Vec::new();
        let mut p = Packet::from_bytes(IP);
        let (_, mut meta) = parsed(&mut p, packet_type::IPV4, 2);
        for s in steps {
            let before = type_of(&layers);
            let Some(action) = model(&mut layers, s) else { continue };
            let forgetful = matches!(action, Action::PopNsh | Action::PopMpls { .. });
            match apply(&mut p, &mut meta, &action, 0) {
                Ok(()) => {}
                Err(DropKind::Headroom) => return Ok(()),
                Err(e) => prop_assert!(false, "{e:?} of {action:?} on {before:#x}"),
            }
            prop_assert_eq!(p.to_vec(), bytes(&layers));
            prop_assert_eq!(meta.packet_type, type_of(&layers));
            let (key, again) = parsed(&mut p, meta.packet_type, 2);
            if let Some(Layer::Nsh(h)) = layers.last() {
                prop_assert_eq!(Nsh { np: 0, ..key.nsh }, h.fields);
            }
            if forgetful {
                // Offsets that were forgotten are parsed when the packet is recirculated.
                meta = again;
            } else if meta.l3 != u16::MAX && meta.l2_5 == u16::MAX {
                prop_assert_eq!(meta.l3, again.l3);
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_popped(b in prop::collection::vec(any::<u8>(), 0..60), ty in prop::sample::select(vec![0_u32, packet_type::NSH, packet_type::IPV4, packet_type::MPLS, 0xfffe]), offsets in any::<[u16; 3]>()) {
        let ones = Masked { value: Nsh::ONES, mask: Nsh::ONES };
        let nsh = NshHeader { fields: Nsh { mdtype: 2, ..Nsh::default() }, options: vec![0; 244] };
        let list = [
            Action::PopNsh,
            Action::PopEth,
            Action::SetNsh(ones),
            Action::PushNsh(nsh),
            Action::PushEth { src: [1; 6], dst: [2; 6] },
            Action::AddMpls { lse: 1, ethertype: 0x8848 },
            Action::PopMpls { ethertype: 0x6558 },
            Action::SetMpls(Masked { value: 1, mask: 1 }),
            Action::PushMpls { lse: 1, ethertype: 0x8847 },
            Action::PushVlan { tpid: 0x8100, tci: 0x1001 },
            Action::PopVlan,
        ];
        for a in &list {
            let mut p = Packet::from_bytes(&b);
            let [l2_5, l3, l4] = offsets.map(|o| if o % 3 == 0 { u16::MAX } else { o % 80 });
            let mut meta = Meta { l2_5, l3, l4, packet_type: ty, ..Meta::default() };
            let _ = apply(&mut p, &mut meta, a, 0);
        }
    }
}

/// A packet of the wrong kind is dropped by name, not corrupted.
#[test]
fn headers_are_pushed_on_packets_that_can_have_them() {
    let on = |ty: u32, a: Action| {
        let mut p = Packet::from_bytes(&[0; 60]);
        let (_, mut meta) = parsed(&mut p, ty, 2);
        apply(&mut p, &mut meta, &a, 0)
    };
    let eth = || Action::PushEth {
        src: [1; 6],
        dst: [2; 6],
    };
    assert_eq!(on(packet_type::ETHERNET, eth()), Err(DropKind::Header));
    assert_eq!(on(packet_type::IPV4, eth()), Ok(()));
    assert_eq!(on(packet_type::IPV4, Action::PopEth), Err(DropKind::Header));
    assert_eq!(on(packet_type::ETHERNET, Action::PopEth), Ok(()));
    assert_eq!(
        on(packet_type::MPLS, Action::PushNsh(NshHeader::default())),
        Err(DropKind::Header)
    );
    assert_eq!(on(packet_type::ETHERNET, Action::PopNsh), Err(DropKind::NshDecap));
    assert_eq!(on(packet_type::NSH, Action::PopNsh), Err(DropKind::NshDecap));
    let vlan = Action::PushVlan {
        tpid: 0x8100,
        tci: 0x1001,
    };
    assert_eq!(on(packet_type::IPV4, vlan), Err(DropKind::Header));
    let set = Action::SetEth {
        src: Masked::default(),
        dst: Masked::default(),
    };
    assert_eq!(on(packet_type::IPV4, set), Err(DropKind::Header));
}
