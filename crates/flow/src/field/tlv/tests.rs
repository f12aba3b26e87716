use super::*;
use crate::oxm::{MatchForm, OxmError, pull_match, put_match};
use crate::{FieldId, FieldValue, Match, Subfield};
use proptest::prelude::*;

fn mapping(index: u8, ty: u8, len: u8) -> TlvMapping {
    TlvMapping {
        class: 0x102,
        ty,
        len,
        index,
    }
}

fn map_of(lens: &[(u8, u8)]) -> Arc<TlvMap> {
    let mut map = TlvMap::default();
    for (index, len) in lens {
        map.add(mapping(*index, *index, *len), |_| false).expect("room");
    }
    Arc::new(map)
}

#[test]
fn what_cannot_be_mapped() {
    let mut map = TlvMap::default();
    assert_eq!(map.add(mapping(0, 1, 4), |_| false), Ok(()));
    assert_eq!(map.add(mapping(0, 2, 4), |_| false), Err(TlvError::AlreadyMapped));
    assert_eq!(map.add(mapping(1, 1, 4), |_| false), Err(TlvError::DupEntry));
    assert_eq!(
        map.add(mapping(64, 9, 4), |_| false),
        Err(TlvError::AlreadyMapped)
    );
    assert_eq!(map.add(mapping(1, 2, 124), |_| false), Ok(()));
    assert_eq!(map.add(mapping(2, 3, 124), |_| false), Ok(()));
    assert_eq!(map.add(mapping(3, 4, 8), |_| false), Err(TlvError::TableFull));
    assert_eq!(map.add(mapping(3, 4, 4), |_| false), Ok(()));
    assert_eq!(map.add(mapping(4, 5, 0), |_| false), Ok(()), "takes no room");
    let said: Vec<_> = map.mappings().map(|m| (m.index, m.ty, m.len)).collect();
    assert_eq!(said, [(0, 1, 4), (1, 2, 124), (2, 3, 124), (3, 4, 4), (4, 5, 0)]);
    map.remove(1);
    map.remove(63);
    assert_eq!(map.field(1), None);
    assert_eq!(map.add(mapping(1, 2, 124), |_| false), Ok(()));
}

/// Room in two pieces is enough if what is between them may be moved.
#[test]
fn fields_move_together_unless_they_are_used() {
    let mut map = TlvMap::clone(&map_of(&[(0, 124), (1, 4), (2, 124)]));
    map.remove(0);
    assert_eq!(map.add(mapping(3, 3, 120), |_| false), Ok(()));
    map.remove(3);
    map.remove(1);
    map.add(mapping(1, 1, 4), |_| false).expect("room");
    map.add(mapping(4, 4, 64), |_| false).expect("room");
    map.remove(1);
    let before = map.field(2);
    assert_eq!(
        map.clone().add(mapping(5, 5, 64), |_| true),
        Err(TlvError::TableFull)
    );
    assert_eq!(map.add(mapping(5, 5, 64), |i| i == 2), Ok(()));
    assert_eq!(map.field(2), before, "in use");
}

#[test]
fn texts_and_headers_know_what_the_scope_maps() {
    let present = Match::parse_text("tun_metadata1", None);
    assert_eq!(present, Err("field tun_metadata1 missing value".to_owned()));
    let map = map_of(&[(0, 4), (1, 8), (2, 124), (3, 0)]);
    let _scope = Scope::enter(Some(map.clone()));
    for text in [
        "tun_metadata0=0xb/0xf",
        "tun_metadata1=0x1234567890abcdef",
        "tun_metadata0",
        "tun_metadata0=0,tun_metadata1",
        "tun_metadata3",
    ] {
        let m = Match::parse_text(text, None).expect(text);
        assert_eq!(m.to_string(), text);
        for form in [MatchForm::Nxm, MatchForm::Oxm(4), MatchForm::Oxm(6)] {
            let mut wire = Vec::new();
            put_match(&m, form, &mut wire);
            assert_eq!(pull_match(&wire, true), Ok(m), "{text}");
        }
    }
    let mut absent = Match::any();
    map.field(1).expect("mapped").mask_presence(&mut absent.mask.0);
    assert_eq!(absent.to_string(), "tun_metadata1=NP");
    {
        let _none = Scope::enter(None);
        assert_eq!(absent.to_string(), "");
        assert_eq!(
            pull_match(&[0, 1, 40 << 1, 1, 7], true),
            Err(OxmError::InvalidTlvField)
        );
        assert_eq!(FieldId::by_name("tun_metadata1"), None);
    }
    assert_eq!(FieldId::by_name("tun_metadata01"), None);
    assert!(FieldId::by_oxm_name("NXM_NX_TUN_METADATA3").is_some());
    let sf: Subfield = "tun_metadata2[900..991]".parse().expect("within");
    assert_eq!(sf.to_string(), "NXM_NX_TUN_METADATA2[900..991]");
    assert!("tun_metadata3[]".parse::<Subfield>().is_err());
    assert!("tun_metadata0[0..32]".parse::<Subfield>().is_err());
}

/// A value shorter than its field fills the field's end; of a longer value, the first bytes count.
#[test]
fn values_of_other_lengths() {
    let _scope = Scope::enter(Some(map_of(&[(0, 4)])));
    let text = |wire: &[u8]| pull_match(wire, true).map(|m| m.to_string());
    assert_eq!(text(&[0, 1, 40 << 1, 1, 7]), Ok("tun_metadata0=0x7".into()));
    assert_eq!(
        text(&[0, 1, 40 << 1, 6, 1, 2, 3, 4, 5, 6]),
        Ok("tun_metadata0=0x1020304".into())
    );
    assert_eq!(
        text(&[0, 1, 40 << 1 | 1, 2, 1, 3]),
        Ok("tun_metadata0=0x1/0x3".into())
    );
    assert_eq!(text(&[0, 1, 40 << 1 | 1, 0]), Ok("tun_metadata0".into()));
    assert_eq!(text(&[0, 1, 41 << 1, 1, 7]), Err(OxmError::InvalidTlvField));
    assert_eq!(
        text(&[0, 1, 40 << 1, 1, 7, 0, 1, 40 << 1, 1, 7]),
        Err(OxmError::DupField)
    );
}

proptest! {
    /// Bits of fields are those of the plain twin: the field as a list of bits, the lowest first.
    #[test]
    fn bits(words in 1u8..=31, before in 0u8..8, start: [u8; 32], ofs in 0u16..992, n in 1u16..=128, v: u128) {
        let map = map_of(&[(0, before * 4), (1, words * 4), (2, 4)]);
        let field = map.field(1).expect("mapped");
        let n_bits = u16::from(words) * 32;
        let ofs = ofs % n_bits;
        let n = n.min(n_bits - ofs);
        let mut key = FlowKey::default();
        key.tun_metadata.iter_mut().zip(start.iter().cycle()).for_each(|(to, b)| *to = *b);
        let bits = |k: &FlowKey| -> Vec<bool> {
            let all = field.bytes(k);
            (0..usize::from(n_bits)).map(|i| all[all.len() - 1 - i / 8] >> (i % 8) & 1 != 0).collect()
        };
        let sf = Subfield { field: FieldId::TunMetadata(field), ofs, n_bits: n };
        let mut want = bits(&key);
        let old = (0..n).fold(0u128, |v, i| v | u128::from(want[usize::from(ofs + i)]) << i);
        prop_assert_eq!(sf.get(&key), FieldValue::from_u128(old));
        let untouched = [field.range().start, field.range().end].map(|e| key.tun_metadata[e.min(255)]);
        sf.set(&mut key, FieldValue::from_u128(v));
        (0..n).for_each(|i| want[usize::from(ofs + i)] = v >> i & 1 != 0);
        prop_assert_eq!(bits(&key), want);
        prop_assert!(field.is_present(&key));
        prop_assert_eq!(key.tun_metadata[field.range().end.min(255)], untouched[1]);
        let mut placed = FlowKey::default();
        sf.set(&mut placed, FieldValue::from_u128(v));
        prop_assert_eq!(sf.bytes(FieldValue::from_u128(v)), field.bytes(&placed));
        let mut without = key;
        field.remove(&mut without);
        prop_assert!(!field.is_present(&without) && field.bytes(&without).iter().all(|b| *b == 0));
        let mut m = Match::any();
        sf.set_match(&mut m, FieldValue::from_u128(v));
        prop_assert!(m.matches(&key) && m.has_field(sf.field));
        m.clear_field(sf.field);
        prop_assert_eq!(m, Match::any());
    }

    /// Fields of a map never share a word, however they come and go, and used ones do not move.
    #[test]
    fn places(steps in proptest::collection::vec((0u8..12, 0u8..=31, any::<bool>(), any::<u64>()), 1..60)) {
        let mut map = TlvMap::default();
        for (index, words, add, used) in steps {
            let before = map.clone();
            if add {
                let done = map.add(mapping(index, index, words * 4), |i| used >> i & 1 != 0);
                let free = 64 - before.0.iter().flatten().map(|(_, f)| u32::from(f.words)).sum::<u32>();
                if done.is_ok() {
                    prop_assert!(u32::from(words) <= free);
                } else if before.field(index).is_none() && used == 0 {
                    prop_assert!(u32::from(words) > free, "there is room, and nothing in the way");
                }
            } else {
                map.remove(index);
            }
            let mut seen = 0u64;
            for (m, f) in map.0.iter().flatten() {
                prop_assert_eq!(seen & words_of(*f), 0);
                seen |= words_of(*f);
                prop_assert!(f.range().end <= TLV_SPACE && m.len / 4 == f.words);
                if used >> m.index & 1 != 0 && let Some(old) = before.field(m.index) {
                    prop_assert_eq!(*f, old);
                }
            }
        }
    }
}
