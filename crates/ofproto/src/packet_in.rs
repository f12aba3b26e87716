//! Packet-ins, which upcalls of the datapath become.

use crate::xlate::{PacketInMeta, continuation_of};
use heddle_datapath_api::{PortNo, UpcallPacket};
use heddle_flow::{FieldId, FlowKey, Match};
use heddle_openflow::message::{Continuation, PacketIn, PacketInFormat};
use heddle_wire::eth::ethertype;

/// One packet-in, before the connection's own format is applied. The packet is whole, whatever length the
/// action or the connection requests. Lengths are for buffered packets (OpenFlow 1.5 §7.4.1), and this switch
/// has no buffers.
#[derive(Clone, Debug)]
pub struct PacketInEvent {
    /// The message.
    pub message: PacketIn,
    /// Id of the controllers that get it; 0 is all primary ones.
    pub controller_id: u16,
    /// Continuation with which the controller resumes the pipeline, if it waits for that.
    pub continuation: Option<Continuation>,
}

/// Turns an upcall into a packet-in, with the id of its bridge. `None`: no translation issued it.
pub(crate) fn packet_in(upcall: UpcallPacket) -> Option<(u64, PacketInEvent)> {
    let meta = upcall.upcall.cookie.0.as_any().downcast_ref::<PacketInMeta>()?;
    let continuation = meta.continuation.then(|| Continuation {
        odp_port: if upcall.in_port == PortNo::NONE {
            0
        } else {
            upcall.in_port.0
        },
        ..continuation_of(meta.frozen())
    });
    let mut fields = FlowKey {
        pkt_mark: upcall.key.pkt_mark,
        packet_type: upcall.packet_type,
        ..*meta.metadata()
    };
    if meta.frozen().conntracked {
        copy_connection(&upcall.key, &mut fields);
    }
    let event = PacketInEvent {
        message: PacketIn {
            format: PacketInFormat::Standard,
            data: upcall.bytes,
            total_len: u32::try_from(upcall.total_len).unwrap_or(u32::MAX),
            buffer_id: None,
            reason: meta.reason,
            table_id: meta.table,
            cookie: meta.cookie,
            metadata: pipeline_fields(&fields),
            userdata: meta.userdata.clone(),
            continuation: Vec::new(),
        },
        controller_id: meta.controller_id,
        continuation,
    };
    Some((meta.bridge(), event))
}

/// Copies the packet's connection state, with the EtherType, which gives the type of its addresses.
fn copy_connection(from: &FlowKey, to: &mut FlowKey) {
    to.ct_state = from.ct_state;
    to.ct_zone = from.ct_zone;
    to.ct_mark = from.ct_mark;
    to.ct_label = from.ct_label;
    if from.ct_state == 0 {
        return;
    }
    to.dl_type = from.dl_type;
    if FieldId::CtNwProto.prereqs_ok(from) && from.ct_nw_proto != 0 {
        to.ct_nw_proto = from.ct_nw_proto;
        to.ct_tp_src = from.ct_tp_src;
        to.ct_tp_dst = from.ct_tp_dst;
        to.ct_nw_src = from.ct_nw_src;
        to.ct_nw_dst = from.ct_nw_dst;
        to.ct_ipv6_src = from.ct_ipv6_src;
        to.ct_ipv6_dst = from.ct_ipv6_dst;
    }
}

/// The mask of a field that is matched as a whole, or not at all if it is zero.
fn whole<T: Default + PartialEq>(value: T, ones: T) -> T {
    if value == T::default() { value } else { ones }
}

/// A match on the pipeline fields to send: the input port, and all that are not zero.
fn pipeline_fields(key: &FlowKey) -> Match {
    let mut m = Match {
        key: *key,
        ..Match::default()
    };
    // Masks of whole fields: no field is sent with a partial mask.
    let k = &mut m.mask.0;
    let full = |v: u32| whole(v, u32::MAX);
    k.in_port = u32::MAX;
    k.metadata = whole(key.metadata, u64::MAX);
    for (mask, value) in k.regs.iter_mut().zip(key.regs) {
        *mask = full(value);
    }
    k.tun_id = whole(key.tun_id, u64::MAX);
    k.tun_src = full(key.tun_src);
    k.tun_dst = full(key.tun_dst);
    k.tun_gbp_id = whole(key.tun_gbp_id, u16::MAX);
    k.tun_gbp_flags = whole(key.tun_gbp_flags, u8::MAX);
    k.tun_ipv6_src = whole(key.tun_ipv6_src, [0xff; 16]);
    k.tun_ipv6_dst = whole(key.tun_ipv6_dst, [0xff; 16]);
    if key.tun_present != 0 {
        k.tun_present = key.tun_present;
        k.tun_metadata = [0xff; heddle_flow::key::TLV_SPACE];
    }
    k.pkt_mark = full(key.pkt_mark);
    k.packet_type = full(key.packet_type);
    k.ct_state = full(key.ct_state);
    k.ct_mark = full(key.ct_mark);
    k.ct_zone = whole(key.ct_zone, u16::MAX);
    k.ct_label = whole(key.ct_label, [0xff; 16]);
    if key.ct_state != 0 {
        k.dl_type = u16::MAX;
    }
    if key.ct_nw_proto != 0 {
        k.ct_nw_proto = u8::MAX;
        k.ct_tp_src = u16::MAX;
        k.ct_tp_dst = u16::MAX;
        if key.dl_type == ethertype::IP {
            k.ct_nw_src = u32::MAX;
            k.ct_nw_dst = u32::MAX;
        } else {
            k.ct_ipv6_src = [0xff; 16];
            k.ct_ipv6_dst = [0xff; 16];
        }
    }
    m.normalize();
    m
}
