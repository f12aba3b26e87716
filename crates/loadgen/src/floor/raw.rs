//! The loop with descriptors and copies only.

use super::ring::{Ring, WINDOW};
use super::{BURST, Lane};
use crate::error::RunError;
use crate::frame::HDR;
use heddle_vhost_user::frontend::{Nic, NicQueue};
use heddle_virtio::Features;

/// Offset of the number of buffers in a virtio-net header.
const NUM_BUFFERS: usize = 10;

#[derive(Debug)]
pub(super) struct Raw {
    from: Ring,
    to: Ring,
    mergeable: bool,
    /// The private memory between two copies.
    private: Option<Vec<u8>>,
}

impl Raw {
    pub(super) fn new(from: (&Nic, &NicQueue), to: (&Nic, &NicQueue), twice: bool) -> Result<Self, RunError> {
        Ok(Self {
            mergeable: to.0.features().contains(Features::MRG_RXBUF),
            from: Ring::new(from.0, from.1)?,
            to: Ring::new(to.0, to.1)?,
            private: twice.then(|| vec![0; 1 << 17]),
        })
    }
    /// Copies `len` bytes from `at` into the other port's buffers, from number `first` of its window on.
    /// Returns the number of used buffers; `None`: there are too few.
    fn copy(&mut self, at: usize, len: usize, first: usize) -> Option<usize> {
        let (from, to) = (&self.from, &self.to);
        let buffers = to.window().get(first..)?;
        let mut count = 0;
        let mut room = 0;
        while room < len {
            room += buffers.get(count)?.len;
            count += 1;
            if count > 1 && !self.mergeable {
                return None;
            }
        }
        let mut done = 0;
        if let Some(private) = &mut self.private {
            from.data.read(at, private.get_mut(..len)?);
        }
        for b in &buffers[..count] {
            let n = b.len.min(len - done);
            match &self.private {
                Some(private) => to.data.write(b.at, private.get(done..done + n)?),
                None => from.data.copy_to(at + done, &to.data, b.at, n),
            }
            done += n;
        }
        let n = u16::try_from(count).unwrap_or(u16::MAX);
        to.data.write(buffers.first()?.at + NUM_BUFFERS, &n.to_le_bytes());
        Some(count)
    }
}

impl Lane for Raw {
    fn turn(&mut self) -> Result<(usize, usize), RunError> {
        self.from.fetch(BURST);
        let n = self.from.window().len();
        if n == 0 {
            return Ok((0, 0));
        }
        self.from.prefetch(1);
        self.to.fetch(n);
        self.to.prefetch(0);
        let (mut moved, mut taken) = (0, 0);
        for i in 0..n {
            let Some(&b) = self.from.window().get(i) else {
                break;
            };
            if b.len < HDR {
                return Err(RunError::Silent("a buffer without room for its header".into()));
            }
            let mut copied = self.copy(b.at, b.len, taken);
            if copied.is_none() {
                // There are too few buffers: give back the filled ones, then look for more.
                self.to.publish();
                taken = 0;
                self.to.fetch(WINDOW);
                copied = self.copy(b.at, b.len, 0);
            }
            self.from.use_first(0);
            let Some(count) = copied else { continue };
            let mut left = b.len;
            for _ in 0..count {
                let room = self.to.window().get(taken).map_or(0, |b| b.len);
                self.to.use_first(left.min(room));
                left = left.saturating_sub(room);
                taken += 1;
            }
            moved += 1;
        }
        self.to.publish();
        self.from.publish();
        Ok((moved, n - moved))
    }
}
