//! Instructions that many rules have in common are kept once.
//!
//! A million rules have a handful of different actions. A table of fixed size has the latest sets, by a hash
//! of their first actions. A set that fell out of it is kept twice at worst.

use heddle_openflow::{Action, Instruction, InstructionSet};
use std::hash::{Hash, Hasher};
use std::mem::discriminant;
use std::sync::Arc;

/// Sets that are remembered.
const PLACES: usize = 1024;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Interned(Vec<Option<Arc<InstructionSet>>>);

impl Interned {
    /// The set that is there already, or a copy of this one.
    pub(super) fn share(&mut self, set: &InstructionSet) -> Arc<InstructionSet> {
        match self.place(set) {
            Some(known) if **known == *set => known.clone(),
            place => place.insert(Arc::new(set.clone())).clone(),
        }
    }
    /// The set that is there already, or this one.
    pub(super) fn adopt(&mut self, set: Arc<InstructionSet>) -> Arc<InstructionSet> {
        match self.place(&set) {
            Some(known) if Arc::ptr_eq(known, &set) || **known == *set => known.clone(),
            place => place.insert(set).clone(),
        }
    }
    fn place(&mut self, set: &InstructionSet) -> &mut Option<Arc<InstructionSet>> {
        self.0.resize(PLACES, None);
        #[allow(clippy::cast_possible_truncation)] // some of its bits
        let at = rough_hash(set) as usize % PLACES;
        &mut self.0[at]
    }
}

/// A hash that need not withstand attackers: sets that collide are at worst kept twice.
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            let word = u64::from_ne_bytes(word);
            self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    fn finish(&self) -> u64 {
        self.0 >> 32
    }
}

/// Equal sets have equal hashes; different sets mostly have different ones.
fn rough_hash(set: &InstructionSet) -> u64 {
    let mut h = Mixed(0);
    for i in &set.0 {
        discriminant(i).hash(&mut h);
        match i {
            Instruction::Apply(actions) | Instruction::Write(actions) => {
                actions.len().hash(&mut h);
                actions.iter().take(4).for_each(|a| rough(a, &mut h));
            }
            Instruction::Goto(t) => t.hash(&mut h),
            Instruction::WriteMetadata { value, .. } => value.hash(&mut h),
            Instruction::Clear | Instruction::Meter(_) => {}
        }
    }
    h.finish()
}

fn rough(a: &Action, h: &mut Mixed) {
    discriminant(a).hash(h);
    match a {
        Action::Output { port, .. } => port.hash(h),
        Action::Resubmit { port, table, .. } => (port, table).hash(h),
        Action::SetField { value, .. } => value.as_u128().hash(h),
        Action::Load { value, .. } => value.hash(h),
        Action::SetEthDst(mac) | Action::SetEthSrc(mac) => mac.hash(h),
        Action::Group(n) => n.hash(h),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_openflow::Port;

    #[test]
    fn equal_sets_are_kept_once() {
        let set = |n: u32| {
            let out = Action::Output {
                port: Port(n),
                max_len: 0,
            };
            InstructionSet(vec![Instruction::Apply(vec![out])])
        };
        let mut interned = Interned::default();
        let first = interned.share(&set(1));
        for n in 0..10_000 {
            assert_eq!(*interned.share(&set(n)), set(n));
        }
        assert!(interned.0.len() <= PLACES);
        let (a, b) = (interned.share(&set(1)), interned.share(&set(1)));
        assert!(Arc::ptr_eq(&a, &b) && a == first);
        let adopted = interned.adopt(Arc::new(set(1)));
        assert!(Arc::ptr_eq(&a, &adopted));
        let new = Arc::new(set(10_001));
        assert!(Arc::ptr_eq(&new, &interned.adopt(new.clone())));
    }
}
