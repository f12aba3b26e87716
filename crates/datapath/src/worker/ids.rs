//! Numbers of a stage's packets.

use crate::exec::LiveId;
use arrayvec::ArrayVec;
use heddle_packet::BURST;
use std::ops::Range;

/// Packets by their place in a stage.
#[derive(Debug, Default)]
pub(super) struct Ids {
    first: LiveId,
    len: u16,
    /// All ids, unless they are consecutive.
    list: ArrayVec<LiveId, BURST>,
}

impl Ids {
    /// Holds the ids of the burst's first `n` packets from now on.
    pub(super) fn hold_first(&mut self, n: usize) {
        self.list.clear();
        (self.first, self.len) = (0, u16::try_from(n).expect("a burst has fewer packets"));
    }
    /// Adds consecutive ids, of the burst or of copies.
    #[inline]
    pub(super) fn push(&mut self, ids: Range<LiveId>) {
        let (next, n) = (self.first + self.len, ids.end - ids.start);
        if self.len == 0 {
            self.first = ids.start;
        } else if !self.list.is_empty() {
            self.list.extend(ids);
        } else if ids.start != next || usize::from(next) == BURST {
            // Copies are no neighbours of the burst's packets.
            self.list.extend((self.first..next).chain(ids));
        }
        self.len += n;
    }
    #[inline]
    pub(super) fn len(&self) -> u16 {
        self.len
    }
    #[inline]
    pub(super) fn at(&self, place: u16) -> LiveId {
        self.list
            .get(usize::from(place))
            .copied()
            .unwrap_or(self.first + place)
    }
    /// The ids at these places, as ranges of consecutive ids.
    #[inline]
    pub(super) fn ranges(&self, places: Range<u16>) -> impl Iterator<Item = Range<LiveId>> {
        let mut at = places.start;
        std::iter::from_fn(move || {
            if at >= places.end {
                return None;
            }
            let first = self.at(at);
            if self.list.is_empty() {
                let n = places.end - at;
                at = places.end;
                return Some(first..first + n);
            }
            let mut end = first + 1;
            at += 1;
            while at < places.end && self.at(at) == end && usize::from(end) != BURST {
                (at, end) = (at + 1, end + 1);
            }
            Some(first..end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a list of numbers.
        #[test]
        fn ids_are_a_list(jumps in prop::collection::vec(0_u16..4, 0..BURST), first in 0_u16..40, part in any::<(u16, u16)>()) {
            let (mut ids, mut plain) = (Ids::default(), Vec::new());
            let mut id = first;
            for jump in jumps {
                plain.push(id);
                ids.push(id..id + 1);
                // Mostly neighbours.
                id += [1, 1, 1, 5][usize::from(jump)];
            }
            let n = u16::try_from(plain.len()).unwrap();
            prop_assert_eq!(ids.len(), n);
            prop_assert!((0..n).all(|i| ids.at(i) == plain[usize::from(i)]));
            let from = part.0 % (n + 1);
            let to = from + part.1 % (n + 1 - from);
            let ranges: Vec<_> = ids.ranges(from..to).collect();
            prop_assert!(ranges.iter().all(|r| (usize::from(r.start) < BURST) == (usize::from(r.end) <= BURST)));
            let all: Vec<_> = ranges.into_iter().flatten().collect();
            prop_assert_eq!(&all[..], &plain[usize::from(from)..usize::from(to)]);
        }
    }
}
