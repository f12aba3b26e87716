// SPDX-License-Identifier: MIT OR GPL-2.0
/* The test card's table: its filters, and the search for the filter of a frame. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/hashtable.h>
#include <linux/jhash.h>
#include <linux/module.h>
#include <net/pkt_cls.h>
#include "card.h"

static uint capacity = 1 << 20;
module_param(capacity, uint, 0644);
MODULE_PARM_DESC(capacity, "filters that the table holds");
static uint late_ms;
module_param(late_ms, uint, 0644);
MODULE_PARM_DESC(late_ms, "time between two readings of the counters: an answer is up to this old");

static DEFINE_HASHTABLE(by_key, 16);
static DEFINE_HASHTABLE(by_cookie, 16);
static DEFINE_MUTEX(lock); /* writers of the table */
static uint filters, peak;

static u32 hash_of(const struct mask *mask, const struct card_key *key)
{
	return jhash2((const u32 *)key, sizeof(*key) / sizeof(u32), hash_ptr(mask, 32));
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
	err = card_read_keys(rule, f, &mask, extack);
	if (err) {
		card_count(BAD_KEY);
	} else {
		err = card_read_actions(rule, f, extack);
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

int card_table_command(struct port *port, struct flow_cls_offload *c)
{
	struct filter *f;
	int err = 0;

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

struct filter *card_lookup(struct port *port, struct sk_buff *skb, u32 chain)
{
	struct filter *f, *best = NULL;
	struct card_key key, part;
	struct mask *mask;

	card_dissect(skb, &key);
	list_for_each_entry_rcu(mask, &port->masks, list) {
		if (mask->chain != chain)
			continue;
		card_masked(&part, &key, &mask->key);
		hash_for_each_possible_rcu(by_key, f, by_key, hash_of(mask, &part))
			if (f->mask == mask && !memcmp(&f->key, &part, sizeof(part)) && (!best || f->prio < best->prio) &&
			    (f->protocol == htons(ETH_P_ALL) || f->protocol == skb_protocol(skb, false)))
				best = f;
	}
	return best;
}

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
		card_show_rule(s, f);
		seq_putc(s, '\n');
	}
	mutex_unlock(&lock);
}
