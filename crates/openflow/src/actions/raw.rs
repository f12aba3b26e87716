//! The wire forms of actions: which number each has in which version, and how long it is.
//!
//! One row per form and range of versions. Lengths are those of the whole action; a form with a maximum of
//! [`ANY`] ends in a variable part. An action without a row is `OFPBAC_BAD_TYPE` or `OFPBAC_BAD_VENDOR_TYPE`.

use crate::error::{NX_VENDOR, ONF_VENDOR};
use crate::version::Version;

/// A wire form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Raw {
    Output10,
    Output11,
    SetVlanVid10,
    SetVlanVid11,
    SetVlanPcp10,
    SetVlanPcp11,
    PushVlan,
    StripVlan10,
    PopVlan11,
    SetDlSrc,
    SetDlDst,
    SetNwSrc,
    SetNwDst,
    SetNwTos,
    SetNwEcn,
    SetNwTtl,
    SetTpSrc,
    SetTpDst,
    Enqueue,
    SetMplsLabel,
    SetMplsTc,
    SetMplsTtl,
    DecMplsTtl,
    PushMpls,
    PopMpls,
    SetQueue,
    Group,
    DecNwTtl,
    DecTtlCntIds,
    SetField12,
    SetField15,
    RegLoad,
    RegLoad2,
    CopyField15,
    CopyFieldOnf,
    RegMove,
    Meter15,
    Resubmit,
    ResubmitTable,
    ResubmitTableCt,
    SetTunnel,
    SetTunnel64,
    PopQueue,
    Note,
    Multipath,
    Bundle,
    BundleLoad,
    OutputReg,
    OutputReg2,
    Learn,
    Learn2,
    Exit,
    FinTimeout,
    Controller,
    Controller2,
    WriteMetadata,
    StackPush,
    StackPop,
    Sample,
    Sample2,
    Sample3,
    Sample4,
    Conjunction,
    Ct,
    Nat,
    OutputTrunc,
    Clone,
    CtClear,
    Encap,
    Decap,
    DecNshTtl,
    CheckPktLarger,
    DeleteField,
    DebugSlow,
    DebugRecirc,
}

/// Form whose length is limited by the length field only.
const ANY: u16 = u16::MAX;

/// One wire form in a range of versions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) raw: Raw,
    /// Experimenter; 0 for a standard action.
    pub(crate) vendor: u32,
    lo: Version,
    hi: Version,
    /// Type, or the experimenter's subtype.
    pub(crate) number: u16,
    pub(crate) min: u16,
    pub(crate) max: u16,
}

const fn of(raw: Raw, lo: Version, hi: Version, number: u16, len: u16) -> Row {
    Row {
        raw,
        vendor: 0,
        lo,
        hi,
        number,
        min: len,
        max: len,
    }
}
const fn of_var(raw: Raw, lo: Version, hi: Version, number: u16, min: u16) -> Row {
    Row {
        raw,
        vendor: 0,
        lo,
        hi,
        number,
        min,
        max: ANY,
    }
}
const fn nx(raw: Raw, number: u16, len: u16) -> Row {
    Row {
        raw,
        vendor: NX_VENDOR,
        lo: V10,
        hi: V15,
        number,
        min: len,
        max: len,
    }
}
const fn nx_var(raw: Raw, number: u16, min: u16) -> Row {
    Row {
        raw,
        vendor: NX_VENDOR,
        lo: V10,
        hi: V15,
        number,
        min,
        max: ANY,
    }
}
const fn only(row: Row, lo: Version, hi: Version) -> Row {
    Row { lo, hi, ..row }
}

use Version::{V10, V11, V12, V13, V14, V15};

const ROWS: &[Row] = &[
    of(Raw::Output10, V10, V10, 0, 8),
    of(Raw::Output11, V11, V15, 0, 16),
    of(Raw::SetVlanVid10, V10, V10, 1, 8),
    of(Raw::SetVlanPcp10, V10, V10, 2, 8),
    of(Raw::SetVlanVid11, V11, V15, 1, 8),
    of(Raw::SetVlanPcp11, V11, V15, 2, 8),
    of(Raw::PushVlan, V11, V15, 17, 8),
    of(Raw::StripVlan10, V10, V10, 3, 8),
    of(Raw::PopVlan11, V11, V15, 18, 8),
    of(Raw::SetDlSrc, V10, V10, 4, 16),
    of(Raw::SetDlSrc, V11, V15, 3, 16),
    of(Raw::SetDlDst, V10, V10, 5, 16),
    of(Raw::SetDlDst, V11, V15, 4, 16),
    of(Raw::SetNwSrc, V10, V10, 6, 8),
    of(Raw::SetNwSrc, V11, V15, 5, 8),
    of(Raw::SetNwDst, V10, V10, 7, 8),
    of(Raw::SetNwDst, V11, V15, 6, 8),
    of(Raw::SetNwTos, V10, V10, 8, 8),
    of(Raw::SetNwTos, V11, V15, 7, 8),
    of(Raw::SetNwEcn, V11, V15, 8, 8),
    of(Raw::SetTpSrc, V10, V15, 9, 8),
    of(Raw::SetTpDst, V10, V15, 10, 8),
    of(Raw::Enqueue, V10, V10, 11, 16),
    only(nx(Raw::SetMplsLabel, 30, 16), V10, V10),
    of(Raw::SetMplsLabel, V11, V15, 13, 8),
    only(nx(Raw::SetMplsTc, 31, 16), V10, V10),
    of(Raw::SetMplsTc, V11, V15, 14, 8),
    only(nx(Raw::SetMplsTtl, 25, 16), V10, V10),
    of(Raw::SetMplsTtl, V11, V15, 15, 8),
    only(nx(Raw::DecMplsTtl, 26, 16), V10, V10),
    of(Raw::DecMplsTtl, V11, V15, 16, 8),
    only(nx(Raw::PushMpls, 23, 16), V10, V10),
    of(Raw::PushMpls, V11, V15, 19, 8),
    only(nx(Raw::PopMpls, 24, 16), V10, V10),
    of(Raw::PopMpls, V11, V15, 20, 8),
    only(nx(Raw::SetQueue, 4, 16), V10, V10),
    of(Raw::SetQueue, V11, V15, 21, 8),
    only(nx(Raw::Group, 40, 16), V10, V10),
    of(Raw::Group, V11, V15, 22, 8),
    of(Raw::SetNwTtl, V11, V15, 23, 8),
    only(nx(Raw::DecNwTtl, 18, 16), V10, V10),
    of(Raw::DecNwTtl, V11, V15, 24, 8),
    nx_var(Raw::DecTtlCntIds, 21, 16),
    of_var(Raw::SetField12, V12, V14, 25, 8),
    of_var(Raw::SetField15, V15, V15, 25, 8),
    only(nx(Raw::RegLoad, 7, 24), V10, V14),
    only(nx_var(Raw::RegLoad2, 33, 16), V10, V14),
    of_var(Raw::CopyField15, V15, V15, 28, 16),
    Row {
        raw: Raw::CopyFieldOnf,
        vendor: ONF_VENDOR,
        lo: V13,
        hi: V14,
        number: 3200,
        min: 24,
        max: ANY,
    },
    only(nx_var(Raw::RegMove, 6, 16), V10, V14),
    of(Raw::Meter15, V15, V15, 29, 8),
    nx(Raw::Resubmit, 1, 16),
    nx(Raw::ResubmitTable, 14, 16),
    nx(Raw::ResubmitTableCt, 44, 16),
    nx(Raw::SetTunnel, 2, 16),
    nx(Raw::SetTunnel64, 9, 24),
    nx(Raw::PopQueue, 5, 16),
    nx_var(Raw::Note, 8, 16),
    nx(Raw::Multipath, 10, 32),
    nx_var(Raw::Bundle, 12, 32),
    nx_var(Raw::BundleLoad, 13, 32),
    nx(Raw::OutputReg, 15, 24),
    nx(Raw::OutputReg2, 32, 24),
    nx_var(Raw::Learn, 16, 32),
    nx_var(Raw::Learn2, 45, 40),
    nx(Raw::Exit, 17, 16),
    nx(Raw::FinTimeout, 19, 16),
    nx(Raw::Controller, 20, 16),
    nx_var(Raw::Controller2, 37, 16),
    nx(Raw::WriteMetadata, 22, 32),
    nx(Raw::StackPush, 27, 24),
    nx(Raw::StackPop, 28, 24),
    nx(Raw::Sample, 29, 24),
    nx(Raw::Sample2, 38, 32),
    nx(Raw::Sample3, 41, 32),
    nx(Raw::Sample4, 51, 40),
    nx(Raw::Conjunction, 34, 16),
    nx_var(Raw::Ct, 35, 24),
    nx_var(Raw::Nat, 36, 16),
    nx(Raw::OutputTrunc, 39, 16),
    nx_var(Raw::Clone, 42, 16),
    nx(Raw::CtClear, 43, 16),
    only(nx_var(Raw::Encap, 46, 16), V13, V15),
    only(nx_var(Raw::Decap, 47, 16), V13, V15),
    only(nx(Raw::DecNshTtl, 48, 16), V13, V15),
    nx(Raw::CheckPktLarger, 49, 24),
    nx(Raw::DeleteField, 50, 24),
    nx(Raw::DebugSlow, 254, 16),
    nx(Raw::DebugRecirc, 255, 16),
];

/// The form with this number in a version.
pub(crate) fn by_number(version: Version, vendor: u32, number: u16) -> Option<&'static Row> {
    ROWS.iter()
        .find(|r| r.vendor == vendor && r.number == number && (r.lo..=r.hi).contains(&version))
}

/// The row of a form in a version: its number and length.
pub(crate) fn row(version: Version, raw: Raw) -> Option<&'static Row> {
    ROWS.iter()
        .find(|r| r.raw == raw && (r.lo..=r.hi).contains(&version))
}
