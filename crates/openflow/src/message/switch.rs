//! The switch as a whole: hello, errors, features, configuration.

use crate::error::{ErrorKind, OfError};

/// `OFPT_HELLO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hello {
    /// Versions that the sender speaks, bit 1 for 1.0. `None` if the message has no bitmap: then the sender
    /// speaks the header's version and all before it.
    pub bitmap: Option<u32>,
}

/// `OFPT_ERROR` as received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorMsg {
    /// Meaning of the error, if its numbers are known.
    pub kind: Option<ErrorKind>,
    /// The numbers as they came: experimenter (0 for a standard error), type, code.
    pub raw: (u32, u16, u16),
    /// The offending message's first bytes.
    pub data: Vec<u8>,
}

bitflags::bitflags! {
    /// `OFPC_*` of a features reply.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Capabilities: u32 {
        /// Flow statistics.
        const FLOW_STATS = 1 << 0;
        /// Table statistics.
        const TABLE_STATS = 1 << 1;
        /// Port statistics.
        const PORT_STATS = 1 << 2;
        /// Group statistics (1.1 and later; the bit is spanning tree in 1.0, which is never set here).
        const GROUP_STATS = 1 << 3;
        /// Reassembles IP fragments.
        const IP_REASM = 1 << 5;
        /// Queue statistics.
        const QUEUE_STATS = 1 << 6;
        /// Matches IP addresses in ARP packets (1.0 and 1.1).
        const ARP_MATCH_IP = 1 << 7;
        /// Blocks looping ports (1.2 and later).
        const PORT_BLOCKED = 1 << 8;
        /// Bundles (1.4 and later).
        const BUNDLES = 1 << 9;
        /// Flow monitors (1.4 and later).
        const FLOW_MONITORING = 1 << 10;
    }
}

/// `OFPT_FEATURES_REPLY`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SwitchFeatures {
    /// Datapath id.
    pub datapath_id: u64,
    /// Number of packets that can be buffered.
    pub n_buffers: u32,
    /// Number of tables.
    pub n_tables: u8,
    /// Auxiliary connection id; 0 is the main one (1.3 and later).
    pub auxiliary_id: u8,
    /// Capabilities of the switch.
    pub capabilities: Capabilities,
    /// Bitmap of 1.0 action types that it supports; written for 1.0 only.
    pub actions: u32,
    /// Ports; written for 1.0 to 1.2 only, later versions use port descriptions.
    pub ports: Vec<super::PortDesc>,
}

bitflags::bitflags! {
    /// `OFPC_FRAG_*` and the 1.1 and 1.2 invalid-TTL bit.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ConfigFlags: u16 {
        /// Drop fragments (in the two low bits: 0 is normal).
        const FRAG_DROP = 1;
        /// Reassemble fragments.
        const FRAG_REASM = 2;
        /// Send packets with an invalid TTL to the controller (1.1 and 1.2).
        const INVALID_TTL_TO_CONTROLLER = 4;
    }
}

impl ConfigFlags {
    /// The bits of the treatment of fragments; both set is Nicira's "match" mode.
    pub const FRAG_MASK: ConfigFlags = ConfigFlags::FRAG_DROP.union(ConfigFlags::FRAG_REASM);
}

/// `OFPT_SET_CONFIG`, `OFPT_GET_CONFIG_REPLY`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchConfig {
    /// Fragment handling and invalid TTLs. Bits that the version lacks are an error when decoding.
    pub flags: ConfigFlags,
    /// Bytes of a table-miss packet to send to the controller.
    pub miss_send_len: u16,
}

/// A message or multipart request that is known but not handled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsupported {
    /// Name in the specification, such as `OFPT_GROUP_MOD`.
    pub kind: &'static str,
    /// The error to reply with.
    pub error: OfError,
}
