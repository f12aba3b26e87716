//! Rebalancing: buckets move from the member with the highest load to the one with the lowest.
//!
//! The limits are Open vSwitch's. A difference of less than a 32nd, or of [`MIN_OVERLOAD_BYTES`], stays.
//! Buckets move only if the lower load comes closer to the ideal one by a tenth of the ideal change. So light
//! flows do not move back and forth.

/// A smaller difference of load in an interval is left alone, bytes.
const MIN_OVERLOAD_BYTES: u64 = 100_000;

/// One enabled member: the sum of its buckets' loads, and its buckets by falling load.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberLoad {
    pub(super) bytes: u64,
    /// Buckets with load: number and bytes.
    pub(super) buckets: Vec<(u8, u64)>,
}

/// One move of a bucket between members, which are indices of the list given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) bucket: u8,
    pub(super) to: usize,
}

/// The moves that balance these members. Their loads are those after the moves then.
pub(super) fn plan(members: &mut [MemberLoad]) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut left: Vec<usize> = (0..members.len()).collect();
    loop {
        // The first one of several with the highest load, the last one of several with the lowest.
        let load = |at: &usize| members.get(*at).map_or(0, |m| m.bytes);
        let most = left.iter().copied().rev().max_by_key(load);
        let least = left.iter().copied().rev().min_by_key(load);
        let (Some(from), Some(to)) = (most, least) else {
            break;
        };
        let (high, low) = (load(&from), load(&to));
        let overload = high - low;
        if from == to || overload < low >> 5 || overload < MIN_OVERLOAD_BYTES {
            break;
        }
        let chosen = members.get(from).map_or(Vec::new(), |m| choose(m, low));
        if chosen.is_empty() {
            left.retain(|at| *at != from);
            continue;
        }
        for (bucket, bytes) in chosen {
            moves.push(Move { bucket, to });
            // The bucket does not join the other's list: it moves once in a round.
            if let Some(m) = members.get_mut(from) {
                m.bytes -= bytes;
                m.buckets.retain(|(b, _)| *b != bucket);
            }
            if let Some(m) = members.get_mut(to) {
                m.bytes += bytes;
            }
        }
    }
    moves
}

/// The buckets to move from a member to one with a load of `low` bytes.
fn choose(from: &MemberLoad, low: u64) -> Vec<(u8, u64)> {
    let ideal = (from.bytes + low) / 2 - low;
    let threshold = ideal / 10;
    let [_, .., last] = from.buckets.as_slice() else {
        // A single flow, perhaps: moving it would only move the load.
        return Vec::new();
    };
    let mut chosen = Vec::new();
    let mut moved = 0;
    for bucket in &from.buckets {
        if moved + bucket.1 <= ideal {
            chosen.push(*bucket);
            moved += bucket.1;
        }
        if ideal - moved < threshold {
            break;
        }
    }
    if chosen.is_empty() {
        chosen.push(*last);
        moved = last.1;
    }
    let new_low = (from.bytes - moved).min(low + moved);
    if new_low > low && new_low - low >= threshold {
        chosen
    } else {
        Vec::new()
    }
}
