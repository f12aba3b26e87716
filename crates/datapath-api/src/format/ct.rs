//! Actions that track connections.

use super::hex;
use crate::action::Action;
use heddle_conntrack::{CtAction, CtNat, NatEnd, NatHow, NatRange};
use std::fmt::{Display, Write};
use std::net::IpAddr;

pub(super) fn action(s: &mut String, a: &Action) {
    match a {
        Action::Ct(ct) => track(s, ct),
        _ => s.push_str("ct_clear"),
    }
}

fn track(s: &mut String, ct: &CtAction) {
    let CtAction {
        commit,
        force,
        zone,
        mark,
        label,
        helper,
        timeout,
        nat,
    } = ct;
    let mut parts: Vec<String> = Vec::new();
    if *commit {
        parts.push(if *force { "force_commit" } else { "commit" }.to_owned());
    }
    if *zone != 0 {
        parts.push(format!("zone={zone}"));
    }
    if let Some((value, mask)) = mark {
        parts.push(format!("mark={}/{}", hex(*value), hex(*mask)));
    }
    if let Some((value, mask)) = label {
        parts.push(match *mask {
            u128::MAX => format!("label={}", hex128(*value)),
            mask => format!("label={}/{}", hex128(*value), hex128(mask)),
        });
    }
    parts.extend(helper.map(|h| format!("helper={}", h.name())));
    parts.extend(timeout.as_ref().map(|t| format!("timeout={t}")));
    parts.extend(nat.as_ref().map(translate));
    s.push_str("ct");
    if !parts.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(s, "({})", parts.join(","));
    }
}

fn hex128(v: u128) -> String {
    if v == 0 { "0".into() } else { format!("{v:#x}") }
}

fn translate(nat: &CtNat) -> String {
    let Some(range) = nat.new else {
        return "nat".to_owned();
    };
    let NatRange {
        end,
        addresses,
        ports,
        how,
        persistent,
    } = range;
    let mut s = match end {
        NatEnd::Src => "nat(src".to_owned(),
        NatEnd::Dst => "nat(dst".to_owned(),
    };
    if let Some((first, last)) = addresses {
        // Without brackets a port would look like a part of an IPv6 address.
        let name = |a: IpAddr| match a {
            IpAddr::V6(_) if ports.is_some() => format!("[{a}]"),
            _ => a.to_string(),
        };
        s.push('=');
        from_to(&mut s, name(first), name(last));
        if let Some((first, last)) = ports {
            s.push(':');
            from_to(&mut s, first, last);
        }
    }
    if persistent {
        s.push_str(",persistent");
    }
    s.push_str(match how {
        NatHow::Any => "",
        NatHow::Hash => ",hash",
        NatHow::Random => ",random",
    });
    s.push(')');
    s
}

fn from_to<T: Display + PartialEq>(s: &mut String, first: T, last: T) {
    let _ = write!(s, "{first}");
    if last != first {
        let _ = write!(s, "-{last}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_conntrack::CtHelper;
    use std::sync::Arc;

    fn text(ct: CtAction) -> String {
        crate::format_actions(&[Action::Ct(Arc::new(ct))], None)
    }

    #[test]
    fn as_open_vswitch_prints_them() {
        assert_eq!(text(CtAction::default()), "ct");
        let all = CtAction {
            commit: true,
            zone: 7,
            mark: Some((0, 0xff)),
            label: Some((0x10, u128::MAX << 64)),
            helper: Some(CtHelper::Tftp),
            timeout: Some("3".into()),
            nat: Some(CtNat::default()),
            ..CtAction::default()
        };
        assert_eq!(
            text(all),
            "ct(commit,zone=7,mark=0/0xff,label=0x10/0xffffffffffffffff0000000000000000,helper=tftp,timeout=3,nat)"
        );
        let forced = CtAction {
            commit: true,
            force: true,
            label: Some((0, u128::MAX)),
            ..CtAction::default()
        };
        assert_eq!(text(forced), "ct(force_commit,label=0)");
    }

    #[test]
    fn ranges_name_what_differs() {
        let nat = |range| {
            text(CtAction {
                nat: Some(CtNat { new: Some(range) }),
                ..CtAction::default()
            })
        };
        let address = |a: &str, b: &str| Some((a.parse().unwrap(), b.parse().unwrap()));
        let range = NatRange {
            end: NatEnd::Src,
            addresses: address("10.0.0.1", "10.0.0.1"),
            ports: Some((5, 5)),
            how: NatHow::Random,
            persistent: true,
        };
        assert_eq!(nat(range), "ct(nat(src=10.0.0.1:5,persistent,random))");
        let mut v6 = NatRange {
            end: NatEnd::Dst,
            addresses: address("fc00::1", "fc00::2"),
            ports: Some((5, 9)),
            how: NatHow::Hash,
            persistent: false,
        };
        assert_eq!(nat(v6), "ct(nat(dst=[fc00::1]-[fc00::2]:5-9,hash))");
        (v6.ports, v6.how) = (None, NatHow::Any);
        assert_eq!(nat(v6), "ct(nat(dst=fc00::1-fc00::2))");
        v6.addresses = None;
        assert_eq!(nat(v6), "ct(nat(dst))");
    }
}
