//! The OpenFlow rules that belong to flows, as `ovs-ofctl add-flows` reads them: the same for every switch.

use crate::flows::{ACL, Spread, Tuple, one_hot};
use core::fmt::Write;

/// A set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One rule per input port.
    InPort,
    /// A learning switch.
    Normal,
    /// One rule about the destination port that all flows of [`Spread::Plain`] have.
    Tuple,
    /// One rule about all five fields for each of this number of flows of [`Spread::Plain`].
    Exact(u32),
    /// This number of rules of falling priority, each about other bits of the ports: [`Spread::Masks`].
    Masks(u16),
    /// This number of tables. Each matches on another field and resubmits to the next, as OVN's logical
    /// pipelines do.
    Pipeline(u8),
    /// A short list of rules that allow packets by one field each, and a rule for all other packets: the
    /// target of [`Spread::Explosion`].
    Acl,
    /// One rule that reads both addresses and both ports of each packet: every flow needs a cached entry of
    /// its own.
    Each,
}

impl Kind {
    /// The rules from OpenFlow port `from` to port `to`, which sender `sender` sends on; a line each.
    ///
    /// # Errors
    /// The reason why there are no such rules.
    pub fn rules(self, from: u16, to: u16, sender: u8) -> Result<String, String> {
        let mut text = String::new();
        let mut line = |rule: String| {
            // Writing into a string does not fail.
            let _ = writeln!(text, "{rule}");
        };
        let port = format!("in_port={from}");
        match self {
            Self::InPort if from == to => line(format!("{port},actions=in_port")),
            Self::InPort => line(format!("{port},actions=output:{to}")),
            Self::Normal => line("priority=0,actions=NORMAL".into()),
            Self::Tuple => {
                let dport = Tuple::of(sender, 0).dport;
                line(format!("{port},udp,tp_dst={dport},actions=output:{to}"));
            }
            Self::Exact(count) => {
                for n in 0..count {
                    let t = Tuple::of(sender, n);
                    line(format!("{port},udp,{},actions=output:{to}", fields(t)));
                }
            }
            Self::Masks(count) if count == 0 || count > Spread::MAX_MASKS => {
                return Err(format!("{count} masks: 1 to {}", Spread::MAX_MASKS));
            }
            Self::Masks(count) => {
                for m in 0..count {
                    let (dst, src) = one_hot(m);
                    let src = if count > 16 {
                        format!(",tp_src={src:#x}/{src:#x}")
                    } else {
                        String::new()
                    };
                    let priority = 1000 - m;
                    line(format!(
                        "priority={priority},{port},udp,tp_dst={dst:#x}/{dst:#x}{src},actions=output:{to}"
                    ));
                }
            }
            Self::Pipeline(depth) if !(1..=200).contains(&depth) => {
                return Err(format!("{depth} tables: 1 to 200"));
            }
            Self::Pipeline(depth) => {
                for table in 0..depth {
                    let next = table + 1;
                    let go = if next == depth {
                        format!("output:{to}")
                    } else {
                        format!("load:{next}->NXM_NX_REG{}[0..7],resubmit(,{next})", table % 8)
                    };
                    let what = match table % 4 {
                        0 => "",
                        1 => ",dl_type=0x0800",
                        2 => ",ip,nw_src=10.0.0.0/8",
                        _ => ",udp,tp_dst=5001",
                    };
                    line(format!("table={table},priority=100,{port}{what},actions={go}"));
                }
            }
            Self::Acl => {
                let Tuple {
                    src,
                    dst,
                    sport,
                    dport,
                } = ACL;
                let allow = [
                    format!("nw_src={}", std::net::Ipv4Addr::from(src)),
                    format!("nw_dst={}", std::net::Ipv4Addr::from(dst)),
                    format!("tp_src={sport}"),
                    format!("tp_dst={dport}"),
                ];
                for (i, field) in allow.into_iter().enumerate() {
                    line(format!(
                        "priority={},{port},udp,{field},actions=output:{to}",
                        400 - i
                    ));
                }
                line(format!("priority=1,{port},actions=output:{to}"));
            }
            Self::Each => {
                let moves = [
                    "NXM_OF_IP_SRC[]->NXM_NX_REG0[]",
                    "NXM_OF_IP_DST[]->NXM_NX_REG1[]",
                    "NXM_OF_UDP_SRC[]->NXM_NX_REG2[0..15]",
                    "NXM_OF_UDP_DST[]->NXM_NX_REG2[16..31]",
                ]
                .map(|m| format!("move:{m}"))
                .join(",");
                line(format!("{port},udp,actions={moves},output:{to}"));
            }
        }
        Ok(text)
    }
}

fn fields(t: Tuple) -> String {
    let (src, dst) = (std::net::Ipv4Addr::from(t.src), std::net::Ipv4Addr::from(t.dst));
    format!("nw_src={src},nw_dst={dst},tp_src={},tp_dst={}", t.sport, t.dport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_rules_is_exact() {
        let count = |kind: Kind| kind.rules(1, 2, 0).unwrap().lines().count();
        assert_eq!(count(Kind::InPort), 1);
        assert_eq!(count(Kind::Exact(1000)), 1000);
        assert_eq!(count(Kind::Masks(256)), 256);
        assert_eq!(count(Kind::Pipeline(30)), 30);
        assert_eq!(count(Kind::Acl), 5);
        assert_eq!(count(Kind::Each), 1);
        assert!(Kind::Masks(0).rules(1, 2, 0).is_err() && Kind::Masks(257).rules(1, 2, 0).is_err());
        assert!(Kind::Pipeline(0).rules(1, 2, 0).is_err() && Kind::Pipeline(201).rules(1, 2, 0).is_err());
    }

    /// Each flow of `Spread::Masks` matches the rule of its mask and none before it.
    #[test]
    fn masks_fit_their_flows() {
        for count in [16_u16, 256] {
            for n in 0..u32::from(count) {
                let t = Spread::Masks(count).tuple(0, n);
                let first = (0..count).find(|&m| {
                    let (dst, src) = one_hot(m);
                    t.dport & dst != 0 && (count <= 16 || t.sport & src != 0)
                });
                assert_eq!(first.map(u32::from), Some(n));
            }
        }
    }
}
