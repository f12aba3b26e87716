//! Packets that come from tunnels, and outputs to tunnels.
//!
//! A tunnel's configuration decides most of the outer headers; the others come from the tunnel fields of
//! `flow`. Later actions do not see the fields that one output has set.
//!
//! ECN follows RFC 6040: a packet that met congestion outside shows that inside, and a packet that cannot
//! show it is dropped.

use super::ctx::Ctx;
use super::flow::Pending;
use super::input::Start;
use super::log;
use super::mask::{DSCP_MASK, ECN_MASK, is_ip_any, tun_flags};
use crate::model::PortView;
use crate::parts::Part;
use crate::tunnels::{Tunnel, is_tunnelled};
use heddle_datapath_api::{Action as DpAction, DropReason, TunnelKey};
use heddle_flow::key::tun_flag;
use heddle_flow::{FlowKey, packet_type};
use heddle_tunnel::config::{DEFAULT_TTL, Key, Local, PacketMode};
use heddle_tunnel::{TunnelConfig, TunnelType};
use std::net::IpAddr;
use std::sync::Arc;

/// ECN: capable, the first of two codepoints (RFC 3168).
const ECT_0: u8 = 2;

impl Ctx<'_> {
    /// Prepares a packet from a tunnel for the tables.
    pub(super) fn come_from_tunnel(&mut self, tunnel: &Tunnel) {
        let table = match self.input.start {
            Start::Thaw { frozen, .. } => frozen.table,
            Start::Tables | Start::Actions(_) => 0,
        };
        let is_bare = self.flow.packet_type != packet_type::ETHERNET;
        if is_bare && tunnel.config.mode == PacketMode::LegacyL3 && table == 0 {
            // Tables see frames only. The header is pushed if an action needs a frame.
            self.flow.packet_type = packet_type::ETHERNET;
            (self.flow.dl_src, self.flow.dl_dst) = ([0; 6], [0; 6]);
            self.base.pending = Some(Pending::Encap(Vec::new()));
        }
    }

    /// Marks the inner packet if it met congestion outside. `false`: it cannot be marked, and must be
    /// dropped.
    pub(super) fn take_over_ecn(&mut self) -> bool {
        let met = is_tunnelled(&self.flow) && self.flow.tun_tos & ECN_MASK == ECN_MASK;
        if !met || !is_ip_any(&self.flow) {
            return true;
        }
        if self.flow.nw_tos & ECN_MASK == 0 {
            log::BAD_ECN.log_to("tunnel", ::log::Level::Warn, self.input.now_ms, || {
                "dropping tunnel packet marked ECN CE but is not ECN capable".to_owned()
            });
            self.out.drop_hint = Some(DropReason::TunnelEcn);
            return false;
        }
        self.flow.nw_tos |= ECN_MASK;
        true
    }

    /// Outputs the packet to a tunnel port.
    pub(super) fn tunnel_output(&mut self, port: &PortView, tunnel: &Tunnel, last: bool) {
        let before = *self.flow;
        let mark = self.mark();
        self.look_at_tunnel(&tunnel.config);
        if self.flow.packet_type == packet_type::ETHERNET && tunnel.config.mode == PacketMode::LegacyL3 {
            self.flow.packet_type = packet_type::of_ethertype(self.flow.dl_type);
            // A header that was not pushed yet is not needed.
            self.base.pending = None;
        }
        if self.is_in_use(port, tunnel) {
            self.outer_fields(&tunnel.config);
            if is_own_address(&self.flow, self.input.key) {
                self.trace.warn("Not tunneling to our own address");
                self.out.drop_hint.get_or_insert(DropReason::TunnelAddress);
            } else {
                if self.send_into(port, tunnel, &before, last) {
                    self.out.credit(&port.patch_tx);
                }
            }
        } else {
            self.trace.warn("Tunneling decided against output");
        }
        self.flow.copy_tunnel(&before);
        (self.flow.packet_type, self.flow.dl_type) = (before.packet_type, before.dl_type);
        (self.flow.dl_src, self.flow.dl_dst) = (before.dl_src, before.dl_dst);
        self.isolate_changes(mark, last);
    }

    /// Sets the tunnel's fields to what an output to such a port would send, for a sample of it. A datapath
    /// with tunnel devices gets an action for them.
    pub(super) fn fill_tunnel(&mut self, config: &TunnelConfig) {
        self.look_at_tunnel(config);
        self.outer_fields(config);
        if !self.at.is_native() {
            self.set_tunnel(config);
        }
    }

    /// Adds the fields of the packet's own tunnel that another tunnel sends to the mask.
    fn look_at_tunnel(&mut self, config: &TunnelConfig) {
        if !is_tunnelled(self.input.key) {
            return;
        }
        let sent = match self.at.is_native() {
            true => left_to_flow(config, &self.flow),
            false => all_of_tunnel(&self.flow),
        };
        let wanted = &mut self.out.extra().0;
        let mut both = *wanted;
        both.words_mut()
            .iter_mut()
            .zip(sent.words())
            .for_each(|(b, s)| *b |= s);
        wanted.copy_tunnel(&both);
    }

    /// Whether the port is in the map, rather than left out for another port with the same match.
    fn is_in_use(&mut self, port: &PortView, tunnel: &Tunnel) -> bool {
        self.out.depend_on(match tunnel.config.remote {
            Some(remote) => Part::Peer(tunnel.dp, remote),
            None => Part::Tunnels(tunnel.dp),
        });
        self.input.snapshot.tunnels.get(&tunnel.outer_match()) == Some((self.at.bridge.id, port.no))
    }

    /// Sets the tunnel's fields to those of the outer headers.
    fn outer_fields(&mut self, config: &TunnelConfig) {
        let is_ip = is_ip_any(&self.flow);
        let (f, m) = (&mut self.flow, &mut self.out.mask.0);
        match config.local {
            Local::Flow => {}
            Local::Any => (f.tun_src, f.tun_ipv6_src) = (0, [0; 16]),
            Local::Is(ip) => (f.tun_src, f.tun_ipv6_src) = fields(ip),
        }
        if let Some(remote) = config.remote {
            (f.tun_dst, f.tun_ipv6_dst) = fields(remote);
        }
        if !config.out_key.is_flow() {
            f.tun_id = config.out_key.value();
        }
        f.tun_ttl = match config.ttl {
            Some(ttl) => ttl,
            None if is_ip => {
                m.nw_ttl = u8::MAX;
                f.nw_ttl
            }
            None => DEFAULT_TTL,
        };
        f.tun_tos = match config.tos {
            Some(tos) => tos,
            None if is_ip => {
                m.nw_tos |= DSCP_MASK;
                f.nw_tos & DSCP_MASK
            }
            None => 0,
        };
        if is_ip {
            m.nw_tos |= ECN_MASK;
            f.tun_tos |= match f.nw_tos & ECN_MASK {
                // Congestion that was met inside stays inside: the outer header shows only that it could be
                // marked.
                ECN_MASK => ECT_0,
                ecn => ecn,
            };
        }
        let set = |bit: u16, on: bool| if on { bit } else { 0 };
        f.tun_flags = f.tun_flags & !tun_flags::DATAPATH
            | set(tun_flags::DF, config.df)
            | set(tun_flags::CSUM, config.csum)
            | set(tun_flags::KEY, config.out_key != Key::Absent);
        if let Some(mark) = config.egress_pkt_mark {
            f.pkt_mark = mark;
            m.pkt_mark = u32::MAX;
        }
        let e = config.erspan;
        f.tun_erspan_ver = e.ver.unwrap_or(f.tun_erspan_ver);
        f.tun_erspan_idx = e.idx.unwrap_or(f.tun_erspan_idx);
        f.tun_erspan_dir = e.dir.unwrap_or(f.tun_erspan_dir);
        f.tun_erspan_hwid = e.hwid.unwrap_or(f.tun_erspan_hwid);
    }

    /// Emits the output to the tunnel, whose fields are in `flow`; `before` is the key without them. `false`:
    /// the packet waits, and is output later.
    fn send_into(&mut self, port: &PortView, tunnel: &Tunnel, before: &FlowKey, last: bool) -> bool {
        if self.at.is_native() {
            self.trace.detail("output to native tunnel");
            self.commit();
            return !self.native_output(port, tunnel, last);
        }
        self.trace.detail("output to kernel tunnel");
        self.set_tunnel(&tunnel.config);
        self.flow.copy_tunnel(before);
        self.commit();
        self.out.emit(DpAction::Output(tunnel.dp));
        true
    }

    /// Emits the tunnel's fields, unless the last such action had the same.
    fn set_tunnel(&mut self, config: &TunnelConfig) {
        if !is_tunnelled(&self.flow) {
            return;
        }
        let mut key = FlowKey::default();
        key.copy_tunnel(&self.flow);
        let mut said = FlowKey::default();
        said.copy_tunnel(&self.base);
        said.tp_dst = self.base.tunnel_port;
        key.tp_dst = config.dst_port;
        if key == said {
            return;
        }
        self.base.copy_tunnel(&self.flow);
        self.base.tunnel_port = config.dst_port;
        key.tp_dst = 0;
        only_fields_of(config.ty, &mut key);
        let options = match config.ty {
            TunnelType::Geneve => self
                .at
                .bridge
                .tlv
                .as_ref()
                .map_or_else(Vec::new, |map| map.options_of(&key)),
            _ => Vec::new(),
        };
        key.tun_present = 0;
        key.tun_metadata.fill(0);
        self.out.emit(DpAction::SetTunnel(Arc::new(TunnelKey {
            key,
            tp_dst: config.dst_port,
            options,
        })));
    }
}

/// A mask of all tunnel fields, for a datapath that sends all of them.
fn all_of_tunnel(key: &FlowKey) -> FlowKey {
    let mut all = FlowKey::default();
    all.words_mut().fill(u64::MAX);
    if key.tun_present == 0 {
        // Without options, there are no values.
        all.tun_metadata.fill(0);
    }
    all
}

/// The bits of a packet's tunnel that become part of another tunnel's outer headers.
fn left_to_flow(config: &TunnelConfig, key: &FlowKey) -> FlowKey {
    let mut m = FlowKey::default();
    if config.remote.is_none() {
        (m.tun_dst, m.tun_ipv6_dst) = (u32::MAX, [u8::MAX; 16]);
    }
    if config.local == Local::Flow {
        (m.tun_src, m.tun_ipv6_src) = (u32::MAX, [u8::MAX; 16]);
    }
    if config.out_key.is_flow() {
        m.tun_id = u64::MAX;
    }
    match config.ty {
        TunnelType::Geneve => {
            let all = all_of_tunnel(key);
            (m.tun_present, m.tun_metadata) = (all.tun_present, all.tun_metadata);
            m.tun_flags = tun_flag::OAM;
        }
        TunnelType::Vxlan if config.gbp => (m.tun_gbp_id, m.tun_gbp_flags) = (u16::MAX, u8::MAX),
        TunnelType::Gtpu => (m.tun_gtpu_flags, m.tun_gtpu_msgtype) = (u8::MAX, u8::MAX),
        TunnelType::Erspan | TunnelType::Ip6erspan => {
            (m.tun_erspan_ver, m.tun_erspan_idx) = (u8::MAX, u32::MAX);
            (m.tun_erspan_dir, m.tun_erspan_hwid) = (u8::MAX, u8::MAX);
        }
        _ => {}
    }
    m
}

/// An address as a key's two fields.
pub(super) fn fields(ip: IpAddr) -> (u32, [u8; 16]) {
    match ip {
        IpAddr::V4(ip) => (ip.to_bits(), [0; 16]),
        IpAddr::V6(ip) => (0, ip.octets()),
    }
}

/// Whether the tunnel's remote address is the one at which the packet came out of its own tunnel, or is
/// missing.
fn is_own_address(flow: &FlowKey, orig: &FlowKey) -> bool {
    (flow.tun_dst, flow.tun_ipv6_dst) == (orig.tun_dst, orig.tun_ipv6_dst)
}

/// Clears the tunnel fields that the type does not have.
fn only_fields_of(ty: TunnelType, key: &mut FlowKey) {
    if ty != TunnelType::Geneve {
        key.tun_present = 0;
        key.tun_metadata.fill(0);
    }
    if ty != TunnelType::Vxlan {
        (key.tun_gbp_id, key.tun_gbp_flags) = (0, 0);
    }
    if ty != TunnelType::Gtpu {
        (key.tun_gtpu_flags, key.tun_gtpu_msgtype) = (0, 0);
    }
    if !ty.is_erspan() {
        key.tun_erspan_ver = 0;
    }
    if key.tun_erspan_ver != 1 {
        key.tun_erspan_idx = 0;
    }
    if key.tun_erspan_ver != 2 {
        (key.tun_erspan_dir, key.tun_erspan_hwid) = (0, 0);
    }
}
