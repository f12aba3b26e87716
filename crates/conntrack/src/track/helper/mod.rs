//! Helpers: FTP and TFTP, whose connections announce others.
//!
//! **Problem.** A message in one connection says where another one will come from. That one is to be let in
//! as related; where addresses are translated, the address in the message is to be another one, which may be
//! longer, so that all sequence numbers behind it are shifted ([`crate::table::skew`]).
//!
//! **Shape.** Only connections that were committed with `alg` have flags for it in their records: [`CONTROL`]
//! asks whoever has the packet to come back with its text ([`Conntrack::control`]), and says what to replace.
//! The tracker follows sequence numbers as their senders count. What is announced is kept in [`expect`].
//!
//! **As Open vSwitch**: the helper's name is kept and shown whatever the port; it is followed on ports 21
//! (TCP) and 69 (UDP). An announced connection has the mark and label of the one that announced it, and is
//! translated where it is committed with `nat`. **Not as there**: a message counts only from the side that
//! sends such; segments that are sent again are rewritten as the first time; EPRT and EPSV count over IPv4
//! too; expectations are bounded and expire.

mod expect;
mod ftp;
#[cfg(test)]
mod tests;

pub(crate) use expect::{Expectation, Expectations, Key, Parent};

use crate::action::{CtHelper, NatEnd};
use crate::table::record::{CONTROL, DNAT, FTP, Record, TFTP};
use crate::track::Conntrack;
use crate::tuple::{Endpoint, Tuple, bits, ip};
use ftp::Side;
use heddle_wire::ip::proto;
use std::ops::Range;

const FTP_PORT: u32 = 21;
const TFTP_PORT: u32 = 69;

/// Bytes of a segment's payload that [`Conntrack::control`] wants to see.
pub const LOOK: usize = ftp::LOOK;

/// A packet of a connection that announces others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    pub(crate) parent: Parent,
    pub(crate) reply: bool,
    /// It is translated here.
    pub(crate) translated: bool,
}

/// What is to be done to such a packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Edit {
    /// To be added to its sequence number.
    pub seq: i32,
    /// To be added to its acknowledgement, if it has one.
    pub ack: i32,
    /// Bytes of the payload to be replaced, and by what.
    pub replace: Option<(Range<usize>, String)>,
    /// It makes no sense: the packet is invalid.
    pub malformed: bool,
}

/// Which helper's port a tuple has.
fn by_port(t: &Tuple) -> Option<CtHelper> {
    match t.proto {
        proto::TCP if t.dst.l4 == FTP_PORT || t.src.l4 == FTP_PORT => Some(CtHelper::Ftp),
        proto::UDP if t.dst.l4 == TFTP_PORT => Some(CtHelper::Tftp),
        _ => None,
    }
}

/// Flags of a new connection's record.
pub(crate) fn flags(helper: Option<CtHelper>, orig: &Tuple, reply: &Tuple, related: bool) -> u64 {
    let Some(helper) = helper else { return 0 };
    if by_port(orig).is_some_and(|other| other != helper) {
        return 0;
    }
    let (name, port, l4) = match helper {
        CtHelper::Ftp => (FTP, FTP_PORT, proto::TCP),
        CtHelper::Tftp => (TFTP, TFTP_PORT, proto::UDP),
    };
    let to_it = orig.proto == l4 && [orig.dst.l4, reply.src.l4].contains(&port);
    name | if to_it && !related { CONTROL } else { 0 }
}

/// The helper of a record with these flags.
pub(crate) fn of_flags(flags: u64) -> Option<CtHelper> {
    match flags & (FTP | TFTP) {
        0 => None,
        f if f & FTP != 0 => Some(CtHelper::Ftp),
        _ => Some(CtHelper::Tftp),
    }
}

impl Conntrack {
    fn place(&self, key: Key) -> (Key, u32) {
        let t = Tuple {
            src: Endpoint { addr: key.src, l4: 0 },
            dst: Endpoint {
                addr: key.dst,
                l4: key.port,
            },
            proto: key.proto,
            ipv6: key.ipv6,
        };
        (key, self.hash(&t, key.zone).0)
    }
    fn record_of(&self, now_ms: u64, p: Parent) -> Option<&Record> {
        let r = self.slots.get(p.number)?;
        (r.generation() == p.generation && r.is_alive(now_ms)).then_some(r)
    }
    /// The expectation that a new connection meets.
    #[inline]
    pub(crate) fn expected(&self, now_ms: u64, t: &Tuple, zone: u16) -> Option<Expectation> {
        if self.expectations.is_empty() {
            return None;
        }
        let place = self.place(Key::of(t, zone));
        self.expectations
            .find(now_ms, place, |p| self.record_of(now_ms, p).is_some())
    }
    /// Expects a connection to `port` of the end that the packet at hand came from, whose own port that is
    /// or, where `translated`, becomes.
    fn expect(&self, now_ms: u64, c: Control, r: &Record, port: u32, own_port: Option<u32>) {
        let (orig, back, dnat) = (r.orig(), r.reply(), r.flags() & DNAT != 0);
        // As the other end sees both; and what is another one for the end that announces.
        let (src, dst, (end, address)) = if c.reply {
            let nat = if dnat {
                (NatEnd::Dst, back.src.addr)
            } else {
                (NatEnd::Src, back.dst.addr)
            };
            (orig.src.addr, orig.dst.addr, nat)
        } else {
            let nat = if dnat {
                (NatEnd::Src, orig.dst.addr)
            } else {
                (NatEnd::Dst, orig.src.addr)
            };
            (back.src.addr, back.dst.addr, nat)
        };
        let key = Key {
            src,
            dst,
            port,
            proto: orig.proto,
            ipv6: orig.ipv6,
            zone: r.zone(),
        };
        let e = Expectation {
            parent: c.parent,
            orig,
            mark: r.mark(),
            label: r.label(),
            end,
            address,
            port: own_port.filter(|_| end == NatEnd::Dst),
        };
        self.expectations.add(now_ms, self.place(key), e, |p| {
            self.record_of(now_ms, p).is_some()
        });
    }
    /// A request of TFTP: the answer comes from another port.
    #[cold]
    pub(crate) fn expect_tftp(&self, now_ms: u64, c: Control, r: &Record) {
        let (orig, back) = (r.orig(), r.reply());
        self.expect(now_ms, c, r, back.dst.l4, Some(orig.src.l4));
    }

    /// What is to be done to a packet of a connection that announces others. `seq`, `ack`: as they stand in
    /// it; `payload`: the first [`LOOK`] bytes of its payload.
    #[cold]
    pub fn control(&self, now_ms: u64, c: Control, seq: u32, ack: u32, payload: &[u8]) -> Edit {
        let mut edit = Edit::default();
        let Some(r) = self.record_of(now_ms, c.parent) else {
            return edit;
        };
        let (own, others) = (r.skew(c.reply), r.skew(!c.reply));
        if c.translated {
            (edit.seq, edit.ack) = (own.of_sent(seq), others.of_received(ack));
        }
        if r.flags() & FTP == 0 {
            return edit;
        }
        let (orig, back) = (r.orig(), r.reply());
        let side = if c.reply { Side::Server } else { Side::Client };
        let message = match ftp::read(side, orig.ipv6, payload) {
            Ok(Some(m)) => m,
            Ok(None) => return edit,
            Err(ftp::Malformed) => {
                edit.malformed = true;
                return edit;
            }
        };
        // Its own address, as it knows it or as others do.
        let (mine, seen) = match side {
            Side::Client => (orig.src.addr, back.dst.addr),
            Side::Server => (back.src.addr, orig.dst.addr),
        };
        if let Some((range, address, form)) = message.address {
            let said = bits(address);
            if said != mine && said != seen {
                edit.malformed = true;
                return edit;
            }
            if c.translated && said != seen {
                let text = ftp::write(ip(seen, orig.ipv6), form);
                let change = i32::try_from(text.len()).unwrap_or(0) - i32::try_from(range.len()).unwrap_or(0);
                if !r.skew_more(c.reply, seq, change) {
                    edit.malformed = true;
                    return edit;
                }
                edit.replace = Some((range, text));
            }
        }
        self.expect(now_ms, c, r, message.port.into(), None);
        edit
    }
}
