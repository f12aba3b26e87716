//! Hashes of keys that OpenFlow actions and select groups choose by.
//!
//! **Choice of the functions.** Other machines see a choice that is made by such a hash: the link of a flow
//! must not change when one switch replaces another. So these are Open vSwitch's functions over the same
//! bytes in the same order. Words are hashed by MurmurHash3's 32-bit steps (Austin Appleby, public domain).
//! The hashes that Nicira's extensions define use lookup3 (Bob Jenkins, public domain). Numbers of a header
//! are hashed in network order, read as little-endian words.
//!
//! They are not keyed: a sender can choose packets that collide. Caches use another hash.

use crate::key::{FlowKey, FlowMask, Vlan, frag};

/// EtherTypes and protocols that hashes decide by.
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

/// Adds a word (MurmurHash3's body).
#[inline]
pub fn add(hash: u32, word: u32) -> u32 {
    let word = word
        .wrapping_mul(0xcc9e_2d51)
        .rotate_left(15)
        .wrapping_mul(0x1b87_3593);
    (hash ^ word)
        .rotate_left(13)
        .wrapping_mul(5)
        .wrapping_add(0xe654_6b64)
}

/// Adds two words, the lower one first.
#[allow(clippy::cast_possible_truncation)] // the halves are wanted
pub fn add64(hash: u32, words: u64) -> u32 {
    add(add(hash, words as u32), (words >> 32) as u32)
}

/// Mixes all bits (MurmurHash3's end).
#[inline]
pub fn finish(hash: u32, last: u32) -> u32 {
    let mut h = hash ^ last;
    h = (h ^ h >> 16).wrapping_mul(0x85eb_ca6b);
    h = (h ^ h >> 13).wrapping_mul(0xc2b2_ae35);
    h ^ h >> 16
}

/// Hash of two words.
pub fn two_words(x: u32, y: u32) -> u32 {
    finish(add(add(x, 0), y), 8)
}

/// Hash of 64 bits.
pub fn word64(x: u64) -> u32 {
    finish(add64(0, x), 8)
}

/// Hash of bytes.
pub fn bytes(b: &[u8], basis: u32) -> u32 {
    let (words, rest) = b.as_chunks::<4>();
    let mut hash = words.iter().fold(basis, |h, w| add(h, u32::from_le_bytes(*w)));
    if !rest.is_empty() {
        hash = add(hash, tail(rest));
    }
    finish(hash, u32::try_from(b.len()).unwrap_or(u32::MAX))
}

/// Up to four bytes as a word.
fn tail(b: &[u8]) -> u32 {
    b.iter().rev().fold(0, |v, x| v << 8 | u32::from(*x))
}

/// lookup3 of bytes.
pub fn jenkins(b: &[u8], basis: u32) -> u32 {
    let n = u32::try_from(b.len()).unwrap_or(u32::MAX);
    let start = 0xdead_beef_u32.wrapping_add(n).wrapping_add(basis);
    let mut s = [start; 3];
    let (blocks, rest) = b.as_chunks::<12>();
    for block in blocks {
        add_block(&mut s, block);
        mix(&mut s);
    }
    if !rest.is_empty() {
        add_block(&mut s, rest);
        last(&mut s);
    }
    s[2]
}

fn add_block(s: &mut [u32; 3], b: &[u8]) {
    for (s, w) in s.iter_mut().zip(b.chunks(4)) {
        *s = s.wrapping_add(tail(w));
    }
}

fn mix(s: &mut [u32; 3]) {
    // The word that each step changes, and the word that it is changed by, rotate.
    for (i, rot) in [4, 6, 8, 16, 19, 4].into_iter().enumerate() {
        let (x, y, z) = (i % 3, (i + 2) % 3, (i + 1) % 3);
        s[x] = s[x].wrapping_sub(s[y]) ^ s[y].rotate_left(rot);
        s[y] = s[y].wrapping_add(s[z]);
    }
}

fn last(s: &mut [u32; 3]) {
    for (i, rot) in [14, 11, 25, 16, 4, 14, 24].into_iter().enumerate() {
        let (x, y) = ((i + 2) % 3, (i + 1) % 3);
        s[x] = (s[x] ^ s[y]).wrapping_sub(s[y].rotate_left(rot));
    }
}

/// A 32-bit number of a header as a word.
fn wire32(v: u32) -> u32 {
    u32::from_le_bytes(v.to_be_bytes())
}
/// A 16-bit number of a header as a word.
fn wire16(v: u16) -> u32 {
    u16::from_le_bytes(v.to_be_bytes()).into()
}
fn xor16(a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
    (u128::from_ne_bytes(a) ^ u128::from_ne_bytes(b)).to_ne_bytes()
}
fn add_address(hash: u32, a: [u8; 16]) -> u32 {
    let (words, _) = a.as_chunks::<4>();
    words.iter().fold(hash, |h, w| add(h, u32::from_le_bytes(*w)))
}
fn macs(k: &FlowKey) -> [u8; 6] {
    std::array::from_fn(|i| k.dl_src[i] ^ k.dl_dst[i])
}
fn vids(k: &FlowKey) -> u16 {
    k.vlans.iter().fold(0, |v, tag| v ^ tag.tci & Vlan::VID_MASK)
}

/// Addresses, protocol and ports, each direction its own.
pub fn five_tuple(k: &FlowKey, basis: u32) -> u32 {
    /// Arbitrary number that ends the hash, as in Open vSwitch.
    const LAST: u32 = 42;
    let mut h = basis;
    match k.dl_type {
        IPV6 => h = add_address(add_address(h, k.ipv6_src), k.ipv6_dst),
        IPV4 | ARP => h = add(add(h, wire32(k.nw_src)), wire32(k.nw_dst)),
        _ => return finish(h, LAST),
    }
    h = add(h, k.nw_proto.into());
    if matches!(k.nw_proto, TCP | UDP | SCTP | ICMP | ICMPV6) {
        h = add(h, wire16(k.tp_src) | wire16(k.tp_dst) << 16);
    }
    finish(h, LAST)
}

/// Addresses, protocol and TCP or SCTP ports, both directions alike; UDP ports with `udp`. L2 where there is
/// no IP.
pub fn symmetric_l3l4(k: &FlowKey, basis: u32, udp: bool) -> u32 {
    let mut h = basis;
    match k.dl_type {
        IPV4 => h = add(h, wire32(k.nw_src ^ k.nw_dst)),
        IPV6 => h = add_address(h, xor16(k.ipv6_src, k.ipv6_dst)),
        _ => return symmetric_l2(k, basis),
    }
    h = add(h, k.nw_proto.into());
    let ports = matches!(k.nw_proto, TCP | SCTP) || udp && k.nw_proto == UDP;
    if ports && k.nw_frag & frag::MASK == 0 {
        h = add(h, wire16(k.tp_src ^ k.tp_dst));
    }
    finish(h, basis)
}

/// EtherType, VLAN and Ethernet addresses, both directions alike. Packets without an Ethernet header have 0.
pub fn symmetric_l2(k: &FlowKey, basis: u32) -> u32 {
    if k.packet_type != 0 {
        return 0;
    }
    let [a, b, c, d, e, f] = macs(k);
    let mut h = add(basis, wire16(k.dl_type) | wire16(vids(k)) << 16);
    h = add(h, u32::from_le_bytes([a, b, c, d]));
    h = add(h, u32::from_le_bytes([e, f, 0, 0]));
    finish(h, basis)
}

/// L2 to L4, both directions alike, without UDP ports.
pub fn symmetric_l4(k: &FlowKey, basis: u32) -> u32 {
    let mut b = [0; 32];
    let ip = matches!(k.dl_type, IPV4 | IPV6);
    if k.dl_type == IPV4 {
        b[..4].copy_from_slice(&(k.nw_src ^ k.nw_dst).to_be_bytes());
    } else if ip {
        b[..16].copy_from_slice(&xor16(k.ipv6_src, k.ipv6_dst));
    }
    b[16..18].copy_from_slice(&k.dl_type.to_be_bytes());
    b[18..20].copy_from_slice(&vids(k).to_be_bytes());
    if ip && matches!(k.nw_proto, TCP | SCTP) {
        b[20..22].copy_from_slice(&(k.tp_src ^ k.tp_dst).to_be_bytes());
    }
    b[22..28].copy_from_slice(&macs(k));
    if ip {
        b[28] = k.nw_proto;
    }
    jenkins(&b, basis)
}

/// IP addresses, both directions alike.
pub fn symmetric_l3(k: &FlowKey, basis: u32) -> u32 {
    let mut b = [0; 20];
    if k.dl_type == IPV4 {
        b[..4].copy_from_slice(&(k.nw_src ^ k.nw_dst).to_be_bytes());
    } else if k.dl_type == IPV6 {
        b[..16].copy_from_slice(&xor16(k.ipv6_src, k.ipv6_dst));
    }
    b[16..18].copy_from_slice(&k.dl_type.to_be_bytes());
    jenkins(&b, basis)
}

/// Ethernet source.
pub fn eth_src(k: &FlowKey, basis: u32) -> u32 {
    jenkins(&k.dl_src, basis)
}

/// IP source; without one, the basis.
pub fn nw_src(k: &FlowKey, basis: u32) -> u32 {
    match k.dl_type {
        IPV4 => jenkins(&k.nw_src.to_be_bytes(), basis),
        IPV6 => jenkins(&k.ipv6_src, basis),
        _ => basis,
    }
}

/// IP destination; without one, the basis.
pub fn nw_dst(k: &FlowKey, basis: u32) -> u32 {
    match k.dl_type {
        IPV4 => jenkins(&k.nw_dst.to_be_bytes(), basis),
        IPV6 => jenkins(&k.ipv6_dst, basis),
        _ => basis,
    }
}

// -- the bits that a hash of a packet like `k` looks at

/// Adds the bits of both addresses.
pub fn mask_addresses(k: &FlowKey, m: &mut FlowMask) {
    mask_nw_src(k, m);
    mask_nw_dst(k, m);
}

/// Adds the bits that [`nw_src`] hashes.
pub fn mask_nw_src(k: &FlowKey, m: &mut FlowMask) {
    match k.dl_type {
        IPV4 => m.0.nw_src = u32::MAX,
        IPV6 => m.0.ipv6_src = [0xff; 16],
        _ => {}
    }
}

/// Adds the bits that [`nw_dst`] hashes.
pub fn mask_nw_dst(k: &FlowKey, m: &mut FlowMask) {
    match k.dl_type {
        IPV4 => m.0.nw_dst = u32::MAX,
        IPV6 => m.0.ipv6_dst = [0xff; 16],
        _ => {}
    }
}

/// Adds the bits that [`symmetric_l4`] hashes.
pub fn mask_symmetric_l4(k: &FlowKey, m: &mut FlowMask) {
    m.0.dl_src = [0xff; 6];
    m.0.dl_dst = [0xff; 6];
    mask_addresses(k, m);
    if matches!(k.dl_type, IPV4 | IPV6) {
        m.0.nw_proto = u8::MAX;
        if k.nw_proto != UDP {
            (m.0.tp_src, m.0.tp_dst) = (u16::MAX, u16::MAX);
        }
    }
    for tag in &mut m.0.vlans {
        tag.tci |= Vlan::VID_MASK | Vlan::CFI;
    }
}

/// Adds the bits that [`symmetric_l3l4`] hashes. L2, which is hashed where there is no IP, is left out, as in
/// Open vSwitch: see [`mask_symmetric_l2`].
pub fn mask_symmetric_l3l4(k: &FlowKey, m: &mut FlowMask, udp: bool) {
    if !matches!(k.dl_type, IPV4 | IPV6) {
        return;
    }
    mask_addresses(k, m);
    m.0.nw_proto = u8::MAX;
    let ports = matches!(k.nw_proto, TCP | SCTP) || udp && k.nw_proto == UDP;
    if ports && k.nw_frag & frag::MASK == 0 {
        (m.0.tp_src, m.0.tp_dst) = (u16::MAX, u16::MAX);
    }
}

/// Adds the bits that [`symmetric_l2`] hashes.
pub fn mask_symmetric_l2(m: &mut FlowMask) {
    m.0.dl_src = [0xff; 6];
    m.0.dl_dst = [0xff; 6];
    for tag in &mut m.0.vlans {
        tag.tci |= Vlan::VID_MASK | Vlan::CFI;
    }
}
