//! A worker's entries by slot number.
//!
//! A [`SlotRef`] names a slot and the generation it had; removing an entry moves the slot's generation on, so that
//! references left behind in other caches are recognised as stale without being searched for.

use crate::entry::Entry;
use std::sync::Arc;

/// A reference to an entry that may have gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotRef {
    pub(crate) index: u32,
    generation: u32,
}

impl SlotRef {
    /// Refers to nothing, ever.
    pub(crate) const NONE: SlotRef = SlotRef {
        index: u32::MAX,
        generation: 0,
    };
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    entry: Option<Arc<Entry>>,
}

#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slab {
    /// Puts an entry in a free slot. The number of slots is bounded by the flow limit, checked by the caller.
    pub(crate) fn insert(&mut self, entry: Arc<Entry>) -> SlotRef {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("the flow limit is far below 2^32")
        });
        let slot = &mut self.slots[index as usize];
        slot.entry = Some(entry);
        SlotRef {
            index,
            generation: slot.generation,
        }
    }
    /// The entry that `r` refers to, unless it has gone.
    #[inline]
    pub(crate) fn get(&self, r: SlotRef) -> Option<&Arc<Entry>> {
        let slot = self.slots.get(r.index as usize)?;
        if slot.generation == r.generation {
            slot.entry.as_ref()
        } else {
            None
        }
    }
    /// The entry in a slot now, with its reference.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<(SlotRef, &Arc<Entry>)> {
        let slot = self.slots.get(index as usize)?;
        slot.entry.as_ref().map(|e| {
            (
                SlotRef {
                    index,
                    generation: slot.generation,
                },
                e,
            )
        })
    }
    /// Takes an entry out.
    pub(crate) fn remove(&mut self, r: SlotRef) -> Option<Arc<Entry>> {
        let slot = self
            .slots
            .get_mut(r.index as usize)
            .filter(|s| s.generation == r.generation)?;
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(r.index);
        Some(entry)
    }
    /// All entries.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotRef, &Arc<Entry>)> {
        self.slots.iter().zip(0_u32..).filter_map(|(s, index)| {
            s.entry.as_ref().map(|e| {
                (
                    SlotRef {
                        index,
                        generation: s.generation,
                    },
                    e,
                )
            })
        })
    }
}
