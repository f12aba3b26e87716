//! Values on the OpenFlow stack.

use heddle_flow::{FieldValue, FlowKey, Subfield};
use smallvec::SmallVec;

/// A value that was pushed, as wide as the bits that it comes from. Registers and headers have up to 128
/// bits, options of tunnels up to 992.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct StackValue {
    /// In network order, in whole bytes.
    bytes: SmallVec<[u8; 16]>,
}

impl StackValue {
    /// The bits of a key.
    pub fn read(from: Subfield, key: &FlowKey) -> Self {
        let n = usize::from(from.n_bits).div_ceil(8);
        let mut bytes = SmallVec::from_elem(0, n);
        let chunks = bytes.rchunks_mut(size_of::<FieldValue>());
        for (to, piece) in chunks.zip(from.pieces()) {
            to.copy_from_slice(piece.get(key).bytes(to.len()));
        }
        Self { bytes }
    }
    /// Writes the value's low bits into a key; bits that the value lacks become zero.
    pub fn write(&self, to: Subfield, key: &mut FlowKey) {
        let mut chunks = self.bytes.rchunks(size_of::<FieldValue>());
        for piece in to.pieces() {
            piece.set(key, FieldValue::from_bytes(chunks.next().unwrap_or_default()));
        }
    }
    /// Bytes of the value, in network order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// A value of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            bytes: SmallVec::from_slice(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use heddle_flow::FieldId;
    use heddle_flow::field::tlv::{Scope, TlvMap, TlvMapping, mapped};
    use std::sync::Arc;

    fn part(field: FieldId, ofs: u16, n_bits: u16) -> Subfield {
        Subfield { field, ofs, n_bits }
    }

    #[test]
    fn narrow_values_move_between_registers() {
        let mut key = FlowKey::default();
        part(FieldId::Reg0, 0, 32).set(&mut key, FieldValue::from_u64(0x1234_5678));
        let value = StackValue::read(part(FieldId::Reg0, 4, 20), &key);
        assert_eq!(value.bytes(), [0x03, 0x45, 0x67]);
        value.write(part(FieldId::Reg1, 8, 24), &mut key);
        assert_eq!(
            part(FieldId::Reg1, 0, 32).get(&key),
            FieldValue::from_u64(0x0345_6700)
        );
        // A wider place has zeros in front, a narrower one takes the low bits.
        part(FieldId::Reg2, 0, 32).set(&mut key, FieldValue::ONES);
        value.write(Subfield::all(FieldId::Reg2), &mut key);
        assert_eq!(
            Subfield::all(FieldId::Reg2).get(&key),
            FieldValue::from_u64(0x03_4567)
        );
        value.write(part(FieldId::Reg3, 0, 8), &mut key);
        assert_eq!(Subfield::all(FieldId::Reg3).get(&key), FieldValue::from_u64(0x67));
        assert_eq!(StackValue::from_bytes(value.bytes()), value);
    }

    /// An option of 124 bytes keeps all its bytes over push and pop, whole and in part, and in a flow that
    /// `learn` makes.
    #[test]
    fn options_of_tunnels_are_wide() {
        let mut map = TlvMap::default();
        for index in 0..2 {
            let m = TlvMapping {
                class: 0xffff,
                ty: index,
                len: 124,
                index,
            };
            map.add(m, |_| false).unwrap();
        }
        let _scope = Scope::enter(Some(Arc::new(map)));
        let [a, b] = [0, 1].map(|i| mapped(i).unwrap());
        let mut key = FlowKey::default();
        let said: Vec<u8> = (1..=124).collect();
        a.put(&mut key, &said);
        let all = Subfield::all(FieldId::TunMetadata(a));
        assert_eq!(all.n_bits, 992);
        let value = StackValue::read(all, &key);
        assert_eq!(value.bytes(), said);
        value.write(Subfield::all(FieldId::TunMetadata(b)), &mut key);
        assert_eq!(b.bytes(&key), said);
        // Bits 8 to 207: bytes 25 to 1, counted from the end.
        let middle = StackValue::read(part(FieldId::TunMetadata(a), 8, 200), &key);
        assert_eq!(middle.bytes(), &said[98..123]);
        match Action::copied(all, Subfield::all(FieldId::TunMetadata(b)), &key) {
            Some(Action::SetTunMetadata(set)) => {
                assert_eq!((set.value, set.mask), (said, vec![0xff; 124]));
            }
            other => panic!("{other:?}"),
        }
    }
}
