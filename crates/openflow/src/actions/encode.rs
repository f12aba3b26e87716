//! Actions to the wire, in the form that a version has for them.
//!
//! Some meanings have one form per version. For example, a 1.0 `mod_vlan_vid` is a push and a set-field in
//! 1.3, and setting a port there needs to know the protocol. So the encoder starts from the flow's match and
//! follows the effects of the actions on it.

use super::decode::c2;
use super::encoder::{Encoded, Encoder, end};
use super::field::{Headers, nxm, ofs_nbits, put_entry, put_header};
use super::raw::Raw;
use crate::action::{Action, ControllerAction, FieldId, FieldValue, Port, SetTunMetadata, Subfield};
use crate::error::EncodeError;
use crate::version::Version;
use crate::wire::cursor::Put;
use crate::wire::port::port_to_u16;
use crate::wire::property;

impl Encoder {
    /// Appends a list.
    pub(crate) fn list(&mut self, actions: &[Action], out: &mut Vec<u8>) -> Encoded {
        actions.iter().try_for_each(|a| self.action(a, out))
    }

    /// Appends a list that runs on a copy.
    pub(super) fn nested(&mut self, actions: &[Action], out: &mut Vec<u8>) -> Encoded {
        let outer = (self.has_vlan, self.ip_proto);
        self.list(actions, out)?;
        (self.has_vlan, self.ip_proto) = outer;
        Ok(())
    }

    /// Writes a form with a fixed length and an argument in its usual place.
    fn simple(&self, raw: Raw, what: &'static str, arg: &[u8], out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(raw, what, out)?;
        // Arguments are aligned to their own size, which only shows behind an experimenter's ten bytes.
        let align = arg.len().clamp(1, 8);
        let at = (out.end() - start).next_multiple_of(if arg.len() == 6 { 1 } else { align });
        out.zeros(at - (out.end() - start));
        out.put(arg);
        end(out, start);
        Ok(())
    }

    fn set_field(&self, field: FieldId, value: u64, out: &mut Vec<u8>) -> Encoded {
        self.oxm(field, FieldValue::from_u64(value), field.full_mask(), out)
    }

    /// OXM set-field.
    fn oxm(&self, field: FieldId, value: FieldValue, mask: FieldValue, out: &mut Vec<u8>) -> Encoded {
        let raw = if self.version >= Version::V15 {
            Raw::SetField15
        } else {
            Raw::SetField12
        };
        let start = self.begin(raw, "set_field", out)?;
        if !put_entry(out, field, Headers::Oxm(self.version), value, mask) {
            return Err(self.missing("set_field of a field without OXM header"));
        }
        end(out, start);
        Ok(())
    }

    /// Loads of each run of bits that the mask has: Nicira's form of a masked set-field.
    fn loads(&mut self, field: FieldId, value: FieldValue, mask: FieldValue, out: &mut Vec<u8>) -> Encoded {
        if nxm(field).is_none() || matches!(field, FieldId::TunMetadata(_)) {
            let start = self.begin(Raw::RegLoad2, "load", out)?;
            if !put_entry(out, field, Headers::Nxm, value, mask) {
                return Err(self.missing("load of a field without header"));
            }
            end(out, start);
            return Ok(());
        }
        let width = field.info().n_bits;
        if width <= 64 && field.is_exact(mask) {
            // Also used if some bits of the field mean nothing (the upper byte of an ARP opcode).
            let dst = Subfield::all(field);
            return self.load(dst, dst.extract(value).as_u64(), out);
        }
        let mask = mask.as_u128();
        let bit = |n: u16| mask >> n & 1 != 0;
        let mut ofs = 0;
        while let Some(start) = (ofs..width).find(|n| bit(*n)) {
            let limit = width.min(start + 64);
            ofs = (start + 1..limit).find(|n| !bit(*n)).unwrap_or(limit);
            let dst = Subfield {
                field,
                ofs: start,
                n_bits: ofs - start,
            };
            self.load(dst, dst.extract(value).as_u64(), out)?;
        }
        Ok(())
    }

    fn load(&mut self, dst: Subfield, value: u64, out: &mut Vec<u8>) -> Encoded {
        if self.version >= Version::V15 {
            return self.load15(dst, value, out);
        }
        if let FieldId::TunMetadata(_) = dst.field {
            return self.action(&Action::set(dst, FieldValue::from_u64(value)), out);
        }
        let Some(header) = nxm(dst.field) else {
            return self.loads(dst.field, dst.place(FieldValue::from_u64(value)), dst.mask(), out);
        };
        let start = self.begin(Raw::RegLoad, "load", out)?;
        out.u16(ofs_nbits(dst));
        out.u32(header);
        out.u64(value);
        end(out, start);
        Ok(())
    }

    /// A load in 1.5 is a set-field. As in Open vSwitch it has a mask unless it writes whole bytes. By its
    /// mask, a load of all 20 bits of a flow label differs from a set-field of the label.
    fn load15(&self, dst: Subfield, value: u64, out: &mut Vec<u8>) -> Encoded {
        let n = usize::from(dst.field.info().n_bytes);
        let whole = usize::from(dst.n_bits) == n * 8;
        let start = self.begin(Raw::SetField15, "load", out)?;
        if !put_header(out, dst.field, Headers::Oxm(self.version), !whole) {
            return Err(self.missing("load of a field without OXM header"));
        }
        out.put(&dst.bytes(FieldValue::from_u64(value)));
        if !whole {
            out.put(&dst.bytes(FieldValue::ONES));
        }
        end(out, start);
        Ok(())
    }

    /// A wide option of a tunnel: set-field in 1.5 and, if it is whole, from 1.2 on; else Nicira's load of an
    /// entry.
    fn set_tun_metadata(&self, set: &SetTunMetadata, out: &mut Vec<u8>) -> Encoded {
        let whole = set.mask.iter().all(|b| *b == 0xff);
        let (raw, headers) = match self.version {
            Version::V15 => (Raw::SetField15, Headers::Oxm(self.version)),
            v if v >= Version::V12 && whole => (Raw::SetField12, Headers::Oxm(v)),
            _ => (Raw::RegLoad2, Headers::Nxm),
        };
        let start = self.begin(raw, "set_field", out)?;
        put_header(out, FieldId::TunMetadata(set.field), headers, !whole);
        out.put(&set.value);
        if !whole {
            out.put(&set.mask);
        }
        end(out, start);
        Ok(())
    }

    fn push_vlan_first(&mut self, push: bool, out: &mut Vec<u8>) -> Encoded {
        if push && !self.has_vlan && self.version > Version::V10 {
            self.simple(Raw::PushVlan, "push_vlan", &0x8100u16.to_be_bytes(), out)?;
        }
        self.has_vlan = true;
        Ok(())
    }

    fn vlan_vid(&self, vid: u16, out: &mut Vec<u8>) -> Encoded {
        match self.version {
            Version::V10 => self.simple(Raw::SetVlanVid10, "set_vlan_vid", &vid.to_be_bytes(), out),
            Version::V11 => self.simple(Raw::SetVlanVid11, "set_vlan_vid", &vid.to_be_bytes(), out),
            _ => self.set_field(FieldId::VlanVid, u64::from(vid) | 0x1000, out),
        }
    }

    fn vlan_pcp(&self, pcp: u8, out: &mut Vec<u8>) -> Encoded {
        match self.version {
            Version::V10 => self.simple(Raw::SetVlanPcp10, "set_vlan_pcp", &[pcp], out),
            Version::V11 => self.simple(Raw::SetVlanPcp11, "set_vlan_pcp", &[pcp], out),
            _ => self.set_field(FieldId::VlanPcp, pcp.into(), out),
        }
    }

    fn pop_vlan(&mut self, out: &mut Vec<u8>) -> Encoded {
        self.has_vlan = false;
        let raw = if self.version == Version::V10 {
            Raw::StripVlan10
        } else {
            Raw::PopVlan11
        };
        self.simple(raw, "pop_vlan", &[], out)
    }

    /// A 1.0 and 1.1 form, or from 1.2 on a set-field.
    fn legacy(&self, raw: Raw, arg: &[u8], field: FieldId, value: u64, out: &mut Vec<u8>) -> Encoded {
        if self.version < Version::V12 {
            self.simple(raw, "set_field", arg, out)
        } else {
            self.set_field(field, value, out)
        }
    }

    fn l4(&self, raw: Raw, port: u16, fields: [FieldId; 3], out: &mut Vec<u8>) -> Encoded {
        let [tcp, udp, sctp] = fields;
        match self.ip_proto {
            6 if self.version >= Version::V12 => self.set_field(tcp, port.into(), out),
            17 if self.version >= Version::V12 => self.set_field(udp, port.into(), out),
            132 if self.version >= Version::V12 => self.set_field(sctp, port.into(), out),
            _ => self.simple(raw, "mod_tp", &port.to_be_bytes(), out),
        }
    }

    /// A field that is set whole or in part, in 1.0 or 1.1: its old action, or loads.
    fn set_old(&mut self, field: FieldId, v: FieldValue, mask: FieldValue, out: &mut Vec<u8>) -> Encoded {
        let [.., hi, lo] = v.0;
        let half = u16::from_be_bytes([hi, lo]);
        match field {
            FieldId::VlanTci if half & 0x1000 != 0 => {
                self.push_vlan_first(true, out)?;
                self.vlan_vid(half & 0xfff, out)?;
                self.vlan_pcp(hi >> 5, out)
            }
            FieldId::VlanTci => self.pop_vlan(out),
            FieldId::VlanVid => self.vlan_vid(half & 0xfff, out),
            FieldId::VlanPcp => self.vlan_pcp(lo, out),
            FieldId::EthSrc => self.simple(Raw::SetDlSrc, "set_field", v.bytes(6), out),
            FieldId::EthDst => self.simple(Raw::SetDlDst, "set_field", v.bytes(6), out),
            FieldId::Ipv4Src => self.simple(Raw::SetNwSrc, "set_field", v.bytes(4), out),
            FieldId::Ipv4Dst => self.simple(Raw::SetNwDst, "set_field", v.bytes(4), out),
            FieldId::IpDscp => self.simple(Raw::SetNwTos, "set_field", &[lo], out),
            FieldId::IpDscpShifted => self.simple(Raw::SetNwTos, "set_field", &[lo << 2], out),
            FieldId::IpEcn => self.action(&Action::SetIpEcn(lo), out),
            FieldId::TcpSrc | FieldId::UdpSrc => self.simple(Raw::SetTpSrc, "set_field", &[hi, lo], out),
            FieldId::TcpDst | FieldId::UdpDst => self.simple(Raw::SetTpDst, "set_field", &[hi, lo], out),
            _ => self.loads(field, v, mask, out),
        }
    }

    fn copy(&self, src: Subfield, dst: Subfield, out: &mut Vec<u8>) -> Encoded {
        let v15 = self.version >= Version::V15;
        let start = self.begin(if v15 { Raw::CopyField15 } else { Raw::RegMove }, "move", out)?;
        out.u16(dst.n_bits);
        out.u16(src.ofs);
        out.u16(dst.ofs);
        let headers = if v15 {
            Headers::Oxm(self.version)
        } else {
            Headers::Nxm
        };
        if v15 {
            out.zeros(2);
        }
        if !put_header(out, src.field, headers, false) || !put_header(out, dst.field, headers, false) {
            return Err(self.missing("move of a field without header"));
        }
        end(out, start);
        Ok(())
    }

    fn output(&self, port: Port, max_len: u16, out: &mut Vec<u8>) -> Encoded {
        let start = if self.version == Version::V10 {
            let start = self.begin(Raw::Output10, "output", out)?;
            out.u16(port_to_u16(port));
            start
        } else {
            let start = self.begin(Raw::Output11, "output", out)?;
            out.u32(port.0);
            start
        };
        out.u16(max_len);
        end(out, start);
        Ok(())
    }

    fn action(&mut self, a: &Action, out: &mut Vec<u8>) -> Encoded {
        match a {
            Action::Output { port, max_len } => self.output(*port, *max_len, out),
            Action::OutputTrunc { port, max_len } => {
                let start = self.begin(Raw::OutputTrunc, "output", out)?;
                out.u16(port_to_u16(*port));
                out.u32(*max_len);
                end(out, start);
                Ok(())
            }
            Action::OutputReg { src, max_len } => self.output_reg(*src, *max_len, out),
            Action::Controller(c) => self.controller(c, out),
            Action::Enqueue { port, queue } if self.version == Version::V10 => {
                let start = self.begin(Raw::Enqueue, "enqueue", out)?;
                out.u16(port_to_u16(*port));
                out.zeros(6);
                out.u32(*queue);
                end(out, start);
                Ok(())
            }
            Action::Enqueue { port, queue } => {
                self.simple(Raw::SetQueue, "set_queue", &queue.to_be_bytes(), out)?;
                self.output(*port, u16::MAX, out)?;
                self.simple(Raw::PopQueue, "pop_queue", &[], out)
            }
            Action::SetQueue(q) => self.simple(Raw::SetQueue, "set_queue", &q.to_be_bytes(), out),
            Action::PopQueue => self.simple(Raw::PopQueue, "pop_queue", &[], out),
            Action::SetVlanVid { vid, push_if_missing } => {
                self.push_vlan_first(*push_if_missing, out)?;
                self.vlan_vid(*vid, out)
            }
            Action::SetVlanPcp { pcp, push_if_missing } => {
                self.push_vlan_first(*push_if_missing, out)?;
                self.vlan_pcp(*pcp, out)
            }
            Action::PopVlan | Action::StripVlan => self.pop_vlan(out),
            Action::PushVlan(tpid) => {
                self.has_vlan = true;
                // In 1.0 setting the VLAN id pushes; there is nothing to write.
                if self.version == Version::V10 {
                    return Ok(());
                }
                self.simple(Raw::PushVlan, "push_vlan", &tpid.to_be_bytes(), out)
            }
            Action::SetEthSrc(m) => {
                let v = FieldValue::from_mac(*m).as_u64();
                self.legacy(Raw::SetDlSrc, m, FieldId::EthSrc, v, out)
            }
            Action::SetEthDst(m) => {
                let v = FieldValue::from_mac(*m).as_u64();
                self.legacy(Raw::SetDlDst, m, FieldId::EthDst, v, out)
            }
            Action::SetIpv4Src(a) => self.legacy(
                Raw::SetNwSrc,
                &a.to_be_bytes(),
                FieldId::Ipv4Src,
                (*a).into(),
                out,
            ),
            Action::SetIpv4Dst(a) => self.legacy(
                Raw::SetNwDst,
                &a.to_be_bytes(),
                FieldId::Ipv4Dst,
                (*a).into(),
                out,
            ),
            Action::SetIpDscp(v) => self.legacy(
                Raw::SetNwTos,
                &[*v],
                FieldId::IpDscpShifted,
                u64::from(*v) >> 2,
                out,
            ),
            Action::SetIpEcn(v) if self.version == Version::V10 => {
                self.load(Subfield::all(FieldId::IpEcn), (*v).into(), out)
            }
            Action::SetIpEcn(v) => self.legacy(Raw::SetNwEcn, &[*v], FieldId::IpEcn, (*v).into(), out),
            Action::SetIpTtl(v) if self.version == Version::V10 => {
                self.load(Subfield::all(FieldId::IpTtl), (*v).into(), out)
            }
            Action::SetIpTtl(v) => self.simple(Raw::SetNwTtl, "mod_nw_ttl", &[*v], out),
            Action::SetL4Src(v) => self.l4(
                Raw::SetTpSrc,
                *v,
                [FieldId::TcpSrc, FieldId::UdpSrc, FieldId::SctpSrc],
                out,
            ),
            Action::SetL4Dst(v) => self.l4(
                Raw::SetTpDst,
                *v,
                [FieldId::TcpDst, FieldId::UdpDst, FieldId::SctpDst],
                out,
            ),
            Action::SetField { field, value, mask } => match self.version {
                Version::V15 => self.oxm(*field, *value, *mask, out),
                Version::V10 | Version::V11 => self.set_old(*field, *value, *mask, out),
                _ if field.is_exact(*mask) => self.oxm(*field, *value, *mask, out),
                _ => self.loads(*field, *value, *mask, out),
            },
            Action::SetTunMetadata(set) => self.set_tun_metadata(set, out),
            Action::Load { dst, value } => self.load(*dst, *value, out),
            Action::Move { src, dst } => self.copy(*src, *dst, out),
            Action::StackPush(s) => self.stack(Raw::StackPush, *s, out),
            Action::StackPop(s) => self.stack(Raw::StackPop, *s, out),
            Action::DecTtl(ids) if ids == &[0] => self.simple(Raw::DecNwTtl, "dec_ttl", &[], out),
            Action::DecTtl(ids) => {
                let start = self.begin(Raw::DecTtlCntIds, "dec_ttl", out)?;
                out.u16(u16::try_from(ids.len()).map_err(|_| EncodeError::TooLong("dec_ttl"))?);
                out.zeros(4);
                ids.iter().for_each(|id| out.u16(*id));
                end(out, start);
                Ok(())
            }
            Action::SetMplsLabel(v) => self.legacy(
                Raw::SetMplsLabel,
                &v.to_be_bytes(),
                FieldId::MplsLabel,
                (*v).into(),
                out,
            ),
            Action::SetMplsTc(v) => self.legacy(Raw::SetMplsTc, &[*v], FieldId::MplsTc, (*v).into(), out),
            Action::SetMplsTtl(v) => self.simple(Raw::SetMplsTtl, "set_mpls_ttl", &[*v], out),
            Action::DecMplsTtl => self.simple(Raw::DecMplsTtl, "dec_mpls_ttl", &[], out),
            Action::PushMpls(t) => self.simple(Raw::PushMpls, "push_mpls", &t.to_be_bytes(), out),
            Action::PopMpls(t) => self.simple(Raw::PopMpls, "pop_mpls", &t.to_be_bytes(), out),
            Action::SetTunnel(id) if self.version >= Version::V12 => self.set_field(FieldId::TunId, *id, out),
            Action::SetTunnel(id) => match u32::try_from(*id) {
                Ok(id) => self.simple(Raw::SetTunnel, "set_tunnel", &id.to_be_bytes(), out),
                Err(_) => self.simple(Raw::SetTunnel64, "set_tunnel", &id.to_be_bytes(), out),
            },
            Action::Resubmit {
                port,
                table,
                with_ct_orig,
            } => {
                let raw = if *with_ct_orig {
                    Raw::ResubmitTableCt
                } else {
                    Raw::ResubmitTable
                };
                let start = self.begin(raw, "resubmit", out)?;
                out.u16(port_to_u16(*port));
                out.u8(table.unwrap_or(0xff));
                end(out, start);
                Ok(())
            }
            Action::Group(id) => self.simple(Raw::Group, "group", &id.to_be_bytes(), out),
            // Before 1.5 a meter is an instruction; one in the midst of actions is left out.
            Action::Meter(_) if self.version < Version::V15 => Ok(()),
            Action::Meter(id) => self.simple(Raw::Meter15, "meter", &id.to_be_bytes(), out),
            Action::Clone(actions) => {
                let start = self.begin(Raw::Clone, "clone", out)?;
                out.zeros(6);
                self.nested(actions, out)?;
                end(out, start);
                Ok(())
            }
            Action::Note(bytes) => {
                let start = self.begin(Raw::Note, "note", out)?;
                out.put(bytes);
                end(out, start);
                Ok(())
            }
            // A drop is written as no action at all.
            Action::Exit => self.simple(Raw::Exit, "exit", &[], out),
            Action::Learn(l) => self.learn(l, out),
            Action::Conjunction(c) => self.conjunction(*c, out),
            Action::Multipath(m) => self.multipath(m, out),
            Action::Bundle(b) => self.bundle(b, out),
            Action::FinTimeout { idle, hard } => self.fin_timeout(*idle, *hard, out),
            Action::Sample(s) => self.sample(s, out),
            Action::CheckPktLarger(c) => self.check_pkt_larger(c, out),
            Action::DeleteField(field) => self.delete_field(*field, out),
            Action::Encap(e) => self.encap(e, out),
            Action::Decap(packet_type) => self.decap(*packet_type, out),
            Action::DecNshTtl => self.simple(Raw::DecNshTtl, "dec_nsh_ttl", &[], out),
            Action::Ct(ct) => self.ct(ct, out),
            Action::CtClear => self.simple(Raw::CtClear, "ct_clear", &[], out),
            Action::Nat(n) => self.nat(n, out),
            Action::DebugRecirc => self.simple(Raw::DebugRecirc, "debug_recirc", &[], out),
            Action::DebugSlow => self.simple(Raw::DebugSlow, "debug_slow", &[], out),
        }
    }

    /// Nicira's metadata action.
    pub(crate) fn write_metadata(&self, value: u64, mask: u64, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::WriteMetadata, "write_metadata", out)?;
        out.zeros(6);
        out.u64(value);
        out.u64(mask);
        end(out, start);
        Ok(())
    }

    fn output_reg(&self, src: Subfield, max_len: u16, out: &mut Vec<u8>) -> Encoded {
        let start;
        if let Some(header) = nxm(src.field) {
            start = self.begin(Raw::OutputReg, "output", out)?;
            out.u16(ofs_nbits(src));
            out.u32(header);
            out.u16(max_len);
        } else {
            start = self.begin(Raw::OutputReg2, "output", out)?;
            out.u16(ofs_nbits(src));
            out.u16(max_len);
            if !put_header(out, src.field, Headers::Nxm, false) {
                return Err(self.missing("output to a field without header"));
            }
        }
        end(out, start);
        Ok(())
    }

    fn stack(&self, raw: Raw, s: Subfield, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(raw, "stack", out)?;
        out.u16(s.ofs);
        if !put_header(out, s.field, Headers::Nxm, false) {
            return Err(self.missing("stack action with a field without header"));
        }
        out.u16(s.n_bits);
        end(out, start);
        Ok(())
    }

    fn controller(&self, c: &ControllerAction, out: &mut Vec<u8>) -> Encoded {
        if c.userdata.is_empty() && !c.pause && c.meter_id.is_none() {
            let start = self.begin(Raw::Controller, "controller", out)?;
            out.u16(c.max_len);
            out.u16(c.controller_id);
            out.u8(c.reason);
            end(out, start);
            return Ok(());
        }
        let start = self.begin(Raw::Controller2, "controller", out)?;
        out.zeros(6);
        if c.max_len != u16::MAX {
            property::put(out, c2::MAX_LEN, &c.max_len.to_be_bytes());
        }
        if c.controller_id != 0 {
            property::put(out, c2::CONTROLLER_ID, &c.controller_id.to_be_bytes());
        }
        if c.reason != 1 {
            property::put(out, c2::REASON, &[c.reason]);
        }
        if !c.userdata.is_empty() {
            property::put(out, c2::USERDATA, &c.userdata);
        }
        if c.pause {
            property::put(out, c2::PAUSE, &[]);
        }
        if let Some(id) = c.meter_id {
            property::put(out, c2::METER_ID, &id.to_be_bytes());
        }
        end(out, start);
        Ok(())
    }
}
