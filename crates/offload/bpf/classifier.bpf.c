// SPDX-License-Identifier: Apache-2.0
//
// The classifier at the ingress of a port's device, or at the egress of an internal port's device, whose
// other end is the host's stack. The layouts are in maps.h. A plain twin of the program is
// in src/ebpf/twin.rs.
//
// One owner per packet: the program forwards a packet of a port, drops it, or sends it to the port's miss
// device. The switch reads the other end of that device. The host's stack never sees such a packet. Packets
// that the host's stack sends by an internal port are forwarded here, or continue to the device's queue,
// which the switch reads.
//
// The program writes to a packet only when nothing can send it up any more. Then length, masks, flows of the
// right generation and connections are known. So hd_walk applies the steps of a flow to the key first. The
// next stage behind a recirculation is looked up by that key. The steps are applied to the packet (hd_run)
// when its last stage is known.
//
// Tunnels: a packet that comes out of one is looked up as a packet that the tunnel's port received. Outer
// headers are removed (hd_pop) or added (hd_push) before anything else is written. The kernel may refuse
// that, and then the packet goes up as it came. All offsets are relative to the frame that is rewritten,
// which begins at packet.base.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"

#define MAX_STAGES 4
// A port may send up MAX_UP_PER_WINDOW packets in a window of 2^24 ns. That is half a million a second, about
// as fast as a worker reads.
#define WINDOW_SHIFT 24
#define MAX_UP_PER_WINDOW 8192

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100

// Outer headers: UDP over IPv4 and IPv6, and how long that and the tunnel's own header without options are.
#define IP_AT 14
#define UDP_AT 34
#define UDP6_AT 54
#define UDP_AND_TUNNEL 16
#define INNER_AT (UDP_AT + UDP_AND_TUNNEL)
#define OPTION_LEN 8
#define UDP_CSUM 6 // in its header
#define ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7) // these two since Linux 6.3
#define ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
// A held flow goes up until no packet of it has gone up for this time.
#define REST_NS (1ULL << 26)

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8192);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32);
    __type(value, struct port);
} hd_ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_MASKS);
    __type(key, __u32);
    __type(value, union words);
} hd_masks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_FLOWS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct first);
    __type(value, struct flow);
} hd_first SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_FLOWS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, union words);
    __type(value, struct flow);
} hd_flows SEC(".maps");

// Ports as outputs, by their slots.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_SLOTS);
    __type(key, __u32);
    __type(value, struct out);
} hd_outs SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct stage);
    __type(value, struct masks);
} hd_stages SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_CONNS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct conn_key);
    __type(value, struct conn);
} hd_conns SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_CONNS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct live);
} hd_live SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_FLOWS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct count);
} hd_counts SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_SLOTS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, __u64);
    // The first two name the owner and the version, so that the next process finds its own.
} hd_slots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_CPUS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct cpu);
} hd_cpus SEC(".maps");

// Translation of a packet by its connection; ports in network order.
struct nat {
    __u32 what;
    __u16 tp_src;
    __u16 tp_dst;
    __u8 src[16];
    __u8 dst[16];
};

struct packet {
    union words k;
    __u32 l4;        // offset of the TCP, UDP or ICMP header
    __u32 payload;   // offset behind it
    __u32 flags;     // TCP flags
    __u32 bytes;     // length in this stage
    __u32 base;      // offset of the frame that is rewritten, to which the offsets above are relative
    __u32 l3_len;    // length of the longest IP packet that leaves
    __u32 exact;     // the IP packet is all that the frame has
    __u32 summed;    // ... and its upper layer has a checksum over all of that
    __u32 udp;       // offset of the outer UDP header, of a tunnel that it comes out of or goes into
    __u32 csum;      // the tunnel that it goes into has UDP checksums
    __u32 has_csum;  // outside
    __u32 outer;     // bytes of the headers of the tunnel that it goes into
    __u32 ports;     // and its source ports
    __u32 out;       // index of the last output in hd_outs
    __u32 into;      // the last output is an internal port
    struct nat nat[MAX_STAGES];
    __u8 header[MAX_OUTER] __attribute__((aligned(8)));
};

// The packet that a processor is at. On the stack the verifier would follow each of its words, and give up.
// For the same reason the functions that are not static are verified alone, for any arguments (Linux 5.12).
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct packet);
} hd_packet SEC(".maps");

// Result of one stage of a packet.
struct step {
    struct flow *flow;
    struct count *count;
    __u64 bytes;
    __u64 flags;
};

static __always_inline int up(struct port *port, struct cpu *cpu, __u32 why)
{
    __u64 window;
    // The compiler may know that it is smaller, and the verifier not.
    asm volatile("" : "+r"(why));
    if (why < N_UP)
        cpu->up[why]++;
    // The queue of an internal port's device bounds its packets: a sender waits, or loses packets.
    if (port->internal)
        return TC_ACT_UNSPEC;
    // Processors that race here let a few more packets through.
    window = bpf_ktime_get_ns() >> WINDOW_SHIFT;
    if (port->window != window) {
        port->window = window;
        port->n_up = 0;
    }
    if (port->n_up >= MAX_UP_PER_WINDOW) {
        cpu->limited++;
        return TC_ACT_SHOT;
    }
    port->n_up++;
    if (!port->miss)
        return TC_ACT_SHOT;
    return bpf_redirect(port->miss, 0);
}

struct eth {
    __u8 dst[6];
    __u8 src[6];
    __u16 type;
};

struct ip4 {
    __u8 version_ihl;
    __u8 tos;
    __u16 len;
    __u16 id;
    __u16 frag;
    __u8 ttl;
    __u8 proto;
    __u16 csum;
    __u8 src[4];
    __u8 dst[4];
};

struct ip6 {
    __u32 first;
    __u16 len;
    __u8 next;
    __u8 hops;
    __u8 src[16];
    __u8 dst[16];
};

// Reads bytes of a packet, mostly directly: the bytes of a packet as it came in usually are in its linear
// part.
static __always_inline int load(struct __sk_buff *skb, __u32 at, int direct, void *to, __u32 len)
{
    if (direct) {
        void *from = (void *)(long)skb->data + at;
        if (from + len <= (void *)(long)skb->data_end) {
            // Aligned or not: the compiler would take single bytes.
            __builtin_memcpy(to, (__u64 *)from, len);
            return 0;
        }
    }
    return bpf_skb_load_bytes(skb, at, to, len);
}

// Reads the headers of the frame at an offset; 0: recognised.
static __always_inline int parse(struct __sk_buff *skb, struct packet *p, __u32 base)
{
    struct key *k = &p->k.key;
    struct eth eth;
    __u32 ip_len, have, l4, summed = 1;
    int direct = __builtin_constant_p(base) && !base;
    if (load(skb, base, direct, &eth, sizeof eth))
        return -1;
    __builtin_memcpy(k->dl_dst, eth.dst, 6);
    __builtin_memcpy(k->dl_src, eth.src, 6);
    k->dl_type = eth.type;
    if (!base && skb->vlan_present) {
        if (skb->vlan_proto != bpf_htons(ETH_P_8021Q))
            return -1;
        k->vlan = (skb->vlan_tci & 0xffff) | VLAN_PRESENT;
    }
    have = skb->len - base - sizeof eth;
    if (eth.type == bpf_htons(ETH_P_IP)) {
        struct ip4 ip;
        if (load(skb, base + sizeof eth, direct, &ip, sizeof ip))
            return -1;
        // Options and fragments go up.
        if (ip.version_ihl != 0x45 || ip.frag & bpf_htons(0x3fff))
            return -1;
        ip_len = bpf_ntohs(ip.len);
        k->nw_tos = ip.tos;
        k->nw_ttl = ip.ttl;
        k->nw_proto = ip.proto;
        __builtin_memcpy(k->src, ip.src, 4);
        __builtin_memcpy(k->dst, ip.dst, 4);
        if (ip.proto == 58)
            return -1;
        if (ip_len < sizeof ip)
            return -1;
        l4 = sizeof eth + sizeof ip;
    } else if (eth.type == bpf_htons(ETH_P_IPV6)) {
        struct ip6 ip;
        if (load(skb, base + sizeof eth, direct, &ip, sizeof ip))
            return -1;
        if ((ip.first & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
            return -1;
        ip_len = bpf_ntohs(ip.len) + sizeof ip;
        k->nw_tos = bpf_ntohl(ip.first) >> 20;
        k->label = ip.first & bpf_htonl(0xfffff);
        k->nw_ttl = ip.hops;
        k->nw_proto = ip.next;
        __builtin_memcpy(k->src, ip.src, 16);
        __builtin_memcpy(k->dst, ip.dst, 16);
        if (ip.next == 1)
            return -1;
        l4 = sizeof eth + sizeof ip;
    } else {
        return -1;
    }
    // A GSO packet that is longer than the length field has zero there; it is longer than any MTU allows
    // without that.
    if (ip_len > have)
        return -1;
    ip_len = ip_len + sizeof eth - l4;
    p->l4 = l4;
    if (k->nw_proto == 6) {
        struct {
            __u16 src, dst;
            __u32 seq, ack;
            __u8 offset, flags;
            __u16 window;
            __u16 csum, urgent;
        } tcp;
        __u32 len;
        if (ip_len < sizeof tcp || load(skb, base + l4, direct, &tcp, sizeof tcp))
            return -1;
        len = (tcp.offset >> 4) * 4;
        if (len < sizeof tcp || len > ip_len)
            return -1;
        k->tp_src = tcp.src;
        k->tp_dst = tcp.dst;
        p->flags = tcp.flags | (tcp.offset & 0xf) << 8;
        p->payload = l4 + len;
    } else if (k->nw_proto == 17) {
        struct {
            __u16 src, dst, len, csum;
        } udp;
        if (ip_len < sizeof udp || load(skb, base + l4, direct, &udp, sizeof udp))
            return -1;
        k->tp_src = udp.src;
        k->tp_dst = udp.dst;
        p->payload = l4 + sizeof udp;
        summed = udp.csum && (skb->gso_size || bpf_ntohs(udp.len) == ip_len);
    } else if (k->nw_proto == 1 || k->nw_proto == 58) {
        struct {
            __u8 type, code;
            __u16 csum;
            __u32 rest;
        } icmp;
        if (ip_len < sizeof icmp || load(skb, base + l4, direct, &icmp, sizeof icmp))
            return -1;
        // Neighbour discovery is the switch's.
        if (k->nw_proto == 58 && icmp.type >= 133 && icmp.type <= 137)
            return -1;
        k->tp_src = bpf_htons(icmp.type);
        k->tp_dst = bpf_htons(icmp.code);
        p->payload = l4 + sizeof icmp;
    } else {
        return -1;
    }
    p->l3_len = skb->gso_size ? p->payload - sizeof eth + skb->gso_size : have;
    p->exact = ip_len == have + sizeof eth - l4;
    p->summed = p->exact && summed;
    return 0;
}

// Offset of a field of the IP header.
#define IP4(p, field) ((p)->base + IP_AT + offsetof(struct ip4, field))
#define IP6(p, field) ((p)->base + IP_AT + offsetof(struct ip6, field))

static __always_inline __u32 l4_csum(struct packet *p)
{
    return p->base + p->l4 + (p->k.key.nw_proto == 6 ? 16 : 6);
}

static __always_inline void set_ip4(struct __sk_buff *skb, struct packet *p, __u32 at, __u32 new)
{
    __u32 old;
    if (bpf_skb_load_bytes(skb, at, &old, 4) || old == new)
        return;
    if (p->k.key.nw_proto == 6)
        bpf_l4_csum_replace(skb, l4_csum(p), old, new, BPF_F_PSEUDO_HDR | 4);
    else if (p->k.key.nw_proto == 17)
        bpf_l4_csum_replace(skb, l4_csum(p), old, new, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | 4);
    bpf_l3_csum_replace(skb, IP4(p, csum), old, new, 4);
    bpf_skb_store_bytes(skb, at, &new, 4, 0);
}

// Two bytes of the IPv4 header, at an even offset.
static __always_inline void set_half(struct __sk_buff *skb, struct packet *p, __u32 at, __u16 old, __u16 new)
{
    bpf_l3_csum_replace(skb, IP4(p, csum), old, new, 2);
    bpf_skb_store_bytes(skb, at, &new, 2, 0);
}

static __always_inline void set_port(struct __sk_buff *skb, struct packet *p, __u32 at, __u16 new)
{
    __u16 old;
    if (bpf_skb_load_bytes(skb, at, &old, 2) || old == new)
        return;
    if (p->k.key.nw_proto == 6)
        bpf_l4_csum_replace(skb, l4_csum(p), old, new, 2);
    else
        bpf_l4_csum_replace(skb, l4_csum(p), old, new, BPF_F_MARK_MANGLED_0 | 2);
    bpf_skb_store_bytes(skb, at, &new, 2, 0);
}

// Writes a word of an IPv6 address. The kernel may know the sum of the packet's bytes (CHECKSUM_COMPLETE).
// The address and the checksum of the upper layer change that sum by the same amount, in opposite ways.
static __always_inline void set_word(struct __sk_buff *skb, struct packet *p, __u32 at, __u32 word)
{
    __u64 flags = (p->k.key.nw_proto == 17 ? BPF_F_MARK_MANGLED_0 : 0) | BPF_F_PSEUDO_HDR | 4;
    __u32 old, csum = p->k.key.nw_proto == 58 ? p->base + p->l4 + 2 : l4_csum(p);
    if (bpf_skb_load_bytes(skb, at, &old, 4) || old == word)
        return;
    bpf_l4_csum_replace(skb, csum, old, word, flags);
    bpf_skb_store_bytes(skb, at, &word, 4, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline void run(struct __sk_buff *skb, struct packet *p, struct op *op)
{
    int v4 = p->k.key.dl_type == bpf_htons(ETH_P_IP);
    __u8 b[2];
    __u16 old, new;
    switch (op->kind) {
    case OP_ETH_DST:
        bpf_skb_store_bytes(skb, p->base, op->data, 6, 0);
        break;
    case OP_ETH_SRC:
        bpf_skb_store_bytes(skb, p->base + 6, op->data, 6, 0);
        break;
    case OP_IPV4_SRC:
        set_ip4(skb, p, IP4(p, src), op->y);
        break;
    case OP_IPV4_DST:
        set_ip4(skb, p, IP4(p, dst), op->y);
        break;
    case OP_TOS:
        // x: value in the low byte, mask in the high one.
        if (bpf_skb_load_bytes(skb, IP4(p, version_ihl), b, 2))
            break;
        __builtin_memcpy(&old, b, 2);
        if (v4) {
            b[1] = (b[1] & ~(op->x >> 8)) | (op->x & 0xff);
            __builtin_memcpy(&new, b, 2);
            set_half(skb, p, IP4(p, version_ihl), old, new);
        } else {
            __u16 h = bpf_ntohs(old);
            __u16 tos = (h >> 4) & 0xff;
            tos = (tos & ~(op->x >> 8) & 0xff) | (op->x & 0xff);
            new = bpf_htons((h & 0xf00f) | tos << 4);
            bpf_skb_store_bytes(skb, IP6(p, first), &new, 2, BPF_F_RECOMPUTE_CSUM);
        }
        break;
    case OP_TTL:
        if (v4) {
            if (bpf_skb_load_bytes(skb, IP4(p, ttl), b, 2))
                break;
            __builtin_memcpy(&old, b, 2);
            b[0] = op->x;
            __builtin_memcpy(&new, b, 2);
            set_half(skb, p, IP4(p, ttl), old, new);
        } else {
            b[0] = op->x;
            bpf_skb_store_bytes(skb, IP6(p, hops), b, 1, BPF_F_RECOMPUTE_CSUM);
        }
        break;
    case OP_L4_SRC:
        set_port(skb, p, p->base + p->l4, op->x);
        break;
    case OP_L4_DST:
        set_port(skb, p, p->base + p->l4 + 2, op->x);
        break;
    case OP_PUSH_VLAN:
        bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), op->x);
        break;
    case OP_POP_VLAN:
        bpf_skb_vlan_pop(skb);
        break;
    case OP_IPV6_WORD:
        set_word(skb, p, IP6(p, src) + 4 * (op->x & 7), op->y);
        break;
    }
}

static __always_inline void set_ip6(struct __sk_buff *skb, struct packet *p, __u32 at, __u8 *new)
{
    for (__u32 i = 0; i < 16; i += 4) {
        __u32 word;
        __builtin_memcpy(&word, new + i, 4);
        set_word(skb, p, at + i, word);
    }
}

// The packet of a translated connection.
static __always_inline void translate(struct __sk_buff *skb, struct packet *p, struct nat *nat)
{
    int v4 = p->k.key.dl_type == bpf_htons(ETH_P_IP);
    __u32 word;
    if (nat->what & NAT_SRC) {
        __builtin_memcpy(&word, nat->src, 4);
        if (v4)
            set_ip4(skb, p, IP4(p, src), word);
        else
            set_ip6(skb, p, IP6(p, src), nat->src);
    }
    if (nat->what & NAT_DST) {
        __builtin_memcpy(&word, nat->dst, 4);
        if (v4)
            set_ip4(skb, p, IP4(p, dst), word);
        else
            set_ip6(skb, p, IP6(p, dst), nat->dst);
    }
    if (nat->what) {
        set_port(skb, p, p->base + p->l4, nat->tp_src);
        set_port(skb, p, p->base + p->l4 + 2, nat->tp_dst);
    }
}

// The last output.
static __always_inline int leave_by(struct __sk_buff *skb, struct packet *p, struct port *port,
                                    struct cpu *cpu, __u32 ifindex)
{
    struct out *out;
    __u32 at = p->out;
    __u8 dst[6];
    // Into the host's stack, which looks at the address itself.
    if (p->into)
        return bpf_redirect(ifindex, BPF_F_INGRESS);
    out = bpf_map_lookup_elem(&hd_outs, &at);
    // The host's packets cannot be handed to a peer.
    if (out && out->ifindex == ifindex && out->peer && !port->internal && !load(skb, 0, 1, dst, 6)) {
        // The peer's stack takes frames for its address, as if its device had received them. Other frames go
        // through the device, which marks them as frames for other hosts.
        if (dst[0] == out->mac[0] && dst[1] == out->mac[1] && dst[2] == out->mac[2] && dst[3] == out->mac[3] &&
            dst[4] == out->mac[4] && dst[5] == out->mac[5]) {
            bpf_skb_change_type(skb, 0 /* PACKET_HOST */);
            cpu->peer++;
            return bpf_redirect_peer(ifindex, 0);
        }
    }
    return bpf_redirect(ifindex, 0);
}

static __noinline struct flow *find_first(struct masks *masks, struct packet *p)
{
    struct first k;
    for (int i = 0; i < MASKS_PER_PORT; i++) {
        __u32 id;
        union words *mask;
        struct flow *flow;
        if (i >= masks->n)
            break;
        id = masks->ids[i];
        mask = bpf_map_lookup_elem(&hd_masks, &id);
        if (!mask)
            break;
        for (int j = 0; j < FIRST_WORDS; j++)
            k.w[j] = p->k.w[j] & mask->w[j];
        ((__u8 *)&k)[offsetof(struct key, mask_id)] = id;
        flow = bpf_map_lookup_elem(&hd_first, &k);
        if (flow)
            return flow;
    }
    return NULL;
}

static __noinline struct flow *find(struct masks *masks, struct packet *p)
{
    union words k;
    for (int i = 0; i < MASKS_PER_PORT; i++) {
        __u32 id;
        union words *mask;
        struct flow *flow;
        if (i >= masks->n)
            break;
        id = masks->ids[i];
        mask = bpf_map_lookup_elem(&hd_masks, &id);
        if (!mask)
            break;
        for (int j = 0; j < WORDS; j++)
            k.w[j] = p->k.w[j] & mask->w[j];
        k.key.mask_id = id;
        flow = bpf_map_lookup_elem(&hd_flows, &k);
        if (flow)
            return flow;
    }
    return NULL;
}

// Whether the checksum of an IPv4 header of 20 bytes is right.
static __always_inline int is_sound(void *header)
{
    __s64 sum = bpf_csum_diff(NULL, 0, header, sizeof(struct ip4), 0);
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
    sum = (sum & 0xffff) + (sum >> 16);
    return sum == 0xffff;
}

// Gives the packet the state of its connection, if that is established and alive. Returns 0 if it is not.
static __always_inline int track(struct __sk_buff *skb, struct packet *p, struct op *op, struct nat *nat)
{
    struct key *k = &p->k.key;
    struct conn_key c = {};
    struct conn *conn;
    struct live *live;
    __u32 i, word, mask;
    __u8 state;
    // The packet was translated in this zone already: only the switch finds its connection.
    if (k->ct_state & (CT_SNAT | CT_DNAT) && k->ct_zone == op->x)
        return 0;
    if (k->nw_proto != 6 && k->nw_proto != 17)
        return 0;
    if (k->dl_type == bpf_htons(ETH_P_IP)) {
        __u32 header[5];
        // The switch tracks packets with broken headers as invalid.
        if (bpf_skb_load_bytes(skb, p->base + IP_AT, header, sizeof header) || !is_sound(header))
            return 0;
    } else {
        c.v6 = 1;
    }
    __builtin_memcpy(c.src, k->src, 16);
    __builtin_memcpy(c.dst, k->dst, 16);
    c.tp_src = k->tp_src;
    c.tp_dst = k->tp_dst;
    c.zone = op->x;
    c.proto = k->nw_proto;
    conn = bpf_map_lookup_elem(&hd_conns, &c);
    if (!conn)
        return 0;
    i = conn->live;
    live = bpf_map_lookup_elem(&hd_live, &i);
    if (!live || live->generation != ((__u64)1 << 32 | conn->generation))
        return 0;
    __builtin_memcpy(&word, op->data, 4);
    __builtin_memcpy(&mask, op->data + 4, 4);
    if (op->y & CT_MARK && (conn->mark & mask) != word)
        return 0;
    if (!live->touched)
        live->touched = 1;
    state = conn->state;
    nat->what = op->y & CT_NAT ? conn->nat : 0;
    if (nat->what) {
        nat->tp_src = conn->tp_src;
        nat->tp_dst = conn->tp_dst;
        __builtin_memcpy(nat->src, conn->src, 16);
        __builtin_memcpy(nat->dst, conn->dst, 16);
        __builtin_memcpy(k->src, conn->src, 16);
        __builtin_memcpy(k->dst, conn->dst, 16);
        k->tp_src = conn->tp_src;
        k->tp_dst = conn->tp_dst;
        state |= conn->nat == NAT_SRC ? CT_SNAT : CT_DNAT;
    }
    k->ct_state = state;
    k->ct_zone = op->x;
    k->ct_mark = conn->mark;
    __builtin_memcpy(k->ct_label, conn->label, 16);
    return 1;
}

// Applies a step to the key.
static __always_inline void apply(struct packet *p, struct op *op)
{
    struct key *k = &p->k.key;
    switch (op->kind) {
    case OP_ETH_DST:
        __builtin_memcpy(k->dl_dst, op->data, 6);
        break;
    case OP_ETH_SRC:
        __builtin_memcpy(k->dl_src, op->data, 6);
        break;
    case OP_IPV4_SRC:
        __builtin_memcpy(k->src, &op->y, 4);
        break;
    case OP_IPV4_DST:
        __builtin_memcpy(k->dst, &op->y, 4);
        break;
    case OP_TOS:
        k->nw_tos = (k->nw_tos & ~(op->x >> 8)) | (op->x & 0xff);
        break;
    case OP_TTL:
        k->nw_ttl = op->x;
        break;
    case OP_L4_SRC:
        k->tp_src = op->x;
        break;
    case OP_L4_DST:
        k->tp_dst = op->x;
        break;
    case OP_PUSH_VLAN:
        k->vlan = op->x | VLAN_PRESENT;
        p->bytes += 4;
        break;
    case OP_POP_VLAN:
        k->vlan = 0;
        p->bytes -= 4;
        break;
    case OP_IPV6_WORD:
        __builtin_memcpy(k->src + 4 * (op->x & 7), &op->y, 4);
        break;
    case OP_CT_CLEAR:
        k->ct_state = 0;
        k->ct_zone = 0;
        k->ct_mark = 0;
        __builtin_memset(k->ct_label, 0, 16);
        break;
    }
}

static __always_inline __u32 fold(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u64 pseudo(__u8 *src, __u8 *dst, int words, __u8 proto, __u32 len)
{
    __u64 sum = bpf_htons(proto) + bpf_htons(len);
    __u32 word;
    for (int i = 0; i < 16; i += 4) {
        if (i >= words * 4)
            break;
        __builtin_memcpy(&word, src + i, 4);
        sum += word;
        __builtin_memcpy(&word, dst + i, 4);
        sum += word;
    }
    return sum;
}

// Whether the outer UDP checksum is right if the inner one is. The bytes that the inner checksum covers add
// up to its pseudo header's sum, even if the checksum is unfinished. So the payload is not read. The final
// receiver checks the inner checksum. It may stay unfinished only in a packet that has not left this machine.
static __always_inline int is_outer_sound(struct __sk_buff *skb, struct packet *p, __u32 udp, __u32 n)
{
    struct key *k = &p->k.key;
    __u64 len = (__u64)n + p->l4 - udp;
    __u32 l4_len = skb->len - n - p->l4;
    __u64 sum, outer = pseudo(k->tun_src, k->tun_dst, udp == UDP_AT ? 1 : 4, 17, skb->len - udp);
    __u16 csum;
    __builtin_memset(p->header, 0, MAX_OUTER);
    // The compiler would check it in a way that the verifier does not follow.
    asm volatile("" : "+r"(len));
    if (len < 1 || len > MAX_OUTER)
        return 0;
    if (bpf_skb_load_bytes(skb, udp, p->header, len))
        return 0;
    __builtin_memcpy(&csum, p->header + UDP_CSUM, 2);
    if (csum == fold(outer))
        return 1;
    sum = outer + (__u32)bpf_csum_diff(NULL, 0, (void *)p->header, MAX_OUTER, 0);
    if (k->nw_proto != 1) {
        int words = k->dl_type == bpf_htons(ETH_P_IP) ? 1 : 4;
        sum += 0xffff - fold(pseudo(k->src, k->dst, words, k->nw_proto, l4_len));
    }
    return fold(sum) == 0xffff;
}

// Removes a tunnel's headers from the key: it becomes the key of the packet inside. Returns the reason if the
// packet goes up.
static __always_inline int unwrap(struct __sk_buff *skb, struct packet *p, struct op *op)
{
    struct key *k = &p->k.key;
    int v6 = k->dl_type == bpf_htons(ETH_P_IPV6);
    __u32 opt = 0, udp = v6 ? UDP6_AT : UDP_AT, base = udp + UDP_AND_TUNNEL;
    struct {
        __u16 src, dst, len, csum;
        __u32 first, vni;
    } h;
    struct {
        __u32 first, value;
    } o;
    __u8 kind = op->data[0], tos = k->nw_tos, ttl = k->nw_ttl, flags = v6 ? TUN_IPV6 : 0;
    __u16 len;
    if (p->base || k->nw_proto != 17 || !ttl)
        return UP_ODD;
    // A packet with another length goes up to the switch.
    if (v6) {
        if (bpf_skb_load_bytes(skb, IP_AT + offsetof(struct ip6, len), &len, 2))
            return UP_ODD;
        if (bpf_ntohs(len) + UDP6_AT != skb->len)
            return UP_ODD;
    } else {
        __u32 ip[5];
        if (bpf_skb_load_bytes(skb, IP_AT, ip, sizeof ip) || !is_sound(ip))
            return UP_ODD;
        __builtin_memcpy(&len, (__u8 *)ip + offsetof(struct ip4, len), 2);
        if (bpf_ntohs(len) + IP_AT != skb->len)
            return UP_ODD;
    }
    if (bpf_skb_load_bytes(skb, udp, &h, sizeof h) || bpf_ntohs(h.len) + udp != skb->len)
        return UP_ODD;
    if (h.csum)
        flags |= TUN_CSUM;
    if (kind == VXLAN) {
        if (h.first != bpf_htonl(0x08000000) || h.vni & bpf_htonl(0xff))
            return UP_ODD;
    } else {
        // Version 0, no control packet, a frame inside; no option, or one of a word.
        __u32 words = bpf_ntohl(h.first) >> 24;
        if ((h.first & bpf_htonl(0x0080ffff)) != bpf_htonl(0x6558))
            return UP_ODD;
        if (words == 2) {
            __u32 known;
            __builtin_memcpy(&known, op->data + 4, 4);
            if (bpf_skb_load_bytes(skb, base, &o, sizeof o) || !known || o.first != known)
                return UP_ODD;
            opt = o.value;
            flags |= TUN_OPTION;
            base += OPTION_LEN;
        } else if (words) {
            return UP_ODD;
        }
    }
    __builtin_memcpy(k->tun_src, k->src, 16);
    __builtin_memcpy(k->tun_dst, k->dst, 16);
    __builtin_memset(k, 0, offsetof(struct key, tun_src));
    k->in_ifindex = op->y;
    k->era = op->x;
    k->tun_id = bpf_ntohl(h.vni) >> 8;
    k->tun_opt = opt;
    k->tun_tos = tos;
    k->tun_ttl = ttl;
    k->tun_flags = flags;
    p->base = base;
    p->udp = udp;
    p->bytes -= base;
    if (parse(skb, p, base))
        return UP_ODD;
    // An outer GSO packet has the length of its first packet inside. The kernel would segment a GSO packet of
    // datagrams as if it were still in the tunnel.
    if (skb->gso_size && (k->nw_proto != 6 || !p->exact))
        return UP_ODD;
    // A GSO packet has only the beginning of an outer checksum.
    p->has_csum = h.csum && !skb->gso_size;
    if (h.csum && !skb->gso_size && (!p->exact || !is_outer_sound(skb, p, udp, base)))
        return UP_ODD;
    return N_UP;
}

// Removes the packet's outer headers. Less than 0: the packet is unchanged. More: it is lost.
__noinline int hd_pop(struct __sk_buff *skb)
{
    __u32 zero = 0;
    struct packet *p = bpf_map_lookup_elem(&hd_packet, &zero);
    __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
    struct eth eth;
    __s32 first;
    if (!p || bpf_skb_load_bytes(skb, p->base, &eth, sizeof eth))
        return -1;
    if (eth.type == bpf_htons(ETH_P_IPV6) && p->udp == UDP_AT)
        flags |= ADJ_ROOM_DECAP_L3_IPV6;
    if (eth.type == bpf_htons(ETH_P_IP) && p->udp != UDP_AT)
        flags |= ADJ_ROOM_DECAP_L3_IPV4;
    // If the kernel has to finish the outer checksum, it forgets that only when the checksum is before the
    // packet's data. It compares before it removes bytes, so the last bytes are removed in a second call.
    first = p->has_csum ? p->udp + 2 : p->base;
    if (bpf_skb_adjust_room(skb, -first, BPF_ADJ_ROOM_MAC, flags))
        return -1;
    first -= p->base;
    if (first && bpf_skb_adjust_room(skb, first, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
        return 1;
    bpf_skb_store_bytes(skb, 0, &eth, sizeof eth, 0);
    p->base = 0;
    return 0;
}

static __always_inline __u32 hash_add(__u32 hash, __u32 word)
{
    word *= 0xcc9e2d51;
    word = word << 15 | word >> 17;
    hash ^= word * 0x1b873593;
    hash = hash << 13 | hash >> 19;
    return hash * 5 + 0xe6546b64;
}

// Hash by which workers choose source ports (MurmurHash3's steps). So a flow has the same source port at the
// tunnel's other end, whether a worker or the program forwards it.
static __always_inline __u32 flow_hash(struct key *k)
{
    __u32 h = 0, word, n = k->dl_type == bpf_htons(ETH_P_IP) ? 4 : 16;
    for (__u32 i = 0; i < 16; i += 4) {
        if (i >= n)
            break;
        __builtin_memcpy(&word, k->src + i, 4);
        h = hash_add(h, word);
    }
    for (__u32 i = 0; i < 16; i += 4) {
        if (i >= n)
            break;
        __builtin_memcpy(&word, k->dst + i, 4);
        h = hash_add(h, word);
    }
    h = hash_add(h, k->nw_proto);
    __builtin_memcpy(&word, &k->tp_src, 4);
    h = hash_add(h, word) ^ 42;
    h = (h ^ h >> 16) * 0x85ebca6b;
    h = (h ^ h >> 13) * 0xc2b2ae35;
    return h ^ h >> 16;
}

// Adds a tunnel's headers before the packet. Not 0: the packet is unchanged.
__noinline int hd_push(struct __sk_buff *skb)
{
    __u32 zero = 0, len, hash;
    struct packet *p = bpf_map_lookup_elem(&hd_packet, &zero);
    struct eth eth;
    __u64 flags;
    struct {
        __u16 src, dst, len, csum;
    } *udp;
    if (!p || bpf_skb_load_bytes(skb, 0, &eth, sizeof eth))
        return -1;
    len = p->outer;
    if (len < INNER_AT || len > MAX_OUTER)
        return -1;
    flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2(sizeof eth) |
            BPF_F_ADJ_ROOM_ENCAP_L2_ETH;
    if (p->udp == UDP_AT) {
        struct ip4 *ip = (void *)(p->header + IP_AT);
        __u32 total = skb->len + len - IP_AT, sum;
        // The checksum in the template is of a header with length zero.
        sum = (__u16)~ip->csum + bpf_htons(total);
        sum = (sum & 0xffff) + (sum >> 16);
        ip->csum = ~sum;
        ip->len = bpf_htons(total);
        flags |= BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
        udp = (void *)(p->header + UDP_AT);
    } else {
        struct ip6 *ip = (void *)(p->header + IP_AT);
        ip->len = bpf_htons(skb->len + len - UDP6_AT);
        flags |= BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
        udp = (void *)(p->header + UDP6_AT);
    }
    hash = flow_hash(&p->k.key);
    udp->src = bpf_htons((p->ports & 0xffff) + ((__u64)hash * (p->ports >> 16) >> 32));
    udp->len = bpf_htons(skb->len + len - p->udp);
    if (bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, flags))
        return -1;
    bpf_skb_store_bytes(skb, 0, p->header, len, 0);
    bpf_skb_store_bytes(skb, len, &eth, sizeof eth, 0);
    p->base = len;
    return 0;
}

// Writes the outer UDP checksum of a packet that has all of its headers, from the inner checksum (see
// is_outer_sound). The outer headers of a GSO packet are written before each of its segments unchanged. The
// checksum depends only on headers and length, not on payload, so it is right for all segments of the same
// length. A GSO packet with a shorter last segment has a checksum of zero (none), if that is allowed.
__noinline int hd_sum(struct __sk_buff *skb)
{
    __u32 zero = 0, base, l4, len, at, udp, whole, gso = skb->gso_size;
    struct packet *p = bpf_map_lookup_elem(&hd_packet, &zero);
    __u64 n, sum;
    __u16 csum;
    int v4;
    if (!p)
        return 0;
    base = p->base;
    l4 = p->l4;
    at = p->udp == UDP_AT ? UDP_AT : UDP6_AT;
    if (base < at + UDP_AND_TUNNEL || base > MAX_OUTER || skb->len < base + l4)
        return 0;
    v4 = p->k.key.dl_type == bpf_htons(ETH_P_IP);
    whole = skb->len - base - l4;
    len = whole;
    if (gso) {
        if (skb->len < base + p->payload || (skb->len - base - p->payload) % gso)
            return 0;
        len = p->payload - l4 + gso;
    }
    udp = base - at + l4 + len;
    __builtin_memset(p->header, 0, MAX_OUTER);
    // A sound header of IPv4 adds nothing, and each segment gets one.
    n = (__u64)base - at + (v4 && gso ? sizeof(struct eth) : l4);
    asm volatile("" : "+r"(n));
    if (n < 1 || n > MAX_OUTER)
        return 0;
    if (bpf_skb_load_bytes(skb, at, p->header, n))
        return 0;
    // The length in the template is of the whole packet.
    csum = bpf_htons(udp);
    __builtin_memcpy(p->header + 4, &csum, 2);
    sum = (__u32)bpf_csum_diff(NULL, 0, (void *)p->header, MAX_OUTER, 0);
    if (gso && !v4)
        sum += bpf_htons(len) + (0xffff - bpf_htons(whole));
    if (at == UDP_AT) {
        if (bpf_skb_load_bytes(skb, IP_AT + offsetof(struct ip4, src), p->header, 8))
            return 0;
        sum += pseudo(p->header, p->header + 4, 1, 17, udp);
    } else {
        if (bpf_skb_load_bytes(skb, IP_AT + offsetof(struct ip6, src), p->header, 32))
            return 0;
        sum += pseudo(p->header, p->header + 16, 4, 17, udp);
    }
    if (p->k.key.nw_proto != 1)
        sum += 0xffff - fold(pseudo(p->k.key.src, p->k.key.dst, v4 ? 1 : 4, p->k.key.nw_proto, len));
    csum = ~fold(sum);
    if (!csum)
        csum = 0xffff;
    bpf_skb_store_bytes(skb, at + UDP_CSUM, &csum, 2, 0);
    return 0;
}

// Less than WALK_END: the packet goes up, for the reason WALK_UP(reason).
enum { WALK_END, WALK_ON };
#define WALK_UP(why) (-1 - (why))

// Applies the n-th flow's steps to the key. Returns whether there is another stage.
__noinline int hd_walk(struct __sk_buff *skb, struct flow *flow, __u32 stage)
{
    __u32 n_ops, zero = 0;
    struct packet *p = bpf_map_lookup_elem(&hd_packet, &zero);
    if (!p || !flow)
        return WALK_UP(UP_ODD);
    // OP_DECAP is the only step of its flow.
    if (flow->ops[0].kind == OP_DECAP) {
        int why = unwrap(skb, p, &flow->ops[0]);
        return why == N_UP ? WALK_ON : WALK_UP(why);
    }
    n_ops = flow->n_ops;
    for (__u32 n = 0; n < MAX_OPS; n++) {
        struct op *op = &flow->ops[n];
        if (n >= n_ops)
            break;
        if (op->kind == OP_CT) {
            // Connections begin and end in the switch.
            if (p->flags & TCP_UP)
                return WALK_UP(UP_TCP);
            if (!track(skb, p, op, &p->nat[stage & (MAX_STAGES - 1)]))
                return WALK_UP(UP_NO_CONN);
        } else if (op->kind == OP_RECIRC) {
            p->k.key.recirc = op->y;
            p->k.key.era = op->x;
            return WALK_ON;
        } else if (op->kind == OP_ENCAP) {
            // A tag would be outside; GSO packets of datagrams are segmented first; a length has two bytes.
            if (p->k.key.vlan || (skb->gso_size && p->k.key.nw_proto != 6))
                return WALK_UP(UP_ODD);
            if (skb->len + op->x > 0xffff)
                return WALK_UP(UP_LONG);
            // The outer checksum is made of the one inside.
            if (op->data[0] && !p->summed)
                return WALK_UP(UP_ODD);
            if (op->data[0] && !op->data[1] && skb->gso_size && (skb->len - p->payload) % skb->gso_size)
                return WALK_UP(UP_UNEVEN);
            p->csum = op->data[0];
            p->outer = op->x;
            p->ports = op->y;
            __builtin_memcpy(p->header, &flow->ops[OUTER_OP], MAX_OUTER);
            // The second byte of its EtherType.
            p->udp = p->header[13] == (ETH_P_IPV6 & 0xff) ? UDP6_AT : UDP_AT;
        } else {
            apply(p, op);
        }
    }
    return WALK_END;
}

// Applies the steps of a flow to the packet. Returns the device of the last output, if the flow has it, or 0.
__noinline int hd_run(struct __sk_buff *skb, struct flow *flow, __u32 stage)
{
    __u32 n_ops, zero = 0;
    struct packet *p = bpf_map_lookup_elem(&hd_packet, &zero);
    if (!p || !flow)
        return 0;
    n_ops = flow->n_ops;
    for (__u32 n = 0; n < MAX_OPS; n++) {
        struct op *op = &flow->ops[n];
        if (n >= n_ops)
            break;
        if (op->kind == OP_CT) {
            if (op->y & CT_NAT)
                translate(skb, p, &p->nat[stage & (MAX_STAGES - 1)]);
        } else if (op->kind != OP_OUTPUT) {
            // OP_ENCAP and OP_DECAP are done before all others.
            run(skb, p, op);
        } else if (op->x & LAST) {
            __builtin_memcpy(&p->out, op->data, 4);
            p->into = op->x & INTERNAL;
            return op->y;
        } else {
            bpf_clone_redirect(skb, op->y, op->x & INTERNAL ? BPF_F_INGRESS : 0);
        }
    }
    return 0;
}

enum { RESOLVE_MORE = N_UP, RESOLVE_KNOWN };

// Finds the flow of a stage, and applies its steps to the key. Returns the reason if the packet goes up.
static __always_inline int resolve(struct __sk_buff *skb, struct masks *masks, struct packet *p,
                                   struct step *step, __u32 stage, int missing)
{
    struct flow *flow;
    __u64 *generation;
    __u32 i;
    int more;
    flow = missing == UP_NO_FLOW ? find_first(masks, p) : find(masks, p);
    if (!flow)
        return missing;
    i = flow->slot;
    generation = bpf_map_lookup_elem(&hd_slots, &i);
    if (!generation || *generation != flow->generation)
        return UP_STALE;
    if (p->flags & TCP_UP && !(flow->what & FLOW_ALL_FLAGS))
        return UP_TCP;
    if (p->l3_len > flow->mtu)
        return UP_LONG;
    i = flow->count;
    step->count = bpf_map_lookup_elem(&hd_counts, &i);
    if (!step->count)
        return UP_STALE;
    step->flow = flow;
    step->bytes = p->bytes;
    step->flags = p->flags;
    if (!(flow->what & FLOW_WALKS))
        return RESOLVE_KNOWN;
    if (step->count->held) {
        __u64 now = bpf_ktime_get_ns();
        if (now - step->count->held < REST_NS) {
            step->count->held = now;
            return UP_UNEVEN;
        }
        step->count->held = 0;
    }
    more = hd_walk(skb, flow, stage);
    // Later packets must not overtake this GSO packet.
    if (more == WALK_UP(UP_UNEVEN))
        step->count->held = bpf_ktime_get_ns();
    if (more < WALK_END)
        return WALK_UP(more);
    return more == WALK_ON ? RESOLVE_MORE : RESOLVE_KNOWN;
}

static __always_inline int resolve_next(struct __sk_buff *skb, struct packet *p, struct step *step, __u32 n)
{
    struct stage stage = {p->k.key.in_ifindex, p->k.key.recirc, p->k.key.era};
    struct masks *masks = bpf_map_lookup_elem(&hd_stages, &stage);
    if (!masks)
        return UP_NO_STAGE;
    return resolve(skb, masks, p, step, n, UP_NO_STAGE);
}

// Counts the packet for a flow, and applies its steps.
static __always_inline int finish(struct __sk_buff *skb, struct packet *p, struct step *step, __u32 stage)
{
    struct count *count = step->count;
    if (!count)
        return 0;
    __sync_fetch_and_add(&count->packets, 1);
    __sync_fetch_and_add(&count->bytes, step->bytes);
    if ((count->tcp_flags & step->flags) != step->flags)
        count->tcp_flags |= step->flags;
    return hd_run(skb, step->flow, stage);
}

static __always_inline int treat(struct __sk_buff *skb, struct port *port, struct cpu *cpu)
{
    struct packet *p;
    struct step steps[MAX_STAGES] = {};
    __u32 zero = 0;
    int what, out;
    // Only the switch matches on the marks of the host's packets.
    if (port->internal && skb->mark)
        return up(port, cpu, UP_MARK);
    p = bpf_map_lookup_elem(&hd_packet, &zero);
    if (!p)
        return up(port, cpu, UP_ODD);
    __builtin_memset(p, 0, offsetof(struct packet, nat));
    p->k.key.in_ifindex = skb->ifindex;
    if (parse(skb, p, 0))
        return up(port, cpu, UP_ODD);
    p->bytes = skb->len + (skb->vlan_present ? 4 : 0);
    what = resolve(skb, &port->masks, p, &steps[0], 0, UP_NO_FLOW);
    if (what == RESOLVE_MORE)
        what = resolve_next(skb, p, &steps[1], 1);
    if (what == RESOLVE_MORE)
        what = resolve_next(skb, p, &steps[2], 2);
    if (what == RESOLVE_MORE)
        what = resolve_next(skb, p, &steps[3], 3);
    if (what != RESOLVE_KNOWN)
        return up(port, cpu, what < N_UP ? what : UP_NO_STAGE);
    if (p->base) {
        int lost = hd_pop(skb);
        if (lost < 0)
            return up(port, cpu, UP_ODD);
        if (lost) {
            cpu->dropped++;
            return TC_ACT_SHOT;
        }
    }
    if (p->outer && hd_push(skb))
        return up(port, cpu, UP_ODD);
    // Clear the mark and priority that the sender's socket set. Offloaded flows set no marks.
    skb->mark = 0;
    skb->priority = 0;
    out = finish(skb, p, &steps[0], 0);
    if (!out)
        out = finish(skb, p, &steps[1], 1);
    if (!out)
        out = finish(skb, p, &steps[2], 2);
    if (!out)
        out = finish(skb, p, &steps[3], 3);
    if (p->csum)
        hd_sum(skb);
    if (out)
        return leave_by(skb, p, port, cpu, out);
    cpu->dropped++;
    return TC_ACT_SHOT;
}

SEC("classifier")
int hd_ingress(struct __sk_buff *skb)
{
    __u32 ifindex = skb->ifindex, n = bpf_get_smp_processor_id();
    struct port *port = bpf_map_lookup_elem(&hd_ports, &ifindex);
    struct cpu *cpu = bpf_map_lookup_elem(&hd_cpus, &n);
    int verdict;
    if (!port)
        return TC_ACT_UNSPEC;
    if (!cpu && port->internal)
        return TC_ACT_UNSPEC;
    if (!cpu)
        return port->miss ? bpf_redirect(port->miss, 0) : TC_ACT_SHOT;
    // Counted before any flow is looked up: the thread that removes a flow waits for the programs that
    // entered before. The locked addition is a full barrier on x86.
    __sync_fetch_and_add(&cpu->entered, 1);
    // Another packet is in treatment on this processor, and hd_packet is its own: its output led this one
    // here, or this one interrupted it.
    if (cpu->entered - cpu->left != 1)
        verdict = up(port, cpu, UP_ODD);
    else
        verdict = treat(skb, port, cpu);
    __sync_fetch_and_add(&cpu->left, 1);
    return verdict;
}

char hd_license[] SEC("license") = "Apache-2.0";
