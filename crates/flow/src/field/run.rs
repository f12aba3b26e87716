//! Bits of one word of a key: the fast access to most fields.
//!
//! **Problem.** Values of fields are 128 bits wide ([`super::FieldValue`]), and a jump by the field's id
//! finds their bits. But actions copy a few bits at a time. Most fields are a number within one word of the
//! key, or a part of one: a rotation and a mask reach it. The others have no run: addresses kept as bytes,
//! port numbers that have two forms, VLAN tags that come with their first bit.

use super::place::Cell;
use crate::key::{FlowKey, FlowMask};
use core::mem::offset_of;

/// Bits of a word of a key. A value has them from bit 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    word: u8,
    /// Right rotation of the word that moves the bits to their position in a value; below 64.
    rot: u8,
    /// Bits of a value that the word has.
    ones: u64,
}

impl Run {
    /// The value of the bits.
    #[inline]
    pub fn get(self, key: &FlowKey) -> u64 {
        key.words()[usize::from(self.word)].rotate_right(self.rot.into()) & self.ones
    }
    /// Sets the bits to those of `value`.
    #[inline]
    pub fn set(self, key: &mut FlowKey, value: u64) {
        let (bits, rot) = (self.ones, self.rot.into());
        let word = &mut key.words_mut()[usize::from(self.word)];
        *word = *word & !bits.rotate_left(rot) | (value & bits).rotate_left(rot);
    }
    /// Makes the bits count.
    #[inline]
    pub fn count(self, mask: &mut FlowMask) {
        mask.words_mut()[usize::from(self.word)] |= self.ones.rotate_left(self.rot.into());
    }
    /// The part of the run that has these bits of a value.
    #[inline]
    pub fn only(self, bits: u64) -> Self {
        Self {
            ones: self.ones & bits,
            ..self
        }
    }
    /// The `n` bits from bit `ofs` on, which becomes bit 0.
    #[inline]
    pub(super) fn part(self, ofs: u16, n: u16) -> Self {
        let ones = self.ones.checked_shr(ofs.into()).unwrap_or(0);
        let n_ones = u64::MAX.checked_shr(64_u32.saturating_sub(n.into())).unwrap_or(0);
        Self {
            word: self.word,
            // Less than 64, so it fits.
            rot: u8::try_from((u16::from(self.rot) + ofs) % 64).unwrap_or(0),
            ones: ones & n_ones,
        }
    }

    /// The bits `ones` of a member shifted to the right by `shift`; `at` is where the member begins, in
    /// bytes. `None`: it is no number.
    pub(super) const fn of_member<T: Cell>(
        _: fn(&FlowKey) -> &T,
        at: usize,
        shift: usize,
        ones: u128,
    ) -> Option<Self> {
        let from = at % 8 * 8;
        let size = size_of::<T>() * 8;
        if !T::NUMBER || from + size > 64 {
            return None;
        }
        let rot = if cfg!(target_endian = "little") {
            from + shift
        } else {
            64 - from - size + shift
        };
        Self::at(at / 8, rot, ones)
    }
    /// `n` registers from `first` on, the first most significant.
    pub(super) const fn of_regs(first: usize, n: usize) -> Option<Self> {
        const { assert!(offset_of!(FlowKey, regs).is_multiple_of(8)) };
        let word = offset_of!(FlowKey, regs) / 8 + first / 2;
        let second_is_high = cfg!(target_endian = "little");
        match n {
            1 => {
                let high = (first % 2 == 1) == second_is_high;
                Self::at(word, if high { 32 } else { 0 }, u32::MAX as u128)
            }
            2 => Self::at(word, if second_is_high { 32 } else { 0 }, u64::MAX as u128),
            _ => None,
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "checked")]
    const fn at(word: usize, rot: usize, ones: u128) -> Option<Self> {
        if word > u8::MAX as usize || ones > u64::MAX as u128 {
            return None;
        }
        Some(Self {
            word: word as u8,
            rot: (rot % 64) as u8,
            ones: ones as u64,
        })
    }
}
