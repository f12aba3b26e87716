//! A connection becomes entries of a map, one for each direction; without a reply, one for the original
//! direction. A word shows whether they still count.
//!
//! **Invariants.** The word is written when both entries are there, and is zero before they go. The tracker
//! writes a zero from any thread, and so ends both at once ([`Live`]). A word belongs to one connection at a
//! time: others whose number shares it wait until it is free.

use super::flows::{State, refused};
use super::layout::{self, LIVE_TOUCHED, LIVE_WORDS};
use crate::{ConnUse, Why};
use heddle_conntrack::offloaded::{ConnId, EndOffload, Offloadable};
use heddle_sys::shared_words::SharedWords;
use std::sync::Arc;

/// Ends connections.
pub(super) struct Live(pub(super) Arc<SharedWords>);

/// Index of a connection's word.
fn word(number: u32) -> usize {
    layout::live_index(number) as usize * LIVE_WORDS
}

impl EndOffload for Live {
    fn end(&self, number: u32) {
        self.0.store(word(number), 0);
    }
}

impl State {
    pub(super) fn adopted_conns(&self) -> Vec<Offloadable> {
        let keys = self.adopted.conns.keys();
        let all = keys.filter_map(|key| layout::conn_of(key, &self.loaded.conns.get(key, 0).ok()?));
        let lives =
            |c: &Offloadable| self.loaded.live.load(word(c.id.number)) == layout::live_word(c.id.generation);
        all.filter(lives).collect()
    }
    pub(super) fn install_conn(&mut self, c: &Offloadable) -> Result<(), Why> {
        let at = word(c.id.number);
        if self.loaded.live.load(at) != 0 || self.conns.contains_key(&c.id) {
            return Err(Why::Full);
        }
        let directions = [(&c.orig, false), (&c.reply, true)];
        let directions = if c.replied {
            &directions[..]
        } else {
            &directions[..1]
        };
        let keys: Vec<_> = directions
            .iter()
            .map(|(t, _)| layout::conn_key(t, c.zone))
            .collect();
        for (key, (_, reply)) in keys.iter().zip(directions) {
            if let Some(live) = self.adopted.conns.remove(key) {
                // The entry of the other direction may have another key now: its word is cleared, so it
                // counts no more.
                self.loaded.live.store(live as usize * LIVE_WORDS, 0);
            }
            if let Err(error) = self.loaded.conns.insert(key, layout::conn(c, *reply), 0) {
                let _ = self.loaded.conns.remove(&keys[0]);
                return Err(refused(&error));
            }
        }
        self.loaded.live.store(at + LIVE_TOUCHED, 0);
        self.loaded.live.store(at, layout::live_word(c.id.generation));
        self.conns.insert(c.id, keys);
        Ok(())
    }
    pub(super) fn remove_conns(&mut self, ids: &[ConnId]) {
        for id in ids {
            let Some(keys) = self.conns.remove(id) else {
                continue;
            };
            let at = word(id.number);
            if self.loaded.live.load(at) == layout::live_word(id.generation) {
                self.loaded.live.store(at, 0);
            }
            for key in &keys {
                let _ = self.loaded.conns.remove(key);
            }
        }
        self.wait();
    }
    pub(super) fn conn_use(&mut self, id: ConnId) -> ConnUse {
        let at = word(id.number);
        let live = &self.loaded.live;
        if live.load(at) != layout::live_word(id.generation) {
            return ConnUse::Ended;
        }
        if live.load(at + LIVE_TOUCHED) == 0 {
            return ConnUse::Rests;
        }
        live.store(at + LIVE_TOUCHED, 0);
        ConnUse::Used
    }
}
