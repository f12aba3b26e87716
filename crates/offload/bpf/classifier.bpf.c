// SPDX-License-Identifier: Apache-2.0
//
// The classifier at the ingress of a port's device. Layouts are those of src/ebpf/layout.rs, which has a plain
// twin of what is done here (src/ebpf/twin.rs).
//
// One owner per packet: a packet of a port is forwarded here, or goes to the port's miss device, whose other
// end the switch reads, or is dropped. Never does the host's stack see it.
//
// No packet is written before all is known that could send it up: length, masks, a flow of the right
// generation, its outputs.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MASKS_PER_PORT 8
#define MAX_OPS 16
#define MAX_CPUS 1024

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define VLAN_PRESENT 0x1000
#define TCP_UP 0x07 // FIN, SYN, RST

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
};

union words {
    struct key key;
    __u64 w[8];
};

struct port {
    __u32 miss;    // index of the device for packets that go up, 0: none
    __u32 n_masks;
    __u8 mac[6];   // of the peer
    __u8 peer;     // the device is a veth whose peer is in another network namespace
    __u8 pad;
    __u8 masks[MASKS_PER_PORT];
};

enum { OP_OUTPUT = 1, OP_ETH_DST, OP_ETH_SRC, OP_IPV4_SRC, OP_IPV4_DST, OP_TOS, OP_TTL, OP_L4_SRC, OP_L4_DST,
       OP_PUSH_VLAN, OP_POP_VLAN };

struct op {
    __u16 kind;
    __u16 x;
    __u32 y;
    __u8 data[8];
};

struct flow {
    __u32 count;   // index of its counters
    __u32 slot;    // index of the generation that it is of
    __u32 generation;
    __u32 mtu;
    __u32 n_ops;
    __u32 pad;
    struct op ops[MAX_OPS];
};

struct count {
    __u64 packets;
    __u64 bytes;
    __u64 tcp_flags;
    __u64 pad;
};

enum { UP_ODD, UP_TCP, UP_NO_FLOW, UP_STALE, UP_LONG, UP_NO_OUTPUT, N_UP };

struct cpu {
    __u64 entered; // packets whose treatment has begun
    __u64 left;    // ... and has ended
    __u64 up[N_UP];
    __u64 dropped;
    __u64 peer;
    __u64 pad[6];
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8192);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32);
    __type(value, struct port);
} hd_ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, union words);
} hd_masks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 131072);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, union words);
    __type(value, struct flow);
} hd_flows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 131072);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct count);
} hd_counts SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 8192);
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

struct packet {
    union words k;
    __u32 l4;        // offset of the TCP, UDP or ICMP header
    __u32 payload;   // offset behind it
    __u32 flags;     // of TCP
};

static __always_inline int up(struct port *port, struct cpu *cpu, int why)
{
    cpu->up[why]++;
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

// Reads the headers; 0: recognised.
static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
    struct key *k = &p->k.key;
    struct eth eth;
    __u32 ip_len, have;
    if (bpf_skb_load_bytes(skb, 0, &eth, sizeof eth))
        return -1;
    __builtin_memcpy(k->dl_dst, eth.dst, 6);
    __builtin_memcpy(k->dl_src, eth.src, 6);
    k->dl_type = eth.type;
    k->in_ifindex = skb->ifindex;
    if (skb->vlan_present) {
        if (skb->vlan_proto != bpf_htons(ETH_P_8021Q))
            return -1;
        k->vlan = (skb->vlan_tci & 0xffff) | VLAN_PRESENT;
    }
    have = skb->len - sizeof eth;
    if (eth.type == bpf_htons(ETH_P_IP)) {
        struct ip4 ip;
        if (bpf_skb_load_bytes(skb, sizeof eth, &ip, sizeof ip))
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
        p->l4 = sizeof eth + sizeof ip;
    } else if (eth.type == bpf_htons(ETH_P_IPV6)) {
        struct ip6 ip;
        if (bpf_skb_load_bytes(skb, sizeof eth, &ip, sizeof ip))
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
        p->l4 = sizeof eth + sizeof ip;
    } else {
        return -1;
    }
    // A train longer than the length field says so by zero; it is longer than any MTU allows without that.
    if (ip_len > have)
        return -1;
    ip_len = ip_len + sizeof eth - p->l4;
    if (k->nw_proto == 6) {
        struct {
            __u16 src, dst;
            __u32 seq, ack;
            __u8 offset, flags;
            __u16 window;
            __u16 csum, urgent;
        } tcp;
        __u32 len;
        if (ip_len < sizeof tcp || bpf_skb_load_bytes(skb, p->l4, &tcp, sizeof tcp))
            return -1;
        len = (tcp.offset >> 4) * 4;
        if (len < sizeof tcp || len > ip_len)
            return -1;
        k->tp_src = tcp.src;
        k->tp_dst = tcp.dst;
        p->flags = tcp.flags | (tcp.offset & 0xf) << 8;
        p->payload = p->l4 + len;
    } else if (k->nw_proto == 17) {
        struct {
            __u16 src, dst, len, csum;
        } udp;
        if (ip_len < sizeof udp || bpf_skb_load_bytes(skb, p->l4, &udp, sizeof udp))
            return -1;
        k->tp_src = udp.src;
        k->tp_dst = udp.dst;
        p->payload = p->l4 + sizeof udp;
    } else if (k->nw_proto == 1 || k->nw_proto == 58) {
        struct {
            __u8 type, code;
            __u16 csum;
            __u32 rest;
        } icmp;
        if (ip_len < sizeof icmp || bpf_skb_load_bytes(skb, p->l4, &icmp, sizeof icmp))
            return -1;
        // Neighbour discovery is the switch's.
        if (k->nw_proto == 58 && icmp.type >= 133 && icmp.type <= 137)
            return -1;
        k->tp_src = bpf_htons(icmp.type);
        k->tp_dst = bpf_htons(icmp.code);
        p->payload = p->l4 + sizeof icmp;
    } else {
        return -1;
    }
    return 0;
}

#define IP_CSUM (14 + offsetof(struct ip4, csum))

static __always_inline __u32 l4_csum(struct packet *p)
{
    return p->l4 + (p->k.key.nw_proto == 6 ? 16 : 6);
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
    bpf_l3_csum_replace(skb, IP_CSUM, old, new, 4);
    bpf_skb_store_bytes(skb, at, &new, 4, 0);
}

// Two bytes of the IPv4 header, at an even offset.
static __always_inline void set_half(struct __sk_buff *skb, __u32 at, __u16 old, __u16 new)
{
    bpf_l3_csum_replace(skb, IP_CSUM, old, new, 2);
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

static __always_inline void run(struct __sk_buff *skb, struct packet *p, struct op *op)
{
    int v4 = p->k.key.dl_type == bpf_htons(ETH_P_IP);
    __u8 b[2];
    __u16 old, new;
    switch (op->kind) {
    case OP_ETH_DST:
        bpf_skb_store_bytes(skb, 0, op->data, 6, 0);
        break;
    case OP_ETH_SRC:
        bpf_skb_store_bytes(skb, 6, op->data, 6, 0);
        break;
    case OP_IPV4_SRC:
        set_ip4(skb, p, 14 + offsetof(struct ip4, src), op->y);
        break;
    case OP_IPV4_DST:
        set_ip4(skb, p, 14 + offsetof(struct ip4, dst), op->y);
        break;
    case OP_TOS:
        // x: value in the low byte, mask in the high one.
        if (bpf_skb_load_bytes(skb, 14, b, 2))
            break;
        __builtin_memcpy(&old, b, 2);
        if (v4) {
            b[1] = (b[1] & ~(op->x >> 8)) | (op->x & 0xff);
            __builtin_memcpy(&new, b, 2);
            set_half(skb, 14, old, new);
        } else {
            __u16 h = bpf_ntohs(old);
            __u16 tos = (h >> 4) & 0xff;
            tos = (tos & ~(op->x >> 8) & 0xff) | (op->x & 0xff);
            new = bpf_htons((h & 0xf00f) | tos << 4);
            bpf_skb_store_bytes(skb, 14, &new, 2, BPF_F_RECOMPUTE_CSUM);
        }
        break;
    case OP_TTL:
        if (v4) {
            if (bpf_skb_load_bytes(skb, 14 + offsetof(struct ip4, ttl), b, 2))
                break;
            __builtin_memcpy(&old, b, 2);
            b[0] = op->x;
            __builtin_memcpy(&new, b, 2);
            set_half(skb, 14 + offsetof(struct ip4, ttl), old, new);
        } else {
            b[0] = op->x;
            bpf_skb_store_bytes(skb, 14 + offsetof(struct ip6, hops), b, 1, BPF_F_RECOMPUTE_CSUM);
        }
        break;
    case OP_L4_SRC:
        set_port(skb, p, p->l4, op->x);
        break;
    case OP_L4_DST:
        set_port(skb, p, p->l4 + 2, op->x);
        break;
    case OP_PUSH_VLAN:
        bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), op->x);
        break;
    case OP_POP_VLAN:
        bpf_skb_vlan_pop(skb);
        break;
    }
}

// The last output.
static __always_inline int leave_by(struct __sk_buff *skb, struct cpu *cpu, __u32 ifindex)
{
    struct port *out = bpf_map_lookup_elem(&hd_ports, &ifindex);
    __u8 dst[6];
    if (out && out->peer && !bpf_skb_load_bytes(skb, 0, dst, 6)) {
        // The peer's stack takes what is for it, as if its device had received it. Other frames go through
        // the device, which sees that they are for others.
        if (dst[0] == out->mac[0] && dst[1] == out->mac[1] && dst[2] == out->mac[2] && dst[3] == out->mac[3] &&
            dst[4] == out->mac[4] && dst[5] == out->mac[5]) {
            bpf_skb_change_type(skb, 0 /* PACKET_HOST */);
            cpu->peer++;
            return bpf_redirect_peer(ifindex, 0);
        }
    }
    return bpf_redirect(ifindex, 0);
}

static __always_inline struct flow *find(struct port *port, struct packet *p)
{
    union words k;
    for (int i = 0; i < MASKS_PER_PORT; i++) {
        __u32 id;
        union words *mask;
        struct flow *flow;
        if (i >= port->n_masks)
            break;
        id = port->masks[i];
        mask = bpf_map_lookup_elem(&hd_masks, &id);
        if (!mask)
            break;
        for (int j = 0; j < 8; j++)
            k.w[j] = p->k.w[j] & mask->w[j];
        k.key.mask_id = id;
        flow = bpf_map_lookup_elem(&hd_flows, &k);
        if (flow)
            return flow;
    }
    return NULL;
}

static __always_inline int treat(struct __sk_buff *skb, struct port *port, struct cpu *cpu)
{
    struct packet p = {};
    struct flow *flow;
    struct count *count;
    __u64 *generation;
    __u32 l3_len, i, bytes, n_ops;
    if (parse(skb, &p))
        return up(port, cpu, UP_ODD);
    if (p.flags & TCP_UP)
        return up(port, cpu, UP_TCP);
    flow = find(port, &p);
    if (!flow)
        return up(port, cpu, UP_NO_FLOW);
    i = flow->slot;
    generation = bpf_map_lookup_elem(&hd_slots, &i);
    if (!generation || *generation != flow->generation)
        return up(port, cpu, UP_STALE);
    l3_len = skb->gso_size ? p.payload - 14 + skb->gso_size : skb->len - 14;
    if (l3_len > flow->mtu)
        return up(port, cpu, UP_LONG);
    i = flow->count;
    count = bpf_map_lookup_elem(&hd_counts, &i);
    if (!count)
        return up(port, cpu, UP_STALE);
    bytes = skb->len + (skb->vlan_present ? 4 : 0);
    __sync_fetch_and_add(&count->packets, 1);
    __sync_fetch_and_add(&count->bytes, bytes);
    if ((count->tcp_flags & p.flags) != p.flags)
        count->tcp_flags |= p.flags;
    skb->mark = 0;
    n_ops = flow->n_ops;
    for (__u32 n = 0; n < MAX_OPS; n++) {
        struct op *op;
        __u64 at = n;
        if (n >= n_ops)
            break;
        // The verifier has to see the bound where it is used.
        asm volatile("%0 &= 15" : "+r"(at));
        op = &flow->ops[at];
        if (op->kind != OP_OUTPUT) {
            run(skb, &p, op);
            continue;
        }
        if (n + 1 >= n_ops)
            return leave_by(skb, cpu, op->y);
        bpf_clone_redirect(skb, op->y, 0);
    }
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
    if (!cpu)
        return port->miss ? bpf_redirect(port->miss, 0) : TC_ACT_SHOT;
    // Before any flow is looked up: who takes one out waits for those who came before. The locked addition is
    // a full barrier on x86.
    __sync_fetch_and_add(&cpu->entered, 1);
    verdict = treat(skb, port, cpu);
    __sync_fetch_and_add(&cpu->left, 1);
    return verdict;
}

char hd_license[] SEC("license") = "Apache-2.0";
