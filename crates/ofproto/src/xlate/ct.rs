//! `ct` and `ct_clear`: having the datapath track the packet's connection.
//!
//! **Two packets.** The datapath tracks the packet at the action, and the list of actions continues with a
//! packet without connection state. A copy with the tracker's result comes back from the datapath, in the
//! table that the action names. The pipeline is frozen for this copy.
//!
//! **Valid state.** The datapath keeps the state with the packet for as long as the packet lives. The
//! pipeline may have forgotten it: behind a patch port, or after a `ct` whose packet continues. So a frozen
//! pipeline records whether the state that a packet comes back with counts
//! ([`super::recirc::Frozen::conntracked`]); if not, it is cleared, without an action.
//!
//! **Mask.** Marks and labels are written bit by bit; the bits that are not written are the connection's own.
//! Bits that the nested actions write do not matter for the packet, so the mask stays as it was. Bits that
//! they read matter.

use super::actions::Step;
use super::ctx::Ctx;
use super::emit::Output;
use super::flow::Tracked;
use super::report::{Fork, Kind};
use crate::features::Feature;
use crate::parts::Part;
use heddle_conntrack::{CtAction, CtHelper, CtNat, NatEnd, NatHow, NatRange};
use heddle_datapath_api::Action as DpAction;
use heddle_flow::{FieldId, FlowKey};
use heddle_openflow::Action;
use heddle_openflow::action::{Ct, CtZone, Nat, NatAddresses, NatDirection};
use heddle_wire::ip::proto;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::sync::Arc;

/// Bit of `ct_state` of a packet that went through the tracker.
const TRACKED: u32 = 0x20;

/// Ports of the protocols that have helpers.
const FTP: u16 = 21;
const TFTP: u16 = 69;

/// Whether a frozen pipeline keeps the field: its value then follows from the recirculation id.
fn is_kept(field: FieldId) -> bool {
    use FieldId as F;
    matches!(field, F::TunMetadata(_))
        || (F::TunId..=F::InPortOxm).contains(&field)
        || (F::Reg0..F::EthSrc).contains(&field)
}

impl Output<'_> {
    /// Adds the bits of the connection's mark and label that nested actions read to the mask. Open vSwitch
    /// does not.
    fn mask_ct_reads(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Move { src, .. } = action
                && matches!(src.field, FieldId::CtMark | FieldId::CtLabel)
            {
                let mask = self.extra();
                src.pieces().for_each(|piece| piece.add_mask(mask));
            }
        }
    }
}

impl Ctx<'_> {
    pub(super) fn ct(&mut self, ct: &Ct, last: bool) {
        let zone = self.ct_zone(ct.zone);
        self.commit();

        let m = &mut self.out.mask.0;
        let own = (std::mem::take(&mut m.ct_mark), std::mem::take(&mut m.ct_label));
        self.at.ct_nat = None;
        let steps: SmallVec<[Step<'_>; 8]> = ct.actions.iter().map(Step::Action).collect();
        self.run_list(&steps, last);
        let m = &mut self.out.mask.0;
        let written = (
            std::mem::replace(&mut m.ct_mark, own.0),
            std::mem::replace(&mut m.ct_label, own.1),
        );
        self.out.mask_ct_reads(&ct.actions);

        let (mark, label) = (self.flow.ct_mark, u128::from_be_bytes(self.flow.ct_label));
        let label_mask = u128::from_be_bytes(written.1);
        let timeout = if ct.commit { self.ct_timeout(zone) } else { None };
        let nat = self.at.ct_nat.take();
        let helper = match ct.alg {
            FTP => Some(CtHelper::Ftp),
            TFTP => Some(CtHelper::Tftp),
            0 => None,
            alg => {
                self.report_error(|| format!("cannot serialize ct_helper {alg}"));
                None
            }
        };
        self.out.emit(DpAction::Ct(Arc::new(CtAction {
            commit: ct.commit,
            force: ct.commit && ct.force,
            zone,
            mark: (written.0 != 0).then_some((mark & written.0, written.0)),
            label: (label_mask != 0).then_some((label & label_mask, label_mask)),
            helper,
            timeout,
            nat: nat.as_ref().map(nat_of),
        })));
        if let Some(table) = ct.table {
            self.fork(table, zone, nat);
        }
        self.flow.forget_connection();
        self.trace
            .detail("Sets the packet to an untracked state, and clears all the conntrack fields.");
    }

    /// `ct_clear`. A packet that is not tracked needs no action.
    pub(super) fn ct_clear(&mut self) {
        if self.is_tracked() {
            self.flow.forget_connection();
            if self.at.bridge.features.has(Feature::CtClear) {
                self.out.emit(DpAction::CtClear);
            }
        }
    }

    /// Whether the packet is tracked. For [`Tracked::AsItCame`] the mask gets the packet's bit, which Open
    /// vSwitch leaves out.
    pub(super) fn is_tracked(&mut self) -> bool {
        match self.flow.conntracked {
            Tracked::Yes => true,
            Tracked::No => false,
            // Packets from ports have no connection state, so the bit does not matter.
            Tracked::AsItCame if self.input.key.recirc_id == 0 && self.input.key.ct_state & TRACKED == 0 => {
                false
            }
            Tracked::AsItCame => {
                self.out.extra().0.ct_state |= TRACKED;
                self.input.key.ct_state & TRACKED != 0
            }
        }
    }

    fn ct_zone(&mut self, zone: CtZone) -> u16 {
        match zone {
            CtZone::Number(n) => n,
            CtZone::Field(src) => {
                if !(self.input.is_thawed() && is_kept(src.field)) {
                    src.pieces().for_each(|piece| piece.add_mask(&mut self.out.mask));
                }
                #[allow(clippy::cast_possible_truncation)] // 16 bits of a field
                let zone = src.get(&self.flow).as_u64() as u16;
                zone
            }
        }
    }

    /// The name of the zone's timeout policy, for packets of protocols that have timeouts there.
    fn ct_timeout(&mut self, zone: u16) -> Option<Arc<str>> {
        if !self.at.bridge.features.has(Feature::CtTimeout) {
            return None;
        }
        self.out.depend_on(Part::CtZones);
        let policy = self.input.snapshot.ct_timeouts.get(&zone)?;
        // Open vSwitch leaves the protocol out, so it may treat a packet of another protocol alike.
        self.out.extra().0.nw_proto = u8::MAX;
        let has_timeouts = matches!(
            self.flow.nw_proto,
            proto::ICMP | proto::TCP | proto::UDP | proto::ICMPV6
        );
        has_timeouts.then(|| policy.clone())
    }

    /// Has a copy of the packet come back with the tracker's result, and continue in a table.
    fn fork(&mut self, table: u8, zone: u16, nat: Option<Nat>) {
        self.flow.conntracked = Tracked::Yes;
        let Some(held) = self.freeze_at(table) else { return };
        let (id, key) = (held.id, *self.flow);
        let Some(report) = &mut self.trace.report else {
            return;
        };
        report.forks.push(Fork {
            key: FlowKey {
                recirc_id: id,
                ct_zone: zone,
                ..key
            },
            nat,
            held,
        });
        self.trace.report(Kind::Detail, || {
            format!(
                "A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table {table}."
            )
        });
    }
}

/// The last value of a range; `first` unless `last` is above it.
fn end<T: Ord + Copy>(first: T, last: Option<T>) -> T {
    last.filter(|last| *last > first).unwrap_or(first)
}

/// The address translation in the datapath's form.
fn nat_of(nat: &Nat) -> CtNat {
    let Some(direction) = nat.direction else {
        return CtNat { new: None };
    };
    let addresses = match nat.addresses {
        NatAddresses::None => None,
        NatAddresses::V4(first, last) => Some((IpAddr::V4(first), IpAddr::V4(end(first, last)))),
        NatAddresses::V6(first, last) => Some((IpAddr::V6(first), IpAddr::V6(end(first, last)))),
    };
    // Port 0 means no ports.
    let ports = nat.ports.filter(|(first, _)| *first != 0);
    CtNat {
        new: Some(NatRange {
            end: match direction {
                NatDirection::Src => NatEnd::Src,
                NatDirection::Dst => NatEnd::Dst,
            },
            addresses,
            ports: addresses
                .and(ports)
                .map(|(first, last)| (first, end(first, last))),
            how: match (nat.hash, nat.random) {
                (true, _) => NatHow::Hash,
                (false, true) => NatHow::Random,
                (false, false) => NatHow::Any,
            },
            persistent: nat.persistent,
        }),
    }
}
