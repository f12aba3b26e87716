//! Groups: changes, counters and descriptions (OpenFlow 1.5 §5.10, §7.3.4.3).

use crate::action::{Action, Port};
use heddle_flow::{FieldId, FieldValue};

/// `OFPG_MAX`: largest number of a group.
pub const GROUP_MAX: u32 = 0xffff_ff00;
/// `OFPG_ALL`: all groups, in deletions and statistics requests.
pub const GROUP_ALL: u32 = 0xffff_fffc;

/// Largest id of a bucket (1.5).
pub const BUCKET_MAX: u32 = 0xffff_ff00;
/// The group's first bucket, as a place to insert at or as the bucket to remove.
pub const BUCKET_FIRST: u32 = 0xffff_fffd;
/// The group's last bucket.
pub const BUCKET_LAST: u32 = 0xffff_fffe;
/// All buckets.
pub const BUCKET_ALL: u32 = 0xffff_ffff;

/// `OFPGC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupCommand {
    /// New group.
    Add,
    /// Replaces a group's type and buckets.
    Modify,
    /// Deletes a group, or all.
    Delete,
    /// Adds buckets to a group (1.5).
    InsertBucket,
    /// Takes buckets from a group (1.5).
    RemoveBucket,
    /// Nicira: `Add` if the group does not exist, else `Modify`.
    AddOrModify,
}

/// `OFPGT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupType {
    /// Executes every bucket, each on a copy of the packet.
    All,
    /// Executes one bucket, chosen by a hash of the packet and the buckets' weights.
    Select,
    /// Executes the only bucket.
    Indirect,
    /// Executes the first live bucket.
    FastFailover,
}

impl GroupType {
    /// All of them, by their number on the wire.
    pub const ALL: [GroupType; 4] = [
        GroupType::All,
        GroupType::Select,
        GroupType::Indirect,
        GroupType::FastFailover,
    ];
}

/// One bucket: an action set with the conditions under which it is chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Bucket {
    /// Number within its group (1.5; counted from 0 in versions that have none).
    pub id: u32,
    /// Share of the packets of a select group.
    pub weight: u16,
    /// The bucket is live while this port is (`Port::NONE`: always).
    pub watch_port: Port,
    /// The bucket is live while this group has a live bucket (`GROUP_ANY`: always).
    pub watch_group: u32,
    /// Actions of the bucket's action set, in the order of the message.
    pub actions: Vec<Action>,
}

impl Bucket {
    /// Whether the bucket depends on the state of a port or group.
    pub fn has_liveness(&self) -> bool {
        self.watch_port != Port::NONE || self.watch_group != super::GROUP_ANY
    }
}

/// Method by which a select group chooses a bucket (Netronome's extension).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SelectionMethod {
    /// A hash of these fields, or of the default ones if there are none.
    Hash,
    /// A hash that the datapath computes.
    DpHash,
}

impl SelectionMethod {
    /// Name on the wire and in texts.
    pub fn name(self) -> &'static str {
        match self {
            SelectionMethod::Hash => "hash",
            SelectionMethod::DpHash => "dp_hash",
        }
    }
}

/// The selection method with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Selection {
    /// Method.
    pub method: SelectionMethod,
    /// Seed of the hash; for `DpHash`, algorithm (upper half) and seed (lower half).
    pub param: u64,
    /// Fields to hash with the masks of their values, in the order of the table of fields.
    pub fields: Vec<(FieldId, FieldValue)>,
}

/// Changes groups.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupMod {
    /// Command.
    pub command: GroupCommand,
    /// The group's type (bucket commands leave it as it is).
    pub ty: GroupType,
    /// Group id; [`GROUP_ALL`] in a deletion.
    pub group_id: u32,
    /// Position of an insertion, or bucket to remove.
    pub command_bucket_id: u32,
    /// Buckets, in order.
    pub buckets: Vec<Bucket>,
    /// Method by which a select group chooses a bucket.
    pub selection: Option<Selection>,
}

/// `OFPMP_GROUP_DESC`: type and buckets of a group.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupDesc {
    /// Group id.
    pub group_id: u32,
    /// Group type.
    pub ty: GroupType,
    /// Buckets, in order.
    pub buckets: Vec<Bucket>,
    /// Selection method, if one was set.
    pub selection: Option<Selection>,
}

/// `OFPMP_GROUP`: counters of a group. All ones: unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupStats {
    /// Group id.
    pub group_id: u32,
    /// Flows that use it.
    pub ref_count: u32,
    /// Packets.
    pub packet_count: u64,
    /// Bytes.
    pub byte_count: u64,
    /// Age: seconds (1.3 and later).
    pub duration_sec: u32,
    /// ... and nanoseconds.
    pub duration_nsec: u32,
    /// Packets and bytes of each bucket.
    pub buckets: Vec<(u64, u64)>,
}
