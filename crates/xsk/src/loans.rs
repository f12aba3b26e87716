//! Received frames that go out by another socket of the same memory, without a copy.
//!
//! **Problem.** A receiving half lends a frame to a packet, and has it back when the packet is gone. A
//! sending half that puts the frame itself into its transmit ring needs it longer, until the kernel reports
//! that the packet was sent. Another thread may read that report.
//!
//! **Invariants.** Each received frame has one state:
//!
//! | state | meaning | the next state is set by |
//! | --- | --- | --- |
//! | home | the receiving half or the kernel's receiving side has it | the receiving half: lent |
//! | lent | packets may refer to its bytes from an offset on | a sending half: held; the receiving half: home |
//! | held | it is in the transmit ring of a sending half, or in the driver's ring | that half, when it was sent: returned |
//! | returned | it is in its home's list of returned frames | the receiving half: home |
//!
//! * Lent becomes held by a compare-and-exchange, so one sending half gets the frame. All others copy.
//! * The bytes in front of the offset belong to the holder, those behind are read only: a packet that is sent
//!   twice finds them unchanged.
//! * The receiving half settles its lent frames first, and takes returned ones then. A frame is therefore
//!   never in two of its lists.
//!
//! **Fairness.** At most half of a home's frames are held or returned at any time ([`Loans::hold`]); the
//! others continue to receive. So a device that sends slowly costs the others their shortcut, and no packets.
//!
//! **Costs.** Two atomic operations for a frame that is held; two for all frames that return together. One
//! worker mostly does them all.
//!
//! **Thread-safety.** All methods may be called on any thread; those of a home only by its receiving half.

use core::ops::Range;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Frames of a block: sizes of rings are multiples of it, so all frames of a block have one home.
pub(crate) const BLOCK: u32 = 64;

const HOME: u16 = 0;
const RETURNED: u16 = u16::MAX;
/// Bit of held; the others are the holder. Without it, the state is the offset of the first lent byte.
const HELD: u16 = 1 << 15;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// The number of a sending half of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(u16);

impl Holder {
    /// Maximum number of sending halves of a region.
    pub(crate) const MAX: u16 = HELD - 1;

    pub(crate) fn new(number: u16) -> Self {
        debug_assert!(number < Self::MAX);
        Self(number)
    }
    fn state(self) -> u16 {
        HELD | self.0
    }
}

/// One block of frames. Only those of a home's first block are used, apart from `home`.
#[derive(Debug)]
struct Block {
    /// The first block of the receiving half that has these frames.
    home: AtomicU32,
    /// The first of the returned frames.
    returned: AtomicU32,
    /// The number of the home's frames that are held, or returned and not yet taken. Sending halves count up,
    /// the home counts down.
    out: AtomicU32,
    /// Maximum of `out`.
    max_out: AtomicU32,
}

/// The states of all frames of a region.
#[derive(Debug)]
pub(crate) struct Loans {
    states: Box<[AtomicU16]>,
    /// The frame behind a returned one in its home's list.
    next: Box<[AtomicU32]>,
    blocks: Box<[Block]>,
}

impl Loans {
    pub(crate) fn new(frames: u32) -> Self {
        let block = || Block {
            home: AtomicU32::new(NONE),
            returned: AtomicU32::new(NONE),
            out: AtomicU32::new(0),
            max_out: AtomicU32::new(0),
        };
        Self {
            states: (0..frames).map(|_| AtomicU16::new(HOME)).collect(),
            next: (0..frames).map(|_| AtomicU32::new(NONE)).collect(),
            blocks: (0..frames.div_ceil(BLOCK)).map(|_| block()).collect(),
        }
    }
    fn state(&self, frame: u32) -> Option<&AtomicU16> {
        self.states.get(frame as usize)
    }
    fn home(&self, frame: u32) -> Option<&Block> {
        let block = self.blocks.get((frame / BLOCK) as usize)?;
        self.blocks.get(block.home.load(Ordering::Relaxed) as usize)
    }

    /// Makes a range of frames the home of a new receiving half. Appends its frames that are at home to
    /// `free`; returns the number of those that are still held. No other half uses the range.
    pub(crate) fn settle_in(&self, frames: Range<u32>, free: &mut Vec<u32>) -> u32 {
        let first = frames.start / BLOCK;
        for block in frames.clone().step_by(BLOCK as usize) {
            if let Some(block) = self.blocks.get((block / BLOCK) as usize) {
                block.home.store(first, Ordering::Relaxed);
            }
        }
        if let Some(home) = self.blocks.get(first as usize) {
            home.max_out.store(frames.len() as u32 / 2, Ordering::Relaxed);
        }
        self.take_returned(frames.start, |_| ());
        let mut out = 0;
        for frame in frames.clone() {
            let Some(state) = self.state(frame) else { break };
            let now = state.load(Ordering::Acquire);
            if now & HELD != 0 && now != RETURNED {
                out += 1;
            } else if now != RETURNED {
                state.store(HOME, Ordering::Relaxed);
                free.push(frame);
            }
        }
        // Frames that came back meanwhile are in the list, and are taken like all others.
        let listed = frames.len() as u32 - out - free.len() as u32;
        if let Some(home) = self.blocks.get(first as usize) {
            // No frame here is lent, so no half takes another one meanwhile.
            home.out.store(out + listed, Ordering::Relaxed);
        }
        out + listed
    }

    /// A frame is lent to a packet, from byte `offset` of the frame on.
    #[inline]
    pub(crate) fn lend(&self, frame: u32, offset: u16) {
        debug_assert!(offset != HOME && offset & HELD == 0);
        if let Some(state) = self.state(frame) {
            state.store(offset, Ordering::Relaxed);
        }
    }
    /// No packet refers to a lent frame any more. Returns whether it is at home again; otherwise it was held,
    /// and comes with the returned ones.
    #[inline]
    pub(crate) fn settle(&self, frame: u32) -> bool {
        let Some(state) = self.state(frame) else {
            return false;
        };
        // Relaxed: the holder has returned its loan of the packet since, and that was acquired.
        let is_home = state.load(Ordering::Relaxed) & HELD == 0;
        if is_home {
            state.store(HOME, Ordering::Relaxed);
        }
        is_home
    }
    /// Calls `with` with the returned frames of the home that begins with frame `first`. Returns their
    /// number.
    #[inline]
    pub(crate) fn take_returned(&self, first: u32, mut with: impl FnMut(u32)) -> u32 {
        let Some(home) = self.blocks.get((first / BLOCK) as usize) else {
            return 0;
        };
        if home.returned.load(Ordering::Relaxed) == NONE {
            return 0;
        }
        // Acquire pairs with the Release in `push`: the kernel has read the frames, and `next` is written.
        let mut frame = home.returned.swap(NONE, Ordering::Acquire);
        let mut n = 0;
        while let Some(state) = self.state(frame) {
            state.store(HOME, Ordering::Relaxed);
            with(frame);
            n += 1;
            frame = self
                .next
                .get(frame as usize)
                .map_or(NONE, |next| next.load(Ordering::Relaxed));
        }
        home.out.fetch_sub(n, Ordering::Relaxed);
        n
    }

    /// Makes a frame that is lent from byte `offset` on the holder's. `false`: it is not lent from there on,
    /// another half has it, or half of its home's frames are out.
    #[inline]
    pub(crate) fn hold(&self, frame: u32, offset: u16, by: Holder) -> bool {
        let (Some(state), Some(home)) = (self.state(frame), self.home(frame)) else {
            return false;
        };
        if offset == HOME || offset & HELD != 0 {
            return false;
        }
        // The frame is counted before it is taken, so never more than half are out.
        let has_room = home.out.fetch_add(1, Ordering::Relaxed) < home.max_out.load(Ordering::Relaxed);
        // Acquire: a holder that released the frame has written to it before.
        let take = || state.compare_exchange(offset, by.state(), Ordering::Acquire, Ordering::Relaxed);
        let is_held = has_room && take().is_ok();
        if !is_held {
            home.out.fetch_sub(1, Ordering::Relaxed);
        }
        is_held
    }
    /// Undoes [`Loans::hold`]: the packet is copied, and the frame is lent again.
    pub(crate) fn release(&self, frame: u32, offset: u16) {
        if let (Some(state), Some(home)) = (self.state(frame), self.home(frame)) {
            state.store(offset, Ordering::Release);
            home.out.fetch_sub(1, Ordering::Relaxed);
        }
    }
    /// Marks a held frame as returned, for [`Returning`]. `false`: the half does not hold it.
    #[inline]
    fn mark_returned(&self, frame: u32, by: Holder) -> bool {
        let Some(state) = self.state(frame) else {
            return false;
        };
        let held = state.load(Ordering::Relaxed) == by.state();
        if held {
            state.store(RETURNED, Ordering::Relaxed);
        }
        held
    }
    /// Puts a chain of frames of one home into its list.
    #[inline]
    fn push(&self, first: u32, last: u32) {
        let (Some(home), Some(next)) = (self.home(first), self.next.get(last as usize)) else {
            return;
        };
        let mut old = home.returned.load(Ordering::Relaxed);
        loop {
            next.store(old, Ordering::Relaxed);
            // Release pairs with the Acquire in `take_returned`.
            match home
                .returned
                .compare_exchange_weak(old, first, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }
    /// Returns all frames that a closed half has held, after the kernel has ended its use of them.
    pub(crate) fn return_all(&self, by: Holder) {
        let mut returning = Returning::default();
        for frame in 0..self.states.len() as u32 {
            returning.add(self, frame, by);
        }
        returning.end(self);
    }
    /// Whether a frame of a range is held or returned.
    pub(crate) fn has_out(&self, frames: Range<u32>) -> bool {
        // RETURNED has the bit, too.
        let is_out = |state: &AtomicU16| state.load(Ordering::Relaxed) & HELD != 0;
        frames.filter_map(|frame| self.state(frame)).any(is_out)
    }
}

/// Held frames that return together: consecutive frames of one home by one exchange.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    /// First and last frame of the chain.
    chain: Option<(u32, u32)>,
}

impl Returning {
    /// A frame's packet was sent. `false`: the half does not hold that frame.
    #[inline]
    pub(crate) fn add(&mut self, loans: &Loans, frame: u32, by: Holder) -> bool {
        if !loans.mark_returned(frame, by) {
            return false;
        }
        let home = |frame: u32| {
            loans
                .blocks
                .get((frame / BLOCK) as usize)
                .map(|b| b.home.load(Ordering::Relaxed))
        };
        if let Some((first, last)) = self.chain {
            if home(first) == home(frame) {
                if let Some(next) = loans.next.get(frame as usize) {
                    next.store(first, Ordering::Relaxed);
                }
                self.chain = Some((frame, last));
                return true;
            }
            loans.push(first, last);
        }
        self.chain = Some((frame, frame));
        true
    }
    /// The last frame was added.
    #[inline]
    pub(crate) fn end(self, loans: &Loans) {
        if let Some((first, last)) = self.chain {
            loans.push(first, last);
        }
    }
}
