//! Places of fields in the key: the macro that turns the table's rows into code.
//!
//! The kinds of place, with what an exact match adds to the mask:
//!
//! | kind | the field is | exact match adds |
//! | --- | --- | --- |
//! | `int(m)` | all of member `m`, which may be a member's member | all of `m` |
//! | `low(m, n)` | the low `n` bits of `m`, whose other bits are zero | all of `m` |
//! | `bits(m, b)` | the bits `b` of `m`, in place | `b` |
//! | `part(m, s, b)` | the bits `b` of `m >> s` | `b << s` |
//! | `port(m)` | `m` as a 32-bit OpenFlow port | all of `m` |
//! | `reg(i, n)` | `n` registers from `i`, the first most significant | these |
//! | `tci(b, s, also)` | the bits `b` of the outer tag's TCI, shifted by `s`; setting sets `also` | `b` and `also` |
//! | `dl_vlan()` | OpenFlow 1.0's VLAN id, 0xffff for no tag | VLAN id and present bit |
//! | `mpls(s, b)` | the bits `b` of the outer label stack entry shifted by `s` | `b << s` |
//!
//! Values are `u128` on this side: right-aligned, as [`super::FieldValue`] holds them.

/// A member of the key that can be read and written as an integer in network order.
pub(super) trait Cell: Copy {
    /// Every bit set.
    const ONES: Self;
    /// Whether the machine holds it as a number; otherwise as bytes.
    const NUMBER: bool;
    /// The value as an integer.
    fn load(self) -> u128;
    /// The value of the low bits of an integer.
    fn store(v: u128) -> Self;
}

macro_rules! int_cell {
    ($($t:ty),*) => {$(
        impl Cell for $t {
            const ONES: Self = <$t>::MAX;
            const NUMBER: bool = true;
            fn load(self) -> u128 {
                self.into()
            }
            #[expect(clippy::cast_possible_truncation, reason = "masked to the width")]
            fn store(v: u128) -> Self {
                (v & u128::from(<$t>::MAX)) as $t
            }
        }
    )*};
}
int_cell!(u8, u16, u32, u64);

impl<const N: usize> Cell for [u8; N] {
    const ONES: Self = [0xff; N];
    const NUMBER: bool = false;
    fn load(self) -> u128 {
        self.iter().fold(0, |acc, b| acc << 8 | u128::from(*b))
    }
    fn store(v: u128) -> Self {
        let all = v.to_be_bytes();
        core::array::from_fn(|i| all[16 - N + i])
    }
}

pub(super) use super::value::ones;

/// First port number that OpenFlow reserves, as OpenFlow 1.0 and the key write it.
pub(super) const PORT_MAX: u32 = 0xff00;
/// First port number that OpenFlow 1.1 and later reserve.
pub(super) const PORT_MAX_32: u32 = 0xffff_ff00;

/// A port number of the key (reserved ones are 0xff00 to 0xffff) in OpenFlow 1.1+'s 32 bits.
pub const fn port_to_32(port: u32) -> u32 {
    if port >= PORT_MAX && port <= 0xffff {
        port + (PORT_MAX_32 - PORT_MAX)
    } else {
        port
    }
}

/// The reverse of [`port_to_32`]; `None` for a number between the two ranges (not a port that a
/// switch with 16-bit port numbers can have).
pub const fn port_from_32(port: u32) -> Option<u32> {
    if port < PORT_MAX {
        Some(port)
    } else if port >= PORT_MAX_32 {
        Some(port - (PORT_MAX_32 - PORT_MAX))
    } else {
        None
    }
}

/// Reads consecutive registers, the first most significant.
pub(super) fn get_regs(regs: &[u32; 16], first: usize, n: usize) -> u128 {
    regs.iter()
        .skip(first)
        .take(n)
        .fold(0, |acc, r| acc << 32 | u128::from(*r))
}

/// Writes consecutive registers, the first most significant.
pub(super) fn set_regs(regs: &mut [u32; 16], first: usize, n: usize, v: u128) {
    for (i, r) in regs.iter_mut().skip(first).take(n).enumerate() {
        *r = u32::store(v >> (32 * (n - 1 - i)));
    }
}

/// The bits of a value that mean anything.
macro_rules! valid {
    ($bits:expr, int($($m:ident).+)) => {
        ones($bits)
    };
    ($bits:expr, low($m:ident, $n:expr)) => {
        ones($n)
    };
    ($bits:expr, bits($m:ident, $b:expr)) => {
        $b
    };
    ($bits:expr, part($($m:ident).+, $s:expr, $b:expr)) => {
        $b
    };
    ($bits:expr, port($m:ident)) => {
        ones($bits)
    };
    ($bits:expr, reg($i:expr, $n:expr)) => {
        ones($bits)
    };
    ($bits:expr, tci($b:expr, $s:expr, $also:expr)) => {
        $b >> $s
    };
    ($bits:expr, dl_vlan()) => {
        ones($bits)
    };
    ($bits:expr, mpls($s:expr, $b:expr)) => {
        $b
    };
}

/// The bits of a word where the field is; none for a place of another kind.
macro_rules! run {
    ($bits:expr, int($($m:ident).+)) => {
        Run::of_member(|k| &k.$($m).+, core::mem::offset_of!(FlowKey, $($m).+), 0, ones($bits))
    };
    ($bits:expr, low($m:ident, $n:expr)) => {
        Run::of_member(|k| &k.$m, core::mem::offset_of!(FlowKey, $m), 0, ones($n))
    };
    ($bits:expr, bits($m:ident, $b:expr)) => {
        Run::of_member(|k| &k.$m, core::mem::offset_of!(FlowKey, $m), 0, $b)
    };
    ($bits:expr, part($($m:ident).+, $s:expr, $b:expr)) => {
        Run::of_member(|k| &k.$($m).+, core::mem::offset_of!(FlowKey, $($m).+), $s, $b)
    };
    ($bits:expr, reg($i:expr, $n:expr)) => {
        Run::of_regs($i, $n)
    };
    ($bits:expr, $kind:ident($($p:tt)*)) => {
        None
    };
}

macro_rules! get {
    ($k:ident, int($($m:ident).+)) => {
        $k.$($m).+.load()
    };
    ($k:ident, low($m:ident, $n:expr)) => {
        $k.$m.load() & ones($n)
    };
    ($k:ident, bits($m:ident, $b:expr)) => {
        $k.$m.load() & $b
    };
    ($k:ident, part($($m:ident).+, $s:expr, $b:expr)) => {
        $k.$($m).+.load() >> $s & $b
    };
    ($k:ident, port($m:ident)) => {
        port_to_32($k.$m).load()
    };
    ($k:ident, reg($i:expr, $n:expr)) => {
        get_regs(&$k.regs, $i, $n)
    };
    ($k:ident, tci($b:expr, $s:expr, $also:expr)) => {
        ($k.vlans[0].tci.load() & $b) >> $s
    };
    ($k:ident, dl_vlan()) => {
        $k.vlans[0].tci.load() & 0xfff
    };
    ($k:ident, mpls($s:expr, $b:expr)) => {
        $k.mpls_lse[0].load() >> $s & $b
    };
}

macro_rules! set {
    ($k:ident, $v:ident, int($($m:ident).+)) => {
        $k.$($m).+ = Cell::store($v)
    };
    ($k:ident, $v:ident, low($m:ident, $n:expr)) => {
        $k.$m = Cell::store($v & ones($n))
    };
    ($k:ident, $v:ident, bits($m:ident, $b:expr)) => {
        $k.$m = Cell::store($k.$m.load() & !$b | $v & $b)
    };
    ($k:ident, $v:ident, part($($m:ident).+, $s:expr, $b:expr)) => {
        $k.$($m).+ = Cell::store($k.$($m).+.load() & !($b << $s) | ($v & $b) << $s)
    };
    ($k:ident, $v:ident, port($m:ident)) => {{
        let port: u32 = Cell::store($v);
        $k.$m = port_from_32(port).unwrap_or(port)
    }};
    ($k:ident, $v:ident, reg($i:expr, $n:expr)) => {
        set_regs(&mut $k.regs, $i, $n, $v)
    };
    ($k:ident, $v:ident, tci($b:expr, $s:expr, $also:expr)) => {
        $k.vlans[0].tci = Cell::store($k.vlans[0].tci.load() & !$b | ($v << $s) & $b | $also)
    };
    ($k:ident, $v:ident, dl_vlan()) => {
        $k.vlans[0].tci = if $v == 0xffff {
            0
        } else {
            Cell::store($k.vlans[0].tci.load() & 0xe000 | 0x1000 | $v & 0xfff)
        }
    };
    ($k:ident, $v:ident, mpls($s:expr, $b:expr)) => {
        $k.mpls_lse[0] = Cell::store($k.mpls_lse[0].load() & !($b << $s) | ($v & $b) << $s)
    };
}

/// The place in a mask that a value's mask goes to. Only ports and VLAN ids differ from `set!`.
macro_rules! set_mask {
    ($k:ident, $v:ident, port($m:ident)) => { $k.$m = if $v == 0 { 0 } else { Cell::ONES } };
    ($k:ident, $v:ident, dl_vlan()) => {
        $k.vlans[0].tci = Cell::store($k.vlans[0].tci.load() & !0xfff | 0x1000 | $v & 0xfff)
    };
    ($k:ident, $v:ident, $kind:ident($($p:tt)*)) => { set!($k, $v, $kind($($p)*)) };
}

macro_rules! get_mask {
    ($k:ident, port($m:ident)) => { if $k.$m == 0 { 0 } else { u128::from(u32::MAX) } };
    ($k:ident, $kind:ident($($p:tt)*)) => { get!($k, $kind($($p)*)) };
}

macro_rules! exact {
    ($k:ident, int($($m:ident).+)) => {
        $k.$($m).+ = Cell::ONES
    };
    ($k:ident, low($m:ident, $n:expr)) => {
        $k.$m = Cell::ONES
    };
    ($k:ident, bits($m:ident, $b:expr)) => {
        $k.$m |= $b
    };
    ($k:ident, part($($m:ident).+, $s:expr, $b:expr)) => {
        $k.$($m).+ |= $b << $s
    };
    ($k:ident, port($m:ident)) => {
        $k.$m = Cell::ONES
    };
    ($k:ident, reg($i:expr, $n:expr)) => {
        set_regs(&mut $k.regs, $i, $n, u128::MAX)
    };
    ($k:ident, tci($b:expr, $s:expr, $also:expr)) => {
        $k.vlans[0].tci |= $b | $also
    };
    ($k:ident, dl_vlan()) => {
        $k.vlans[0].tci |= 0x1fff
    };
    ($k:ident, mpls($s:expr, $b:expr)) => {
        $k.mpls_lse[0] |= $b << $s
    };
}

macro_rules! writable {
    (rw) => {
        true
    };
    (ro) => {
        false
    };
}

macro_rules! extra_name {
    () => {
        None
    };
    ($aka:literal) => {
        Some($aka)
    };
}

macro_rules! define_fields {
    ($(
        $id:ident $name:literal $(aka $aka:literal)? ($bits:literal in $bytes:literal)
        $maskable:ident $style:ident $prereq:ident $access:ident $kind:ident($($place:tt)*)
        [$($oxm:ident $num:literal $ver:literal),*];
    )*) => {
        use super::place::*;
        use super::{FieldInfo, Maskable, OxmId, Prereq, Run, Style};
        use crate::key::FlowKey;
        use crate::field::tlv::TlvField;

        /// A match field: a named piece of a [`FlowKey`] with a header in OXM or NXM. Named as Open vSwitch's
        /// `MFF_` constants, in their order.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum FieldId {
            /// `tun_metadata0` to `tun_metadata63`: an option of a tunnel, with the width of a bridge's map.
            TunMetadata(TlvField),
            $(#[doc = concat!("`", $name, "`, ", stringify!($bits), " bits.")] $id,)*
        }

        impl FieldId {
            /// Every field with a place of its own (that is, all but [`FieldId::TunMetadata`]), in order.
            pub const ALL: &'static [FieldId] = &[$(FieldId::$id),*];

            /// Row of the field in the table.
            pub fn info(self) -> &'static FieldInfo {
                enum Row {
                    $($id,)*
                }
                match self {
                    FieldId::TunMetadata(t) => t.info(),
                    $(FieldId::$id => &INFO[Row::$id as usize],)*
                }
            }
        }

        pub(super) static INFO: &[FieldInfo] = &[$(FieldInfo {
            id: FieldId::$id,
            name: $name,
            extra_name: extra_name!($($aka)?),
            n_bits: $bits,
            n_bytes: $bytes,
            valid: valid!($bits, $kind($($place)*)),
            maskable: Maskable::$maskable,
            style: Style::$style,
            prereq: Prereq::$prereq,
            run: run!($bits, $kind($($place)*)),
            writable: writable!($access),
            nxm: &[$(OxmId::new(stringify!($oxm), $num, $bytes, $ver)),*],
        }),*];

        pub(super) fn get(id: FieldId, k: &FlowKey) -> u128 {
            match id {
                FieldId::TunMetadata(t) => t.get(k),
                $(FieldId::$id => get!(k, $kind($($place)*)),)*
            }
        }

        pub(super) fn set(id: FieldId, k: &mut FlowKey, v: u128) {
            match id {
                FieldId::TunMetadata(t) => t.set(k, v),
                $(FieldId::$id => set!(k, v, $kind($($place)*)),)*
            }
        }

        pub(super) fn get_mask(id: FieldId, k: &FlowKey) -> u128 {
            match id {
                FieldId::TunMetadata(t) => t.get(k),
                $(FieldId::$id => get_mask!(k, $kind($($place)*)),)*
            }
        }

        pub(super) fn set_mask(id: FieldId, k: &mut FlowKey, v: u128) {
            match id {
                FieldId::TunMetadata(t) => t.set(k, v),
                $(FieldId::$id => set_mask!(k, v, $kind($($place)*)),)*
            }
        }

        pub(super) fn exact(id: FieldId, k: &mut FlowKey) {
            match id {
                FieldId::TunMetadata(t) => t.set_exact(k),
                $(FieldId::$id => exact!(k, $kind($($place)*)),)*
            }
        }
    };
}

pub(super) use {define_fields, exact, extra_name, get, get_mask, run, set, set_mask, valid, writable};
