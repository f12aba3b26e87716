//! Helpers of FTP and TFTP, whose control connections announce other connections.
//!
//! **Problem.** A message in a control connection announces the endpoint of a new connection. The tracker has
//! to accept the new connection as related. If addresses are translated, the message needs the translated
//! address. That text may be longer, so all later sequence numbers are shifted ([`crate::table::skew`]).
//!
//! **Shape.** Only connections that were committed with `alg` have flags for it in their records. If
//! [`CONTROL`] is set, the caller passes the packet's text to [`Conntrack::control`], which returns the
//! changes. The tracker follows sequence numbers as their senders count. Announced connections are kept in
//! [`expect`].
//!
//! **As Open vSwitch.** The helper's name is kept and shown for any port; the helper works on ports 21 (TCP)
//! and 69 (UDP). An announced connection has the mark and label of the one that announced it. It is
//! translated if it is committed with `nat`.
//!
//! **Deviations.** A message counts only from the side that sends this kind of message. A retransmitted
//! segment is rewritten as it was the first time. EPRT and EPSV count over IPv4, too. Expectations are
//! bounded and expire.

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

/// Maximum number of payload bytes of a segment that [`Conntrack::control`] reads.
pub const LOOK: usize = ftp::LOOK;

/// A packet of a control connection, to be passed to [`Conntrack::control`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    pub(crate) parent: Parent,
    pub(crate) reply: bool,
    /// This `ct` translates the packet.
    pub(crate) translated: bool,
}

/// Changes to a packet of a control connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Edit {
    /// Shift to add to the sequence number.
    pub seq: i32,
    /// Shift to add to the acknowledgement number, if the packet has one.
    pub ack: i32,
    /// Range of the payload to replace, and the new text.
    pub replace: Option<(Range<usize>, String)>,
    /// The packet is invalid: its message is malformed, announces another host, or cannot be rewritten.
    pub malformed: bool,
}

/// Returns the helper whose well-known port the tuple has.
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
    fn hash_of_key(&self, key: &Key) -> u32 {
        let t = Tuple {
            src: Endpoint { addr: key.src, l4: 0 },
            dst: Endpoint {
                addr: key.dst,
                l4: key.port,
            },
            proto: key.proto,
            ipv6: key.ipv6,
        };
        self.hash(&t, key.zone).0
    }
    fn record_of(&self, now_ms: u64, p: Parent) -> Option<&Record> {
        let r = self.slots.get(p.number)?;
        (r.generation() == p.generation && r.is_alive(now_ms)).then_some(r)
    }
    /// Returns the expectation that a new connection matches.
    #[inline]
    pub(crate) fn expected(&self, now_ms: u64, t: &Tuple, zone: u16) -> Option<Expectation> {
        if self.expectations.is_empty() {
            return None;
        }
        let key = Key::of(t, zone);
        let lives = |p| self.record_of(now_ms, p).is_some();
        self.expectations.find(now_ms, key, self.hash_of_key(&key), lives)
    }
    /// The connections that one connection has announced.
    pub(crate) fn announced(&self, parent: Parent) -> Vec<(Key, Expectation)> {
        if self.expectations.is_empty() {
            return Vec::new();
        }
        self.expectations.of_parent(parent)
    }
    /// Expects a connection to `port` of the endpoint that sent the packet. `own_port`: the port that this
    /// endpoint itself uses, if it may be another one.
    pub(crate) fn expect(&self, now_ms: u64, c: Control, r: &Record, port: u32, own_port: Option<u32>) {
        let (orig, back, dnat) = (r.orig(), r.reply(), r.flags() & DNAT != 0);
        // Source and destination as the peer sees them. Then the end to translate, and its address as the
        // announcing endpoint sees it.
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
        let lives = |p| self.record_of(now_ms, p).is_some();
        self.expectations
            .add(now_ms, key, self.hash_of_key(&key), e, lives);
    }
    /// Expects the reply to a TFTP request, which comes from another port.
    #[cold]
    pub(crate) fn expect_tftp(&self, now_ms: u64, c: Control, r: &Record) {
        let (orig, back) = (r.orig(), r.reply());
        self.expect(now_ms, c, r, back.dst.l4, Some(orig.src.l4));
    }

    /// Reads a packet of a control connection. Expects the connection that it announces, and returns the
    /// changes to the packet. `seq`, `ack`: its own numbers; `payload`: the first [`LOOK`] bytes of its
    /// payload.
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
        // The announcing endpoint's address, as it sees it and as the peer sees it.
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
