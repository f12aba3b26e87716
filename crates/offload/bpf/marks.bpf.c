// SPDX-License-Identifier: Apache-2.0
//
// Marks of packets (skb->mark) that cross the device of an internal port, a tap. The switch reads and writes
// frames there, which have no field for a mark. So a frame with a mark has a header between its addresses and
// its EtherType (crates/packet/src/mark_header.rs).
//
// At the device's egress, hd_mark_out writes the header of packets that the host's stack sends. At its
// ingress, hd_mark_in removes the header of packets that the switch sends, and sets their mark. The metadata
// of GSO packets and unfinished checksums stays right, since the kernel stores offsets from the start of the
// buffer.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_P_IP 0x0800
#define ADDRESSES 12
// EtherType of IPv4 and the version of the header, in the place of IP version and header length.
#define PREFIX 0x0800f100
#define PREFIX_MASK 0xffffff00
#define VERSION 0xf1
#define KIND_MARK 1

struct header {
    __u16 ethertype;
    __u8 version;
    __u8 kind;
    __u32 mark; // network order
};
_Static_assert(sizeof(struct header) == 8, "crates/packet/src/mark_header.rs");

// Whether the frame begins like one with a header. A tag beside the packet is before all other headers.
static __always_inline int has_header(struct __sk_buff *skb)
{
    void *at = (void *)(long)skb->data + ADDRESSES;
    __u32 word;
    if (at + sizeof word <= (void *)(long)skb->data_end)
        __builtin_memcpy(&word, (__u64 *)at, sizeof word);
    else if (bpf_skb_load_bytes(skb, ADDRESSES, &word, sizeof word))
        return 0;
    return (word & bpf_htonl(PREFIX_MASK)) == bpf_htonl(PREFIX) && !skb->vlan_present;
}

// The sender's own frame may have a header by chance or malice: it gets another one.
SEC("classifier")
int hd_mark_out(struct __sk_buff *skb)
{
    struct {
        __u8 addresses[ADDRESSES];
        struct header header;
        __u16 tpid, tci;
    } frame = {};
    __u32 mark = skb->mark, tagged;
    if (!mark && !has_header(skb))
        return TC_ACT_UNSPEC;
    if (bpf_skb_load_bytes(skb, 0, frame.addresses, ADDRESSES))
        return TC_ACT_UNSPEC;
    frame.header.ethertype = bpf_htons(ETH_P_IP);
    frame.header.version = VERSION;
    frame.header.kind = KIND_MARK;
    frame.header.mark = bpf_htonl(mark);
    tagged = skb->vlan_present;
    if (!tagged) {
        if (bpf_skb_change_head(skb, sizeof frame.header, 0))
            return TC_ACT_SHOT;
        bpf_skb_store_bytes(skb, 0, &frame, ADDRESSES + sizeof frame.header, 0);
        return TC_ACT_UNSPEC;
    }
    // The kernel would write the tag before the header.
    frame.tpid = skb->vlan_proto;
    frame.tci = bpf_htons(skb->vlan_tci);
    if (bpf_skb_vlan_pop(skb) || bpf_skb_change_head(skb, sizeof frame - ADDRESSES, 0))
        return TC_ACT_SHOT;
    bpf_skb_store_bytes(skb, 0, &frame, sizeof frame, 0);
    return TC_ACT_UNSPEC;
}

SEC("classifier")
int hd_mark_in(struct __sk_buff *skb)
{
    struct {
        struct header header;
        __u16 ethertype;
    } behind;
    __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
    if (skb->protocol != bpf_htons(ETH_P_IP) || !has_header(skb))
        return TC_ACT_UNSPEC;
    // Without the padding behind the EtherType.
    if (bpf_skb_load_bytes(skb, ADDRESSES, &behind, sizeof behind.header + sizeof behind.ethertype))
        return TC_ACT_SHOT;
    if (behind.header.kind != KIND_MARK)
        return TC_ACT_SHOT;
    // Removes bytes behind the first EtherType, so that is written again.
    if (bpf_skb_adjust_room(skb, -(__s32)sizeof behind.header, BPF_ADJ_ROOM_MAC, flags))
        return TC_ACT_SHOT;
    bpf_skb_store_bytes(skb, ADDRESSES, &behind.ethertype, sizeof behind.ethertype, 0);
    skb->mark = bpf_ntohl(behind.header.mark);
    if (behind.ethertype == bpf_htons(ETH_P_IP))
        return TC_ACT_UNSPEC;
    // Only a device's receive path reads the EtherType and tags: the packet takes it once more.
    return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

char hd_license[] SEC("license") = "Apache-2.0";
