use super::*;
use proptest::prelude::*;

#[test]
fn names_and_headers_are_unique() {
    let names: Vec<_> = table::INFO
        .iter()
        .flat_map(|f| std::iter::once(f.name).chain(f.extra_name))
        .collect();
    let set: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(names.len(), set.len());
    let oxms = table::INFO.iter().map(|f| f.nxm.len()).sum::<usize>();
    assert_eq!(BY_OXM.len(), oxms);
    assert_eq!(BY_OXM_NAME.len(), oxms);
    for ((class, number, experimenter), id) in BY_OXM.iter() {
        assert_eq!(FieldId::by_oxm(*class, *number, *experimenter), Some(*id));
    }
    let known = |class| {
        (0..=u8::MAX)
            .filter(move |n| FieldId::by_oxm(class, *n, 0).is_some())
            .count()
    };
    let dense: usize = DENSE_CLASSES.iter().copied().map(known).sum();
    assert_eq!(
        dense,
        BY_OXM
            .keys()
            .filter(|(class, ..)| DENSE_CLASSES.contains(class))
            .count()
    );
    for (i, f) in FieldId::ALL.iter().enumerate() {
        assert_eq!(table::INFO[i].id, *f);
        assert_eq!(f.info().id, *f);
        assert_eq!(FieldId::by_name(f.name()), Some(*f));
        assert!(u32::from(f.info().n_bytes) * 8 >= u32::from(f.info().n_bits));
    }
}

#[test]
fn preferred_headers() {
    let name = |f: FieldId, v| f.header(v).map(|h| h.name);
    assert_eq!(name(FieldId::TunId, 0), Some("NXM_NX_TUN_ID"));
    assert_eq!(name(FieldId::TunId, 4), Some("OXM_OF_TUNNEL_ID"));
    assert_eq!(name(FieldId::TcpFlags, 0), Some("NXM_NX_TCP_FLAGS"));
    assert_eq!(name(FieldId::TcpFlags, 4), Some("ONFOXM_ET_TCP_FLAGS"));
    assert_eq!(name(FieldId::TcpFlags, 6), Some("OXM_OF_TCP_FLAGS"));
    assert_eq!(name(FieldId::Xreg0, 0), Some("OXM_OF_PKT_REG0"));
    assert_eq!(name(FieldId::SkbPriority, 0), None);
    assert_eq!(name(FieldId::DpHash, 6), Some("NXM_NX_DP_HASH"));
    assert_eq!(
        FieldId::InPort.header(0).map(|h| h.header(false)),
        Some(0x0000_0002)
    );
    assert_eq!(FieldId::Reg1.header(0).map(|h| h.header(true)), Some(0x0001_0308));
}

#[test]
fn subfields_read_and_print() {
    for (text, want) in [
        ("NXM_NX_REG0[0..15]", "NXM_NX_REG0[0..15]"),
        ("reg0[3]", "NXM_NX_REG0[3]"),
        ("eth_src[]", "NXM_OF_ETH_SRC[]"),
        ("xreg1", "OXM_OF_PKT_REG1[]"),
        ("vlan_vid[0..11]", "OXM_OF_VLAN_VID[]"),
    ] {
        let sf: Subfield = text.parse().expect(text);
        assert_eq!(sf.to_string(), want);
        assert_eq!(want.parse::<Subfield>(), Ok(sf));
    }
    for bad in [
        "reg0[32]",
        "reg0[5..3]",
        "reg0[",
        "reg0[x]",
        "nope[]",
        "reg0[]x",
        "",
    ] {
        assert!(bad.parse::<Subfield>().is_err(), "{bad}");
    }
    let (sf, rest) = Subfield::parse_prefix("reg0[1..2]->reg1[]").expect("prefix");
    assert_eq!((sf.ofs, sf.n_bits, rest), (1, 2, "->reg1[]"));
}

#[test]
fn vlan_fields_keep_the_present_bit() {
    let mut k = FlowKey::default();
    FieldId::DlVlanPcp.set(&mut k, FieldValue::from_u64(5));
    assert_eq!((k.vlans[0].tci, k.vlans[0].tpid), (0xb000, 0x8100));
    FieldId::DlVlan.set(&mut k, FieldValue::from_u64(9));
    assert_eq!(k.vlans[0].tci, 0xb009);
    FieldId::VlanTci.set(&mut k, FieldValue::ZERO);
    assert_eq!(k, FlowKey::default());
    let mut m = Match::any();
    m.set_field(FieldId::DlVlan, FieldValue::from_u64(0xffff), None);
    assert_eq!((m.key.vlans[0].tci, m.mask.0.vlans[0].tci), (0, 0xffff));
}

#[test]
fn every_member_of_the_key_is_reached_by_a_field() {
    // Members without a match field: parts that only datapath keys have.
    let mut all = FlowMask::default();
    for f in FieldId::ALL {
        table::exact(*f, &mut all.0);
    }
    let FlowKey {
        tun_flags,
        vlans,
        mpls_lse,
        tun_present,
        tun_metadata,
        _pad1,
        _pad2,
        _pad3,
        _pad4,
        ..
    } = &mut all.0;
    *tun_flags = u16::MAX;
    assert_eq!(
        (*vlans, *mpls_lse),
        ([Vlan { tpid: 0, tci: 0xffff }, Vlan::default()], [u32::MAX, 0, 0])
    );
    *vlans = [Vlan {
        tpid: u16::MAX,
        tci: u16::MAX,
    }; 2];
    *mpls_lse = [u32::MAX; 3];
    (*_pad1, *_pad2, *_pad3, *_pad4) = (u8::MAX, u16::MAX, u32::MAX, u16::MAX);
    // Fields of a map reach these members.
    (*tun_present, *tun_metadata) = (u64::MAX, [0xff; crate::key::TLV_SPACE]);
    all.0.ct_state = u32::MAX;
    all.0.nw_frag = u8::MAX;
    assert!(all.words().iter().all(|w| *w == u64::MAX), "{all:x?}");
}

use crate::key::Vlan;

fn field() -> impl Strategy<Value = FieldId> {
    proptest::sample::select(FieldId::ALL)
}

proptest! {
    #[test]
    fn set_then_get(f in field(), v: u128, words: [u64; 8]) {
        let mut k = FlowKey::default();
        for (w, x) in k.words_mut().iter_mut().zip(words.iter().cycle()) {
            *w = *x;
        }
        let v = FieldValue::from_u128(v & f.info().valid);
        prop_assume!(f.is_value_valid(v));
        f.set(&mut k, v);
        prop_assert_eq!(f.get(&k), v);
        let before = k;
        f.set(&mut k, v);
        prop_assert_eq!(before, k);
    }

    #[test]
    fn masked_set_changes_only_the_mask(f in field(), a: u128, b: u128, m: u128) {
        let ok = |v| FieldValue::from_u128(v & f.info().valid);
        let (a, b, m) = (ok(a), ok(b), ok(m));
        prop_assume!(f.info().style != Style::OfPort32);
        let mut k = FlowKey::default();
        f.set(&mut k, a);
        f.set_masked(&mut k, b, m);
        prop_assert_eq!(f.get(&k), (a & !m) | (b & m));
    }

    #[test]
    fn match_field_round_trip(f in field(), v: u128, m: u128) {
        let (v, m) = (FieldValue::from_u128(v & f.info().valid), FieldValue::from_u128(m & f.info().valid));
        prop_assume!(f.is_value_valid(v));
        let mut x = Match::any();
        x.set_field(f, v, None);
        prop_assert_eq!(x.get_field(f), (v, f.full_mask()));
        let mut n = x;
        n.normalize();
        prop_assert_eq!(n, x);
        x.clear_field(f);
        prop_assert_eq!(x, Match::any());
        if f.info().maskable == Maskable::Any {
            x.set_field(f, v, Some(m));
            prop_assert_eq!(x.get_field(f), (v & m, m));
        }
    }

    #[test]
    fn mask_only_grows(f in field(), a: u128, b: u128) {
        let mut m = FlowMask::default();
        f.set_mask(&mut m, FieldValue::from_u128(a));
        let before = m;
        f.set_mask(&mut m, FieldValue::from_u128(b));
        prop_assert!(m.contains(&before));
    }

    #[test]
    fn subfield_set_then_get(f in field(), a: u16, n: u16, v: u128) {
        let w = f.info().n_bits;
        let ofs = a % w;
        let sf = Subfield { field: f, ofs, n_bits: 1 + n % (w - ofs) };
        prop_assert!(sf.is_valid());
        prop_assume!(f.info().style != Style::OfPort32 && f != FieldId::IpDscp);
        let mut k = FlowKey::default();
        let v = FieldValue::from_u128(v);
        sf.set(&mut k, v);
        prop_assert_eq!(sf.place(sf.get(&k)), sf.place(v) & f.full_mask());
        prop_assert_eq!(sf.to_string().parse::<Subfield>(), Ok(sf));
    }

    /// A run reads, writes and counts the bits of the table's row, in whole fields and in parts of them.
    #[test]
    fn runs_are_where_the_fields_are(f in field(), a: u16, n: u16, v: u128, words: [u64; 8]) {
        let w = f.info().n_bits;
        let ofs = a % w;
        let sf = Subfield { field: f, ofs, n_bits: 1 + n % (w - ofs) };
        let Some(run) = sf.run() else {
            return Ok(());
        };
        let mut k = FlowKey { tun_present: 1, ..FlowKey::default() };
        for (w, x) in k.words_mut().iter_mut().zip(words.iter().cycle()) {
            *w = *x;
        }
        // Bits of the member that are not the field's are zero.
        let old = table::get(f, &k);
        table::set(f, &mut k, old);
        let bits = sf.mask().as_u128() & f.info().valid;
        prop_assert_eq!(u128::from(run.get(&k)), (old & bits) >> ofs);
        let mut slow = k;
        table::set(f, &mut slow, old & !bits | v << ofs & bits);
        run.set(&mut k, FieldValue::from_u128(v).as_u64());
        prop_assert_eq!(k, slow);
        let (mut mask, mut slow) = (FlowMask::default(), FlowMask::default());
        run.count(&mut mask);
        table::set_mask(f, &mut slow.0, bits);
        prop_assert_eq!(mask, slow);
    }
}

#[test]
fn fields_that_are_no_runs() {
    let without = FieldId::ALL.iter().filter(|f| f.info().run.is_none());
    let without: Vec<_> = without.map(|f| f.name()).collect();
    // Kept as bytes, or wider than a word; ports in two forms; tags and labels.
    let (wide, ports, stacked) = (
        "tun_ipv6_src tun_ipv6_dst ct_label ct_ipv6_src ct_ipv6_dst xxreg0 xxreg1 xxreg2 xxreg3 eth_src eth_dst \
         ipv6_src ipv6_dst arp_sha arp_tha nd_target nd_sll nd_tll",
        "in_port_oxm actset_output",
        "vlan_tci dl_vlan vlan_vid dl_vlan_pcp vlan_pcp mpls_label mpls_tc mpls_bos mpls_ttl",
    );
    let expected = format!("{wide} {ports} {stacked}");
    let sorted = |mut names: Vec<&str>| {
        names.sort_unstable();
        names.join(" ")
    };
    assert_eq!(sorted(without), sorted(expected.split(' ').collect()));
}
