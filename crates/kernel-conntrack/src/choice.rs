//! Settings: the connections that are mirrored.

use crate::entry::TC_ZONES;
use heddle_conntrack::scan::Seen;
use std::ops::RangeInclusive;

/// Protocol number of UDP.
const UDP: u8 = 17;

/// Default of [`Choice::limit`].
pub const DEFAULT_LIMIT: usize = 65_536;

/// The settings of the mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// All connections, rather than translated ones of UDP and labelled ones.
    pub all: bool,
    /// The zones. Zone 0 is the host's, and never among them.
    pub zones: Zones,
    /// Maximum number of mirrored connections.
    pub limit: usize,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            all: false,
            zones: Zones::default(),
            limit: DEFAULT_LIMIT,
        }
    }
}

impl Choice {
    /// Whether this connection is mirrored.
    pub fn has(&self, c: &Seen<'_>) -> bool {
        let wanted = self.all || c.proto() == UDP && c.is_translated() || c.is_labelled();
        wanted && self.zones.has(c.zone())
    }
}

/// A set of zones without zone 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zones(Vec<RangeInclusive<u16>>);

impl Default for Zones {
    fn default() -> Self {
        Self(vec![1..=u16::MAX])
    }
}

impl Zones {
    /// Reads numbers and ranges, such as `5,64000-64010`. `None`: another text, or zone 0.
    pub fn parse(text: &str) -> Option<Self> {
        let range = |part: &str| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let [from, to] = [from, to].map(|n| n.trim().parse::<u16>().ok());
            Some(from?..=to?).filter(|r| !r.is_empty() && !r.contains(&0))
        };
        text.split(',').map(range).collect::<Option<_>>().map(Self)
    }
    /// Whether the set has this zone. It never has those of the tc back end ([`TC_ZONES`]).
    pub fn has(&self, zone: u16) -> bool {
        !TC_ZONES.contains(&zone) && self.0.iter().any(|range| range.contains(&zone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_numbers_and_ranges() {
        let zones = Zones::parse("5, 64000-64010").expect("zones");
        for (zone, has) in [
            (0, false),
            (5, true),
            (6, false),
            (64_000, true),
            (64_010, true),
            (64_011, false),
        ] {
            assert_eq!(zones.has(zone), has, "{zone}");
        }
        for text in ["", "0", "0-5", "5-4", "x", "65536", "1,,2", "1-2-3", "-1"] {
            assert_eq!(Zones::parse(text), None, "{text}");
        }
        assert!(!Zones::default().has(*TC_ZONES.start()) && !Zones::default().has(*TC_ZONES.end()));
        assert!(Zones::default().has(1) && Zones::default().has(u16::MAX) && !Zones::default().has(0));
    }
}
