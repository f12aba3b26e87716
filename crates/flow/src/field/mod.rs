//! Match fields: named pieces of a [`FlowKey`] that rules match on and actions read and write.
//!
//! Each row of `table.rs` has the name, width, place in the key, headers on the wire, text form and
//! prerequisites of one field. A macro makes the enum, the accessors and [`FieldInfo`] from it. Several
//! fields may share a place (`tcp_src` and `udp_src`, `reg0` and `xreg0`): prerequisites keep them apart.
//!
//! **Masks.** A field may be wider in the mask than its value. For example, an exact match on `icmp_type`
//! sets 16 mask bits, of which the key can use eight. That is harmless (see [`crate::key`] on which error is
//! the safe one). Open vSwitch does the same, and texts depend on it.

mod info;
mod place;
mod prereq;
mod run;
mod subfield;
mod table;
pub mod tlv;
mod value;

#[cfg(test)]
mod tests;

pub use info::{FieldInfo, Maskable, OxmId, Prereq, Style};
pub use place::{port_from_32, port_to_32};
pub(crate) use prereq::{dl_type, is_ip_any, is_nd};
pub use run::Run;
pub use subfield::Subfield;
pub use table::FieldId;
pub use value::FieldValue;

use crate::key::{FlowKey, FlowMask, Match};
use std::collections::HashMap;
use std::sync::LazyLock;

/// A header's identity on the wire: class, field number, experimenter.
type OxmNumber = (u16, u8, u32);

static BY_NAME: LazyLock<HashMap<&'static str, FieldId>> = LazyLock::new(|| {
    table::INFO
        .iter()
        .flat_map(|f| {
            [Some(f.name), f.extra_name]
                .into_iter()
                .flatten()
                .map(|n| (n, f.id))
        })
        .collect()
});
static BY_OXM_NAME: LazyLock<HashMap<&'static str, FieldId>> = LazyLock::new(|| {
    table::INFO
        .iter()
        .flat_map(|f| f.nxm.iter().map(|x| (x.name, f.id)))
        .collect()
});
static BY_OXM: LazyLock<HashMap<OxmNumber, FieldId>> = LazyLock::new(|| {
    table::INFO
        .iter()
        .flat_map(|f| f.nxm.iter().map(|x| ((x.class, x.field, x.experimenter), f.id)))
        .collect()
});

/// Classes with many fields, numbers below 128: Nicira's two, OpenFlow's, packet registers.
const DENSE_CLASSES: [u16; 4] = [0, 1, 0x8000, 0x8001];

/// The place of a field of those classes.
fn dense(class: u16, field: u8) -> Option<usize> {
    let class = DENSE_CLASSES.iter().position(|c| *c == class)?;
    (field < 128).then_some(class * 128 + usize::from(field))
}

/// The fields of those classes by their places: each match on the wire names several.
static BY_PLACE: LazyLock<[Option<FieldId>; DENSE_CLASSES.len() * 128]> = LazyLock::new(|| {
    let mut all = [None; DENSE_CLASSES.len() * 128];
    for ((class, field, _), id) in BY_OXM.iter() {
        if let Some(at) = dense(*class, *field) {
            all[at] = Some(*id);
        }
    }
    all
});

impl FieldId {
    /// The field's name.
    pub fn name(self) -> &'static str {
        self.info().name
    }
    /// The field named `name`, by its name or its other name.
    pub fn by_name(name: &str) -> Option<FieldId> {
        let known = BY_NAME.get(name).copied();
        known.or_else(|| tlv::mapped(tlv::index_of_name(name)?).map(FieldId::TunMetadata))
    }
    /// The field that a header's name such as `NXM_OF_IN_PORT` (or `..._W`) names.
    pub fn by_oxm_name(name: &str) -> Option<FieldId> {
        let name = name.strip_suffix("_W").filter(|s| !s.is_empty()).unwrap_or(name);
        let known = BY_OXM_NAME.get(name).copied();
        known.or_else(|| tlv::mapped(tlv::index_of_name(name)?).map(FieldId::TunMetadata))
    }
    /// The field that a header on the wire names. `experimenter` counts only for class 0xffff. An option of a
    /// tunnel is known as long as the thread's map has it ([`crate::field::tlv`]).
    pub fn by_oxm(class: u16, field: u8, experimenter: u32) -> Option<FieldId> {
        let experimenter = if class == 0xffff { experimenter } else { 0 };
        match tlv::index_of_header(class, field) {
            Some(index) => tlv::mapped(index).map(FieldId::TunMetadata),
            None => match dense(class, field) {
                Some(at) => BY_PLACE[at],
                None => BY_OXM.get(&(class, field, experimenter)).copied(),
            },
        }
    }
    /// The header to send to a peer of an OpenFlow version (wire number; 0 prefers Nicira's headers over
    /// OXM's). `None` for a field that has no header.
    pub fn header(self, version: u8) -> Option<&'static OxmId> {
        let all = self.info().nxm;
        // The newest header that the version knows; of two equally new, the first.
        let known = all.iter().filter(|x| version >= x.version);
        known
            .reduce(|best, x| if x.version > best.version { x } else { best })
            .or(all.first())
    }

    /// The field's value in a key.
    pub fn get(self, key: &FlowKey) -> FieldValue {
        FieldValue::from_u128(table::get(self, key))
    }
    /// Sets the field in a packet's key. Setting a VLAN field of an untagged packet makes the tag 802.1Q;
    /// clearing the whole TCI removes the tag.
    pub fn set(self, key: &mut FlowKey, value: FieldValue) {
        table::set(self, key, value.as_u128());
        if self.is_vlan() {
            let tag = &mut key.vlans[0];
            if tag.tci == 0 {
                tag.tpid = 0;
            } else if tag.tpid == 0 {
                tag.tpid = 0x8100;
            }
        }
    }
    /// Sets those bits of the field that are set in `mask`.
    pub fn set_masked(self, key: &mut FlowKey, value: FieldValue, mask: FieldValue) {
        if let Some(run) = self.info().run {
            return run.only(mask.as_u64()).set(key, value.as_u64());
        }
        if let FieldId::TunMetadata(t) = self
            && t.is_wide()
        {
            let low = (t.get(key) & !mask.as_u128()) | (value & mask).as_u128();
            return t.set_bits(key, 0, 128, low);
        }
        let old = self.get(key);
        self.set(key, (old & !mask) | (value & mask));
    }
    /// Bits of the field that count.
    pub fn get_mask(self, mask: &FlowMask) -> FieldValue {
        FieldValue::from_u128(table::get_mask(self, &mask.0))
    }
    /// Makes more of the field's bits count: those set in `bits`. Never makes fewer count.
    pub fn set_mask(self, mask: &mut FlowMask, bits: FieldValue) {
        if let Some(run) = self.info().run {
            return run.only(bits.as_u64()).count(mask);
        }
        let v = table::get_mask(self, &mask.0) | bits.as_u128() & self.info().valid;
        match self {
            FieldId::TunMetadata(t) => t.set_bits(&mut mask.0, 0, self.info().n_bits, v),
            _ => table::set_mask(self, &mut mask.0, v),
        }
    }
    /// All of the field's bits.
    pub fn full_mask(self) -> FieldValue {
        FieldValue::from_u128(self.info().valid)
    }
    /// Whether `mask` covers the whole field.
    pub fn is_exact(self, mask: FieldValue) -> bool {
        mask.as_u128() & self.info().valid == self.info().valid
    }
    /// Whether `value` is one that the field can have (OpenFlow's `OFPBMC_BAD_VALUE` otherwise).
    pub fn is_value_valid(self, value: FieldValue) -> bool {
        match self.info().style {
            Style::OfPort32 => u32::try_from(value.as_u128()).is_ok_and(|p| port_from_32(p).is_some()),
            _ if self == FieldId::NshTtl => value.as_u128() <= 63,
            // Further metadata types are unknown.
            _ if self == FieldId::NshMdtype => matches!(value.as_u128(), 1 | 2),
            _ if matches!(self, FieldId::TunMetadata(_)) => true,
            _ => value.as_u128() & !self.info().valid == 0,
        }
    }
    /// Whether a match on the field may have this mask (over `n_bytes`).
    pub fn is_mask_valid(self, mask: FieldValue) -> bool {
        let all = value::ones(u32::from(self.info().n_bytes) * 8);
        let m = mask.as_u128() & all;
        self.info().maskable == Maskable::Any || m == 0 || m == all
    }

    /// Whether the field means anything for a packet with this key.
    pub fn prereqs_ok(self, key: &FlowKey) -> bool {
        self.info().prereq.ok(key)
    }
    /// Adds the bits that [`Self::prereqs_ok`] looked at.
    pub fn add_prereq_mask(self, key: &FlowKey, mask: &mut FlowMask) {
        self.info().prereq.add_mask(key, mask);
    }

    fn is_vlan(self) -> bool {
        matches!(
            self,
            FieldId::VlanTci | FieldId::DlVlan | FieldId::VlanVid | FieldId::DlVlanPcp | FieldId::VlanPcp
        )
    }
}

impl Match {
    /// Requires the field to have `value` in the bits of `mask` (`None`: all), in place of what the match
    /// required of these bits before. A zero mask requires nothing. Does not check value, mask or
    /// prerequisites.
    pub fn set_field(&mut self, field: FieldId, value: FieldValue, mask: Option<FieldValue>) {
        match mask {
            // The option of a tunnel must then be present, whatever its value.
            Some(m) if m.is_zero() && !matches!(field, FieldId::TunMetadata(_)) => self.clear_field(field),
            Some(m) if !field.is_exact(m) => {
                table::set(field, &mut self.key, (value & m).as_u128());
                table::set_mask(field, &mut self.mask.0, m.as_u128());
            }
            _ => {
                table::set(field, &mut self.key, value.as_u128());
                table::exact(field, &mut self.mask.0);
                // OpenFlow 1.0's "no tag" leaves nothing of the TCI open.
                if field == FieldId::DlVlan && self.key.vlans[0].tci == 0 {
                    self.mask.0.vlans[0].tci = u16::MAX;
                }
            }
        }
    }

    /// Requires nothing of the field.
    pub fn clear_field(&mut self, field: FieldId) {
        use crate::key::Vlan;
        if field.is_vlan() {
            let (keep, others) = match field {
                FieldId::DlVlan | FieldId::VlanVid => (!Vlan::VID_MASK, Vlan::PCP_MASK),
                FieldId::DlVlanPcp | FieldId::VlanPcp => (!Vlan::PCP_MASK, Vlan::VID_MASK),
                _ => (0, 0),
            };
            // The present bit stays for as long as the other half of the tag is matched.
            let keep = if self.mask.0.vlans[0].tci & others != 0 {
                keep
            } else {
                0
            };
            self.key.vlans[0].tci &= keep;
            self.mask.0.vlans[0].tci &= keep;
        } else if let FieldId::TunMetadata(t) = field {
            t.remove(&mut self.key);
            t.remove(&mut self.mask.0);
        } else {
            table::set(field, &mut self.key, 0);
            table::set_mask(field, &mut self.mask.0, 0);
        }
    }

    /// The field's value and mask; the mask is zero where the match requires nothing of it.
    pub fn get_field(&self, field: FieldId) -> (FieldValue, FieldValue) {
        (field.get(&self.key), field.get_mask(&self.mask))
    }

    /// Whether the match requires anything of the field.
    pub fn has_field(&self, field: FieldId) -> bool {
        match field {
            FieldId::TunMetadata(t) => t.is_present(&self.mask.0),
            _ => !field.get_mask(&self.mask).is_zero(),
        }
    }
}
