// SPDX-License-Identifier: Apache-2.0
//
// Programs at the ingress of the kernel's tunnel devices (src/tc/tunnel_programs.rs). The filters of flows
// are between them.
//
// hd_tunnel_in drops packets that no filter of an underlay's device has passed to the host's stack. Such a
// filter writes the packet's origin to skb->priority, which decapsulation leaves as it is.
//
// hd_tunnel_miss gets the packets that no filter of a flow takes. It puts the outer headers back, and hands
// the packet to the miss device of the underlay's device. So workers see it as it came. The kernel has
// removed the bytes of the outer headers, so they are written anew from the tunnel's metadata. UDP source
// port and IP identification are others than before; the switch uses neither.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define UDP 17
#define DONT_FRAGMENT 0x4000
// First four bits of an origin.
#define ORIGIN 0xd
// TUNNEL_CSUM, TUNNEL_OAM, TUNNEL_CRIT_OPT (linux/if_tunnel.h), network order.
#define HAS_CSUM bpf_htons(0x01)
#define IS_CONTROL bpf_htons(0x0200)
#define IS_CRITICAL bpf_htons(0x0400)
#define MAX_OPTIONS 252
// Bytes that one step of a checksum covers, and the number of steps for the longest packet.
#define STEP 64
#define STEPS 1025

struct source {
    __u32 miss;    // index of the miss device
    __u8 eth[12];  // outer addresses of Ethernet
    __u16 port;    // UDP destination port, network order
    __u16 geneve;  // 0: VXLAN
};
_Static_assert(sizeof(struct source) == 20, "src/tc/tunnel_programs.rs");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32); // origin
    __type(value, struct source);
} hd_sources SEC(".maps");

struct scratch {
    __u8 options[256];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} hd_scratch SEC(".maps");

struct ip4 {
    __u8 first, tos;
    __u16 len, id, fragment;
    __u8 ttl, proto;
    __u16 csum;
    __u32 src, dst;
};

struct ip6 {
    __u32 first;
    __u16 len;
    __u8 next, hops;
    __u32 src[4], dst[4];
};

struct inner {
    __u16 src, dst, len, csum; // UDP
    __u32 first, id;           // VXLAN or Geneve
};

static __always_inline __u32 fold(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

// Sum of the packet's bytes from `at` on.
static __always_inline __u64 sum_from(struct __sk_buff *skb, __u32 at)
{
    __u8 bytes[STEP];
    __u64 sum = 0;
    for (int i = 0; i < STEPS; i++) {
        __u32 n = skb->len - at;
        if (at >= skb->len)
            break;
        if (n >= STEP) {
            if (bpf_skb_load_bytes(skb, at, bytes, STEP))
                break;
        } else {
            __builtin_memset(bytes, 0, STEP);
            // The compiler would check it in a way that the verifier does not follow.
            asm volatile("" : "+r"(n));
            n &= STEP - 1;
            if (!n || bpf_skb_load_bytes(skb, at, bytes, n))
                break;
        }
        sum += (__u32)bpf_csum_diff(NULL, 0, (void *)bytes, STEP, 0);
        at += STEP;
    }
    return sum;
}

SEC("classifier")
int hd_tunnel_in(struct __sk_buff *skb)
{
    __u32 origin = skb->priority;
    if (origin >> 28 != ORIGIN)
        return TC_ACT_SHOT;
    skb->cb[0] = origin;
    skb->priority = 0;
    return TC_ACT_UNSPEC;
}

SEC("classifier")
int hd_tunnel_miss(struct __sk_buff *skb)
{
    struct {
        __u8 eth[12];
        __u16 type;
        union {
            struct {
                struct ip4 ip;
                struct inner inner;
            } v4;
            struct {
                struct ip6 ip;
                struct inner inner;
            } v6;
        };
    } __attribute__((packed, aligned(2))) h = {};
    __u32 origin = skb->cb[0], zero = 0, len, udp, total, options = 0, n;
    struct source *source = bpf_map_lookup_elem(&hd_sources, &origin);
    struct scratch *scratch = bpf_map_lookup_elem(&hd_scratch, &zero);
    struct bpf_tunnel_key key = {};
    struct inner inner = {};
    __u64 sum = 0;
    int found, v6 = 0;
    if (!source || !scratch)
        return TC_ACT_SHOT;
    if (bpf_skb_get_tunnel_key(skb, &key, sizeof key, BPF_F_TUNINFO_FLAGS)) {
        if (bpf_skb_get_tunnel_key(skb, &key, sizeof key, BPF_F_TUNINFO_FLAGS | BPF_F_TUNINFO_IPV6))
            return TC_ACT_SHOT;
        v6 = 1;
    }
    if (source->geneve) {
        found = bpf_skb_get_tunnel_opt(skb, scratch->options, sizeof scratch->options);
        if (found > MAX_OPTIONS)
            return TC_ACT_SHOT;
        if (found > 0)
            options = found;
    }
    // A tag of the inner frame is beside the packet. This moves it into the frame. The new tag becomes one of
    // the outer frame, and has no VLAN.
    if (skb->vlan_present && bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), 0))
        return TC_ACT_SHOT;
    udp = 14 + (v6 ? sizeof(struct ip6) : sizeof(struct ip4));
    len = udp + sizeof inner + options;
    total = skb->len + len;
    if (total - 14 > 0xffff)
        return TC_ACT_SHOT;

    __builtin_memcpy(h.eth, source->eth, sizeof h.eth);
    inner.src = bpf_htons(0xc000 | (bpf_get_hash_recalc(skb) & 0x3fff));
    inner.dst = source->port;
    inner.len = bpf_htons(total - udp);
    // The switch knows that the checksum of a GSO packet is unfinished inside, and does not look at this one.
    if (key.tunnel_flags & HAS_CSUM && skb->gso_size)
        inner.csum = 0xffff;
    if (source->geneve) {
        __u32 first = options / 4 << 24 | 0x6558;
        if (key.tunnel_flags & IS_CONTROL)
            first |= 0x800000;
        if (key.tunnel_flags & IS_CRITICAL)
            first |= 0x400000;
        inner.first = bpf_htonl(first);
    } else {
        inner.first = bpf_htonl(0x08000000);
    }
    inner.id = bpf_htonl(key.tunnel_id << 8);
    if (v6) {
        h.type = bpf_htons(ETH_P_IPV6);
        h.v6.ip.first = bpf_htonl(0x60000000 | (__u32)key.tunnel_tos << 20);
        h.v6.ip.len = bpf_htons(total - udp);
        h.v6.ip.next = UDP;
        h.v6.ip.hops = key.tunnel_ttl;
        __builtin_memcpy(h.v6.ip.src, key.remote_ipv6, 16);
        __builtin_memcpy(h.v6.ip.dst, key.local_ipv6, 16);
        h.v6.inner = inner;
        sum = (__u32)bpf_csum_diff(NULL, 0, (void *)key.remote_ipv6, 16, 0);
        sum += (__u32)bpf_csum_diff(NULL, 0, (void *)key.local_ipv6, 16, 0);
    } else {
        struct ip4 ip = {
            .first = 0x45,
            .tos = key.tunnel_tos,
            .len = bpf_htons(total - 14),
            .fragment = bpf_htons(DONT_FRAGMENT),
            .ttl = key.tunnel_ttl,
            .proto = UDP,
            .src = bpf_htonl(key.remote_ipv4),
            .dst = bpf_htonl(key.local_ipv4),
        };
        ip.csum = ~fold((__u32)bpf_csum_diff(NULL, 0, (void *)&ip, sizeof ip, 0));
        h.type = bpf_htons(ETH_P_IP);
        h.v4.ip = ip;
        h.v4.inner = inner;
        sum = (__u64)ip.src + ip.dst;
    }
    if (bpf_skb_change_head(skb, len, 0))
        return TC_ACT_SHOT;
    if (bpf_skb_store_bytes(skb, 0, &h, v6 ? sizeof h : sizeof h - sizeof h.v6 + sizeof h.v4, 0))
        return TC_ACT_SHOT;
    n = options;
    asm volatile("" : "+r"(n));
    n &= 0xff;
    if (n && bpf_skb_store_bytes(skb, len - n, scratch->options, n, 0))
        return TC_ACT_SHOT;
    if (key.tunnel_flags & HAS_CSUM && !skb->gso_size) {
        __u16 csum;
        sum += bpf_htons(UDP) + inner.len + sum_from(skb, udp);
        csum = ~fold(sum);
        if (!csum)
            csum = 0xffff;
        if (bpf_skb_store_bytes(skb, udp + 6, &csum, sizeof csum, 0))
            return TC_ACT_SHOT;
    }
    return bpf_redirect(source->miss, 0);
}

char hd_license[] SEC("license") = "Apache-2.0";
