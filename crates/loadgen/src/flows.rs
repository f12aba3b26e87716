//! The flow of each packet: sequences of numbers, and the 5-tuple of each number.

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
                // xorshift64* (Vigna 2016, "An experimental exploration of Marsaglia's xorshift generators,
                // scrambled").
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

/// The mapping of flow numbers to tuples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// Numbers below 2^14 differ in the source port, higher ones in both addresses too.
    #[default]
    Plain,
    /// Like [`Spread::Plain`], but senders with odd numbers send the reverse direction of the flows of the
    /// senders before them.
    BothDirections,
    /// Numbers that differ modulo this count (at most [`Spread::MAX_MASKS`]) hit rules with different masks,
    /// see [`crate::rules`]; the others differ in the addresses.
    Masks(u16),
    /// Crafted to multiply a classifier's masks. Each field differs from that of a rule of
    /// [`crate::rules::Kind::Acl`] at one chosen bit, with any value below it. The attack is tuple space
    /// explosion (Csikor et al. 2019, "Tuple Space Explosion"; CVE-2019-25076).
    Explosion,
}

/// Values that the rules of [`crate::rules::Kind::Acl`] allow; no crafted packet has any of these.
pub const ACL: Tuple = Tuple {
    src: 0x0a00_0001,
    dst: 0x1400_0001,
    sport: 12_345,
    dport: 443,
};

impl Spread {
    /// Most masks: each bit of the source port with each bit of the destination port.
    pub const MAX_MASKS: u16 = 256;

    /// The tuple of flow number `n` of sender `sender`.
    #[inline]
    pub fn tuple(self, sender: u8, n: u32) -> Tuple {
        match self {
            Self::Plain => Tuple::of(sender, n),
            Self::BothDirections if sender.is_multiple_of(2) => Tuple::of(sender, n),
            Self::BothDirections => Tuple::of(sender - 1, n).reversed(),
            Self::Masks(count) => {
                let count = count.clamp(1, Self::MAX_MASKS);
                let (dport, sport) = one_hot(u16::try_from(n % u32::from(count)).unwrap_or(0));
                // The next part of `Tuple::of`'s numbering that changes addresses only.
                let addresses = Tuple::of(sender, (n / u32::from(count)).wrapping_mul(PORTS));
                Tuple {
                    sport,
                    dport,
                    ..addresses
                }
            }
            Self::Explosion => {
                // The bits to flip and the noise below them come from disjoint parts of a scrambled number.
                let v = u64::from(n).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let v = v ^ v >> 29;
                Tuple {
                    src: astray(ACL.src, v & 31, v.rotate_right(18)),
                    dst: astray(ACL.dst, v >> 5 & 31, v.rotate_right(34)),
                    sport: astray16(ACL.sport, v >> 10 & 15, v.rotate_right(47)),
                    dport: astray16(ACL.dport, v >> 14 & 15, v.rotate_right(23)),
                }
            }
        }
    }
}

/// Destination and source port of mask number `m`: one bit each.
pub fn one_hot(m: u16) -> (u16, u16) {
    (1 << (m % 16), 1 << (m / 16 % 16))
}

/// `value` with bit number `bit` flipped and the bits below it taken from `noise`.
#[allow(clippy::cast_possible_truncation)] // low bits are wanted
fn astray(value: u32, bit: u64, noise: u64) -> u32 {
    let flip = 1_u32 << bit;
    let below = flip - 1;
    ((value ^ flip) & !below) | (noise as u32 & below)
}
#[allow(clippy::cast_possible_truncation)] // 16 bits in, 16 bits out: the flipped bit is one of them
fn astray16(value: u16, bit: u64, noise: u64) -> u16 {
    astray(value.into(), bit, noise) as u16
}

impl Tuple {
    /// The tuple of flow number `n` of sender `sender`: see [`Spread::Plain`].
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
    /// The tuple of the reverse direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            sport: self.dport,
            dport: self.sport,
        }
    }
    /// The sixteen bytes of an IPv4 header and its L4 header from the time to live on: time to live,
    /// protocol, checksum, addresses, ports. `rest` is the sum over the other words of the IPv4 header, time
    /// to live and protocol included.
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

    #[test]
    fn odd_senders_send_replies() {
        for n in [0, 7, 20_000] {
            let (asks, answers) = (
                Spread::BothDirections.tuple(2, n),
                Spread::BothDirections.tuple(3, n),
            );
            assert_eq!((answers.src, answers.sport), (asks.dst, asks.dport));
            assert_eq!(answers.reversed(), asks);
            assert_eq!(asks, Spread::Plain.tuple(2, n));
        }
    }

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

    /// Random means uniform: each of a thousand flows comes about equally often.
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

    #[test]
    fn masks_are_hit_evenly_by_different_tuples() {
        for count in [1, 16, 64, 256] {
            let mut seen = HashSet::new();
            for n in 0..20_000 {
                let t = Spread::Masks(count).tuple(3, n);
                assert!(seen.insert(t), "{count}: {n}");
                assert_eq!(
                    (t.dport, t.sport),
                    one_hot(u16::try_from(n % u32::from(count)).unwrap())
                );
            }
        }
    }

    /// Crafted packets match no allowing rule, and differ from it first at every bit of every field.
    #[test]
    fn explosions_multiply() {
        let (mut bits, mut seen) = (HashSet::new(), HashSet::new());
        for n in 0..300_000 {
            let t = Spread::Explosion.tuple(0, n);
            assert!(t.src != ACL.src && t.dst != ACL.dst && t.sport != ACL.sport && t.dport != ACL.dport);
            let first = [
                (t.src ^ ACL.src).leading_zeros(),
                (t.dst ^ ACL.dst).leading_zeros(),
                (t.sport ^ ACL.sport).leading_zeros(),
                (t.dport ^ ACL.dport).leading_zeros(),
            ];
            seen.insert(first);
            bits.extend(first.into_iter().enumerate());
        }
        assert_eq!(bits.len(), 32 + 32 + 16 + 16);
        assert!(seen.len() > 100_000, "{}", seen.len());
    }
}
