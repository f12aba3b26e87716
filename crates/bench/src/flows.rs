//! Which flow each packet belongs to: sequences of numbers, and the 5-tuple of each number.

use heddle_wire::checksum::Sum;

/// The order in which flows come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// One after the other: the worst order for a cache that is smaller than the number of flows.
    #[default]
    RoundRobin,
    /// Uniformly at random.
    Random,
}

/// An endless sequence of flow numbers below a bound. Cheap: no allocation, a few instructions a number.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    order: Order,
    count: u32,
    next: u32,
    state: u64,
}

impl Sequence {
    /// Numbers from 0 to `count - 1`; equal seeds give equal sequences.
    pub fn new(order: Order, count: u32, seed: u64) -> Self {
        Self {
            order,
            count: count.max(1),
            next: 0,
            state: seed | 1, // the generator has a fixed point at zero
        }
    }
    /// The next number.
    #[inline]
    pub fn number(&mut self) -> u32 {
        match self.order {
            Order::RoundRobin => {
                let n = self.next;
                self.next = if n + 1 == self.count { 0 } else { n + 1 };
                n
            }
            Order::Random => {
                // xorshift64* (Vigna 2016, "An experimental exploration of Marsaglia's xorshift generators, scrambled").
                let mut x = self.state;
                x ^= x >> 12;
                x ^= x << 25;
                x ^= x >> 27;
                self.state = x;
                let high = x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
                // Lemire's reduction: the high half of a product.
                u32::try_from((high * u64::from(self.count)) >> 32).unwrap_or(0)
            }
        }
    }
}

/// The part of a flow that differs between flows of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// IPv4 source address.
    pub src: u32,
    /// IPv4 destination address.
    pub dst: u32,
    /// L4 source port.
    pub sport: u16,
    /// L4 destination port.
    pub dport: u16,
}

/// Ports that flows use before they take another pair of addresses.
const PORTS: u32 = 1 << 14;
const FIRST_PORT: u16 = 1024;

impl Tuple {
    /// The tuple of flow number `n` of sender `sender` (below 256): numbers below 2^14 differ in the source port, higher ones in both addresses too.
    #[inline]
    pub fn of(sender: u8, n: u32) -> Self {
        let [_, a, b, c] = (n / PORTS).to_be_bytes();
        #[allow(clippy::cast_possible_truncation)] // below PORTS
        let port = (n % PORTS) as u16;
        Self {
            src: u32::from_be_bytes([10, a ^ sender, b, c]),
            dst: u32::from_be_bytes([20, a ^ sender, c, b]),
            sport: FIRST_PORT + port,
            dport: 5001,
        }
    }
    /// The sixteen bytes of an IPv4 header and its L4 header from the time to live on: time to live, protocol, checksum, addresses, ports. `rest` is
    /// the sum over the other words of the IPv4 header, time to live and protocol included.
    #[inline]
    pub fn bytes(&self, ttl: u8, proto: u8, rest: Sum) -> [u8; 16] {
        let csum = rest.word32(self.src).word32(self.dst).checksum();
        let word = |v: u128, at: u32| v << at;
        let v = word(ttl.into(), 120)
            | word(proto.into(), 112)
            | word(csum.into(), 96)
            | word(self.src.into(), 64)
            | word(self.dst.into(), 32)
            | word(self.sport.into(), 16)
            | u128::from(self.dport);
        v.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn numbers_stay_below_the_bound(count in 1_u32..5000, seed: u64, random: bool) {
            let order = if random { Order::Random } else { Order::RoundRobin };
            let mut s = Sequence::new(order, count, seed);
            for i in 0..2 * count {
                let n = s.number();
                prop_assert!(n < count);
                prop_assert!(random || n == i % count);
            }
        }
    }

    /// Random means uniform: each of a thousand flows comes about as often as it should.
    #[test]
    fn random_is_uniform() {
        let mut s = Sequence::new(Order::Random, 1000, 42);
        let mut seen = vec![0_u32; 1000];
        for _ in 0..1_000_000 {
            seen[s.number() as usize] += 1;
        }
        // Binomial: mean 1000, deviation 32; six deviations.
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }

    #[test]
    fn tuples_differ() {
        let mut seen = HashSet::new();
        for n in 0..1_000_000 {
            assert!(seen.insert(Tuple::of(0, n)), "{n}");
        }
        for n in 0..20_000 {
            assert!(seen.insert(Tuple::of(1, n)), "{n} of another sender");
        }
    }
}
