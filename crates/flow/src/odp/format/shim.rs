//! Headers between Ethernet and IP: label stacks and the network service header.

use super::Writer;
use crate::key::{FlowKey, Nsh};
use core::fmt;

pub(super) fn mpls(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey) -> fmt::Result {
    let nonzero = || k.mpls_lse.iter().filter(|l| **l != 0).count();
    let n = k
        .mpls_lse
        .iter()
        .position(|l| l & 0x100 != 0)
        .map_or_else(nonzero, |i| i + 1);
    if n == 0 {
        // A label stack that was cut off before its first entry; Open vSwitch leaves the parenthesis open.
        if w.verbose {
            w.comma()?;
            w.f.write_str("mpls((bad key length 0)")?;
        }
        return Ok(());
    }
    let entries = || k.mpls_lse.iter().zip(&m.mpls_lse).take(n);
    let exact = entries().all(|(_, m)| *m == u32::MAX);
    w.attr("mpls", entries().any(|(_, m)| *m != 0), |w| {
        for (v, m) in entries() {
            w.comma()?;
            let part = |x: &u32| (x >> 12, x >> 9 & 7, x & 0xff, x >> 8 & 1);
            let ((l, tc, ttl, b), (lm, tcm, ttlm, bm)) = (part(v), part(m));
            if exact {
                write!(w.f, "label={l},tc={tc},ttl={ttl},bos={b}")?;
            } else {
                write!(
                    w.f,
                    "label={l}/{lm:#x},tc={tc}/{tcm:x},ttl={ttl}/{ttlm:#x},bos={b}/{bm:x}"
                )?;
            }
        }
        Ok(())
    })
}

impl Writer<'_> {
    /// Fields of a network service header have a form of their own. Even where all fields are shown, one is
    /// left out if none of its bits count.
    fn nsh_byte(&mut self, name: &str, v: u8, m: u8) -> fmt::Result {
        match m {
            0 => Ok(()),
            u8::MAX => self.field(name, false, true, v, 0),
            _ => self.field(
                name,
                false,
                false,
                format_args!("{v:#04x}"),
                format_args!("{m:#04x}"),
            ),
        }
    }
    fn nsh_word(&mut self, name: &str, v: u32, m: u32, all: u32) -> fmt::Result {
        if m == 0 {
            return Ok(());
        }
        self.field(
            name,
            false,
            m == all,
            format_args!("{v:#x}"),
            format_args!("{m:#010x}"),
        )
    }
}

/// The fields of a network service header that count, in the form of keys and of actions that set them.
pub fn nsh_fields(value: &Nsh, mask: &Nsh) -> String {
    let mut text = String::new();
    let mut w = Writer {
        f: &mut text,
        verbose: false,
        first: true,
    };
    // Writing to a string does not fail.
    let _ = nsh(&mut w, value, mask);
    text
}

pub(super) fn nsh(w: &mut Writer<'_>, k: &Nsh, m: &Nsh) -> fmt::Result {
    w.nsh_byte("flags", k.flags, m.flags)?;
    w.nsh_byte("ttl", k.ttl, m.ttl)?;
    w.nsh_byte("mdtype", k.mdtype, m.mdtype)?;
    w.nsh_byte("np", k.np, m.np)?;
    w.nsh_word("spi", k.spi(), m.spi(), u32::MAX >> 8)?;
    w.nsh_byte("si", k.si(), m.si())?;
    for (name, (v, m)) in ["c1", "c2", "c3", "c4"]
        .into_iter()
        .zip(k.context().into_iter().zip(m.context()))
    {
        w.nsh_word(name, v, m, u32::MAX)?;
    }
    Ok(())
}
