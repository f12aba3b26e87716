// SPDX-License-Identifier: Apache-2.0
//
// Keys, values and constants of the maps, which the program and the switch share. The switch has them in
// src/ebpf/abi.rs. The build script compares sizes, offsets and values of both.

#define MAX_FLOWS 131072
#define MAX_SLOTS 8192
#define MAX_CPUS 1024
#define MAX_MASKS 256
#define MASKS_PER_PORT 8
#define MAX_CONNS 131072
#define MAX_OPS 16
// Maximum bytes of outer headers, and the first of the steps whose room they take.
#define MAX_OUTER 80
#define OUTER_OP 11
// The port of a tunnel has no device: its number with this bit is in the place of a device's index.
#define TUNNEL_PORT 0x80000000
#define VLAN_PRESENT 0x1000
#define TCP_UP 0x07 // FIN, SYN, RST
// Bits of key.ct_state: the source or the destination was translated.
#define CT_SNAT 0x40
#define CT_DNAT 0x80

// Integers in network order but for vlan, which is in host order.
struct key {
    __u32 in_ifindex;
    __u16 dl_type;
    __u16 vlan;
    __u8 dl_dst[6];
    __u8 dl_src[6];
    __u8 nw_proto;
    __u8 nw_tos;
    __u8 nw_ttl;
    __u8 mask_id;
    __u32 label;
    __u16 tp_src;
    __u16 tp_dst;
    __u8 src[16];
    __u8 dst[16];
    // State that a packet carries behind a recirculation, in the machine's order but for the label.
    __u32 recirc;
    __u32 ct_mark;
    __u16 ct_zone;
    __u8 ct_state;
    __u8 era;      // era of the process that gave the recirculation id
    // Fields of the tunnel that the packet came out of.
    __u8 tun_tos;
    __u8 tun_ttl;
    __u8 tun_flags;
    __u8 pad;
    __u8 ct_label[16];
    __u32 tun_id;  // in the machine's order
    __u32 tun_opt; // value of the option that is known
    __u8 tun_src[16];
    __u8 tun_dst[16];
};

// Bits of tun_flags: the packet had that option, a UDP checksum, IPv6 outside.
#define TUN_OPTION 1
#define TUN_CSUM 2
#define TUN_IPV6 4

#define WORDS 17
// Words before those that a packet carries only behind a recirculation or a tunnel.
#define FIRST_WORDS 8

union words {
    struct key key;
    __u64 w[WORDS];
};

// Key of a packet as it comes in. Most packets are looked up by these words alone.
struct first {
    __u64 w[FIRST_WORDS];
};

struct masks {
    __u32 n;
    __u8 ids[MASKS_PER_PORT];
};

struct port {
    __u32 miss;    // index of the device for packets that go up, 0: none
    struct masks masks;
    __u32 internal; // the device's other end is the host's stack
    __u32 pad;
    __u64 window;  // current period of time, and packets that have gone up in it
    __u32 n_up;
    __u32 pad2;
};

// A port to send by.
struct out {
    __u32 ifindex;
    __u8 mac[6];   // MAC address of the peer
    __u8 peer;     // the device is a veth whose peer is in another network namespace
    __u8 pad;
};

// Packets of a port behind a recirculation.
struct stage {
    __u32 in_ifindex;
    __u32 recirc;
    __u32 era;
};

enum { OP_OUTPUT = 1, OP_ETH_DST, OP_ETH_SRC, OP_IPV4_SRC, OP_IPV4_DST, OP_TOS, OP_TTL, OP_L4_SRC, OP_L4_DST,
       OP_PUSH_VLAN, OP_POP_VLAN, OP_CT, OP_CT_CLEAR, OP_RECIRC, OP_ENCAP, OP_DECAP, OP_IPV6_WORD };

// Bits of y of OP_CT: CT_NAT translates. With CT_MARK, the connection's mark has to be data[0..4] in the bits
// of data[4..8], or the action would change it.
#define CT_NAT 1
#define CT_MARK 2
// Bits of x of OP_OUTPUT: the packet's last output; the device is that of an internal port. data: index in
// hd_outs.
#define LAST 1
#define INTERNAL 2
// OP_IPV6_WORD: x is the index of one of the eight words of both addresses, y the new word.
// OP_ENCAP: x has the bytes of the outer headers, which are stored from the step OUTER_OP on. The lower half
// of y is the first source port, the upper half the number of source ports less one. The outer headers have a
// UDP checksum if data[0] is set. If data[1] is set, a GSO packet goes without it where no checksum is right
// for all of its segments.
// OP_DECAP: x has the era, y the tunnel's port, data[0] the kind. data[4..8] has the first word of the known
// option, or zero.
#define VXLAN 1
#define GENEVE 2

struct op {
    __u16 kind;
    __u16 x;
    __u32 y;
    __u8 data[8];
};

// A direction of an established connection. Ports in network order.
struct conn_key {
    __u8 src[16];
    __u8 dst[16];
    __u16 tp_src;
    __u16 tp_dst;
    __u16 zone;
    __u8 proto;
    __u8 v6;
};

// Bits of conn.nat: the address and port that are translated.
#define NAT_SRC 1
#define NAT_DST 2

struct conn {
    __u32 live;    // index of the word that shows whether it still counts
    __u32 generation;
    __u32 mark;
    __u8 state;    // bits of ct_state
    __u8 nat;
    __u16 tp_src;  // port after translation
    __u16 tp_dst;
    __u16 pad;
    __u32 pad2;
    __u8 label[16];
    __u8 src[16];
    __u8 dst[16];
};

struct live {
    __u64 generation; // generation of the connection that has the word, 0: none
    __u64 touched;
};

// Bits of a flow: it tracks, recirculates or uses a tunnel; it also matches segments with TCP_UP.
#define FLOW_WALKS 1
#define FLOW_ALL_FLAGS 2

struct flow {
    __u32 count;   // index of its counters
    __u32 slot;    // index of the generation that it is of
    __u32 generation;
    __u32 mtu;
    __u32 n_ops;
    __u32 what;    // FLOW_WALKS, FLOW_ALL_FLAGS
    struct op ops[MAX_OPS];
};

struct count {
    __u64 packets;
    __u64 bytes;
    __u64 tcp_flags;
    __u64 held; // when a packet of it went up that others shall not overtake; 0: it is not held
};

enum { UP_ODD, UP_TCP, UP_NO_FLOW, UP_STALE, UP_LONG, UP_NO_CONN, UP_NO_STAGE, UP_UNEVEN, UP_MARK, N_UP };

struct cpu {
    __u64 entered; // packets whose treatment has begun
    __u64 left;    // ... and has ended
    __u64 up[N_UP];
    __u64 dropped;
    __u64 peer;
    __u64 limited; // packets that were too many to go up
    __u64 pad[2];
};

#include "layout_check.h"
