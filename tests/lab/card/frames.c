// SPDX-License-Identifier: MIT OR GPL-2.0
/* The test card's forwarding: what becomes of a frame that comes in by the outer device of a pair. */
#include <linux/icmpv6.h>
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/module.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <net/checksum.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include <net/pkt_cls.h>
#include "card.h"

#define MAX_CHAIN_STEPS 32

enum { HONEST, LIE_DROP, LIE_MUTE, LIE_ABSENT };
static uint lie;
module_param(lie, uint, 0644);
MODULE_PARM_DESC(lie, "0: honest; filters are accepted and 1: drop without a count, 2: forward without a count, 3: do nothing");

static void adjust_l4(struct sk_buff *skb, int l4, u8 protocol, __be32 from, __be32 to, bool pseudo)
{
	int at = protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
		 protocol == IPPROTO_UDP ? offsetof(struct udphdr, check) :
		 protocol == IPPROTO_ICMPV6 ? offsetof(struct icmp6hdr, icmp6_cksum) : -1;
	__sum16 *sum;

	if (at < 0 || l4 < 0 || skb_ensure_writable(skb, l4 + at + 2))
		return;
	sum = (__sum16 *)(skb->data + l4 + at);
	if (protocol == IPPROTO_UDP && !*sum && skb->ip_summed != CHECKSUM_PARTIAL)
		return;
	inet_proto_csum_replace4(sum, skb, from, to, pseudo);
	if (protocol == IPPROTO_UDP && !*sum)
		*sum = CSUM_MANGLED_0;
}

/* pedit of one word, with the checksums that cover it. False: the frame has no such header. */
static bool mangle(struct sk_buff *skb, const struct op *op)
{
	bool ip4 = false, ip6 = false, pseudo = false;
	int l3 = ETH_HLEN, l4 = -1, at = op->mangle.offset;
	__be16 type = eth_hdr(skb)->h_proto, fragment;
	__be32 from, to;
	u8 protocol = 0;

	if (op->mangle.base != FLOW_ACT_MANGLE_HDR_TYPE_ETH) {
		for (; eth_type_vlan(type); l3 += VLAN_HLEN) {
			if (!pskb_may_pull(skb, l3 + VLAN_HLEN))
				return false;
			type = ((struct vlan_hdr *)(skb->data + l3))->h_vlan_encapsulated_proto;
		}
		ip4 = type == htons(ETH_P_IP) && pskb_may_pull(skb, l3 + sizeof(struct iphdr));
		ip6 = type == htons(ETH_P_IPV6) && pskb_may_pull(skb, l3 + sizeof(struct ipv6hdr));
		if (ip4) {
			struct iphdr *ip = (struct iphdr *)(skb->data + l3);

			protocol = ip->protocol;
			if (!(ip->frag_off & htons(IP_OFFSET)))
				l4 = l3 + ip->ihl * 4;
		} else if (ip6) {
			protocol = ((struct ipv6hdr *)(skb->data + l3))->nexthdr;
			l4 = ipv6_skip_exthdr(skb, l3 + sizeof(struct ipv6hdr), &protocol, &fragment);
			if (fragment & htons(~0x7))
				l4 = -1;
		}
	}
	switch (op->mangle.base) {
	case FLOW_ACT_MANGLE_HDR_TYPE_IP4:
		if (!ip4)
			return false;
		pseudo = at == offsetof(struct iphdr, saddr) || at == offsetof(struct iphdr, daddr);
		at += l3;
		break;
	case FLOW_ACT_MANGLE_HDR_TYPE_IP6:
		if (!ip6)
			return false;
		pseudo = at >= offsetof(struct ipv6hdr, saddr);
		at += l3;
		break;
	case FLOW_ACT_MANGLE_HDR_TYPE_TCP:
	case FLOW_ACT_MANGLE_HDR_TYPE_UDP:
		if (l4 < 0 || protocol != (op->mangle.base == FLOW_ACT_MANGLE_HDR_TYPE_TCP ? IPPROTO_TCP : IPPROTO_UDP))
			return false;
		at += l4;
		break;
	default:
		break;
	}
	if (skb_ensure_writable(skb, at + 4))
		return false;
	from = get_unaligned((__be32 *)(skb->data + at));
	to = (__force __be32)(((__force u32)from & op->mangle.mask) ^ op->mangle.value);
	put_unaligned(to, (__be32 *)(skb->data + at));
	if (pseudo || at >= l4)
		adjust_l4(skb, op->mangle.base == FLOW_ACT_MANGLE_HDR_TYPE_ETH ? -1 : l4, protocol, from, to, pseudo);
	if (op->mangle.base == FLOW_ACT_MANGLE_HDR_TYPE_IP4 && !skb_ensure_writable(skb, l3 + sizeof(struct iphdr)))
		ip_send_check((struct iphdr *)(skb->data + l3));
	settle(skb);
	return true;
}

/* Packets after segmentation, and their bytes with Ethernet headers and VLAN tags. */
static void measure(struct sk_buff *skb, u64 *packets, u64 *bytes)
{
	uint header = 0;

	*packets = 1;
	*bytes = skb->len + (skb_vlan_tag_present(skb) ? VLAN_HLEN : 0);
	if (skb_is_gso(skb)) {
		*packets = max_t(u16, 1, skb_shinfo(skb)->gso_segs);
		header = skb_transport_offset(skb) + (skb_is_gso_tcp(skb) ? tcp_hdrlen(skb) : sizeof(struct udphdr));
		*bytes += (*packets - 1) * (header + *bytes - skb->len);
	}
}

static void queue(struct sk_buff_head *out, struct sk_buff *skb, struct net_device *to)
{
	*(struct net_device **)skb->cb = to; /* skb->dev stays: the receiver compares namespaces */
	__skb_queue_tail(out, skb);
}

/* Executes a filter. Takes the frame unless it returns true: then the chain in `chain` follows. */
static bool execute(struct filter *f, struct sk_buff *skb, struct sk_buff_head *out, u32 *chain)
{
	struct sk_buff *copy;

	for (uint i = 0; i < f->op_count; i++) {
		const struct op *op = &f->ops[i];
		bool ok = true;

		switch (op->id) {
		case FLOW_ACTION_DROP:
			kfree_skb(skb);
			return false;
		case FLOW_ACTION_REDIRECT:
			queue(out, skb, op->port->end);
			return false;
		case FLOW_ACTION_MIRRED:
			copy = skb_clone(skb, GFP_ATOMIC);
			if (copy)
				queue(out, copy, op->port->end);
			break;
		case FLOW_ACTION_GOTO:
			*chain = op->chain;
			return true;
		case FLOW_ACTION_VLAN_POP:
			ok = !skb_vlan_pop(skb);
			break;
		case FLOW_ACTION_VLAN_MANGLE:
			if (skb_vlan_pop(skb))
				break;
			settle(skb);
			fallthrough;
		case FLOW_ACTION_VLAN_PUSH:
			/* On failure the kernel has freed the frame. */
			if (skb_vlan_push(skb, op->vlan.proto, op->vlan.vid | op->vlan.prio << VLAN_PRIO_SHIFT))
				return false;
			break;
		case FLOW_ACTION_MANGLE:
			ok = mangle(skb, op);
			break;
		case FLOW_ACTION_ACCEPT:
		case FLOW_ACTION_TRAP:
			queue(out, skb, f->port->dev);
			return false;
		default: /* csum: done with each word */
			break;
		}
		if (!ok) {
			kfree_skb(skb);
			return false;
		}
		settle(skb);
	}
	queue(out, skb, f->port->dev);
	return false;
}

static void deliver(struct sk_buff *skb, struct net_device *to)
{
	uint length = skb->len;

	if (dev_forward_skb(to, skb) == NET_RX_SUCCESS) {
		DEV_STATS_INC(to, rx_packets);
		DEV_STATS_ADD(to, rx_bytes, length);
	}
}

/* A frame that came in by the outer device of a pair. */
static void steer(struct port *port, struct sk_buff *skb)
{
	struct { struct filter *f; u64 packets, bytes; } hits[MAX_CHAIN_STEPS];
	struct sk_buff *original = NULL;
	struct sk_buff_head out;
	uint n = 0, how = READ_ONCE(lie);
	u32 chain = 0;
	bool more;

	__skb_queue_head_init(&out);
	do {
		struct filter *f = card_lookup(port, skb, chain);

		if (f && how == LIE_ABSENT) {
			card_count(LIES);
			f = NULL;
		}
		if (!f || f->soft || n == MAX_CHAIN_STEPS) {
			card_count(!f ? chain ? CHAIN_MISSES : MISSES : SOFT_HITS);
			n = 0;
			__skb_queue_purge(&out);
			if (original) {
				consume_skb(skb);
				swap(original, skb);
				original = NULL;
			}
			queue(&out, skb, port->dev);
			break;
		}
		if (how == LIE_DROP) {
			card_count(LIES);
			kfree_skb(skb);
			n = 0;
			break;
		}
		hits[n].f = f;
		measure(skb, &hits[n].packets, &hits[n].bytes);
		n++;
		if (!original && f->op_count && f->ops[f->op_count - 1].id == FLOW_ACTION_GOTO)
			original = skb_clone(skb, GFP_ATOMIC);
		more = execute(f, skb, &out, &chain);
	} while (more);
	for (uint i = 0; i < n; i++) {
		if (how == LIE_MUTE) {
			card_count(LIES);
			continue;
		}
		card_count(HITS);
		atomic64_add(hits[i].packets, &hits[i].f->packets);
		atomic64_add(hits[i].bytes, &hits[i].f->bytes);
		WRITE_ONCE(hits[i].f->last_used, jiffies);
	}
	consume_skb(original);
	while ((skb = __skb_dequeue(&out)))
		deliver(skb, *(struct net_device **)skb->cb);
}

netdev_tx_t card_transmit(struct sk_buff *skb, struct net_device *dev)
{
	struct end *end = netdev_priv(dev);

	DEV_STATS_INC(dev, tx_packets);
	DEV_STATS_ADD(dev, tx_bytes, skb->len);
	if (skb->len < ETH_HLEN || !pskb_may_pull(skb, ETH_HLEN)) {
		kfree_skb(skb);
		return NETDEV_TX_OK;
	}
	skb_tx_timestamp(skb);
	rcu_read_lock();
	if (end->outside)
		steer(end->port, skb);
	else
		deliver(skb, end->port->end);
	rcu_read_unlock();
	return NETDEV_TX_OK;
}

