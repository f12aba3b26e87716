//! Chains in private memory: read, checked and translated, until they are given back.
//!
//! A circular buffer of [`WINDOW`] chains in order of arrival: first chains that were taken out to be used,
//! then chains that are ready. A chain of one piece, which nearly every chain is, is stored in it whole; the
//! pieces of others are kept beside it.

use super::limits::{MAX_INDIRECT, WINDOW};
use crate::mem::Piece;
use arrayvec::ArrayVec;

/// Pieces of chains with several beyond which no such chain is added.
const MAX_PIECES: usize = 4 * WINDOW;
const _: () = assert!(WINDOW.is_power_of_two());

/// One chain: the values needed to use it and to give it back.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// All of it, if it is a single piece.
    piece: Piece,
    /// The number that the driver wants to see again: head descriptor (split), buffer identifier (packed).
    id: u32,
    /// Bytes in all of its buffers; once it is taken, bytes that the device wrote, if it writes.
    pub(super) len: u32,
    count: u16,
    /// Ring slots that it takes (split: one entry of the available ring).
    slots: u16,
    /// The index of its first piece, if it has several (or none).
    first: u32,
}

/// `count` of a chain that is one piece.
const SINGLE: u16 = u16::MAX;

impl Chain {
    const EMPTY: Self = Self {
        piece: Piece::EMPTY,
        id: 0,
        len: 0,
        count: 0,
        slots: 0,
        first: 0,
    };
    /// A chain of one piece.
    #[inline(always)]
    fn of(piece: Piece, id: u16) -> Self {
        Self {
            piece,
            id: id.into(),
            len: piece.len() as u32,
            count: SINGLE,
            slots: 1,
            first: 0,
        }
    }
    /// The piece that is all of it, if there is one.
    #[inline]
    pub(super) fn single(&self) -> Option<&Piece> {
        (self.count == SINGLE).then_some(&self.piece)
    }
}

/// A used chain that has not been given back to the driver yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) id: u16,
    pub(super) slots: u16,
    /// Bytes that the device wrote.
    pub(super) len: u32,
}

impl Used {
    /// The used entry of a chain that was taken; `mask` is zero where the device writes nothing.
    #[inline(always)]
    fn of(chain: &Chain, mask: u32) -> Self {
        Self {
            id: chain.id as u16, // made of one
            slots: chain.slots,
            len: chain.len & mask,
        }
    }
}

/// Used chains of one burst.
pub(super) type UsedBatch = ArrayVec<Used, WINDOW>;

/// Chains in order of arrival; numbers run freely and wrap.
#[derive(Debug)]
pub(super) struct Window {
    chains: Box<[Chain; WINDOW]>,
    /// The oldest chain that has not been given back.
    front: u32,
    /// The first that is ready.
    ready: u32,
    /// The one behind the last.
    back: u32,
    /// Pieces of chains that have several.
    pieces: Vec<Piece>,
    /// Pieces before this one belong to chains that were taken.
    spent: usize,
}

#[expect(clippy::indexing_slicing, reason = "numbers are taken modulo the length")]
impl Window {
    pub(super) fn new() -> Self {
        Self {
            chains: Box::new([Chain::EMPTY; WINDOW]),
            front: 0,
            ready: 0,
            back: 0,
            // The last chain may be the longest; pages are touched only when written.
            pieces: Vec::with_capacity(MAX_PIECES + MAX_INDIRECT as usize),
            spent: 0,
        }
    }
    /// Chains that are ready.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.back.wrapping_sub(self.ready) as usize
    }
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.back == self.ready
    }
    /// Chains that were taken and are to be given back.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.ready.wrapping_sub(self.front) as usize
    }
    /// The number of chains for which there is room.
    #[inline]
    pub(super) fn room(&self) -> usize {
        WINDOW - self.back.wrapping_sub(self.front) as usize
    }
    /// Whether it takes no chain of several pieces now, so that its memory is bounded.
    #[inline]
    pub(super) fn is_fragmented(&self) -> bool {
        self.pieces.len() - self.spent >= MAX_PIECES
    }
    /// Forgets the chains that are ready.
    pub(super) fn forget_ready(&mut self) {
        self.back = self.ready;
        self.pieces.clear();
        self.spent = 0;
    }
    #[inline]
    fn slot(&self, number: u32) -> &Chain {
        &self.chains[number as usize % WINDOW]
    }
    #[inline]
    fn slot_mut(&mut self, number: u32) -> &mut Chain {
        &mut self.chains[number as usize % WINDOW]
    }
    /// Ready chain number `at`.
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Chain> {
        (at < self.len()).then(|| self.slot(self.ready.wrapping_add(at as u32)))
    }
    /// The pieces of a chain in order. The pieces of a taken chain stay until chains are added.
    pub(super) fn pieces<'a>(&'a self, chain: &'a Chain) -> &'a [Piece] {
        match chain.single() {
            Some(piece) => core::slice::from_ref(piece),
            None => {
                let first = chain.first as usize;
                self.pieces
                    .get(first..first + usize::from(chain.count))
                    .unwrap_or_default()
            }
        }
    }
    /// Takes the first ready chain, of which there must be one: the device writes `written` bytes to it.
    #[inline]
    pub(super) fn take(&mut self, written: u32) {
        debug_assert!(!self.is_empty(), "callers have seen the chain");
        let chain = self.slot_mut(self.ready);
        chain.len = written;
        if chain.count != SINGLE {
            self.spent = (chain.first + u32::from(chain.count)) as usize;
        }
        self.ready = self.ready.wrapping_add(1);
    }
    /// The chains that are ready, to be taken with [`Window::take_all`].
    #[inline]
    pub(super) fn ready(&self, n: usize) -> impl ExactSizeIterator<Item = &Chain> {
        let (chains, from) = (&*self.chains, self.ready);
        (0..n.min(self.len())).map(move |i| &chains[from.wrapping_add(i as u32) as usize % WINDOW])
    }
    /// Takes the first `n` of the ready chains (at most all), into which the device writes nothing.
    #[inline]
    pub(super) fn take_all(&mut self, n: usize) {
        let n = n.min(self.len()) as u32;
        if self.spent < self.pieces.len() {
            // Some of the ready chains have several pieces.
            for i in 0..n {
                let chain = self.slot(self.ready.wrapping_add(i));
                if chain.count != SINGLE {
                    self.spent = (chain.first + u32::from(chain.count)) as usize;
                }
            }
        }
        self.ready = self.ready.wrapping_add(n);
    }
    /// Takes ready chains of one piece as long as `write` accepts them; it returns the number of bytes it
    /// wrote. Returns the number of chains.
    #[inline(always)]
    pub(super) fn take_singles(
        &mut self,
        n: usize,
        mut write: impl FnMut(usize, &Piece) -> Option<u32>,
    ) -> usize {
        let (n, from) = (n.min(self.len()), self.ready);
        let chains = &mut *self.chains;
        let mut taken = 0;
        while taken < n {
            let chain = &mut chains[from.wrapping_add(taken as u32) as usize % WINDOW];
            if chain.count != SINGLE {
                break;
            }
            let Some(written) = write(taken, &chain.piece) else {
                break;
            };
            chain.len = written;
            taken += 1;
        }
        self.ready = from.wrapping_add(taken as u32);
        taken
    }
    /// The chains that were taken, oldest first; `wrote`: the device writes into the queue's chains.
    #[inline]
    pub(super) fn given(&self, wrote: bool) -> impl ExactSizeIterator<Item = Used> + Clone {
        let (chains, from) = (&*self.chains, self.front);
        let mask = if wrote { u32::MAX } else { 0 };
        (0..self.taken()).map(move |i| Used::of(&chains[from.wrapping_add(i as u32) as usize % WINDOW], mask))
    }
    /// The chains that were taken have been given back.
    #[inline]
    pub(super) fn release(&mut self) {
        self.front = self.ready;
    }
    /// Adds at most `n` chains of one piece, as long as there is room and `next` has some. `next` gets the
    /// number of chains added so far. Returns the number of added chains.
    #[inline(always)]
    pub(super) fn push_singles(
        &mut self,
        n: usize,
        mut next: impl FnMut(usize) -> Option<(Piece, u16)>,
    ) -> usize {
        let (n, from) = (n.min(self.room()), self.back);
        let chains = &mut *self.chains;
        let mut added = 0;
        while added < n {
            let Some((piece, id)) = next(added) else { break };
            chains[from.wrapping_add(added as u32) as usize % WINDOW] = Chain::of(piece, id);
            added += 1;
        }
        self.back = from.wrapping_add(added as u32);
        added
    }
    #[inline]
    fn add(&mut self, chain: Chain) {
        debug_assert!(self.room() > 0, "callers ask for room");
        *self.slot_mut(self.back) = chain;
        self.back = self.back.wrapping_add(1);
    }
    /// Adds a chain of several pieces (or one, or none). There must be room.
    pub(super) fn push_gathered(&mut self, pieces: &[Piece], len: u32, id: u16, slots: u16) {
        let mut chain = Chain {
            id: id.into(),
            len,
            slots,
            ..Chain::EMPTY
        };
        if let &[piece] = pieces {
            chain.piece = piece;
            chain.count = SINGLE;
        } else {
            if self.spent == self.pieces.len() {
                self.pieces.clear();
                self.spent = 0;
            } else if self.spent >= MAX_PIECES {
                self.drop_spent();
            }
            chain.first = self.pieces.len() as u32;
            chain.count = pieces.len() as u16; // at most `MAX_INDIRECT`
            self.pieces.extend_from_slice(pieces);
        }
        self.add(chain);
    }
    /// Moves the pieces that are in use to the front.
    #[cold]
    fn drop_spent(&mut self) {
        let spent = core::mem::take(&mut self.spent);
        self.pieces.drain(..spent.min(self.pieces.len()));
        let mut at = self.ready;
        while at != self.back {
            let chain = self.slot_mut(at);
            if chain.count != SINGLE {
                chain.first -= spent as u32;
            }
            at = at.wrapping_add(1);
        }
    }
    /// Prefetches the lines of the first `bytes` of the last chain, which has several pieces.
    pub(super) fn prefetch_last(&self, bytes: usize, write: bool) {
        let chain = self.slot(self.back.wrapping_sub(1));
        // A header of its own, then the packet: two pieces hold the bytes that are read first.
        for piece in self.pieces(chain).iter().take(2) {
            piece.prefetch(bytes, write);
        }
    }
}
