// SPDX-License-Identifier: Apache-2.0
//
// The floor of forwarding by eBPF. Looks a packet's flow up in a hash map, and redirects the packet.
//
// bench/offload compiles it once for each of two devices. OUT is the index of the device that packets leave
// by. A flow that the map does not have yet is added. Nothing is counted, compared or rewritten.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Addresses, ports and protocol of a packet of IPv4 without options.
struct flow_key {
	__be32 src, dst;
	__be32 ports;
	__u32 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__type(key, struct flow_key);
	__type(value, __u32);
} flows SEC(".maps");

SEC("tc")
int floor_forward(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	__be32 *ports = (void *)(ip + 1);
	__u32 out = OUT;

	if ((void *)(ports + 1) <= end && eth->h_proto == bpf_htons(ETH_P_IP) && ip->ihl == 5) {
		struct flow_key key = { ip->saddr, ip->daddr, *ports, ip->protocol };
		__u32 *found = bpf_map_lookup_elem(&flows, &key);

		if (found)
			return bpf_redirect_peer(*found, 0);
		bpf_map_update_elem(&flows, &key, &out, BPF_ANY);
	}
	return bpf_redirect_peer(out, 0);
}

char floor_license[] SEC("license") = "Apache-2.0";
