// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * heddle_card: a network card that takes tc flower filters, for tests. Pure software, never shipped.
 *
 * The card has pairs of devices, as veth has. The first pair is the uplink: `up0` is its switchdev port, and what
 * `wire0` sends comes in from the wire. Every other pair is a virtual function: `repN` is its representor, and
 * `vfN` is the device of the guest or pod. Frames sent by `wire0` or `vfN` meet the card's own table first. Frames
 * that no filter takes are received on `up0` or `repN`, as from a switchdev card. Frames sent by `up0` or `repN`
 * leave by the other device of the pair.
 *
 * Executed exactly: the keys in `keys[]` under any mask, chains and priorities; the actions drop, redirect and
 * mirror to ports of this card, VLAN push, pop and modify, pedit (set) with csum, goto, trap, accept.
 * Accepted and not executed: the keys in `soft_keys[]` (connection state, tunnel) and the actions in
 * `soft_actions[]` (ct, tunnel_key, police, sample, MPLS). A frame that meets such a filter is received on the
 * switchdev port unchanged, and software tc has the same filter. The filter is `in_hw`, its counter stays 0.
 * A frame that misses in a later chain is received unchanged, too, and no filter counts it: this kernel has no
 * NET_TC_SKB_EXT to continue in the middle.
 * Refused by name: everything else, for example redirection to a device of another driver.
 * Not emulated: encapsulation in the card, connections in the card (nf_flow_table), hardware meters, devlink,
 * bandwidth, DMA, reset.
 *
 * Parameters (writable in /sys/module/heddle_card/parameters) choose capacity, refusals, lateness and lies.
 * Files in debugfs, directory heddle_card: `stats` (counters), `filters` (the table), `events` (the last ones, with
 * milliseconds since the module was loaded).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/hashtable.h>
#include <linux/if_vlan.h>
#include <linux/jhash.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/seq_file.h>
#include <net/checksum.h>
#include <net/dst_metadata.h>
#include <net/flow_dissector.h>
#include <net/geneve.h>
#include <net/gre.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include <net/pkt_cls.h>
#include <net/udp_tunnel.h>
#include <net/vxlan.h>

#define MAX_PORTS 64
#define MAX_CHAIN_STEPS 32
#define MAX_EVENTS 512
#define EVENT_BYTES 112

static uint vfs = 4;
module_param(vfs, uint, 0444);
MODULE_PARM_DESC(vfs, "virtual functions, up to 63");
static uint capacity = 1 << 20;
module_param(capacity, uint, 0644);
MODULE_PARM_DESC(capacity, "filters that the table holds");
static char refuse[256];
module_param_string(refuse, refuse, sizeof(refuse), 0644);
MODULE_PARM_DESC(refuse, "names of keys and actions that are refused, separated by blanks");
static uint delay_ms;
module_param(delay_ms, uint, 0644);
MODULE_PARM_DESC(delay_ms, "time until the card answers a request to add or delete a filter");
static uint late_ms;
module_param(late_ms, uint, 0644);
MODULE_PARM_DESC(late_ms, "time between two readings of the counters: an answer is up to this old");
enum { HONEST, LIE_DROP, LIE_MUTE, LIE_ABSENT };
static uint lie;
module_param(lie, uint, 0644);
MODULE_PARM_DESC(lie, "0: honest; filters are accepted and 1: drop without a count, 2: forward without a count, 3: do nothing");

/* -- keys and actions ------------------------------------------------------------------------------------------- */

struct card_key {
	struct flow_dissector_key_control control;
	struct flow_dissector_key_basic basic;
	struct flow_dissector_key_eth_addrs eth;
	struct flow_dissector_key_vlan vlan, cvlan;
	struct flow_dissector_key_ipv4_addrs ipv4;
	struct flow_dissector_key_ipv6_addrs ipv6;
	struct flow_dissector_key_ports ports;
	struct flow_dissector_key_tcp tcp;
	struct flow_dissector_key_ip ip;
	struct flow_dissector_key_icmp icmp;
	struct flow_dissector_key_arp arp;
	struct flow_dissector_key_mpls mpls;
} __aligned(sizeof(u32));

#define KEY_WORDS (sizeof(struct card_key) / sizeof(u32))
#define KEY(id, field, name) { FLOW_DISSECTOR_KEY_##id, offsetof(struct card_key, field), sizeof(((struct card_key *)0)->field), name }
static const struct { int id; u16 offset, size; const char *name; } keys[] = {
	KEY(CONTROL, control, "frag"), KEY(BASIC, basic, "proto"), KEY(ETH_ADDRS, eth, "mac"), KEY(VLAN, vlan, "vlan"),
	KEY(CVLAN, cvlan, "cvlan"), KEY(IPV4_ADDRS, ipv4, "ipv4"), KEY(IPV6_ADDRS, ipv6, "ipv6"), KEY(PORTS, ports, "ports"),
	KEY(TCP, tcp, "tcp_flags"), KEY(IP, ip, "tos_ttl"), KEY(ICMP, icmp, "icmp"), KEY(ARP, arp, "arp"),
	KEY(MPLS, mpls, "mpls"),
};
static const struct { int id; const char *name; } soft_keys[] = {
	{ FLOW_DISSECTOR_KEY_CT, "ct_state" }, { FLOW_DISSECTOR_KEY_ENC_KEYID, "tunnel" },
	{ FLOW_DISSECTOR_KEY_ENC_IPV4_ADDRS, "tunnel" }, { FLOW_DISSECTOR_KEY_ENC_IPV6_ADDRS, "tunnel" },
	{ FLOW_DISSECTOR_KEY_ENC_CONTROL, "tunnel" }, { FLOW_DISSECTOR_KEY_ENC_PORTS, "tunnel" },
	{ FLOW_DISSECTOR_KEY_ENC_IP, "tunnel" }, { FLOW_DISSECTOR_KEY_ENC_OPTS, "tunnel_opts" },
};
static const struct { int id; const char *name; } hard_actions[] = {
	{ FLOW_ACTION_ACCEPT, "accept" }, { FLOW_ACTION_DROP, "drop" }, { FLOW_ACTION_TRAP, "trap" },
	{ FLOW_ACTION_GOTO, "goto" }, { FLOW_ACTION_REDIRECT, "redirect" }, { FLOW_ACTION_MIRRED, "mirror" },
	{ FLOW_ACTION_VLAN_PUSH, "vlan_push" }, { FLOW_ACTION_VLAN_POP, "vlan_pop" },
	{ FLOW_ACTION_VLAN_MANGLE, "vlan_modify" }, { FLOW_ACTION_MANGLE, "pedit" }, { FLOW_ACTION_CSUM, "csum" },
}, soft_actions[] = {
	{ FLOW_ACTION_CT, "ct" }, { FLOW_ACTION_TUNNEL_ENCAP, "tunnel_set" }, { FLOW_ACTION_TUNNEL_DECAP, "tunnel_release" },
	{ FLOW_ACTION_POLICE, "police" }, { FLOW_ACTION_SAMPLE, "sample" }, { FLOW_ACTION_MPLS_PUSH, "mpls_push" },
	{ FLOW_ACTION_MPLS_POP, "mpls_pop" }, { FLOW_ACTION_MPLS_MANGLE, "mpls_modify" },
	{ FLOW_ACTION_CT_METADATA, "ct_metadata" },
};

/* -- state ------------------------------------------------------------------------------------------------------ */

/* One pair of devices; or a tunnel device, whose filters come through an indirect block (`end` is NULL then). */
struct port {
	struct net_device *dev, *end;
	struct list_head masks;
	uint number;
};
struct end {
	struct port *port;
	bool outside;
};
struct mask {
	struct list_head list;
	struct rcu_head rcu;
	struct card_key key;
	u32 chain, filters;
};
struct op {
	u8 id;
	union {
		struct port *port;
		u32 chain;
		struct { u16 vid; __be16 proto; u8 prio; } vlan;
		struct { u8 base; u32 offset, mask, value; } mangle;
	};
};
struct filter {
	struct hlist_node by_key, by_cookie;
	struct rcu_head rcu;
	struct port *port;
	struct mask *mask;
	struct card_key key;
	unsigned long cookie;
	u32 prio;
	__be16 protocol;
	bool soft;
	u64 used;
	atomic64_t packets, bytes;
	unsigned long last_used, read_at;
	u64 seen_packets, seen_bytes, told_packets, told_bytes;
	unsigned int op_count;
	struct op ops[];
};

static struct port *all[MAX_PORTS];
static uint port_count;
static struct flow_dissector dissector;
static DEFINE_HASHTABLE(by_key, 16);
static DEFINE_HASHTABLE(by_cookie, 16);
static DEFINE_MUTEX(lock); /* the table, events and lists of blocks */
static LIST_HEAD(blocks);
static LIST_HEAD(indirect_blocks);
static uint filters, peak;
static struct dentry *directory;

enum { ADDED, DELETED, FULL, BAD_KEY, BAD_ACTION, HITS, MISSES, CHAIN_MISSES, SOFT_HITS, LIES, STATS_READ, BINDS, INDIRECT_BINDS,
       UDP_PORTS, COUNTERS };
static const char *const counter_names[] = { "added", "deleted", "refused_full", "refused_key", "refused_action", "hits", "misses",
	"chain_misses", "soft_hits", "lies", "stats_read", "binds", "indirect_binds", "udp_ports" };
static atomic64_t counters[COUNTERS];
static void count(int which) { atomic64_inc(&counters[which]); }

static char events[MAX_EVENTS][EVENT_BYTES];
static uint event_count;
static ktime_t began;
static __printf(1, 2) void event(const char *format, ...)
{
	char *line = events[event_count++ % MAX_EVENTS];
	int n = scnprintf(line, EVENT_BYTES, "%lld ", ktime_ms_delta(ktime_get(), began));
	va_list args;

	va_start(args, format);
	vscnprintf(line + n, EVENT_BYTES - n, format, args);
	va_end(args);
}

static bool refused(const char *name)
{
	size_t length = strlen(name);
	const char *at = refuse;

	while ((at = strstr(at, name))) {
		if ((at == refuse || at[-1] == ' ') && (at[length] == '\0' || at[length] == ' ' || at[length] == '\n'))
			return true;
		at += length;
	}
	return false;
}

static struct port *port_of(const struct net_device *dev)
{
	for (uint i = 0; i < port_count; i++)
		if (all[i] && all[i]->dev == dev)
			return all[i];
	return NULL;
}

/* -- the table, as the kernel writes it ------------------------------------------------------------------------- */

static u32 hash_of(const struct mask *mask, const struct card_key *key)
{
	return jhash2((const u32 *)key, KEY_WORDS, hash_ptr(mask, 32));
}

static void masked(struct card_key *out, const struct card_key *key, const struct card_key *mask)
{
	for (size_t i = 0; i < KEY_WORDS; i++)
		((u32 *)out)[i] = ((const u32 *)key)[i] & ((const u32 *)mask)[i];
}

static int read_keys(struct flow_rule *rule, struct filter *f, struct card_key *mask, struct netlink_ext_ack *extack)
{
	u64 left = rule->match.dissector->used_keys;
	struct card_key key = {};

	f->used = left;
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		if (!(left & BIT_ULL(keys[i].id)))
			continue;
		left &= ~BIT_ULL(keys[i].id);
		memcpy((u8 *)&key + keys[i].offset, skb_flow_dissector_target(rule->match.dissector, keys[i].id, rule->match.key),
		       keys[i].size);
		memcpy((u8 *)mask + keys[i].offset, skb_flow_dissector_target(rule->match.dissector, keys[i].id, rule->match.mask),
		       keys[i].size);
		if (refused(keys[i].name) && memchr_inv((u8 *)mask + keys[i].offset, 0, keys[i].size)) {
			NL_SET_ERR_MSG_FMT_MOD(extack, "match on %s is not supported", keys[i].name);
			return -EOPNOTSUPP;
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(soft_keys); i++) {
		if (!(left & BIT_ULL(soft_keys[i].id)))
			continue;
		left &= ~BIT_ULL(soft_keys[i].id);
		f->soft = true;
		if (refused(soft_keys[i].name)) {
			NL_SET_ERR_MSG_FMT_MOD(extack, "match on %s is not supported", soft_keys[i].name);
			return -EOPNOTSUPP;
		}
	}
	if (left) {
		NL_SET_ERR_MSG_FMT_MOD(extack, "match on keys 0x%llx is not supported", left);
		return -EOPNOTSUPP;
	}
	/* cls_flower itself sets the type of the addresses, and the first-fragment flag is a part of the control key. */
	masked(&f->key, &key, mask);
	return 0;
}

static int read_actions(struct flow_rule *rule, struct filter *f, struct netlink_ext_ack *extack)
{
	bool mangles = false, csum = false, encap = false;
	struct flow_action_entry *a;
	const char *name;
	int i;

	flow_action_for_each(i, a, &rule->action) {
		struct op *op = &f->ops[f->op_count];

		name = NULL;
		for (size_t n = 0; n < ARRAY_SIZE(hard_actions); n++)
			if (hard_actions[n].id == a->id)
				name = hard_actions[n].name;
		for (size_t n = 0; n < ARRAY_SIZE(soft_actions); n++)
			if (soft_actions[n].id == a->id) {
				name = soft_actions[n].name;
				f->soft = true;
			}
		if (!name) {
			NL_SET_ERR_MSG_FMT_MOD(extack, "action %d is not supported", a->id);
			return -EOPNOTSUPP;
		}
		if (refused(name)) {
			NL_SET_ERR_MSG_FMT_MOD(extack, "action %s is not supported", name);
			return -EOPNOTSUPP;
		}
		op->id = a->id;
		switch (a->id) {
		case FLOW_ACTION_TUNNEL_ENCAP:
			encap = true;
			break;
		case FLOW_ACTION_REDIRECT:
		case FLOW_ACTION_MIRRED:
			op->port = port_of(a->dev);
			if (!op->port && !encap) {
				NL_SET_ERR_MSG_MOD(extack, "redirection to a device that is no port of the card");
				return -EOPNOTSUPP;
			}
			break;
		case FLOW_ACTION_GOTO:
			op->chain = a->chain_index;
			break;
		case FLOW_ACTION_VLAN_PUSH:
		case FLOW_ACTION_VLAN_MANGLE:
			op->vlan.vid = a->vlan.vid;
			op->vlan.proto = a->vlan.proto;
			op->vlan.prio = a->vlan.prio;
			break;
		case FLOW_ACTION_MANGLE:
			if (a->mangle.htype == FLOW_ACT_MANGLE_UNSPEC) {
				NL_SET_ERR_MSG_MOD(extack, "pedit without the name of a header");
				return -EOPNOTSUPP;
			}
			op->mangle.base = a->mangle.htype;
			op->mangle.offset = a->mangle.offset;
			op->mangle.mask = a->mangle.mask;
			op->mangle.value = a->mangle.val;
			mangles |= a->mangle.htype != FLOW_ACT_MANGLE_HDR_TYPE_ETH && a->mangle.htype != FLOW_ACT_MANGLE_HDR_TYPE_IP6;
			break;
		case FLOW_ACTION_CSUM:
			csum = true;
			break;
		default:
			break;
		}
		f->op_count++;
	}
	if (mangles && !csum) {
		NL_SET_ERR_MSG_MOD(extack, "pedit without csum");
		return -EOPNOTSUPP;
	}
	return 0;
}

/* The card's mask of this value. Holds the lock. */
static struct mask *mask_of(struct port *port, const struct card_key *key, u32 chain)
{
	struct mask *mask;

	list_for_each_entry(mask, &port->masks, list)
		if (mask->chain == chain && !memcmp(&mask->key, key, sizeof(*key)))
			return mask;
	mask = kzalloc(sizeof(*mask), GFP_KERNEL);
	if (!mask)
		return NULL;
	mask->key = *key;
	mask->chain = chain;
	list_add_tail_rcu(&mask->list, &port->masks);
	return mask;
}

static void remove_filter(struct filter *f)
{
	hash_del_rcu(&f->by_key);
	hash_del(&f->by_cookie);
	if (!--f->mask->filters) {
		list_del_rcu(&f->mask->list);
		kfree_rcu(f->mask, rcu);
	}
	kfree_rcu(f, rcu);
	filters--;
}

static int replace(struct port *port, struct flow_cls_offload *c)
{
	struct netlink_ext_ack *extack = c->common.extack;
	struct flow_rule *rule = flow_cls_offload_flow_rule(c);
	struct card_key mask = {};
	struct filter *f;
	int err;

	if (filters >= capacity) {
		count(FULL);
		event("full %s chain %u prio %u", port->dev->name, c->common.chain_index, c->common.prio);
		NL_SET_ERR_MSG_MOD(extack, "table full");
		return -ENOSPC;
	}
	f = kzalloc(struct_size(f, ops, rule->action.num_entries), GFP_KERNEL);
	if (!f)
		return -ENOMEM;
	f->port = port;
	f->cookie = c->cookie;
	f->prio = c->common.prio;
	f->protocol = c->common.protocol;
	f->last_used = f->read_at = jiffies;
	err = read_keys(rule, f, &mask, extack);
	if (err) {
		count(BAD_KEY);
	} else {
		err = read_actions(rule, f, extack);
		if (err)
			count(BAD_ACTION);
	}
	if (!err && !(f->mask = mask_of(port, &mask, c->common.chain_index)))
		err = -ENOMEM;
	if (err) {
		event("refused %s chain %u prio %u: %d", port->dev->name, c->common.chain_index, c->common.prio, err);
		kfree(f);
		return err;
	}
	f->mask->filters++;
	hash_add_rcu(by_key, &f->by_key, hash_of(f->mask, &f->key));
	hash_add(by_cookie, &f->by_cookie, f->cookie);
	filters++;
	peak = max(peak, filters);
	count(ADDED);
	if (filters <= 64) /* thousands would push all others out */
		event("added %s chain %u prio %u cookie %lx", port->dev->name, c->common.chain_index, c->common.prio, c->cookie);
	return 0;
}

static struct filter *by_its_cookie(struct port *port, unsigned long cookie)
{
	struct filter *f;

	hash_for_each_possible(by_cookie, f, by_cookie, cookie)
		if (f->cookie == cookie && f->port == port)
			return f;
	return NULL;
}

static void read_counters(struct filter *f, struct flow_stats *stats)
{
	/* Two steps: what this reading sees is told once `late_ms` have passed, by the reading after. */
	if (!late_ms || time_after(jiffies, f->read_at + msecs_to_jiffies(late_ms))) {
		u64 packets = atomic64_read(&f->packets), bytes = atomic64_read(&f->bytes);
		u64 tell_packets = late_ms ? f->seen_packets : packets, tell_bytes = late_ms ? f->seen_bytes : bytes;

		flow_stats_update(stats, tell_bytes - f->told_bytes, tell_packets - f->told_packets, 0, f->last_used,
				  FLOW_ACTION_HW_STATS_DELAYED);
		f->told_packets = tell_packets;
		f->told_bytes = tell_bytes;
		f->seen_packets = packets;
		f->seen_bytes = bytes;
		f->read_at = jiffies;
	}
	count(STATS_READ);
}

static int block_call(enum tc_setup_type type, void *data, void *private)
{
	struct flow_cls_offload *c = data;
	struct port *port = private;
	struct filter *f;
	int err = 0;

	if (type != TC_SETUP_CLSFLOWER)
		return -EOPNOTSUPP;
	if (port->end && c->command == FLOW_CLS_REPLACE && !tc_can_offload_extack(port->dev, c->common.extack))
		return -EOPNOTSUPP; /* hw-tc-offload is off */
	if (delay_ms && (c->command == FLOW_CLS_REPLACE || c->command == FLOW_CLS_DESTROY))
		msleep(delay_ms);
	mutex_lock(&lock);
	switch (c->command) {
	case FLOW_CLS_REPLACE:
		err = replace(port, c);
		break;
	case FLOW_CLS_DESTROY:
		f = by_its_cookie(port, c->cookie);
		if (f) { /* a refused filter is destroyed, too */
			remove_filter(f);
			count(DELETED);
			if (filters < 64)
				event("deleted %s chain %u prio %u", port->dev->name, c->common.chain_index, c->common.prio);
		}
		break;
	case FLOW_CLS_STATS:
		f = by_its_cookie(port, c->cookie);
		if (f)
			read_counters(f, &c->stats);
		break;
	default:
		err = -EOPNOTSUPP;
	}
	mutex_unlock(&lock);
	return err;
}

static int setup_block(struct net_device *dev, struct flow_block_offload *f)
{
	struct port *port = ((struct end *)netdev_priv(dev))->port;
	struct flow_block_cb *block;

	if (f->binder_type != FLOW_BLOCK_BINDER_TYPE_CLSACT_INGRESS)
		return -EOPNOTSUPP;
	f->unlocked_driver_cb = true;
	f->driver_block_list = &blocks;
	if (f->command == FLOW_BLOCK_BIND) {
		if (flow_block_cb_is_busy(block_call, port, &blocks))
			return -EBUSY;
		block = flow_block_cb_alloc(block_call, port, port, NULL);
		if (IS_ERR(block))
			return PTR_ERR(block);
		flow_block_cb_add(block, f);
		list_add_tail(&block->driver_list, &blocks);
		count(BINDS);
		event("bind %s%s", dev->name, f->block_shared ? " shared" : "");
		return 0;
	}
	block = flow_block_cb_lookup(f->block, block_call, port);
	if (!block)
		return -ENOENT;
	flow_block_cb_remove(block, f);
	list_del(&block->driver_list);
	event("unbind %s", dev->name);
	return 0;
}

static int setup_tc(struct net_device *dev, enum tc_setup_type type, void *data)
{
	return type == TC_SETUP_BLOCK ? setup_block(dev, data) : -EOPNOTSUPP;
}

/* -- tunnel devices: indirect blocks, ports --------------------------------------------------------------------- */

static void release_tunnel(void *private)
{
	kfree(private); /* its filters are gone: tc deletes them before it unbinds */
}

static int setup_indirect(struct net_device *dev, struct Qdisc *sch, void *private, enum tc_setup_type type, void *type_data,
			  void *data, void (*cleanup)(struct flow_block_cb *block))
{
	struct flow_block_offload *f = type_data;
	struct flow_block_cb *block;
	struct port *port;

	if (!dev || type != TC_SETUP_BLOCK || f->binder_type != FLOW_BLOCK_BINDER_TYPE_CLSACT_INGRESS ||
	    !(netif_is_vxlan(dev) || netif_is_geneve(dev) || netif_is_gretap(dev) || netif_is_ip6gretap(dev)))
		return -EOPNOTSUPP;
	f->unlocked_driver_cb = true;
	f->driver_block_list = &indirect_blocks;
	if (f->command == FLOW_BLOCK_BIND) {
		port = kzalloc(sizeof(*port), GFP_KERNEL);
		if (!port)
			return -ENOMEM;
		port->dev = dev;
		INIT_LIST_HEAD(&port->masks);
		block = flow_indr_block_cb_alloc(block_call, dev, port, release_tunnel, f, dev, sch, data, private, cleanup);
		if (IS_ERR(block)) {
			kfree(port);
			return PTR_ERR(block);
		}
		flow_block_cb_add(block, f);
		list_add_tail(&block->driver_list, &indirect_blocks);
		count(INDIRECT_BINDS);
		event("indirect bind %s", dev->name);
		return 0;
	}
	block = flow_block_cb_lookup(f->block, block_call, dev);
	if (!block)
		return -ENOENT;
	flow_indr_block_cb_remove(block, f);
	list_del(&block->driver_list);
	event("indirect unbind %s", dev->name);
	return 0;
}

static int set_port(struct net_device *dev, unsigned int table, unsigned int entry, struct udp_tunnel_info *info)
{
	count(UDP_PORTS);
	event("udp port %s %u type %u", dev->name, ntohs(info->port), info->type);
	return 0;
}

static int unset_port(struct net_device *dev, unsigned int table, unsigned int entry, struct udp_tunnel_info *info)
{
	event("udp port %s %u removed", dev->name, ntohs(info->port));
	return 0;
}

static const struct udp_tunnel_nic_info udp_ports = {
	.set_port = set_port,
	.unset_port = unset_port,
	.flags = UDP_TUNNEL_NIC_INFO_MAY_SLEEP | UDP_TUNNEL_NIC_INFO_OPEN_ONLY,
	.tables = { { .n_entries = 4, .tunnel_types = UDP_TUNNEL_TYPE_VXLAN | UDP_TUNNEL_TYPE_GENEVE } },
};

/* -- frames ----------------------------------------------------------------------------------------------------- */

/* Sets what the helpers of the kernel expect of a frame whose data begins with its Ethernet header. */
static void settle(struct sk_buff *skb)
{
	skb_reset_mac_header(skb);
	skb->protocol = eth_hdr(skb)->h_proto;
	skb_set_network_header(skb, ETH_HLEN);
	skb->mac_len = ETH_HLEN;
}

static struct filter *lookup(struct port *port, struct sk_buff *skb, u32 chain)
{
	struct filter *f, *best = NULL;
	struct card_key key, part;
	struct mask *mask;

	settle(skb);
	memset(&key, 0, sizeof(key));
	skb_flow_dissect(skb, &dissector, &key, FLOW_DISSECTOR_F_STOP_BEFORE_ENCAP);
	list_for_each_entry_rcu(mask, &port->masks, list) {
		if (mask->chain != chain)
			continue;
		masked(&part, &key, &mask->key);
		hash_for_each_possible_rcu(by_key, f, by_key, hash_of(mask, &part))
			if (f->mask == mask && !memcmp(&f->key, &part, sizeof(part)) && (!best || f->prio < best->prio) &&
			    (f->protocol == htons(ETH_P_ALL) || f->protocol == skb_protocol(skb, false)))
				best = f;
	}
	return best;
}

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

/* Bytes on the wire with Ethernet headers and VLAN tags, without the check sequence; packets after segmentation. */
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
		struct filter *f = lookup(port, skb, chain);

		if (f && how == LIE_ABSENT) {
			count(LIES);
			f = NULL;
		}
		if (!f || f->soft || n == MAX_CHAIN_STEPS) {
			count(!f ? chain ? CHAIN_MISSES : MISSES : SOFT_HITS);
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
			count(LIES);
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
			count(LIES);
			continue;
		}
		count(HITS);
		atomic64_add(hits[i].packets, &hits[i].f->packets);
		atomic64_add(hits[i].bytes, &hits[i].f->bytes);
		WRITE_ONCE(hits[i].f->last_used, jiffies);
	}
	consume_skb(original);
	while ((skb = __skb_dequeue(&out)))
		deliver(skb, *(struct net_device **)skb->cb);
}

static netdev_tx_t transmit(struct sk_buff *skb, struct net_device *dev)
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

/* -- devices ---------------------------------------------------------------------------------------------------- */

static int parent_id(struct net_device *dev, struct netdev_phys_item_id *id)
{
	id->id_len = 8;
	memcpy(id->id, "heddlecd", 8);
	return 0;
}

static int port_name(struct net_device *dev, char *name, size_t length)
{
	struct port *port = ((struct end *)netdev_priv(dev))->port;
	int n = port->number ? snprintf(name, length, "pf0vf%u", port->number - 1) : snprintf(name, length, "p0");

	return n < length ? 0 : -EOPNOTSUPP;
}

static const struct net_device_ops inner_ops = {
	.ndo_start_xmit = transmit, .ndo_setup_tc = setup_tc, .ndo_get_port_parent_id = parent_id,
	.ndo_get_phys_port_name = port_name, .ndo_set_mac_address = eth_mac_addr, .ndo_validate_addr = eth_validate_addr,
};
static const struct net_device_ops outer_ops = {
	.ndo_start_xmit = transmit, .ndo_set_mac_address = eth_mac_addr, .ndo_validate_addr = eth_validate_addr,
};

static int settings(struct net_device *dev, struct ethtool_link_ksettings *s)
{
	s->base.speed = SPEED_25000;
	s->base.duplex = DUPLEX_FULL;
	s->base.port = PORT_FIBRE;
	return 0;
}

static void driver(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
}

static const struct ethtool_ops tool_ops = {
	.get_link = ethtool_op_get_link, .get_link_ksettings = settings, .get_drvinfo = driver,
};

static void prepare(struct net_device *dev)
{
	ether_setup(dev);
	eth_hw_addr_random(dev);
	dev->ethtool_ops = &tool_ops;
	dev->lltx = true;
	dev->max_mtu = ETH_MAX_MTU;
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE;
	dev->priv_flags &= ~IFF_TX_SKB_SHARING;
	dev->hw_features = NETIF_F_SG | NETIF_F_FRAGLIST | NETIF_F_HW_CSUM | NETIF_F_RXCSUM | NETIF_F_SCTP_CRC | NETIF_F_HIGHDMA |
			   NETIF_F_GSO_SOFTWARE | NETIF_F_GSO_ENCAP_ALL | NETIF_F_HW_VLAN_CTAG_TX | NETIF_F_HW_VLAN_CTAG_RX |
			   NETIF_F_HW_VLAN_STAG_TX | NETIF_F_HW_VLAN_STAG_RX;
	dev->features = dev->hw_features;
	dev->hw_enc_features = dev->hw_features;
	dev->vlan_features = dev->hw_features & ~(NETIF_F_HW_VLAN_CTAG_TX | NETIF_F_HW_VLAN_STAG_TX | NETIF_F_HW_VLAN_CTAG_RX |
						  NETIF_F_HW_VLAN_STAG_RX);
}

static struct net_device *add_device(struct port *port, const char *stem, bool outside)
{
	struct net_device *dev;
	char name[IFNAMSIZ];

	snprintf(name, sizeof(name), "%s%u", stem, port->number ? port->number - 1 : 0);
	dev = alloc_netdev(sizeof(struct end), name, NET_NAME_USER, prepare);
	if (!dev)
		return NULL;
	((struct end *)netdev_priv(dev))->port = port;
	((struct end *)netdev_priv(dev))->outside = outside;
	dev->netdev_ops = outside ? &outer_ops : &inner_ops;
	if (!outside) {
		dev->hw_features |= NETIF_F_HW_TC;
		dev->features |= NETIF_F_HW_TC;
		if (!port->number) {
			dev->udp_tunnel_nic_info = &udp_ports;
			dev->hw_features |= NETIF_F_RX_UDP_TUNNEL_PORT;
			dev->features |= NETIF_F_RX_UDP_TUNNEL_PORT;
		}
	}
	if (register_netdev(dev)) {
		free_netdev(dev);
		return NULL;
	}
	return dev;
}

static void remove_ports(void)
{
	for (uint i = 0; i < port_count; i++)
		for (int outer = 0; outer < 2; outer++)
			if (outer ? all[i]->dev : all[i]->end)
				unregister_netdev(outer ? all[i]->dev : all[i]->end);
	synchronize_rcu();
	for (uint i = 0; i < port_count; i++) {
		if (all[i]->dev)
			free_netdev(all[i]->dev);
		if (all[i]->end)
			free_netdev(all[i]->end);
		kfree(all[i]);
	}
}

/* -- debugfs ---------------------------------------------------------------------------------------------------- */

static int stats_show(struct seq_file *s, void *unused)
{
	seq_printf(s, "filters %u\npeak %u\n", filters, peak);
	for (int i = 0; i < COUNTERS; i++)
		seq_printf(s, "%s %lld\n", counter_names[i], atomic64_read(&counters[i]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int filters_show(struct seq_file *s, void *unused)
{
	struct filter *f;
	uint bucket;

	mutex_lock(&lock);
	hash_for_each(by_cookie, bucket, f, by_cookie) {
		seq_printf(s, "%s chain %u prio %u proto 0x%04x packets %lld bytes %lld%s keys", f->port->dev->name, f->mask->chain, f->prio,
			   ntohs(f->protocol), atomic64_read(&f->packets), atomic64_read(&f->bytes), f->soft ? " soft" : "");
		for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
			if (memchr_inv((u8 *)&f->mask->key + keys[i].offset, 0, keys[i].size))
				seq_printf(s, " %s", keys[i].name);
		for (size_t i = 0; i < ARRAY_SIZE(soft_keys); i++)
			if (f->used & BIT_ULL(soft_keys[i].id))
				seq_printf(s, " %s", soft_keys[i].name);
		seq_puts(s, " actions");
		for (uint n = 0; n < f->op_count; n++) {
			for (size_t i = 0; i < ARRAY_SIZE(hard_actions); i++)
				if (hard_actions[i].id == f->ops[n].id)
					seq_printf(s, " %s", hard_actions[i].name);
			for (size_t i = 0; i < ARRAY_SIZE(soft_actions); i++)
				if (soft_actions[i].id == f->ops[n].id)
					seq_printf(s, " %s", soft_actions[i].name);
			if ((f->ops[n].id == FLOW_ACTION_REDIRECT || f->ops[n].id == FLOW_ACTION_MIRRED) && f->ops[n].port)
				seq_printf(s, ":%s", f->ops[n].port->dev->name);
		}
		seq_putc(s, '\n');
	}
	mutex_unlock(&lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(filters);

static int events_show(struct seq_file *s, void *unused)
{
	mutex_lock(&lock);
	for (uint i = event_count > MAX_EVENTS ? event_count - MAX_EVENTS : 0; i < event_count; i++)
		seq_printf(s, "%s\n", events[i % MAX_EVENTS]);
	mutex_unlock(&lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(events);

static int __init card_init(void)
{
	struct flow_dissector_key wanted[ARRAY_SIZE(keys)];
	int err = -ENOMEM;

	if (vfs >= MAX_PORTS)
		return -EINVAL;
	began = ktime_get();
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
		wanted[i] = (struct flow_dissector_key){ .key_id = keys[i].id, .offset = keys[i].offset };
	skb_flow_dissector_init(&dissector, wanted, ARRAY_SIZE(keys));
	for (; port_count <= vfs; port_count++) {
		struct port *port = kzalloc(sizeof(*port), GFP_KERNEL);

		if (!port)
			goto fail;
		all[port_count] = port;
		port->number = port_count;
		INIT_LIST_HEAD(&port->masks);
		port->dev = add_device(port, port_count ? "rep" : "up", false);
		port->end = port->dev ? add_device(port, port_count ? "vf" : "wire", true) : NULL;
		if (!port->end) {
			port_count++;
			goto fail;
		}
	}
	err = flow_indr_dev_register(setup_indirect, NULL);
	if (err)
		goto fail;
	directory = debugfs_create_dir(KBUILD_MODNAME, NULL);
	debugfs_create_file("stats", 0444, directory, NULL, &stats_fops);
	debugfs_create_file("filters", 0444, directory, NULL, &filters_fops);
	debugfs_create_file("events", 0444, directory, NULL, &events_fops);
	return 0;
fail:
	remove_ports();
	return err;
}

static void __exit card_exit(void)
{
	debugfs_remove(directory);
	flow_indr_dev_unregister(setup_indirect, NULL, release_tunnel);
	remove_ports();
	rcu_barrier();
}

module_init(card_init);
module_exit(card_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("a network card that takes tc flower filters, for tests");
