//! Running a group: the choice of buckets, and each bucket on the packet as it is now.

use super::actions::Step;
use super::ctx::{Ctx, key_port, of_port};
use super::limits::XlateError;
use super::report::Kind;
use crate::features::Feature;
use crate::group::{Group, GroupBucket, Method};
use heddle_datapath_api::HashAlg;
use heddle_flow::{FieldValue, hash};
use heddle_openflow::Port;
use heddle_openflow::message::{Bucket, GROUP_ANY, GroupType};
use smallvec::SmallVec;

/// Maximum nesting of groups that watch groups.
const MAX_LIVENESS_DEPTH: u32 = 128;

impl Ctx<'_> {
    /// `group:id`. `false`: there is no such group, and the list of actions ends.
    pub(super) fn group(&mut self, id: u32, last: bool) -> bool {
        if !self.may_look_up() {
            return true;
        }
        let Some(group) = self.group_at_hand(id) else {
            self.report(Kind::Warn, || format!("output to nonexistent group {id}"));
            return false;
        };
        let group = &group.data;
        if matches!(group.ty, GroupType::All | GroupType::Indirect) {
            for (i, b) in group.buckets.iter().enumerate() {
                self.bucket(b, last && i + 1 == group.buckets.len());
                self.credit(&b.stats);
            }
            self.credit(&group.stats);
            return true;
        }
        let chosen = match group.ty {
            GroupType::Select => self.select(group),
            _ => self.first_live(group, 0),
        };
        match chosen {
            Some(b) => {
                let id = b.bucket.id;
                self.report(Kind::Detail, || format!("using bucket {id}"));
                self.bucket(b, last);
                self.credit(&b.stats);
                self.credit(&group.stats);
            }
            // The bucket is chosen when the packet comes back with its hash.
            None if self.freezing => {}
            None => self.detail("no live bucket"),
        }
        true
    }

    fn group_at_hand(&mut self, id: u32) -> Option<std::sync::Arc<crate::versioned::Held<Group>>> {
        self.depend(Group::slot(self.bridge.id, id));
        // Groups changed between `enter` and the line above: see `lookup`.
        if self.bridge.version.load(std::sync::atomic::Ordering::Acquire) != self.version {
            self.out.uncacheable = true;
        }
        self.bridge.groups.get(id, self.version)
    }

    /// Runs a bucket's actions. Only the emitted actions stay.
    fn bucket(&mut self, b: &GroupBucket, last: bool) {
        if !self.step() {
            return;
        }
        let id = b.bucket.id;
        let line = self.report(Kind::Bucket, || format!("bucket {id}"));
        let parent = self.report_under(line);
        let (flow, was_mpls, conntracked) = (self.flow, self.was_mpls, self.conntracked);
        let in_bucket = std::mem::replace(&mut self.in_bucket, true);
        let steps: SmallVec<[Step<'_>; 8]> = b.list.iter().map(Step::Action).collect();
        let mark = self.mark();
        self.depth += 1;
        self.run_list(&steps, last);
        self.depth -= 1;
        if self.freezing {
            self.finish_freezing();
        }
        self.settle(mark, last);
        self.in_bucket = in_bucket;
        self.flow = flow;
        (self.was_mpls, self.conntracked) = (was_mpls, conntracked);
        // An exit of the bucket does not end the list behind the group, nor does an error about the packet's
        // headers. Other errors stay.
        self.exit = false;
        if matches!(
            self.error,
            Some(XlateError::TooManyMplsLabels | XlateError::UnsupportedPacketType)
        ) {
            self.error = None;
        }
        self.report_under(parent);
    }

    fn is_live(&mut self, group: &Group, b: &Bucket, depth: u32) -> bool {
        if depth >= MAX_LIVENESS_DEPTH {
            self.report_error(|| format!("bucket chaining exceeded {MAX_LIVENESS_DEPTH} links"));
            return false;
        }
        if !self.step() || group.ty == GroupType::Select && b.weight == 0 {
            return false;
        }
        if !b.has_liveness() {
            return true;
        }
        let by_port = match b.watch_port {
            Port::NONE => false,
            Port::CONTROLLER => self.bridge.has_controllers,
            port => self.is_up(port),
        };
        by_port || b.watch_group != GROUP_ANY && self.is_group_live(b.watch_group, depth + 1)
    }

    fn is_group_live(&mut self, id: u32, depth: u32) -> bool {
        let Some(group) = self.group_at_hand(id) else {
            return false;
        };
        // Groups may watch each other to the maximum depth.
        let mut live = false;
        self.nested(|c| live = c.first_live(&group.data, depth).is_some());
        live
    }

    fn first_live<'g>(&mut self, group: &'g Group, depth: u32) -> Option<&'g GroupBucket> {
        for b in &group.buckets {
            if self.is_live(group, &b.bucket, depth) {
                return Some(b);
            }
            self.report_not_live(&b.bucket);
        }
        None
    }

    fn report_not_live(&mut self, b: &Bucket) {
        self.report(Kind::Detail, || {
            let mut why = String::new();
            if b.watch_port != Port::NONE {
                why = format!("port {}", of_port(key_port(b.watch_port)));
            }
            if b.watch_group != GROUP_ANY {
                let and = if why.is_empty() { "" } else { " and " };
                why += &format!("{and}port {}", b.watch_group);
            }
            format!("bucket {}: not live due to {why}", b.id)
        });
    }

    fn select<'g>(&mut self, group: &'g Group) -> Option<&'g GroupBucket> {
        // The choice may look at headers behind a popped label.
        if self.was_mpls {
            self.freeze();
            return None;
        }
        match &group.method {
            Method::Default => {
                hash::mask_symmetric_l4(&self.flow, &mut self.out.mask);
                let basis = hash::symmetric_l4(&self.flow, 0);
                self.best_live(group, basis)
            }
            Method::Fields => {
                let basis = self.hash_of_fields(group);
                self.best_live(group, basis)
            }
            Method::DpHash { alg, basis, map } => self.by_dp_hash(group, *alg, *basis, map),
        }
    }

    /// The live bucket with the highest score: a random number that only packet and bucket decide, times its
    /// weight.
    fn best_live<'g>(&mut self, group: &'g Group, basis: u32) -> Option<&'g GroupBucket> {
        let mut best: Option<(u32, &GroupBucket)> = None;
        for b in &group.buckets {
            if !self.is_live(group, &b.bucket, 0) {
                self.report_not_live(&b.bucket);
                continue;
            }
            let (id, weight) = (b.bucket.id, u32::from(b.bucket.weight));
            let score = (hash::two_words(id, basis) & 0xffff) * weight;
            if best.is_none_or(|(high, _)| score >= high) {
                best = Some((score, b));
            }
            self.report(Kind::Detail, || format!("bucket {id}: score {score}"));
        }
        best.map(|(_, b)| b)
    }

    fn hash_of_fields(&mut self, group: &Group) -> u32 {
        let selection = group.selection.as_ref();
        let mut basis = hash::word64(selection.map_or(0, |s| s.param));
        for (field, mask) in selection.into_iter().flat_map(|s| &s.fields) {
            if !self.has_field(*field) {
                continue;
            }
            let n = usize::from(field.info().n_bytes);
            let value: FieldValue = field.get(&self.flow) & *mask;
            basis = hash::bytes(value.bytes(n), basis);
            field.set_mask(&mut self.out.mask, *mask);
        }
        basis
    }

    /// Chooses by the datapath's hash. A packet that has none must come back with one.
    fn by_dp_hash<'g>(
        &mut self,
        group: &'g Group,
        alg: HashAlg,
        basis: u32,
        map: &[u16],
    ) -> Option<&'g GroupBucket> {
        // No hash is zero, and packets that come back with a hash have ids of their own. So the test needs no
        // bits of the mask.
        if self.flow.dp_hash == 0 && !self.has_hash {
            let alg = match self.bridge.features.number(Feature::MaxHashAlg) {
                0 => HashAlg::L4,
                _ => alg,
            };
            self.detail("selection method in use: dp_hash, recirculating");
            self.freeze_for_hash(alg, basis);
            return None;
        }
        let mask = u32::try_from(map.len()).ok()?.checked_sub(1)?;
        self.out.mask.0.dp_hash |= mask;
        // If the bucket is not live, the next one in the table is used: the bucket's share is spread over the
        // others.
        for i in 0..=mask {
            let at = self.flow.dp_hash.wrapping_add(i) & mask;
            let b = group.buckets.get(usize::from(*map.get(at as usize)?))?;
            if self.is_live(group, &b.bucket, 0) {
                return Some(b);
            }
        }
        None
    }
}
