//! A guessed entry, which many flows share, is compared before anything is hashed.

use super::{Actions, Keys, small_cache};
use crate::burst::LookupKeys;
use crate::cache::{Cache, CommonProgram, Level, LookupContext};
use crate::program_table::NO_PROGRAM;
use crate::store::NO_SLOT;
use heddle_datapath_api::{Generations, Translation};
use heddle_flow::{FlowKey, FlowMask};

fn flow(nw_src: u32, nw_dst: u32) -> FlowKey {
    FlowKey {
        in_port: 1,
        dl_type: 0x0800,
        nw_proto: 17,
        nw_src,
        nw_dst,
        ..FlowKey::default()
    }
}

/// Stores an entry for this flow and the flows that agree with it under the mask.
fn store(cache: &mut Cache<Actions>, key: &FlowKey, mask: FlowMask) {
    let mut t = Translation {
        mask,
        ..Translation::default()
    };
    let parsed = Keys::of(cache, &[*key]);
    let sought = parsed.sought(0).unwrap();
    cache.insert(sought, &mut t, 1, 5).expect("room");
}

/// Summarizes the results of a burst one by one.
pub(super) fn common_of(cache: &Cache<Actions>, parsed: &Keys) -> Option<CommonProgram> {
    let found: Vec<_> = (0..parsed.runs.len()).map(|r| cache.found(r)).collect();
    let program = found.first()?.program;
    let at = |level: Level| found.iter().filter(|f| f.level == level).count() as u64;
    let same = program != NO_PROGRAM && found.iter().all(|f| f.program == program);
    same.then(|| CommonProgram {
        program,
        l1: at(Level::L1),
        l2: at(Level::L2),
        longest: parsed.runs.iter().map(|run| run.longest).max().unwrap_or(0),
    })
}

/// An entry that matches all packets is tried first, but it is used only for packets that match it.
#[test]
fn a_guess_is_compared() {
    let (mut cache, _notes) = small_cache(4);
    let mut mask = FlowMask::default();
    mask.0.nw_dst = u32::MAX;
    for dst in 0..2 {
        store(&mut cache, &flow(0, dst), mask);
    }
    let generations = Generations::default();
    let lookup = LookupContext {
        now_ms: 5,
        any: 1,
        generations: &generations,
    };
    let mut burst = |dsts: &[u32]| -> Vec<u32> {
        let keys: Vec<_> = (0..).zip(dsts).map(|(src, dst)| flow(src, *dst)).collect();
        let parsed = Keys::of(&mut cache, &keys);
        let common = cache.find(&parsed, &lookup);
        assert_eq!(common, common_of(&cache, &parsed));
        (0..keys.len()).map(|r| cache.found(r).slot).collect()
    };
    let slots = burst(&[0, 1]);
    assert!(slots[0] != slots[1] && !slots.contains(&NO_SLOT));
    for round in 0..40 {
        let found = burst(&[0; 8]);
        assert!(found.iter().all(|s| *s == slots[0]), "{found:?}");
        if round % 8 == 7 {
            assert_eq!(
                burst(&[0, 1, 2, 0, 1]),
                [slots[0], slots[1], NO_SLOT, slots[0], slots[1]]
            );
        }
    }
    assert!(burst(&[1; 8]).iter().all(|s| *s == slots[1]));
}

/// The mask of a guessed entry comes before masks with fewer hits.
#[test]
fn a_guess_counts_for_its_mask() {
    let (mut cache, _notes) = small_cache(4);
    let (few, elephant) = (flow(7, 1), flow(1, 9));
    let (mut by_src, mut by_dst) = (FlowMask::default(), FlowMask::default());
    (by_src.0.nw_src, by_dst.0.nw_dst) = (u32::MAX, u32::MAX);
    for (key, mask) in [(few, by_src), (elephant, by_dst)] {
        store(&mut cache, &key, mask);
    }
    let generations = Generations::default();
    let lookup = LookupContext {
        now_ms: 5,
        any: 1,
        generations: &generations,
    };
    let masks_for = |cache: &mut Cache<Actions>, key: &FlowKey| {
        cache.take_probes();
        let parsed = Keys::of(cache, &[*key]);
        cache.find_one(parsed.sought(0).unwrap()).expect("is there");
        cache.take_probes()
    };
    assert_eq!(
        (masks_for(&mut cache, &few), masks_for(&mut cache, &elephant)),
        (1, 2)
    );
    masks_for(&mut cache, &few);
    for src in 0..40 {
        let keys = [flow(src, 9), flow(src + 100, 9)];
        let parsed = Keys::of(&mut cache, &keys);
        cache.find(&parsed, &lookup);
    }
    cache.tidy();
    assert_eq!(
        (masks_for(&mut cache, &elephant), masks_for(&mut cache, &few)),
        (1, 2)
    );
}
