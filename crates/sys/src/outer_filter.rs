//! Programs that choose the outer packets of tunnels among all packets that a device receives.
//!
//! **Problem.** A device that belongs to no bridge carries the host's own traffic and, among it, the outer
//! packets of tunnels. The switch takes the latter only. Another program of the host may have tunnels on the
//! same UDP port, with other addresses, and keeps its packets.
//!
//! **Two users.** A packet socket with this filter gets only such packets. A classifier with the same filter
//! ([`crate::ingress`]) keeps these packets from the host's stack.
//!
//! **Costs.** A packet of another protocol costs about twenty instructions. Addresses are looked up in a
//! search tree. If a filter has too many addresses for the kernel, it has no program. The socket and the
//! classifier then each take [`OuterFilter::coarse`].
//!
//! **Fragments.** The first fragment of an IPv4 packet belongs to the tunnel, so the host does not reply to
//! it. Later ones have no ports, and are the host's, which drops them in silence. All fragments of an IPv6
//! packet are the host's, because their next header is the fragment header.

use crate::cbpf::{
    AND, Assembler, JEQ, JGE, JSET, LD_B_ABS, LD_H_ABS, LD_H_IND, LD_IMM, LD_MEM, LD_W_ABS, LDX_MSH, Label,
    Op, PACKET_TYPE, RET, ST, TAX, VID_MASK, VLAN_TAG, VLAN_TAG_PRESENT, XOR_X,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Offsets in a frame, bytes.
const ETHERTYPE: u32 = 12;
const V4: u32 = 14;
const V4_FRAGMENT: u32 = V4 + 6;
const V4_PROTOCOL: u32 = V4 + 9;
const V4_SOURCE: u32 = V4 + 12;
const V4_DESTINATION: u32 = V4 + 16;
/// The transport's destination port, behind the IPv4 header.
const V4_PORT: u32 = V4 + 2;
const V6_NEXT_HEADER: u32 = 14 + 6;
const V6_SOURCE: u32 = 14 + 8;
const V6_DESTINATION: u32 = 14 + 24;
const V6_PORT: u32 = 14 + 40 + 2;

const ETHERTYPE_V4: u32 = 0x0800;
const ETHERTYPE_V6: u32 = 0x86dd;
const FRAGMENT_OFFSET: u32 = 0x1fff;

/// Words of a program's memory: whether the destination is this host's, the protocol, the port, a hash.
const IS_LOCAL: u32 = 0;
const PROTOCOL: u32 = 1;
const PORT: u32 = 2;
const HASH: u32 = 3;

/// Addresses in a leaf of a search tree: a conditional jump goes over all of them.
const LEAF: usize = 16;

/// Outer packets of some tunnels, which have protocol, port and local address in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OuterGroup {
    /// IPv6 packets, instead of IPv4.
    pub v6: bool,
    /// IP protocol.
    pub protocol: u8,
    /// Destination port; 0: the protocol has none.
    pub port: u16,
    /// Destination address; `None`: any address of this host.
    pub local: Option<IpAddr>,
    /// Source addresses; `None`: any.
    pub remotes: Option<Vec<IpAddr>>,
}

/// See the module's text.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OuterFilter {
    /// The packets.
    pub groups: Vec<OuterGroup>,
    /// Addresses of this host.
    pub locals: Vec<IpAddr>,
}

/// A program's results.
#[derive(Clone, Copy)]
pub(crate) struct ReturnCodes {
    pub(crate) taken: u32,
    pub(crate) others: u32,
}

impl OuterFilter {
    /// The same packets from any source address.
    #[must_use]
    pub fn coarse(&self) -> Self {
        let mut coarse = self.clone();
        coarse.groups.iter_mut().for_each(|g| g.remotes = None);
        coarse.groups.dedup();
        coarse
    }

    /// The program, whose first instruction loads `owner`. `None`: it is too long.
    pub(crate) fn program(&self, owner: u32, codes: ReturnCodes) -> Option<Vec<Op>> {
        let mut a = Assembler::default();
        let (v4, v6, taken, others) = (a.label(), a.label(), a.label(), a.label());
        a.op(LD_IMM, owner);
        a.op(LD_B_ABS, PACKET_TYPE);
        a.jump_unless(JEQ, 0, others);
        // Frames of a VLAN belong to the device of the VLAN, and come by that. A tag without a VLAN id has
        // only a priority, and the frame is the device's (IEEE 802.1Q, 9.6).
        let untagged = a.label();
        a.op(LD_W_ABS, VLAN_TAG_PRESENT);
        a.jump_if(JEQ, 0, untagged);
        a.op(LD_W_ABS, VLAN_TAG);
        a.op(AND, VID_MASK);
        a.jump_unless(JEQ, 0, others);
        a.here(untagged);
        a.op(LD_IMM, 0);
        a.op(ST, PORT);
        a.op(LD_H_ABS, ETHERTYPE);
        a.jump_if(JEQ, ETHERTYPE_V4, v4);
        a.jump_if(JEQ, ETHERTYPE_V6, v6);
        a.jump(others);
        for (at, is_v6) in [(v4, false), (v6, true)] {
            a.here(at);
            self.family(&mut a, is_v6, taken, others);
        }
        a.here(taken);
        a.op(RET, codes.taken);
        a.here(others);
        a.op(RET, codes.others);
        a.finish()
    }

    /// The part for packets of IPv4 or IPv6.
    fn family(&self, a: &mut Assembler, v6: bool, taken: Label, others: Label) {
        let groups: Vec<&OuterGroup> = self.groups.iter().filter(|g| g.v6 == v6).collect();
        if groups.is_empty() {
            return a.jump(others);
        }
        if v6 {
            a.op(LD_B_ABS, V6_NEXT_HEADER);
        } else {
            a.op(LD_H_ABS, V4_FRAGMENT);
            a.jump_if(JSET, FRAGMENT_OFFSET, others);
            a.op(LDX_MSH, V4);
            a.op(LD_B_ABS, V4_PROTOCOL);
        }
        a.op(ST, PROTOCOL);
        let is_known = a.label();
        let mut protocols: Vec<(u8, Vec<u16>)> = Vec::new();
        for group in &groups {
            match protocols
                .iter_mut()
                .find(|(protocol, _)| *protocol == group.protocol)
            {
                Some((_, ports)) if ports.contains(&group.port) => {}
                Some((_, ports)) => ports.push(group.port),
                None => protocols.push((group.protocol, vec![group.port])),
            }
        }
        for (protocol, ports) in protocols {
            let next = a.label();
            a.jump_unless(JEQ, protocol.into(), next);
            if ports == [0] {
                a.jump(is_known);
            } else {
                let (load, at) = if v6 {
                    (LD_H_ABS, V6_PORT)
                } else {
                    (LD_H_IND, V4_PORT)
                };
                a.op(load, at);
                a.op(ST, PORT);
                ports
                    .iter()
                    .for_each(|port| a.jump_if(JEQ, (*port).into(), is_known));
                a.jump(others);
            }
            a.here(next);
        }
        a.jump(others);
        a.here(is_known);
        if groups.iter().any(|g| g.local.is_none()) {
            let (yes, no, end) = (a.label(), a.label(), a.label());
            let at = if v6 { V6_DESTINATION } else { V4_DESTINATION };
            member(a, &self.locals, v6, at, yes, no);
            a.here(yes);
            a.op(LD_IMM, 1);
            a.jump(end);
            a.here(no);
            a.op(LD_IMM, 0);
            a.here(end);
            a.op(ST, IS_LOCAL);
        }
        for group in groups {
            let next = a.label();
            a.op(LD_MEM, PROTOCOL);
            a.jump_unless(JEQ, group.protocol.into(), next);
            if group.port != 0 {
                a.op(LD_MEM, PORT);
                a.jump_unless(JEQ, group.port.into(), next);
            }
            match group.local {
                None => {
                    a.op(LD_MEM, IS_LOCAL);
                    a.jump_unless(JEQ, 1, next);
                }
                Some(IpAddr::V4(ip)) => {
                    a.op(LD_W_ABS, V4_DESTINATION);
                    a.jump_unless(JEQ, ip.to_bits(), next);
                }
                Some(IpAddr::V6(ip)) => {
                    for (word, at) in words(ip).into_iter().zip((V6_DESTINATION..).step_by(4)) {
                        a.op(LD_W_ABS, at);
                        a.jump_unless(JEQ, word, next);
                    }
                }
            }
            match &group.remotes {
                None => a.jump(taken),
                Some(remotes) => {
                    let at = if v6 { V6_SOURCE } else { V4_SOURCE };
                    member(a, remotes, v6, at, taken, next);
                }
            }
            a.here(next);
        }
        a.jump(others);
    }
}

fn words(ip: Ipv6Addr) -> [u32; 4] {
    let bits = ip.to_bits();
    #[allow(clippy::cast_possible_truncation)] // words
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

fn hash(ip: Ipv6Addr) -> u32 {
    words(ip).iter().fold(0, |a, b| a ^ b)
}

/// Jumps to `yes` if the address at `at` of the frame is one of `set`, else to `no`.
fn member(a: &mut Assembler, set: &[IpAddr], v6: bool, at: u32, yes: Label, no: Label) {
    if v6 {
        let mut all: Vec<(u32, Ipv6Addr)> = set.iter().filter_map(|ip| v6_of(*ip)).collect();
        all.sort_unstable();
        all.dedup();
        for (n, place) in (at..).step_by(4).take(4).enumerate() {
            a.op(LD_W_ABS, place);
            if n > 0 {
                a.op(XOR_X, 0);
            }
            a.op(TAX, 0);
        }
        a.op(ST, HASH);
        let keys: Vec<u32> = all.iter().map(|(hash, _)| *hash).collect();
        tree(a, &keys, &mut |a, from, to| {
            for (hash, ip) in &all[from..to] {
                a.op(LD_MEM, HASH);
                a.skip(JEQ, *hash, 0, 7);
                // The fourth word follows from the hash.
                for (n, word) in words(*ip).into_iter().take(3).enumerate() {
                    a.op(LD_W_ABS, at + [0, 4, 8][n]);
                    a.skip(JEQ, word, 0, [5, 3, 1][n]);
                }
                a.jump(yes);
            }
            a.jump(no);
        });
        return;
    }
    let mut all: Vec<u32> = set.iter().filter_map(|ip| v4_of(*ip)).collect();
    all.sort_unstable();
    all.dedup();
    a.op(LD_W_ABS, at);
    tree(a, &all, &mut |a, from, to| {
        let mut left = to - from;
        for address in &all[from..to] {
            // Over the rest of the addresses and the jump to `no`.
            a.skip(JEQ, *address, u8::try_from(left).unwrap_or(u8::MAX), 0);
            left -= 1;
        }
        a.jump(no);
        a.jump(yes);
    });
}

fn v4_of(ip: IpAddr) -> Option<u32> {
    match ip {
        IpAddr::V4(ip) => Some(Ipv4Addr::to_bits(ip)),
        IpAddr::V6(_) => None,
    }
}

fn v6_of(ip: IpAddr) -> Option<(u32, Ipv6Addr)> {
    match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some((hash(ip), ip)),
    }
}

/// A search tree over sorted keys; the accumulator has the key to look up. `leaf` writes the comparisons with
/// a range of keys.
fn tree(a: &mut Assembler, keys: &[u32], leaf: &mut dyn FnMut(&mut Assembler, usize, usize)) {
    fn branch(
        a: &mut Assembler,
        keys: &[u32],
        (from, to): (usize, usize),
        leaf: &mut dyn FnMut(&mut Assembler, usize, usize),
    ) {
        // Equal keys stay together.
        let middle = from + (to - from) / 2;
        let key = keys.get(middle).copied().unwrap_or_default();
        let split = from + keys[from..to].partition_point(|k| *k < key);
        if to - from <= LEAF || split == from {
            return leaf(a, from, to);
        }
        let upper = a.label();
        a.jump_if(JGE, key, upper);
        branch(a, keys, (from, split), leaf);
        a.here(upper);
        branch(a, keys, (split, to), leaf);
    }
    branch(a, keys, (0, keys.len()), leaf);
}

#[cfg(test)]
mod tests;
