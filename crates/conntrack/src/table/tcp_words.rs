//! Both ends of a TCP connection, as its record stores them: three words, under a lock in the last one.

use crate::atomic::{AtomicU64, FromZeros, spin_loop};
use crate::protocol::tcp::{Peer, Scale, TcpState};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Attempts to take a lock of a connection. They take a few microseconds.
pub(crate) const MAX_LOCK_TRIES: u32 = 1024;
/// Bit of [`TcpWords::windows`]: a thread changes these words.
const LOCK: u64 = 1 << 63;
/// Bits of one end in [`TcpWords::windows`]: window (16), scale (6), state (4).
const END_BITS: u32 = 26;
const SCALE_SHIFT: u32 = 16;
const STATE_SHIFT: u32 = 22;
/// Bits of a scale. None of them: the end gave no scale. Else the shift is in the four lowest bits.
const SCALE_MASK: u64 = 0x3f;
const SCALE_IS_KNOWN: u64 = 0x10;
const SCALE_IS_UNKNOWN: u64 = 0x20;

/// Sequence numbers, windows and states of both ends, the end that opened the connection first.
#[derive(Debug, FromZeros)]
#[repr(C)]
pub(crate) struct TcpWords {
    /// For each end, [`Peer::lo`] (upper half) and [`Peer::hi`].
    seqs: [AtomicU64; 2],
    /// Windows, scales and states of both ends; the lock.
    windows: AtomicU64,
}

impl TcpWords {
    /// Writes both ends of a connection that no other thread sees, and clears the lock.
    pub(crate) fn put(&self, peers: &[Peer; 2]) {
        self.put_seqs(peers);
        self.windows.store(windows(peers), Relaxed);
    }
    /// Both ends, for output. Each word is a value that it had, but the words may be of different times.
    pub(crate) fn get(&self) -> [Peer; 2] {
        self.with_windows(self.windows.load(Relaxed))
    }
    /// Changes both ends under the lock. `None`: another thread held the lock all the time.
    #[inline]
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut [Peer; 2]) -> R) -> Option<R> {
        for _ in 0..MAX_LOCK_TRIES {
            let word = self.windows.load(Relaxed);
            // Acquire pairs with the Release below.
            if word & LOCK == 0
                && self
                    .windows
                    .compare_exchange_weak(word, word | LOCK, Acquire, Relaxed)
                    .is_ok()
            {
                let mut peers = self.with_windows(word);
                let result = change(&mut peers);
                self.put_seqs(&peers);
                self.windows.store(windows(&peers), Release);
                return Some(result);
            }
            spin_loop();
        }
        None
    }
    pub(crate) fn words(&self) -> [&AtomicU64; 3] {
        let [a, b] = &self.seqs;
        [a, b, &self.windows]
    }

    fn put_seqs(&self, peers: &[Peer; 2]) {
        for (word, p) in self.seqs.iter().zip(peers) {
            word.store(u64::from(p.lo) << 32 | u64::from(p.hi), Relaxed);
        }
    }
    fn with_windows(&self, windows: u64) -> [Peer; 2] {
        let peer = |seqs: &AtomicU64, shift: u32| {
            let (seqs, end) = (seqs.load(Relaxed), windows >> shift);
            Peer {
                lo: (seqs >> 32) as u32,
                hi: (seqs & 0xffff_ffff) as u32,
                window: (end & 0xffff) as u16,
                scale: match end >> SCALE_SHIFT & SCALE_MASK {
                    0 => Scale::None,
                    SCALE_IS_UNKNOWN => Scale::Unknown,
                    s => Scale::Known((s & 0xf) as u8),
                },
                state: TcpState::from_bits(end >> STATE_SHIFT),
            }
        };
        [peer(&self.seqs[0], 0), peer(&self.seqs[1], END_BITS)]
    }
}

/// [`TcpWords::windows`] without the lock.
fn windows(peers: &[Peer; 2]) -> u64 {
    let end = |p: &Peer| {
        let scale = match p.scale {
            Scale::None => 0,
            Scale::Unknown => SCALE_IS_UNKNOWN,
            Scale::Known(s) => SCALE_IS_KNOWN | u64::from(s & 0xf),
        };
        u64::from(p.window) | scale << SCALE_SHIFT | (p.state as u64) << STATE_SHIFT
    };
    end(&peers[0]) | end(&peers[1]) << END_BITS
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ends_survive_their_words() {
        let r = TcpWords::new_zeroed();
        let peer = |scale, state| Peer {
            lo: u32::MAX,
            hi: 5,
            window: 0xffff,
            scale,
            state,
        };
        let all = [
            [
                peer(Scale::Known(14), TcpState::TimeWait),
                peer(Scale::Known(0), TcpState::Closed),
            ],
            [
                peer(Scale::Unknown, TcpState::SynSent),
                peer(Scale::None, TcpState::Closing),
            ],
            [
                peer(Scale::None, TcpState::FinWait2),
                peer(Scale::Unknown, TcpState::Established),
            ],
        ];
        for peers in all {
            r.put(&peers);
            assert_eq!(r.get(), peers);
            assert_eq!(r.update(|p| *p), Some(peers));
            assert_eq!(r.get(), peers);
        }
        r.windows.fetch_or(LOCK, Relaxed);
        assert_eq!(r.update(|_| ()), None);
    }
}
