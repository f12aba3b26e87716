//! `encap`, `decap`, `dec_nsh_ttl`: headers in front of the packet.
//!
//! The flow is changed at once, and the next commit emits the change: by then the fields of a new header are
//! known. The headers behind a popped one are known only for an Ethernet header or a label above others.
//! Otherwise the packet is parsed again.

use super::ctx::Ctx;
use super::flow::{Base, Pending};
use super::limits::XlateError;
use super::mpls::{clear_l3, count, lse, pop, push};
use super::report::Kind;
use crate::features::Feature;
use heddle_datapath_api::Action as DpAction;
use heddle_flow::{FlowKey, Nsh, Vlan, packet_type};
use heddle_openflow::action::{Encap, EncapProperty};
use heddle_wire::eth::{ethertype as eth, is_mpls};
use heddle_wire::nsh::{self, MAX_METADATA, MD_TYPE_1, MD_TYPE_2};

/// State of the translation before actions that must leave the packet as it was.
pub(super) struct Mark<'w> {
    /// Number of actions emitted by then.
    pub(super) at: usize,
    pub(super) base: Base<'w>,
    restacked: u32,
}

impl<'w> Ctx<'w> {
    pub(super) fn mark(&self) -> Mark<'w> {
        Mark {
            at: self.out.actions.len(),
            base: self.base.clone(),
            restacked: self.out.restacked,
        }
    }

    /// Called after actions whose changes of the flow were undone. The emitted actions may leave the packet
    /// changed in ways that setting fields back does not undo. So they run on a copy, unless no action
    /// follows (`last`). The list of actions does not show that: a resubmit, a group or a patch port may lead
    /// to any action.
    pub(super) fn isolate_changes(&mut self, mark: Mark<'w>, last: bool) {
        let restacked = self.out.restacked != mark.restacked;
        let emitted = self.out.actions.get(mark.at..).unwrap_or_default();
        if !last && (restacked || leaves_traces(emitted)) {
            self.base = mark.base;
            self.wrap(mark.at);
        } else {
            self.base.pending = mark.base.pending.filter(|_| !restacked);
        }
    }

    /// Makes the actions emitted from index `at` on run on a copy of the packet.
    pub(super) fn wrap(&mut self, at: usize) {
        let inner: Vec<_> = self.out.actions.drain(at..).collect();
        if inner.is_empty() {
        } else if self.at.has_clone() {
            self.out.emit(DpAction::Clone(inner));
        } else if self.at.may_sample() {
            self.out.emit(DpAction::Sample {
                probability: u32::MAX,
                actions: inner,
            });
        } else {
            self.report_error(|| "Failed to compose clone action".to_owned());
        }
    }

    pub(super) fn encap(&mut self, e: &Encap) {
        // Changes behind the header are emitted before the header hides them.
        self.commit();
        let options = match e.packet_type {
            packet_type::ETHERNET => self.encap_ethernet(),
            packet_type::NSH => self.encap_nsh(&e.properties),
            // The decoder accepts no other types.
            ty => self.encap_mpls(ty),
        };
        if let Some(options) = options {
            self.base.pending = Some(Pending::Encap(options));
        }
    }

    fn unsupported(&mut self, why: impl FnOnce() -> String) {
        self.trace.report(Kind::Action, why);
        self.out.error = Some(XlateError::UnsupportedPacketType);
    }

    fn encap_ethernet(&mut self) -> Option<Vec<u8>> {
        let ty = self.flow.packet_type;
        if ty >> 16 != packet_type::NS_ETHERTYPE {
            self.unsupported(|| {
                "Dropping packet as encap(ethernet) is not supported for packet type ethernet.".to_owned()
            });
            return None;
        }
        self.flow.packet_type = packet_type::ETHERNET;
        (self.flow.dl_src, self.flow.dl_dst) = ([0; 6], [0; 6]);
        self.flow.dl_type = (ty & 0xffff) as u16;
        Some(Vec::new())
    }

    fn encap_nsh(&mut self, properties: &[EncapProperty]) -> Option<Vec<u8>> {
        let ty = self.flow.packet_type;
        let np = match ty {
            packet_type::ETHERNET => nsh::next::ETHERNET,
            packet_type::IPV4 => nsh::next::IPV4,
            packet_type::IPV6 => nsh::next::IPV6,
            packet_type::NSH => nsh::next::NSH,
            _ => {
                self.unsupported(|| {
                    format!(
                        "Dropping packet as encap(nsh) is not supported for packet type ({},{:#x})",
                        ty >> 16,
                        ty & 0xffff
                    )
                });
                return None;
            }
        };
        let mdtype = properties.iter().rev().find_map(|p| match p {
            EncapProperty::NshMdType(ty) => Some(*ty),
            EncapProperty::NshTlv { .. } => None,
        });
        let mdtype = mdtype.unwrap_or(MD_TYPE_1);
        self.flow.copy_headers(&FlowKey::default());
        self.flow.packet_type = packet_type::NSH;
        self.flow.dl_type = eth::NSH;
        self.flow.nsh = Nsh {
            ttl: 63,
            mdtype,
            np,
            path: 255,
            ..Nsh::default()
        };
        let options = if mdtype == MD_TYPE_2 {
            options(properties)
        } else {
            Vec::new()
        };
        Some(options)
    }

    fn encap_mpls(&mut self, ty: u32) -> Option<Vec<u8>> {
        if self.flow.packet_type == packet_type::ETHERNET {
            // Labels behind the Ethernet header do not belong to the new stack.
            self.flow.mpls_lse = Default::default();
            self.base.mpls_lse = Default::default();
        }
        let n = count(&self.flow, Some(&mut self.out.mask));
        if n >= self.flow.mpls_lse.len() {
            // Messages describe such a packet by its Ethernet header.
            (self.base.packet_type, self.base.dl_src, self.base.dl_dst) = (
                self.input.key.packet_type,
                self.input.key.dl_src,
                self.input.key.dl_dst,
            );
            self.too_many_labels("an encap MPLS action", "would have");
            return None;
        }
        if !self.at.bridge.features.has(Feature::AddMpls) {
            self.out.slow();
        }
        let ethertype = (ty & 0xffff) as u16;
        if n == 0 {
            let label = if self.flow.dl_type == eth::IPV6 { 2 } else { 0 };
            clear_l3(&mut self.flow);
            self.flow.mpls_lse[0] = label << 12 | lse::BOS | 64;
            self.flow.dl_type = ethertype;
        } else {
            push(&mut self.flow, n, ethertype, Some(&mut self.out.mask));
        }
        self.flow.packet_type = ty;
        (self.flow.dl_src, self.flow.dl_dst) = ([0; 6], [0; 6]);
        Some(Vec::new())
    }

    /// Pops the outermost header; `ty` is the packet type behind labels. Returns whether the packet must be
    /// parsed again.
    pub(super) fn decap(&mut self, ty: u32) -> bool {
        self.commit();
        if self.flow.packet_type == packet_type::ETHERNET {
            // Packets without a tag must not share the entry of one that is dropped for its tag.
            self.out.extra().0.vlans[0].tci |= Vlan::CFI;
        }
        match self.flow.packet_type {
            packet_type::ETHERNET if self.flow.vlans[0].present() => {
                self.unsupported(|| "Dropping packet, cannot decap Ethernet if VLAN is present.".to_owned());
                false
            }
            packet_type::ETHERNET => {
                // The commit emits a pop as soon as the packet types differ.
                self.flow.packet_type = packet_type::of_ethertype(self.flow.dl_type);
                (self.flow.dl_src, self.flow.dl_dst) = ([0; 6], [0; 6]);
                false
            }
            packet_type::NSH => self.decap_nsh(),
            packet_type::MPLS | packet_type::MPLS_MCAST => self.decap_mpls(ty),
            ty => {
                self.unsupported(|| {
                    format!(
                        "Dropping packet as the decap() does not support packet type ({},{:#x})",
                        ty >> 16,
                        ty & 0xffff
                    )
                });
                false
            }
        }
    }

    fn decap_nsh(&mut self) -> bool {
        // The translation depends on the next protocol, even if the packet is dropped for it.
        self.out.mask.0.nsh.np = u8::MAX;
        self.flow.packet_type = match self.flow.nsh.np {
            nsh::next::ETHERNET => packet_type::ETHERNET,
            nsh::next::IPV4 => packet_type::IPV4,
            nsh::next::IPV6 => packet_type::IPV6,
            nsh::next::NSH => packet_type::NSH,
            np => {
                self.unsupported(|| format!("Dropping packet as NSH next protocol {np} is not supported"));
                return false;
            }
        };
        self.base.pending = Some(Pending::Decap);
        true
    }

    fn decap_mpls(&mut self, ty: u32) -> bool {
        let n = count(&self.flow, Some(&mut self.out.mask));
        let behind = match (ty & 0xffff) as u16 {
            0 => eth::TEB,
            ethertype => ethertype,
        };
        if pop(&mut self.flow, n, behind, Some(&mut self.out.mask)) {
            if !self.at.bridge.features.has(Feature::AddMpls) {
                self.out.slow();
            }
            self.flow.packet_type = ty;
            self.base.pending = Some(Pending::Decap);
            return n == 1;
        }
        self.flow.packet_type = ty;
        if n >= self.flow.mpls_lse.len() {
            self.too_many_labels("an MPLS decap", "has");
            self.out.actions.clear();
        }
        false
    }

    /// Decrements the time to live of a network service header. `false`: it ran out (or there is none), and
    /// the list of actions ends.
    pub(super) fn dec_nsh_ttl(&mut self) -> bool {
        if self.flow.dl_type == eth::NSH {
            self.out.mask.0.nsh.ttl = u8::MAX;
            if self.flow.nsh.ttl > 1 {
                self.flow.nsh.ttl -= 1;
                return true;
            }
            self.ttl_exception(0);
        }
        self.trace
            .report(Kind::Warn, || "NSH decrement TTL exception".to_owned());
        false
    }
}

/// Metadata of type 2, each option padded to words; empty if the options do not fit.
fn options(properties: &[EncapProperty]) -> Vec<u8> {
    let mut all = Vec::new();
    for p in properties {
        if let EncapProperty::NshTlv { class, ty, data } = p {
            all.extend_from_slice(&class.to_be_bytes());
            all.push(*ty);
            all.push(u8::try_from(data.len()).unwrap_or(u8::MAX));
            all.extend_from_slice(data);
            all.resize(all.len().next_multiple_of(4), 0);
        }
    }
    if all.len() > MAX_METADATA {
        all.clear();
    }
    all
}

/// Whether a packet of type `ty` begins with a label stack.
pub(super) fn is_label_stack(ty: u32) -> bool {
    ty >> 16 == packet_type::NS_ETHERTYPE && is_mpls((ty & 0xffff) as u16)
}

/// Whether a list leaves state on the packet that is no field of a header. Such state is a connection, a drop
/// by a meter, outer headers, or a truncation that waits for an output.
fn leaves_traces(list: &[DpAction]) -> bool {
    let mut cut = false;
    for action in list {
        match action {
            DpAction::Ct(_) | DpAction::CtClear | DpAction::Meter(_) | DpAction::TunnelPush(_) => {
                return true;
            }
            DpAction::Trunc(_) => cut = true,
            DpAction::Output(_) | DpAction::Userspace(_) => cut = false,
            _ => {}
        }
    }
    cut
}
