//! One packet: a private head, an optional foreign tail, offload metadata.
//!
//! Costs: a packet is 15 cache lines. A worker touches one for its fields and the first segment, and those of
//! its head's bytes. A tail of more than one segment touches another line per four.

#![allow(unsafe_code)] // segments of foreign memory

use crate::buf::{BUF_SIZE, Big, HEAD_SPACE, HEADROOM, Small};
use crate::seg::Loan;
use crate::{Csum, Gso, GsoKind, Lender, Offload, Seg, mark_header};
use core::ptr::NonNull;
use heddle_sys::Iov;

/// Maximum number of foreign segments of one packet; a longer chain is copied into the head.
pub const MAX_SEGS: usize = 18;
/// Tails up to this number of bytes are copied for each copy of the packet; longer ones are shared.
const SHARED_TAIL: u32 = 256;
/// Heads up to this number of bytes are copied for each copy of the packet; longer ones are worth sharing.
const LONG: u32 = 4096;

/// The packets and bytes that a packet is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnWire {
    /// Number of segments.
    pub packets: u64,
    /// Bytes of all segments.
    pub bytes: u64,
}

/// One packet. Layout: `buf[start..start + head_len]` is the head, `segs` follow it on the wire. `buf` is the
/// small area that every packet has, or a big buffer where needed ([`Packet::reserve`],
/// [`crate::Pool::get_for`]).
///
/// A handle of eight bytes: packets move between pool, burst and batches without being copied.
#[derive(Debug)]
pub struct Packet(Box<PacketState>);

/// The fields of a [`Packet`]; the public ones are read and written through the packet.
///
/// All fields but further segments, the queue and the bytes are on the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PacketState {
    big: Option<Box<Big>>,
    start: u32,
    head_len: u32,
    tail_len: u32,
    /// The datapath port that it came from.
    pub in_port: u32,
    /// Checksum and segmentation metadata.
    pub offload: Offload,
    /// The number of segments in `segs`.
    n_segs: u8,
    /// The rare values that it has: `HAS_QUEUE`, `HAS_MARK`, `HAS_HEADER`.
    rare: u8,
    /// There is one exactly while there are segments.
    loan: Option<Loan>,
    segs: [Seg; MAX_SEGS],
    queue: u32,
    mark: u32,
    small: Small,
}

/// Bits of [`PacketState::rare`]: `queue` is set; `mark` is set; the mark is still in its header.
const HAS_QUEUE: u8 = 1;
const HAS_MARK: u8 = 2;
const HAS_HEADER: u8 = 4;

/// The first segment is on the first line, too.
const _: () = assert!(core::mem::offset_of!(PacketState, segs) + size_of::<Seg>() <= 64);

impl PacketState {
    #[inline]
    fn buf(&self) -> &[u8] {
        match &self.big {
            None => &self.small.0,
            Some(b) => &b.0,
        }
    }
    #[inline]
    fn buf_mut(&mut self) -> &mut [u8] {
        match &mut self.big {
            None => &mut self.small.0,
            Some(b) => &mut b.0,
        }
    }
    #[inline]
    fn capacity(&self) -> usize {
        self.buf().len()
    }
}

impl core::ops::Deref for Packet {
    type Target = PacketState;
    #[inline]
    fn deref(&self) -> &PacketState {
        &self.0
    }
}

impl core::ops::DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut PacketState {
        &mut self.0
    }
}

impl Packet {
    /// An empty packet with the small area. The fast path takes packets from a [`crate::Pool`] instead.
    pub fn new() -> Self {
        Self(Box::new(PacketState {
            big: None,
            start: HEADROOM as u32,
            head_len: 0,
            tail_len: 0,
            in_port: 0,
            offload: Offload::default(),
            n_segs: 0,
            rare: 0,
            queue: 0,
            mark: 0,
            loan: None,
            segs: [const { Seg::NONE }; MAX_SEGS],
            small: Small([0; HEADROOM + HEAD_SPACE]),
        }))
    }
    /// An empty packet with a big buffer.
    pub fn new_big() -> Self {
        let mut p = Self::new();
        p.0.big = Some(Big::new());
        p
    }
    /// The transmit queue that it is to leave by; 0: the first.
    #[inline]
    pub fn queue(&self) -> u32 {
        if self.rare & HAS_QUEUE != 0 { self.queue } else { 0 }
    }
    /// Sets the transmit queue.
    pub fn set_queue(&mut self, queue: u32) {
        self.queue = queue;
        self.rare = self.rare & !HAS_QUEUE | if queue == 0 { 0 } else { HAS_QUEUE };
    }
    /// The mark that the host's stack sees (`skb->mark`); 0: none.
    #[inline]
    pub fn mark(&self) -> u32 {
        if self.rare & HAS_MARK != 0 { self.mark } else { 0 }
    }
    /// Sets the mark.
    pub fn set_mark(&mut self, mark: u32) {
        self.mark = mark;
        self.rare = self.rare & !HAS_MARK | if mark == 0 { 0 } else { HAS_MARK };
    }
    /// Notes that the frame has a [`mark_header`] that can be trusted. A reader of its headers removes it
    /// first.
    pub fn trust_header(&mut self) {
        self.rare |= HAS_HEADER;
    }
    /// Bytes of the trusted [`mark_header`]; 0: there is none.
    pub fn header_len(&self) -> usize {
        match self.rare & HAS_HEADER {
            0 => 0,
            _ => mark_header::LEN,
        }
    }
    /// Removes the trusted [`mark_header`], and sets the packet's mark. Returns whether there was one.
    pub fn take_header(&mut self) -> bool {
        if self.rare & HAS_HEADER == 0 {
            return false;
        }
        self.rare &= !HAS_HEADER;
        let Some(mark) = mark_header::read(self.head()) else {
            return false;
        };
        self.head_mut().copy_within(..mark_header::AT, mark_header::LEN);
        self.pull_front(mark_header::LEN);
        self.set_mark(mark);
        true
    }
    /// Whether it leaves by a queue or with a mark of its own.
    #[inline]
    pub fn has_rare(&self) -> bool {
        self.rare != 0
    }
    /// Whether it has a big buffer.
    #[inline]
    pub fn is_big(&self) -> bool {
        self.0.big.is_some()
    }
    /// Makes room for a head of `n` bytes from the present start on. Allocates a big buffer if the small area
    /// is too short. The caller cuts packets that do not fit a big buffer either.
    #[inline]
    pub fn reserve(&mut self, n: usize) {
        if self.0.start as usize + n > self.0.capacity() {
            self.enlarge();
        }
    }
    #[cold]
    fn enlarge(&mut self) {
        let s = &mut *self.0;
        if s.big.is_some() {
            return;
        }
        let mut big = Big::new();
        let (from, to) = (s.start as usize, (s.start + s.head_len) as usize);
        big.0[from..to].copy_from_slice(&s.small.0[from..to]);
        s.big = Some(big);
    }
    /// Takes the big buffer away and empties the packet.
    pub(crate) fn shrink(&mut self) {
        self.reset();
        self.0.big = None;
    }
    /// Takes the big buffer away from a packet without a tail, which keeps its first [`HEAD_SPACE`] bytes.
    /// Returns the buffer, and the offset and number of the remaining bytes in it. `None`: there are none,
    /// and nothing has changed.
    pub(crate) fn take_big(&mut self) -> Option<(Box<Big>, usize, u32)> {
        let s = &mut *self.0;
        let (start, len) = (s.start as usize, s.head_len as usize);
        let rest = len.checked_sub(HEAD_SPACE).filter(|n| *n > 0 && s.n_segs == 0)?;
        let big = s.big.take()?;
        s.small.0[HEADROOM..].copy_from_slice(&big.0[start..start + HEAD_SPACE]);
        (s.start, s.head_len) = (HEADROOM as u32, HEAD_SPACE as u32);
        Some((big, start + HEAD_SPACE, rest as u32))
    }
    /// Gives an empty packet a big buffer.
    pub(crate) fn set_big(&mut self, big: Box<Big>) {
        debug_assert!(self.0.big.is_none() && self.is_empty());
        self.0.big = Some(big);
    }
    /// Whether [`crate::Pool::share`] pays off: the head is long and in a big buffer.
    #[inline]
    pub fn is_long(&self) -> bool {
        self.head_len > LONG && self.big.is_some()
    }
    /// Forgets the tail. Returns its loan, if there was one.
    #[inline]
    pub(crate) fn end_tail(&mut self) -> Option<Loan> {
        let s = &mut *self.0;
        let loan = s.loan.take()?;
        s.n_segs = 0;
        s.tail_len = 0;
        Some(loan)
    }
    /// A packet that holds a copy of `bytes`; bytes that do not fit are cut off.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut p = Self::new();
        p.set_bytes(bytes);
        p
    }
    /// Makes it empty again: no bytes, no segments, no metadata. A big buffer stays.
    #[inline]
    pub fn reset(&mut self) {
        self.start_head(0);
    }
    /// Like [`Packet::reset`], with a head of `n` bytes, at most [`HEAD_SPACE`], of unspecified content.
    #[inline]
    pub fn start_head(&mut self, n: usize) {
        drop(self.end_tail());
        self.begin(n);
    }
    /// Like [`Packet::start_head`], for a packet without a tail.
    #[inline]
    pub(crate) fn begin(&mut self, n: usize) {
        debug_assert!(self.loan.is_none() && self.n_segs == 0 && self.tail_len == 0);
        self.start = HEADROOM as u32;
        self.head_len = n.min(HEAD_SPACE) as u32;
        self.offload = Offload::default();
        self.rare = 0;
        self.in_port = 0;
    }
    /// Replaces all bytes by a copy of `bytes`, cut to fit.
    pub fn set_bytes(&mut self, bytes: &[u8]) {
        self.reset();
        let n = bytes.len().min(BUF_SIZE - HEADROOM);
        self.reserve(n);
        self.buf_mut()[HEADROOM..HEADROOM + n].copy_from_slice(&bytes[..n]);
        self.head_len = n as u32;
    }
    /// Length on the wire, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        (self.head_len + self.tail_len) as usize
    }
    /// The packets and bytes that it is on the wire: the segments of a GSO packet repeat its headers. A hint
    /// where its bytes do not match its metadata.
    #[inline]
    pub fn on_wire(&self) -> OnWire {
        match self.offload.gso {
            None => OnWire {
                packets: 1,
                bytes: self.len() as u64,
            },
            Some(gso) => self.segments_on_wire(gso),
        }
    }
    #[cold]
    fn segments_on_wire(&self, gso: Gso) -> OnWire {
        /// Offset of the data offset in TCP's header, and the length of UDP's header.
        const TCP_LEN_AT: usize = 12;
        const UDP_LEN: usize = 8;
        let headers = match (gso.kind, self.offload.csum) {
            (GsoKind::Udp, Csum::Partial { start, .. }) => usize::from(start) + UDP_LEN,
            (GsoKind::Tcp4 | GsoKind::Tcp6, Csum::Partial { start, .. }) => {
                let words = self
                    .head()
                    .get(usize::from(start) + TCP_LEN_AT)
                    .map_or(5, |b| b >> 4);
                usize::from(start) + usize::from(words) * 4
            }
            _ => usize::from(gso.hdr_len),
        };
        let headers = headers.min(self.len());
        let packets = (self.len() - headers)
            .div_ceil(usize::from(gso.size.max(1)))
            .max(1);
        OnWire {
            packets: packets as u64,
            bytes: (self.len() + (packets - 1) * headers) as u64,
        }
    }
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The private bytes: the whole packet, or its first part if there is a tail.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.buf()[self.start as usize..(self.start + self.head_len) as usize]
    }
    /// The number of private bytes.
    #[inline]
    pub fn head_len(&self) -> usize {
        self.0.head_len as usize
    }
    /// The first `N` bytes from the packet's start on. Bytes behind the head are undefined. For a parser that
    /// checks lengths itself and wants no check per load. `None`: the buffer ends before.
    #[inline]
    pub fn window<const N: usize>(&self) -> Option<&[u8; N]> {
        self.buf().get(self.start as usize..)?.first_chunk()
    }
    /// The private bytes, to rewrite.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        let (from, to) = (self.start as usize, (self.start + self.head_len) as usize);
        &mut self.buf_mut()[from..to]
    }
    /// Foreign segments behind the head.
    #[inline]
    pub fn segs(&self) -> &[Seg] {
        // SAFETY: `n_segs` is at most the length of the array.
        unsafe { self.segs.get_unchecked(..usize::from(self.n_segs)) }
    }
    /// Appends `len` foreign bytes at `ptr`. `false`: there are too many segments already
    /// ([`Packet::make_private`] makes room).
    ///
    /// # Panics
    /// When it has segments of another lender.
    ///
    /// # Safety
    /// The bytes stay mapped and readable from now on until `lender` [is whole](Lender::is_whole) again, and
    /// for ever when it is dropped before that.
    #[inline]
    pub unsafe fn push_seg(&mut self, ptr: NonNull<u8>, len: u32, lender: &mut Lender) -> bool {
        let s = &mut *self.0;
        let Some(place) = s.segs.get_mut(usize::from(s.n_segs)) else {
            return false;
        };
        match &s.loan {
            None => s.loan = Some(lender.lend()),
            Some(loan) => assert!(loan.is_of(lender), "a packet is of one queue"),
        }
        *place = Seg::new(ptr, len);
        s.n_segs += 1;
        s.tail_len += len;
        true
    }
    /// The empty space that a receive call may fill, from the packet's start to the buffer's end. A fresh
    /// packet has at least [`HEAD_SPACE`] bytes. With a big buffer there is room for the longest packet.
    #[inline]
    pub fn space_mut(&mut self) -> &mut [u8] {
        let from = self.start as usize;
        &mut self.buf_mut()[from..]
    }
    /// The first [`HEAD_SPACE`] bytes of a fresh packet's space. Moves the start to where a fresh packet has
    /// it.
    #[inline]
    pub fn head_space(&mut self) -> &mut [u8; HEAD_SPACE] {
        let s = &mut *self.0;
        s.start = HEADROOM as u32;
        let space = match &mut s.big {
            None => s.small.0.last_chunk_mut(),
            Some(b) => b.0[HEADROOM..].first_chunk_mut(),
        };
        space.expect("both areas are longer than that")
    }
    /// Makes the first `n` bytes of [`Packet::space_mut`] the head (cut to the capacity).
    #[inline]
    pub fn set_head_len(&mut self, n: usize) {
        self.0.head_len = n.min(self.0.capacity() - self.0.start as usize) as u32;
    }
    /// Grows the head by `n` bytes at the front (their content is unspecified); `false` without room. Offsets
    /// in the metadata move along.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> bool {
        if n > self.start as usize && !self.move_back(n) {
            return false;
        }
        self.start -= n as u32;
        self.head_len += n as u32;
        self.shift_offsets(n as i32);
        true
    }
    /// Like [`Packet::push_front`], with the last `n` bytes of `block` as content. It copies the whole block,
    /// since a fixed length is faster; the bytes in front of the last `n` mean nothing. Returns the copied
    /// block. `None`: there is no room for all of the block.
    #[inline]
    pub fn push_block<const N: usize>(&mut self, block: &[u8; N], n: usize) -> Option<&mut [u8; N]> {
        let end = self.start as usize;
        let at = end.checked_sub(N).filter(|_| n <= N)?;
        self.start -= n as u32;
        self.head_len += n as u32;
        if !self.offload.is_plain() {
            self.shift_offsets(n as i32);
        }
        let place = self.buf_mut().get_mut(at..end)?.first_chunk_mut::<N>()?;
        *place = *block;
        Some(place)
    }
    /// Moves the head further behind, so that there is room for `n` bytes and a fresh packet's headroom in
    /// front of it. `false` if it would not fit.
    #[cold]
    fn move_back(&mut self, n: usize) -> bool {
        let s = &mut *self.0;
        let (from, len, to) = (s.start as usize, s.head_len as usize, n + HEADROOM);
        if to + len > BUF_SIZE {
            return false;
        }
        match &mut s.big {
            Some(big) => big.0.copy_within(from..from + len, to),
            big => {
                let mut new = Big::new();
                new.0[to..to + len].copy_from_slice(&s.small.0[from..from + len]);
                *big = Some(new);
            }
        }
        s.start = to as u32;
        true
    }
    /// Moves the head to where a fresh packet's begins, if it begins further behind.
    #[cold]
    fn move_ahead(&mut self) {
        let (from, len) = (self.start as usize, self.head_len as usize);
        if from > HEADROOM {
            self.buf_mut().copy_within(from..from + len, HEADROOM);
            self.start = HEADROOM as u32;
        }
    }
    /// Removes `n` bytes at the front of the head; `false` if it has fewer.
    #[inline]
    pub fn pull_front(&mut self, n: usize) -> bool {
        if n > self.head_len as usize {
            return false;
        }
        self.start += n as u32;
        self.head_len -= n as u32;
        self.shift_offsets(-(n as i32));
        true
    }
    #[inline]
    fn shift_offsets(&mut self, by: i32) {
        self.offload.shift(by);
    }
    /// Cuts the packet to `n` bytes.
    pub fn truncate(&mut self, n: usize) {
        if n <= self.head_len as usize {
            self.head_len = n as u32;
            drop(self.end_tail());
        } else if n < self.len() {
            let mut left = n - self.head_len as usize;
            self.tail_len = left as u32;
            let mut n = 0;
            while left > 0 {
                self.segs[n].truncate(left);
                left -= self.segs[n].len();
                n += 1;
            }
            self.n_segs = n as u8;
        }
    }
    /// Copies the tail into the head, so that the packet no longer refers to foreign memory. Allocates a big
    /// buffer if needed, and cuts bytes that do not fit.
    pub fn make_private(&mut self) {
        if self.segs().is_empty() {
            return;
        }
        self.reserve(self.len());
        self.pull_tail(self.len());
        drop(self.end_tail()); // bytes that do not fit
    }
    /// Moves bytes from the tail into the head until the head has `n` bytes, or bytes or room end. For
    /// headers that continue in the tail. Room of removed headers is used again. Returns whether the head
    /// became longer.
    pub fn pull_tail(&mut self, n: usize) -> bool {
        if self.start as usize + n > self.capacity() {
            self.move_ahead();
        }
        let (from, before) = (self.start as usize, self.head_len);
        let room = self.capacity() - from;
        let s = &mut *self.0;
        let n = n.min(room);
        let space = match &mut s.big {
            None => &mut s.small.0[from..from + n.max(before as usize)],
            Some(b) => &mut b.0[from..from + n.max(before as usize)],
        };
        let (mut gone, n_segs) = (0, usize::from(s.n_segs));
        for seg in &mut s.segs[..n_segs] {
            let got = seg.copy_to(&mut space[s.head_len as usize..]);
            seg.advance(got);
            s.head_len += got as u32;
            s.tail_len -= got as u32;
            if !seg.is_empty() {
                break;
            }
            gone += 1;
        }
        s.segs[..n_segs].rotate_left(gone);
        s.n_segs -= gone as u8;
        if s.n_segs == 0 {
            s.loan = None;
        }
        s.head_len > before
    }
    /// Writes a private copy of `self` (head, tail, metadata) into `dst`, which should have room
    /// ([`crate::Pool::get_for`]).
    pub fn copy_into(&self, dst: &mut Packet) {
        self.copy_head_into(dst, self.len());
        for seg in self.segs() {
            let at = (dst.start + dst.head_len) as usize;
            let n = seg.copy_to(&mut dst.buf_mut()[at..]) as u32;
            dst.head_len += n;
        }
    }
    /// Like [`Packet::copy_into`], but both packets then share a long tail: only heads are written. `dst`
    /// should have room for the head.
    pub fn share_into(&self, dst: &mut Packet) {
        let Some(loan) = self.loan.as_ref().filter(|_| self.shares()) else {
            return self.copy_into(dst);
        };
        self.copy_head_into(dst, self.head_len());
        for (to, seg) in dst.segs.iter_mut().zip(self.segs()) {
            *to = seg.again();
        }
        (dst.n_segs, dst.tail_len) = (self.n_segs, self.tail_len);
        dst.loan = Some(loan.again());
    }
    /// Copies the head and the metadata, with room for `n` bytes.
    fn copy_head_into(&self, dst: &mut Packet, n: usize) {
        dst.reset();
        // After headers were removed, the start may be behind the end of the small area.
        dst.start = self.start.min(HEADROOM as u32);
        dst.reserve(n);
        let (at, n) = (dst.start as usize, self.head_len as usize);
        dst.buf_mut()[at..at + n].copy_from_slice(self.head());
        dst.head_len = self.head_len;
        dst.offload = self.offload;
        (dst.rare, dst.queue, dst.mark) = (self.rare, self.queue, self.mark);
        dst.in_port = self.in_port;
    }
    /// Whether [`Packet::share_into`] shares the tail. Copying a short tail is faster.
    #[inline]
    pub fn shares(&self) -> bool {
        self.tail_len > SHARED_TAIL
    }
    /// Pushes a VLAN tag behind the two addresses; `false` without room or addresses. Offsets move along.
    pub fn push_vlan(&mut self, tpid: u16, tci: u16) -> bool {
        const ADDRS: usize = 12;
        if (self.head_len as usize) < ADDRS || !self.push_front(4) {
            return false;
        }
        let head = self.head_mut();
        head.copy_within(4..4 + ADDRS, 0);
        head[ADDRS..ADDRS + 2].copy_from_slice(&tpid.to_be_bytes());
        head[ADDRS + 2..ADDRS + 4].copy_from_slice(&tci.to_be_bytes());
        true
    }
    /// Removes the four bytes behind the two addresses, whatever they are; `false` if the head is shorter.
    /// Offsets move along.
    pub fn pop_vlan(&mut self) -> bool {
        const ADDRS: usize = 12;
        if (self.head_len as usize) < ADDRS + 4 {
            return false;
        }
        self.head_mut().copy_within(0..ADDRS, 4);
        self.pull_front(4)
    }
    /// Whether it is a GSO packet that most devices do not take: in tunnels, or to be cut into fragments.
    #[inline]
    pub fn needs_cutting(&self) -> bool {
        self.offload
            .gso
            .is_some_and(|gso| !gso.wraps.is_empty() || !gso.kind.is_for_devices())
    }
    /// The parts of the packet in order, for a gather list. A packet without bytes has none.
    pub fn iovs(&self) -> impl Iterator<Item = Iov<'_>> {
        let head = (!self.head().is_empty()).then(|| Iov::new(self.head()));
        head.into_iter().chain(self.segs().iter().map(|s| {
            // SAFETY: the segment's memory is readable while its packet, which is borrowed, has it
            // (`push_seg`).
            unsafe { Iov::from_raw(s.as_ptr(), s.len()) }
        }))
    }
    /// Copies bytes of head and tail, from `at` on, to `dst` until either ends. Returns the number of copied
    /// bytes.
    pub fn copy_from(&self, at: usize, dst: &mut [u8]) -> usize {
        let mut done = 0;
        if let Some(head) = self.head().get(at..) {
            done = head.len().min(dst.len());
            dst[..done].copy_from_slice(&head[..done]);
        }
        let mut skip = at.saturating_sub(self.head_len());
        for seg in self.segs() {
            if done == dst.len() {
                break;
            }
            if skip < seg.len() {
                done += seg.copy_from(skip, &mut dst[done..]);
            }
            skip = skip.saturating_sub(seg.len());
        }
        done
    }
    /// Calls `each` with the bytes from `from` on, in pieces: the head in place, the tail as private copies.
    /// All pieces but the last have an even number of bytes.
    pub fn pieces(&self, from: usize, each: &mut dyn FnMut(&[u8])) {
        let head = self.head().get(from..).unwrap_or_default();
        if self.segs().is_empty() {
            return each(head);
        }
        let even = &head[..head.len() & !1];
        each(even);
        let mut at = from + even.len();
        let mut piece = [0; 1024];
        while at < self.len() {
            let n = self.copy_from(at, &mut piece);
            each(&piece[..n]);
            at += n.max(1);
        }
    }
    /// A copy of all bytes, for the slow path and tests.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut v = self.head().to_vec();
        for s in self.segs() {
            let at = v.len();
            v.resize(at + s.len(), 0);
            s.copy_to(&mut v[at..]);
        }
        v
    }
}

impl Default for Packet {
    fn default() -> Self {
        Self::new()
    }
}
