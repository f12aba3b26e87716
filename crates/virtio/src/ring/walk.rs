//! Reading a chain that is not the usual single buffer: checks that both layouts share.
//!
//! A chain is gathered beside the window and added when it is whole. A chain that is refused, or must wait
//! for an address, leaves no trace.

use super::RingError;
use super::desc::{self, F_INDIRECT, F_NEXT, F_WRITE, RawDesc};
use super::limits::{DESCS, MAX_INDIRECT};
use super::window::Window;
use crate::mem::{Access, GuestMemory, Near, Piece};

/// The direction of data in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The device reads: the guest's transmit queue.
    FromGuest,
    /// The device writes: the guest's receive queue.
    ToGuest,
}

impl Direction {
    /// The device's access to the queue's buffers.
    #[inline]
    pub(super) fn access(self) -> Access {
        match self {
            Self::FromGuest => Access::READ,
            Self::ToGuest => Access::WRITE,
        }
    }
}

/// The piece of a plain descriptor's buffer, if it is in the region `near`. A buffer that is to be read must
/// also be known to have data.
#[inline(always)]
pub(super) fn near_piece<const WRITE: bool>(near: &Near, d: &RawDesc) -> Option<Piece> {
    if WRITE {
        near.piece(d.addr, d.len)
    } else {
        near.readable(d.addr, d.len)
    }
}

/// The rules for a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) direction: Direction,
    pub(super) indirect: bool,
    /// Packed: an indirect table is a list, without `next`.
    pub(super) packed: bool,
}

impl Rules {
    /// The flags that a descriptor of one plain buffer must have, among those that it may have.
    #[inline]
    pub(super) fn plain(self) -> u16 {
        match self.direction {
            Direction::FromGuest => 0,
            Direction::ToGuest => F_WRITE,
        }
    }
}

/// Private memory for reading chains.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pieces: Vec<Piece>,
    /// An indirect table as it was read.
    table: Vec<RawDesc>,
    /// Region of the last address.
    pub(super) hint: usize,
    /// Descriptors of chains with several that were read in this call of the queue.
    read: u32,
    /// Calls of the queue that were counted for [`Scratch::samples`].
    calls: u32,
    /// Whether the file is queried again for the next buffer ([`GuestMemory::may_read`]).
    again: bool,
}

/// Looks at a ring from one repeated question about a known buffer to the next.
const SAMPLE_EVERY: u32 = 16;

impl Scratch {
    /// A call of the queue begins.
    #[inline]
    pub(super) fn begin_call(&mut self) {
        self.read = 0;
    }
    /// Whether the next chain is to go the long way, and to be looked at anew there, because `mem` may lose
    /// pages.
    #[inline]
    pub(super) fn samples(&mut self, mem: &GuestMemory) -> bool {
        if !mem.may_have_holes() {
            return false;
        }
        self.calls = self.calls.wrapping_add(1);
        let now = self.calls.is_multiple_of(SAMPLE_EVERY);
        self.again |= now;
        now
    }
    /// Whether this call has read its maximum of such chains: the others wait for the next.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.read >= DESCS
    }
    /// Starts a chain.
    pub(super) fn begin<'a>(&'a mut self, mem: &'a GuestMemory, rules: Rules) -> Walk<'a> {
        self.pieces.clear();
        Walk {
            scratch: self,
            mem,
            rules,
            len: 0,
            descs: 0,
        }
    }
}

/// A chain being read.
pub(super) struct Walk<'a> {
    scratch: &'a mut Scratch,
    mem: &'a GuestMemory,
    rules: Rules,
    len: u64,
    descs: u32,
}

impl Walk<'_> {
    /// Adds a buffer; `flags` are the descriptor's.
    #[inline]
    pub(super) fn buffer(&mut self, d: &RawDesc, flags: u16) -> Result<(), RingError> {
        self.descs += 1;
        self.scratch.read += 1;
        if self.descs > MAX_INDIRECT {
            return Err(RingError::ChainTooLong);
        }
        if flags & F_WRITE != self.rules.plain() {
            return Err(RingError::Direction);
        }
        self.len += u64::from(d.len);
        if self.len > u64::from(u32::MAX) {
            return Err(RingError::ChainTooLarge);
        }
        let reads = self.rules.direction == Direction::FromGuest;
        let again = reads && core::mem::take(&mut self.scratch.again);
        let pieces = &mut self.scratch.pieces;
        let (mut fits, mut there, mem) = (true, true, self.mem);
        self.mem
            .pieces(
                &mut self.scratch.hint,
                d.addr,
                d.len,
                self.rules.direction.access(),
                |p| {
                    fits = pieces.len() < MAX_INDIRECT as usize;
                    there &= !reads || mem.may_read(&p, again);
                    if fits {
                        pieces.push(p);
                    }
                },
            )
            .map_err(RingError::Buffer)?;
        if !there {
            Err(RingError::Hole)
        } else if fits {
            Ok(())
        } else {
            Err(RingError::ChainTooLong)
        }
    }

    /// Adds the buffers of the indirect table that `d` names. The table is read once, whole, into private
    /// memory: its length and its entries are then the checked ones.
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
        let mut table = core::mem::take(&mut self.scratch.table);
        let read = self.read_table(d, &mut table).and_then(|()| {
            if self.rules.packed {
                self.list(&table)
            } else {
                self.linked(&table)
            }
        });
        self.scratch.table = table;
        read
    }

    #[expect(clippy::indexing_slicing, reason = "emptied when it is full")]
    fn read_table(&mut self, d: &RawDesc, table: &mut Vec<RawDesc>) -> Result<(), RingError> {
        table.clear();
        self.scratch.read += d.len / desc::SIZE as u32;
        // Descriptors may cross a border of regions, so bytes are gathered first.
        let mut raw = [0; desc::SIZE];
        let (mut have, mut there, mem) = (0, true, self.mem);
        self.mem
            .pieces(&mut self.scratch.hint, d.addr, d.len, Access::READ, |p| {
                there &= mem.may_read(&p, false);
                let mut at = if there { 0 } else { p.len() };
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
            .map_err(RingError::Table)?;
        if there { Ok(()) } else { Err(RingError::Hole) }
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

    /// The chain is whole: adds it to the window.
    #[inline]
    pub(super) fn finish(self, window: &mut Window, id: u16, slots: u16) {
        window.push_gathered(&self.scratch.pieces, self.len as u32, id, slots);
    }
}
