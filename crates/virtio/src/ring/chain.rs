//! Chains in private memory: the checks that both layouts share.
//!
//! A [`Window`] holds chains that were read, checked and translated, until they are used. Adding a chain is a transaction: a chain
//! that is refused, or that must wait for an address, leaves no trace.

use super::RingError;
use super::desc::{self, F_INDIRECT, F_NEXT, F_WRITE, RawDesc};
use super::limits::{MAX_INDIRECT, WINDOW};
use crate::mem::{Access, GuestMemory, Piece};
use arrayvec::ArrayVec;

/// Pieces beyond which no chain is added.
const MAX_PIECES: usize = 4 * WINDOW;

/// Which way data goes in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The device reads: the guest's transmit queue.
    FromGuest,
    /// The device writes: the guest's receive queue.
    ToGuest,
}

impl Direction {
    /// What the device does with the queue's buffers.
    #[inline]
    pub(super) fn access(self) -> Access {
        match self {
            Self::FromGuest => Access::READ,
            Self::ToGuest => Access::WRITE,
        }
    }
}

/// One chain: what is needed to use it and to give it back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// What the driver wants to see again: head descriptor (split), buffer identifier (packed).
    pub(super) id: u16,
    /// Ring slots that it takes (split: one entry of the available ring).
    pub(super) slots: u16,
    /// Bytes in all of its buffers.
    pub(super) len: u32,
    /// Its pieces in the window.
    first: u32,
    count: u32,
}

/// Chains in order of arrival with their pieces.
#[derive(Debug)]
pub(super) struct Window {
    chains: Vec<Chain>,
    /// Chains before this one have been taken out.
    front: usize,
    pieces: Vec<Piece>,
    /// An indirect table as it was read.
    table: Vec<RawDesc>,
    hint: usize,
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            chains: Vec::with_capacity(WINDOW),
            front: 0,
            // The last chain may be the longest; pages are touched only when written.
            pieces: Vec::with_capacity(MAX_PIECES + MAX_INDIRECT as usize),
            table: Vec::with_capacity(64),
            hint: 0,
        }
    }
    pub(super) fn len(&self) -> usize {
        self.chains.len() - self.front
    }
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether it takes no more chains: as many as it holds, or chains of so many pieces that memory is bounded by it.
    pub(super) fn is_full(&self) -> bool {
        self.chains.len() >= WINDOW || self.pieces.len() >= MAX_PIECES
    }
    pub(super) fn clear(&mut self) {
        self.chains.clear();
        self.front = 0;
        self.pieces.clear();
    }
    pub(super) fn get(&self, at: usize) -> Option<&Chain> {
        self.chains.get(self.front + at)
    }
    pub(super) fn pieces(&self, chain: &Chain) -> &[Piece] {
        let first = chain.first as usize;
        self.pieces
            .get(first..first + chain.count as usize)
            .unwrap_or_default()
    }
    /// Takes the first chain out; its pieces stay readable until the window is written again.
    pub(super) fn pop(&mut self) -> Option<Chain> {
        let chain = self.chains.get(self.front).copied();
        self.front += usize::from(chain.is_some());
        chain
    }
    /// Makes room: moves the chains that are left, and their pieces, to the front.
    pub(super) fn compact(&mut self) {
        let Some(first) = self.get(0).map(|c| c.first) else {
            self.clear();
            return;
        };
        self.chains.drain(..self.front);
        self.front = 0;
        self.pieces.drain(..(first as usize).min(self.pieces.len()));
        self.chains.iter_mut().for_each(|c| c.first -= first);
    }
    /// Starts a chain.
    pub(super) fn begin<'a>(&'a mut self, mem: &'a GuestMemory, rules: Rules) -> Walk<'a> {
        Walk {
            first: self.pieces.len(),
            window: self,
            mem,
            rules,
            len: 0,
        }
    }
    /// Brings the first line of each piece from chain `from` on near.
    pub(super) fn prefetch(&self, from: usize) {
        for chain in self.chains.iter().skip(self.front + from) {
            for piece in self.pieces(chain).iter().take(2) {
                piece.prefetch();
            }
        }
    }
}

/// What is allowed in a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) direction: Direction,
    pub(super) indirect: bool,
    /// Packed: an indirect table is a list, without `next`.
    pub(super) packed: bool,
}

/// A chain being read. Dropped without [`Walk::finish`], it is taken back.
pub(super) struct Walk<'a> {
    window: &'a mut Window,
    mem: &'a GuestMemory,
    rules: Rules,
    first: usize,
    len: u64,
}

impl Walk<'_> {
    /// Adds a buffer; `flags` are the descriptor's.
    #[inline]
    pub(super) fn buffer(&mut self, d: &RawDesc, flags: u16) -> Result<(), RingError> {
        let writable = flags & F_WRITE != 0;
        if writable != (self.rules.direction == Direction::ToGuest) {
            return Err(RingError::Direction);
        }
        self.len += u64::from(d.len);
        if self.len > u64::from(u32::MAX) {
            return Err(RingError::ChainTooLarge);
        }
        let (pieces, most) = (&mut self.window.pieces, self.first + MAX_INDIRECT as usize);
        let mut fits = true;
        self.mem
            .pieces(
                &mut self.window.hint,
                d.addr,
                d.len,
                self.rules.direction.access(),
                |p| {
                    fits = pieces.len() < most;
                    if fits {
                        pieces.push(p);
                    }
                },
            )
            .map_err(RingError::Buffer)?;
        if fits {
            Ok(())
        } else {
            Err(RingError::ChainTooLong)
        }
    }

    /// Adds the buffers of the indirect table that `d` names. The table is read once, whole, into private memory: its length and
    /// its entries are then what was checked.
    pub(super) fn indirect(&mut self, d: &RawDesc, flags: u16) -> Result<(), RingError> {
        if !self.rules.indirect {
            return Err(RingError::IndirectNotNegotiated);
        }
        if flags & F_NEXT != 0 {
            return Err(RingError::IndirectNested);
        }
        let count = d.len / desc::SIZE as u32;
        if count == 0 || count > MAX_INDIRECT || !d.len.is_multiple_of(desc::SIZE as u32) {
            return Err(RingError::IndirectLength(d.len));
        }
        let mut table = core::mem::take(&mut self.window.table);
        let read = self.read_table(d, &mut table).and_then(|()| {
            if self.rules.packed {
                self.list(&table)
            } else {
                self.linked(&table)
            }
        });
        self.window.table = table;
        read
    }

    fn read_table(&mut self, d: &RawDesc, table: &mut Vec<RawDesc>) -> Result<(), RingError> {
        table.clear();
        // Descriptors may lie across a border of regions, so bytes are gathered first.
        let mut raw = [0; desc::SIZE];
        let mut have = 0;
        self.mem
            .pieces(&mut self.window.hint, d.addr, d.len, Access::READ, |p| {
                let mut at = 0;
                while at < p.len() {
                    let n = p.read(at, &mut raw[have..]);
                    at += n;
                    have += n;
                    if have == desc::SIZE {
                        table.push(RawDesc::decode(&raw));
                        have = 0;
                    }
                }
            })
            .map_err(RingError::Table)
    }

    /// A split ring's table: linked from entry 0 by `next` (virtio 1.2 §2.7.5.3).
    fn linked(&mut self, table: &[RawDesc]) -> Result<(), RingError> {
        let mut at = 0;
        for _ in 0..table.len() {
            let d = table.get(usize::from(at)).ok_or(RingError::Next(at))?;
            let flags = d.split_flags();
            if flags & F_INDIRECT != 0 {
                return Err(RingError::IndirectNested);
            }
            self.buffer(d, flags)?;
            if flags & F_NEXT == 0 {
                return Ok(());
            }
            at = d.split_next().any(); // checked by `get` above
        }
        Err(RingError::ChainTooLong)
    }

    /// A packed ring's table: all of its entries in order, only WRITE has a meaning (§2.8.8).
    fn list(&mut self, table: &[RawDesc]) -> Result<(), RingError> {
        for d in table {
            let flags = d.packed_flags();
            if flags & F_INDIRECT != 0 {
                return Err(RingError::IndirectNested);
            }
            self.buffer(d, flags)?;
        }
        Ok(())
    }

    /// The chain is whole.
    #[inline]
    pub(super) fn finish(self, id: u16, slots: u16) {
        let end = self.window.pieces.len();
        self.window.chains.push(Chain {
            id,
            slots,
            len: self.len as u32,
            first: self.first as u32,
            count: (end - self.first) as u32,
        });
        core::mem::forget(self); // keeps the pieces: nothing else to drop
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.window.pieces.truncate(self.first);
    }
}

/// A used chain that the driver has not been told of yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) id: u16,
    pub(super) slots: u16,
    /// Bytes that the device wrote.
    pub(super) len: u32,
}

/// Used chains of one burst.
pub(super) type UsedBatch = ArrayVec<Used, WINDOW>;
