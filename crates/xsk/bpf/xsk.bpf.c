// SPDX-License-Identifier: Apache-2.0
//
// Leads the packets of a device's queues to the AF_XDP sockets that are bound to these queues. Packets of a
// queue without a socket continue to the host's stack.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// crates/xsk/src/program.rs: MAX_QUEUES
#define MAX_QUEUES 64

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, MAX_QUEUES);
    __type(key, __u32);
    __type(value, __u32);
} hd_sockets SEC(".maps");

SEC("xdp.frags")
int hd_xsk(struct xdp_md *ctx)
{
    return bpf_redirect_map(&hd_sockets, ctx->rx_queue_index, XDP_PASS);
}

char hd_license[] SEC("license") = "Apache-2.0";
