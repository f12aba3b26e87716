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
            self.trace
                .report(Kind::Warn, || format!("output to nonexistent group {id}"));
            return false;
        };
        let group = &group.data;
        if matches!(group.ty, GroupType::All | GroupType::Indirect) {
            for (i, b) in group.buckets.iter().enumerate() {
                self.bucket(b, last && i + 1 == group.buckets.len());
                self.out.credit(&b.stats);
            }
            self.out.credit(&group.stats);
            return true;
        }
        let chosen = match group.ty {
            GroupType::Select => self.select(group),
            _ => self.first_live(group, 0),
        };
        match chosen {
            Some(b) => {
                let id = b.bucket.id;
                self.trace.report(Kind::Detail, || format!("using bucket {id}"));
                self.bucket(b, last);
                self.out.credit(&b.stats);
                self.out.credit(&group.stats);
            }
            // The bucket is chosen when the packet comes back with its hash.
            None if self.rest.freezing => {}
            None => self.trace.detail("no live bucket"),
        }
        true
    }

    fn group_at_hand(&mut self, id: u32) -> Option<std::sync::Arc<crate::versioned::VersionedItem<Group>>> {
        self.out.depend(Group::slot(self.at.bridge.id, id));
        // Groups changed between `enter` and the line above: see `lookup`.
        if self.at.bridge.version.load(std::sync::atomic::Ordering::Acquire) != self.at.version {
            self.out.uncacheable = true;
        }
        self.at.bridge.groups.get(id, self.at.version)
    }

    /// Runs a bucket's actions. Only the emitted actions stay.
    fn bucket(&mut self, b: &GroupBucket, last: bool) {
        if !self.step() {
            return;
        }
        let id = b.bucket.id;
        let line = self.trace.report(Kind::Bucket, || format!("bucket {id}"));
        let parent = self.trace.under(line);
        let flow = self.flow;
        let in_bucket = std::mem::replace(&mut self.at.in_bucket, true);
        let steps: SmallVec<[Step<'_>; 8]> = b.list.iter().map(Step::Action).collect();
        let mark = self.mark();
        self.budget.depth += 1;
        self.run_list(&steps, last);
        self.budget.depth -= 1;
        if self.rest.freezing {
            self.finish_freezing();
        }
        self.isolate_changes(mark, last);
        self.at.in_bucket = in_bucket;
        self.flow = flow;
        // An exit of the bucket does not end the list behind the group, nor does an error about the packet's
        // headers. Other errors stay.
        self.rest.exit = false;
        if matches!(
            self.out.error,
            Some(XlateError::TooManyMplsLabels | XlateError::UnsupportedPacketType)
        ) {
            self.out.error = None;
        }
        self.trace.under(parent);
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
            Port::CONTROLLER => self.at.bridge.has_controllers,
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
        self.trace.report(Kind::Detail, || {
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
        if self.flow.was_mpls {
            self.rest.freeze();
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
            self.trace
                .report(Kind::Detail, || format!("bucket {id}: score {score}"));
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
        if self.flow.dp_hash == 0 && !self.input.has_hash() {
            let alg = match self.at.bridge.features.number(Feature::MaxHashAlg) {
                0 => HashAlg::L4,
                _ => alg,
            };
            self.trace
                .detail("selection method in use: dp_hash, recirculating");
            self.rest.freeze_for_hash(alg, basis);
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
