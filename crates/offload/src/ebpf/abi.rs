//! Keys, values and constants of the maps: one definition each, beside that of `bpf/maps.h`.
//!
//! The build script compiles an assertion for every size, offset and constant that this module has
//! ([`LAYOUTS`], [`CONSTANTS`]). Names of fields and constants are those of the header. A field of
//! `big_endian` type is in network order.

use std::mem::{offset_of, size_of};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A structure, for the assertions.
#[allow(dead_code, reason = "the build script reads it")]
pub(crate) struct Layout {
    /// Name in C.
    pub(crate) name: &'static str,
    /// Bytes.
    pub(crate) size: usize,
    /// Name, offset and size of each field, bytes.
    pub(crate) fields: &'static [(&'static str, usize, usize)],
}

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident = $c:literal { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(crate) struct $name {
                $($(#[$field_doc])* pub(crate) $field: $ty,)*
            }
        )*
        /// All structures.
        #[allow(dead_code, reason = "the build script reads it")]
        pub(crate) const LAYOUTS: &[Layout] = &[$(Layout {
            name: $c,
            size: size_of::<$name>(),
            fields: &[$((stringify!($field), offset_of!($name, $field), size_of::<$ty>()),)*],
        },)*];
    };
}

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $value:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: $ty = $value;)*
        /// All constants.
        #[allow(dead_code, clippy::cast_lossless, reason = "the build script reads it; types differ")]
        pub(crate) const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

constants! {
    /// Entries of the map of flows.
    MAX_FLOWS: usize = 131_072;
    /// Generations. The first two name the owner and the version.
    MAX_SLOTS: usize = 8192;
    /// Processors.
    MAX_CPUS: usize = 1024;
    /// Masks of all ports.
    MAX_MASKS: usize = 256;
    /// Masks under which packets of one port are looked up.
    MASKS_PER_PORT: usize = 8;
    /// Connections that may be there, each in both directions; words that show whether they still are.
    MAX_CONNS: usize = 131_072;
    /// Maximum number of steps of a flow.
    MAX_OPS: usize = 16;
    /// Maximum size of a tunnel's outer headers, bytes.
    MAX_OUTER: usize = 80;
    /// First of the steps whose room the outer headers take.
    OUTER_OP: usize = 11;
    /// Bit that marks a tunnel's port number in the place of a device's index.
    TUNNEL_PORT: u32 = 1 << 31;
    /// Words of a key.
    WORDS: usize = 17;
    /// Words of a key that count for packets as they come in.
    FIRST_WORDS: usize = 8;
    /// Bit of `key.vlan`: there is a tag.
    VLAN_PRESENT: u16 = 0x1000;
    /// Bit of `key.tun_flags`: the packet had the known option.
    TUN_OPTION: u8 = 1;
    /// Bit of `key.tun_flags`: the outer headers had a UDP checksum.
    TUN_CSUM: u8 = 2;
    /// Bit of `key.tun_flags`: IPv6 outside.
    TUN_IPV6: u8 = 4;
    /// Bit of `key.ct_state`: the source was translated.
    CT_SNAT: u8 = 0x40;
    /// Bit of `key.ct_state`: the destination was translated.
    CT_DNAT: u8 = 0x80;
    /// TCP flags of segments that go up: FIN, SYN, RST.
    TCP_UP: u16 = 7;
    /// Index in `cpu.up`: headers that the program does not parse.
    UP_ODD: usize = 0;
    /// Index in `cpu.up`: a segment with one of [`TCP_UP`].
    UP_TCP: usize = 1;
    /// Index in `cpu.up`: no flow.
    UP_NO_FLOW: usize = 2;
    /// Index in `cpu.up`: a flow of another generation, or a held one.
    UP_STALE: usize = 3;
    /// Index in `cpu.up`: too long for an output.
    UP_LONG: usize = 4;
    /// Index in `cpu.up`: no connection.
    UP_NO_CONN: usize = 5;
    /// Index in `cpu.up`: too many stages.
    UP_NO_STAGE: usize = 6;
    /// Index in `cpu.up`: a GSO packet with segments of different lengths.
    UP_UNEVEN: usize = 7;
    /// Index in `cpu.up`: a packet of an internal port with a mark.
    UP_MARK: usize = 8;
    /// Number of these reasons.
    N_UP: usize = 9;
    /// Sends the packet by `op.y`, a device; `op.data`: the port's index in `hd_outs`.
    OP_OUTPUT: u16 = 1;
    /// Sets the destination MAC address.
    OP_ETH_DST: u16 = 2;
    /// Sets the source MAC address.
    OP_ETH_SRC: u16 = 3;
    /// Sets the source address.
    OP_IPV4_SRC: u16 = 4;
    /// Sets the destination address.
    OP_IPV4_DST: u16 = 5;
    /// Sets bits of the DSCP and ECN field.
    OP_TOS: u16 = 6;
    /// Sets the TTL or the hop limit.
    OP_TTL: u16 = 7;
    /// Sets the source port.
    OP_L4_SRC: u16 = 8;
    /// Sets the destination port.
    OP_L4_DST: u16 = 9;
    /// Adds a tag.
    OP_PUSH_VLAN: u16 = 10;
    /// Removes a tag.
    OP_POP_VLAN: u16 = 11;
    /// Looks up the connection, in the zone `op.x`.
    OP_CT: u16 = 12;
    /// Forgets the connection.
    OP_CT_CLEAR: u16 = 13;
    /// The next stage, with the era in `op.x` and the recirculation id in `op.y`.
    OP_RECIRC: u16 = 14;
    /// Adds the flow's outer headers.
    OP_ENCAP: u16 = 15;
    /// Removes outer headers.
    OP_DECAP: u16 = 16;
    /// Sets a word of both IPv6 addresses: `op.x` is its index, `op.y` the word.
    OP_IPV6_WORD: u16 = 17;
    /// Bit of `op.x` of an output: the packet's last.
    LAST: u16 = 1;
    /// Bit of `op.x` of an output: the device is that of an internal port.
    INTERNAL: u16 = 2;
    /// Bit of `op.y` of a connection: addresses are translated.
    CT_NAT: u32 = 1;
    /// Bit of `op.y` of a connection: its mark has to be as in `op.data`.
    CT_MARK: u32 = 2;
    /// Kind of a tunnel, in `op.data`.
    VXLAN: u8 = 1;
    /// Kind of a tunnel, in `op.data`.
    GENEVE: u8 = 2;
    /// Value of `conn.nat`: the source is translated.
    NAT_SRC: u8 = 1;
    /// Value of `conn.nat`: the destination is translated.
    NAT_DST: u8 = 2;
    /// Bit of `flow.what`: it tracks, recirculates or uses a tunnel.
    FLOW_WALKS: u32 = 1;
    /// Bit of `flow.what`: it also matches segments with SYN, FIN or RST.
    FLOW_ALL_FLAGS: u32 = 2;
}

layouts! {
    /// Headers of a packet, and its state behind a recirculation or a tunnel.
    Key = "key" {
        /// Index of the device, or a tunnel's port number with [`TUNNEL_PORT`].
        in_ifindex: u32,
        /// Ethernet type.
        dl_type: U16,
        /// Tag with [`VLAN_PRESENT`].
        vlan: u16,
        /// Destination MAC address.
        dl_dst: [u8; 6],
        /// Source MAC address.
        dl_src: [u8; 6],
        /// Protocol of IP.
        nw_proto: u8,
        /// DSCP and ECN.
        nw_tos: u8,
        /// TTL or hop limit.
        nw_ttl: u8,
        /// Number of the mask.
        mask_id: u8,
        /// IPv6 flow label.
        label: U32,
        /// Source port, or type of ICMP.
        tp_src: U16,
        /// Destination port, or code of ICMP.
        tp_dst: U16,
        /// Source address; IPv4 in the first four bytes.
        src: [u8; 16],
        /// Destination address.
        dst: [u8; 16],
        /// Recirculation id.
        recirc: u32,
        /// Mark of the connection.
        ct_mark: u32,
        /// Zone.
        ct_zone: u16,
        /// State of the connection.
        ct_state: u8,
        /// Era of the process that gave the recirculation id.
        era: u8,
        /// DSCP and ECN outside.
        tun_tos: u8,
        /// TTL outside.
        tun_ttl: u8,
        /// Options, checksum, IPv6 outside.
        tun_flags: u8,
        /// Zero.
        pad: u8,
        /// Label of the connection.
        ct_label: [u8; 16],
        /// Identifier of the tunnel.
        tun_id: u32,
        /// Value of the known option.
        tun_opt: [u8; 4],
        /// Source address outside.
        tun_src: [u8; 16],
        /// Destination address outside.
        tun_dst: [u8; 16],
    }
    /// Masks under which packets of a stage are looked up.
    Masks = "masks" {
        /// Number of masks.
        n: u32,
        /// Their numbers.
        ids: [u8; MASKS_PER_PORT],
    }
    /// A port that packets come in by.
    Port = "port" {
        /// Index of the device for packets that go up; 0: none.
        miss: u32,
        /// Masks of packets as they come in.
        masks: Masks,
        /// 1: the device's other end is the host's stack.
        internal: u32,
        /// Zero.
        pad: u32,
        /// The program's own: current period.
        window: u64,
        /// The program's own: packets that went up in it.
        n_up: u32,
        /// Zero.
        pad2: u32,
    }
    /// A device as an output.
    Out = "out" {
        /// Index of the device.
        ifindex: u32,
        /// MAC address of the peer.
        mac: [u8; 6],
        /// 1: the device is a veth whose peer is in another network namespace.
        peer: u8,
        /// Zero.
        pad: u8,
    }
    /// Packets of a port behind a recirculation.
    Stage = "stage" {
        /// Index of the device.
        in_ifindex: u32,
        /// Recirculation id.
        recirc: u32,
        /// Era of the process that gave it.
        era: u32,
    }
    /// A step of a flow.
    OpBytes = "op" {
        /// One of `OP_*`.
        kind: u16,
        /// See the kinds.
        x: u16,
        /// See the kinds.
        y: u32,
        /// See the kinds.
        data: [u8; 8],
    }
    /// A direction of a connection, as it is looked up.
    ConnKey = "conn_key" {
        /// Source address; IPv4 in the first four bytes.
        src: [u8; 16],
        /// Destination address.
        dst: [u8; 16],
        /// Source port.
        tp_src: U16,
        /// Destination port.
        tp_dst: U16,
        /// Zone.
        zone: u16,
        /// Protocol of IP.
        proto: u8,
        /// 1: IPv6.
        v6: u8,
    }
    /// A direction of a connection.
    Conn = "conn" {
        /// Index of the word that shows whether it still counts.
        live: u32,
        /// Generation of the connection.
        generation: u32,
        /// Mark.
        mark: u32,
        /// Bits of `ct_state`.
        state: u8,
        /// [`NAT_SRC`], [`NAT_DST`], or 0.
        nat: u8,
        /// Source port after translation.
        tp_src: U16,
        /// Destination port after translation.
        tp_dst: U16,
        /// Zero.
        pad: u16,
        /// Zero.
        pad2: u32,
        /// Label.
        label: [u8; 16],
        /// Source address after translation.
        src: [u8; 16],
        /// Destination address after translation.
        dst: [u8; 16],
    }
    /// Whether a connection is there.
    Live = "live" {
        /// Generation of the connection that has the word; 0: none.
        generation: u64,
        /// A packet used it.
        touched: u64,
    }
    /// A flow.
    Flow = "flow" {
        /// Index of its counters.
        count: u32,
        /// Index of its generation.
        slot: u32,
        /// Generation of that slot that the flow belongs to.
        generation: u32,
        /// Largest IP packet that all of its outputs take.
        mtu: u32,
        /// Number of steps.
        n_ops: u32,
        /// [`FLOW_WALKS`], [`FLOW_ALL_FLAGS`].
        what: u32,
        /// Steps. Outer headers are stored from [`OUTER_OP`] on.
        ops: [OpBytes; MAX_OPS],
    }
    /// Counters of a flow.
    Count = "count" {
        /// Packets.
        packets: u64,
        /// Bytes.
        bytes: u64,
        /// TCP flags of all packets.
        tcp_flags: u64,
        /// The time at which a packet went up that later ones must not overtake; 0: none.
        held: u64,
    }
    /// Counters of a processor.
    Cpu = "cpu" {
        /// Packets whose treatment has begun.
        entered: u64,
        /// Packets whose treatment has ended.
        left: u64,
        /// Packets that went up, by reason.
        up: [u64; N_UP],
        /// Packets that flows without an output dropped.
        dropped: u64,
        /// Packets that went straight into a veth's peer.
        peer: u64,
        /// Packets that were dropped because their port sent too many up.
        limited: u64,
        /// Zero.
        pad: [u64; 2],
    }
}
