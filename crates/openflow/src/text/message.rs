//! Messages as the log shows them: `OFPT_FLOW_MOD (OF1.4) (xid=0x2): ADD in_port=1 actions=output:2`.
//!
//! Every message has its name. Contents are shown of greetings, errors, flow mods and flows, and bundles,
//! which people look for in a log. Names and layout are those of `ovs-ofctl`.

use super::InstructionsText;
use super::format::format_port;
use crate::DecodeContext;
use crate::action::{InstructionSet, Port};
use crate::message::{
    BUNDLE_ATOMIC, BUNDLE_ORDERED, BundleCommand, FlowMod, FlowModCommand, FlowModFlags, FlowStats,
    FlowStatsRequest, Message, MpReply, MpRequest, PacketInFormat,
};
use crate::version::Version;
use core::fmt::{self, Display, Formatter};
use heddle_flow::Match;

/// A message with the fields of its header.
#[derive(Clone, Copy)]
pub struct MessageText<'a> {
    /// The version that it was sent in.
    pub version: Version,
    /// Transaction id.
    pub xid: u32,
    /// The message.
    pub message: &'a Message,
}

/// The text of a whole message from its bytes. For a message that cannot be decoded, it has only type and
/// length.
pub fn describe(bytes: &[u8], context: &DecodeContext) -> String {
    match crate::decode(bytes, context) {
        Ok((header, message)) => MessageText {
            version: Version::from_wire(header.version).unwrap_or(Version::V10),
            xid: header.xid,
            message: &message,
        }
        .to_string(),
        Err(e) => format!(
            "type {} (version {:#04x}) (xid={:#x}): {} bytes that cannot be read ({:?})",
            e.header.msg_type,
            e.header.version,
            e.header.xid,
            bytes.len(),
            e.error.kind
        ),
    }
}

impl Display for MessageText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self.version, self.message))?;
        if self.version > Version::V10 {
            write!(f, " (OF1.{})", self.version.wire() - 1)?;
        }
        write!(f, " (xid={:#x}):", self.xid)?;
        match self.message {
            Message::Hello(h) => {
                let bits = h.bitmap.unwrap_or(self.version.bit());
                write!(f, "\n version bitmap: {}", Versions(bits))
            }
            Message::Error(e) => match e.kind {
                Some(kind) => write!(f, " {kind:?}"),
                None => write!(
                    f,
                    " experimenter {:#x}, type {}, code {}",
                    e.raw.0, e.raw.1, e.raw.2
                ),
            },
            Message::EchoRequest(data) | Message::EchoReply(data) => {
                write!(f, " {} bytes of payload", data.len())
            }
            Message::FlowMod(m) => flow_mod(f, self.version, m),
            Message::SetFlowFormat(nxm) => {
                write!(f, " format={}", if *nxm { "nxm" } else { "openflow10" })
            }
            Message::BundleControl(c) => {
                let command = match c.command {
                    BundleCommand::OpenRequest => "OPEN_REQUEST",
                    BundleCommand::OpenReply => "OPEN_REPLY",
                    BundleCommand::CloseRequest => "CLOSE_REQUEST",
                    BundleCommand::CloseReply => "CLOSE_REPLY",
                    BundleCommand::CommitRequest => "COMMIT_REQUEST",
                    BundleCommand::CommitReply => "COMMIT_REPLY",
                    BundleCommand::DiscardRequest => "DISCARD_REQUEST",
                    BundleCommand::DiscardReply => "DISCARD_REPLY",
                };
                let flags = bundle_flags(c.flags);
                write!(f, "\n bundle_id={} type={command} flags={flags}", hex(c.id))
            }
            Message::BundleAdd(a) => {
                write!(f, "\n bundle_id={} flags={}\n", hex(a.id), bundle_flags(a.flags))?;
                let inner = MessageText {
                    message: &a.message,
                    ..*self
                };
                inner.fmt(f)
            }
            Message::MultipartRequest {
                body: MpRequest::Flow(r) | MpRequest::Aggregate(r),
                ..
            } => flow_request(f, r),
            Message::MultipartReply {
                body: MpReply::Flow { flows, .. },
                ..
            } => flows.iter().try_for_each(|s| flow(f, s)),
            _ => Ok(()),
        }
    }
}

/// Versions of OpenFlow by the bits of a greeting's bitmap.
pub struct Versions(pub u32);

impl Display for Versions {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let all = (0..32).filter(|bit| self.0 >> bit & 1 != 0);
        let texts: Vec<String> = all.map(|v| format!("{v:#04x}")).collect();
        f.write_str(&texts.join(", "))
    }
}

fn hex(n: u32) -> String {
    if n == 0 { "0".into() } else { format!("{n:#x}") }
}

fn bundle_flags(flags: u16) -> String {
    let mut words = Vec::new();
    for (bit, word) in [(BUNDLE_ATOMIC, "atomic"), (BUNDLE_ORDERED, "ordered")] {
        if flags & bit != 0 {
            words.push(word.to_owned());
        }
    }
    let rest = flags & !(BUNDLE_ATOMIC | BUNDLE_ORDERED);
    if rest != 0 || words.is_empty() {
        words.push(hex(rest.into()));
    }
    words.join(" ")
}

/// Flags of a flow, each with a space behind it.
fn flow_flags(f: &mut Formatter<'_>, flags: FlowModFlags) -> fmt::Result {
    let words = [
        (FlowModFlags::SEND_FLOW_REM, "send_flow_rem "),
        (FlowModFlags::CHECK_OVERLAP, "check_overlap "),
        (FlowModFlags::RESET_COUNTS, "reset_counts "),
        (FlowModFlags::NO_PKT_COUNTS, "no_packet_counts "),
        (FlowModFlags::NO_BYT_COUNTS, "no_byte_counts "),
    ];
    let set = words.into_iter().filter(|(flag, _)| flags.contains(*flag));
    set.into_iter().try_for_each(|(_, word)| f.write_str(word))
}

/// A match, with a space behind it if there is anything.
fn matched(f: &mut Formatter<'_>, m: &Match, priority: u16) -> fmt::Result {
    let text = m.text(None, priority.into()).to_string();
    f.write_str(&text)?;
    f.write_str(if text.is_empty() || text.ends_with(' ') {
        ""
    } else {
        " "
    })
}

fn actions(f: &mut Formatter<'_>, set: &InstructionSet) -> fmt::Result {
    write!(f, "actions={}", InstructionsText { set, names: None })
}

fn flow_mod(f: &mut Formatter<'_>, version: Version, m: &FlowMod) -> fmt::Result {
    f.write_str(match m.command {
        FlowModCommand::Add => " ADD",
        FlowModCommand::Modify => " MOD",
        FlowModCommand::ModifyStrict => " MOD_STRICT",
        FlowModCommand::Delete => " DEL",
        FlowModCommand::DeleteStrict => " DEL_STRICT",
    })?;
    // 1.0 has no tables, so all of them are the default there.
    if m.table_id != 0 && (version > Version::V10 || m.table_id != 0xff) {
        write!(f, " table:{}", m.table_id)?;
    }
    f.write_str(" ")?;
    matched(f, &m.match_, m.priority)?;
    if m.new_cookie != 0 && m.new_cookie != u64::MAX {
        write!(f, "cookie:{:#x} ", m.new_cookie)?;
    }
    if m.cookie_mask != 0 {
        write!(f, "cookie:{:#x}/{:#x} ", m.cookie, m.cookie_mask)?;
    }
    for (name, value) in [
        ("idle", m.idle_timeout),
        ("hard", m.hard_timeout),
        ("importance", m.importance),
    ] {
        if value != 0 {
            write!(f, "{name}:{value} ")?;
        }
    }
    if let Some(buffer) = m.buffer_id {
        write!(f, "buf:{buffer:#x} ")?;
    }
    if m.out_port != Port::NONE {
        f.write_str("out_port:")?;
        format_port(f, m.out_port, None)?;
        f.write_str(" ")?;
    }
    let mut flags = m.flags;
    if version < Version::V12 {
        flags.remove(FlowModFlags::RESET_COUNTS);
    }
    flow_flags(f, flags)?;
    actions(f, &m.instructions)
}

fn flow_request(f: &mut Formatter<'_>, r: &FlowStatsRequest) -> fmt::Result {
    if r.table_id != 0xff {
        write!(f, " table={}", r.table_id)?;
    }
    if r.out_port != Port::NONE {
        f.write_str(" out_port=")?;
        format_port(f, r.out_port, None)?;
    }
    write!(f, " {}", r.match_.text(None, 0x8000))
}

fn flow(f: &mut Formatter<'_>, s: &FlowStats) -> fmt::Result {
    write!(f, "\n cookie={:#x}, duration={}", s.cookie, s.duration_sec)?;
    if s.duration_nsec > 0 {
        let digits = format!("{:09}", s.duration_nsec);
        let millis = s.duration_nsec.is_multiple_of(1_000_000);
        let shown = if millis {
            &digits[..3]
        } else {
            digits.trim_end_matches('0')
        };
        write!(f, ".{shown}")?;
    }
    write!(f, "s, table={}, ", s.table_id)?;
    for (name, count) in [("n_packets", s.packet_count), ("n_bytes", s.byte_count)] {
        if count != u64::MAX {
            write!(f, "{name}={count}, ")?;
        }
    }
    for (name, seconds) in [("idle_timeout", s.idle_timeout), ("hard_timeout", s.hard_timeout)] {
        if seconds != 0 {
            write!(f, "{name}={seconds}, ")?;
        }
    }
    flow_flags(f, s.flags)?;
    if s.importance != 0 {
        write!(f, "importance={}, ", s.importance)?;
    }
    if let Some(age) = s.idle_age {
        write!(f, "idle_age={age}, ")?;
    }
    if let Some(age) = s.hard_age.filter(|a| u32::from(*a) != s.duration_sec) {
        write!(f, "hard_age={age}, ")?;
    }
    matched(f, &s.match_, s.priority)?;
    actions(f, &s.instructions)
}

/// The name of a message. Its prefix (the specification's, Nicira's, ONF's) depends on the version.
fn name(version: Version, message: &Message) -> String {
    let since = |first: Version, word: &str| {
        let whose = if version >= first { "OFPT" } else { "NXT" };
        format!("{whose}_{word}")
    };
    // Messages that 1.4 took over from an experimenter.
    let onf = |word: &str| {
        let whose = if version >= Version::V14 { "OFPT" } else { "ONFT" };
        format!("{whose}_{word}")
    };
    match message {
        Message::Hello(_) => "OFPT_HELLO",
        Message::Error(_) => "OFPT_ERROR",
        Message::EchoRequest(_) => "OFPT_ECHO_REQUEST",
        Message::EchoReply(_) => "OFPT_ECHO_REPLY",
        Message::FeaturesRequest => "OFPT_FEATURES_REQUEST",
        Message::FeaturesReply(_) => "OFPT_FEATURES_REPLY",
        Message::GetConfigRequest => "OFPT_GET_CONFIG_REQUEST",
        Message::GetConfigReply(_) => "OFPT_GET_CONFIG_REPLY",
        Message::SetConfig(_) => "OFPT_SET_CONFIG",
        Message::PacketIn(p) => match p.format {
            PacketInFormat::Standard => "OFPT_PACKET_IN",
            PacketInFormat::Nxt => "NXT_PACKET_IN",
            PacketInFormat::Nxt2 => "NXT_PACKET_IN2",
        },
        Message::Resume(_) => "NXT_RESUME",
        Message::PacketOut(_) => "OFPT_PACKET_OUT",
        Message::FlowMod(m) if m.nxm => "NXT_FLOW_MOD",
        Message::FlowMod(_) => "OFPT_FLOW_MOD",
        Message::FlowRemoved(r) if r.nxm => "NXT_FLOW_REMOVED",
        Message::FlowRemoved(_) => "OFPT_FLOW_REMOVED",
        Message::GroupMod(_) => return since(Version::V11, "GROUP_MOD"),
        Message::MeterMod(_) => "OFPT_METER_MOD",
        Message::PortStatus(_) => "OFPT_PORT_STATUS",
        Message::PortMod(_) => "OFPT_PORT_MOD",
        Message::TableMod(_) => "OFPT_TABLE_MOD",
        Message::TableStatus(_) => "OFPT_TABLE_STATUS",
        Message::RequestForward { .. } => "OFPT_REQUESTFORWARD",
        Message::BarrierRequest => "OFPT_BARRIER_REQUEST",
        Message::BarrierReply => "OFPT_BARRIER_REPLY",
        Message::RoleRequest(_) => return since(Version::V12, "ROLE_REQUEST"),
        Message::RoleReply(_) => return since(Version::V12, "ROLE_REPLY"),
        Message::RoleStatus(_) => return onf("ROLE_STATUS"),
        Message::GetAsyncRequest => "OFPT_GET_ASYNC_REQUEST",
        Message::GetAsyncReply(_) => "OFPT_GET_ASYNC_REPLY",
        Message::SetAsync(_) if version < Version::V13 => "NXT_SET_ASYNC_CONFIG",
        Message::SetAsync(_) => "OFPT_SET_ASYNC",
        Message::QueueGetConfigRequest(_) => "OFPT_QUEUE_GET_CONFIG_REQUEST",
        Message::QueueGetConfigReply(_) => "OFPT_QUEUE_GET_CONFIG_REPLY",
        Message::SetFlowFormat(_) => "NXT_SET_FLOW_FORMAT",
        Message::FlowModTableId(_) => "NXT_FLOW_MOD_TABLE_ID",
        Message::SetPacketInFormat(_) => "NXT_SET_PACKET_IN_FORMAT",
        Message::SetControllerId(_) => "NXT_SET_CONTROLLER_ID",
        Message::CtFlushZone(_) => "NXT_CT_FLUSH_ZONE",
        Message::CtFlush { .. } => "NXT_CT_FLUSH",
        Message::TlvTableMod(_) => "NXT_TLV_TABLE_MOD",
        Message::TlvTableRequest => "NXT_TLV_TABLE_REQUEST",
        Message::TlvTableReply(_) => "NXT_TLV_TABLE_REPLY",
        Message::BundleControl(_) => return onf("BUNDLE_CONTROL"),
        Message::BundleAdd(_) => return onf("BUNDLE_ADD_MESSAGE"),
        Message::FlowMonitorCancel(_) => "NXT_FLOW_MONITOR_CANCEL",
        Message::FlowMonitorPaused => "NXT_FLOW_MONITOR_PAUSED",
        Message::FlowMonitorResumed => "NXT_FLOW_MONITOR_RESUMED",
        Message::MultipartRequest { body, .. } => {
            let (nxm, word) = request_name(body);
            return format!("{}_{word} request", if nxm { "NXST" } else { "OFPST" });
        }
        Message::MultipartReply { body, .. } => {
            let (nxm, word) = reply_name(body);
            return format!("{}_{word} reply", if nxm { "NXST" } else { "OFPST" });
        }
        Message::Unsupported(u) => u.kind,
    }
    .to_owned()
}

/// Whether the request is Nicira's, and its name.
fn request_name(body: &MpRequest) -> (bool, &'static str) {
    match body {
        MpRequest::Desc => (false, "DESC"),
        MpRequest::Flow(r) => (r.nxm, "FLOW"),
        MpRequest::Aggregate(r) => (r.nxm, "AGGREGATE"),
        MpRequest::Table => (false, "TABLE"),
        MpRequest::Port(_) => (false, "PORT"),
        MpRequest::Queue { .. } => (false, "QUEUE"),
        MpRequest::PortDesc(_) => (false, "PORT_DESC"),
        MpRequest::TableFeatures(_) => (false, "TABLE_FEATURES"),
        MpRequest::TableDesc => (false, "TABLE_DESC"),
        MpRequest::QueueDesc(_) => (false, "QUEUE_DESC"),
        MpRequest::GroupStats(_) => (false, "GROUP"),
        MpRequest::GroupDesc(_) => (false, "GROUP_DESC"),
        MpRequest::GroupFeatures => (false, "GROUP_FEATURES"),
        MpRequest::MeterStats(_) => (false, "METER"),
        MpRequest::MeterConfig(_) => (false, "METER_CONFIG"),
        MpRequest::MeterFeatures => (false, "METER_FEATURES"),
        MpRequest::FlowMonitor(_) => (false, "FLOW_MONITOR"),
        MpRequest::IpfixBridge => (true, "IPFIX_BRIDGE"),
        MpRequest::IpfixFlow => (true, "IPFIX_FLOW"),
    }
}

fn reply_name(body: &MpReply) -> (bool, &'static str) {
    match body {
        MpReply::Desc(_) => (false, "DESC"),
        MpReply::Flow { nxm, .. } => (*nxm, "FLOW"),
        MpReply::Aggregate { nxm, .. } => (*nxm, "AGGREGATE"),
        MpReply::Table(_) => (false, "TABLE"),
        MpReply::Port(_) => (false, "PORT"),
        MpReply::Queue(_) => (false, "QUEUE"),
        MpReply::PortDesc(_) => (false, "PORT_DESC"),
        MpReply::TableFeatures(_) => (false, "TABLE_FEATURES"),
        MpReply::TableDesc(_) => (false, "TABLE_DESC"),
        MpReply::QueueDesc(_) => (false, "QUEUE_DESC"),
        MpReply::GroupStats(_) => (false, "GROUP"),
        MpReply::GroupDesc(_) => (false, "GROUP_DESC"),
        MpReply::GroupFeatures(_) => (false, "GROUP_FEATURES"),
        MpReply::MeterStats(_) => (false, "METER"),
        MpReply::MeterConfig(_) => (false, "METER_CONFIG"),
        MpReply::MeterFeatures(_) => (false, "METER_FEATURES"),
        MpReply::FlowMonitor(_) => (false, "FLOW_MONITOR"),
        MpReply::IpfixBridge(_) => (true, "IPFIX_BRIDGE"),
        MpReply::IpfixFlow(_) => (true, "IPFIX_FLOW"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode;
    use crate::message::{BundleAdd, BundleControl, Hello};

    fn shown(version: Version, message: &Message) -> String {
        let bytes = encode(version, 2, message).unwrap();
        describe(&bytes[0], &DecodeContext::default())
    }

    #[test]
    fn as_ovs_ofctl_shows_them() {
        let hello = Message::Hello(Hello { bitmap: Some(0x12) });
        assert_eq!(
            shown(Version::V13, &hello),
            "OFPT_HELLO (OF1.3) (xid=0x2):\n version bitmap: 0x01, 0x04"
        );
        assert_eq!(
            shown(Version::V10, &Message::BarrierReply),
            "OFPT_BARRIER_REPLY (xid=0x2):"
        );
        let (m, set) = (Match::default(), InstructionSet::default());
        let mut fm = FlowMod::new(FlowModCommand::Delete, m, 0x8000, set);
        fm.table_id = 0xff;
        let delete = Message::FlowMod(Box::new(fm));
        assert_eq!(
            shown(Version::V10, &delete),
            "OFPT_FLOW_MOD (xid=0x2): DEL actions=drop"
        );
        let add = Message::BundleAdd(BundleAdd {
            id: 0,
            flags: BUNDLE_ATOMIC | BUNDLE_ORDERED,
            message: Box::new(delete),
        });
        assert_eq!(
            shown(Version::V14, &add),
            "OFPT_BUNDLE_ADD_MESSAGE (OF1.4) (xid=0x2):\n bundle_id=0 flags=atomic ordered\n\
             OFPT_FLOW_MOD (OF1.4) (xid=0x2): DEL table:255 actions=drop"
        );
        let open = Message::BundleControl(BundleControl {
            id: 17,
            command: BundleCommand::OpenReply,
            flags: 0,
        });
        assert_eq!(
            shown(Version::V13, &open),
            "ONFT_BUNDLE_CONTROL (OF1.3) (xid=0x2):\n bundle_id=0x11 type=OPEN_REPLY flags=0"
        );
    }

    #[test]
    fn what_cannot_be_read_is_shown_all_the_same() {
        let text = describe(&[1, 14, 0, 8, 0, 0, 0, 9], &DecodeContext::default());
        assert!(
            text.starts_with("type 14 (version 0x01) (xid=0x9): 8 bytes that cannot be read"),
            "{text}"
        );
        assert!(!describe(&[], &DecodeContext::default()).is_empty());
    }
}
