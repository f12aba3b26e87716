//! Geneve options (RFC 8926, 3.5) that are match fields: written from a key and read into one.
//!
//! Costs: each option of a packet is searched in the list of mapped options, which is short. The list is
//! packed: sixteen names fit into a cache line.

#![deny(clippy::indexing_slicing)] // bytes of a packet

use heddle_flow::FlowKey;
use heddle_flow::field::tlv::{MAX_TLV_LEN, TlvField, TlvMap};
use heddle_wire::tunnel::{Geneve, GeneveOption};
use heddle_wire::{Be16, IntoBytes, split};

/// Geneve options that are match fields, in the form that decapsulation reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct OptionTable {
    /// Class and type of each option.
    names: Vec<u32>,
    /// In the order of `names`: length in bytes, and the field.
    fields: Vec<(u8, TlvField)>,
}

/// The reason why options are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionError {
    /// An option extends beyond the end of all options, or its length is not that of its field.
    Length,
    /// An option is critical and not mapped to a field.
    Critical,
}

fn name(class: u16, ty: u8) -> u32 {
    u32::from(class) << 8 | u32::from(ty)
}

impl OptionTable {
    /// The options of a bridge's map.
    pub fn of(map: &TlvMap) -> Self {
        let mut table = Self::default();
        table.add(map);
        table
    }
    /// Adds the options of another map that are not in the table yet.
    pub fn add(&mut self, map: &TlvMap) {
        for m in map.mappings() {
            if let Some(field) = map.field(m.index)
                && self.find(m.class, m.ty).is_none()
            {
                self.names.push(name(m.class, m.ty));
                self.fields.push((m.len, field));
            }
        }
    }
    /// Class and type of the option of four bytes that is exactly the first word of `tun_metadata0`.
    pub fn first_word(&self) -> Option<(u16, u8)> {
        let all = self.names.iter().zip(&self.fields);
        let mut found = all.filter(|(_, (len, field))| {
            let mut key = FlowKey::default();
            field.put(&mut key, &[u8::MAX; 4]);
            *len == 4 && key.tun_present == 1 && key.tun_metadata.starts_with(&[u8::MAX; 4])
        });
        let (name, _) = found.next()?;
        Some((u16::try_from(name >> 8).ok()?, u8::try_from(name & 0xff).ok()?))
    }
    fn find(&self, class: u16, ty: u8) -> Option<(u8, TlvField)> {
        let name = name(class, ty);
        let at = self.names.iter().position(|n| *n == name)?;
        self.fields.get(at).copied()
    }
    /// Sets the fields of these options in a key that has none. If an option occurs twice, the last one
    /// counts.
    ///
    /// # Errors
    /// [`OptionError`]; some fields may have been set already.
    pub fn read(&self, mut bytes: &[u8], key: &mut FlowKey) -> Result<(), OptionError> {
        while !bytes.is_empty() {
            let (option, rest) = split::<GeneveOption>(bytes).ok_or(OptionError::Length)?;
            let len = usize::from(option.len & 0x1f) * 4;
            let (value, rest) = rest.split_at_checked(len).ok_or(OptionError::Length)?;
            match self.find(option.class.get(), option.ty) {
                Some((want, field)) if usize::from(want) == len => field.put(key, value),
                Some(_) => return Err(OptionError::Length),
                None if option.ty & GeneveOption::CRITICAL != 0 => return Err(OptionError::Critical),
                None => {}
            }
            bytes = rest;
        }
        Ok(())
    }
}

/// The options of a key, in the order of the fields' numbers, and whether one of them is critical. `None`:
/// they are longer than [`Geneve::MAX_OPTIONS`] bytes.
pub fn write(key: &FlowKey, map: &TlvMap) -> Option<(Vec<u8>, bool)> {
    let (mut bytes, mut critical) = (Vec::new(), false);
    let mapped = map.mappings().filter(|m| key.tun_present >> m.index & 1 != 0);
    for m in mapped {
        let field = map.field(m.index)?;
        debug_assert!(m.len <= MAX_TLV_LEN);
        let option = GeneveOption {
            class: Be16::new(m.class),
            ty: m.ty,
            len: m.len / 4,
        };
        bytes.extend_from_slice(option.as_bytes());
        bytes.extend_from_slice(field.bytes(key));
        critical |= m.ty & GeneveOption::CRITICAL != 0;
    }
    (bytes.len() <= Geneve::MAX_OPTIONS).then_some((bytes, critical))
}
