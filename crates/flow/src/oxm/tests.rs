use super::*;
use proptest::prelude::*;

fn hex(s: &str) -> Vec<u8> {
    let s: String = s.chars().filter(|c| !c.is_whitespace()).collect();
    (0..s.len() / 2)
        .map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).expect("hex"))
        .collect()
}

/// A match of fields that go together, so that any version can carry it.
pub(crate) fn any_match() -> impl Strategy<Value = Match> {
    let protos = prop_oneof![
        Just(""),
        Just("ip"),
        Just("tcp"),
        Just("udp6"),
        Just("icmp"),
        Just("icmp6,icmp_type=135,icmp_code=0"),
        Just("icmp6,icmp_type=136,icmp_code=0"),
        Just("sctp"),
        Just("arp"),
        Just("mpls"),
        Just("dl_type=0x894f,nsh_mdtype=1"),
        Just("packet_type=(1,0x894f),nsh_mdtype=1"),
        Just("tcp6"),
        Just("ct_state=+trk+est"),
        Just("dl_vlan=3"),
    ];
    let pick = (
        proptest::sample::select(FieldId::ALL),
        any::<u128>(),
        any::<Option<u128>>(),
    );
    (protos, proptest::collection::vec(pick, 0..8)).prop_map(|(p, fields)| {
        let mut m = Match::parse_text(p, None).expect("protocol");
        for (f, v, mask) in fields {
            let v = FieldValue::from_u128(v) & f.full_mask();
            let mask = mask
                .map(|m| FieldValue::from_u128(m) & f.full_mask())
                .filter(|m| f.is_mask_valid(*m));
            // A later fragment that is none is no packet.
            let v = if f == FieldId::IpFrag && v.as_u64() == 2 {
                FieldValue::ZERO
            } else {
                v
            };
            let own = f.header(0).is_some() || f.header(6).is_some();
            let sound = f.prereqs_ok(&m.key) && f.info().prereq.ok_for_match(&m) && f.is_value_valid(v);
            // Fields that others need, or that share bits with those put in the other dialect.
            if own && sound && f != FieldId::PacketType && !m.has_field(f) && f != FieldId::CtNwProto {
                m.set_field(f, v, mask);
            }
            if m.mask.0.packet_type == 0 && f.info().prereq != Prereq::None && m.has_field(f) {
                m.mask.0.packet_type = u32::MAX;
            }
        }
        m.normalize();
        m
    })
}

fn errors(b: &str) -> OxmError {
    pull_match(&hex(b), true).expect_err(b)
}

#[test]
fn each_fault_has_its_error() {
    assert_eq!(errors("0000 00"), OxmError::BadLen);
    assert_eq!(errors("00000002 00"), OxmError::BadLen);
    assert_eq!(errors("ffff5406 4f4e46"), OxmError::BadLen);
    assert_eq!(errors("ffff5403 4f4e4600"), OxmError::BadLen);
    assert_eq!(errors("00000003 000001"), OxmError::BadField);
    assert_eq!(errors("8000fe01 00"), OxmError::BadField);
    assert_eq!(errors("80000004 0000ff00"), OxmError::BadValue);
    assert_eq!(errors("80000c02 2000"), OxmError::BadValue);
    assert_eq!(errors("80000a02 894f ffff1405 005ad650 40"), OxmError::BadValue);
    assert_eq!(errors("80000a02 894f ffff0405 005ad650 03"), OxmError::BadValue);
    assert_eq!(errors("ffff0808 005ad650 00001234"), OxmError::BadPrereq);
    assert_eq!(errors("80000108 0000000100000001"), OxmError::BadMask);
    assert_eq!(errors("80001604 0a000001"), OxmError::BadPrereq);
    assert_eq!(errors("00000002 0001 00000002 0001"), OxmError::DupField);
    assert_eq!(errors("00010104 0000000f 0000000e"), OxmError::BadField);
    assert_eq!(errors("00010108 0000000f 0000000e"), OxmError::BadWildcards);
}

#[test]
fn loose_skips_what_it_does_not_know() {
    let m = pull_match(&hex("8000fe01 00 80001604 0a000001"), false).expect("loose");
    assert_eq!(m.key.nw_src, 0x0a00_0001);
}

#[test]
fn cookies() {
    let mut b = Vec::new();
    put_cookie(0x1234, u64::MAX, &mut b);
    assert_eq!(b, hex("00013c08 0000000000001234"));
    assert_eq!(pull_match_cookie(&b, true), Ok((Match::any(), 0x1234, u64::MAX)));
    assert_eq!(pull_match(&b, true), Err(OxmError::BadField));
    let twice = [b.clone(), b].concat();
    assert_eq!(pull_match_cookie(&twice, true), Err(OxmError::DupField));
    let mut b = Vec::new();
    put_cookie(0xff, 0xf, &mut b);
    assert_eq!(b, hex("00013d10 000000000000000f 000000000000000f"));
}

#[test]
fn ethernet_is_said_where_nothing_implies_it() {
    let mut out = Vec::new();
    put_match(
        &Match::parse_text("eth,metadata=1", None).expect("text"),
        MatchForm::Oxm(6),
        &mut out,
    );
    assert_eq!(out, hex("80005804 00000000 80000408 0000000000000001"));
    let mut out = Vec::new();
    put_match(
        &Match::parse_text("in_port=LOCAL,tcp", None).expect("text"),
        MatchForm::Oxm(4),
        &mut out,
    );
    assert_eq!(out, hex("80000004 fffffffe 80000a02 0800 80001401 06"));
}

proptest! {
    #[test]
    fn put_then_pull(m in any_match(), form in prop_oneof![Just(MatchForm::Nxm), (3u8..=6).prop_map(MatchForm::Oxm)]) {
        let mut out = vec![9];
        put_match(&m, form, &mut out);
        let mut want = m;
        // Leave out matches that a dialect lacks: a TCI in NXM is whole, in OXM its priority needs the tag.
        if form != MatchForm::Nxm && want.key.vlans[0].tci & 0x1fff == 0 {
            want.key.vlans[0].tci &= 0x1fff;
            want.mask.0.vlans[0].tci &= 0x1fff;
        }
        let pcp = want.mask.0.vlans[0].tci & 0xe000;
        prop_assume!(form == MatchForm::Nxm || pcp == 0 || (pcp == 0xe000 && want.mask.0.vlans[0].tci & 0x1000 != 0));
        prop_assume!(form == MatchForm::Nxm || pcp == 0 || want.key.vlans[0].present());
        if want.mask.0.ct_nw_proto == 0 {
            (want.key.ct_tp_src, want.key.ct_tp_dst, want.mask.0.ct_tp_src, want.mask.0.ct_tp_dst) = (0, 0, 0, 0);
        }
        // Connection fields come before what they may need; read them loosely.
        let got = pull_match(&out[1..], false);
        prop_assert_eq!(got.map(|g| g.to_string()), Ok(want.to_string()), "{:x?}", &out[1..]);
    }

    #[test]
    fn one_entry(f in proptest::sample::select(FieldId::ALL), v: u128, m: Option<u128>, version in 0u8..7) {
        let form = if version < 3 { MatchForm::Nxm } else { MatchForm::Oxm(version) };
        let m = m.map(|m| FieldValue::from_u128(m) & f.full_mask());
        let v = FieldValue::from_u128(v) & f.full_mask() & m.unwrap_or(FieldValue::ONES);
        let mut out = Vec::new();
        if put_field(f, v, m, form, &mut out) {
            let e = pull_raw(&out).unwrap().0;
            prop_assert_eq!(e, Some(OxmEntry { field: f, value: v, mask: m, consumed: out.len() }));
        } else {
            prop_assert!(out.is_empty() && f.info().nxm.is_empty());
        }
    }

    #[test]
    fn any_bytes_are_read(b: Vec<u8>, strict: bool) {
        let _ = pull_match(&b, strict);
        let _ = pull_match_cookie(&b, strict);
        let _ = pull_raw(&b);
    }

    #[test]
    fn bytes_that_look_like_entries(
        entries in proptest::collection::vec((proptest::sample::select(FieldId::ALL), any::<bool>(), any::<[u8; 32]>(), -1i8..2), 0..6),
    ) {
        let mut b = Vec::new();
        for (f, masked, bytes, off) in entries {
            if put_header(f, masked, MatchForm::Oxm(4), &mut b) {
                let n = (f.info().n_bytes as usize) * (1 + usize::from(masked));
                b.extend_from_slice(&bytes[..n.saturating_add_signed(off.into()).min(32)]);
            }
        }
        if let Ok(m) = pull_match(&b, true) {
            let mut n = m;
            n.normalize();
            prop_assert_eq!(m, n);
        }
    }
}
