//! State of a give-back: free records whose memory goes back to the system.

use std::ops::Range;

/// The stage of a give-back.
#[derive(Debug, Default)]
pub(super) enum GiveBack {
    /// No give-back is in progress.
    #[default]
    Idle,
    /// Numbers of records are being taken from the free list.
    Taking(Numbers),
    /// Pages of these records are being given back, from this number on.
    Pages(Numbers, u32),
    /// The numbers are being put back into the free list.
    Freeing(Numbers),
}

/// A set of records' numbers, as a bitmap.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    words: Vec<u64>,
    pub(super) len: u32,
}

impl Numbers {
    pub(super) fn add(&mut self, n: u32) {
        let at = n as usize / 64;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        if let Some(word) = self.words.get_mut(at) {
            self.len += u32::from(*word >> (n % 64) & 1 == 0);
            *word |= 1 << (n % 64);
        }
    }
    fn has(&self, n: u32) -> bool {
        let word = self.words.get(n as usize / 64);
        word.is_some_and(|w| w >> (n % 64) & 1 != 0)
    }
    /// An upper bound: all numbers of the set are below.
    pub(super) fn end(&self) -> u32 {
        u32::try_from(self.words.len() * 64).unwrap_or(u32::MAX)
    }
    /// The first run of consecutive numbers from `from` on, as far as it is below `to`.
    pub(super) fn run(&self, from: u32, to: u32) -> Range<u32> {
        let to = to.min(self.end()).max(from);
        let start = (from..to).find(|n| self.has(*n)).unwrap_or(to);
        start..(start..to).find(|n| !self.has(*n)).unwrap_or(to)
    }
    /// Removes the highest number and returns it.
    pub(super) fn pop(&mut self) -> Option<u32> {
        loop {
            let word = self.words.last_mut()?;
            if *word == 0 {
                self.words.pop();
                continue;
            }
            let bit = 63 - word.leading_zeros();
            *word &= !(1 << bit);
            self.len -= 1;
            return Some((u32::try_from(self.words.len()).unwrap_or(u32::MAX) - 1) * 64 + bit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_beside_a_list() {
        let list = [3_u32, 4, 5, 63, 64, 65, 66, 300];
        let mut set = Numbers::default();
        list.into_iter().chain([64]).for_each(|n| set.add(n));
        assert_eq!((set.len, set.end()), (8, 320));
        assert_eq!(set.run(0, 1000), 3..6);
        assert_eq!(set.run(6, 65), 63..65);
        assert_eq!(set.run(67, 200), 200..200);
        assert_eq!(set.run(200, 1000), 300..301);
        assert_eq!(set.run(301, 1000), 320..320);
        let popped: Vec<_> = std::iter::from_fn(|| set.pop()).collect();
        assert_eq!(popped, [300, 66, 65, 64, 63, 5, 4, 3]);
        assert_eq!(set.len, 0);
    }
}
