//! Random numbers, and mutants made with them.

/// A small generator of numbers (SplitMix64, Steele, Lea and Flood 2014): the same mutants for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// First scripts if no better ones are known: fifty of 300 bytes each.
    pub fn noise() -> Vec<Vec<u8>> {
        let mut dice = Self::new(7);
        (0..50).map(|_| (0..300).map(|_| dice.byte()).collect()).collect()
    }
    /// A generator.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// A number below `below`, or 0.
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % below.max(1) as u64).unwrap_or(0)
    }
    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        u8::try_from(self.roll(256)).unwrap_or(0)
    }
    /// One of the scripts `of`, changed in one to seven places, with at most `most` bytes.
    pub fn mutant(&mut self, of: &[Vec<u8>], most: usize) -> Vec<u8> {
        let mut s = of.get(self.roll(of.len())).cloned().unwrap_or_default();
        for _ in 0..=self.roll(6) {
            let at = self.roll(s.len() + 1);
            match self.roll(6) {
                0 if at < s.len() => s[at] ^= 1 << self.roll(8),
                1 if at < s.len() => s[at] = self.byte(),
                2 | 3 => {
                    let n = 1 + self.roll(24);
                    let new: Vec<u8> = (0..n).map(|_| self.byte()).collect();
                    s.splice(at..at, new);
                }
                4 if at < s.len() => {
                    let end = (at + 1 + self.roll(12)).min(s.len());
                    s.drain(at..end);
                }
                _ if !of.is_empty() => {
                    // The rest of another script, from anywhere in it.
                    let other = &of[self.roll(of.len())];
                    let from = self.roll(other.len() + 1);
                    s.truncate(at);
                    s.extend_from_slice(&other[from..]);
                }
                _ => {}
            }
        }
        s.truncate(most);
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_are_new_bounded_and_repeatable() {
        let of = vec![vec![1; 20], vec![2; 50], Vec::new()];
        let all = |seed| {
            let mut dice = Dice::new(seed);
            (0..500).map(|_| dice.mutant(&of, 40)).collect::<Vec<_>>()
        };
        let first = all(1);
        assert_eq!(first, all(1));
        assert_ne!(first, all(2));
        assert!(first.iter().all(|s| s.len() <= 40));
        let new = first.iter().filter(|s| !of.contains(s)).count();
        assert!(new > 450, "{new}");
        assert!(Dice::new(1).mutant(&[], 9).len() <= 9);
    }
}
