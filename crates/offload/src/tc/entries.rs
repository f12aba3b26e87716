//! Entries of connections in the kernel's table ([`super::conns`]).

use heddle_conntrack::Tuple;
use heddle_conntrack::offloaded::Offloadable;
use heddle_kernel_conntrack::{Established, EstablishedTable};
use std::collections::HashSet;
use std::io;

/// Life of an entry before its first packet, seconds.
pub(super) const LIFE_S: u32 = 600;
/// Life of an entry that translates back, seconds. It is renewed at half of that.
pub(super) const BACK_LIFE_S: u32 = 10 * 24 * 3600;

/// Zones of the kernel for a zone of rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KernelZones {
    /// The connections.
    pub(super) forth: u16,
    /// The entries that translate back.
    pub(super) back: u16,
}

/// Removes all entries of these zones of the kernel.
pub(super) fn remove_entries(zones: &HashSet<u16>) {
    let done = || -> io::Result<()> {
        let mut table = EstablishedTable::new()?;
        let listed = table.list()?;
        let keys = listed.iter().map(|l| l.key).filter(|k| zones.contains(&k.zone));
        table.remove(&keys.collect::<Vec<_>>())
    };
    if let Err(error) = done() {
        log::debug!(target: "netdev_offload", "connections of an earlier process stay in the kernel's table: {error}");
    }
}

/// The entry of a connection.
pub(super) fn forth_of(c: &Offloadable, zones: KernelZones, for_cards: bool) -> Established {
    Established {
        zone: zones.forth,
        orig: c.orig,
        reply: c.reply,
        mark: c.mark,
        label: c.label,
        timeout_s: LIFE_S,
        assured: false,
        for_cards,
    }
}

/// The entry that translates packets of a translated connection back. Translated packets have the reversed
/// tuples of the other direction.
pub(super) fn back_of(c: &Offloadable, zones: KernelZones) -> Option<Established> {
    let plain: Tuple = c.orig.reversed();
    (c.reply != plain).then(|| Established {
        zone: zones.back,
        orig: c.reply.reversed(),
        reply: plain,
        mark: 0,
        label: 0,
        timeout_s: BACK_LIFE_S,
        assured: true,
        for_cards: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_conntrack::Endpoint;
    use heddle_conntrack::offloaded::ConnId;

    #[test]
    fn translated_connections_have_an_entry_that_translates_back() {
        let end = |addr, l4| Endpoint { addr, l4 };
        let orig = Tuple {
            src: end(1, 10),
            dst: end(2, 20),
            proto: 17,
            ipv6: false,
        };
        let mut c = Offloadable {
            id: ConnId {
                number: 1,
                generation: 1,
            },
            zone: 5,
            replied: true,
            orig,
            reply: orig.reversed(),
            snat: true,
            dnat: false,
            mark: 3,
            label: 4,
        };
        let zones = KernelZones {
            forth: 40_960,
            back: 40_961,
        };
        assert_eq!(back_of(&c, zones), None);
        c.reply.dst = end(9, 90);
        let (forth, back) = (forth_of(&c, zones, false), back_of(&c, zones).unwrap());
        assert_eq!((forth.zone, forth.mark, forth.label), (40_960, 3, 4));
        // A packet of the original direction is translated from 1:10 to 9:90, and back.
        assert_eq!(forth.reply.reversed(), back.orig);
        assert_eq!(back.reply.reversed(), forth.orig);
        assert_eq!(back.zone, 40_961);
    }
}
