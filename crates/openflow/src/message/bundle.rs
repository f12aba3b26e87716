//! Bundles: changes that are collected first and carried out together (OpenFlow 1.4 §7.3.9; ONF's
//! experimenter messages 2300 and 2301 in 1.3).

use super::Message;

/// All of the changes or none.
pub const BUNDLE_ATOMIC: u16 = 1 << 0;
/// Changes are made in the order of the messages.
pub const BUNDLE_ORDERED: u16 = 1 << 1;

/// `OFPBCT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum BundleCommand {
    /// Start a bundle.
    OpenRequest = 0,
    /// Started.
    OpenReply = 1,
    /// No more messages follow.
    CloseRequest = 2,
    /// Closed.
    CloseReply = 3,
    /// Carry the bundle out.
    CommitRequest = 4,
    /// Carried out.
    CommitReply = 5,
    /// Discard the bundle.
    DiscardRequest = 6,
    /// Discarded.
    DiscardReply = 7,
}

impl BundleCommand {
    /// All of them in the order of their numbers.
    pub const ALL: [BundleCommand; 8] = [
        BundleCommand::OpenRequest,
        BundleCommand::OpenReply,
        BundleCommand::CloseRequest,
        BundleCommand::CloseReply,
        BundleCommand::CommitRequest,
        BundleCommand::CommitReply,
        BundleCommand::DiscardRequest,
        BundleCommand::DiscardReply,
    ];
}

/// `OFPT_BUNDLE_CONTROL`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BundleControl {
    /// The bundle, as its connection numbers them.
    pub id: u32,
    /// Command, or the command that was executed.
    pub command: BundleCommand,
    /// [`BUNDLE_ATOMIC`], [`BUNDLE_ORDERED`], and other bits that a peer sets.
    pub flags: u16,
}

/// `OFPT_BUNDLE_ADD_MESSAGE`.
#[derive(Clone, PartialEq, Debug)]
pub struct BundleAdd {
    /// The bundle, as its connection numbers them.
    pub id: u32,
    /// Flags, the same as in the bundle's other messages.
    pub flags: u16,
    /// The change: a flow mod, group mod, port mod or packet-out.
    pub message: Box<Message>,
}
