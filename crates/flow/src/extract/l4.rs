//! TCP, UDP, SCTP, ICMP, IGMP, ICMPv6 with neighbour discovery.

use super::cursor::{Cursor, Stop};
use super::{Oddity, Stopped, at};
use crate::key::FlowKey;
use heddle_wire::icmp::{Icmp, Igmp, ND_ADVERT, ND_OPT_SLL, ND_OPT_TLL, ND_SOLICIT, NdLla};
use heddle_wire::ip::proto;
use heddle_wire::l4::{Sctp, Tcp, Udp};

/// Reads the L4 header at the cursor, of the protocol that the key names. As in Open vSwitch, the protocol
/// alone decides: ICMPv6 within IPv4 is read as ICMPv6.
pub(super) fn parse(cur: &mut Cursor<'_>, key: &mut FlowKey) -> Result<(), Stopped> {
    let short = at(Oddity::L4Header);
    match key.nw_proto {
        proto::TCP => {
            let tcp: &Tcp = cur.peek().map_err(short)?;
            let len = tcp.header_len();
            if len < Tcp::LEN || cur.left() < len {
                return Err((Stop::End, Oddity::L4Header));
            }
            key.tcp_flags = tcp.flags();
            (key.tp_src, key.tp_dst) = (tcp.src.get(), tcp.dst.get());
        }
        proto::UDP => {
            let udp: &Udp = cur.peek().map_err(short)?;
            (key.tp_src, key.tp_dst) = (udp.src.get(), udp.dst.get());
        }
        proto::SCTP => {
            let sctp: &Sctp = cur.peek().map_err(short)?;
            (key.tp_src, key.tp_dst) = (sctp.src.get(), sctp.dst.get());
        }
        proto::ICMP => {
            let icmp: &Icmp = cur.peek().map_err(short)?;
            (key.tp_src, key.tp_dst) = (icmp.ty.into(), icmp.code.into());
        }
        proto::IGMP => {
            let igmp: &Igmp = cur.peek().map_err(short)?;
            (key.tp_src, key.tp_dst) = (igmp.ty.into(), igmp.code.into());
            key.igmp_group = igmp.group.get();
        }
        proto::ICMPV6 => {
            let icmp: &Icmp = cur.take().map_err(short)?;
            (key.tp_src, key.tp_dst) = (icmp.ty.into(), icmp.code.into());
            if icmp.code == 0 && matches!(icmp.ty, ND_SOLICIT | ND_ADVERT) {
                key.igmp_group = icmp.rest.get();
                return neighbour(cur, key);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Reads target and link-layer addresses (RFC 4861, 4.3 and 4.4). An option that is malformed ends the list;
/// a second address of the same kind voids target and addresses.
fn neighbour(cur: &mut Cursor<'_>, key: &mut FlowKey) -> Result<(), Stopped> {
    key.nd_target = *cur.take::<[u8; 16]>().map_err(at(Oddity::NdOption))?;
    while cur.left() >= NdLla::LEN {
        let opt: &NdLla = cur.peek().map_err(at(Oddity::NdOption))?;
        let len = usize::from(opt.len) * 8;
        if len == 0 || len > cur.left() {
            return Err((Stop::End, Oddity::NdOption));
        }
        if len == NdLla::LEN && matches!(opt.ty, ND_OPT_SLL | ND_OPT_TLL) {
            let slot = if opt.ty == ND_OPT_SLL {
                &mut key.arp_sha
            } else {
                &mut key.arp_tha
            };
            if *slot != [0; 6] {
                key.nd_target = [0; 16];
                key.arp_sha = [0; 6];
                key.arp_tha = [0; 6];
                return Err((Stop::End, Oddity::NdOption));
            }
            *slot = opt.mac;
            if key.tcp_flags == 0 {
                key.tcp_flags = opt.ty.into();
            }
        }
        cur.skip(len);
    }
    Ok(())
}
