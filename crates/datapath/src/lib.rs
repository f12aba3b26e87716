//! Caches, compiled actions, worker loop, drop reasons, the Translate trait.
