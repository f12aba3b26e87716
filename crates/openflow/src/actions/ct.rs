//! The `ct` action on the wire.

use super::decode::decode_list;
use super::encoder::{Encoded, Encoder, end};
use super::field::{check_src, from_nxm_ofs, nxm, ofs_nbits};
use super::nat;
use super::raw::Raw;
use super::verify::{ListKind, verify_actions};
use crate::action::{Action, Ct, CtZone};
use crate::error::ErrorKind;
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};

const COMMIT: u16 = 1;
const FORCE: u16 = 2;
/// No table: the packet is not forked.
const NO_TABLE: u8 = 0xff;

pub(super) fn decode(version: Version, mut r: Reader<'_>, depth: u8) -> Result<Action, ErrorKind> {
    const BAD_ARGUMENT: ErrorKind = ErrorKind::BadActionBadArgument;
    let short = |_| ErrorKind::BadActionBadLen;
    let flags = r.u16().map_err(short)?;
    let zone_src = r.u32().map_err(short)?;
    let zone = r.u16().map_err(short)?;
    let table = r.u8().map_err(short)?;
    r.skip(3).map_err(short)?;
    let alg = r.u16().map_err(short)?;
    if flags & FORCE != 0 && flags & COMMIT == 0 {
        return Err(BAD_ARGUMENT);
    }
    let zone = if zone_src == 0 {
        CtZone::Number(zone)
    } else {
        let src = from_nxm_ofs(zone, zone_src)?;
        check_src(src, None)?;
        if src.n_bits != 16 {
            return Err(ErrorKind::BadActionBadSetLen);
        }
        CtZone::Field(src)
    };
    let actions = decode_list(version, r.0, depth + 1)?;
    verify_actions(&actions, version, ListKind::Ct)?;
    if flags & COMMIT == 0 && !actions.iter().all(nat::is_bare) {
        return Err(BAD_ARGUMENT);
    }
    Ok(Action::Ct(Box::new(Ct {
        commit: flags & COMMIT != 0,
        force: flags & FORCE != 0,
        zone,
        table: (table != NO_TABLE).then_some(table),
        alg,
        actions,
    })))
}

impl Encoder {
    pub(super) fn ct(&mut self, ct: &Ct, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::Ct, "ct", out)?;
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        out.u16(flag(ct.commit, COMMIT) | flag(ct.force, FORCE));
        match ct.zone {
            CtZone::Number(n) => {
                out.u32(0);
                out.u16(n);
            }
            CtZone::Field(f) => {
                out.u32(nxm(f.field).ok_or(self.missing("ct zone of an experimenter's field"))?);
                out.u16(ofs_nbits(f));
            }
        }
        out.u8(ct.table.unwrap_or(NO_TABLE));
        out.zeros(3);
        out.u16(ct.alg);
        self.nested(&ct.actions, out)?;
        end(out, start);
        Ok(())
    }
}
