//! Attributes and actions of tc for which `netlink-packet-route` has no types, or not all attributes. They
//! are `gact`, `vlan`, `pedit`, `csum`, `tunnel_key`, `skbedit`, and of `flower` the number of VLAN tags, the
//! second tag, ARP and the keys of tunnels. Layouts are from `linux/tc_act/tc_*.h` and `linux/pkt_cls.h`.

use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED};
use netlink_packet_route::tc::{TcAction, TcActionAttribute, TcActionOption};
use std::net::IpAddr;

/// Control values of actions: pass the packet on; drop it; continue with the next action.
pub(super) const TC_ACT_OK: u32 = 0;
pub(super) const TC_ACT_SHOT: u32 = 2;
pub(super) const TC_ACT_PIPE: u32 = 3;

/// Attribute of a dump request: the parts of filters to dump.
const TCA_DUMP_FLAGS: u16 = 15;
/// `TCA_DUMP_FLAGS_TERSE` as a `struct nla_bitfield32`: value and selector.
const TERSE: [u32; 2] = [1, 1];
/// Attribute of flower (Linux 5.19).
const TCA_FLOWER_KEY_NUM_OF_VLANS: u16 = 102;

const TCA_FLOWER_KEY_ARP_SIP: u16 = 57;
const TCA_FLOWER_KEY_ARP_TIP: u16 = 59;
const TCA_FLOWER_KEY_ARP_OP: u16 = 61;
const TCA_FLOWER_KEY_ARP_SHA: u16 = 63;
const TCA_FLOWER_KEY_ARP_THA: u16 = 65;
const TCA_FLOWER_KEY_CVLAN_ID: u16 = 77;
const TCA_FLOWER_KEY_CVLAN_PRIO: u16 = 78;
const TCA_FLOWER_KEY_CVLAN_ETH_TYPE: u16 = 79;

const TCA_FLOWER_KEY_ENC_KEY_ID: u16 = 26;
const TCA_FLOWER_KEY_ENC_IPV4_SRC: u16 = 27;
const TCA_FLOWER_KEY_ENC_IPV4_DST: u16 = 29;
const TCA_FLOWER_KEY_ENC_IPV6_SRC: u16 = 31;
const TCA_FLOWER_KEY_ENC_IPV6_DST: u16 = 33;
const TCA_FLOWER_KEY_ENC_UDP_DST_PORT: u16 = 45;
const TCA_FLOWER_KEY_ENC_IP_TOS: u16 = 80;
const TCA_FLOWER_KEY_ENC_IP_TTL: u16 = 82;
const TCA_FLOWER_KEY_ENC_OPTS: u16 = 84;
const TCA_FLOWER_KEY_ENC_OPTS_MASK: u16 = 85;

const TCA_SKBEDIT_PARMS: u16 = 2;
const TCA_SKBEDIT_PRIORITY: u16 = 3;
const TCA_GACT_PARMS: u16 = 2;
const TCA_CSUM_PARMS: u16 = 1;
const TCA_VLAN_PARMS: u16 = 2;
const TCA_VLAN_PUSH_VLAN_ID: u16 = 3;
const TCA_VLAN_PUSH_VLAN_PROTOCOL: u16 = 4;
const TCA_VLAN_PUSH_VLAN_PRIORITY: u16 = 6;
const TCA_VLAN_ACT_POP: u32 = 1;
const TCA_VLAN_ACT_PUSH: u32 = 2;
const TCA_VLAN_ACT_MODIFY: u32 = 3;
const TCA_PEDIT_PARMS_EX: u16 = 4;
const TCA_PEDIT_KEYS_EX: u16 = 5;
const TCA_PEDIT_KEY_EX: u16 = 6;
const TCA_PEDIT_KEY_EX_HTYPE: u16 = 1;
const TCA_PEDIT_KEY_EX_CMD: u16 = 2;
const TCA_TUNNEL_KEY_PARMS: u16 = 2;
const TCA_TUNNEL_KEY_ENC_IPV4_SRC: u16 = 3;
const TCA_TUNNEL_KEY_ENC_IPV4_DST: u16 = 4;
const TCA_TUNNEL_KEY_ENC_IPV6_SRC: u16 = 5;
const TCA_TUNNEL_KEY_ENC_IPV6_DST: u16 = 6;
const TCA_TUNNEL_KEY_ENC_KEY_ID: u16 = 7;
const TCA_TUNNEL_KEY_ENC_DST_PORT: u16 = 9;
const TCA_TUNNEL_KEY_NO_CSUM: u16 = 10;
const TCA_TUNNEL_KEY_ENC_OPTS: u16 = 11;
const TCA_TUNNEL_KEY_ENC_TOS: u16 = 12;
const TCA_TUNNEL_KEY_ENC_TTL: u16 = 13;
const TCA_TUNNEL_KEY_NO_FRAG: u16 = 14;
const TCA_TUNNEL_KEY_ENC_OPTS_GENEVE: u16 = 1;
const TCA_TUNNEL_KEY_ENC_OPT_GENEVE_CLASS: u16 = 1;
const TCA_TUNNEL_KEY_ENC_OPT_GENEVE_TYPE: u16 = 2;
const TCA_TUNNEL_KEY_ENC_OPT_GENEVE_DATA: u16 = 3;
const TCA_TUNNEL_KEY_ACT_SET: u32 = 1;
const TCA_TUNNEL_KEY_ACT_RELEASE: u32 = 2;

/// Checksums that `csum` updates (`TCA_CSUM_UPDATE_FLAG_*`).
pub(super) const CSUM_IPV4: u32 = 1;
pub(super) const CSUM_ICMP: u32 = 2;
pub(super) const CSUM_TCP: u32 = 8;
pub(super) const CSUM_UDP: u32 = 16;

/// Header that an offset of `pedit` is relative to (`TCA_PEDIT_KEY_EX_HDR_TYPE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Base {
    Eth = 1,
    Ipv4 = 2,
    Ipv6 = 3,
    Tcp = 4,
    Udp = 5,
}

/// A rewrite of one 32-bit word (a key of `pedit`), in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word {
    pub(super) base: Base,
    /// Offset in the header, bytes; a multiple of four.
    pub(super) at: u32,
    pub(super) value: [u8; 4],
    /// Bits that are rewritten.
    pub(super) mask: [u8; 4],
}

/// `struct tc_gen` of a new action.
pub(super) fn general(control: u32) -> Vec<u8> {
    let words = [0, 0, control, 0, 0];
    words.iter().flat_map(|w| u32::to_ne_bytes(*w)).collect()
}

/// An action of this kind.
pub(super) fn action(kind: &str, options: Vec<DefaultNla>) -> TcAction {
    let mut action = TcAction::default();
    let options = options.into_iter().map(TcActionOption::Other).collect();
    action.attributes = vec![
        TcActionAttribute::Kind(kind.to_owned()),
        TcActionAttribute::Options(options),
    ];
    action
}

fn emitted(inner: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; inner.buffer_len()];
    inner.emit(&mut bytes);
    bytes
}

fn nest(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind | NLA_F_NESTED, emitted(inner))
}

/// `gact` with this control value.
pub(super) fn gact(control: u32) -> TcAction {
    action("gact", vec![DefaultNla::new(TCA_GACT_PARMS, general(control))])
}

/// `csum` of these checksums (`CSUM_*`).
pub(super) fn csum(which: u32) -> TcAction {
    let mut parms = general(TC_ACT_PIPE);
    parms.extend(which.to_ne_bytes());
    action("csum", vec![DefaultNla::new(TCA_CSUM_PARMS, parms)])
}

fn vlan(what: u32, tci: Option<u16>) -> TcAction {
    let mut parms = general(TC_ACT_PIPE);
    parms.extend(what.to_ne_bytes());
    let mut options = vec![DefaultNla::new(TCA_VLAN_PARMS, parms)];
    if let Some(tci) = tci {
        let priority = u8::try_from(tci >> 13).unwrap_or(0);
        options.push(DefaultNla::new(
            TCA_VLAN_PUSH_VLAN_ID,
            (tci & 0xfff).to_ne_bytes().to_vec(),
        ));
        options.push(DefaultNla::new(
            TCA_VLAN_PUSH_VLAN_PROTOCOL,
            0x8100_u16.to_be_bytes().to_vec(),
        ));
        options.push(DefaultNla::new(TCA_VLAN_PUSH_VLAN_PRIORITY, vec![priority]));
    }
    action("vlan", options)
}

/// Pops the tag.
pub(super) fn vlan_pop() -> TcAction {
    vlan(TCA_VLAN_ACT_POP, None)
}

/// Pushes a tag of 802.1Q.
pub(super) fn vlan_push(tci: u16) -> TcAction {
    vlan(TCA_VLAN_ACT_PUSH, Some(tci))
}

/// Replaces VLAN id and priority of the tag.
pub(super) fn vlan_modify(tci: u16) -> TcAction {
    vlan(TCA_VLAN_ACT_MODIFY, Some(tci))
}

/// `pedit` of these words, in order.
pub(super) fn pedit(words: &[Word]) -> TcAction {
    let mut parms = general(TC_ACT_PIPE);
    let n = u8::try_from(words.len()).unwrap_or(u8::MAX);
    parms.extend([n, 0, 0, 0]);
    for word in words.iter().take(usize::from(n)) {
        // The kernel's mask has the bits to keep; `value` must be zero there.
        let keep = word.mask.map(|b| !b);
        let value: Vec<u8> = word.value.iter().zip(word.mask).map(|(v, m)| v & m).collect();
        parms.extend(keep);
        parms.extend(value);
        parms.extend(word.at.to_ne_bytes());
        // Offsets that depend on the packet are not used.
        parms.extend([0; 12]);
    }
    let keys: Vec<DefaultNla> = words
        .iter()
        .take(usize::from(n))
        .map(|word| {
            let base = word.base as u16;
            nest(
                TCA_PEDIT_KEY_EX,
                &[
                    DefaultNla::new(TCA_PEDIT_KEY_EX_HTYPE, base.to_ne_bytes().to_vec()),
                    DefaultNla::new(TCA_PEDIT_KEY_EX_CMD, 0_u16.to_ne_bytes().to_vec()),
                ],
            )
        })
        .collect();
    action(
        "pedit",
        vec![
            DefaultNla::new(TCA_PEDIT_PARMS_EX, parms),
            nest(TCA_PEDIT_KEYS_EX, &keys),
        ],
    )
}

/// The outer headers that a tunnel device writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TunnelKey {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    /// Network identifier.
    pub(super) id: u32,
    /// UDP destination port.
    pub(super) port: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// With an outer UDP checksum.
    pub(super) csum: bool,
    /// IPv4: the outer packet is not to be fragmented.
    pub(super) dont_fragment: bool,
    /// Options of Geneve: class in network order, type, data.
    pub(super) options: Vec<([u8; 2], u8, Vec<u8>)>,
}

/// `tunnel_key set`.
pub(super) fn tunnel_key_set(key: &TunnelKey) -> TcAction {
    let mut parms = general(TC_ACT_PIPE);
    parms.extend(TCA_TUNNEL_KEY_ACT_SET.to_ne_bytes());
    let mut all = vec![DefaultNla::new(TCA_TUNNEL_KEY_PARMS, parms)];
    let mut add = |kind, value: &[u8]| all.push(DefaultNla::new(kind, value.to_vec()));
    match key.src {
        IpAddr::V4(ip) => add(TCA_TUNNEL_KEY_ENC_IPV4_SRC, &ip.octets()),
        IpAddr::V6(ip) => add(TCA_TUNNEL_KEY_ENC_IPV6_SRC, &ip.octets()),
    }
    match key.dst {
        IpAddr::V4(ip) => add(TCA_TUNNEL_KEY_ENC_IPV4_DST, &ip.octets()),
        IpAddr::V6(ip) => add(TCA_TUNNEL_KEY_ENC_IPV6_DST, &ip.octets()),
    }
    add(TCA_TUNNEL_KEY_ENC_KEY_ID, &key.id.to_be_bytes());
    add(TCA_TUNNEL_KEY_ENC_DST_PORT, &key.port.to_be_bytes());
    add(TCA_TUNNEL_KEY_NO_CSUM, &[u8::from(!key.csum)]);
    add(TCA_TUNNEL_KEY_ENC_TOS, &[key.tos]);
    add(TCA_TUNNEL_KEY_ENC_TTL, &[key.ttl]);
    if key.dont_fragment {
        add(TCA_TUNNEL_KEY_NO_FRAG, &[]);
    }
    let option = |(class, kind, data): &([u8; 2], u8, Vec<u8>)| {
        nest(
            TCA_TUNNEL_KEY_ENC_OPTS_GENEVE,
            &[
                DefaultNla::new(TCA_TUNNEL_KEY_ENC_OPT_GENEVE_CLASS, class.to_vec()),
                DefaultNla::new(TCA_TUNNEL_KEY_ENC_OPT_GENEVE_TYPE, vec![*kind]),
                DefaultNla::new(TCA_TUNNEL_KEY_ENC_OPT_GENEVE_DATA, data.clone()),
            ],
        )
    };
    if !key.options.is_empty() {
        let options: Vec<DefaultNla> = key.options.iter().map(option).collect();
        all.push(nest(TCA_TUNNEL_KEY_ENC_OPTS, &options));
    }
    action("tunnel_key", all)
}

/// `tunnel_key unset`: the packet is not in a tunnel any more.
pub(super) fn tunnel_key_release() -> TcAction {
    let mut parms = general(TC_ACT_PIPE);
    parms.extend(TCA_TUNNEL_KEY_ACT_RELEASE.to_ne_bytes());
    action("tunnel_key", vec![DefaultNla::new(TCA_TUNNEL_KEY_PARMS, parms)])
}

/// `skbedit` of the packet's priority (`skb->priority`).
pub(super) fn skb_priority(value: u32) -> TcAction {
    let parms = DefaultNla::new(TCA_SKBEDIT_PARMS, general(TC_ACT_PIPE));
    let value = DefaultNla::new(TCA_SKBEDIT_PRIORITY, value.to_ne_bytes().to_vec());
    action("skbedit", vec![parms, value])
}

/// A match on a tunnel. Each pair is value and mask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TunnelMatch {
    pub(super) src: (IpAddr, IpAddr),
    pub(super) dst: (IpAddr, IpAddr),
    /// Network identifier; `None`: any.
    pub(super) id: Option<u32>,
    /// UDP destination port.
    pub(super) port: u16,
    pub(super) tos: (u8, u8),
    pub(super) ttl: (u8, u8),
    /// The first option of Geneve: class, type, and its data of one word.
    pub(super) option: Option<(u16, u8, [u8; 4], [u8; 4])>,
}

/// An option of Geneve as `flower` matches it, or the mask of one.
fn enc_option(attribute: u16, class: u16, kind: u8, data: [u8; 4]) -> DefaultNla {
    let parts = [
        DefaultNla::new(TCA_TUNNEL_KEY_ENC_OPT_GENEVE_CLASS, class.to_be_bytes().to_vec()),
        DefaultNla::new(TCA_TUNNEL_KEY_ENC_OPT_GENEVE_TYPE, vec![kind]),
        DefaultNla::new(TCA_TUNNEL_KEY_ENC_OPT_GENEVE_DATA, data.to_vec()),
    ];
    // The numbers are those of the action `tunnel_key`.
    let option = DefaultNla::new(TCA_TUNNEL_KEY_ENC_OPTS_GENEVE, emitted(&parts));
    DefaultNla::new(attribute, emitted(&[option]))
}

/// Keys of `flower` for a packet that comes out of a tunnel.
pub(super) fn tunnel_keys(tunnel: &TunnelMatch) -> Vec<DefaultNla> {
    let mut all = Vec::new();
    // The attribute of a mask follows that of its value.
    let mut add = |kind: u16, value: &[u8], mask: &[u8]| {
        all.push(DefaultNla::new(kind, value.to_vec()));
        all.push(DefaultNla::new(kind + 1, mask.to_vec()));
    };
    let is_v6 = tunnel.src.0.is_ipv6();
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let kinds = match is_v6 {
        false => [TCA_FLOWER_KEY_ENC_IPV4_SRC, TCA_FLOWER_KEY_ENC_IPV4_DST],
        true => [TCA_FLOWER_KEY_ENC_IPV6_SRC, TCA_FLOWER_KEY_ENC_IPV6_DST],
    };
    for (kind, (value, mask)) in kinds.into_iter().zip([tunnel.src, tunnel.dst]) {
        add(kind, &bytes(value), &bytes(mask));
    }
    for (kind, (value, mask)) in [
        (TCA_FLOWER_KEY_ENC_IP_TOS, tunnel.tos),
        (TCA_FLOWER_KEY_ENC_IP_TTL, tunnel.ttl),
    ] {
        if mask != 0 {
            add(kind, &[value], &[mask]);
        }
    }
    let port = tunnel.port.to_be_bytes().to_vec();
    all.push(DefaultNla::new(TCA_FLOWER_KEY_ENC_UDP_DST_PORT, port));
    if let Some(id) = tunnel.id {
        all.push(DefaultNla::new(
            TCA_FLOWER_KEY_ENC_KEY_ID,
            id.to_be_bytes().to_vec(),
        ));
    }
    if let Some((class, kind, data, mask)) = tunnel.option {
        all.push(enc_option(TCA_FLOWER_KEY_ENC_OPTS, class, kind, data));
        all.push(enc_option(TCA_FLOWER_KEY_ENC_OPTS_MASK, u16::MAX, u8::MAX, mask));
    }
    all
}

/// A match on ARP: value and mask of each field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ArpMatch {
    pub(super) op: (u8, u8),
    pub(super) spa: ([u8; 4], [u8; 4]),
    pub(super) tpa: ([u8; 4], [u8; 4]),
    pub(super) sha: ([u8; 6], [u8; 6]),
    pub(super) tha: ([u8; 6], [u8; 6]),
}

/// Keys of `flower` for ARP packets.
pub(super) fn arp_keys(arp: &ArpMatch) -> Vec<DefaultNla> {
    let fields: [(u16, &[u8], &[u8]); 5] = [
        (TCA_FLOWER_KEY_ARP_SIP, &arp.spa.0, &arp.spa.1),
        (TCA_FLOWER_KEY_ARP_TIP, &arp.tpa.0, &arp.tpa.1),
        (TCA_FLOWER_KEY_ARP_OP, &[arp.op.0], &[arp.op.1]),
        (TCA_FLOWER_KEY_ARP_SHA, &arp.sha.0, &arp.sha.1),
        (TCA_FLOWER_KEY_ARP_THA, &arp.tha.0, &arp.tha.1),
    ];
    let compared = fields.iter().filter(|(_, _, mask)| mask.iter().any(|b| *b != 0));
    // The attribute of a mask follows that of its value.
    let both = |(kind, value, mask): &(u16, &[u8], &[u8])| {
        [
            DefaultNla::new(*kind, value.to_vec()),
            DefaultNla::new(kind + 1, mask.to_vec()),
        ]
    };
    compared.flat_map(both).collect()
}

/// Keys of `flower` for the second tag, and for the EtherType behind it.
pub(super) fn inner_vlan_keys(vid: Option<u16>, priority: Option<u8>, ethertype: u16) -> Vec<DefaultNla> {
    let vid = vid.map(|vid| DefaultNla::new(TCA_FLOWER_KEY_CVLAN_ID, vid.to_ne_bytes().to_vec()));
    let priority = priority.map(|p| DefaultNla::new(TCA_FLOWER_KEY_CVLAN_PRIO, vec![p]));
    let ethertype = DefaultNla::new(TCA_FLOWER_KEY_CVLAN_ETH_TYPE, ethertype.to_be_bytes().to_vec());
    vid.into_iter().chain(priority).chain([ethertype]).collect()
}

/// Match on the number of VLAN tags.
pub(super) fn num_of_vlans(n: u8) -> DefaultNla {
    DefaultNla::new(TCA_FLOWER_KEY_NUM_OF_VLANS, vec![n])
}

/// Attribute that makes a dump leave out the keys.
pub(super) fn terse() -> DefaultNla {
    let bytes = TERSE.iter().flat_map(|w| w.to_ne_bytes()).collect();
    DefaultNla::new(TCA_DUMP_FLAGS, bytes)
}
