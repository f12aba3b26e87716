//! Tables as such: configuration and features.

/// `OFPT_TABLE_MOD`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableMod {
    /// Table id; 0xff: all.
    pub table_id: u8,
    /// Handling of packets that match no flow, in versions that have it (1.1 and 1.2).
    pub miss: Option<TableMiss>,
    /// Evict flows when full (1.4 and later).
    pub eviction: Option<bool>,
    /// Criteria of eviction (`OFPTMPEF14_*` bits), if the message has them.
    pub eviction_flags: Option<u32>,
    /// Send vacancy events (1.4 and later).
    pub vacancy: Option<bool>,
    /// Percentages at which vacancy events are sent: going down, going up.
    pub vacancy_limits: Option<(u8, u8)>,
}

/// `OFPTC11_TABLE_MISS_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableMiss {
    /// To the controller.
    Controller,
    /// To the next table.
    Continue,
    /// Drop.
    Drop,
}

/// `OFPTFC15_*`: command of a request for table features. Before 1.5 it replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum TableFeaturesCommand {
    /// Replaces the whole pipeline by these tables.
    #[default]
    Replace = 0,
    /// Changes these tables.
    Modify = 1,
    /// Adds these tables to the pipeline.
    Enable = 2,
    /// Removes these tables from the pipeline.
    Disable = 3,
}

/// `OFPTR_*`: reason of a table status message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TableReason {
    /// Less of the table is free than the lower limit.
    VacancyDown = 3,
    /// More of it is free than the upper limit.
    VacancyUp = 4,
}

/// `OFPT_TABLE_STATUS` (1.4 and later).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableStatus {
    /// Event.
    pub reason: TableReason,
    /// The table as it is now.
    pub desc: TableDesc,
}

/// Features of a table. Fields, instructions and actions are left out: they are the same for every table,
/// namely those that this codec can carry in the version.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableFeatures {
    /// Table id.
    pub table_id: u8,
    /// Command of a request (1.5 and later).
    pub command: TableFeaturesCommand,
    /// Name, 31 bytes at most.
    pub name: String,
    /// Bits of metadata that it can match.
    pub metadata_match: u64,
    /// Bits of metadata that it can write.
    pub metadata_write: u64,
    /// Maximum number of flows.
    pub max_entries: u32,
    /// Supports eviction (1.4 and later).
    pub eviction: bool,
    /// Supports vacancy events (1.4 and later).
    pub vacancy: bool,
    /// Tables that goto can name.
    pub next: Vec<u8>,
    /// Whether it had any property (in a decoded request, an entry without only names the table).
    pub any_properties: bool,
    /// Whether a decoded request named an instruction, action or field that is not known here.
    pub unknown: bool,
}

/// `OFPMP_TABLE_DESC` (1.4 and later).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableDesc {
    /// Table id.
    pub table_id: u8,
    /// Evicts when full.
    pub eviction: bool,
    /// Criteria of eviction (`OFPTMPEF14_*` bits).
    pub eviction_flags: u32,
    /// Sends vacancy events.
    pub vacancy: bool,
    /// Percentages: going down, going up, current.
    pub vacancy_limits: (u8, u8, u8),
}
