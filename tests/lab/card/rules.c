// SPDX-License-Identifier: MIT OR GPL-2.0
/* The test card's rules: keys and actions of filters as tc writes them. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/module.h>
#include <net/pkt_cls.h>
#include "card.h"

static char refuse[256];
module_param_string(refuse, refuse, sizeof(refuse), 0644);
MODULE_PARM_DESC(refuse, "names of keys and actions that are refused, separated by blanks");

#define KEY(id, field, name) { FLOW_DISSECTOR_KEY_##id, offsetof(struct card_key, field), sizeof(((struct card_key *)0)->field), name }
static const struct { int id; u16 offset, size; const char *name; } keys[] = {
	KEY(CONTROL, control, "frag"), KEY(BASIC, basic, "proto"), KEY(ETH_ADDRS, eth, "mac"), KEY(VLAN, vlan, "vlan"),
	KEY(CVLAN, cvlan, "cvlan"), KEY(IPV4_ADDRS, ipv4, "ipv4"), KEY(IPV6_ADDRS, ipv6, "ipv6"), KEY(PORTS, ports, "ports"),
	KEY(TCP, tcp, "tcp_flags"), KEY(IP, ip, "tos_ttl"), KEY(ICMP, icmp, "icmp"), KEY(ARP, arp, "arp"),
	KEY(MPLS, mpls, "mpls"), KEY(NUM_OF_VLANS, vlans, "num_of_vlans"),
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

void card_masked(struct card_key *out, const struct card_key *key, const struct card_key *mask)
{
	for (size_t i = 0; i < sizeof(*key) / sizeof(u32); i++)
		((u32 *)out)[i] = ((const u32 *)key)[i] & ((const u32 *)mask)[i];
}

int card_read_keys(struct flow_rule *rule, struct filter *f, struct card_key *mask, struct netlink_ext_ack *extack)
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
	card_masked(&f->key, &key, mask);
	return 0;
}

int card_read_actions(struct flow_rule *rule, struct filter *f, struct netlink_ext_ack *extack)
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

void card_dissect(struct sk_buff *skb, struct card_key *key)
{
	settle(skb);
	memset(key, 0, sizeof(*key));
	skb_flow_dissect(skb, &dissector, key, FLOW_DISSECTOR_F_STOP_BEFORE_ENCAP);
}

void card_show_rule(struct seq_file *s, const struct filter *f)
{
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
}

void card_rules_init(void)
{
	struct flow_dissector_key wanted[ARRAY_SIZE(keys)];

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
		wanted[i] = (struct flow_dissector_key){ .key_id = keys[i].id, .offset = keys[i].offset };
	skb_flow_dissector_init(&dissector, wanted, ARRAY_SIZE(keys));
}
