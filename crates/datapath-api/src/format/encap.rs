//! Actions that push, pop and set headers in front of the whole packet.

use super::{lse, mac};
use crate::action::{Action, NshHeader};
use heddle_flow::odp::nsh_fields;
use heddle_wire::nsh::{MD_TYPE_1, MD_TYPE_2};
use std::fmt::Write;

pub(super) fn action(s: &mut String, a: &Action) {
    // Writing to a string cannot fail.
    let _ = match a {
        Action::AddMpls { lse: l, ethertype } => {
            s.push_str("add_mpls(");
            lse(s, *l);
            write!(s, ",eth_type=0x{ethertype:x})")
        }
        Action::PushEth { src, dst } => write!(s, "push_eth(src={},dst={})", mac(*src), mac(*dst)),
        Action::PopEth => s.write_str("pop_eth"),
        Action::PushNsh(header) => push_nsh(s, header),
        Action::PopNsh => s.write_str("pop_nsh()"),
        Action::SetNsh(m) => write!(s, "set(nsh({}))", nsh_fields(&m.value, &m.mask)),
        _ => Ok(()),
    };
}

fn push_nsh(s: &mut String, header: &NshHeader) -> std::fmt::Result {
    let k = &header.fields;
    write!(
        s,
        "push_nsh(flags={},ttl={},mdtype={},np={},spi={:#x},si={}",
        k.flags,
        k.ttl,
        k.mdtype,
        k.np,
        k.spi(),
        k.si()
    )?;
    match k.mdtype {
        MD_TYPE_1 => write!(s, ",c1={:#x},c2={:#x},c3={:#x},c4={:#x}", k.c1, k.c2, k.c3, k.c4)?,
        MD_TYPE_2 => {
            s.write_str(",md2=")?;
            hex_bytes(s, &header.options)?;
        }
        _ => s.write_str(",<error: unknown mdtype>")?,
    }
    s.write_char(')')
}

/// One number, without leading zeros.
fn hex_bytes(s: &mut String, bytes: &[u8]) -> std::fmt::Result {
    let start = bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len());
    match bytes.get(start..) {
        Some([first, rest @ ..]) => {
            write!(s, "{first:#x}")?;
            rest.iter().try_for_each(|b| write!(s, "{b:02x}"))
        }
        _ => s.write_char('0'),
    }
}
