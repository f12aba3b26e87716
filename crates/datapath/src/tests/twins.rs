//! Optimised structures against plain ones.

use crate::action::Action;
use crate::cache::Cache;
use crate::compact::plain::Compactor;
use crate::compact::{CompactKey, Frame, VIEW};
use crate::entry::{Entry, NewEntry};
use crate::hash::HashKey;
use crate::program::Program;
use heddle_flow::extract::{Hint, extract};
use heddle_flow::{FlowKey, FlowMask};
use proptest::prelude::*;
use std::sync::Arc;

/// Keys with few values per field, so that they collide; some ordinary, some not.
fn key() -> impl Strategy<Value = FlowKey> {
    (
        0_u32..3,
        0_u32..4,
        0_u32..4,
        0_u16..3,
        0_u16..3,
        0_u8..4,
        0_u8..6,
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
                _ => {}
            }
            k
        })
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
    ]
}

/// What a frame is made of: tags, IPv6, protocol, and bytes for everything else.
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
    /// The short way from bytes to a compact key says what the long way says; and it says something of all packets that are
    /// ordinary in every respect.
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
        // Cut short, or with padding behind; and not all of it at hand.
        bytes.resize(if cut < 80 { bytes.len() + cut / 8 } else { cut }, 0xee);
        let head = shown.min(bytes.len());
        let mut window = [0x5a; VIEW];
        let n = head.min(VIEW);
        window[..n].copy_from_slice(&bytes[..n]);
        let read = CompactKey::read(&window, Frame { head, total: bytes.len(), in_port: 7, vlan: vlan_limit > 0 });
        let mut key = FlowKey::default();
        let hint = Hint { total_len: bytes.len(), packet_type: 0, vlan_limit };
        let layers = extract(&bytes[..head], &hint, &mut key);
        key.in_port = 7;
        let plain = Compactor::default().of(&key);
        if let Some(read) = read {
            prop_assert_eq!(Some(read), plain);
            prop_assert_eq!(layers.oddity, None);
            prop_assert_eq!((read.l3(), read.l4()), (layers.l3, layers.l4));
            prop_assert_eq!((read.proto(), read.tcp_flags()), (key.nw_proto, key.tcp_flags));
        } else if plain.is_some() && layers.oddity.is_none() {
            let (l3, v6) = (usize::from(layers.l3), key.dl_type == 0x86dd);
            let unusual = layers.l4 - layers.l3 != if v6 { 40 } else { 20 }
                || bytes[l3] >> 4 != if v6 { 6 } else { 4 }
                || key.nw_proto == if v6 { 1 } else { 58 }
                || v6 && key.nw_proto == 58 && matches!(key.tp_src, 135 | 136);
            prop_assert!(unusual, "{:?}", key);
        }
    }

    /// Equal compact forms mean equal keys, and the other way round.
    #[test]
    fn compact_keys_are_faithful(a in key(), b in key(), flip in 0..heddle_flow::N_WORDS * 64) {
        let c = Compactor::default();
        if let (Some(x), Some(y)) = (c.of(&a), c.of(&b)) {
            prop_assert_eq!(x == y, a == b);
        }
        let mut near = a;
        near.words_mut()[flip / 64] ^= 1 << (flip % 64);
        if let (Some(x), Some(y)) = (c.of(&a), c.of(&near)) {
            prop_assert_ne!(x, y);
        }
    }

    /// The cache finds a matching entry exactly when a linear search does, under insertions and removals and a cap on masks.
    #[test]
    fn cache_is_a_linear_list(
        ops in prop::collection::vec((key(), 0_usize..7, any::<u8>()), 1..120),
        max_masks in 0_usize..7,
    ) {
        let hash_key = HashKey::random();
        let mut cache = Cache::new(16, max_masks, hash_key);
        let compactor = Compactor::default();
        let mut list: Vec<Arc<Entry>> = Vec::new();
        let masks = masks();
        for (id, (key, what, r)) in (0_u64..).zip(&ops) {
            let compact: Option<(CompactKey, u64)> = compactor.of(key).map(|c| (c, c.hash(hash_key)));
            let found = cache.get(key, compact.as_ref());
            let plain = list.iter().find(|e| e.matches(key));
            prop_assert_eq!(found.is_some(), plain.is_some());
            if let Some((slot, _)) = found {
                prop_assert!(cache.entry(slot).unwrap().matches(key));
            }
            if let Some(mask) = masks.get(*what).filter(|_| found.is_none()) {
                let (tuple, hash) = cache.mask_for(mask, key);
                prop_assert!(tuple.mask.contains(mask));
                let actions: Vec<Action> = Vec::new();
                let entry = Arc::new(Entry::new(NewEntry {
                    id, key, tuple, hash, program: Program::compile(&actions), actions, deps: vec![], validated: 1, now_ms: 0,
                }));
                cache.insert(Arc::clone(&entry), compact.as_ref());
                list.push(entry);
            } else if *r < 60 && !list.is_empty() {
                let gone = list.remove(usize::from(*r) % list.len());
                let (slot, _) = cache.entries().find(|(_, e)| e.id == gone.id).unwrap();
                cache.evict(slot.index, gone.id);
                // Twice does no harm.
                cache.evict(slot.index, gone.id);
                if r % 2 == 0 { cache.reap(); }
            } else if *r > 250 {
                cache.sort();
            }
            prop_assert!(cache.n_masks() <= max_masks + 1);
        }
        cache.reap();
        prop_assert_eq!(cache.len(), list.len());
    }
}
