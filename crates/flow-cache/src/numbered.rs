//! Values by number. Equal values have one number, as long as they have users.

use hashbrown::HashTable;

#[derive(Debug)]
struct RefCounted<T> {
    value: T,
    hash: u64,
    users: u32,
}

/// The number of a value that was looked up in a table, and stored there if it was missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Interned {
    pub(crate) number: u32,
    pub(crate) is_new: bool,
}

impl Interned {
    /// The number of a value that the table had.
    #[inline]
    pub(crate) fn known(number: u32) -> Self {
        Self {
            number,
            is_new: false,
        }
    }
    /// The number of a value that the table had not.
    #[inline]
    pub(crate) fn new(number: u32) -> Self {
        Self { number, is_new: true }
    }
}

/// Values by number, and their numbers by hash. Free numbers are reused.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    all: Vec<Option<RefCounted<T>>>,
    free: Vec<u32>,
    index: HashTable<u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
        }
    }
}

impl<T> Numbered<T> {
    #[inline]
    pub(crate) fn get(&self, n: u32) -> Option<&T> {
        Some(&self.all.get(n as usize)?.as_ref()?.value)
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, n: u32) -> Option<&mut T> {
        Some(&mut self.all.get_mut(n as usize)?.as_mut()?.value)
    }
    /// The number of the value with this hash for which `is` is true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(&T) -> bool) -> Option<u32> {
        let same = |n: &u32| {
            let held = self.all.get(*n as usize).and_then(Option::as_ref);
            held.is_some_and(|h| h.hash == hash && is(&h.value))
        };
        self.index.find(hash, same).copied()
    }
    /// Stores a value without users; returns its number.
    pub(crate) fn insert(&mut self, hash: u64, value: T) -> u32 {
        let n = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            u32::try_from(self.all.len() - 1).expect("entries and masks are bounded")
        });
        self.all[n as usize] = Some(RefCounted {
            value,
            hash,
            users: 0,
        });
        let all = &self.all;
        let hash_of = |n: &u32| all[*n as usize].as_ref().map_or(0, |h| h.hash);
        self.index.insert_unique(hash, n, hash_of);
        n
    }
    /// The number of a value's users; `None`: there is no such value.
    pub(crate) fn users(&self, n: u32) -> Option<u32> {
        Some(self.all.get(n as usize)?.as_ref()?.users)
    }
    /// Counts one more user.
    pub(crate) fn retain(&mut self, n: u32) {
        if let Some(Some(h)) = self.all.get_mut(n as usize) {
            h.users += 1;
        }
    }
    /// Counts one user less; returns whether that was the last one.
    pub(crate) fn release(&mut self, n: u32) -> bool {
        let Some(Some(h)) = self.all.get_mut(n as usize) else {
            return false;
        };
        h.users -= 1;
        h.users == 0
    }
    /// Takes a value out; its number is free.
    pub(crate) fn remove(&mut self, n: u32) -> Option<T> {
        let h = self.all.get_mut(n as usize)?.take()?;
        if let Ok(found) = self.index.find_entry(h.hash, |m| *m == n) {
            found.remove();
        }
        self.free.push(n);
        Some(h.value)
    }
    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }
    /// Whether there are no values, but memory for many.
    pub(crate) fn is_spacious(&self) -> bool {
        self.len() == 0 && self.all.capacity() > 1024
    }
}
