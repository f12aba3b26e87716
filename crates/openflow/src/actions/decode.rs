//! Actions from the wire.
//!
//! The order of checks is that of Open vSwitch: number, then length, then the fields of the action in turn.
//! A message with several faults gets the same error for it.

use super::field::{Set, check_dst, check_src, from_nxm_ofs, pull_entry, pull_header};
use super::raw::{Raw, Row, by_number};
use super::verify::{ListKind, verify_actions};
use super::{ct, hash, learn, misc, nat};
use crate::action::{Action, ControllerAction, FieldId, FieldValue, Port, Subfield};
use crate::error::{ErrorKind, NX_VENDOR, ONF_VENDOR};
use crate::version::Version;
use crate::wire::cursor::Reader;
use crate::wire::port::{is_output_port, port_from_u16, port_from_u32};
use crate::wire::property;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Maximum nesting of actions (clone in clone), in messages and in text. A 64 KiB message could nest 4,000
/// levels, which no controller needs.
pub(crate) const MAX_DEPTH: u8 = 64;

static DEBUG_ACTIONS: AtomicBool = AtomicBool::new(false);

/// From now on, the actions `debug_recirc` and `debug_slow` are known, which only Open vSwitch's tests use.
pub fn enable_debug_actions() {
    DEBUG_ACTIONS.store(true, Relaxed);
}

/// One item of a list of actions: an action, or `write_metadata`, which 1.0 has as an action.
pub(crate) enum Item {
    Action(Action),
    WriteMetadata { value: u64, mask: u64 },
}

/// Decodes a list of actions that fills `bytes`.
pub(crate) fn decode_items(version: Version, bytes: &[u8], depth: u8) -> Result<Vec<Item>, ErrorKind> {
    if depth > MAX_DEPTH {
        return Err(ErrorKind::BadActionTooMany);
    }
    let mut r = Reader(bytes);
    let mut items = Vec::new();
    while !r.is_empty() {
        let (row, body) = pull(version, &mut r)?;
        items.push(decode_one(version, row, body, depth)?);
    }
    Ok(items)
}

/// Like [`decode_items`], where only actions are allowed.
pub(crate) fn decode_list(version: Version, bytes: &[u8], depth: u8) -> Result<Vec<Action>, ErrorKind> {
    decode_items(version, bytes, depth)?
        .into_iter()
        .map(|i| match i {
            Item::Action(a) => Ok(a),
            Item::WriteMetadata { .. } => Err(ErrorKind::BadInstructionUnsupInst),
        })
        .collect()
}

/// Splits one action off: its form, and its body behind the header.
fn pull<'a>(version: Version, r: &mut Reader<'a>) -> Result<(&'static Row, Reader<'a>), ErrorKind> {
    let bad_len = |_| ErrorKind::BadActionBadLen;
    let mut body = *r;
    if body.len() < 8 {
        return Err(ErrorKind::BadActionBadLen);
    }
    let ty = body.u16().map_err(bad_len)?;
    let len = body.u16().map_err(bad_len)?;
    let (vendor, number) = if ty == 0xffff {
        let vendor = body.u32().map_err(bad_len)?;
        if vendor != NX_VENDOR && vendor != ONF_VENDOR {
            return Err(ErrorKind::BadActionBadVendor);
        }
        if r.len() < 16 {
            return Err(ErrorKind::BadActionBadLen);
        }
        (vendor, body.u16().map_err(bad_len)?)
    } else {
        (0, ty)
    };
    let row = by_number(version, vendor, number).ok_or(if vendor == 0 {
        ErrorKind::BadActionBadType
    } else {
        ErrorKind::BadActionBadVendorType
    })?;
    if len < row.min || len > row.max || len % 8 != 0 {
        return Err(ErrorKind::BadActionBadLen);
    }
    let whole = r.bytes(len.into()).map_err(bad_len)?;
    let body = whole.get(if vendor == 0 { 4 } else { 10 }..).unwrap_or(&[]);
    Ok((row, Reader(body)))
}

/// `Ok` if the condition holds, else `BadArgument`.
fn argument(ok: bool) -> Result<(), ErrorKind> {
    if ok {
        Ok(())
    } else {
        Err(ErrorKind::BadActionBadArgument)
    }
}

/// `Ok` if the condition holds, else `BadSetArgument`.
fn argument_of_set(ok: bool) -> Result<(), ErrorKind> {
    if ok {
        Ok(())
    } else {
        Err(ErrorKind::BadActionBadSetArgument)
    }
}

/// The rest must be zero.
fn must_be_zero(r: &Reader<'_>) -> Result<(), ErrorKind> {
    if r.is_zero() {
        Ok(())
    } else {
        Err(ErrorKind::BadRequestMustBeZero)
    }
}

fn decode_one(version: Version, row: &Row, mut r: Reader<'_>, depth: u8) -> Result<Item, ErrorKind> {
    let bad_len = |_| ErrorKind::BadActionBadLen;
    // Arguments of experimenter's actions are aligned to their own size.
    let arg32 = |mut r: Reader<'_>| -> Result<u32, ErrorKind> {
        if row.vendor != 0 {
            r.skip(2).map_err(bad_len)?;
        }
        r.u32().map_err(bad_len)
    };
    let mut u16 = || r.u16().map_err(bad_len);
    let action = match row.raw {
        Raw::Output10 => {
            let port = port_from_u16(u16()?);
            output_port(Action::Output {
                port,
                max_len: u16()?,
            })?
        }
        Raw::Output11 => {
            let port = port_from_u32(r.u32().map_err(bad_len)?)?;
            output_port(Action::Output {
                port,
                max_len: r.u16().map_err(bad_len)?,
            })?
        }
        Raw::Enqueue => {
            let port = port_from_u16(u16()?);
            r.skip(6).map_err(bad_len)?;
            if port > Port::MAX && port != Port::IN_PORT && port != Port::LOCAL {
                return Err(ErrorKind::BadActionBadOutPort);
            }
            Action::Enqueue {
                port,
                queue: r.u32().map_err(bad_len)?,
            }
        }
        Raw::SetVlanVid10 | Raw::SetVlanVid11 => {
            let vid = u16()?;
            argument(vid <= 0xfff)?;
            Action::SetVlanVid {
                vid,
                push_if_missing: row.raw == Raw::SetVlanVid10,
            }
        }
        Raw::SetVlanPcp10 | Raw::SetVlanPcp11 => {
            let pcp = r.u8().map_err(bad_len)?;
            argument(pcp <= 7)?;
            Action::SetVlanPcp {
                pcp,
                push_if_missing: row.raw == Raw::SetVlanPcp10,
            }
        }
        Raw::PushVlan => {
            let tpid = u16()?;
            argument(matches!(tpid, 0x8100 | 0x88a8))?;
            Action::PushVlan(tpid)
        }
        Raw::StripVlan10 => Action::StripVlan,
        Raw::PopVlan11 => Action::PopVlan,
        Raw::SetDlSrc => Action::SetEthSrc(r.array().map_err(bad_len)?),
        Raw::SetDlDst => Action::SetEthDst(r.array().map_err(bad_len)?),
        Raw::SetNwSrc => Action::SetIpv4Src(r.u32().map_err(bad_len)?),
        Raw::SetNwDst => Action::SetIpv4Dst(r.u32().map_err(bad_len)?),
        Raw::SetNwTos => {
            let tos = r.u8().map_err(bad_len)?;
            argument(tos & 3 == 0)?;
            Action::SetIpDscp(tos)
        }
        Raw::SetNwEcn => {
            let ecn = r.u8().map_err(bad_len)?;
            argument(ecn <= 3)?;
            Action::SetIpEcn(ecn)
        }
        Raw::SetNwTtl => Action::SetIpTtl(r.u8().map_err(bad_len)?),
        Raw::SetTpSrc => Action::SetL4Src(u16()?),
        Raw::SetTpDst => Action::SetL4Dst(u16()?),
        // Bits that a label stack entry does not have are dropped.
        Raw::SetMplsLabel => Action::SetMplsLabel(arg32(r)? & 0xf_ffff),
        Raw::SetMplsTc => Action::SetMplsTc(r.u8().map_err(bad_len)? & 7),
        Raw::SetMplsTtl => Action::SetMplsTtl(r.u8().map_err(bad_len)?),
        Raw::DecMplsTtl => Action::DecMplsTtl,
        Raw::PushMpls => {
            let ty = u16()?;
            argument(matches!(ty, 0x8847 | 0x8848))?;
            Action::PushMpls(ty)
        }
        Raw::PopMpls => Action::PopMpls(u16()?),
        Raw::SetQueue => Action::SetQueue(arg32(r)?),
        Raw::Group => Action::Group(arg32(r)?),
        Raw::Meter15 => Action::Meter(arg32(r)?),
        Raw::DecNwTtl => Action::DecTtl(vec![0]),
        Raw::DecTtlCntIds => {
            let n = u16()?;
            if r.array::<4>().map_err(bad_len)? != [0; 4] {
                return Err(ErrorKind::BadRequestMustBeZero);
            }
            Action::DecTtl(
                (0..n)
                    .map(|_| r.u16().map_err(bad_len))
                    .collect::<Result<_, _>>()?,
            )
        }
        Raw::SetField12 | Raw::SetField15 => set_field(r, row.raw == Raw::SetField15)?,
        Raw::RegLoad => {
            let ofs_nbits = u16()?;
            let dst = from_nxm_ofs(ofs_nbits, r.u32().map_err(bad_len)?)?;
            check_dst(dst, None)?;
            let value = r.u64().map_err(bad_len)?;
            argument(value.checked_shr(dst.n_bits.into()).unwrap_or(0) == 0)?;
            Action::Load { dst, value }
        }
        Raw::RegLoad2 => {
            let entry = pull_entry(&mut r)?;
            argument_of_set(r.is_zero())?;
            match entry {
                Set::Field(field, value, mask) => {
                    argument_of_set(field.info().writable)?;
                    Action::SetField {
                        field,
                        value,
                        mask: mask.unwrap_or(field.full_mask()),
                    }
                }
                Set::Wide(set) => Action::SetTunMetadata(Box::new(set)),
            }
        }
        Raw::RegMove => copy_field(r, 0, 0)?,
        Raw::CopyField15 => copy_field(r, 0, 2)?,
        Raw::CopyFieldOnf => copy_field(r, 2, 2)?,
        Raw::Resubmit => Action::Resubmit {
            port: port_from_u16(u16()?),
            table: None,
            with_ct_orig: false,
        },
        Raw::ResubmitTable | Raw::ResubmitTableCt => {
            let port = port_from_u16(u16()?);
            let table = r.u8().map_err(bad_len)?;
            argument(r.is_zero())?;
            Action::Resubmit {
                port,
                table: (table != 0xff).then_some(table),
                with_ct_orig: row.raw == Raw::ResubmitTableCt,
            }
        }
        Raw::SetTunnel => Action::SetTunnel(arg32(r)?.into()),
        Raw::SetTunnel64 => {
            r.skip(6).map_err(bad_len)?;
            Action::SetTunnel(r.u64().map_err(bad_len)?)
        }
        Raw::PopQueue => Action::PopQueue,
        Raw::Note => Action::Note(r.rest().to_vec()),
        Raw::OutputReg => {
            let ofs_nbits = u16()?;
            let header = r.u32().map_err(bad_len)?;
            let max_len = r.u16().map_err(bad_len)?;
            argument(r.is_zero())?;
            let src = from_nxm_ofs(ofs_nbits, header)?;
            check_src(src, None)?;
            Action::OutputReg { src, max_len }
        }
        Raw::OutputReg2 => {
            let ofs_nbits = u16()?;
            let max_len = u16()?;
            let field = pull_header(&mut r)?;
            must_be_zero(&r)?;
            let src = Subfield {
                field,
                ofs: ofs_nbits >> 6,
                n_bits: (ofs_nbits & 0x3f) + 1,
            };
            check_src(src, None)?;
            Action::OutputReg { src, max_len }
        }
        Raw::Exit => Action::Exit,
        Raw::Controller => Action::Controller(ControllerAction {
            max_len: u16()?,
            controller_id: u16()?,
            reason: r.u8().map_err(bad_len)?,
            ..ControllerAction::default()
        }),
        Raw::Controller2 => controller2(r)?,
        Raw::WriteMetadata => {
            if r.array::<6>().map_err(bad_len)? != [0; 6] {
                return Err(ErrorKind::BadRequestMustBeZero);
            }
            let value = r.u64().map_err(bad_len)?;
            return Ok(Item::WriteMetadata {
                value,
                mask: r.u64().map_err(bad_len)?,
            });
        }
        Raw::StackPush | Raw::StackPop => {
            let ofs = u16()?;
            let field = pull_header(&mut r)?;
            let s = Subfield {
                field,
                ofs,
                n_bits: r.u16().map_err(bad_len)?,
            };
            must_be_zero(&r)?;
            if row.raw == Raw::StackPush {
                check_src(s, None)?;
                Action::StackPush(s)
            } else {
                check_dst(s, None)?;
                Action::StackPop(s)
            }
        }
        Raw::Clone => {
            r.skip(6).map_err(bad_len)?;
            let actions = decode_list(version, r.0, depth + 1)?;
            verify_actions(&actions, version, ListKind::Nested)?;
            Action::Clone(actions)
        }
        Raw::OutputTrunc => misc::decode_output_trunc(r)?,
        Raw::Multipath => hash::decode_multipath(r)?,
        Raw::Bundle => hash::decode_bundle(r, false)?,
        Raw::BundleLoad => hash::decode_bundle(r, true)?,
        Raw::Learn => learn::decode(r, false)?,
        Raw::Learn2 => learn::decode(r, true)?,
        Raw::FinTimeout => misc::decode_fin_timeout(r)?,
        Raw::Sample => misc::decode_sample(r, 1)?,
        Raw::Sample2 => misc::decode_sample(r, 2)?,
        Raw::Sample3 => misc::decode_sample(r, 3)?,
        Raw::Sample4 => misc::decode_sample(r, 4)?,
        Raw::Conjunction => misc::decode_conjunction(r)?,
        Raw::Ct => ct::decode(version, r, depth)?,
        Raw::Nat => nat::decode(r)?,
        Raw::CtClear => Action::CtClear,
        Raw::Encap => misc::decode_encap(r)?,
        Raw::Decap => misc::decode_decap(r)?,
        Raw::DecNshTtl => Action::DecNshTtl,
        Raw::CheckPktLarger => misc::decode_check_pkt_larger(r)?,
        Raw::DeleteField => misc::decode_delete_field(r)?,
        Raw::DebugRecirc => debug_action(Action::DebugRecirc)?,
        Raw::DebugSlow => debug_action(Action::DebugSlow)?,
    };
    Ok(Item::Action(action))
}

/// An action that only tests use: known where [`crate::enable_debug_actions`] was called.
fn debug_action(a: Action) -> Result<Action, ErrorKind> {
    if DEBUG_ACTIONS.load(Relaxed) {
        Ok(a)
    } else {
        Err(ErrorKind::BadActionBadVendorType)
    }
}

/// An output action whose port is one that packets can be sent to.
fn output_port(a: Action) -> Result<Action, ErrorKind> {
    match a {
        Action::Output { port, .. } if !is_output_port(port, Port::MAX) => {
            Err(ErrorKind::BadActionBadOutPort)
        }
        a => Ok(a),
    }
}

fn set_field(mut r: Reader<'_>, may_mask: bool) -> Result<Action, ErrorKind> {
    let (field, value, mask) = match pull_entry(&mut r)? {
        Set::Field(field, value, mask) => (field, value, mask),
        Set::Wide(set) => {
            let masked = set.mask.iter().any(|b| *b != 0xff);
            if masked && !may_mask {
                return Err(ErrorKind::BadActionBadSetMask);
            }
            argument_of_set(r.is_zero())?;
            return Ok(Action::SetTunMetadata(Box::new(set)));
        }
    };
    if mask.is_some() && !may_mask {
        return Err(ErrorKind::BadActionBadSetMask);
    }
    let masked = mask.is_some();
    let mask = mask.unwrap_or(field.full_mask());
    let present = FieldValue::from_u64(0x1000);
    let untagged = field == FieldId::VlanVid && ((mask & present).is_zero() || (value & present).is_zero());
    let fits = field.is_value_valid(value);
    if !r.is_zero() || field == FieldId::InPortOxm || !field.info().writable || !fits || untagged {
        return Err(ErrorKind::BadActionBadSetArgument);
    }
    // In 1.5, a load of a whole field whose bits do not fill its bytes comes with a mask (see
    // `encode::load15`). The mask distinguishes it from a set-field.
    let partly_filled = usize::from(field.info().n_bits) < usize::from(field.info().n_bytes) * 8;
    if masked && partly_filled && field.is_exact(mask) {
        return Ok(Action::Load {
            dst: Subfield::all(field),
            value: value.as_u64(),
        });
    }
    Ok(Action::SetField { field, value, mask })
}

/// `pad` bytes, number of bits, source and destination offsets, `pad2` bytes, source and destination headers.
fn copy_field(mut r: Reader<'_>, pad: usize, pad2: usize) -> Result<Action, ErrorKind> {
    let bad_len = |_| ErrorKind::BadActionBadLen;
    r.skip(pad).map_err(bad_len)?;
    let n_bits = r.u16().map_err(bad_len)?;
    let (src_ofs, dst_ofs) = (r.u16().map_err(bad_len)?, r.u16().map_err(bad_len)?);
    r.skip(pad2).map_err(bad_len)?;
    let src = Subfield {
        field: pull_header(&mut r)?,
        ofs: src_ofs,
        n_bits,
    };
    let dst = Subfield {
        field: pull_header(&mut r)?,
        ofs: dst_ofs,
        n_bits,
    };
    must_be_zero(&r)?;
    check_src(src, None)?;
    check_dst(dst, None)?;
    Ok(Action::Move { src, dst })
}

/// Properties of `NXAST_CONTROLLER2`.
pub(crate) mod c2 {
    pub(crate) const MAX_LEN: u16 = 0;
    pub(crate) const CONTROLLER_ID: u16 = 1;
    pub(crate) const REASON: u16 = 2;
    pub(crate) const USERDATA: u16 = 3;
    pub(crate) const PAUSE: u16 = 4;
    pub(crate) const METER_ID: u16 = 5;
}

fn controller2(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    if r.array::<6>()? != [0; 6] {
        return Err(ErrorKind::BadRequestMustBeZero);
    }
    let mut c = ControllerAction {
        max_len: 0xffff,
        reason: 1,
        ..ControllerAction::default()
    };
    while !r.is_empty() {
        let p = property::pull(&mut r)?;
        match p.standard()? {
            c2::MAX_LEN => c.max_len = p.u16()?,
            c2::CONTROLLER_ID => c.controller_id = p.u16()?,
            c2::REASON => c.reason = p.u8()?,
            c2::USERDATA => c.userdata = p.body.to_vec(),
            c2::PAUSE => c.pause = true,
            c2::METER_ID => c.meter_id = Some(p.u32()?),
            _ => return Err(ErrorKind::BadPropertyBadType),
        }
    }
    Ok(Action::Controller(c))
}
