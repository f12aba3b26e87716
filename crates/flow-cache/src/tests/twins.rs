//! Compares optimised structures with plain ones.

use super::guess::common_of;
use super::{Actions, Keys, small_cache};
use crate::burst::LookupKeys;
use crate::cache::{Cache, LookupContext};
use crate::compact::{CompactKey, CompactMask, Family, Frame, SameKey, VIEW, context_mask};
use crate::events::RING;
use crate::program_table::NO_PROGRAM;
use crate::records::Records;
use crate::store::NO_SLOT;
use heddle_datapath_api::{Action, Generations, Translation};
use heddle_flow::extract::{Hint, extract};
use heddle_flow::{FlowKey, FlowMask};
use heddle_simd::hash::HashKey;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Keys with few values per field, so that they collide. Some are ordinary, some odd, some have metadata.
fn key() -> impl Strategy<Value = FlowKey> {
    (
        0_u32..3,
        0_u32..4,
        0_u32..4,
        0_u16..3,
        0_u16..3,
        0_u8..4,
        0_u8..12,
        0_u8..2,
    )
        .prop_map(|(in_port, src, dst, sport, dport, kind, odd, vlan)| {
            let mut k = FlowKey {
                in_port,
                tp_src: sport,
                tp_dst: dport,
                nw_ttl: 64,
                ..FlowKey::default()
            };
            k.dl_src[5] = 1;
            k.dl_type = 0x0800;
            k.nw_proto = [6, 17, 1, 50][usize::from(kind)];
            (k.nw_src, k.nw_dst) = (src, dst);
            if vlan == 1 {
                k.vlans[0] = heddle_flow::Vlan {
                    tpid: 0x8100,
                    tci: 0x1005,
                };
            }
            match odd {
                0 => k.recirc_id = 1,
                1 => {
                    k.dl_type = 0x86dd;
                    (k.nw_src, k.nw_dst) = (0, 0);
                    k.ipv6_src[0] = u8::try_from(src).unwrap();
                    k.ipv6_dst[15] = u8::try_from(dst).unwrap();
                }
                2 => k.nw_frag = 1,
                3 => (k.dl_type, k.arp_sha[0]) = (0x0806, u8::try_from(sport).unwrap()),
                4 => (k.recirc_id, k.dp_hash) = (1 + src % 2, dst),
                5 => (k.recirc_id, k.ct_state, k.ct_mark) = (1, 0x21, src),
                6 => (k.tun_id, k.tun_src) = (u64::from(dst), 7),
                7 => {
                    (k.tun_present, k.tun_id) = (u64::from(src), 5);
                    k.tun_metadata[3] = u8::try_from(src.min(1) * dst).unwrap();
                }
                _ => {}
            }
            k
        })
}

/// Whether the compact key has all bits of a key.
fn is_compact(key: &FlowKey) -> bool {
    let family = CompactKey::of(key, 0).family();
    let odd = key
        .words()
        .iter()
        .zip(context_mask(family).words())
        .any(|(w, o)| w & o != 0);
    !odd && !family.is_odd()
}

fn masks() -> Vec<FlowMask> {
    let part = |f: &dyn Fn(&mut FlowKey)| {
        let mut m = FlowMask::default();
        f(&mut m.0);
        m
    };
    let ones = [u32::MAX; 2];
    vec![
        part(&|k| k.in_port = ones[0]),
        part(&|k| (k.in_port, k.nw_src) = (ones[0], 2)),
        part(&|k| (k.nw_src, k.nw_dst) = (ones[0], ones[1])),
        part(&|k| (k.nw_dst, k.tp_dst) = (1, 0xffff)),
        part(&|k| (k.recirc_id, k.ipv6_src) = (ones[0], [0xff; 16])),
        part(&|k| (k.nw_frag, k.nw_proto) = (3, 0xff)),
        part(&|k| (k.dp_hash, k.ct_mark) = (1, ones[0])),
        part(&|k| (k.ct_state, k.nw_dst) = (0x20, ones[0])),
        part(&|k| (k.tun_id, k.tp_dst) = (u64::MAX, 0xffff)),
        part(&|k| {
            (k.tun_present, k.tun_metadata[3]) = (1, 3);
            (k.dl_type, k.arp_sha) = (0xffff, [0xff; 6]);
        }),
    ]
}

/// Frames with random tags, IP version, protocol and other bytes.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let proto = prop::sample::select(vec![1_u8, 6, 17, 58, 132, 0, 44]);
    (
        0_usize..3,
        any::<bool>(),
        proto,
        prop::collection::vec(any::<u8>(), 120),
    )
        .prop_map(|(tags, v6, proto, junk)| {
            let mut f = junk[..12].to_vec();
            for i in 0..tags {
                f.extend([
                    if i == 0 { 0x88 } else { 0x81 },
                    if i == 0 { 0xa8 } else { 0 },
                    junk[12 + i],
                    junk[14 + i],
                ]);
            }
            let payload = &junk[60..];
            let n = u8::try_from(payload.len()).unwrap();
            if v6 {
                f.extend([
                    0x86,
                    0xdd,
                    0x60 | junk[20] & 0xf,
                    junk[21],
                    junk[22],
                    junk[23],
                    0,
                    n,
                    proto,
                    junk[24],
                ]);
                f.extend(&junk[25..57]);
            } else {
                f.extend([
                    8,
                    0,
                    0x45,
                    junk[20],
                    0,
                    20 + n,
                    1,
                    2,
                    0x40,
                    0,
                    junk[21],
                    proto,
                    0,
                    0,
                ]);
                f.extend(&junk[25..33]);
            }
            f.extend(payload);
            let at = f.len() - payload.len();
            if proto == 6 {
                f[at + 12] = f[at + 12] & 0xf | 0x50;
            }
            f
        })
}

proptest! {
    /// Reading the compact key from bytes gives the same as the full parser. It succeeds for all ordinary
    /// packets.
    #[test]
    fn reading_is_parsing(
        frame in frame(),
        changes in prop::collection::vec((0_usize..80, any::<u8>()), 0..3),
        cut in 0_usize..160,
        shown in 0_usize..300,
        vlan_limit in 1_u8..3,
    ) {
        let mut bytes = frame;
        for (i, b) in changes {
            if let Some(to) = bytes.get_mut(i) { *to = b; }
        }
        // The packet is cut short or padded, and only its head is in the view.
        bytes.resize(if cut < 80 { bytes.len() + cut / 8 } else { cut }, 0xee);
        let head = shown.min(bytes.len());
        let mut window = [0x5a; VIEW];
        let n = head.min(VIEW);
        window[..n].copy_from_slice(&bytes[..n]);
        let read = CompactKey::read(&window, Frame { head, total: bytes.len(), origin: 7, vlan: vlan_limit > 0 });
        let mut key = FlowKey::default();
        let hint = Hint { total_len: bytes.len(), packet_type: 0, vlan_limit };
        let layers = extract(&bytes[..head], &hint, &mut key);
        key.in_port = 7;
        let plain = CompactKey::of(&key, 7);
        let usual = matches!(key.nw_proto, 1 | 6 | 17 | 58) && is_compact(&key);
        if let Some(read) = read {
            prop_assert!(is_compact(&key));
            prop_assert_eq!(read, plain);
            prop_assert_eq!(layers.oddity, None);
            prop_assert_eq!((read.l3(), read.l4()), (layers.l3, layers.l4));
            prop_assert_eq!((read.proto(), read.tcp_flags()), (key.nw_proto, key.tcp_flags));
        } else if usual && layers.oddity.is_none() {
            let (l3, v6) = (usize::from(layers.l3), key.dl_type == 0x86dd);
            let unusual = layers.l4 - layers.l3 != if v6 { 40 } else { 20 }
                || bytes[l3] >> 4 != if v6 { 6 } else { 4 }
                || key.nw_proto == if v6 { 1 } else { 58 }
                || v6 && key.nw_proto == 58 && matches!(key.tp_src, 135 | 136);
            prop_assert!(unusual, "{:?}", key);
        }
    }

    /// Bytes that are no part of the key may differ.
    #[test]
    fn packets_of_a_flow_are_described_as_they_are(mut bytes in frame(), tcp in any::<bool>(), junk in any::<[u8; 16]>()) {
        bytes.resize(80, 0);
        bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 1, 2, 0x40, 0, 64, if tcp { 6 } else { 17 }]);
        bytes[46] = 0x50;
        let frame = Frame { head: 80, total: 80, origin: 7, vlan: true };
        let window = |b: &[u8]| <[u8; VIEW]>::try_from(b).unwrap();
        let again = SameKey::of(&window(&bytes), frame).expect("one of those that this is for");
        let parts = [(18, 2), (24, 2), (38, 8), (48, 4)];
        for (i, n) in parts {
            bytes[i..i + n].copy_from_slice(&junk[..n]);
        }
        prop_assert!(again.is(&window(&bytes), frame));
        let elsewhere = Frame { origin: 8, ..frame };
        prop_assert!(!again.is(&window(&bytes), elsewhere));
        let short = Frame { total: 59, head: 59, ..frame };
        prop_assert!(!again.is(&window(&bytes), short));
    }

    /// Compact keys and context bits are equal exactly when full keys are.
    #[test]
    fn compact_keys_are_faithful(a in key(), b in key(), flip in 0..heddle_flow::N_WORDS * 64) {
        let rest = |key: &FlowKey| -> Vec<u64> {
            let mask = context_mask(CompactKey::of(key, 0).family());
            key.words().iter().zip(mask.words()).map(|(w, o)| w & o).collect()
        };
        let origin = |key: &FlowKey| key.in_port * 8 + key.recirc_id;
        let all = |key: &FlowKey| (CompactKey::of(key, origin(key)), rest(key));
        prop_assert_eq!(all(&a) == all(&b), a == b);
        if is_compact(&a) {
            let mut whole = CompactKey::of(&a, 0).whole();
            (whole.in_port, whole.recirc_id) = (a.in_port, a.recirc_id);
            prop_assert_eq!(whole, a);
        }
        let mut near = a;
        near.words_mut()[flip / 64] ^= 1 << (flip % 64);
        let options = near.tun_present == a.tun_present || near == a;
        if options && (near.in_port, near.recirc_id) == (a.in_port, a.recirc_id) && near.used() != a.used() {
            prop_assert_ne!(all(&a), all(&near));
        }
    }

    /// Masking a compact key equals masking the full one, and the expansion returns the masked fields.
    #[test]
    fn compact_masks_are_faithful(a in key(), b in key(), which in 0_usize..11, bits in any::<[u64; 4]>()) {
        let mut mask = masks().get(which).copied().unwrap_or_default();
        // Some more bits, anywhere.
        for b in bits {
            mask.words_mut()[usize::try_from(b % heddle_flow::N_WORDS as u64).unwrap()] |= b;
        }
        (mask.0.in_port, mask.0.recirc_id) = (u32::MAX, u32::MAX);
        // A tag's EtherType counts as a whole.
        for v in &mut mask.0.vlans { v.tpid = if v.tpid == 0 { 0 } else { u16::MAX }; }
        if is_compact(&a) && is_compact(&b) && (a.recirc_id, b.recirc_id) == (0, 0) {
            let (x, y) = (CompactKey::of(&a, a.in_port), CompactKey::of(&b, b.in_port));
            let m = CompactMask::of(&mask, x.is_v6());
            let mut back = x.masked(&m).expand(&mask);
            back.in_port = a.in_port;
            prop_assert_eq!(back, a.masked(&mask));
            let same = (0..8).all(|i| (x.words()[i] ^ y.words()[i]) & m.words()[i] == 0);
            let masked = x.masked(&m);
            prop_assert_eq!(m.same(|i| masked.words()[i], &y), same);
            let family = mask.0.dl_type == 0 && a.dl_type != b.dl_type;
            prop_assert_eq!(same, a.equal_under(&b, &mask) && !family);
            if same {
                let k = HashKey::random();
                prop_assert_eq!(m.hash(&x, &k, 7), m.hash(&y, &k, 7));
            }
        }
    }

    /// The cache finds an entry exactly when a linear search does, in bursts, with insertions, removals and a
    /// limit of masks. The events to the revalidator are complete.
    #[test]
    fn cache_is_a_linear_list(
        bursts in prop::collection::vec((prop::collection::vec(key(), 1..20), 0_usize..11, any::<u16>()), 1..60),
        max_masks in 0_usize..7,
        always in any::<bool>(),
    ) {
        let (mut cache, mut records) = small_cache(max_masks);
        cache.set_inv_prob(always.then_some(1));
        let mut list: Vec<Plain> = Vec::new();
        let mut counts = HashMap::new();
        for (keys, what, r) in bursts {
            let parsed = Keys::of(&mut cache, &keys);
            let generations = Generations::default();
            let lookup = LookupContext { now_ms: 5, any: 1, generations: &generations };
            let common = cache.find(&parsed, &lookup);
            prop_assert_eq!(common, common_of(&cache, &parsed));
            for (i, key) in keys.iter().enumerate() {
                let found = cache.found(i);
                let slot = found.slot;
                let plain = list.iter().find(|p| p.matches(key));
                prop_assert_eq!(slot != NO_SLOT, plain.is_some());
                let Some(e) = cache.entry(slot) else { continue };
                let got = list.iter().find(|p| p.slot == slot).expect("found only what is there");
                prop_assert!(got.matches(key));
                prop_assert_eq!(cache.subtable(e).unwrap().mask, got.mask);
                // The lookup counts an entry exactly when it returns the program.
                let counted = found.program != NO_PROGRAM;
                prop_assert!(!counted || Some(found.program) == cache.current(slot, &lookup));
                counts.entry(slot).and_modify(|n| *n += u64::from(counted)).or_insert(u64::from(counted));
            }
            for p in &list {
                let packets = cache.entry(p.slot).unwrap().read().unwrap().counts.packets;
                prop_assert_eq!(packets, counts.get(&p.slot).copied().unwrap_or(0));
            }
            let key = &keys[0];
            let sought = parsed.sought(0).unwrap();
            let missing = !list.iter().any(|p| p.matches(key));
            if let Some(mask) = masks().get(what).filter(|_| missing) {
                let mut t = Translation { mask: *mask, ..Translation::default() };
                t.actions.push(Action::Recirc(u32::from(r % 3)));
                prop_assert!(cache.insert(sought, &mut t, 1, 5).is_some());
                prop_assert_eq!(cache.find_fresh(sought), cache.find_one(sought));
                let slot = cache.find_one(sought).expect("found from now on");
                let held = Arc::clone(cache.subtable(cache.entry(slot).unwrap()).unwrap());
                let mut want = *mask;
                (want.0.in_port, want.0.recirc_id) = (u32::MAX, u32::MAX);
                prop_assert!(held.mask.contains(&want));
                list.push(Plain { key: *key, mask: held.mask, family: held.family, slot });
            } else if r < 20_000 && !list.is_empty() {
                let gone = list.remove(usize::from(r) % list.len());
                counts.remove(&gone.slot);
                let id = cache.entry(gone.slot).unwrap().id();
                cache.evict_id(gone.slot, id);
                // Evicting twice does no harm.
                cache.evict_id(gone.slot, id);
            } else if r > 60_000 {
                cache.tidy();
            }
            cache.free_evicted(usize::MAX);
            let known = seen(&mut records);
            prop_assert_eq!(known.len(), list.len());
            for p in &list {
                let reported = known.get(&p.slot).expect("told of");
                // The expanded key may differ in bits outside of the mask.
                prop_assert!(reported.1 == p.mask && reported.0.equal_under(&p.key, &p.mask));
            }
            // Three ports, three recirculation ids, four families.
            prop_assert!(cache.n_masks() <= 36 * (max_masks + 1));
            prop_assert_eq!(cache.n_entries(), list.len());
        }
    }
}

/// While the revalidator is slow, thousands of removed entries leave room for new ones. In the end all
/// removals are reported.
#[test]
fn what_goes_leaves_room_for_what_comes() {
    let (mut cache, mut records) = small_cache(4);
    let mut mask = FlowMask::default();
    mask.0.nw_dst = u32::MAX;
    let key = |n: u32| FlowKey {
        in_port: 1,
        dl_type: 0x0800,
        nw_proto: 17,
        nw_dst: n,
        ..FlowKey::default()
    };
    let insert = |cache: &mut Cache<Actions>, n: u32, r: u32| {
        let mut t = Translation {
            mask,
            ..Translation::default()
        };
        // Each has a cached translation of its own.
        t.actions.push(Action::Recirc(r));
        let parsed = Keys::of(cache, &[key(n)]);
        cache.insert(parsed.sought(0).unwrap(), &mut t, 1, 5).is_some()
    };
    let n = u32::try_from(RING).unwrap() * 2;
    for i in 0..n {
        assert!(insert(&mut cache, i, i));
        if i % 1000 == 0 {
            records.drain();
        }
    }
    records.drain();
    for i in 0..n {
        let parsed = Keys::of(&mut cache, &[key(i)]);
        let slot = cache.find_one(parsed.sought(0).unwrap()).unwrap();
        cache.evict(slot);
    }
    cache.free_evicted(usize::MAX);
    assert!(cache.n_entries() > 0, "they cannot all be told of at once");
    assert!(cache.wants_revalidator());
    for i in 0..100 {
        assert!(insert(&mut cache, n + i, i));
    }
    let mut rounds = 0;
    while cache.n_entries() > 100 {
        records.drain();
        cache.free_evicted(usize::MAX);
        rounds += 1;
        assert!(rounds < 20);
    }
    assert_eq!(seen(&mut records).len(), 100);
}

/// An entry of the linear list.
#[derive(Debug)]
struct Plain {
    key: FlowKey,
    mask: FlowMask,
    family: Family,
    slot: u32,
}

impl Plain {
    fn matches(&self, key: &FlowKey) -> bool {
        CompactKey::of(key, 0).family() == self.family && key.equal_under(&self.key, &self.mask)
    }
}

/// The entries with keys and masks, as the revalidator reads them.
fn seen(records: &mut Records<Actions>) -> HashMap<u32, (FlowKey, FlowMask)> {
    let horizon = records.drain();
    let mut all = HashMap::new();
    for chunk in 0..records.n_chunks() {
        records.scan_all(chunk, horizon, |r, seen| {
            assert!(
                r.translation(seen.now.translation).is_some(),
                "its cached was told of"
            );
            r.credit(seen.slot, &seen.now);
            let (whole, subtable) = r.whole_key(seen).expect("its mask was told of");
            all.insert(seen.slot, (whole, subtable.mask));
        });
    }
    all
}
