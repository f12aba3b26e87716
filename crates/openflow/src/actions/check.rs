//! Checks of actions against the flow that they are in.
//!
//! Whether an action is allowed depends on the flow's match and on earlier actions. For example, setting an
//! IPv4 address needs IPv4, and popping an MPLS label may have made the packet IPv4. 1.0 allows some actions
//! on packets that lack the header (they do nothing); later versions refuse them with
//! `OFPBAC_MATCH_INCONSISTENT`.

use super::field::{check_dst, check_src};
use super::learn;
use crate::action::{
    Action, Bundle, Ct, CtZone, FieldId, Instruction, InstructionSet, Nat, NatAddresses, Port, Subfield,
    packet_type,
};
use crate::error::ErrorKind;
use crate::version::Version;
use crate::wire::port::is_output_port;
use heddle_flow::key::{Vlan, frag};
use heddle_flow::{FlowKey, Match};
use std::borrow::Cow;

/// EtherType of a network service header.
const NSH: u16 = 0x894f;
/// Namespace of packet types that are EtherTypes.
const ETHERTYPE_NAMESPACE: u32 = 1;
/// A packet type that no packet has.
const UNKNOWN_PACKET_TYPE: u32 = u32::MAX;

/// Limits and version of a check, beside the match.
#[derive(Clone, Copy, Debug)]
pub struct CheckContext {
    /// Version that the message came in.
    pub version: Version,
    /// Largest ordinary port number that an action may name.
    pub max_port: Port,
    /// The flow's table; 0xff if not known.
    pub table_id: u8,
    /// Number of tables; 0xff if not limited.
    pub n_tables: u8,
}

/// Checks the instructions of a flow with this match. Returns the error to reply with.
pub fn check_instructions(set: &InstructionSet, m: &Match, cx: &CheckContext) -> Result<(), ErrorKind> {
    let mut checker = Checker {
        m: Cow::Borrowed(m),
        cx,
    };
    // The packet's headers at the time of an action set are unknown, so missing ones are no error.
    let lenient = CheckContext {
        version: Version::V10,
        ..*cx
    };
    for i in &set.0 {
        match i {
            Instruction::Apply(actions) => actions.iter().try_for_each(|a| checker.action(a))?,
            Instruction::Write(actions) => check_actions(actions, &checker.m, &lenient)?,
            Instruction::Goto(table) => {
                let backwards = cx.table_id != 0xff && *table <= cx.table_id;
                if backwards || cx.n_tables != 0xff && *table >= cx.n_tables {
                    return Err(ErrorKind::BadInstructionBadTableId);
                }
            }
            Instruction::Meter(id) => check_meter(*id)?,
            Instruction::Clear | Instruction::WriteMetadata { .. } => {}
        }
    }
    Ok(())
}

/// Checks a list of actions, run on packets that match `m`.
pub fn check_actions(actions: &[Action], m: &Match, cx: &CheckContext) -> Result<(), ErrorKind> {
    let mut checker = Checker {
        m: Cow::Borrowed(m),
        cx,
    };
    actions.iter().try_for_each(|a| checker.action(a))
}

fn check_meter(id: u32) -> Result<(), ErrorKind> {
    /// Largest meter that is not a reserved one.
    const MAX: u32 = 0xffff_0000;
    if id == 0 || id > MAX {
        Err(ErrorKind::MeterModFailedInvalidMeter)
    } else {
        Ok(())
    }
}

struct Checker<'a> {
    /// Known facts about the packet at this point: the flow's own match, until an action changes something.
    m: Cow<'a, Match>,
    cx: &'a CheckContext,
}

impl Checker<'_> {
    /// The known key of the packet, for an action that changes it.
    fn key(&mut self) -> &mut FlowKey {
        &mut self.m.to_mut().key
    }

    /// Holds, or is inconsistent in versions after 1.0.
    fn consistent(&self, ok: bool) -> Result<(), ErrorKind> {
        if ok || self.cx.version == Version::V10 {
            Ok(())
        } else {
            Err(ErrorKind::BadActionMatchInconsistent)
        }
    }

    fn port(&self, port: Port) -> Result<(), ErrorKind> {
        if is_output_port(port, self.cx.max_port) {
            Ok(())
        } else {
            Err(ErrorKind::BadActionBadOutPort)
        }
    }

    fn src(&self, s: Subfield) -> Result<(), ErrorKind> {
        check_src(s, Some(&self.m))
    }

    fn dst(&self, s: Subfield) -> Result<(), ErrorKind> {
        check_dst(s, Some(&self.m))
    }

    fn holds(&self, field: FieldId) -> bool {
        field.info().prereq.ok_for_match(&self.m)
    }

    fn mpls(&self) -> Result<(), ErrorKind> {
        self.consistent(self.holds(FieldId::MplsLabel))
    }

    fn set_field(&mut self, field: FieldId, value: u64) -> Result<(), ErrorKind> {
        let tagged = self.m.key.vlans[0].tci & Vlan::CFI != 0;
        if !field.info().prereq.ok_for_match(&self.m) || field == FieldId::VlanVid && !tagged {
            return Err(ErrorKind::BadActionMatchInconsistent);
        }
        if field == FieldId::VlanTci {
            self.key().vlans[0].tci = u16::try_from(value & 0xffff).expect("16 bits");
        }
        Ok(())
    }

    /// A 1.0 or 1.1 action on the VLAN tag.
    fn old_vlan(&mut self, push: bool) -> Result<(), ErrorKind> {
        self.consistent(push || self.m.key.vlans[0].present())?;
        self.key().vlans[0].tci |= Vlan::CFI;
        Ok(())
    }

    fn ct(&mut self, ct: &Ct) -> Result<(), ErrorKind> {
        /// Ports of the protocols that have helpers, and the protocol under them.
        const FTP: u16 = 21;
        const TFTP: u16 = 69;
        let proto = self.m.key.nw_proto;
        let helper = ct.alg == FTP && proto != 6 || ct.alg == TFTP && proto != 17;
        // The datapath refuses such flows, so 1.0's are refused too.
        if helper || !self.holds(FieldId::IpTtl) {
            return Err(ErrorKind::BadActionMatchInconsistent);
        }
        match ct.zone {
            CtZone::Field(src) => self.src(src),
            CtZone::Number(_) => check_actions(&ct.actions, &self.m, self.cx),
        }
    }

    /// The addresses must be of the packet's own kind.
    fn nat(&self, nat: &Nat) -> Result<(), ErrorKind> {
        let fits = match nat.addresses {
            NatAddresses::None => self.holds(FieldId::IpTtl),
            NatAddresses::V4(..) => self.holds(FieldId::Ipv4Src),
            NatAddresses::V6(..) => self.holds(FieldId::Ipv6Src),
        };
        if fits {
            Ok(())
        } else {
            Err(ErrorKind::BadActionMatchInconsistent)
        }
    }

    fn bundle(&self, b: &Bundle) -> Result<(), ErrorKind> {
        b.dst.map_or(Ok(()), |d| self.dst(d))?;
        for port in &b.members {
            if *port != Port::NONE {
                self.port(*port)?;
            }
            if *port == Port::CONTROLLER {
                return Err(ErrorKind::BadActionBadOutPort);
            }
        }
        Ok(())
    }

    /// Later actions may depend on the pushed header.
    fn encap(&mut self, ty: u32) {
        self.key().packet_type = ty;
        if ty >> 16 == ETHERTYPE_NAMESPACE {
            self.key().dl_type = u16::try_from(ty & 0xffff).expect("16 bits");
        }
        if !self.holds(FieldId::IpTtl) {
            self.key().nw_proto = 0;
        }
    }

    fn decap(&mut self) {
        let k = self.key();
        if k.packet_type == packet_type::ETHERNET {
            k.packet_type = ETHERTYPE_NAMESPACE << 16 | u32::from(k.dl_type);
        } else {
            // The next header's type is known from the packet alone.
            k.packet_type = UNKNOWN_PACKET_TYPE;
            k.dl_type = u16::MAX;
        }
    }

    fn action(&mut self, a: &Action) -> Result<(), ErrorKind> {
        match a {
            Action::Output { port, .. } | Action::OutputTrunc { port, .. } => self.port(*port),
            Action::Enqueue { port, .. } => {
                let fine = *port <= self.cx.max_port || *port == Port::IN_PORT || *port == Port::LOCAL;
                if fine {
                    Ok(())
                } else {
                    Err(ErrorKind::BadActionBadOutPort)
                }
            }
            Action::OutputReg { src, .. } => self.src(*src),
            Action::SetVlanVid { push_if_missing, .. } | Action::SetVlanPcp { push_if_missing, .. } => {
                self.old_vlan(*push_if_missing)
            }
            Action::PopVlan | Action::StripVlan => {
                self.consistent(self.m.key.vlans[0].present())?;
                let v = &mut self.key().vlans;
                *v = [v[1], Vlan::default()];
                Ok(())
            }
            Action::PushVlan(_) => {
                let v = &mut self.key().vlans;
                if v[1].present() {
                    return Err(ErrorKind::BadActionBadTag);
                }
                *v = [
                    Vlan {
                        tpid: v[0].tpid,
                        tci: Vlan::CFI,
                    },
                    v[0],
                ];
                Ok(())
            }
            Action::SetIpv4Src(_) | Action::SetIpv4Dst(_) => self.consistent(self.holds(FieldId::Ipv4Src)),
            Action::SetIpDscp(_) | Action::SetIpEcn(_) | Action::SetIpTtl(_) | Action::DecTtl(_) => {
                self.consistent(self.holds(FieldId::IpTtl))
            }
            Action::SetL4Src(_) | Action::SetL4Dst(_) => {
                let l4 = matches!(self.m.key.nw_proto, 6 | 17 | 132) && self.m.key.nw_frag & frag::LATER == 0;
                self.consistent(l4 && self.holds(FieldId::IpTtl))
            }
            Action::SetField { field, value, .. } => self.set_field(*field, value.as_u64()),
            Action::Load { dst, value } => self.set_field(
                dst.field,
                dst.place(heddle_flow::FieldValue::from_u64(*value)).as_u64(),
            ),
            Action::Move { src, dst } => {
                self.src(*src)?;
                self.dst(*dst)
            }
            Action::StackPush(s) => self.src(*s),
            Action::StackPop(s) => self.dst(*s),
            Action::SetMplsLabel(_) | Action::SetMplsTc(_) | Action::SetMplsTtl(_) | Action::DecMplsTtl => {
                self.mpls()
            }
            Action::PushMpls(ty) => {
                self.consistent(self.m.key.packet_type == 0)?;
                self.key().dl_type = *ty;
                // The header behind the label is not known any more.
                self.key().nw_proto = 0;
                Ok(())
            }
            Action::PopMpls(ty) => {
                self.mpls()?;
                self.key().dl_type = *ty;
                Ok(())
            }
            Action::Resubmit { with_ct_orig, .. } => {
                if *with_ct_orig && !self.holds(FieldId::CtNwProto) {
                    return Err(ErrorKind::BadActionMatchInconsistent);
                }
                Ok(())
            }
            Action::Meter(id) => check_meter(*id),
            Action::Clone(actions) => check_actions(actions, &self.m, self.cx),
            Action::DeleteField(field) if !matches!(field, FieldId::TunMetadata(_)) => {
                Err(ErrorKind::BadActionBadArgument)
            }
            Action::SetEthSrc(_)
            | Action::SetEthDst(_)
            | Action::SetTunnel(_)
            | Action::SetTunMetadata(_)
            | Action::SetQueue(_)
            | Action::PopQueue
            | Action::Controller(_)
            | Action::Group(_)
            | Action::Note(_)
            | Action::Conjunction(_)
            | Action::Sample(_)
            | Action::CheckPktLarger(_)
            | Action::DeleteField(_)
            | Action::CtClear
            | Action::DebugRecirc
            | Action::DebugSlow
            | Action::Exit => Ok(()),
            Action::Learn(l) => learn::check(l, &self.m),
            Action::Multipath(m) => self.dst(m.dst),
            Action::Bundle(b) => self.bundle(b),
            Action::FinTimeout { .. } => self.consistent(self.m.key.nw_proto == 6),
            Action::DecNshTtl => {
                self.consistent(self.m.key.packet_type == packet_type::NSH || self.m.key.dl_type == NSH)
            }
            Action::Ct(ct) => self.ct(ct),
            Action::Nat(nat) => self.nat(nat),
            Action::Encap(e) => {
                self.encap(e.packet_type);
                Ok(())
            }
            Action::Decap(_) => {
                self.decap();
                Ok(())
            }
        }
    }
}
