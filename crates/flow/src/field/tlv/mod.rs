//! Options of a tunnel (Geneve's TLVs) as match fields.
//!
//! **Problem.** A controller defines the class, type and length of the option that is `tun_metadata0`
//! (`NXT_TLV_TABLE_MOD`); each bridge has a map of its own. The width of the field, and its place in a key,
//! are known from that map alone.
//!
//! **Use of the map.** A [`TlvField`] holds width and place, and is made where a name or header is read. With
//! it a key is read and written without the map. It stays right for as long as the field stays mapped, and a
//! bridge keeps fields mapped that any of its rules uses. The map itself is needed where headers and names
//! are read and where the fields of a match are listed, deep in codecs and texts. These use the map that the
//! thread has at the time. Code that works on behalf of a bridge first makes the bridge's map that of the
//! thread ([`Scope`]). Without one, no option is mapped.
//!
//! **Place.** A field has one run of 4-byte words. When there is room but not in one piece, fields that no
//! rule uses are moved together; those in use stay where they are.

#![deny(clippy::indexing_slicing)] // whatever bytes come

use crate::field::{FieldInfo, Maskable, OxmId, Prereq, Style};
use crate::key::{FlowKey, TLV_SPACE};
use core::cell::RefCell;
use std::sync::{Arc, LazyLock};

/// Number of fields.
pub const N_TLV: usize = 64;
/// Maximum length of an option behind its header, bytes (RFC 8926, 3.5: 31 words).
pub const MAX_TLV_LEN: u8 = 124;
/// Class of the fields' headers.
const CLASS: u16 = 1;
/// Number of the first field's header within its class.
const FIRST: u8 = 40;
/// Words of all options of a map together.
const WORDS: u8 = 64;
const _: () = assert!(
    TLV_SPACE == 4 * WORDS as usize && WORDS <= 64,
    "a u64 has a bit for each word"
);

/// One mapped option: the number, width and place in keys of its field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TlvField {
    index: u8,
    /// Place in the key's space, and length, in words.
    at: u8,
    words: u8,
}

/// The rows of the table of fields, by index and width.
static INFO: LazyLock<Vec<FieldInfo>> = LazyLock::new(|| {
    let widths = usize::from(MAX_TLV_LEN / 4) + 1;
    let mut rows = Vec::with_capacity(N_TLV * widths);
    for index in (0u8..).take(N_TLV) {
        let name: &'static str = format!("tun_metadata{index}").leak();
        let oxm_name: &'static str = format!("NXM_NX_TUN_METADATA{index}").leak();
        for words in (0u8..).take(widths) {
            let oxm = OxmId::new(oxm_name, FIRST + index, words * 4, 0);
            rows.push(FieldInfo {
                id: crate::FieldId::TunMetadata(TlvField { index, at: 0, words }),
                name,
                extra_name: None,
                n_bits: u16::from(words) * 32,
                n_bytes: u16::from(words) * 4,
                valid: crate::FieldValue::low_ones(u32::from(words) * 32).as_u128(),
                maskable: Maskable::Any,
                style: Style::Hex,
                prereq: Prereq::None,
                run: None,
                writable: true,
                nxm: vec![oxm].leak(),
            });
        }
    }
    rows
});

impl TlvField {
    /// The field without a map, as wide as can be. For its name only.
    pub fn unmapped(index: u8) -> Self {
        Self {
            index,
            at: 0,
            words: MAX_TLV_LEN / 4,
        }
    }
    /// Number of the field, 0 for `tun_metadata0`.
    pub fn index(self) -> u8 {
        self.index
    }
    /// Name of the field.
    pub fn name(self) -> &'static str {
        self.info().name
    }
    /// Row in the table of fields, whose `id` has no place.
    #[expect(clippy::indexing_slicing, reason = "a field is made with a row of the table")]
    pub(crate) fn info(self) -> &'static FieldInfo {
        let widths = usize::from(MAX_TLV_LEN / 4) + 1;
        &INFO[usize::from(self.index) * widths + usize::from(self.words)]
    }
    /// Whether the field has more bits than a [`crate::FieldValue`].
    pub fn is_wide(self) -> bool {
        self.words > 4
    }
    fn bit(self) -> u64 {
        1 << self.index
    }
    fn range(self) -> core::ops::Range<usize> {
        let start = usize::from(self.at) * 4;
        start..start + usize::from(self.words) * 4
    }
    /// Value in a key, or bits that count, in a mask.
    pub fn bytes(self, key: &FlowKey) -> &[u8] {
        key.tun_metadata.get(self.range()).unwrap_or(&[])
    }
    fn bytes_mut(self, key: &mut FlowKey) -> &mut [u8] {
        key.tun_metadata.get_mut(self.range()).unwrap_or(&mut [])
    }
    /// Whether the packet has the option (in a mask: whether its presence counts).
    pub fn is_present(self, key: &FlowKey) -> bool {
        key.tun_present & self.bit() != 0
    }
    /// Takes the option off, with its value. In matches: removes all conditions on it.
    pub fn remove(self, key: &mut FlowKey) {
        key.tun_present &= !self.bit();
        self.bytes_mut(key).fill(0);
    }
    /// Makes the presence of the option count.
    pub fn mask_presence(self, mask: &mut FlowKey) {
        mask.tun_present |= self.bit();
    }
    /// Sets the field to `said` at its right end, zeros before it; of more bytes than the field has, the
    /// first ones.
    pub fn put(self, key: &mut FlowKey, said: &[u8]) {
        key.tun_present |= self.bit();
        let to = self.bytes_mut(key);
        let n = said.len().min(to.len());
        let (zero, value) = to.split_at_mut(to.len() - n);
        zero.fill(0);
        value.copy_from_slice(said.get(..n).unwrap_or(said));
    }
    /// Sets the bits of `mask`; both have as many bytes as the field.
    pub fn put_masked(self, key: &mut FlowKey, value: &[u8], mask: &[u8]) {
        key.tun_present |= self.bit();
        for (to, (v, m)) in self.bytes_mut(key).iter_mut().zip(value.iter().zip(mask)) {
            *to = *to & !m | v & m;
        }
    }
    /// Low 128 bits of the value.
    pub(crate) fn get(self, key: &FlowKey) -> u128 {
        let bytes = self.bytes(key);
        let low = bytes.get(bytes.len().saturating_sub(16)..).unwrap_or(bytes);
        low.iter().fold(0, |v, b| v << 8 | u128::from(*b))
    }
    /// Sets the field to a number.
    pub(crate) fn set(self, key: &mut FlowKey, v: u128) {
        let n = usize::from(self.words.min(4)) * 4;
        self.put(key, v.to_be_bytes().get(16 - n..).unwrap_or(&[]));
    }
    /// Sets all bits of the field.
    pub(crate) fn set_exact(self, mask: &mut FlowKey) {
        self.mask_presence(mask);
        self.bytes_mut(mask).fill(0xff);
    }
    /// At most 128 bits from bit `ofs` on.
    pub(crate) fn get_bits(self, key: &FlowKey, ofs: u16, n_bits: u16) -> u128 {
        let bytes = self.bytes(key);
        let bit = |n: u16| {
            let byte = bytes.len().checked_sub(1 + usize::from(n / 8));
            byte.and_then(|at| bytes.get(at))
                .is_some_and(|b| b >> (n % 8) & 1 != 0)
        };
        (0..n_bits.min(128)).fold(0, |v, n| v | u128::from(bit(ofs + n)) << n)
    }
    /// Sets at most 128 bits from bit `ofs` on to the low bits of `v`.
    pub(crate) fn set_bits(self, key: &mut FlowKey, ofs: u16, n_bits: u16, v: u128) {
        key.tun_present |= self.bit();
        let bytes = self.bytes_mut(key);
        for n in 0..n_bits.min(128) {
            let bit = usize::from(ofs + n);
            let at = bytes.len().checked_sub(1 + bit / 8);
            if let Some(b) = at.and_then(|at| bytes.get_mut(at)) {
                *b = *b & !(1 << (bit % 8)) | u8::from(v >> n & 1 != 0) << (bit % 8);
            }
        }
    }
}

/// A mapping of an option, by class, type and length in bytes, to a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlvMapping {
    /// Option class.
    pub class: u16,
    /// Option type.
    pub ty: u8,
    /// Length of the option, bytes: a multiple of 4, at most [`MAX_TLV_LEN`].
    pub len: u8,
    /// The field's number, less than [`N_TLV`].
    pub index: u8,
}

/// Why a mapping cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlvError {
    /// There is not enough room.
    #[error("no room")]
    TableFull,
    /// The field is mapped.
    #[error("field already mapped")]
    AlreadyMapped,
    /// The option is mapped.
    #[error("option already mapped")]
    DupEntry,
}

/// Mapping of options to fields, of one bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvMap([Option<(TlvMapping, TlvField)>; N_TLV]);

impl Default for TlvMap {
    fn default() -> Self {
        Self([None; N_TLV])
    }
}

/// The lowest run of `n` words that no field of these has.
fn free_run(used: u64, n: u8) -> Option<u8> {
    let run = u64::MAX.checked_shr(64 - u32::from(n)).unwrap_or(0);
    (0..=WORDS.checked_sub(n)?).find(|at| used & run << at == 0)
}

fn words_of(f: TlvField) -> u64 {
    u64::MAX.checked_shr(64 - u32::from(f.words)).unwrap_or(0) << f.at
}

impl TlvMap {
    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
    /// The field with this number, if it is mapped.
    pub fn field(&self, index: u8) -> Option<TlvField> {
        let (_, f) = self.0.get(usize::from(index))?.as_ref()?;
        Some(*f)
    }
    /// All mappings, in the order of the fields.
    pub fn mappings(&self) -> impl Iterator<Item = TlvMapping> + '_ {
        self.0.iter().flatten().map(|(m, _)| *m)
    }
    /// The options that a key has, as Geneve's header has them (RFC 8926, 3.5), in the order of the fields.
    pub fn options_of(&self, key: &FlowKey) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (m, field) in self.0.iter().flatten().filter(|(_, f)| f.is_present(key)) {
            bytes.extend_from_slice(&m.class.to_be_bytes());
            bytes.extend_from_slice(&[m.ty, m.len / 4]);
            bytes.extend_from_slice(field.bytes(key));
        }
        bytes
    }
    /// Returns the map with one more mapping. `is_used`: fields that must stay where they are.
    ///
    /// # Errors
    /// The first of: the field is mapped, the option is, there is no room for it.
    pub fn add(&mut self, m: TlvMapping, is_used: impl Fn(u8) -> bool) -> Result<(), TlvError> {
        let (i, words) = (usize::from(m.index), m.len / 4);
        if self.0.get(i).is_none_or(Option::is_some) {
            return Err(TlvError::AlreadyMapped);
        }
        if self.mappings().any(|o| (o.class, o.ty) == (m.class, m.ty)) {
            return Err(TlvError::DupEntry);
        }
        let used = |map: &Self| map.0.iter().flatten().fold(0, |u, (_, f)| u | words_of(*f));
        let at = free_run(used(self), words).or_else(|| {
            self.gather(&is_used);
            free_run(used(self), words)
        });
        let at = at.ok_or(TlvError::TableFull)?;
        let field = TlvField {
            index: m.index,
            at,
            words,
        };
        if let Some(place) = self.0.get_mut(i) {
            *place = Some((m, field));
        }
        Ok(())
    }
    /// Moves the fields that may be moved as far down as they can go.
    fn gather(&mut self, is_used: impl Fn(u8) -> bool) {
        let fixed = |(m, _): &&(TlvMapping, TlvField)| is_used(m.index);
        let mut used = self
            .0
            .iter()
            .flatten()
            .filter(fixed)
            .fold(0, |u, (_, f)| u | words_of(*f));
        let mut movable: Vec<_> = self
            .0
            .iter_mut()
            .flatten()
            .filter(|(m, _)| !is_used(m.index))
            .collect();
        // The widest first: the gaps between the fixed ones are then for the narrow.
        movable.sort_by_key(|(_, f)| (core::cmp::Reverse(f.words), f.index));
        let places: Option<Vec<u8>> = movable
            .iter()
            .map(|(_, f)| {
                let at = free_run(used, f.words)?;
                used |= words_of(TlvField { at, ..*f });
                Some(at)
            })
            .collect();
        // `None`: they fitted as they were, and stay.
        for ((_, f), at) in movable.into_iter().zip(places.unwrap_or_default()) {
            f.at = at;
        }
    }
    /// Takes a field's mapping away, if it has one.
    pub fn remove(&mut self, index: u8) {
        if let Some(place) = self.0.get_mut(usize::from(index)) {
            *place = None;
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<TlvMap>>> = const { RefCell::new(None) };
}

/// Makes a map that of the thread until this value is dropped; then the map before it is back.
#[must_use]
pub struct Scope {
    before: Option<Arc<TlvMap>>,
    /// Makes the type stay on its thread.
    _here: core::marker::PhantomData<*const ()>,
}

impl Scope {
    /// `None`: no option is mapped.
    pub fn enter(map: Option<Arc<TlvMap>>) -> Self {
        Self {
            before: CURRENT.replace(map),
            _here: core::marker::PhantomData,
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

/// Whether this is the thread's map.
pub fn is_current(map: &Arc<TlvMap>) -> bool {
    CURRENT.with_borrow(|now| now.as_ref().is_some_and(|now| Arc::ptr_eq(now, map)))
}

/// The field with this number, as the thread's map has it.
pub fn mapped(index: u8) -> Option<TlvField> {
    CURRENT.with_borrow(|map| map.as_ref()?.field(index))
}

/// The field of an option of this class and type, as the thread's map has it.
pub fn mapped_option(class: u16, ty: u8) -> Option<TlvField> {
    CURRENT.with_borrow(|map| {
        let mut all = map.as_ref()?.0.iter().flatten();
        all.find(|(m, _)| (m.class, m.ty) == (class, ty)).map(|(_, f)| *f)
    })
}

/// Class, type and field of the mapped options of these bits of `tun_present`.
pub fn mapped_options(present: u64) -> Vec<(u16, u8, TlvField)> {
    CURRENT.with_borrow(|map| {
        let all = map.iter().flat_map(|m| m.0.iter().flatten());
        let wanted = all.filter(|(_, f)| present & f.bit() != 0);
        wanted.map(|(m, f)| (m.class, m.ty, *f)).collect()
    })
}

/// The mapped fields of these bits of `tun_present`.
pub fn fields_of(present: u64) -> impl Iterator<Item = TlvField> {
    (0u8..64)
        .filter(move |i| present >> i & 1 != 0)
        .filter_map(mapped)
}

/// The number of the field that a header names, mapped or not.
pub fn index_of_header(class: u16, field: u8) -> Option<u8> {
    let index = field.checked_sub(FIRST)?;
    (class == CLASS && usize::from(index) < N_TLV).then_some(index)
}

/// The number of the field that is named so: by its name or by its header's.
pub fn index_of_name(name: &str) -> Option<u8> {
    let digits = name
        .strip_prefix("tun_metadata")
        .or_else(|| name.strip_prefix("NXM_NX_TUN_METADATA"))?;
    let index: u8 = digits.parse().ok()?;
    (usize::from(index) < N_TLV && index.to_string() == digits).then_some(index)
}

#[cfg(test)]
mod tests;
