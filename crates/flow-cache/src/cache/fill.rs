//! Inserting entries, and giving them another cached translation.

use super::Cache;
use crate::burst::Sought;
use crate::cached_translation::CachedTranslation;
use crate::compact::{Family, Source, context_mask};
use crate::context::{Context, ContextMask};
use crate::entry::{Membership, NewEntry};
use crate::events::{RESERVE, ROOM, RevalidatorEvent};
use crate::numbered::Interned;
use crate::program_table::{Program, ProgramId};
use crate::subtable::{MAX_LISTED, NOWHERE};
use crate::validity::Under;
use heddle_datapath_api::{Dep, Override, Translation};
use heddle_flow::FlowKey;
use std::sync::Arc;

impl<P: Program> Cache<P> {
    /// Stores the translation `t` of a packet, made after `any` was read. From now on lookups find the entry.
    /// Returns the number of its program, or `None` if there is no room.
    pub fn insert(
        &mut self,
        sought: Sought<'_>,
        t: &mut Translation,
        any: u64,
        now_ms: u64,
    ) -> Option<ProgramId> {
        let (origin, family) = (sought.key.origin(), sought.key.family());
        if origin == NOWHERE || !self.events.has_room(ROOM) {
            return None;
        }
        let taken = self.store.take()?;
        let slot = taken.slot;
        // Masks are per origin.
        (t.mask.0.in_port, t.mask.0.recirc_id) = (u32::MAX, u32::MAX);
        let interned = self.subtables.mask_for(&t.mask, origin, family);
        let (subtable, subtable_is_new) = (interned.number, interned.is_new);
        let first_use = self.subtables.add(subtable, origin);
        self.new_mask |= first_use.mask;
        let held = Arc::clone(self.subtables.get(subtable)?);
        let hash = self.hash_under(sought, subtable)?;
        let mut context = Interned::known(origin);
        if let Some(key) = sought.context {
            let mask = ContextMask {
                subtable,
                bits: &held.context_bits,
                is_odd: family.is_odd(),
            };
            context = self.contexts.retain(mask, origin, key)?;
        }
        if !self.table.insert(hash, slot) {
            self.contexts.release(context.number);
            self.subtables.remove(subtable, origin);
            // The first chunk stays.
            if self.store.free(slot).is_none()
                && let Some((n, mem)) = taken.chunk
            {
                self.push(RevalidatorEvent::Chunk(n, Some(mem)));
            }
            return None;
        }
        self.subtables.entered(subtable, sought.key);
        let membership = self
            .enter(subtable, context.number, &t.deps, &t.overrides)
            .unwrap_or_default();
        let interned = self.translations.intern(t, any);
        let translation = interned.number;
        let program = self.translations.program_of(translation)?;
        let key = sought.key.with_origin(context.number);
        self.translations.retain(translation);
        if let Some((n, mem)) = taken.chunk {
            self.new_chunk = true;
            self.push(RevalidatorEvent::Chunk(n, Some(mem)));
        }
        // The revalidator needs events for new numbers only. Most entries have none.
        if subtable_is_new {
            self.push(RevalidatorEvent::Subtable(subtable, Some(held)));
        }
        if first_use.origin {
            let shown = self.context_of(origin, None, family);
            self.push(RevalidatorEvent::Context(origin, Some(shown)));
        }
        if context.is_new {
            let shown = self.context_of(origin, sought.context, family);
            self.push(RevalidatorEvent::Context(context.number, Some(shown)));
        }
        if interned.is_new {
            let v = self.translations.get(translation).map(Arc::clone);
            self.push(RevalidatorEvent::CachedTranslation(translation, v));
        }
        let id = self.take_id();
        if let Some(e) = self.store.get(slot) {
            e.publish(&NewEntry {
                id,
                key,
                translation,
                subtable,
                program,
                now_ms,
                membership,
            });
        }
        self.horizon.set(self.next_id);
        self.fresh.push(slot);
        self.remember(sought, slot);
        Some(program)
    }
    /// Announces the entry of the last [`Cache::insert`] to the revalidator, which has an observer of flows.
    pub fn announce(&mut self) {
        let entry = self
            .fresh
            .last()
            .and_then(|slot| Some((*slot, self.store.get(*slot)?.id())));
        // The entry is found by the next pass, if there is no room.
        if let Some((slot, id)) = entry {
            let _ = self.events.push(RevalidatorEvent::New(slot, id));
        }
    }
    /// Describes a context for the revalidator: the origin, and the words that the packet had outside of its
    /// compact key.
    fn context_of(&self, origin: u32, key: Option<&FlowKey>, family: Family) -> Arc<Context> {
        let Source { in_port, recirc_id } = self.subtables.source(origin);
        let words = key.map_or(&[][..], |key| &key.words()[..]).iter();
        let words = words.zip(context_mask(family).words()).map(|(w, o)| w & o);
        Arc::new(Context {
            in_port,
            recirc_id,
            whole: (0_u8..).zip(words).filter(|(_, w)| *w != 0).collect(),
        })
    }
    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Gives an entry the cached translation of `t`, which was made after `any` was read. The actions are the
    /// same as before, but dependencies or creditors have changed. Returns the number of the program, or
    /// `None` if the ring of events has no room.
    pub fn renew(&mut self, slot: u32, t: &mut Translation, any: u64) -> Option<ProgramId> {
        if !self.events.has_room(ROOM) {
            return None;
        }
        let e = self.store.get(slot)?;
        let (subtable, context) = (e.subtable(), e.key().origin());
        let entered = self
            .enter(subtable, context, &t.deps, &t.overrides)
            .unwrap_or_default();
        let interned = self.translations.intern(t, any);
        self.rename(slot, interned, entered);
        self.translations.program_of(interned.number)
    }
    /// Puts an entry under the group for its mask, these dependencies and overrides.
    fn enter(
        &mut self,
        subtable: u32,
        context: u32,
        deps: &[Dep],
        overrides: &[Override],
    ) -> Option<Membership> {
        let held = self.subtables.get(subtable)?;
        let origin = self.contexts.origin(context);
        let under = Under {
            subtable,
            in_port: self.subtables.source(origin).in_port.min(MAX_LISTED),
            mask: &held.mask,
            v6: held.family.is_v6(),
            context_mask: context_mask(held.family),
        };
        self.groups.enter(deps, overrides, under)
    }
    /// Like [`Cache::renew`], for a translation that the revalidator made of the entry with this id.
    pub fn adopt(&mut self, slot: u32, id: u64, cached: &Arc<CachedTranslation<P>>) {
        let Some(e) = self.store.get(slot).filter(|e| e.id() == id && e.alive()) else {
            return;
        };
        let (subtable, context) = (e.subtable(), e.key().origin());
        if !self.events.has_room(RESERVE) {
            return;
        }
        // `None`: this worker knows of changes later than the translation, and will check the entry by
        // itself.
        let Some(entered) = self.enter(subtable, context, cached.deps(), cached.overrides()) else {
            return;
        };
        let interned = self.translations.adopt(cached);
        self.rename(slot, interned, entered);
    }
    fn rename(&mut self, slot: u32, interned: Interned, membership: Membership) {
        let translation = interned.number;
        if let Some(e) = self.store.get(slot) {
            let left = e.membership();
            e.set_membership(membership);
            self.groups.leave(left.group);
        }
        if interned.is_new {
            let v = self.translations.get(translation).map(Arc::clone);
            self.push(RevalidatorEvent::CachedTranslation(translation, v));
        }
        let new = self.take_id();
        if let Some(e) = self.store.get(slot) {
            let (id, old, counted) = (e.id(), e.translation(), Self::counted(e));
            if old == translation {
                return;
            }
            self.translations.retain(translation);
            e.rename(
                new,
                translation,
                self.translations.program_of(translation).unwrap_or_default(),
            );
            self.translations.release(old);
            self.push(RevalidatorEvent::Renamed(slot, id, old, counted, new));
        }
        self.horizon.set(self.next_id);
    }
}
