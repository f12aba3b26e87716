//! `bond/*` and `lacp/*`.

use super::Commands;
use crate::reconcile::parse_mac;
use heddle_daemon::unixctl::Reply;
use heddle_ofproto::bond::slb_bucket;

pub(super) fn register(c: &Commands<'_>) {
    c.add("bond/list", "", (0, 0), |s, _| Ok(s.ofproto.bonds().list()));
    c.add("bond/show", "[port]", (0, 1), |s, args| {
        reply(s.ofproto.bonds().show(args.first().copied()))
    });
    c.add("lacp/show", "[port]", (0, 1), |s, args| {
        reply(s.ofproto.bonds().show_lacp(args.first().copied()))
    });
    c.add("lacp/show-stats", "[port]", (0, 1), |s, args| {
        reply(s.ofproto.bonds().show_lacp_stats(args.first().copied()))
    });
    c.add("bond/migrate", "port hash member", (3, 3), |s, args| match args {
        [port, hash, member] => reply(s.ofproto.bonds().migrate(port, hash, member)),
        _ => Err(String::new()),
    });
    for name in ["member", "slave"] {
        c.add(
            &format!("bond/set-active-{name}"),
            "port member",
            (2, 2),
            |s, args| {
                let [port, member] = args else {
                    return Err(String::new());
                };
                reply(s.ofproto.bonds().set_active(port, member))
            },
        );
        for (verb, enable) in [("enable", true), ("disable", false)] {
            let command = format!("bond/{verb}-{name}");
            c.add(&command, "port member", (2, 2), move |s, args| {
                let [port, member] = args else {
                    return Err(String::new());
                };
                reply(s.ofproto.bonds().set_enabled(port, member, enable))
            });
        }
    }
    c.add("bond/hash", "mac [vlan] [basis]", (1, 3), |_, args| {
        bond_hash(args)
    });
}

fn reply<T: Into<String>>(result: Result<T, &'static str>) -> Reply {
    result.map(Into::into).map_err(Into::into)
}

/// Returns the bucket (0 to 255) into which a bond hashes packets with this source address and VLAN.
fn bond_hash(args: &[&str]) -> Reply {
    let number = |i: usize, why: &str| match args.get(i) {
        None => Ok(0),
        Some(text) => text.parse::<u32>().map_err(|_| why.to_owned()),
    };
    let vlan = number(1, "invalid vlan")?;
    let basis = number(2, "invalid basis")?;
    let mac = args
        .first()
        .and_then(|text| parse_mac(text))
        .ok_or("invalid mac")?;
    let vlan = u16::try_from(vlan & 0xffff).unwrap_or(0);
    Ok(slb_bucket(mac, vlan, basis).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers and errors are those of Open vSwitch's daemon.
    #[test]
    fn buckets_of_bonds() {
        assert_eq!(bond_hash(&["00:00:00:00:00:01"]), Ok("68".into()));
        assert_eq!(bond_hash(&["00:00:00:00:00:01", "5", "7"]), Ok("87".into()));
        assert_eq!(bond_hash(&["zz"]), Err("invalid mac".into()));
        assert_eq!(bond_hash(&["00:00:00:00:00:01", "x"]), Err("invalid vlan".into()));
        assert_eq!(
            bond_hash(&["00:00:00:00:00:01", "5", "x"]),
            Err("invalid basis".into())
        );
    }
}
