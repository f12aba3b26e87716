//! A run of bits within a field, as actions name it: `NXM_NX_REG0[0..15]`, `reg0[3]`, `eth_src[]`.

use super::{FieldId, FieldValue, Run};
use crate::field::tlv::TlvField;
use crate::key::{FlowKey, FlowMask, Match};
use core::fmt;

/// Bits `ofs` to `ofs + n_bits - 1` of a field, counted from the least significant one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Subfield {
    /// The field.
    pub field: FieldId,
    /// The lowest bit.
    pub ofs: u16,
    /// Number of bits; at least 1.
    pub n_bits: u16,
}

impl Subfield {
    /// All of a field.
    pub fn all(field: FieldId) -> Self {
        Self {
            field,
            ofs: 0,
            n_bits: field.info().n_bits,
        }
    }
    /// Whether the bits are within the field, and there are any.
    pub fn is_valid(self) -> bool {
        self.n_bits > 0 && u32::from(self.ofs) + u32::from(self.n_bits) <= u32::from(self.field.info().n_bits)
    }
    /// The bits, as a mask of the field.
    pub fn mask(self) -> FieldValue {
        let ones = super::value::ones(u32::from(self.n_bits));
        FieldValue::from_u128(ones.checked_shl(u32::from(self.ofs)).unwrap_or(0))
    }
    /// The subfield in pieces of at most 128 bits, the lowest first; only options of tunnels have more than
    /// one.
    pub fn pieces(self) -> impl Iterator<Item = Subfield> {
        (0..self.n_bits).step_by(128).map(move |done| Subfield {
            ofs: self.ofs + done,
            n_bits: (self.n_bits - done).min(128),
            ..self
        })
    }
    /// The field, if it is one whose bits do not all fit into a [`FieldValue`].
    fn wide(self) -> Option<TlvField> {
        match self.field {
            FieldId::TunMetadata(t) if t.is_wide() => Some(t),
            _ => None,
        }
    }
    /// The run of the bits, if the field is a number within a word.
    #[inline]
    pub fn run(self) -> Option<Run> {
        Some(self.field.info().run?.part(self.ofs, self.n_bits))
    }
    /// The bits' value, shifted down to bit 0.
    pub fn get(self, key: &FlowKey) -> FieldValue {
        if let Some(run) = self.run() {
            return FieldValue::from_u64(run.get(key));
        }
        if let Some(t) = self.wide() {
            return FieldValue::from_u128(t.get_bits(key, self.ofs, self.n_bits));
        }
        self.extract(self.field.get(key))
    }
    /// These bits of a value of the field, shifted down to bit 0.
    pub fn extract(self, value: FieldValue) -> FieldValue {
        let v = value.as_u128().checked_shr(u32::from(self.ofs)).unwrap_or(0);
        FieldValue::from_u128(v & super::value::ones(u32::from(self.n_bits)))
    }
    /// `value`'s low bits, shifted up to where the subfield is in the field.
    pub fn place(self, value: FieldValue) -> FieldValue {
        FieldValue::from_u128(value.as_u128().checked_shl(u32::from(self.ofs)).unwrap_or(0)) & self.mask()
    }
    /// Sets the bits to the low bits of `value`.
    pub fn set(self, key: &mut FlowKey, value: FieldValue) {
        if let Some(run) = self.run() {
            return run.set(key, value.as_u64());
        }
        match self.wide() {
            Some(t) => t.set_bits(key, self.ofs, self.n_bits, value.as_u128()),
            None => self.field.set_masked(key, self.place(value), self.mask()),
        }
    }
    /// Makes the bits count.
    pub fn add_mask(self, mask: &mut FlowMask) {
        if let Some(run) = self.run() {
            return run.count(mask);
        }
        match self.wide() {
            Some(t) => t.set_bits(&mut mask.0, self.ofs, self.n_bits, u128::MAX),
            None => self.field.set_mask(mask, self.mask()),
        }
    }
    /// The whole field, in network order, with its bits at these set to the low bits of `value` and the
    /// others zero.
    pub fn bytes(self, value: FieldValue) -> Vec<u8> {
        let mut all = vec![0; self.field.info().n_bytes.into()];
        let end = all.len();
        for n in (0..usize::from(self.n_bits)).take(128) {
            let bit = usize::from(self.ofs) + n;
            let at = end.checked_sub(1 + bit / 8);
            if value.as_u128() >> n & 1 != 0
                && let Some(b) = at.and_then(|at| all.get_mut(at))
            {
                *b |= 1 << (bit % 8);
            }
        }
        all
    }
    /// Requires the bits to have the low bits of `value`, beside what the match requires of other bits of the
    /// field.
    pub fn set_match(self, m: &mut Match, value: FieldValue) {
        if let Some(t) = self.wide() {
            t.set_bits(&mut m.key, self.ofs, self.n_bits, value.as_u128());
            t.set_bits(&mut m.mask.0, self.ofs, self.n_bits, u128::MAX);
            return;
        }
        let (old, old_mask) = m.get_field(self.field);
        let bits = self.mask();
        m.set_field(
            self.field,
            (old & !bits) | self.place(value),
            Some(old_mask | bits),
        );
    }

    /// Reads a subfield from the start of `s`; returns it and what follows.
    ///
    /// The brackets may be missing: the whole field.
    pub fn parse_prefix(s: &str) -> Result<(Subfield, &str), String> {
        let end = s.find(['[', '-']).unwrap_or(s.len());
        let (name, rest) = s.split_at(end);
        let field = FieldId::by_oxm_name(name)
            .or_else(|| FieldId::by_name(name))
            .ok_or_else(|| format!("{s}: unknown field `{name}'"))?;
        let n_bits = field.info().n_bits;
        if n_bits == 0 {
            return Err(format!("{s}: field has no bits"));
        }
        let Some(inner) = rest.strip_prefix('[') else {
            return Ok((Subfield::all(field), rest));
        };
        let syntax = || format!("{s}: syntax error expecting [] or [<bit>] or [<start>..<end>]");
        let (inner, rest) = inner.split_once(']').ok_or_else(syntax)?;
        let num = |t: &str| t.trim_start().parse::<u16>().map_err(|_| syntax());
        let (start, last) = if inner.is_empty() {
            (0, n_bits - 1)
        } else if let Some((a, b)) = inner.split_once("..") {
            (num(a)?, num(b)?)
        } else {
            (num(inner)?, num(inner)?)
        };
        let width = || format!("is not valid because field is only {n_bits} bits wide");
        if start > last {
            Err(format!("{s}: starting bit {start} is after ending bit {last}"))
        } else if start >= n_bits {
            Err(format!("{s}: starting bit {start} {}", width()))
        } else if last >= n_bits {
            Err(format!("{s}: ending bit {last} {}", width()))
        } else {
            Ok((
                Subfield {
                    field,
                    ofs: start,
                    n_bits: last - start + 1,
                },
                rest,
            ))
        }
    }
}

impl core::str::FromStr for Subfield {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match Self::parse_prefix(s)? {
            (sf, "") => Ok(sf),
            _ => Err("unexpected input following field syntax".into()),
        }
    }
}

impl fmt::Display for Subfield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field.header(0).map_or(self.field.name(), |h| h.name))?;
        let Self { ofs, n_bits, .. } = *self;
        if ofs == 0 && n_bits == self.field.info().n_bits {
            f.write_str("[]")
        } else if n_bits == 1 {
            write!(f, "[{ofs}]")
        } else {
            write!(f, "[{ofs}..{}]", ofs + n_bits - 1)
        }
    }
}
