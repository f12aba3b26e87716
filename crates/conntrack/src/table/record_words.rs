//! The parts of a connection's record that have more than one word, and the meanings that share a place.
//!
//! All words are read and written relaxed here. The state word of [`crate::table::record::Record`] orders
//! them.

use crate::atomic::{AtomicU64, FromZeros};
use crate::table::hash::halves;
use crate::table::skew::Skew;
use std::sync::atomic::Ordering::Relaxed;

/// 128 bits: an address or a label. Other threads may see one half change before the other.
#[derive(Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Wide {
    hi: AtomicU64,
    lo: AtomicU64,
}

impl Wide {
    #[inline]
    pub(crate) fn get(&self) -> [u64; 2] {
        [self.hi.load(Relaxed), self.lo.load(Relaxed)]
    }
    #[inline]
    pub(crate) fn value(&self) -> u128 {
        let [hi, lo] = self.get();
        u128::from(hi) << 64 | u128::from(lo)
    }
    pub(crate) fn put(&self, [hi, lo]: [u64; 2]) {
        self.hi.store(hi, Relaxed);
        self.lo.store(lo, Relaxed);
    }
    pub(crate) fn words(&self) -> [&AtomicU64; 2] {
        [&self.hi, &self.lo]
    }
}

/// Addresses in the first cache line. IPv4: all four. IPv6: the source of the original direction.
///
/// An address pair of IPv4 has the source in its upper half ([`crate::table::key::pair4`]).
#[derive(Debug, FromZeros)]
#[repr(C)]
pub(crate) struct NearAddrs(Wide);

impl NearAddrs {
    /// IPv4: the address pair of the original direction.
    #[inline]
    pub(crate) fn orig4(&self) -> u64 {
        self.0.hi.load(Relaxed)
    }
    /// IPv4: the address pair of the reply direction.
    #[inline]
    pub(crate) fn reply4(&self) -> u64 {
        self.0.lo.load(Relaxed)
    }
    pub(crate) fn put4(&self, orig: u64, reply: u64) {
        self.0.put([orig, reply]);
    }
    /// IPv6: the source address of the original direction.
    #[inline]
    pub(crate) fn orig_src6(&self) -> &Wide {
        &self.0
    }
    pub(crate) fn words(&self) -> [&AtomicU64; 2] {
        self.0.words()
    }
}

/// The last four words of a record. Their meaning depends on the flags of the connection.
///
/// * `RELATED`: both are the addresses of its [`Parent`].
/// * All others: the second one is the [odd label](Overlay::odd_label).
/// * `CONTROL`, which is never `RELATED`: the first one has the [`Skews`] of both directions.
#[derive(Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Overlay {
    first: Wide,
    second: Wide,
}

impl Overlay {
    /// View of a connection with the flag `RELATED`.
    pub(crate) fn parent(&self) -> Parent<'_> {
        Parent(self)
    }
    /// View of a connection with the flag `CONTROL`.
    pub(crate) fn skews(&self) -> Skews<'_> {
        Skews(&self.first)
    }
    /// View of a connection without the flag `RELATED`: its label, if an odd number of labels was written.
    #[inline]
    pub(crate) fn odd_label(&self) -> &Wide {
        &self.second
    }
    pub(crate) fn words(&self) -> [&AtomicU64; 4] {
        let Self { first, second } = self;
        [&first.hi, &first.lo, &second.hi, &second.lo]
    }
}

/// Addresses of the control connection that announced this one, in its original direction.
pub(crate) struct Parent<'a>(&'a Overlay);

impl Parent<'_> {
    /// Source and destination.
    pub(crate) fn addrs(&self) -> [[u64; 2]; 2] {
        [self.0.first.get(), self.0.second.get()]
    }
    pub(crate) fn put(&self, src: u128, dst: u128) {
        self.0.first.put(halves(src));
        self.0.second.put(halves(dst));
    }
}

/// The shifts of sequence numbers of a control connection, one word for each direction.
pub(crate) struct Skews<'a>(&'a Wide);

impl Skews<'_> {
    fn word(&self, reply: bool) -> &AtomicU64 {
        if reply { &self.0.lo } else { &self.0.hi }
    }
    pub(crate) fn get(&self, reply: bool) -> Skew {
        Skew(self.word(reply).load(Relaxed))
    }
    pub(crate) fn put(&self, [orig, reply]: [Skew; 2]) {
        self.0.put([orig.0, reply.0]);
    }
    /// The segment at `seq` of a direction has become longer by `n` bytes. `false`: the sum of all changes
    /// would be too large.
    pub(crate) fn add(&self, reply: bool, seq: u32, n: i32) -> bool {
        let next = |w: u64| Skew(w).with(seq, n).map(|s| s.0);
        self.word(reply).fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}
