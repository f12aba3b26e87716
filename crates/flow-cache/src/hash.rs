//! The keyed hash of what is not made of words of keys.

use heddle_simd::hash::HashKey;
use std::hash::Hasher;

/// A hasher for anything but keys. Its input may come from packets: rules copy packet fields into actions and
/// registers. A sender that chooses thousands of these fields must not be able to make their hashes collide.
pub(crate) struct Mixer {
    h: u64,
    key: HashKey,
}

impl Mixer {
    pub(crate) fn new(start: u64) -> Self {
        let key = HashKey::of_process();
        Self {
            h: key.start() ^ start,
            key,
        }
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.key.finish(self.h)
    }
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let word = part.iter().fold(0, |w, b| w << 8 | u64::from(*b));
            self.write_u64(word);
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.h = self.key.mix(self.h, n, 0);
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}
