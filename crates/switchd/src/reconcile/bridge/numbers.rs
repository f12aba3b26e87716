//! The choice of a new port's OpenFlow number.
//!
//! The port gets the number that it requests (the user's wish, then the number in the database) if that is
//! free. Otherwise it gets the next number after the last one given out. So a number is not soon reused:
//! flows of controllers may still mean the old port. Numbers from 32768 on are given only on request.

use std::collections::HashMap;

use heddle_openflow::Port as OfPort;

/// The first number that is given only on request.
const END: u32 = 32768;
/// After this time, a number that was given back may be reused like a new one.
const RESERVED_MS: u64 = 60 * 60 * 1000;

/// The numbers of one bridge.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    last: u32,
    /// `None`: in use. `Some`: the time when it was given back.
    known: HashMap<u32, Option<u64>>,
}

impl Numbers {
    fn is_taken(&self, number: u32) -> bool {
        matches!(self.known.get(&number), Some(None))
    }

    /// Gives a number, the first of `candidates` that is free. `None`: all are taken.
    pub(super) fn take(&mut self, candidates: &[Option<OfPort>], now_ms: u64) -> Option<OfPort> {
        let wanted = candidates
            .iter()
            .flatten()
            .map(|p| p.0)
            .find(|n| (1..=OfPort::MAX.0).contains(n) && !self.is_taken(*n));
        let number = wanted.or_else(|| self.next(now_ms))?;
        self.known.insert(number, None);
        Some(OfPort(number))
    }

    fn next(&mut self, now_ms: u64) -> Option<u32> {
        let mut oldest: Option<(u64, u32)> = None;
        for _ in 1..END {
            self.last = if self.last + 1 >= END { 1 } else { self.last + 1 };
            match self.known.get(&self.last) {
                None => return Some(self.last),
                Some(None) => {}
                Some(Some(back)) if now_ms.saturating_sub(*back) > RESERVED_MS => return Some(self.last),
                Some(Some(back)) => {
                    oldest = oldest.min(Some((*back, self.last))).or(Some((*back, self.last)))
                }
            }
        }
        oldest.map(|(_, number)| number)
    }

    /// Takes a number back.
    pub(super) fn give_back(&mut self, number: OfPort, now_ms: u64) {
        if let Some(known) = self.known.get_mut(&number.0) {
            *known = Some(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_first_then_the_next() {
        let mut n = Numbers::default();
        assert_eq!(n.take(&[Some(OfPort(7))], 0), Some(OfPort(7)));
        assert_eq!(
            n.take(&[Some(OfPort(7))], 0),
            Some(OfPort(1)),
            "taken: the next one"
        );
        assert_eq!(n.take(&[], 0), Some(OfPort(2)));
        assert_eq!(
            n.take(&[Some(OfPort(7)), None, Some(OfPort(900))], 0),
            Some(OfPort(900))
        );
        n.give_back(OfPort(2), 10);
        assert_eq!(n.take(&[], 10), Some(OfPort(3)), "not reused at once");
        assert_eq!(
            n.take(&[Some(OfPort(2))], 10),
            Some(OfPort(2)),
            "but to whom it belonged"
        );
        assert_eq!(n.take(&[Some(OfPort(0))], 0), Some(OfPort(4)));
        assert_eq!(n.take(&[Some(OfPort::LOCAL)], 0), Some(OfPort(5)));
        assert_eq!(n.take(&[Some(OfPort(60_000))], 0), Some(OfPort(60_000)));
        assert_eq!(n.take(&[], 0), Some(OfPort(6)));
        assert_eq!(n.take(&[], 0), Some(OfPort(8)), "7 is taken");
    }

    #[test]
    fn the_oldest_when_none_is_new() {
        let mut n = Numbers::default();
        for i in 1..END {
            assert_eq!(n.take(&[], 0), Some(OfPort(i)));
        }
        assert_eq!(n.take(&[], 0), None);
        n.give_back(OfPort(9), 20);
        n.give_back(OfPort(5), 10);
        n.give_back(OfPort(6), 30);
        assert_eq!(n.take(&[], 40), Some(OfPort(5)));
        assert_eq!(n.take(&[], 40), Some(OfPort(9)));
    }
}
