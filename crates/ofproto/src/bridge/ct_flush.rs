//! Forgetting tracked connections, as `NXT_CT_FLUSH_ZONE` and `NXT_CT_FLUSH` ask for it.

use super::Bridge;
use heddle_conntrack::dump::{Filter, PartialTuple};
use heddle_openflow::message::{CtFlush, CtTuple};
use std::net::IpAddr;

impl Bridge {
    /// Ends connections. Bridges share one tracker; it may look at all of its connections, while no lock is
    /// held.
    pub(super) fn forget_connections(&self, filter: &Filter) {
        let Some(of) = self.of.upgrade() else { return };
        if let Some(dp) = of.datapath() {
            dp.conntrack().flush_all(of.clock().now_ms(), filter);
        }
    }
}

/// All connections of a zone.
pub(super) fn of_zone(zone: u16) -> Filter {
    Filter {
        zone: Some(zone),
        ..Filter::default()
    }
}

/// Whether a tuple is that of one connection.
fn is_whole(t: &CtTuple, proto: u8) -> bool {
    let has_ports = t.src_port.is_some() && t.dst_port.is_some();
    t.src.is_some() && t.dst.is_some() && (is_icmp(proto) || has_ports)
}

fn is_icmp(proto: u8) -> bool {
    matches!(proto, 1 | 58)
}

/// Which connections a message means. As in Open vSwitch, a whole tuple without a zone is one of zone 0, and
/// ICMP has an identifier, type and code wherever a part of its tuple is given: zero, if they are not.
pub fn filter_of(wanted: &CtFlush) -> Filter {
    let CtFlush {
        ip_proto,
        zone,
        orig,
        reply,
        mark,
        label,
    } = wanted;
    let whole = is_whole(orig, *ip_proto) && *reply == CtTuple::default();
    let mut addresses = [orig.src, orig.dst, reply.src, reply.dst].into_iter().flatten();
    Filter {
        zone: zone.or(whole.then_some(0)),
        mark: *mark,
        label: *label,
        orig: parts(orig, *ip_proto),
        reply: parts(reply, *ip_proto),
        proto: (*ip_proto != 0).then_some(*ip_proto),
        ipv6: addresses.next().map(|a| a.is_ipv6()),
    }
}

fn parts(t: &CtTuple, proto: u8) -> PartialTuple {
    let number = |a: IpAddr| match a {
        IpAddr::V4(a) => u128::from(u32::from(a)),
        IpAddr::V6(a) => u128::from(a),
    };
    let is_given = is_icmp(proto) && *t != CtTuple::default();
    PartialTuple {
        src: t.src.map(number),
        dst: t.dst.map(number),
        src_port: t.src_port,
        dst_port: t.dst_port,
        icmp_id: is_given.then(|| t.icmp_id.unwrap_or(0)),
        icmp_type: is_given.then(|| t.icmp_type.unwrap_or(0)),
        icmp_code: is_given.then(|| t.icmp_code.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_does_not_matter() {
        assert_eq!(filter_of(&CtFlush::default()), Filter::default());
        let mut wanted = CtFlush {
            ip_proto: 6,
            orig: CtTuple {
                src: Some([10, 0, 0, 1].into()),
                ..CtTuple::default()
            },
            ..CtFlush::default()
        };
        let f = filter_of(&wanted);
        assert_eq!((f.zone, f.proto, f.ipv6), (None, Some(6), Some(false)));
        assert_eq!((f.orig.src, f.orig.icmp_id), (Some(0x0a00_0001), None));
        wanted.orig.dst = wanted.orig.src;
        (wanted.orig.src_port, wanted.orig.dst_port) = (Some(1), Some(2));
        assert_eq!(filter_of(&wanted).zone, Some(0), "a whole tuple");
        wanted.ip_proto = 1;
        let f = filter_of(&wanted);
        assert_eq!((f.orig.icmp_id, f.reply.icmp_id), (Some(0), None));
    }
}
