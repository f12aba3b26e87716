// SPDX-License-Identifier: Apache-2.0
//
// Leads the packets of a device's queues to the AF_XDP sockets that are bound to these queues. The host's
// stack gets the packets that the user leaves to it (hd_pass), and packets of a queue without a socket.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// crates/xsk/src/program.rs: MAX_QUEUES
#define MAX_QUEUES 64
// crates/xsk/src/pass.rs: MAX_ITEMS
#define MAX_ITEMS 64

// Kinds of items: crates/xsk/src/pass.rs, PassItem::key
#define PASS_ETHER 1
#define PASS_VLAN 2
#define PASS_IP 3
#define PASS_PROTO 4
#define PASS_TCP 5
#define PASS_UDP 6

// An item that the host's stack gets; unused fields are zero.
struct pass_key {
    __u16 kind;
    // EtherType, VLAN, protocol or port.
    __u16 number;
    // An IPv4 address is in the first word.
    __u32 address[4];
};

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, MAX_QUEUES);
    __type(key, __u32);
    __type(value, __u32);
} hd_sockets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_ITEMS);
    __type(key, struct pass_key);
    __type(value, __u32);
} hd_pass SEC(".maps");

// The number of items in hd_pass: most devices have none.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} hd_items SEC(".maps");

// Packets for the host's stack: because of an item, and of queues without a socket.
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} hd_passed SEC(".maps");

static __always_inline void count(__u32 which)
{
    __u64 *n = bpf_map_lookup_elem(&hd_passed, &which);
    if (n)
        *n += 1;
}

static __always_inline int has_number(__u16 kind, __u16 number)
{
    struct pass_key key = {.kind = kind, .number = number};
    return bpf_map_lookup_elem(&hd_pass, &key) != 0;
}

static __always_inline int has_ip4(__u32 address)
{
    struct pass_key key = {.kind = PASS_IP, .number = 4, .address = {address}};
    return bpf_map_lookup_elem(&hd_pass, &key) != 0;
}

static __always_inline int has_ip6(const struct in6_addr *address)
{
    struct pass_key key = {.kind = PASS_IP, .number = 6};
    __builtin_memcpy(key.address, address, sizeof(key.address));
    return bpf_map_lookup_elem(&hd_pass, &key) != 0;
}

// `l4`: the header behind the addresses, of the first fragment.
static __always_inline int has_l4(__u8 proto, const __u8 *l4, const __u8 *end)
{
    if (has_number(PASS_PROTO, proto))
        return 1;
    if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
        return 0;
    if (!l4 || l4 + 4 > end)
        return 0;
    __u16 port = (__u16)l4[2] << 8 | l4[3];
    return has_number(proto == IPPROTO_TCP ? PASS_TCP : PASS_UDP, port);
}

static __always_inline int has_ipv4_packet(const __u8 *at, const __u8 *end)
{
    const struct iphdr *ip = (const void *)at;
    if ((const __u8 *)(ip + 1) > end)
        return 0;
    if (has_ip4(ip->daddr))
        return 1;
    const __u8 *l4 = 0;
    if (!(ip->frag_off & bpf_htons(0x1fff)))
        l4 = at + ip->ihl * 4;
    return has_l4(ip->protocol, l4, end);
}

static __always_inline int has_ipv6_packet(const __u8 *at, const __u8 *end)
{
    const struct ipv6hdr *ip = (const void *)at;
    const __u8 *l4 = (const void *)(ip + 1);
    if (l4 > end)
        return 0;
    if (has_ip6(&ip->daddr))
        return 1;
    // A neighbour solicitation goes to a group that several addresses share (RFC 4861, 4.3).
    if (ip->nexthdr == IPPROTO_ICMPV6 && l4 + 24 <= end && l4[0] == 135 && has_ip6((const void *)(l4 + 8)))
        return 1;
    return has_l4(ip->nexthdr, l4, end);
}

static __always_inline int is_for_host(struct xdp_md *ctx)
{
    const __u8 *at = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
    const struct ethhdr *eth = (const void *)at;
    at = (const void *)(eth + 1);
    if (at > end)
        return 0;
    __u16 type = bpf_ntohs(eth->h_proto);
    if (has_number(PASS_ETHER, type))
        return 1;
    switch (type) {
    case ETH_P_8021Q:
    case ETH_P_8021AD:
        // Items about addresses and ports are for packets without a tag.
        return at + 4 <= end && has_number(PASS_VLAN, ((__u16)at[0] << 8 | at[1]) & 0xfff);
    case ETH_P_ARP: {
        // The target's IPv4 address: in a request for the host's, and in replies to the host.
        __u32 target;
        if (at + 28 > end)
            return 0;
        __builtin_memcpy(&target, at + 24, sizeof(target));
        return has_ip4(target);
    }
    case ETH_P_IP:
        return has_ipv4_packet(at, end);
    case ETH_P_IPV6:
        return has_ipv6_packet(at, end);
    }
    return 0;
}

SEC("xdp.frags")
int hd_xsk(struct xdp_md *ctx)
{
    __u32 zero = 0;
    const __u32 *items = bpf_map_lookup_elem(&hd_items, &zero);
    if (items && *items && is_for_host(ctx)) {
        count(0);
        return XDP_PASS;
    }
    int done = bpf_redirect_map(&hd_sockets, ctx->rx_queue_index, XDP_PASS);
    if (done == XDP_PASS)
        count(1);
    return done;
}

char hd_license[] SEC("license") = "Apache-2.0";
