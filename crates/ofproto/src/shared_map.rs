//! A sorted map that is cheap to copy and to compare with an earlier copy of itself.
//!
//! **Problem.** Each configuration is a snapshot. If a snapshot with 4,000 ports differs from the one before
//! in one port, it should cost little more than that port.
//!
//! **Shape.** Entries are stored in chunks of at most [`MAX_CHUNK`], in order; copies share the chunks that
//! neither of them has changed.
//!
//! **Costs.** A copy counts a reference to each chunk. A lookup is two binary searches. A change copies one
//! chunk. [`SharedMap::differences`] compares only the entries of chunks that are not shared.

use std::sync::Arc;

/// Maximum number of entries of a chunk; one more, and it becomes two.
const MAX_CHUNK: usize = 64;

type Chunk<K, V> = Arc<Vec<(K, V)>>;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct SharedMap<K, V> {
    /// No chunk is empty.
    chunks: Vec<Chunk<K, V>>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<K: Ord + Copy, V: Clone> SharedMap<K, V> {
    /// Index of the chunk that has the key, if the key is there.
    fn chunk_of(&self, key: &K) -> usize {
        let behind = |c: &Chunk<K, V>| c.first().is_some_and(|(first, _)| first <= key);
        self.chunks.partition_point(behind).saturating_sub(1)
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let at = chunk.binary_search_by(|(k, _)| k.cmp(key)).ok()?;
        chunk.get(at).map(|(_, v)| v)
    }

    /// Sets the value of a key; returns its old one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let at = self.chunk_of(&key);
        let Some(chunk) = self.chunks.get_mut(at).map(Arc::make_mut) else {
            self.chunks.push(Arc::new(vec![(key, value)]));
            return None;
        };
        match chunk.binary_search_by(|(k, _)| k.cmp(&key)) {
            Ok(i) => return Some(std::mem::replace(&mut chunk[i].1, value)),
            Err(i) => chunk.insert(i, (key, value)),
        }
        if chunk.len() > MAX_CHUNK {
            let rest = chunk.split_off(MAX_CHUNK / 2);
            self.chunks.insert(at + 1, Arc::new(rest));
        }
        None
    }

    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.get(key)?;
        let at = self.chunk_of(key);
        let chunk = Arc::make_mut(self.chunks.get_mut(at)?);
        let i = chunk.binary_search_by(|(k, _)| k.cmp(key)).ok()?;
        let (_, value) = chunk.remove(i);
        if chunk.is_empty() {
            self.chunks.remove(at);
        }
        Some(value)
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.chunks.iter().flat_map(|c| c.iter()).map(|(k, v)| (*k, v))
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, v)| v)
    }

    /// Keys of entries that are not shared with another map, in order. Among them are all keys that only one
    /// map has, or whose values differ.
    pub fn differences(&self, other: &Self) -> Vec<K> {
        let mut keys = Vec::new();
        let (mut a, mut b) = (Cursor(&self.chunks, 0), Cursor(&other.chunks, 0));
        loop {
            match (a.0.first(), b.0.first()) {
                (Some(x), Some(y)) if (a.1, b.1) == (0, 0) && Arc::ptr_eq(x, y) => {
                    a = Cursor(&a.0[1..], 0);
                    b = Cursor(&b.0[1..], 0);
                    continue;
                }
                _ => {}
            }
            let key = match (a.key(), b.key()) {
                (Some(x), Some(y)) => *x.min(y),
                (Some(x), None) | (None, Some(x)) => *x,
                (None, None) => return keys,
            };
            a.pass(&key);
            b.pass(&key);
            keys.push(key);
        }
    }
}

/// Chunks that are left, and the number of entries of the first one that were passed.
struct Cursor<'a, K, V>(&'a [Chunk<K, V>], usize);

impl<K: Ord, V> Cursor<'_, K, V> {
    fn key(&self) -> Option<&K> {
        self.0.first()?.get(self.1).map(|(k, _)| k)
    }
    fn pass(&mut self, key: &K) {
        if self.key() == Some(key) {
            self.1 += 1;
            if self.0.first().is_some_and(|c| c.len() == self.1) {
                (self.0, self.1) = (&self.0[1..], 0);
            }
        }
    }
}

impl<K: Ord + Copy, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (k, v) in entries {
            map.insert(k, v);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Compares with the standard library's map, and with an earlier copy.
        #[test]
        fn same_as_a_map(ops in prop::collection::vec((0_u32..400, any::<Option<u8>>()), 0..2000), copied in 0_usize..2000) {
            let (mut map, mut twin) = (SharedMap::default(), BTreeMap::new());
            let mut earlier = (map.clone(), twin.clone());
            for (i, (key, value)) in ops.iter().enumerate() {
                if i == copied {
                    earlier = (map.clone(), twin.clone());
                }
                match value {
                    Some(v) => prop_assert_eq!(map.insert(*key, *v), twin.insert(*key, *v)),
                    None => prop_assert_eq!(map.remove(key), twin.remove(key)),
                }
            }
            prop_assert!(map.iter().eq(twin.iter().map(|(k, v)| (*k, v))));
            prop_assert!((0..400).all(|k| map.get(&k) == twin.get(&k)));
            prop_assert!(earlier.0.iter().eq(earlier.1.iter().map(|(k, v)| (*k, v))));
            let said = map.differences(&earlier.0);
            prop_assert!(said.is_sorted());
            prop_assert!((0..400).all(|k| twin.get(&k) == earlier.1.get(&k) || said.binary_search(&k).is_ok()));
        }
    }

    #[test]
    fn one_change_is_near_one_difference() {
        let map: SharedMap<u32, u32> = (0..4000).map(|n| (n, n)).collect();
        let mut other = map.clone();
        other.insert(4000, 1);
        other.remove(&17);
        assert!(map.differences(&other).len() <= 3 * MAX_CHUNK);
        assert!(map.differences(&map.clone()).is_empty());
    }
}
