//! Messages in their version-independent form.
//!
//! One enum for every version. A part that only some versions have is an `Option` or has a neutral value. The
//! codec of each version defines what it can carry. Large payloads are boxed, so that a [`Message`] stays
//! small to move. Numbers are in host order.

mod bundle;
mod ct_flush;
mod flow;
mod group;
mod meter;
mod monitor;
mod packet;
mod port;
mod role;
mod stack;
mod stats;
mod switch;
mod table;
mod tlv;

pub use bundle::{BUNDLE_ATOMIC, BUNDLE_ORDERED, BundleAdd, BundleCommand, BundleControl};
pub use ct_flush::{CtFlush, CtTuple};
pub use flow::{FlowMod, FlowModCommand, FlowModFlags, FlowRemoved, FlowRemovedReason, GROUP_ANY};
pub use group::{
    BUCKET_ALL, BUCKET_FIRST, BUCKET_LAST, BUCKET_MAX, Bucket, GROUP_ALL, GROUP_MAX, GroupCommand, GroupDesc,
    GroupMod, GroupStats, GroupType, Selection, SelectionMethod,
};
pub use meter::{
    Band, BandKind, METER_ALL, METER_CONTROLLER, METER_MAX, METER_SLOWPATH, MeterCommand, MeterConfig,
    MeterFlags, MeterMod, MeterStats,
};
pub use monitor::{FlowChange, FlowEvent, FlowMonitorRequest, FlowUpdate, MonitorCommand, MonitorFlags};
pub use packet::{Continuation, ContinuationStep, PacketIn, PacketInFormat, PacketInReason, PacketOut};
pub use port::{
    PortConfig, PortDesc, PortFeatures, PortMod, PortReason, PortState, PortStatus, QueueConfig,
    QueueGetConfig,
};
pub use role::{AsyncConfig, AsyncType, Role, RoleReason, RoleRequest, RoleStatus};
pub use stack::StackValue;
pub use stats::{
    AggregateStats, DescStats, FlowStats, FlowStatsRequest, GroupFeatures, IpfixStats, MeterFeatures,
    MpReply, MpRequest, PortStats, QueueStats, TableStats,
};
pub use switch::{Capabilities, ConfigFlags, ErrorMsg, Hello, SwitchConfig, SwitchFeatures, Unsupported};
pub use table::{
    TableDesc, TableFeatures, TableFeaturesCommand, TableMiss, TableMod, TableReason, TableStatus,
};
pub use tlv::{TlvCommand, TlvMapping, TlvTable, TlvTableMod};

/// One message, without its header.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Version negotiation.
    Hello(Hello),
    /// An error about an earlier message.
    Error(ErrorMsg),
    /// Request for a sign of life.
    EchoRequest(Vec<u8>),
    /// Reply to `EchoRequest`, with its bytes.
    EchoReply(Vec<u8>),
    /// Requests the features of the switch.
    FeaturesRequest,
    /// Reply to `FeaturesRequest`.
    FeaturesReply(SwitchFeatures),
    /// Requests the switch configuration.
    GetConfigRequest,
    /// Reply to `GetConfigRequest`.
    GetConfigReply(SwitchConfig),
    /// Sets the switch configuration.
    SetConfig(SwitchConfig),
    /// A packet for the controller.
    PacketIn(Box<PacketIn>),
    /// Nicira: resumes a paused pipeline (`NXT_RESUME`) from the contents of the packet-in that paused it.
    Resume(Box<PacketIn>),
    /// A packet from the controller.
    PacketOut(Box<PacketOut>),
    /// Adds, changes, deletes flows.
    FlowMod(Box<FlowMod>),
    /// A flow was removed.
    FlowRemoved(Box<FlowRemoved>),
    /// Changes groups (1.1 and later; Nicira's in 1.0).
    GroupMod(Box<GroupMod>),
    /// Changes meters (1.3 and later).
    MeterMod(MeterMod),
    /// A port came, went or changed.
    PortStatus(PortStatus),
    /// Configures a port.
    PortMod(PortMod),
    /// Configures a table (1.1 and later).
    TableMod(TableMod),
    /// A table has become full or empty (1.4 and later).
    TableStatus(TableStatus),
    /// A group or meter mod of another controller, after it was executed.
    RequestForward {
        /// The other controller's transaction id.
        xid: u32,
        /// The other controller's message.
        message: Box<Message>,
    },
    /// Finishes all earlier messages first.
    BarrierRequest,
    /// Reply to `BarrierRequest`.
    BarrierReply,
    /// Requests a role (Nicira's before 1.2).
    RoleRequest(RoleRequest),
    /// Reply to `RoleRequest`.
    RoleReply(RoleRequest),
    /// Another controller took the role (1.4; experimenter in 1.3).
    RoleStatus(RoleStatus),
    /// Requests the asynchronous messages that are sent (1.3 and later).
    GetAsyncRequest,
    /// Reply to `GetAsyncRequest`.
    GetAsyncReply(AsyncConfig),
    /// Selects the asynchronous messages to send.
    SetAsync(AsyncConfig),
    /// Requests the queues of a port (1.0 to 1.3; later a multipart request).
    QueueGetConfigRequest(QueueGetConfig),
    /// Reply to `QueueGetConfigRequest`.
    QueueGetConfigReply(QueueConfig),
    /// Nicira (1.0): which format flow-removed messages take; `true` for NXM.
    SetFlowFormat(bool),
    /// Nicira: the upper byte of a flow mod's command is a table id.
    FlowModTableId(bool),
    /// Nicira: which format packet-ins take.
    SetPacketInFormat(PacketInFormat),
    /// Nicira: this connection's controller id.
    SetControllerId(u16),
    /// Nicira: forgets the tracked connections of a zone.
    CtFlushZone(u16),
    /// Nicira: forgets the tracked connections that match.
    CtFlush {
        /// Protocol of the connections; 0: any.
        ip_proto: u8,
        /// Further conditions, as they came: well-framed properties (`NXT_CT_ORIG_TUPLE` and others).
        properties: Vec<u8>,
    },
    /// Nicira: changes the bridge's map of tunnel options.
    TlvTableMod(TlvTableMod),
    /// Nicira: requests that map.
    TlvTableRequest,
    /// Reply to `TlvTableRequest`.
    TlvTableReply(TlvTable),
    /// Opens, closes, commits or discards a bundle (1.3 and later), or confirms that.
    BundleControl(BundleControl),
    /// Adds a change to a bundle.
    BundleAdd(BundleAdd),
    /// Ends a flow monitor (1.3 and earlier; later a multipart request does).
    FlowMonitorCancel(u32),
    /// Flow updates are held back (1.3 and earlier; later an update itself).
    FlowMonitorPaused,
    /// All flow updates that were held back have been sent (1.3 and earlier).
    FlowMonitorResumed,
    /// Requests statistics or descriptions.
    MultipartRequest {
        /// More parts of the request follow.
        more: bool,
        /// Body of the request.
        body: MpRequest,
    },
    /// Reply to `MultipartRequest`; [`crate::encode`] splits it at 64 KiB.
    MultipartReply {
        /// More parts of the reply follow (in a decoded reply; ignored when encoding).
        more: bool,
        /// Body of the reply.
        body: MpReply,
    },
    /// A message that is well framed, but not handled: it has the error to send.
    Unsupported(Unsupported),
}
