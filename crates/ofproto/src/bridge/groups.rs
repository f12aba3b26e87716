//! Group mods, and requests about groups (OpenFlow 1.5 §6.7, §7.3.4.3).

use super::change::Change;
use super::{Bridge, Origin, stats};
use crate::group::Group;
use crate::stats::Stats;
use crate::versioned::LATEST;
use heddle_openflow::message::{
    BUCKET_ALL, BUCKET_FIRST, BUCKET_LAST, Bucket, FlowRemovedReason, GROUP_ALL, GROUP_MAX, GroupCommand,
    GroupDesc, GroupFeatures, GroupMod, GroupStats,
};
use heddle_openflow::{ErrorKind, Version};
use std::sync::atomic::Ordering::Relaxed;

/// Select groups honour weights and liveness; buckets may name other groups.
const CAPABILITIES: u32 = 1 << 0 | 1 << 1 | 1 << 2;

impl Bridge {
    /// Carries out one group mod. On an error nothing has changed.
    pub fn group_mod(&self, gm: &GroupMod) -> Result<(), ErrorKind> {
        self.group_mod_by(gm, None)
    }

    /// Carries out one group mod for a connection.
    pub(super) fn group_mod_by(&self, gm: &GroupMod, origin: Option<Origin>) -> Result<(), ErrorKind> {
        self.change(origin, |c| c.group_mod(gm))
    }

    /// Counters of groups.
    pub(super) fn group_stats(&self, id: u32) -> Vec<GroupStats> {
        self.refresh();
        let now = self.now_ms();
        let state = self.state.lock();
        let one = |g: &Group| {
            let (duration_sec, duration_nsec) = stats::age(now, g.created_ms);
            let (packet_count, byte_count) = counts(&g.stats);
            GroupStats {
                group_id: g.id,
                ref_count: u32::try_from(state.refs.count_group(g.id)).unwrap_or(u32::MAX),
                packet_count,
                byte_count,
                duration_sec,
                duration_nsec,
                buckets: g.buckets.iter().map(|b| counts(&b.stats)).collect(),
            }
        };
        self.some_groups(id).iter().map(|g| one(&g.data)).collect()
    }

    /// Descriptions of groups.
    pub(super) fn group_descs(&self, id: u32) -> Vec<GroupDesc> {
        self.some_groups(id).iter().map(|g| g.data.desc()).collect()
    }

    fn some_groups(&self, id: u32) -> Vec<std::sync::Arc<crate::versioned::VersionedItem<Group>>> {
        let version = self.current_version();
        if id == GROUP_ALL {
            return self.groups.all(version).into_iter().map(|(_, g)| g).collect();
        }
        self.groups.get(id, version).into_iter().collect()
    }

    /// Capabilities of groups.
    pub(super) fn group_features(version: Version) -> GroupFeatures {
        // Every action that the version has a number for (OpenFlow's own ones).
        let actions = match version {
            Version::V10 => 0x0fff,
            Version::V11 => 0x01ff_e7ff,
            _ => 0x03ff_8001,
        };
        GroupFeatures {
            types: 0xf,
            capabilities: CAPABILITIES,
            max_groups: [GROUP_MAX; 4],
            actions: [actions; 4],
        }
    }
}

fn counts(s: &Stats) -> (u64, u64) {
    (s.packets.load(Relaxed), s.bytes.load(Relaxed))
}

impl Change<'_> {
    /// Adds, changes, deletes groups.
    pub(super) fn group_mod(&mut self, gm: &GroupMod) -> Result<(), ErrorKind> {
        let exists = self.bridge.groups.get(gm.group_id, LATEST).is_some();
        match gm.command {
            GroupCommand::Add if exists => Err(ErrorKind::GroupModFailedGroupExists),
            GroupCommand::AddOrModify if !exists => self.add_group(gm),
            GroupCommand::Add => self.add_group(gm),
            GroupCommand::Delete => {
                self.delete_groups(gm.group_id);
                Ok(())
            }
            GroupCommand::Modify
            | GroupCommand::AddOrModify
            | GroupCommand::InsertBucket
            | GroupCommand::RemoveBucket => self.modify_group(gm),
        }
    }

    fn add_group(&mut self, gm: &GroupMod) -> Result<(), ErrorKind> {
        if gm.group_id > GROUP_MAX {
            return Err(ErrorKind::GroupModFailedInvalidGroup);
        }
        let desc = GroupDesc {
            group_id: gm.group_id,
            ty: gm.ty,
            buckets: gm.buckets.clone(),
            selection: gm.selection.clone(),
        };
        self.link_group(Group::new(desc, self.bridge.now_ms()));
        Ok(())
    }

    /// Modifies a group. As in Open vSwitch, it counts anew but keeps its age.
    fn modify_group(&mut self, gm: &GroupMod) -> Result<(), ErrorKind> {
        let Some(old) = self.bridge.groups.get(gm.group_id, LATEST) else {
            return Err(ErrorKind::GroupModFailedUnknownGroup);
        };
        let was = old.data.desc();
        let mut desc = GroupDesc {
            group_id: gm.group_id,
            ty: gm.ty,
            buckets: gm.buckets.clone(),
            selection: gm.selection.clone(),
        };
        // A bucket command leaves the type and properties as they are.
        if matches!(
            gm.command,
            GroupCommand::InsertBucket | GroupCommand::RemoveBucket
        ) {
            (desc.ty, desc.selection) = (was.ty, was.selection.clone());
            desc.buckets = if gm.command == GroupCommand::InsertBucket {
                insert_buckets(&was.buckets, &gm.buckets, gm.command_bucket_id)?
            } else {
                remove_bucket(&was.buckets, gm.command_bucket_id)?
            };
        }
        self.unlink_group(&old);
        self.link_group(Group::new(desc, old.data.created_ms));
        Ok(())
    }

    pub(super) fn delete_groups(&mut self, id: u32) {
        let gone = if id == GROUP_ALL {
            self.bridge.groups.all(LATEST)
        } else {
            self.bridge
                .groups
                .get(id, LATEST)
                .map(|g| (id, g))
                .into_iter()
                .collect()
        };
        for (id, group) in gone {
            for rule in self.state.refs.of_group(id) {
                self.remove(&rule, FlowRemovedReason::GroupDelete);
            }
            self.unlink_group(&group);
        }
    }
}

/// The group's buckets with new ones behind bucket `at`, before the first or behind the last.
fn insert_buckets(old: &[Bucket], new: &[Bucket], at: u32) -> Result<Vec<Bucket>, ErrorKind> {
    let behind = match at {
        BUCKET_FIRST => 0,
        BUCKET_LAST => old.len(),
        id => {
            let found = old.iter().position(|b| b.id == id);
            found.ok_or(ErrorKind::GroupModFailedUnknownBucket)? + 1
        }
    };
    if new.iter().any(|b| old.iter().any(|o| o.id == b.id)) {
        return Err(ErrorKind::GroupModFailedBucketExists);
    }
    let (before, after) = old.split_at(behind);
    Ok([before, new, after].concat())
}

fn remove_bucket(old: &[Bucket], which: u32) -> Result<Vec<Bucket>, ErrorKind> {
    let gone = match which {
        BUCKET_ALL => return Ok(Vec::new()),
        BUCKET_FIRST => 0,
        BUCKET_LAST => old.len().saturating_sub(1),
        id => {
            let found = old.iter().position(|b| b.id == id);
            found.ok_or(ErrorKind::GroupModFailedUnknownBucket)?
        }
    };
    let kept = old.iter().enumerate().filter(|(i, _)| *i != gone);
    Ok(kept.map(|(_, b)| b.clone()).collect())
}
