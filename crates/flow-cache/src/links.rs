//! Links from connections to the entries that their packets matched after tracking.
//!
//! **Problem.** A tracked packet is looked up again under a recirculation id, with the state of its
//! connection. That state is ten words outside of the compact key, which differ with each connection. To
//! write, hash and compare them costs more than to find the connection.
//!
//! **Shape.** Each connection has a line with a link for each direction. A link holds the properties of the
//! connection that may change between packets ([`ConnSummary`]), the origin of the lookup, and the entry. If
//! a packet has the same properties and origin, it matches the entry's context, as it did when the link was
//! made. Only the compact key is left to compare, under the entry's mask.
//!
//! **Invariants.** A link is made only of a packet that had no metadata before it was tracked. A link names
//! an entry by slot and id, and no other entry ever has this id. The caller that follows a link still checks
//! whether the entry is valid, as after any lookup.
//!
//! **Bounds.** The connection's number selects the line, and a newer connection takes the older one's place.
//! If many lines were taken over within a second, the number of lines doubles, up to [`MAX_LINES`]: 16 MiB.

use heddle_conntrack::ConnSummary;
use heddle_simd::simd;
use zerocopy::FromZeros;

/// The number of lines at first.
const INITIAL_LINES: usize = 1 << 10;
/// Maximum number of lines.
const MAX_LINES: usize = 1 << 18;
/// If more than one in this number of lines was taken over within a second, the number of lines doubles.
const CROWDED: usize = 8;

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
struct Link {
    /// Id of the entry; zero: no link.
    id: u64,
    slot: u32,
    origin: u32,
    mark: u32,
    label_version: u32,
}

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C, align(64))]
struct Line {
    links: [Link; 2],
    number: u32,
    generation: u32,
    states: [u8; 2],
    _rest: [u8; 6],
}

/// An entry, as a link names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) slot: u32,
    pub(crate) id: u64,
}

/// A worker's links.
#[derive(Debug)]
pub(crate) struct Links {
    lines: Vec<Line>,
    taken: usize,
}

impl Links {
    pub(crate) fn new() -> Self {
        Self {
            lines: zeroed(INITIAL_LINES),
            taken: 0,
        }
    }
    #[inline]
    fn line(&self, number: u32) -> Option<&Line> {
        self.lines.get(number as usize & self.lines.len().wrapping_sub(1))
    }
    /// Prefetches the links of a connection.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) {
        if let Some(line) = self.line(number) {
            simd::prefetch(line);
        }
    }
    /// The entry that a packet of this origin matched, for a connection with exactly these properties.
    #[inline]
    pub(crate) fn find(&self, b: &ConnSummary, origin: u32) -> Option<Target> {
        let line = self.line(b.number)?;
        let direction = usize::from(b.reply);
        let link = line.links.get(direction)?;
        let same = (line.number ^ b.number)
            | (line.generation ^ b.generation)
            | (link.origin ^ origin)
            | (link.mark ^ b.mark)
            | (link.label_version ^ b.label_version)
            | u32::from(line.states.get(direction)? ^ b.state);
        (same == 0 && link.id != 0).then_some(Target {
            slot: link.slot,
            id: link.id,
        })
    }
    /// The slots of a connection's links, for prefetching.
    #[inline]
    pub(crate) fn guess(&self, number: u32) -> impl Iterator<Item = u32> {
        let line = self.line(number).filter(|line| line.number == number);
        let links = line.map_or(&[][..], |line| &line.links);
        links.iter().filter(|link| link.id != 0).map(|link| link.slot)
    }
    /// Links a connection with these properties to the entry of its packet from this origin.
    pub(crate) fn learn(&mut self, b: &ConnSummary, origin: u32, to: Target) {
        let at = b.number as usize & (self.lines.len() - 1);
        let Some(line) = self.lines.get_mut(at) else {
            return;
        };
        if (line.number, line.generation) != (b.number, b.generation) {
            self.taken += usize::from(line.links.iter().any(|l| l.id != 0));
            line.links = [Link::new_zeroed(); 2];
            (line.number, line.generation) = (b.number, b.generation);
        }
        let direction = usize::from(b.reply);
        line.states[direction] = b.state;
        line.links[direction] = Link {
            id: to.id,
            slot: to.slot,
            origin,
            mark: b.mark,
            label_version: b.label_version,
        };
    }
    /// Once a second: doubles the number of lines if there are too few, and forgets all links then.
    pub(crate) fn tidy(&mut self) {
        let crowded = std::mem::take(&mut self.taken) > self.lines.len() / CROWDED;
        if crowded && self.lines.len() < MAX_LINES {
            self.lines = zeroed(self.lines.len() * 2);
        }
    }
}

/// An array of `n` empty lines, or of one line if there is no memory.
fn zeroed(n: usize) -> Vec<Line> {
    Line::new_vec_zeroed(n).unwrap_or_else(|_| vec![Line::new_zeroed()])
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // small numbers
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn brief() -> impl Strategy<Value = ConnSummary> {
        let few = || prop_oneof![Just(1_u32), Just(2), Just(3)];
        // Some of these numbers share a line, others do not.
        let number = prop_oneof![Just(5_u32), Just(6), Just(5 + INITIAL_LINES as u32)];
        (number, few(), any::<bool>(), few(), few(), few()).prop_map(
            |(number, generation, reply, state, mark, label)| ConnSummary {
                number,
                generation,
                reply,
                state: state as u8,
                mark,
                label_version: label,
            },
        )
    }

    proptest! {
        /// A link that is found was learned for a packet with the same properties.
        #[test]
        fn what_is_found_was_learned(
            steps in prop::collection::vec((brief(), 0_u32..2, any::<bool>()), 1..200),
        ) {
            let mut links = Links::new();
            let mut all = HashMap::new();
            for (n, (b, origin, learn)) in (1..).zip(steps) {
                if learn {
                    let to = Target { slot: n as u32, id: n };
                    links.learn(&b, origin, to);
                    prop_assert_eq!(links.find(&b, origin), Some(to));
                    all.insert((format!("{b:?}"), origin), to);
                } else if let Some(to) = links.find(&b, origin) {
                    prop_assert_eq!(all.get(&(format!("{b:?}"), origin)), Some(&to));
                }
            }
        }
    }

    #[test]
    fn there_are_more_lines_where_many_share_one() {
        let mut links = Links::new();
        let to = Target { slot: 1, id: 1 };
        for n in 0..4 * INITIAL_LINES as u32 {
            links.learn(
                &ConnSummary {
                    number: n,
                    ..ConnSummary::default()
                },
                0,
                to,
            );
        }
        links.tidy();
        assert_eq!(links.lines.len(), 2 * INITIAL_LINES);
        // No line was taken over since then.
        links.tidy();
        assert_eq!(links.lines.len(), 2 * INITIAL_LINES);
    }
}
