//! Labels of entries.
//!
//! The kernel gives an entry room for a label only if a rule in the network namespace uses labels when the
//! entry is made. So this module adds such a rule, if a label got lost: `ct label set` in a chain of
//! nf_tables that no packet passes. Its table belongs to a socket (`NFT_TABLE_F_OWNER`), and goes when the
//! socket is closed, also by the end of the process. The kernel begins to track the namespace's own
//! connections over IPv4 with the rule, if it did not before.

use heddle_sys::NetfilterSocket;
use heddle_sys::netlink::messages;
use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, DataAttribute, Expressions, Immediate, NfTablesMessage, Register,
    RuleAttribute, RuleMessage, TableAttribute, TableFlags, TableMessage,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily, NetfilterSubsystem};
use std::io;

const BUFFER_BYTES: usize = 64 * 1024;
const CHAIN: &str = "labels";
const NFTA_CT_KEY: u16 = 2;
const NFTA_CT_SREG: u16 = 4;
/// `NFT_CT_LABELS`.
const CT_LABELS: u32 = 13;
/// Length of a label.
const LABEL_BYTES: usize = 16;

/// A rule that uses labels, as long as this value lives.
#[derive(Debug)]
pub(crate) struct LabelRule {
    _socket: NetfilterSocket,
}

impl LabelRule {
    /// Adds the rule to the calling thread's network namespace.
    ///
    /// # Errors
    /// The error of the kernel: it has no nf_tables or no labels, or the caller has no `CAP_NET_ADMIN`.
    pub(crate) fn new() -> io::Result<Self> {
        let socket = NetfilterSocket::new(BUFFER_BYTES)?;
        let table = format!("heddle-{}", socket.port_id());
        let mut out = Vec::new();
        for message in batch(&table) {
            let mut message = NetlinkMessage::from(message);
            message.header.flags = NLM_F_REQUEST;
            if matches!(&message.payload, NetlinkPayload::InnerMessage(m) if m.subsys() == NetfilterSubsystem::NfTables)
            {
                message.header.flags |= NLM_F_CREATE | NLM_F_ACK;
            }
            message.finalize();
            let at = out.len();
            out.resize(at + message.buffer_len(), 0);
            message.serialize(&mut out[at..]);
        }
        socket.send(&out)?;
        let mut buf = vec![0; BUFFER_BYTES];
        let mut acknowledged = false;
        while let Some(data) = socket.receive(&mut buf, false)? {
            for message in messages::<NetfilterMessage>(data).flatten() {
                if let NetlinkPayload::Error(e) = message.payload {
                    if e.code.is_some() {
                        return Err(e.to_io());
                    }
                    acknowledged = true;
                }
            }
        }
        match acknowledged {
            true => Ok(Self { _socket: socket }),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// One transaction: a table, a chain without a hook, a rule.
fn batch(table: &str) -> [NetfilterMessage; 5] {
    let header = |family, subsystem| NetfilterHeader::new(family, 0, subsystem);
    let control = |message| {
        let nf_tables = u8::from(NetfilterSubsystem::NfTables).into();
        NetfilterMessage::new(header(NetfilterProtoFamily::Unspec, nf_tables), message)
    };
    let change =
        |message: NfTablesMessage| NetfilterMessage::new(header(NetfilterProtoFamily::IPv4, 0), message);
    let number = |kind, value: u32| DefaultNla::new(kind, value.to_be_bytes().to_vec());
    let load = Expressions::Immediate(vec![
        Immediate::DestinationRegister(Register::Reg1),
        Immediate::Data(DataAttribute::Value([&[1][..], &[0; LABEL_BYTES - 1]].concat())),
    ]);
    let set_label = Expressions::Other {
        expression_type: "ct".to_owned(),
        attributes: vec![
            number(NFTA_CT_KEY, CT_LABELS),
            number(NFTA_CT_SREG, Register::Reg1.into()),
        ],
    };
    [
        control(ControlMessage::BatchBegin),
        change(NfTablesMessage::NewTable(TableMessage {
            attributes: vec![
                TableAttribute::Name(table.to_owned()),
                TableAttribute::Flags(TableFlags::Owner),
            ],
        })),
        change(NfTablesMessage::NewChain(ChainMessage {
            attributes: vec![
                ChainAttribute::Table(table.to_owned()),
                ChainAttribute::Name(CHAIN.to_owned()),
            ],
        })),
        change(NfTablesMessage::NewRule(RuleMessage {
            attributes: vec![
                RuleAttribute::Table(table.to_owned()),
                RuleAttribute::Chain(CHAIN.to_owned()),
                RuleAttribute::Expressions(vec![load.into(), set_label.into()]),
            ],
        })),
        control(ControlMessage::BatchEnd),
    ]
}
