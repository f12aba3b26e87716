//! Which entries the packets of connections were found to belong to after they had been tracked.
//!
//! **Problem.** A tracked packet is looked up again under a recirculation id, with what is known of its
//! connection: ten words outside of its compact key, which differ with each connection. To write, hash and
//! compare them costs more than to find the connection.
//!
//! **Shape.** A line for each connection with a link for each of its directions. A link holds what of the
//! connection may be another with the next packet ([`Brief`]), the origin of the lookup, and the entry that
//! was found. Where all of that is the same, the packet has what the entry's context asks for, since it had
//! that when the link was made. What is left to be compared is the compact key, under the entry's mask.
//!
//! **Invariants.** A link is made only of a packet that carried nothing before it was tracked. An entry is
//! named by its slot and its id, which no other entry ever has. Whoever follows a link asks whether the entry
//! is right by now, as after any other way to find it.
//!
//! **Bounds.** Lines are found by the connection's number, and a newer one takes the older one's place. There
//! are twice as many where many did so within a second, up to [`MOST`]: 16 MiB.

use heddle_conntrack::Brief;
use heddle_simd::simd;
use zerocopy::FromZeros;

/// Lines at first.
const FIRST: usize = 1 << 10;
/// Most lines.
const MOST: usize = 1 << 18;
/// Of so many lines one was taken from another connection within a second: then there are to be more.
const CROWDED: usize = 8;

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
struct Link {
    /// 0: there is none.
    id: u64,
    slot: u32,
    origin: u32,
    mark: u32,
    label: u32,
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
            lines: zeroed(FIRST),
            taken: 0,
        }
    }
    #[inline]
    fn line(&self, number: u32) -> Option<&Line> {
        self.lines.get(number as usize & self.lines.len().wrapping_sub(1))
    }
    /// Fetches the links of a connection that will probably be asked for.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) {
        if let Some(line) = self.line(number) {
            simd::prefetch(line);
        }
    }
    /// The entry that a packet of this origin may be meant by, of which this is known.
    #[inline]
    pub(crate) fn find(&self, b: &Brief, origin: u32) -> Option<Target> {
        let line = self.line(b.number)?;
        let way = usize::from(b.reply);
        let link = line.links.get(way)?;
        let same = (line.number ^ b.number)
            | (line.generation ^ b.generation)
            | (link.origin ^ origin)
            | (link.mark ^ b.mark)
            | (link.label ^ b.label)
            | u32::from(line.states.get(way)? ^ b.state);
        (same == 0 && link.id != 0).then_some(Target {
            slot: link.slot,
            id: link.id,
        })
    }
    /// The slots that packets of a connection may be led to, so that they can be fetched.
    #[inline]
    pub(crate) fn guess(&self, number: u32) -> impl Iterator<Item = u32> {
        let line = self.line(number).filter(|line| line.number == number);
        let links = line.map_or(&[][..], |line| &line.links);
        links.iter().filter(|link| link.id != 0).map(|link| link.slot)
    }
    /// A packet of this origin, of which this is known, has this entry.
    pub(crate) fn learn(&mut self, b: &Brief, origin: u32, to: Target) {
        let at = b.number as usize & (self.lines.len() - 1);
        let Some(line) = self.lines.get_mut(at) else {
            return;
        };
        if (line.number, line.generation) != (b.number, b.generation) {
            self.taken += usize::from(line.links.iter().any(|l| l.id != 0));
            line.links = [Link::new_zeroed(); 2];
            (line.number, line.generation) = (b.number, b.generation);
        }
        let way = usize::from(b.reply);
        line.states[way] = b.state;
        line.links[way] = Link {
            id: to.id,
            slot: to.slot,
            origin,
            mark: b.mark,
            label: b.label,
        };
    }
    /// Once a second: makes more lines, if there are too few. Then all links are made anew.
    pub(crate) fn tidy(&mut self) {
        let crowded = std::mem::take(&mut self.taken) > self.lines.len() / CROWDED;
        if crowded && self.lines.len() < MOST {
            self.lines = zeroed(self.lines.len() * 2);
        }
    }
}

/// So many lines, or none where there is no memory for them.
fn zeroed(n: usize) -> Vec<Line> {
    Line::new_vec_zeroed(n).unwrap_or_else(|_| vec![Line::new_zeroed()])
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // small numbers
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn brief() -> impl Strategy<Value = Brief> {
        let few = || prop_oneof![Just(1_u32), Just(2), Just(3)];
        // Numbers that share a line, and such as do not.
        let number = prop_oneof![Just(5_u32), Just(6), Just(5 + FIRST as u32)];
        (number, few(), any::<bool>(), few(), few(), few()).prop_map(
            |(number, generation, reply, state, mark, label)| Brief {
                number,
                generation,
                reply,
                state: state as u8,
                mark,
                label,
            },
        )
    }

    proptest! {
        /// What is found was learned for a packet of which the same is known.
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
        for n in 0..4 * FIRST as u32 {
            links.learn(
                &Brief {
                    number: n,
                    ..Brief::default()
                },
                0,
                to,
            );
        }
        links.tidy();
        assert_eq!(links.lines.len(), 2 * FIRST);
        // Nothing happened since.
        links.tidy();
        assert_eq!(links.lines.len(), 2 * FIRST);
    }
}
