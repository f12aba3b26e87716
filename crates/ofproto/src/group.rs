//! Groups, as translation runs them.
//!
//! A [`Group`] is immutable but for its counters: a modification makes a new one. A select group that lets
//! the datapath hash has a table with the bucket of each hash value. Webster's method spreads hash values
//! over buckets in proportion to their weights. As with the seats of a parliament, each next value goes to
//! the bucket with the highest quotient.

use crate::action_set::as_list;
use crate::stats::Stats;
use heddle_datapath_api::{Generations, HashAlg};
use heddle_openflow::Action;
use heddle_openflow::message::{Bucket, GroupDesc, GroupType, Selection, SelectionMethod};
use std::sync::Arc;

/// Minimum and maximum number of hash values of a select group.
const MIN_HASHES: u64 = 16;
const MAX_HASHES: u64 = 256;
/// Hash values for each bucket, if weights need fewer. With one or two each, twelve equal buckets would get
/// shares that differ by half.
const HASHES_PER_BUCKET: u64 = 4;

/// One bucket.
#[derive(Debug)]
pub struct GroupBucket {
    /// The bucket as the controller sent it.
    pub bucket: Bucket,
    /// The bucket's action set in the order of execution.
    pub list: Vec<Action>,
    /// Packets that used the bucket.
    pub stats: Arc<Stats>,
}

/// Method by which a select group chooses a bucket.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Method {
    /// A hash of addresses and ports, which the pipeline computes.
    Default,
    /// A hash of the fields that the controller named.
    Fields,
    /// A hash that the datapath computes. Its low bits are an index of `map`, which has positions of buckets.
    DpHash {
        alg: HashAlg,
        basis: u32,
        map: Box<[u16]>,
    },
}

/// A group.
#[derive(Debug)]
pub struct Group {
    /// Number.
    pub id: u32,
    /// Type.
    pub ty: GroupType,
    /// Buckets, in order.
    pub buckets: Vec<GroupBucket>,
    /// Selection method that the controller sent.
    pub selection: Option<Selection>,
    pub(crate) method: Method,
    /// Coarse clock when it was added, ms.
    pub created_ms: u64,
    /// Packets that used the group.
    pub stats: Arc<Stats>,
}

impl Group {
    /// A group as the controller describes it, added at `created_ms`.
    pub(crate) fn new(desc: GroupDesc, created_ms: u64) -> Self {
        let method = match desc.ty {
            GroupType::Select => method(&desc),
            _ => Method::Default,
        };
        let buckets = desc.buckets.into_iter().map(|bucket| GroupBucket {
            list: as_list(&bucket.actions),
            bucket,
            stats: Arc::default(),
        });
        Self {
            id: desc.group_id,
            ty: desc.ty,
            buckets: buckets.collect(),
            selection: desc.selection,
            method,
            created_ms,
            stats: Arc::default(),
        }
    }
    /// The group as a controller sees it.
    pub(crate) fn desc(&self) -> GroupDesc {
        GroupDesc {
            group_id: self.id,
            ty: self.ty,
            buckets: self.buckets.iter().map(|b| b.bucket.clone()).collect(),
            selection: self.selection.clone(),
        }
    }
    /// The generation slot of group `id` of a bridge.
    pub(crate) fn slot(bridge: u64, id: u32) -> u16 {
        Generations::slot_of(bridge << 32 | u64::from(id) | 1 << 63)
    }
}

fn method(desc: &GroupDesc) -> Method {
    log_debug(|| format!("Constructing select group {}", desc.group_id));
    match &desc.selection {
        // If the controller names no method, the datapath hashes, both directions alike.
        None => {
            log_debug(|| "No selection method specified. Trying dp_hash.".to_owned());
            dp_hash(desc, HashAlg::SymL4, 0)
        }
        Some(s) if s.method == SelectionMethod::DpHash => {
            log_debug(|| "Selection method specified: dp_hash.".to_owned());
            let alg = match s.param >> 32 {
                0 => HashAlg::L4,
                1 => HashAlg::SymL4,
                other => {
                    log_debug(|| format!("Invalid dp_hash algorithm {other}. Defaulting to OVS_HASH_ALG_L4"));
                    HashAlg::L4
                }
            };
            let basis = u32::try_from(s.param & 0xffff_ffff).expect("32 bits");
            dp_hash(desc, alg, basis)
        }
        Some(s) => {
            log_debug(|| "Selection method specified: hash.".to_owned());
            if s.fields.is_empty() {
                log_debug(|| "No hash fields. Falling back to default hash method.".to_owned());
                Method::Default
            } else {
                log_debug(|| format!("Hash fields: {}", fields_text(s)));
                Method::Fields
            }
        }
    }
}

/// Logs a line about the choice of the method.
fn log_debug(text: impl FnOnce() -> String) {
    if log::log_enabled!(target: "ofproto_dpif", log::Level::Debug) {
        log::debug!(target: "ofproto_dpif", "{}", text());
    }
}

/// The fields as `fields(...)` of a group names them.
fn fields_text(s: &Selection) -> String {
    let names: Vec<&str> = s.fields.iter().map(|(f, _)| f.name()).collect();
    names.join(",")
}

/// Hashing in the datapath, unless the weights need too large a table.
fn dp_hash(desc: &GroupDesc, alg: HashAlg, basis: u32) -> Method {
    let weights: Vec<u16> = desc.buckets.iter().map(|b| b.weight).collect();
    let Some(map) = spread(&weights) else {
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        match (weights.iter().copied().filter(|w| *w > 0).min(), total) {
            _ if weights.is_empty() => {
                log_debug(|| "  Don't apply dp_hash method without buckets.".to_owned())
            }
            (None, _) => log_debug(|| "  Total weight is zero. No active buckets.".to_owned()),
            (Some(least), _) => {
                log_debug(|| format!("  Minimum weight: {least}, total weight: {total}"));
                let n = n_hashes(weights.len(), total, least);
                log_debug(|| format!("  Too many hash values required: {n}"));
            }
        }
        log_debug(|| "Falling back to default hash method.".to_owned());
        return Method::Default;
    };
    log_shares(desc, &map);
    let (n, number) = (map.len(), alg as u8);
    log_debug(|| format!("Use dp_hash with {n} hash values using algorithm {number}."));
    Method::DpHash { alg, basis, map }
}

/// Logs the number of hash values of each bucket.
fn log_shares(desc: &GroupDesc, map: &[u16]) {
    let weights = || desc.buckets.iter().map(|b| b.weight);
    let total: u64 = weights().map(u64::from).sum();
    let least = weights().filter(|w| *w > 0).min().unwrap_or(0);
    log_debug(|| format!("  Minimum weight: {least}, total weight: {total}"));
    log_debug(|| format!("  Using {} hash values:", map.len()));
    for (i, b) in desc.buckets.iter().enumerate() {
        #[allow(clippy::cast_precision_loss)] // for people
        let target = map.len() as f64 * f64::from(b.weight) / total as f64;
        let hits = map.iter().filter(|at| usize::from(**at) == i).count();
        log_debug(|| {
            format!(
                "  Bucket {}: weight={}, target={target:.2} hits={hits}",
                b.id, b.weight
            )
        });
    }
}

/// The number of hash values, as Open vSwitch 3.5 computes it. The bucket with the least weight gets its
/// share, and all buckets nearly theirs.
fn n_hashes(n_buckets: usize, total: u64, least: u16) -> u64 {
    let for_buckets = (n_buckets as u64 * HASHES_PER_BUCKET).min(MAX_HASHES);
    let n = total.div_ceil(least.into()).max(for_buckets);
    n.next_power_of_two().max(MIN_HASHES)
}

/// The bucket of each hash value; their number is a power of two. `None`: no bucket has a weight, or one has
/// so little weight that the table would be too large.
fn spread(weights: &[u16]) -> Option<Box<[u16]>> {
    let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    let least = weights.iter().copied().filter(|w| *w > 0).min()?;
    let n = n_hashes(weights.len(), total, least);
    if n > MAX_HASHES {
        return None;
    }
    // Quotients of the next seat: weight / divisor, compared without dividing.
    let mut divisors = vec![1_u64; weights.len()];
    let mut next = || {
        let mut best = 0;
        for i in 1..weights.len() {
            let (a, b) = (u64::from(weights[i]), u64::from(weights[best]));
            if a * divisors[best] > b * divisors[i] {
                best = i;
            }
        }
        divisors[best] += 2;
        u16::try_from(best).ok()
    };
    (0..n).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hits(weights: &[u16]) -> Option<Vec<usize>> {
        let map = spread(weights)?;
        let of = |i: usize| map.iter().filter(|b| usize::from(**b) == i).count();
        Some((0..weights.len()).map(of).collect())
    }

    #[test]
    fn known_distributions() {
        assert_eq!(hits(&[1, 1]), Some(vec![8, 8]));
        assert_eq!(hits(&[100, 200, 100]), Some(vec![4, 8, 4]));
        assert_eq!(hits(&[5, 0, 15]), Some(vec![4, 0, 12]));
        assert_eq!(hits(&[1]), Some(vec![16]));
        assert_eq!(hits(&[]), None);
        assert_eq!(hits(&[0, 0]), None);
        // One in a thousand would take 1024 values.
        assert_eq!(hits(&[1, 999]), None);
    }

    /// The shares are those of Open vSwitch 3.5.
    #[test]
    fn equal_buckets_get_nearly_equal_shares() {
        for (n, values, most, least) in [
            (3, 16, 6, 5),
            (5, 32, 7, 6),
            (6, 32, 6, 5),
            (10, 64, 7, 6),
            (12, 64, 6, 5),
            (64, 256, 4, 4),
            (100, 256, 3, 2),
        ] {
            let hits = hits(&vec![100; n]).unwrap();
            assert_eq!(hits.iter().sum::<usize>(), values, "{n} buckets");
            let (high, low) = (hits.iter().max(), hits.iter().min());
            assert_eq!((high, low), (Some(&most), Some(&least)), "{n} buckets");
        }
        assert_eq!(hits(&[1; 300]), None, "more buckets than values");
    }

    proptest! {
        /// Each bucket has its share, but for one or two values.
        #[test]
        fn shares_follow_weights(weights in prop::collection::vec(1..40u16, 1..12)) {
            let Some(hits) = hits(&weights) else { return Ok(()) };
            let (n, total): (usize, u64) = (hits.iter().sum(), weights.iter().map(|w| u64::from(*w)).sum());
            for (h, w) in hits.iter().zip(&weights) {
                let share = n as f64 * f64::from(*w) / total as f64;
                prop_assert!((*h as f64 - share).abs() <= 2.0, "{h} of {n} for {w} of {total}");
                prop_assert!(*h > 0);
            }
        }
    }
}
