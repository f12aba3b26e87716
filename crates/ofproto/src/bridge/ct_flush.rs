//! Forgetting tracked connections, as `NXT_CT_FLUSH_ZONE` and `NXT_CT_FLUSH` request it.

use super::Bridge;
use heddle_conntrack::dump::{Filter, PartialTuple};
use heddle_conntrack::{Conntrack, Endpoint, Tuple, bits};
use heddle_openflow::message::{CtFlush, CtTuple};
use std::fmt;
use std::net::IpAddr;

impl Bridge {
    /// Ends connections. Bridges share one tracker; it may look at all of its connections, while no lock is
    /// held.
    pub(super) fn forget_connections(&self, wanted: &CtFlush) {
        let Some(of) = self.of.upgrade() else { return };
        if let Some(dp) = of.engine() {
            flush(dp.conntrack(), of.clock().now_ms(), wanted);
        }
    }
}

/// All connections of a zone.
pub(super) fn of_zone(zone: u16) -> CtFlush {
    CtFlush {
        zone: Some(zone),
        ..CtFlush::default()
    }
}

/// Ends the selected connections. `false`: a whole tuple selects one connection, and there is none. That is
/// logged, as in Open vSwitch.
pub fn flush(tracker: &Conntrack, now_ms: u64, wanted: &CtFlush) -> bool {
    log::debug!(target: "ct_dpif", "netdev@ovs-netdev: ct_flush: {}", FlushText(wanted));
    let Some(tuple) = whole(wanted) else {
        tracker.flush_all(now_ms, &filter_of(wanted));
        return true;
    };
    let found = tracker.flush_tuple(now_ms, &tuple, wanted.zone.unwrap_or(0));
    if !found {
        log::warn!(
            target: "conntrack", per_min = 5, burst = 5;
            "Must flush tuple using the original pre-NATed tuple"
        );
    }
    found
}

/// The connections that a flush selects, in the words of Open vSwitch's log.
struct FlushText<'a>(&'a CtFlush);

impl fmt::Display for FlushText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CtFlush {
            ip_proto,
            zone,
            orig,
            reply,
            mark,
            label,
        } = self.0;
        let all =
            is_nothing(orig) && is_nothing(reply) && *ip_proto == 0 && mark.is_none() && label.is_none();
        let (orig, reply) = match (all, zone) {
            (true, Some(zone)) => return write!(f, "zone {zone}"),
            (true, None) => return f.write_str("<all>"),
            (false, _) => (tuple_text(self.0, orig), tuple_text(self.0, reply)),
        };
        write!(f, "zone={}", zone.unwrap_or(0))?;
        if let Some((mark, mask)) = mark {
            write!(
                f,
                " mark={}",
                masked((*mark).into(), (*mask).into(), u32::MAX.into())
            )?;
        }
        if let Some((label, mask)) = label {
            write!(f, " labels={}", masked(*label, *mask, u128::MAX))?;
        }
        if is_nothing(&self.0.orig) && is_nothing(&self.0.reply) && *ip_proto == 0 {
            return Ok(());
        }
        write!(f, " '{orig},ct_nw_proto={ip_proto}' '{reply}'")
    }
}

/// A value, followed by its mask unless that has all bits of `all`.
fn masked(value: u128, mask: u128, all: u128) -> String {
    let number = |n: u128| match n {
        0 => "0".to_owned(),
        n => format!("{n:#x}"),
    };
    match mask == all {
        true => number(value),
        false => format!("{}/{}", number(value), number(mask)),
    }
}

/// A part of what is wanted; what is not given is zero.
fn tuple_text(wanted: &CtFlush, t: &CtTuple) -> String {
    let given = [wanted.orig, wanted.reply]
        .into_iter()
        .find_map(|t| t.src.or(t.dst));
    let family = if given.is_some_and(|a| a.is_ipv6()) {
        "ipv6"
    } else {
        "nw"
    };
    let addr = |a: Option<IpAddr>| a.map_or("::".to_owned(), |a| a.to_string());
    let number = |n: Option<u16>| n.unwrap_or(0);
    let rest = if is_icmp(wanted.ip_proto) {
        let [id, kind, code] =
            [t.icmp_id, t.icmp_type.map(u16::from), t.icmp_code.map(u16::from)].map(number);
        format!("icmp_id={id},icmp_type={kind},icmp_code={code}")
    } else {
        format!(
            "ct_tp_src={},ct_tp_dst={}",
            number(t.src_port),
            number(t.dst_port)
        )
    };
    format!(
        "ct_{family}_src={},ct_{family}_dst={},{rest}",
        addr(t.src),
        addr(t.dst)
    )
}

/// The tuple, if it selects just one connection. That one is found without a search: in the given zone, or in
/// zone 0 (as in Open vSwitch).
fn whole(wanted: &CtFlush) -> Option<Tuple> {
    let CtFlush {
        ip_proto,
        zone: _,
        orig,
        reply,
        mark,
        label,
    } = wanted;
    if !is_nothing(reply) || mark.is_some() || label.is_some() || !is_whole(orig, *ip_proto) {
        return None;
    }
    let end = |ip: Option<IpAddr>, port: Option<u16>| {
        Some(Endpoint {
            addr: bits(ip?),
            l4: port.unwrap_or(0).into(),
        })
    };
    let tuple = Tuple {
        src: end(orig.src, orig.src_port)?,
        dst: end(orig.dst, orig.dst_port)?,
        proto: *ip_proto,
        ipv6: orig.src?.is_ipv6(),
    };
    match is_icmp(*ip_proto) {
        true => {
            let number = |n: Option<u8>| n.unwrap_or(0);
            tuple.with_icmp(
                orig.icmp_id.unwrap_or(0),
                number(orig.icmp_type),
                number(orig.icmp_code),
            )
        }
        false => Some(tuple),
    }
}

/// Whether a tuple is that of one connection.
fn is_whole(t: &CtTuple, proto: u8) -> bool {
    let has_ports = t.src_port.is_some() && t.dst_port.is_some();
    t.src.is_some() && t.dst.is_some() && (is_icmp(proto) || has_ports)
}

/// Whether a tuple is empty: clients send one of ICMP that is all zeros, too.
fn is_nothing(t: &CtTuple) -> bool {
    let CtTuple {
        src,
        dst,
        src_port,
        dst_port,
        icmp_id,
        icmp_type,
        icmp_code,
    } = t;
    let numbers = [*icmp_id, icmp_type.map(u16::from), icmp_code.map(u16::from)];
    let ports = [*src_port, *dst_port];
    [src, dst].iter().all(|a| a.is_none()) && ports.iter().chain(&numbers).all(|n| n.is_none_or(|n| n == 0))
}

fn is_icmp(proto: u8) -> bool {
    matches!(proto, 1 | 58)
}

/// The filter for a message's connections. As in Open vSwitch, ICMP has an identifier, type and code wherever
/// a part of its tuple is given: zero, if they are not.
fn filter_of(wanted: &CtFlush) -> Filter {
    let CtFlush {
        ip_proto,
        zone,
        orig,
        reply,
        mark,
        label,
    } = wanted;
    let mut addresses = [orig.src, orig.dst, reply.src, reply.dst].into_iter().flatten();
    Filter {
        zone: *zone,
        mark: *mark,
        label: *label,
        orig: parts(orig, *ip_proto),
        reply: parts(reply, *ip_proto),
        proto: (*ip_proto != 0).then_some(*ip_proto),
        ipv6: addresses.next().map(|a| a.is_ipv6()),
    }
}

fn parts(t: &CtTuple, proto: u8) -> PartialTuple {
    let is_given = is_icmp(proto) && !is_nothing(t);
    PartialTuple {
        src: t.src.map(bits),
        dst: t.dst.map(bits),
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
    fn the_log_names_marks_and_labels() {
        let mut wanted = CtFlush {
            mark: Some((0, 5)),
            ..CtFlush::default()
        };
        assert_eq!(FlushText(&wanted).to_string(), "zone=0 mark=0/0x5");
        (wanted.zone, wanted.mark) = (Some(5), Some((25, u32::MAX)));
        wanted.label = Some((0x1e, 0x19));
        assert_eq!(
            FlushText(&wanted).to_string(),
            "zone=5 mark=0x19 labels=0x1e/0x19"
        );
        wanted.ip_proto = 17;
        assert!(
            FlushText(&wanted)
                .to_string()
                .starts_with("zone=5 mark=0x19 labels=0x1e/0x19 'ct_nw_src=::,")
        );
    }

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
        let tuple = whole(&wanted).expect("a whole tuple");
        assert_eq!((tuple.src.l4, tuple.dst.l4, tuple.proto), (1, 2, 6));
        wanted.mark = Some((1, 1));
        assert_eq!(whole(&wanted), None, "the mark counts, too");
        wanted.mark = None;
        wanted.ip_proto = 1;
        wanted.orig.icmp_type = Some(8);
        assert_eq!(whole(&wanted).map(|t| (t.src.l4, t.dst.l4)), Some((8 << 8, 0)));
        let zeros = CtTuple {
            icmp_id: Some(0),
            icmp_type: Some(0),
            icmp_code: Some(0),
            ..CtTuple::default()
        };
        wanted.reply = zeros;
        assert!(whole(&wanted).is_some(), "a tuple of zeros is none");
        let f = filter_of(&wanted);
        assert_eq!((f.orig.icmp_id, f.reply.icmp_id), (Some(0), None));
    }
}
