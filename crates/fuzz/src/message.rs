//! Mutants of good messages, for tests that look for bytes which break something.
//!
//! **Problem.** Random bytes fail at the first length. A message that breaks a decoder, or its caller, is
//! almost right. So mutants are made from whole messages. Most changes know the usual shape of OpenFlow's
//! pieces: a type, a length in 16 bits, and a body, padded to eight bytes. Such pieces are taken out, put in
//! twice, moved from one message to another, cut and stretched. The lengths of the enclosing pieces are then
//! corrected about half of the time, and the header's almost always.

use super::Dice;

const HEADER: usize = 8;

impl Dice {
    fn often(&mut self) -> bool {
        self.roll(2) == 0
    }

    /// A message of at most `most` bytes, made from those in `of` (not empty), each a whole message.
    pub fn message(&mut self, of: &[Vec<u8>], most: usize) -> Vec<u8> {
        let mut m = of[self.roll(of.len())].clone();
        m.resize(m.len().max(HEADER), 0);
        for _ in 0..=self.roll(4) {
            let other = &of[self.roll(of.len())];
            self.change(&mut m, other);
        }
        m.truncate(most);
        m.resize(m.len().max(HEADER), 0);
        if self.roll(32) != 0 {
            let len = u16::try_from(m.len()).unwrap_or(u16::MAX);
            m[2..4].copy_from_slice(&len.to_be_bytes());
        }
        m
    }

    fn change(&mut self, m: &mut Vec<u8>, other: &[u8]) {
        let at = self.roll(m.len());
        match self.roll(12) {
            0 => m[at] ^= 1 << self.roll(8),
            1 => m[at] = self.byte(),
            2 | 3 => self.number(m),
            4 => {
                // The rest of another message.
                m.truncate(at.max(HEADER));
                m.extend_from_slice(&other[self.roll(other.len())..]);
            }
            5 => {
                let n = 1 + self.roll(16);
                let new: Vec<u8> = (0..n).map(|_| self.byte()).collect();
                m.splice(at.max(HEADER).min(m.len())..at.max(HEADER).min(m.len()), new);
            }
            6 => m.truncate(at.max(HEADER)),
            7 => m[1] = self.byte() % 40,
            _ => self.piece(m, other),
        }
    }

    /// Writes an extreme value where a number may be.
    fn number(&mut self, m: &mut [u8]) {
        let size = [2, 4, 8][self.roll(3)];
        let Some(places) = m.len().checked_sub(HEADER + size) else {
            return;
        };
        let at = HEADER + self.roll(places / 2 + 1) * 2;
        let len = m.len() as u64;
        let value = match self.roll(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.roll(64),
            3 => len - at as u64,
            4 => len,
            5 => self.roll(40) as u64,
            6 => u64::from_be_bytes([0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, self.byte()]),
            _ => self.roll(1 << 16) as u64,
        };
        m[at..at + size].copy_from_slice(&value.to_be_bytes()[8 - size..]);
    }

    /// Changes a piece that has a length field.
    fn piece(&mut self, m: &mut Vec<u8>, other: &[u8]) {
        let Some((at, len)) = self.find(m) else { return };
        let new: Vec<u8> = match self.roll(5) {
            0 => Vec::new(),
            1 => m[at..at + len].repeat(1 + self.roll(4)),
            2 => match self.find(other) {
                Some((from, n)) => other[from..from + n].to_vec(),
                None => return,
            },
            3 => match self.find(other) {
                // The other piece is inserted before it.
                Some((from, n)) => [&other[from..from + n], &m[at..at + len]].concat(),
                None => return,
            },
            _ => {
                // A longer or shorter piece, with its length field corrected.
                let mut piece = m[at..at + len].to_vec();
                let n = (len + 8 * self.roll(4)).saturating_sub(8 * self.roll(3)).max(4);
                piece.resize(n, 0);
                let said = u16::try_from(n).unwrap_or(u16::MAX);
                piece[2..4].copy_from_slice(&said.to_be_bytes());
                piece
            }
        };
        let (old_end, n) = (at + len, new.len());
        if self.often() {
            // Correct the enclosing pieces: they begin before it and end with it or behind it.
            for start in (HEADER..at).step_by(4) {
                let said = length(m, start);
                if said >= 8 && start + said >= old_end && start + said <= m.len() {
                    let right = u16::try_from(said - len + n).unwrap_or(u16::MAX);
                    m[start + 2..start + 4].copy_from_slice(&right.to_be_bytes());
                }
            }
        }
        m.splice(at..old_end, new);
    }

    /// Offset and length of a random piece with a length field.
    fn find(&mut self, m: &[u8]) -> Option<(usize, usize)> {
        let fits = |at: usize| {
            let n = length(m, at);
            (n >= 4 && at + n <= m.len()).then_some((at, n))
        };
        let places = m.len() / 4;
        let first = 2 + self.roll(places.saturating_sub(2));
        (first..places).chain(2..first).find_map(|i| fits(4 * i))
    }
}

/// The length field of a piece at `at`; 0 if there is no room for one.
fn length(m: &[u8], at: usize) -> usize {
    match m.get(at + 2..at + 4) {
        Some(&[hi, lo]) => usize::from(u16::from_be_bytes([hi, lo])),
        _ => 0,
    }
}
