//! Inner packets that are too long for the path.

use super::super::ctx::{Ctx, key_port};
use super::super::recirc::Frozen;
use super::{Egress, NextHop};
use crate::model::PortView;
use heddle_datapath_api::Action as DpAction;
use heddle_flow::{FlowKey, packet_type};
use heddle_tunnel::{Encap, Outer};
use heddle_wire::eth::Ethernet;
use std::net::IpAddr;

/// Bytes of an Ethernet header with a tag: devices receive tagged packets that are longer than their MTU.
const TAGGED_ETHERNET: usize = Ethernet::LEN + 4;

impl NextHop<'_> {
    /// Longest packet, with its IP header, bytes.
    pub(super) fn mtu(&self) -> u32 {
        let mtu = self.route.mtu_bytes.unwrap_or(match self.egress {
            Egress::Bridge(_, port, _) => port.mtu,
            Egress::Device(port) => port.mtu,
        });
        self.route.path_mtu_bytes.map_or(mtu, |path| path.min(mtu))
    }
    /// Whether senders of longer packets get an error. Packets by a bridge's port get none for the MTU of the
    /// route: the bridge's rules may send them elsewhere.
    fn refuses_longer(&self) -> bool {
        matches!(self.egress, Egress::Device(_)) || self.route.path_mtu_bytes.is_some()
    }
}

impl Ctx<'_> {
    /// Length of the longest frame that fits into the path's MTU with `outer_len` bytes of outer headers.
    /// `None`: no length is compared, since [`NextHop::refuses_longer`] is false or outer packets may be
    /// fragmented. It is also so with STT, for truncated packets, without an Ethernet header, and if the
    /// input port's MTU is small.
    pub(super) fn longest_frame(
        &mut self,
        hop: &NextHop<'_>,
        outer: &Outer,
        outer_len: usize,
    ) -> Option<u16> {
        if !hop.refuses_longer() || !outer.df || self.flow.packet_type != packet_type::ETHERNET {
            return None;
        }
        // Frames of STT are sent in segments, and truncated packets are short.
        if matches!(outer.encap, Encap::Stt { .. }) || self.out.truncation().is_some() {
            return None;
        }
        let mtu = usize::try_from(hop.mtu()).ok()?;
        let len = (mtu + Ethernet::LEN).checked_sub(outer_len)?;
        let from = self.input.from.and_then(|(bridge, port)| {
            let bridge = self.input.snapshot.bridges.get(&bridge)?;
            self.port_of(bridge, port)
        });
        let received = from.map_or(0, |port| port.mtu) as usize;
        if received != 0 && received + TAGGED_ETHERNET <= len {
            return None;
        }
        u16::try_from(len).ok()
    }

    /// Limits the actions from index `at` to frames of at most `len` bytes. The sender of a longer frame gets
    /// an ICMP error, which the pipeline handles as a packet from the tunnel.
    pub(super) fn refuse_longer(&mut self, from: &PortView, hop: &NextHop<'_>, len: u16, at: usize) {
        let less_equal: Vec<_> = self.out.actions.drain(at..).collect();
        let mut metadata = FlowKey {
            in_port: key_port(from.no),
            ..FlowKey::default()
        };
        let kept = self.kept_metadata();
        metadata.copy_tunnel(&kept);
        // The error has the tunnel's key and options, as in Linux, and comes from the remote address.
        (metadata.tun_src, metadata.tun_ipv6_src) = (self.flow.tun_dst, self.flow.tun_ipv6_dst);
        (metadata.tun_dst, metadata.tun_ipv6_dst) = match hop.route.source {
            IpAddr::V4(a) => (a.into(), [0; 16]),
            IpAddr::V6(a) => (0, a.octets()),
        };
        let frozen = Frozen {
            table: 0,
            conntracked: false,
            was_mpls: false,
            mirrored: 0,
            ..self.frozen(metadata)
        };
        // The connection is the packet's, and the error finds its own.
        let mut greater = vec![DpAction::TooBig { frame_len: len }, DpAction::CtClear];
        if let Some(held) = self.take_recirculation(frozen) {
            greater.push(DpAction::Recirc(held.id));
            self.out.credits.push(held);
        }
        self.out.emit(DpAction::CheckPktLen {
            len,
            greater,
            less_equal,
        });
    }
}
