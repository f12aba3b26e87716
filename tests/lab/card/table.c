// SPDX-License-Identifier: MIT OR GPL-2.0
/* The test card's table: filters as tc writes them, and the search for the filter of a frame. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/delay.h>
#include <linux/hashtable.h>
#include <linux/jhash.h>
#include <linux/module.h>
#include <net/geneve.h>
#include <net/gre.h>
#include <net/pkt_cls.h>
#include <net/vxlan.h>
#include "card.h"

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

static struct flow_dissector dissector;
static DEFINE_HASHTABLE(by_key, 16);
static DEFINE_HASHTABLE(by_cookie, 16);
static DEFINE_MUTEX(lock); /* writers of the table */
static LIST_HEAD(blocks);
static LIST_HEAD(indirect_blocks);
static uint filters, peak;

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
		/* cls_flower has both addresses at one place, and reports both keys. The control key has the type. */
		if ((keys[i].id == FLOW_DISSECTOR_KEY_IPV4_ADDRS || keys[i].id == FLOW_DISSECTOR_KEY_IPV6_ADDRS) &&
		    key.control.addr_type != keys[i].id)
			continue;
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
			op->port = card_port_of(a->dev);
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
		card_count(FULL);
		card_event("full %s chain %u prio %u", port->dev->name, c->common.chain_index, c->common.prio);
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
		card_count(BAD_KEY);
	} else {
		err = read_actions(rule, f, extack);
		if (err)
			card_count(BAD_ACTION);
	}
	if (!err && !(f->mask = mask_of(port, &mask, c->common.chain_index)))
		err = -ENOMEM;
	if (err) {
		card_event("refused %s chain %u prio %u: %d", port->dev->name, c->common.chain_index, c->common.prio, err);
		kfree(f);
		return err;
	}
	f->mask->filters++;
	hash_add_rcu(by_key, &f->by_key, hash_of(f->mask, &f->key));
	hash_add(by_cookie, &f->by_cookie, f->cookie);
	filters++;
	peak = max(peak, filters);
	card_count(ADDED);
	if (filters <= 64) /* thousands would push all others out */
		card_event("added %s chain %u prio %u cookie %lx", port->dev->name, c->common.chain_index, c->common.prio, c->cookie);
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
	/* Two steps: a reading sees values that the next one, at least `late_ms` later, reports. */
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
	card_count(STATS_READ);
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
			card_count(DELETED);
			if (filters < 64)
				card_event("deleted %s chain %u prio %u", port->dev->name, c->common.chain_index, c->common.prio);
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
		card_count(BINDS);
		card_event("bind %s%s", dev->name, f->block_shared ? " shared" : "");
		return 0;
	}
	block = flow_block_cb_lookup(f->block, block_call, port);
	if (!block)
		return -ENOENT;
	flow_block_cb_remove(block, f);
	list_del(&block->driver_list);
	card_event("unbind %s", dev->name);
	return 0;
}

int card_setup_tc(struct net_device *dev, enum tc_setup_type type, void *data)
{
	return type == TC_SETUP_BLOCK ? setup_block(dev, data) : -EOPNOTSUPP;
}

struct filter *card_lookup(struct port *port, struct sk_buff *skb, u32 chain)
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

/* -- blocks of tunnel devices -------------------------------------------------------------------------- */

void card_release_tunnel(void *private)
{
	kfree(private); /* tc has deleted the filters before */
}

int card_setup_indirect(struct net_device *dev, struct Qdisc *sch, void *private, enum tc_setup_type type, void *type_data,
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
		block = flow_indr_block_cb_alloc(block_call, dev, port, card_release_tunnel, f, dev, sch, data, private, cleanup);
		if (IS_ERR(block)) {
			kfree(port);
			return PTR_ERR(block);
		}
		flow_block_cb_add(block, f);
		list_add_tail(&block->driver_list, &indirect_blocks);
		card_count(INDIRECT_BINDS);
		card_event("indirect bind %s", dev->name);
		return 0;
	}
	block = flow_block_cb_lookup(f->block, block_call, dev);
	if (!block)
		return -ENOENT;
	flow_indr_block_cb_remove(block, f);
	list_del(&block->driver_list);
	card_event("indirect unbind %s", dev->name);
	return 0;
}

/* -- reports ------------------------------------------------------------------------------------------- */

void card_table_size(uint *now, uint *most)
{
	*now = filters;
	*most = peak;
}

void card_table_show(struct seq_file *s)
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
}

void card_table_init(void)
{
	struct flow_dissector_key wanted[ARRAY_SIZE(keys)];

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
		wanted[i] = (struct flow_dissector_key){ .key_id = keys[i].id, .offset = keys[i].offset };
	skb_flow_dissector_init(&dissector, wanted, ARRAY_SIZE(keys));
}
